"""Which reconstructed particle answers for which true one: a one-to-one assignment in every event."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from pflow.errors import ConfigError
from pflow.metrics.stats import Floats, Ints
from pflow.metrics.table import ParticleTable
from pflow.physics.kinematics import angle_between

__all__ = ["COSTS", "Matches", "Matching", "best_pairs", "match"]

ANGLE_SCALE = 0.1
"""Angle that costs as much as an energy wrong by 100%, rad."""
PAIRS_AT_ONCE = 1 << 20
"""Pairs whose costs are held in memory together: about 150 MB."""


def angle_energy(truth: ParticleTable, reco: ParticleTable, i: Ints, j: Ints) -> Floats:
    """Cost sqrt((dE / E_true)^2 + (angle / 0.1 rad)^2) of the pairs (i, j), float64 [P]."""
    relative = (reco.energy[j] - truth.energy[i]) / truth.energy[i]
    angle = angle_between(truth.momentum[i], reco.momentum[j])
    return np.asarray(np.hypot(relative, angle / ANGLE_SCALE))


def angle(truth: ParticleTable, reco: ParticleTable, i: Ints, j: Ints) -> Floats:
    """Angle between the directions of the pairs (i, j), rad, float64 [P]: for jets."""
    return np.asarray(angle_between(truth.momentum[i], reco.momentum[j]))


def pt_delta_r(truth: ParticleTable, reco: ParticleTable, i: Ints, j: Ints) -> Floats:
    """Cost sqrt((dpt / pt_true)^2 + dR^2) of the pairs (i, j), float64 [P]; charged with neutral costs infinity.

    The rule of Glow (arXiv:2508.20092) and HGPflow: charged and neutral particles are assigned apart.
    """
    relative = (reco.pt[j] - truth.pt[i]) / truth.pt[i]
    d_eta = _pseudorapidity(truth)[i] - _pseudorapidity(reco)[j]
    phi = [np.arctan2(table.momentum[:, 1], table.momentum[:, 0]) for table in (truth, reco)]
    d_phi = (phi[0][i] - phi[1][j] + np.pi) % (2 * np.pi) - np.pi
    cost = np.sqrt(relative**2 + d_eta**2 + d_phi**2)
    return np.where((truth.charge[i] != 0) == (reco.charge[j] != 0), cost, np.inf)


def _pseudorapidity(table: ParticleTable) -> Floats:
    return np.arcsinh(table.momentum[:, 2] / table.pt)


Cost = Callable[[ParticleTable, ParticleTable, Ints, Ints], Floats]

COSTS: dict[str, tuple[Cost, str]] = {
    "angle_energy": (angle_energy, "sqrt((dE/E_true)^2 + (angle/0.1 rad)^2)"),
    "angle": (angle, "angle in rad"),
    "pt_delta_r": (pt_delta_r, "sqrt((dpt/pt_true)^2 + (Delta R)^2), charged and neutral particles apart"),
}
"""Costs by name, with the formula that is reported beside every number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matching:
    """A rule of assignment.

    Parameters
    ----------
    cost
        A name in `COSTS`.
    cut
        Largest cost of a match; None for no cut: then as many pairs as possible are matched, however bad.
    """

    cost: str = "angle_energy"
    cut: float | None = 3.0

    def __post_init__(self) -> None:
        if self.cost not in COSTS:
            raise ConfigError(f"no matching cost '{self.cost}': expected one of {', '.join(COSTS)}")
        if self.cut is not None and not 0 < self.cut < float("inf"):
            raise ConfigError(f"the cut on the matching cost must be a number above 0 or none, found {self.cut}")

    @classmethod
    def named(cls, name: str, *, cut: float | None = 3.0) -> Matching:
        """``angle_energy`` with a cut, or ``none-cut``: Glow's rule, which has another cost and no cut.

        Raises
        ------
        ConfigError
            Another name. (Matching by hits has a rule of its own: `pflow.metrics.overlap.HitMatching`.)
        """
        if name == "none-cut":
            return cls(cost="pt_delta_r", cut=None)
        return cls(cost=name, cut=cut)

    @property
    def definition(self) -> str:
        """The rule in a sentence."""
        cut = "no cut" if self.cut is None else f"pairs above cost {self.cut:g} are not matches"
        return f"one-to-one assignment of least total cost, {COSTS[self.cost][1]}; {cut}"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Matches:
    """Matched pairs of a table of true and a table of reconstructed particles.

    Parameters
    ----------
    truth, reco
        int64 [M]: indices of the two partners, ordered by the true one.
    cost
        float64 [M].
    """

    truth: Ints
    reco: Ints
    cost: Floats


