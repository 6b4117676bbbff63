"""Simulated tracker hits (edm4hep::SimTrackerHit): how many tracker layers each Monte Carlo particle crossed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.podio import Joined, PodioFile, relation

__all__ = ["count_layers"]

BY_SECONDARY = 1 << 30
"""Bit of edm4hep::SimTrackerHit.quality: the hit is of a secondary that is not kept, though linked to its ancestor."""


def count_layers(
    file: PodioFile, collections: Iterable[str], particles: Joined, start: int, stop: int
) -> npt.NDArray[np.int64]:
    """Number of different layers with a hit of each particle's own, int64 [all particles of the entries].

    A layer is a pair of collection and layer of the cell id; where a collection has no cell encoding, each of its hits
    counts as a layer.

    Parameters
    ----------
    file
        Open file.
    collections
        Names of the collections, all of them in the file.
    particles
        Where the Monte Carlo particles went.
    start, stop
        Entries.

    Raises
    ------
    InputError
        A collection without references to particles, or a cell encoding that cannot be understood.
    """
    first = jagged.offsets(particles.totals)
    crossed: list[npt.NDArray[np.int64]] = [np.zeros((0, 3), dtype=np.int64)]
    for number, name in enumerate(collections):
        branch = relation(file.columns, name, 0, "particle", "MCParticle")
        if branch is None:
            raise InputError("the tracker hits have no references to particles", file=file.path, field=name)
        cell_ids = file.columns.get(name, "cellID", start=start, stop=stop)
        cells, event = jagged.flat(cell_ids), jagged.event_index(jagged.count(cell_ids))
        collection_id = jagged.flat(file.columns.get(branch, "collectionID", start=start, stop=stop))
        index = jagged.flat(file.columns.get(branch, "index", start=start, stop=stop))
        if len(index) != len(cells):
            raise InputError(
                f"{len(index)} references for {len(cells)} tracker hits", file=file.path, entry=start, field=branch
            )
        encoding = file.encodings.get(name)
        layer = np.arange(len(cells)) if encoding is None else file.layers(name, cells, encoding).astype(np.int64)
        particle, known = particles.resolve(file, collection_id, index, event)
        known &= (particle >= 0) & (particle < particles.totals[event])
        if file.columns.has(name, "quality"):
            quality = jagged.flat(file.columns.get(name, "quality", start=start, stop=stop))
            known &= (quality & BY_SECONDARY) == 0
        crossed.append(np.stack([first[event] + particle, np.full(len(cells), number), layer], axis=1)[known])
    different = np.unique(np.concatenate(crossed), axis=0)
    return np.bincount(different[:, 0], minlength=int(particles.totals.sum())).astype(np.int64)
