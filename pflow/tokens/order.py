"""Orders of the target sequence."""

from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.targets import Targets

__all__ = ["ORDERS", "OrderedTargets", "sort_targets"]

ORDERS = ("energy", "tracks_first")
"""``energy``: decreasing energy. ``tracks_first``: charged particles that have a track, then all others, each by
decreasing energy."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class OrderedTargets:
    """Target sequences of all events, flat. The links of `targets` still count particles in the order of the truth.

    Parameters
    ----------
    targets
        The unsorted targets.
    offsets : int64 [event + 1]
        Where the events' sequences begin and end.
    order : int64 [T]
        Index into the unsorted flat list of each particle of the sequences.
    position : int64 [T]
        Position of each particle of the unsorted flat list in its event's sequence.
    """

    targets: Targets
    offsets: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]

    @property
    def particles(self) -> ak.Array:
        """[T] records: `pflow.event.truth.Targets.particles` of all events, each event's sorted."""
        return jagged.flat_records(self.targets.particles)[self.order]


def sort_targets(targets: Targets, order: str) -> OrderedTargets:
    """Sort each event's targets.

    Ties are broken by decreasing energy, then |PDG|, charge and momentum, so that the result does not depend on the
    order of the file.

    Parameters
    ----------
    targets
        From `pflow.event.truth.select_targets`, whose ``n_tracks`` says which particles have a track.
    order
        One of `ORDERS`.
    """
    counts = targets.counts
    energy, charge = (targets.column(field).astype(np.float64) for field in ("energy", "charge"))
    keys = [jagged.event_index(counts), -energy]
    if order == "tracks_first":
        keys[0] = 2 * keys[0] + ~((charge != 0) & (targets.column("n_tracks") > 0))
    sorting = np.argsort(keys[1])  # of equal energies in any order, below by the other keys
    sorting = sorting[np.argsort(keys[0][sorting], kind="stable")]
    if np.all([key[sorting[1:]] == key[sorting[:-1]] for key in keys], axis=0).any():
        pdg = np.abs(targets.column("pdg").astype(np.float64))
        keys += [pdg, charge, *(targets.column(axis) for axis in ("px", "py", "pz"))]
        sorting = np.lexsort(keys[::-1])  # the last key is the first that counts
    position = np.empty(len(sorting), dtype=np.int64)
    position[sorting] = jagged.local_index(counts)
    return OrderedTargets(targets=targets, offsets=jagged.offsets(counts), order=sorting, position=position)
