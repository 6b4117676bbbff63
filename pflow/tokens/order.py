"""Orders of the target sequence."""

from __future__ import annotations

import dataclasses

import numpy as np

from pflow.event import jagged
from pflow.event.targets import Targets

__all__ = ["ORDERS", "sort_targets"]

ORDERS = ("energy", "tracks_first")
"""``energy``: decreasing energy. ``tracks_first``: charged particles that have a track, then all others, each by
decreasing energy."""


def sort_targets(targets: Targets, order: str) -> Targets:
    """The same targets in one of `ORDERS`; ties by energy (decreasing), |PDG|, charge and momentum, not by the file."""
    energy, charge = (targets.column(field).astype(np.float64) for field in ("energy", "charge"))
    keys = [jagged.event_index(targets.counts), -energy]
    if order == "tracks_first":
        keys[0] = 2 * keys[0] + ~((charge != 0) & (targets.column("n_tracks") > 0))
    sorting = np.argsort(keys[1])  # of equal energies in any order, below by the other keys
    sorting = sorting[np.argsort(keys[0][sorting], kind="stable")]
    if np.all([key[sorting[1:]] == key[sorting[:-1]] for key in keys], axis=0).any():
        pdg = np.abs(targets.column("pdg").astype(np.float64))
        keys += [pdg, charge, *(targets.column(axis) for axis in ("px", "py", "pz"))]
        sorting = np.lexsort(keys[::-1])  # the last key is the first that counts
    added = {name: values[sorting] for name, values in targets.added.items()}
    return dataclasses.replace(targets, chosen=targets.chosen[sorting], added=added)
