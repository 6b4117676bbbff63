"""Matching by shared hits, for reconstructions with links from hits to particles (HitPF's rule).

The overlap of two particles is the intersection over union of their energy-weighted hit sets: a hit counts
min(weight_true, weight_reco) of its energy in the intersection and max(weight_true, weight_reco) in the union.
"""

from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.links import Links, sum_by_pair
from pflow.metrics.match import Matches, best_pairs
from pflow.metrics.stats import Floats, Ints

__all__ = ["HitMatching", "match_by_hits", "overlaps"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HitMatching:
    """Assignment by hits: a match needs an intersection over union of `min_overlap`, above 0 and at most 1."""

    min_overlap: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.min_overlap <= 1:
            raise ConfigError(f"the overlap of a match must be above 0 and at most 1, found {self.min_overlap}")

    @property
    def cost(self) -> str:
        """Its name."""
        return "hits"

    @property
    def cut(self) -> float:
        """Largest cost of a match; the cost is 1 - overlap."""
        return 1.0 - self.min_overlap

    @property
    def definition(self) -> str:
        """The rule in a sentence."""
        return (
            "one-to-one assignment of largest total intersection over union of energy-weighted hit sets, each at least "
            f"{self.min_overlap:g}; a particle without hits has no match"
        )


def overlaps(
    truth: Links, reco: Links, hit_energy: Floats, n_hits: Ints, n_true: Ints, n_reco: Ints
) -> tuple[Ints, Ints, Floats]:
    """Pairs of true and reconstructed particles that share a hit, and their overlap, [P]; energies of all hits, GeV."""
    hit, particle = truth.flat_source(n_hits), truth.flat_particle(n_true)
    other_hit, other_particle = reco.flat_source(n_hits), reco.flat_particle(n_reco)
    # All pairs of a true and a reconstructed link of one hit.
    order = np.argsort(other_hit, kind="stable")
    first = np.searchsorted(other_hit[order], hit, side="left")
    partners = np.searchsorted(other_hit[order], hit, side="right") - first
    left = jagged.event_index(partners)
    right = order[np.repeat(first, partners) + jagged.local_index(partners)]

    weight, other_weight = truth.weight.astype(np.float64), reco.weight.astype(np.float64)
    shared = np.minimum(weight[left], other_weight[right]) * hit_energy[hit[left]]
    i, j, intersection = sum_by_pair(particle[left], other_particle[right], shared)
    union = np.bincount(particle, weight * hit_energy[hit], int(n_true.sum()))[i] - intersection
    union += np.bincount(other_particle, other_weight * hit_energy[other_hit], int(n_reco.sum()))[j]
    return i, j, np.divide(intersection, union, out=np.zeros(len(i)), where=union > 0)


def match_by_hits(truth: Links, reco: Links, hits: ak.Array, n_true: Ints, n_reco: Ints, rule: HitMatching) -> Matches:
    """One-to-one assignment of the largest total overlap; `pflow.metrics.match.match` with the cost 1 - overlap."""
    energy = jagged.flat(hits["energy"], np.float64)
    i, j, overlap = overlaps(truth, reco, energy, jagged.count(hits), n_true, n_reco)
    return best_pairs(jagged.event_index(n_true), i, j, 1.0 - overlap, rule.cut)
