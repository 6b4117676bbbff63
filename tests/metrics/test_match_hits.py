"""Matching by shared hits, by hand."""

from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError
from pflow.event.build import make_links
from pflow.event.truth import select_targets
from pflow.io.open import read_events
from pflow.metrics.match_hits import HitMatching, HitSets, match_by_hits, overlaps

ENERGY = np.array([4.0, 3.0, 2.0, 1.0])


def sets(*particles, counts=None) -> HitSets:
    """Particles as mappings from hit to weight; all in one event unless `counts` says otherwise."""
    rows = [(hit, index, weight) for index, hits in enumerate(particles) for hit, weight in hits.items()]
    hit, particle, weight = (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.zeros(0),) * 3
    return HitSets(
        counts=np.array([len(particles)] if counts is None else counts),
        hit=hit.astype(np.int64),
        particle=particle.astype(np.int64),
        weight=weight.astype(np.float64),
    )


def pairs(truth, reco, **options):
    found = match_by_hits(truth, reco, ENERGY, HitMatching(**options))
    return list(zip(found.truth.tolist(), found.reco.tolist(), strict=True))


def test_overlap_by_hand():
    # shared: hit 1 (3 GeV); union: hits 0, 1, 2 (9 GeV)
    i, j, overlap = overlaps(sets({0: 1, 1: 1}), sets({1: 1, 2: 1}), ENERGY)
    assert (i.tolist(), j.tolist()) == ([0], [0])
    assert overlap == pytest.approx([3 / 9])


def test_weights_count_as_far_as_both_have_them():
    # min 0.25 x 4 over max 0.75 x 4
    assert overlaps(sets({0: 0.25}), sets({0: 0.75}), ENERGY)[2] == pytest.approx([1 / 3])


def test_particles_without_a_common_hit_are_no_pair():
    assert len(overlaps(sets({0: 1}), sets({1: 1}), ENERGY)[0]) == 0


def test_smallest_overlap():
    # 1 of 4 GeV and 1 of 5 GeV
    exactly, less = sets({3: 1}), sets({0: 1, 3: 1})
    assert pairs(sets({1: 1, 3: 1}), exactly) == [(0, 0)]
    assert pairs(less, exactly) == []
    assert pairs(less, exactly, min_overlap=0.2) == [(0, 0)]


def test_largest_total_overlap_is_taken():
    truth = sets({0: 1, 1: 1}, {2: 1, 3: 1})
    reco = sets({2: 1}, {0: 1, 1: 1, 3: 1})
    assert pairs(truth, reco) == [(0, 1), (1, 0)]


def test_events_are_apart():
    truth = sets({0: 1}, {1: 1}, counts=[1, 1])
    reco = sets({0: 1}, {1: 1}, counts=[1, 1])
    assert pairs(truth, reco) == [(0, 0), (1, 1)]


def test_hits_without_energy_are_no_overlap():
    i, _, overlap = overlaps(sets({0: 1}), sets({0: 1}), np.zeros(1))
    assert len(i) == 1
    assert overlap.tolist() == [0]


def test_links_become_flat():
    links = make_links(
        source=ak.Array([[0, 1, 1], [], [0]]),
        particle=ak.Array([[0, 0, 1], [], [0]]),
        weight=ak.Array([[1.0, 0.25, 0.75], [], [1.0]]),
    )
    flat = HitSets.from_links(links, n_hits=np.array([2, 3, 1]), n_particles=np.array([2, 1, 1]))
    assert flat.hit.tolist() == [0, 1, 1, 5]
    assert flat.particle.tolist() == [0, 0, 1, 3]
    assert flat.weight.tolist() == [1.0, 0.25, 0.75, 1.0]


def test_different_numbers_of_events_are_refused():
    with pytest.raises(ValueError, match="truth has 1 events, reconstruction has 2"):
        match_by_hits(sets({0: 1}), sets({0: 1}, counts=[1, 0]), ENERGY, HitMatching())


@pytest.mark.parametrize("overlap", [0.0, 1.5])
def test_impossible_overlap_is_refused(overlap):
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        HitMatching(min_overlap=overlap)


def test_truth_matches_itself_on_a_real_event(data_dir):
    events = read_events(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
    targets = select_targets(events)
    n_hits = ak.to_numpy(ak.num(events.hits))
    flat = HitSets.from_links(targets.hit_links, n_hits=n_hits, n_particles=ak.to_numpy(ak.num(targets.particles)))
    with_hits = np.unique(flat.particle)
    found = match_by_hits(flat, flat, ak.to_numpy(ak.flatten(events.hits.energy)).astype(np.float64), HitMatching())
    assert found.truth.tolist() == found.reco.tolist() == with_hits.tolist()
    assert found.cost == pytest.approx(np.zeros(len(with_hits)), abs=1e-9)


def test_rule_says_what_it_is():
    rule = HitMatching()
    assert (rule.cost, rule.cut) == ("hits", 0.75)
    assert "each at least 0.25" in rule.definition
