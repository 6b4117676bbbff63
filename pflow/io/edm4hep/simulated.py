"""Contributions to simulated calorimeter hits (edm4hep::SimCalorimeterHit): their times and truth."""

from __future__ import annotations

import dataclasses
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.links import sum_by_pair
from pflow.io.edm4hep.podio import Joined, PodioFile, expand, relation

__all__ = ["Contributions", "read_contributions", "sum_weights"]

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Contributions:
    """Contributions (edm4hep::CaloHitContribution) to the hits of one collection.

    Parameters
    ----------
    counts
        int64 [event]: hits of the collection.
    hit
        int64: the hit, counted over all events.
    energy, time
        float64: energy deposited, GeV, and time, ns.
    event
        int64.
    particle_id, particle
        int64: collection id and index of the Monte Carlo particle, both -1 where the file has none.
    """

    counts: Ints
    hit: Ints
    energy: npt.NDArray[np.float64]
    time: npt.NDArray[np.float64]
    event: Ints
    particle_id: Ints
    particle: Ints

    def of_kept(self, kept: npt.NDArray[np.bool_], counted: npt.NDArray[np.bool_]) -> Contributions:
        """Those that count, bool [contribution], to the hits that are kept, bool [hit], which are numbered anew."""
        use = counted & kept[self.hit]
        return Contributions(
            counts=np.diff(jagged.offsets(kept)[jagged.offsets(self.counts)]),
            hit=(np.cumsum(kept) - 1)[self.hit[use]],
            energy=self.energy[use],
            time=self.time[use],
            event=self.event[use],
            particle_id=self.particle_id[use],
            particle=self.particle[use],
        )


def read_contributions(file: PodioFile, collection: str, start: int, stop: int) -> Contributions | None:
    """Contributions to the hits of a simulated collection in entries `start` to `stop`; None if the file has none.

    Raises
    ------
    InputError
        A member is missing or cannot be decoded, or the file has no table of collection ids.
    """
    columns = file.columns
    references = relation(columns, collection, 0, "contributions")
    if references is None:
        return None

    def get(name: str, *members: str) -> ak.Array:
        return columns.get(name, *members, start=start, stop=stop)

    begin, end = get(collection, "contributions_begin"), get(collection, "contributions_end")
    reference_id = get(references, "collectionID")
    n_references = jagged.count(reference_id)
    event = jagged.event_index(n_references)
    reference_id, reference_index = jagged.flat(reference_id), jagged.flat(get(references, "index"))
    names = [name for name in file.names(reference_id) if columns.has(name, "energy")]
    energies = [get(name, "energy") for name in names]
    joined = Joined(names, [jagged.count(values) for values in energies] or np.zeros((1, stop - start)))
    position, known = joined.resolve(file, reference_id, reference_index, event)
    known &= (position >= 0) & (position < joined.totals[event])

    hit, member = expand(begin, end, n_references)
    hit, member = hit[known[member]], member[known[member]]
    at = jagged.offsets(joined.totals)[event[member]] + position[member]

    def column(arrays: list[ak.Array], dtype: Any) -> npt.NDArray[Any]:
        return jagged.flat(jagged.join({"": arrays})[""], dtype)[at] if arrays else np.zeros(0, dtype=dtype)

    particles = [relation(columns, name, 0, "particle") for name in names]
    if None in particles:
        particle_id = particle = np.full(len(at), -1, dtype=np.int64)
    else:
        particle_id = column([get(str(name), "collectionID") for name in particles], np.int64)
        particle = column([get(str(name), "index") for name in particles], np.int64)
    return Contributions(
        counts=jagged.count(begin),
        hit=hit,
        energy=column(energies, np.float64),
        time=column([get(name, "time") for name in names], np.float64),
        event=event[member],
        particle_id=particle_id,
        particle=particle,
    )


def sum_weights(
    event: Ints, source: Ints, particle: Ints, weight: npt.NDArray[np.float64]
) -> tuple[Ints, Ints, Ints, npt.NDArray[np.float64]]:
    """Sum the weights of equal (event, source, particle); returns the four columns in that order, sorted."""
    stride = int(source.max(initial=0)) + 1
    event_source, particle, weight = sum_by_pair(event * stride + source, particle, weight)
    return event_source // stride, event_source % stride, particle, weight
