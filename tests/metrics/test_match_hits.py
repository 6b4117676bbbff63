"""Matching by shared hits, by hand."""

import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.build import make_hits
from pflow.event.links import Links
from pflow.event.truth import select_targets
from pflow.io.open import read_events
from pflow.metrics.match import HitMatching, match_by_hits, overlaps

ENERGY = np.array([4.0, 3.0, 2.0, 1.0])


def sets(*particles, counts=None):
    """Links and number of particles of each event, from the weight of each hit, by particle; one event by default."""
    n_particles = np.array([len(particles)] if counts is None else counts)
    event, local = jagged.event_index(n_particles), jagged.local_index(n_particles)
    rows = [(event[i], hit, local[i], weight) for i, hits in enumerate(particles) for hit, weight in hits.items()]
    columns = np.array(rows, dtype=float).reshape(-1, 4).T
    return Links.by_event(*columns[:3].astype(int), columns[3], len(n_particles)), n_particles


def overlap(truth, reco, energy=ENERGY):
    return overlaps(truth[0], reco[0], energy, np.array([len(energy)]), truth[1], reco[1])


def pairs(truth, reco, **options):
    n_events = len(truth[1])
    hits = make_hits(**dict.fromkeys(("energy", "x", "y", "z"), [ENERGY.tolist()] * n_events))
    found = match_by_hits(truth[0], reco[0], hits, truth[1], reco[1], HitMatching(**options))
    return list(zip(found.truth.tolist(), found.reco.tolist(), strict=True))


def test_overlap_by_hand():
    # shared: hit 1 (3 GeV); union: hits 0, 1, 2 (9 GeV)
    i, j, found = overlap(sets({0: 1, 1: 1}), sets({1: 1, 2: 1}))
    assert (i.tolist(), j.tolist()) == ([0], [0])
    assert found == pytest.approx([3 / 9])


def test_weights_count_as_far_as_both_have_them():
    # min 0.25 x 4 over max 0.75 x 4
    assert overlap(sets({0: 0.25}), sets({0: 0.75}))[2] == pytest.approx([1 / 3])


def test_particles_without_a_common_hit_are_no_pair():
    assert len(overlap(sets({0: 1}), sets({1: 1}))[0]) == 0


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
    truth = sets({0: 1}, {0: 1}, counts=[1, 1])
    reco = sets({1: 1}, {0: 1}, {1: 1}, counts=[2, 1])
    assert pairs(truth, reco) == [(0, 1)]


def test_hits_without_energy_are_no_overlap():
    i, _, found = overlap(sets({0: 1}), sets({0: 1}), np.zeros(1))
    assert len(i) == 1
    assert found.tolist() == [0]


def test_truth_matches_itself_on_full_events(cld_path):
    events = read_events(cld_path)
    targets = select_targets(events)
    links, counts = Links.of(targets.hit_links), targets.counts
    with_hits = np.unique(links.flat_particle(counts))
    found = match_by_hits(links, links, events.hits, counts, counts, HitMatching())
    assert found.truth.tolist() == found.reco.tolist() == with_hits.tolist()
    assert found.cost == pytest.approx(np.zeros(len(with_hits)), abs=1e-9)
