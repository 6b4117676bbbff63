"""Particles of many events as flat columns, the input of every metric."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.metrics.stats import Floats, Ints
from pflow.physics.pdg import class_index

COLUMNS = ("pdg", "charge", "energy", "momentum")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ParticleTable:
    """Particles of consecutive events: `counts` int64 [event]; pdg int64, charge [e], energy [GeV], momentum [N, 3]."""

    counts: Ints
    pdg: Ints
    charge: Floats
    energy: Floats
    momentum: Floats

    @classmethod
    def from_records(
        cls, particles: ak.Array, *, name: str = "particles", file: str | None = None, entries: Ints | None = None
    ) -> ParticleTable:
        """From records [event, particle]; `InputError` names the file and entry of a number that is not finite."""
        counts = jagged.count(particles)
        columns = {field: jagged.flat(particles[field], np.float64) for field in ("charge", "energy", "px", "py", "pz")}
        for field, values in columns.items():
            for row in np.flatnonzero(~np.isfinite(values))[:1].tolist():
                event = int(jagged.event_index(counts)[row])
                entry = event if entries is None else int(entries[event])
                text = f"{name}: expected finite numbers, found {values[row]}"
                raise InputError(text, file=file, entry=entry, field=field)
        charge, energy, *momentum = columns.values()
        pdg = jagged.flat(particles["pdg"], np.int64)
        return cls(counts=counts, pdg=pdg, charge=charge, energy=energy, momentum=np.stack(momentum, axis=1))

    def __len__(self) -> int:
        """Number of particles."""
        return len(self.pdg)

    def take(self, rows: npt.NDArray[Any]) -> ParticleTable:
        """The particles chosen by a mask, or by indices in the order of the events."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return ParticleTable(counts=np.bincount(self.event[rows], minlength=len(self.counts)), **columns)

    @cached_property
    def event(self) -> Ints:
        """int64 [N]: index of each particle's event."""
        return jagged.event_index(self.counts)

    @cached_property
    def offsets(self) -> Ints:
        """int64 [event + 1]: index of each event's first particle, and the number of particles."""
        return jagged.offsets(self.counts)

    @cached_property
    def classes(self) -> Ints:
        """int64 [N]: index into `pflow.physics.pdg.CLASSES`."""
        return class_index(self.pdg)

    @cached_property
    def theta(self) -> Floats:
        """float64 [N]: polar angle of the momentum, rad."""
        return np.arctan2(np.hypot(self.momentum[:, 0], self.momentum[:, 1]), self.momentum[:, 2])

    @cached_property
    def distance(self) -> Floats:
        """float64 [N]: smallest angle, rad, to the momentum of another charged particle of the event; NaN for none."""
        length = np.linalg.norm(self.momentum, axis=1, keepdims=True)
        unit = np.divide(self.momentum, length, out=np.full_like(self.momentum, np.nan), where=length > 0)
        angles = np.full(len(self), np.nan)
        for first, last in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            charged = first + np.flatnonzero(self.charge[first:last])
            cosines = unit[first:last] @ unit[charged].T
            cosines[charged - first, np.arange(len(charged))] = np.nan  # itself
            if cosines.shape[1] > 1 or (cosines.size and np.isfinite(cosines).any()):
                angles[first:last] = np.arccos(np.clip(np.fmax.reduce(cosines, axis=1), -1, 1))
        return angles

    @cached_property
    def sums(self) -> Floats:
        """float64 [event, 4]: px, py, pz and energy of each event's particles, GeV."""
        columns = (*self.momentum.T, self.energy)
        return np.stack([np.bincount(self.event, c, len(self.counts)) for c in columns], axis=1).astype(np.float64)

    @cached_property
    def rank(self) -> Ints:
        """int64 [N]: place of each particle in its event by falling energy, from 0."""
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[np.lexsort((-self.energy, self.event))] = jagged.local_index(self.counts)
        return ranks


def masses(momenta: Floats) -> Floats:
    """Invariant masses of four-momenta px, py, pz, E [N, 4]; 0 for a negative squared mass."""
    return np.asarray(np.sqrt(np.maximum(0.0, momenta[:, 3] ** 2 - np.sum(momenta[:, :3] ** 2, axis=1))))
