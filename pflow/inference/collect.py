"""GeneratedParticles particles of many batches, put back into the order of the events."""

from __future__ import annotations

import dataclasses
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.build import make_links
from pflow.model.common.decode import GeneratedParticles

__all__ = ["ParticleCollector"]

MIN_SHARE = 0.01
"""Shares below this are not written as links: they say that a hit is not the particle's."""

COLUMNS = ("charge", "pdg", "energy", "direction", "score", "mask")
"""What every architecture writes."""

OPTIONAL_COLUMNS = ("pdg_probability", "energy_sigma", "direction_sigma")
"""What some do."""

Index = npt.NDArray[np.int64]


class ParticleCollector:
    """Collects what is generated.

    Parameters
    ----------
    n_events
        Number of events in all.
    """

    def __init__(self, n_events: int) -> None:
        self._n_events = n_events
        self._parts: list[tuple[Index, GeneratedParticles]] = []
        self._links: dict[str, list[tuple[Index, Index, Index, npt.NDArray[np.float32]]]] = {}
        self.truncated = np.zeros(n_events, dtype=np.bool_)
        """bool [event], True = stopped at the maximum of particles."""

    def put(self, rows: Index, generated: GeneratedParticles) -> None:
        """Add the particles of the events `rows`, int64 [B]."""
        self.truncated[rows] = generated.truncated.cpu().numpy()
        for name in ("hit_fraction", "track_fraction"):
            share = getattr(generated, name)
            if share is not None:
                values = share.float().cpu().numpy()
                row, particle, source = np.nonzero(values >= MIN_SHARE)
                self._links.setdefault(name, []).append((rows[row], particle, source, values[row, particle, source]))
        # A share of each hit for each particle: kept, it would be most of the memory.
        self._parts.append((rows, dataclasses.replace(generated, hit_fraction=None, track_fraction=None)))

    def columns(self) -> dict[str, Any]:
        """Arguments of `pflow.tokens.decode.decode`, [event, particle], padded; without particles, those it needs."""
        longest = max((part.mask.shape[1] for _, part in self._parts), default=0)
        first = self._parts[0][1] if self._parts else None
        optional = [name for name in OPTIONAL_COLUMNS if first is not None and getattr(first, name) is not None]
        columns = {name: self._joined(name, longest) for name in (*COLUMNS, *optional)}
        return columns

    def links(self, name: str, index: ak.Array) -> ak.Array | None:
        """Links from the particles to what they are made of; None where the network does not say.

        Parameters
        ----------
        name
            ``hit_fraction`` or ``track_fraction``.
        index
            int64 [event, source]: index in the input's entry of each hit or track of the readout.

        Returns
        -------
        ak.Array
            [event, link] records of `pflow.event.build.make_links`, by source and then particle.
        """
        if name not in self._links:
            return None
        event, particle, source, weight = (np.concatenate(part) for part in zip(*self._links[name], strict=True))
        order = np.lexsort((particle, source, event))
        event = event[order]
        counts = np.bincount(event, minlength=self._n_events)
        at = jagged.flat(index)[source[order] + jagged.offsets(jagged.count(index))[event]]
        return make_links(
            source=ak.unflatten(at, counts),
            particle=ak.unflatten(particle[order], counts),
            weight=ak.unflatten(weight[order], counts),
            normalise=False,
        )

    def _joined(self, name: str, longest: int) -> npt.NDArray[Any]:
        kinds = {"charge": np.int64, "pdg": np.int64, "mask": np.bool_}
        trailing = {"direction": (3,)}.get(name, ())
        if self._parts:
            trailing = tuple(getattr(self._parts[0][1], name).shape[2:])
        joined: npt.NDArray[Any] = np.zeros((self._n_events, longest, *trailing), dtype=kinds.get(name, np.float32))
        for rows, part in self._parts:
            values = getattr(part, name).cpu()
            joined[rows, : values.shape[1]] = (values.float() if values.is_floating_point() else values).numpy()
        return joined
