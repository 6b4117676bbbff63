"""Generated particles of many batches, joined in the order of the events."""

from __future__ import annotations

import dataclasses
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from torch import Tensor

from pflow.event import jagged
from pflow.event.links import MIN_HIT_FRACTION, Links
from pflow.model.api import GeneratedParticles
from pflow.tokens.tokens import ParticleTokens

__all__ = ["ParticleCollector"]

Index = npt.NDArray[np.int64]

COLUMNS = tuple(field.name for field in dataclasses.fields(ParticleTokens) if field.name != "counts")
"""Of generated particles, those that are kept."""


class ParticleCollector:
    """Joins the generated particles of batches of `n_events` events; if `linked`, there are links even of no batch."""

    def __init__(self, n_events: int, *, linked: bool = False) -> None:
        self._n_events, self._linked = n_events, linked
        self._parts: list[tuple[Index, dict[str, npt.NDArray[Any]]]] = []
        self._links: dict[str, list[tuple[npt.NDArray[Any], ...]]] = {}
        self.truncated = np.zeros(n_events, dtype=np.bool_)
        """bool [event], True = stopped at the maximum number of particles."""

    def add(self, rows: Index, generated: GeneratedParticles) -> None:
        """Add the particles of events `rows`, int64 [B]; fractions become links at once: dense, they are too large."""
        self.truncated[rows] = generated.truncated.cpu().numpy()
        for name in ("hit_fraction", "track_fraction"):
            fraction = getattr(generated, name)
            if fraction is not None:
                values = _numpy(fraction)  # [B, T, N]
                row, particle, source = np.nonzero(values >= MIN_HIT_FRACTION)
                self._links.setdefault(name, []).append((rows[row], particle, source, values[row, particle, source]))
        event = np.repeat(rows, _numpy(generated.mask.sum(1)))
        columns = {name: getattr(generated, name) for name in COLUMNS}
        real = {name: _numpy(value[generated.mask]) for name, value in columns.items() if value is not None}
        self._parts.append((event, real))

    def tokens(self) -> ParticleTokens:
        """The particles of all events, one event after the other."""
        if not self._parts:
            none, index = np.zeros(0), np.zeros(0, dtype=np.int64)
            counts = np.zeros(self._n_events, dtype=np.int64)
            return ParticleTokens(counts=counts, charge=index, pdg=index, energy=none, direction=np.zeros((0, 3)))
        event = np.concatenate([event for event, _ in self._parts])
        order = np.argsort(event, kind="stable")
        columns = {name: np.concatenate([part[name] for _, part in self._parts])[order] for name in self._parts[0][1]}
        return ParticleTokens(counts=np.bincount(event, minlength=self._n_events), **columns)

    def links(self, name: str, index: ak.Array) -> ak.Array | None:
        """Links [event, link] by source and then particle; None if the network gives no fractions of this name.

        `name` is ``hit_fraction`` or ``track_fraction``; `index`, int64 [event, source], says which hit or track of
        the input's entry each one of the readout is.
        """
        none = [(np.zeros(0, dtype=np.int64),) * 4] if self._linked else []
        parts = self._links.get(name, none)
        if not parts:
            return None
        event, particle, source, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.lexsort((particle, source, event))
        event, particle, weight = event[order], particle[order], weight[order]
        source = jagged.flat(index)[source[order] + jagged.offsets(jagged.count(index))[event]]
        return Links.by_event(event, source, particle, weight, self._n_events).records()


def _numpy(values: Tensor) -> npt.NDArray[Any]:
    values = values.float() if values.is_floating_point() else values
    return values.cpu().numpy()
