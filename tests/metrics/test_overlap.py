"""Matching by shared hits, by hand."""

from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

from pflow.event.build import make_links
from pflow.metrics.overlap import HitMatching, HitSets, match_by_hits, overlaps

ENERGY = np.array([4.0, 3.0, 2.0, 1.0])


def sets(*particles, counts=None) -> HitSets:
    """Particles as mappings from hit to share; all in one event unless `counts` says otherwise."""
    rows = [(hit, index, share) for index, hits in enumerate(particles) for hit, share in hits.items()]
    hit, particle, share = (np.array(column) for column in zip(*rows, strict=True)) if rows else (np.zeros(0),) * 3
    return HitSets(
        counts=np.array([len(particles)] if counts is None else counts),
        hit=hit.astype(np.int64),
        particle=particle.astype(np.int64),
        share=share.astype(np.float64),
    )


def pairs(truth, reco, **options):
    found = match_by_hits(truth, reco, ENERGY, **options)
    return list(zip(found.truth.tolist(), found.reco.tolist(), strict=True))


def test_overlap_by_hand():
    # shared: hit 1 (3 GeV); union: hits 0, 1, 2 (9 GeV)
    i, j, overlap = overlaps(sets({0: 1, 1: 1}), sets({1: 1, 2: 1}), ENERGY)
    assert (i.tolist(), j.tolist()) == ([0], [0])
    assert overlap == pytest.approx([3 / 9])


def test_shares_count_as_far_as_both_have_them():
    # min 0.25 x 4 over max 0.75 x 4
    assert overlaps(sets({0: 0.25}), sets({0: 0.75}), ENERGY)[2] == pytest.approx([1 / 3])


def test_particles_without_a_common_hit_are_no_pair():
    assert len(overlaps(sets({0: 1}), sets({1: 1}), ENERGY)[0]) == 0


def test_least_overlap():
    # 1 of 4 GeV and 1 of 5 GeV
    exactly, less = sets({3: 1}), sets({0: 1, 3: 1})
    assert pairs(sets({1: 1, 3: 1}), exactly) == [(0, 0)]
    assert pairs(less, exactly) == []
    assert pairs(less, exactly, least_overlap=0.2) == [(0, 0)]


def test_largest_total_overlap_is_taken():
    truth = sets({0: 1, 1: 1}, {2: 1, 3: 1})
    reco = sets({2: 1}, {0: 1, 1: 1, 3: 1})
    assert pairs(truth, reco) == [(0, 1), (1, 0)]


def test_duplicate_is_left_over():
    assert len(pairs(sets({0: 1}), sets({0: 1}, {0: 1}))) == 1


def test_events_are_apart():
    truth = sets({0: 1}, {1: 1}, counts=[1, 1])
    reco = sets({0: 1}, {1: 1}, counts=[1, 1])
    assert pairs(truth, reco) == [(0, 0), (1, 1)]


def test_nothing():
    assert pairs(sets(), sets({0: 1})) == []
    assert pairs(sets({0: 1}), sets()) == []


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
    assert flat.share.tolist() == [1.0, 0.25, 0.75, 1.0]


def test_energy_of_the_hits():
    assert sets({0: 0.5, 3: 1}, {1: 1}).energy(ENERGY).tolist() == [3.0, 3.0]


def test_different_numbers_of_events_are_refused():
    with pytest.raises(ValueError, match="truth has 1 events, reconstruction has 2"):
        match_by_hits(sets({0: 1}), sets({0: 1}, counts=[1, 0]), ENERGY)


@pytest.mark.parametrize("least", [0.0, 1.5])
def test_impossible_overlap_is_refused(least):
    with pytest.raises(ValueError, match="least overlap"):
        match_by_hits(sets({0: 1}), sets({0: 1}), ENERGY, least_overlap=least)


def test_truth_matches_itself_on_a_real_event(data_dir):
    from pflow.event.truth import select_targets
    from pflow.io.open import read_events

    events = read_events(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
    targets = select_targets(events)
    n_hits = ak.to_numpy(ak.num(events.hits))
    flat = HitSets.from_links(targets.hit_links, n_hits=n_hits, n_particles=ak.to_numpy(ak.num(targets.particles)))
    with_hits = np.unique(flat.particle)
    found = match_by_hits(flat, flat, ak.to_numpy(ak.flatten(events.hits.energy)).astype(np.float64))
    assert found.truth.tolist() == found.reco.tolist() == with_hits.tolist()
    assert found.cost == pytest.approx(np.zeros(len(with_hits)), abs=1e-9)


def test_rule_says_what_it_is():
    rule = HitMatching()
    assert (rule.cost, rule.cut) == ("hits", 0.75)
    assert "each at least 0.25" in rule.definition
