"""Matching by the hits that two particles share, for reconstructions that say which hits a particle was made of.

The rule of HitPF: intersection over union of the energy-weighted hit sets, at least
0.25. With shares, the intersection of two particles counts min(share_true, share_reco) of each hit's energy and the
union max(share_true, share_reco).
"""

from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np

from pflow.event import jagged
from pflow.metrics.match import Matches, best_pairs
from pflow.metrics.stats import Floats, Ints

__all__ = ["MIN_OVERLAP", "HitMatching", "HitSets", "match_by_hits", "overlaps"]

MIN_OVERLAP = 0.25
"""Intersection over union that a match must have."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HitMatching:
    """The rule of assignment by hits, as `pflow.metrics.match.Matching` is that by energy and angle.

    Parameters
    ----------
    least_overlap
        Intersection over union that a match must have, above 0 and at most 1.
    """

    least_overlap: float = MIN_OVERLAP

    @property
    def cost(self) -> str:
        """Its name."""
        return "hits"

    @property
    def cut(self) -> float:
        """Largest cost of a match; the cost is 1 - intersection over union."""
        return 1.0 - self.least_overlap

    @property
    def definition(self) -> str:
        """The rule in a sentence."""
        return (
            "one-to-one assignment of largest total intersection over union of energy-weighted hit sets, each at least "
            f"{self.least_overlap:g}; a particle without hits has no match"
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HitSets:
    """Hits of the particles of consecutive events, with shares; flat indices.

    Parameters
    ----------
    counts
        int64 [event]: number of particles of each event.
    hit, particle
        int64 [L]: index of the hit among all events' hits, and of the particle among all events' particles.
    share
        float64 [L]: share of the hit's energy, 0 to 1.
    """

    counts: Ints
    hit: Ints
    particle: Ints
    share: Floats

    @classmethod
    def from_links(cls, links: ak.Array, *, n_hits: Ints, n_particles: Ints) -> HitSets:
        """From links [event, link] {source, particle, weight}, with the number of hits and particles of each event."""
        return cls(
            counts=np.asarray(n_particles, dtype=np.int64),
            hit=jagged.global_index(links["source"], n_hits),
            particle=jagged.global_index(links["particle"], n_particles),
            share=jagged.flat(links["weight"], np.float64),
        )

    def energy(self, hit_energy: Floats) -> Floats:
        """Energy of each particle's hits, float64 [N], GeV."""
        n = int(self.counts.sum())
        return np.bincount(self.particle, self.share * hit_energy[self.hit], n).astype(np.float64)


def overlaps(truth: HitSets, reco: HitSets, hit_energy: Floats) -> tuple[Ints, Ints, Floats]:
    """Pairs of particles that share a hit, and their intersection over union, each [P], sorted by the true particle.

    Parameters
    ----------
    truth, reco
        Hits of the two kinds of particles.
    hit_energy
        float64 [hits], GeV.
    """
    # All pairs of a true and a reconstructed share of one hit: true ones in any order, partners sorted by hit.
    order = np.argsort(reco.hit, kind="stable")
    first = np.searchsorted(reco.hit[order], truth.hit, side="left")
    partners = np.searchsorted(reco.hit[order], truth.hit, side="right") - first
    left = jagged.event_index(partners)
    right = order[np.repeat(first, partners) + jagged.local_index(partners)]

    shared = np.minimum(truth.share[left], reco.share[right]) * hit_energy[truth.hit[left]]
    n_reco = max(1, int(reco.counts.sum()))
    pair, at = np.unique(truth.particle[left] * n_reco + reco.particle[right], return_inverse=True)
    i, j = pair // n_reco, pair % n_reco
    intersection = np.bincount(at, shared, len(pair)).astype(np.float64)
    union = truth.energy(hit_energy)[i] + reco.energy(hit_energy)[j] - intersection
    return i, j, np.divide(intersection, union, out=np.zeros(len(pair)), where=union > 0)


def match_by_hits(truth: HitSets, reco: HitSets, hit_energy: Floats, *, least_overlap: float = MIN_OVERLAP) -> Matches:
    """One-to-one assignment of the largest total overlap among pairs of at least `least_overlap`.

    The cost of a match, 1 - overlap, is treated as in `pflow.metrics.match.match` with the cut 1 - `least_overlap`.

    Raises
    ------
    ValueError
        The two do not have the same number of events, or not 0 < least_overlap <= 1.
    """
    if len(truth.counts) != len(reco.counts):
        raise ValueError(f"truth has {len(truth.counts)} events, reconstruction has {len(reco.counts)}")
    if not 0 < least_overlap <= 1:
        raise ValueError(f"the least overlap must be above 0 and at most 1, found {least_overlap}")
    i, j, overlap = overlaps(truth, reco, hit_energy)
    event = jagged.event_index(truth.counts)
    i, j, cost = best_pairs(event, i, j, 1.0 - overlap, 1.0 - least_overlap)
    order = np.argsort(i)
    return Matches(truth=i[order], reco=j[order], cost=cost[order])
