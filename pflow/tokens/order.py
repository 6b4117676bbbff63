"""Orders of the target sentence: which particle is written first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import check_choice
from pflow.event import jagged
from pflow.event.truth import Targets

__all__ = ["ORDERS", "OrderedTargets", "check_order", "sort_particles"]

Keys = list[npt.NDArray[np.float64]]
"""Sort keys of flat particles, most significant first; each sorts rising."""


def _column(particles: ak.Array, *path: str) -> npt.NDArray[np.float64]:
    values = particles
    for key in path:
        values = values[key]
    return np.asarray(ak.to_numpy(values, allow_missing=False), dtype=np.float64)


def _momentum(particles: ak.Array) -> tuple[npt.NDArray[np.float64], ...]:
    return tuple(_column(particles, "momentum", key) for key in ("px", "py", "pz"))


def _by_energy(particles: ak.Array) -> Keys:
    return [-_column(particles, "energy")]


def _by_pt(particles: ak.Array) -> Keys:
    px, py, _ = _momentum(particles)
    return [-np.hypot(px, py)]


def _by_angle(particles: ak.Array) -> Keys:
    px, py, pz = _momentum(particles)
    return [np.arctan2(np.hypot(px, py), pz), np.arctan2(py, px)]


def _tracks_first(particles: ak.Array) -> Keys:
    has_track = _column(particles, "charge") != 0
    if "n_tracks" in ak.fields(particles):
        has_track &= _column(particles, "n_tracks") > 0
    return [(~has_track).astype(np.float64)]


ORDERS: dict[str, Callable[[ak.Array], Keys]] = {
    "energy": _by_energy,
    "pt": _by_pt,
    "angle": _by_angle,
    "tracks_first": _tracks_first,
}
"""``energy``: falling energy. ``pt``: falling transverse momentum. ``angle``: rising polar angle, then azimuth.
``tracks_first``: charged particles that have a track (``n_tracks``, as `pflow.event.truth.select_targets` counts them; all
charged ones where the records do not say), then all others, each by falling energy."""


def check_order(order: str) -> None:
    """Raise ConfigError, with the nearest matches, if there is no order of that name."""
    check_choice(order, ORDERS, "target order")


def sort_particles(particles: ak.Array, order: str = "energy") -> ak.Array:
    """The same particles, each event's in the named order.

    Ties are broken by falling energy, then |PDG|, charge and momentum, so that the result does not depend on how the
    file happened to list them.

    Parameters
    ----------
    particles
        [event, particle] records with pdg, charge [e], energy [GeV] and momentum {px, py, pz} [GeV].
    order
        A name of `ORDERS`.

    Raises
    ------
    ConfigError
        No such order.
    """
    counts = jagged.count(particles)
    flat = ak.flatten(particles, axis=1)
    return ak.unflatten(flat[_sorting(flat, counts, order)], counts)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OrderedTargets:
    """The target sentences of events, flat, with the shares of hits and tracks still in the order of the truth.

    Parameters
    ----------
    particles
        [T] records: `pflow.event.truth.Targets.particles` of all events, each event's in the order of its sentence.
    offsets : int64 [event + 1]
        Where the events' sentences begin and end.
    place : int64 [T]
        Where in its event's sentence each particle of the unsorted flat list stands.
    targets
        The unsorted ones, to whose particles the links point.
    """

    particles: ak.Array
    offsets: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    targets: Targets

    @classmethod
    def of(cls, targets: Targets, order: str) -> OrderedTargets:
        """Sort targets.

        Raises
        ------
        ConfigError
            No such order.
        """
        counts = jagged.count(targets.particles)
        flat = ak.flatten(targets.particles, axis=1)
        sort = _sorting(flat, counts, order)
        offsets = jagged.offsets(counts)
        place = np.empty(len(sort), dtype=np.int64)
        place[sort] = jagged.local_index(counts)
        return cls(particles=flat[sort], offsets=offsets, place=place, targets=targets)


def _sorting(flat: ak.Array, counts: npt.NDArray[np.integer[Any]], order: str) -> npt.NDArray[np.int64]:
    """Flat index of the particle that stands at each place."""
    check_order(order)
    event = jagged.event_index(counts).astype(np.float64)
    ties = [-_column(flat, "energy"), np.abs(_column(flat, "pdg")), _column(flat, "charge"), *_momentum(flat)]
    keys = [event, *ORDERS[order](flat), *ties]
    return np.lexsort(keys[::-1]).astype(np.int64)
