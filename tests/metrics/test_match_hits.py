import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.jagged import Links
from pflow.event.schema import make_hits
from pflow.metrics.match import HitMatching, match_by_hits, overlaps

ENERGY = np.array([4.0, 3.0, 2.0, 1.0])


def sets(*particles, counts=None):
    """Links, and number of particles in each event, from the weights of hits by particle; one event by default."""
    n_particles = np.array([len(particles)] if counts is None else counts)
    event, local = jagged.event_index(n_particles), jagged.local_index(n_particles)
    rows = [(event[i], hit, local[i], weight) for i, hits in enumerate(particles) for hit, weight in hits.items()]
    columns = np.array(rows, dtype=float).reshape(-1, 4).T
    return Links.by_event(*columns[:3].astype(int), columns[3], len(n_particles)), n_particles


def pairs(truth, reco, **options):
    n_events = len(truth[1])
    hits = make_hits(**dict.fromkeys(("energy", "x", "y", "z"), [ENERGY.tolist()] * n_events))
    matches = match_by_hits(truth[0], reco[0], hits, truth[1], reco[1], HitMatching(**options))
    return list(zip(matches.truth.tolist(), matches.reco.tolist(), strict=True))


@pytest.mark.parametrize(
    ("true", "reco", "energy", "expected"),
    [
        pytest.param({0: 1, 1: 1}, {1: 1, 2: 1}, ENERGY, [3 / 9], id="hit 1 of hits 0, 1 and 2"),
        pytest.param({0: 0.25}, {0: 0.75}, ENERGY, [0.25 / 0.75], id="smaller over larger weight"),
        pytest.param({0: 1}, {1: 1}, ENERGY, [], id="no common hit"),
        pytest.param({0: 1}, {0: 1}, np.zeros(1), [0], id="no energy"),
    ],
)
def test_overlap(true, reco, energy, expected):
    i, j, overlap = overlaps(sets(true)[0], sets(reco)[0], energy, np.array([len(energy)]), *2 * (np.array([1]),))
    assert i.tolist() == j.tolist() == [0] * len(expected)
    assert overlap == pytest.approx(expected)


def test_smallest_overlap():
    exact, smaller = sets({1: 1, 3: 1}), sets({0: 1, 3: 1})  # 1 of 4 GeV, 1 of 5 GeV
    assert pairs(exact, sets({3: 1})) == [(0, 0)]
    assert pairs(smaller, sets({3: 1})) == []
    assert pairs(smaller, sets({3: 1}), min_overlap=0.2) == [(0, 0)]


def test_the_total_overlap_is_the_largest():
    truth = sets({0: 1, 1: 1}, {2: 1, 3: 1})
    reco = sets({2: 1}, {0: 1, 1: 1, 3: 1})
    assert pairs(truth, reco) == [(0, 1), (1, 0)]


def test_particles_of_different_events_never_match():
    truth = sets({0: 1}, {0: 1}, counts=[1, 1])
    reco = sets({1: 1}, {0: 1}, {1: 1}, counts=[2, 1])
    assert pairs(truth, reco) == [(0, 1)]
