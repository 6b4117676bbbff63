"""Orders of the target sentence: which particle is written first."""

from __future__ import annotations

from collections.abc import Callable

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, nearest

__all__ = ["ORDERS", "check_order", "sort_particles"]

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


ORDERS: dict[str, Callable[[ak.Array], Keys]] = {"energy": _by_energy, "pt": _by_pt, "angle": _by_angle}
"""``energy``: falling energy. ``pt``: falling transverse momentum. ``angle``: rising polar angle, then azimuth."""


def check_order(order: str) -> None:
    """Raise ConfigError, with the nearest matches, if there is no order of that name."""
    if order not in ORDERS:
        close = nearest(order, ORDERS)
        hint = f" (nearest matches: {', '.join(close)})" if close else ""
        raise ConfigError(f"no target order '{order}': expected one of {', '.join(ORDERS)}{hint}")


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
    check_order(order)
    counts = ak.to_numpy(ak.num(particles, axis=1))
    flat = ak.flatten(particles, axis=1)
    event = np.repeat(np.arange(len(counts)), counts).astype(np.float64)
    ties = [-_column(flat, "energy"), np.abs(_column(flat, "pdg")), _column(flat, "charge"), *_momentum(flat)]
    keys = [event, *ORDERS[order](flat), *ties]
    return ak.unflatten(flat[np.lexsort(keys[::-1])], counts)
