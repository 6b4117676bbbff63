import dataclasses
import itertools
import math

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.events import Reconstruction
from pflow.event.jagged import Links
from pflow.event.schema import make_hits
from pflow.event.truth import select_targets
from pflow.io.open import read_events
from pflow.metrics import match as module
from pflow.metrics.match import HitMatching, Matching, angle, angle_energy, match, match_by_hits, match_tables

RULE = Matching()
BY_RANK = Matching(cost="rank", cut=0.5)


def pairs(truth, reco, rule=RULE):
    matches = match_tables(truth, reco, rule)
    return list(zip(matches.truth.tolist(), matches.reco.tolist(), strict=True))


def photons_at_one_place(*energies):
    return [(22, energy, 90, 0) for energy in energies]


@pytest.mark.parametrize(
    ("truth", "reco", "cut", "expected"),
    [
        # The greedy 11-10.9 would leave 10-12 (0.01 + 0.2 > 0.09 + 0.09).
        pytest.param((10.0, 11.0), (12.0, 10.9), 3.0, [(0, 1), (1, 0)], id="best total"),
        pytest.param((1.0,), (4.0,), 3.0, [(0, 0)], id="at the cut"),
        pytest.param((1.0,), (4.001,), 3.0, [], id="above the cut"),
        # Costs (0,0) 1, (0,1) 2, (1,0) 0.5, (1,1) 0: the first pair is at the cut, and the second is the best for both.
        pytest.param((1.0, 4.0), (2.0, 4.0), 1.0, [(0, 0), (1, 1)], id="at the cut, solver"),
        # Costs (0,0) 0.1, (0,1) 4, (1,0) 0.1, (1,1) 4: only one match is within the cut.
        pytest.param((10.0, 10.0), (11.0, 50.0), 3.0, [(0, 0)], id="pair above the cut"),
        # Costs (0,0) 0.1, (0,1) 2.9, (1,0) 2.7, (1,1) 12: the second true particle takes no partner away.
        pytest.param((10.0, 3.0), (11.0, 39.0), 3.0, [(0, 0)], id="one near match, not two far ones"),
        pytest.param((10.0,), (10.5, 10.5), 3.0, [(0, 0)], id="duplicate"),
        pytest.param((0.0,), (1.0,), 3.0, [], id="no true energy"),
        pytest.param((0.0,), (0.0,), 3.0, [], id="no energies"),
    ],
)
def test_pairs(make_table, truth, reco, cut, expected):
    tables = (make_table([photons_at_one_place(*energies)]) for energies in (truth, reco))
    assert pairs(*tables, Matching(cut=cut)) == expected


def test_empty_events_and_sides(make_table):
    truth = make_table([[], [(22, 1.0, 90, 0)], [], [(22, 1.0, 90, 0)]])
    reco = make_table([[], [], [(22, 1.0, 90, 0)], [(22, 1.0, 90, 0)]])
    assert pairs(truth, reco) == [(1, 1)]
    assert pairs(make_table([]), make_table([])) == []


def random_events(make_table, seed, n=40, most=5):
    rng = np.random.default_rng(seed)

    def event():
        return [
            (rng.choice([22, 211]), rng.uniform(1, 10), rng.uniform(80, 100), rng.uniform(0, 20))
            for _ in range(rng.integers(0, most))
        ]

    return make_table([event() for _ in range(n)]), make_table([event() for _ in range(n)])


def best_by_trying_all(cost, alone):
    """Least sum over true particles of the partner's cost, or of `alone` without a partner."""
    n, m = cost.shape
    padded = np.concatenate([cost, np.full((n, n), alone)], axis=1)
    return min((sum(padded[i, j] for i, j in enumerate(p)) for p in itertools.permutations(range(m + n), n)), default=0)


