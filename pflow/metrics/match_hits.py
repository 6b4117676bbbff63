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
from pflow.event.links import sum_by_pair
from pflow.metrics.match import Matches, best_pairs
from pflow.metrics.stats import Floats, Ints

__all__ = ["HitMatching", "HitSets", "match_by_hits", "overlaps"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HitMatching:
    """Assignment by hits; the counterpart of `pflow.metrics.match.Matching`.

    Parameters
    ----------
    min_overlap
        Intersection over union that a match needs, above 0 and at most 1.
    """

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


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HitSets:
    """Hits of the particles of consecutive events.

    Parameters
    ----------
    counts
        int64 [event]: number of particles of each event.
    hit, particle
        int64 [L]: index of the hit among all events' hits, and of the particle among all events' particles.
    weight
        float64 [L]: assignment weight, the fraction of the hit that is the particle's.
    """

    counts: Ints
    hit: Ints
    particle: Ints
    weight: Floats

    @classmethod
    def from_links(cls, links: ak.Array, *, n_hits: Ints, n_particles: Ints) -> HitSets:
        """From links [event, link] {source, particle, weight}, with the number of hits and particles of each event."""
        return cls(
            counts=n_particles,
            hit=jagged.global_index(links["source"], n_hits),
            particle=jagged.global_index(links["particle"], n_particles),
            weight=jagged.flat(links["weight"], np.float64),
        )

    def energy(self, hit_energy: Floats) -> Floats:
        """Energy of each particle's hits, float64 [N], GeV."""
        n = int(self.counts.sum())
        return np.bincount(self.particle, self.weight * hit_energy[self.hit], n).astype(np.float64)


def overlaps(truth: HitSets, reco: HitSets, hit_energy: Floats) -> tuple[Ints, Ints, Floats]:
    """Pairs of particles that share a hit, and their overlap, each [P], sorted by the true particle.

    Parameters
    ----------
    truth, reco
        Hits of the true and of the reconstructed particles.
    hit_energy
        float64 [hits], GeV.
    """
    # All pairs of a true and a reconstructed link of one hit.
    order = np.argsort(reco.hit, kind="stable")
    first = np.searchsorted(reco.hit[order], truth.hit, side="left")
    partners = np.searchsorted(reco.hit[order], truth.hit, side="right") - first
    left = jagged.event_index(partners)
    right = order[np.repeat(first, partners) + jagged.local_index(partners)]

    shared = np.minimum(truth.weight[left], reco.weight[right]) * hit_energy[truth.hit[left]]
    i, j, intersection = sum_by_pair(truth.particle[left], reco.particle[right], shared)
    union = truth.energy(hit_energy)[i] + reco.energy(hit_energy)[j] - intersection
    return i, j, np.divide(intersection, union, out=np.zeros(len(i)), where=union > 0)


def match_by_hits(truth: HitSets, reco: HitSets, hit_energy: Floats, matching: HitMatching) -> Matches:
    """One-to-one assignment of the largest total overlap; `pflow.metrics.match.match` with the cost 1 - overlap.

    Raises
    ------
    ValueError
        The two do not have the same number of events.
    """
    if len(truth.counts) != len(reco.counts):
        raise ValueError(f"truth has {len(truth.counts)} events, reconstruction has {len(reco.counts)}")
    i, j, overlap = overlaps(truth, reco, hit_energy)
    return best_pairs(jagged.event_index(truth.counts), i, j, 1.0 - overlap, matching.cut)