def match(truth: ParticleTable, reco: ParticleTable, matching: Matching) -> Matches:
    """Assign reconstructed to true particles, one to one, event by event.

    With a cut, the assignment minimises the sum of min(cost, cut) where a particle left alone costs the cut too; that
    is, it maximises the sum of (cut - cost) over the matches. A pair above the cut therefore never takes a partner
    away from one below it. Without a cut, as many particles as possible are matched, at the least total cost.

    Of two equally good assignments the one that the solver meets first is taken: it depends on the order of the
    particles alone.

    Raises
    ------
    ValueError
        The two tables do not have the same number of events.
    """
    if len(truth.counts) != len(reco.counts):
        raise ValueError(f"truth has {len(truth.counts)} events, reconstruction has {len(reco.counts)}")
    found = [_match_pairs(truth, reco, matching, *pairs) for pairs in _pairs(truth, reco)]
    if not found:
        return Matches(truth=np.empty(0, np.int64), reco=np.empty(0, np.int64), cost=np.empty(0))
    i, j, cost = (np.concatenate(columns) for columns in zip(*found, strict=True))
    order = np.argsort(i)
    return Matches(truth=i[order], reco=j[order], cost=cost[order])


def _pairs(truth: ParticleTable, reco: ParticleTable) -> Iterator[tuple[Ints, Ints]]:
    """All pairs (i, j) of particles of the same event, i slowest, in blocks of whole events."""
    n_pairs = truth.counts * reco.counts
    for first, last in _runs(np.cumsum(n_pairs) // PAIRS_AT_ONCE):
        true = np.arange(truth.offsets[first], truth.offsets[last])
        partners = reco.counts[truth.event[true]]
        i = np.repeat(true, partners)
        if len(i):
            within = np.arange(len(i)) - np.repeat(np.cumsum(partners) - partners, partners)
            yield i, reco.offsets[truth.event[i]] + within


def _runs(keys: Ints) -> list[tuple[int, int]]:
    """Start and end of each run of equal keys; the keys are at least 0."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1)).tolist()
    return list(zip(starts, [*starts[1:], len(keys)], strict=True)) if starts else []


def _match_pairs(
    truth: ParticleTable, reco: ParticleTable, matching: Matching, i: Ints, j: Ints
) -> tuple[Ints, Ints, Floats]:
    """Matches among the pairs of whole events."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = COSTS[matching.cost][0](truth, reco, i, j)
    cost[np.isnan(cost)] = np.inf  # no energy or no transverse momentum to divide by
    return best_pairs(truth.event, i, j, cost, matching.cut)


def best_pairs(event: Ints, i: Ints, j: Ints, cost: Floats, cut: float | None) -> tuple[Ints, Ints, Floats]:
    """Choose among pairs (i, j) of any number of events, as `match` says.

    Parameters
    ----------
    event
        int64 [N]: event of each true particle.
    i, j
        int64 [P]: the pairs, those of an event together.
    cost
        float64 [P]; infinite where a pair cannot be.
    cut
        Largest cost of a match, or None.
    """
    possible = np.isfinite(cost) if cut is None else cost <= cut
    i, j, cost = i[possible], j[possible], cost[possible]
    # A pair whose partners have no other possible partner needs no solver.
    alone = (np.bincount(i, minlength=1)[i] == 1) & (np.bincount(j, minlength=1)[j] == 1)
    found = [(i[alone], j[alone], cost[alone])]
    i, j, cost = i[~alone], j[~alone], cost[~alone]
    for first, last in _runs(event[i]):
        chosen = first + _assign(i[first:last], j[first:last], cost[first:last], cut)
        found.append((i[chosen], j[chosen], cost[chosen]))
    a, b, c = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return a, b, c


def _assign(i: Ints, j: Ints, cost: Floats, cut: float | None) -> npt.NDArray[np.intp]:
    """Positions of the best pairs of one event among its possible ones."""
    rows, row_of = np.unique(i, return_inverse=True)
    columns, column_of = np.unique(j, return_inverse=True)
    shape = (len(rows), len(columns))
    # What an impossible pair costs: the cut, or more than all others together so that none is chosen needlessly.
    # With the cut, one rounding step more keeps a pair at the cut itself a match.
    alone = float(cost.sum()) + 1.0 if cut is None else float(np.nextafter(cut, np.inf))
    matrix = np.full(shape, alone)
    matrix[row_of, column_of] = cost
    position = np.full(shape, -1, dtype=np.intp)
    position[row_of, column_of] = np.arange(len(cost))
    row, column = linear_sum_assignment(matrix)
    chosen: npt.NDArray[np.intp] = position[row, column]
    return chosen[chosen >= 0]