def test_total_is_the_best_of_all_assignments(make_table):
    truth, reco = random_events(make_table, 0)
    matches = match_tables(truth, reco, Matching(cut=1.0))
    for event in range(len(truth.counts)):
        i = np.arange(*truth.offsets[event : event + 2])
        j = np.arange(*reco.offsets[event : event + 2])
        left, right = np.repeat(i, len(j)), np.tile(j, len(i))
        cost = angle_energy(truth, reco, left, right).reshape(len(i), len(j))
        matched = matches.cost[truth.event[matches.truth] == event]
        total = matched.sum() + 1.0 * (len(i) - len(matched))
        assert total == pytest.approx(best_by_trying_all(np.where(cost <= 1.0, cost, 10.0), 1.0))


def test_blocks_of_particles_do_not_change_the_result(make_table, monkeypatch):
    truth, reco = random_events(make_table, 2)
    in_one_block, sizes = pairs(truth, reco), []
    monkeypatch.setattr(jagged, "MAX_PAIRS", 3)
    cost, text = module.COSTS["angle_energy"]
    monkeypatch.setitem(module.COSTS, "angle_energy", (lambda *of: sizes.append(len(of[2])) or cost(*of), text))
    assert pairs(truth, reco) == in_one_block
    assert max(sizes) <= 3 + max(reco.counts) < max(truth.counts * reco.counts), "more than of a large event at once"


def test_cost(make_table):
    """20% in energy and 0.03 rad."""
    true, reco = make_table([[(22, 10.0, 90, 0)]]), make_table([[(22, 12.0, 90, math.degrees(0.03))]])
    first = np.array([0])
    assert angle_energy(true, reco, first, first)[0] == pytest.approx(math.hypot(0.2, 0.3), rel=1e-5)
    at_rest = dataclasses.replace(reco, momentum=0 * reco.momentum)
    assert angle(true, at_rest, first, first)[0] == 0.5 * math.pi
    # Close matches are among those of the rule, which may be the narrower one.
    assert (Matching(cut=0.1).close.cut, HitMatching(min_overlap=0.8).close.min_overlap) == (0.1, 0.8)


def test_pairs_by_rank_in_energy(make_table):
    """Of events with more reconstructed particles, with fewer, and with particles of one energy."""
    truth = make_table([[(211, 4.0, 90, 0), (22, 10.0, 90, 0)], photons_at_one_place(3.0, 2.0), [], [(22, 5.0, 90, 0)]])
    reco = make_table(
        [
            [(22, 1.0, 90, 0), (22, 12.0, 90, 0), (-211, 5.0, 90, 90)],
            [(22, 9.0, 0, 0)],
            [(22, 7.0, 90, 0)],
            photons_at_one_place(5.0, 5.0),
        ]
    )
    assert pairs(truth, reco, BY_RANK) == pairs(truth, reco, Matching(cost="rank")) == [(0, 2), (1, 1), (2, 3), (4, 5)]


def test_matches_of_particles_are_indices_in_their_events(make_records):
    energies = [[], [5.0, 10.0], [2.0]], [[7.0], [10.0, 5.5, 90.0], []]
    true, reco = (make_records([photons_at_one_place(*event) for event in events]) for events in energies)
    matches = match(true, reco)
    assert (matches.truth.to_list(), matches.reco.to_list()) == ([[], [0, 1], []], [[], [1, 0], []])
    assert (reco[matches.reco].energy / true[matches.truth].energy).to_list() == [[], [pytest.approx(1.1), 1.0], []]
    with pytest.raises(ValueError, match="3 events of true particles and 2"):
        match(true, reco[:2])


def test_match_particles_refuses_other_objects_by_name(sample_dir):
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=2)
    targets, reference = select_targets(events), events.reference
    reco = Reconstruction(particles=reference, event=events.event, flags=events.flags)
    assert match(targets, reco).to_list() == match(targets.particles, reference).to_list() != [[], []]
    for swapped in ((reco, targets), (reference, targets.particles), (reference, events.truth)):
        with pytest.raises(TypeError, match="true particles first and then the reconstructed ones, found them swapped"):
            match(*swapped)
    for wrong, found in (
        ((events, reco), "true .* found Events"),
        ((targets, events), "reconstructed .* found Events"),
        ((events.hits, reco), r"true .* found an array of 2 \* var \* {energy: float32, position"),
        ((events.truth[0], reco), r"true .* found an array of 2 \* Momentum4D"),
        ((targets, reco, HitMatching()), r"a pflow\.Matching; found HitMatching"),
    ):
        with pytest.raises(TypeError, match=f"expected {found}"):
            match(*wrong)


