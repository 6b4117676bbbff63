"""Calorimeter hits of a few events, one collection after the other, without any detector."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.io.edm4hep.collections import Collection
from pflow.io.edm4hep.podio import PodioFile

__all__ = ["HitSample", "join_samples", "read_sample"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HitSample:
    """Hits of one collection, or of several joined ones.

    Parameters
    ----------
    name
        Of the collection, the first of several.
    simulated
        Whether the hits are edm4hep::SimCalorimeterHit.
    event
        int64 [hit].
    position
        float64 [hit, 3], mm.
    energy, time
        float64 [hit], GeV and ns; time is NaN where there is none.
    cell_id
        uint64 [hit].
    layer
        int32 [hit], None if the file does not say how cell ids are made.
    codes
        The different values of the member ``type``.
    """

    name: str
    simulated: bool
    event: npt.NDArray[np.int64]
    position: npt.NDArray[np.float64]
    energy: npt.NDArray[np.float64]
    time: npt.NDArray[np.float64]
    cell_id: npt.NDArray[np.uint64]
    layer: npt.NDArray[np.int32] | None
    codes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.energy)

    def cells(self) -> npt.NDArray[Any]:
        """Record of event and cell id of each hit, by which hits of two collections can be compared."""
        cells = np.zeros(len(self), dtype=[("event", np.int64), ("cell_id", np.uint64)])
        cells["event"], cells["cell_id"] = self.event, self.cell_id
        return cells


def read_sample(file: PodioFile, collection: Collection, stop: int) -> HitSample:
    """Hits of a collection in the first `stop` entries; those whose position is not finite are left out.

    Raises
    ------
    InputError
        A member is missing or cannot be decoded, or the cell encoding cannot be understood.
    """
    name = collection.name

    def get(member: str) -> Any:
        return file.columns.get(name, member, start=0, stop=stop)

    energy = get("energy")
    event = jagged.event_index(jagged.count(energy))
    position = np.stack([jagged.flat(get(f"position.{axis}"), np.float64) for axis in "xyz"], axis=-1)
    good = np.isfinite(position).all(axis=1)
    cell_id = jagged.flat(get("cellID")).astype(np.uint64)
    has_time, has_type = (file.columns.has(name, member) for member in ("time", "type"))
    time = jagged.flat(get("time"), np.float64) if has_time else np.full(len(event), np.nan)
    return HitSample(
        name=name,
        simulated=collection.kind == "SimCalorimeterHit",
        event=event[good],
        position=position[good],
        energy=jagged.flat(energy, np.float64)[good],
        time=time[good],
        cell_id=cell_id[good],
        layer=_layers(file, name, cell_id[good], stop, good),
        codes=tuple(int(code) for code in np.unique(jagged.flat(get("type")))) if has_type else (),
    )


def join_samples(samples: Iterable[HitSample]) -> HitSample:
    """The hits of one or more collections in one sample; layers only if all have them."""
    samples = list(samples)
    layers = [sample.layer for sample in samples]
    known = [layer for layer in layers if layer is not None]

    def joined(field: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(sample, field) for sample in samples])

    return HitSample(
        name=samples[0].name,
        simulated=samples[0].simulated,
        event=joined("event"),
        position=joined("position"),
        energy=joined("energy"),
        time=joined("time"),
        cell_id=joined("cell_id"),
        layer=np.concatenate(known) if len(known) == len(layers) else None,
        codes=tuple(sorted({code for sample in samples for code in sample.codes})),
    )


def _layers(
    file: PodioFile, name: str, cell_id: npt.NDArray[np.uint64], stop: int, good: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32] | None:
    encoding = file.encodings.get(name)
    if encoding is None:
        if not file.columns.has(name, "layer"):
            return None
        return jagged.flat(file.columns.get(name, "layer", start=0, stop=stop), np.int32)[good]
    layer = file.layers(name, cell_id, encoding)
    return None if (layer == -1).all() else layer