def test_four_momenta_by_transverse_momentum_are_matched_too(sample_dir):
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=2)
    true, reco = select_targets(events).particles, events.reference
    names = ("pdg", "charge", "pt", "phi", "eta", "mass")
    other = ak.zip({name: getattr(reco, name) for name in names}, with_name="Momentum4D")
    assert match(true, other).truth.to_list() == match(true, reco).truth.to_list()


def test_jets_have_no_code_and_charge_and_are_matched(make_records):
    true, reco = (make_records([photons_at_one_place(*energies)]) for energies in ([5.0, 10.0], [10.5, 5.5]))
    bare = [ak.with_name(of[["px", "py", "pz", "energy"]], "Momentum4D") for of in (true, reco)]
    assert match(*bare, Matching(cut=0.5)).to_list() == match(true, reco, Matching(cut=0.5)).to_list() != [[]]


ENERGY = np.array([4.0, 3.0, 2.0, 1.0])


def sets(*particles, counts=None):
    """Links, and number of particles in each event, from the weights of hits by particle; one event by default."""
    n_particles = np.array([len(particles)] if counts is None else counts)
    event, local = jagged.event_index(n_particles), jagged.local_index(n_particles)
    rows = [(event[i], hit, local[i], weight) for i, hits in enumerate(particles) for hit, weight in hits.items()]
    columns = np.array(rows, dtype=float).reshape(-1, 4).T
    return Links.by_event(*columns[:3].astype(int), columns[3], len(n_particles)), n_particles


def matches_by_hits(truth, reco, energy=ENERGY, **options):
    hits = make_hits(**dict.fromkeys(("energy", "x", "y", "z"), [energy.tolist()] * len(truth[1])))
    return match_by_hits(truth[0], reco[0], hits, truth[1], reco[1], HitMatching(**options))


def pairs_by_hits(truth, reco, **options):
    matches = matches_by_hits(truth, reco, **options)
    return list(zip(matches.truth.tolist(), matches.reco.tolist(), strict=True))


@pytest.mark.parametrize(
    ("true", "reco", "energy", "expected"),
    [
        pytest.param({0: 1, 1: 1}, {1: 1, 2: 1}, ENERGY, [3 / 9], id="hit 1 of hits 0, 1 and 2"),
        pytest.param({0: 0.25}, {0: 0.75}, ENERGY, [0.25 / 0.75], id="smaller over larger weight"),
        pytest.param({0: 1}, {1: 1}, ENERGY, [], id="no common hit"),
        pytest.param({0: 1}, {0: 1}, np.zeros(1), [], id="no energy"),
    ],
)
def test_overlap(true, reco, energy, expected):
    matches = matches_by_hits(sets(true), sets(reco), energy, min_overlap=1e-9)
    assert matches.truth.tolist() == matches.reco.tolist() == [0] * len(expected)
    assert 1 - matches.cost == pytest.approx(expected)


def test_the_total_overlap_is_the_largest_of_allowed_pairs():
    exact, smaller = sets({1: 1, 3: 1}), sets({0: 1, 3: 1})  # 1 of 4 GeV, 1 of 5 GeV
    assert pairs_by_hits(exact, sets({3: 1})) == [(0, 0)]
    assert pairs_by_hits(smaller, sets({3: 1})) == []
    assert pairs_by_hits(smaller, sets({3: 1}), min_overlap=0.2) == [(0, 0)]
    truth = sets({0: 1, 1: 1}, {2: 1, 3: 1})
    reco = sets({2: 1}, {0: 1, 1: 1, 3: 1})
    assert pairs_by_hits(truth, reco) == [(0, 1), (1, 0)]
    truth = sets({0: 1}, {0: 1}, counts=[1, 1])
    reco = sets({1: 1}, {0: 1}, {1: 1}, counts=[2, 1])
    assert pairs_by_hits(truth, reco) == [(0, 1)]
