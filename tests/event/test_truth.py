import dataclasses
import pickle

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import Events, ImplausibleWarning, keep_hits
from pflow.event.jagged import assigned_particle
from pflow.event.truth import RULES, assigned_ancestors, select_targets, unknown_status
from pflow.physics.pdg import class_index

# Particles: (pdg, energy [GeV], status, parent, radius of the vertex [mm]); the calorimeter begins at r = 1805 mm.
PI0_DECAY = {  # a pi0 of the generator (status 2) to two photons (status 1), one hit each
    "particles": [(111, 10.0, 2), (22, 6.0, 1, 0), (22, 4.0, 1, 0)],
    "hits": [(5.5, {1: 1.0}), (3.5, {2: 1.0})],
}
K0S_DECAY = {  # a stable K0S of the generator that the simulation decays in the tracker
    "particles": [(310, 5.0), (211, 3.0, 0, 0, 500.0), (-211, 2.0, 0, 0, 500.0)],
    "hits": [(2.5, {1: 1.0}), (1.5, {2: 1.0})],
    "tracks": [(1, 1.0), (2, 1.0)],
}
CONVERSION = {  # a photon that converts in the tracker; both electrons reach the calorimeter, the positron has a track
    "particles": [(22, 8.0), (11, 5.0, 0, 0, 300.0), (-11, 3.0, 0, 0, 300.0)],
    "hits": [(4.8, {1: 1.0}), (2.8, {2: 0.9, 1: 0.1})],
    "tracks": [(2, 1.0)],
}
MUON_DECAY = {  # a muon that stops in the calorimeter and decays to an electron and neutrinos
    "particles": [(13, 1.5), (11, 0.04, 0, 0, 2200.0), (-12, 0.03, 0, 0, 2200.0)],
    "hits": [(0.3, {0: 1.0}), (0.03, {1: 1.0})],
    "tracks": [(0, 1.0)],
}
ALBEDO = {  # a pion showers; a neutron flies back and knocks a proton out of the tracker
    "particles": [(211, 20.0), (2112, 1.4, 0, 0, 1900.0), (2212, 1.2, 0, 1, 1000.0)],
    "hits": [(15.0, {0: 1.0}), (0.2, {1: 1.0}), (0.1, {2: 1.0})],
}


def chosen(events: Events, rule: str, **options: object) -> list[int]:
    return select_targets(events, rule=rule, **options).particles.index[0].tolist()


def hits_of(events: Events, rule: str) -> list[int]:
    """Truth index of the target with the largest weight of each hit; -1 for hits without a target."""
    targets = select_targets(events, rule=rule)
    assigned = assigned_particle(targets.hit_links, events.hits)[0].tolist()
    return [-1 if particle < 0 else targets.particles.index[0, particle] for particle in assigned]


@pytest.mark.parametrize(
    ("decay", "rules", "targets", "assigned"),
    [
        (PI0_DECAY, RULES, [1, 2], [1, 2]),
        (K0S_DECAY, ("calo", "entering"), [1, 2], [1, 2]),
        (K0S_DECAY, ("stable",), [0], [0, 0]),
        (CONVERSION, ("calo", "entering"), [1, 2], [1, 2]),
        (CONVERSION, ("stable",), [0], [0, 0]),
        # The electron of 40 MeV is below e_min: its hit stays, without a target.
        (MUON_DECAY, ("calo",), [0], [0, -1]),
        (MUON_DECAY, ("stable", "entering"), [0], [0, 0]),
        (ALBEDO, ("calo",), [0, 1, 2], [0, 1, 2]),
        (ALBEDO, ("stable", "entering"), [0], [0, 0, 0]),
    ],
)
def test_targets_and_assigned_hits_of_decays(make_event, decay, rules, targets, assigned):
    events = make_event(**decay)
    for rule in rules:
        assert (chosen(events, rule), hits_of(events, rule)) == (targets, assigned), rule


K0S_OF_GENERATOR = [(310, 10.0, 2), (211, 6.0, 1, 0), (-211, 4.0, 1, 0), (22, 2.0, 0, 0, 1900.0)]


@pytest.mark.parametrize(
    ("hits", "targets", "assigned"),
    [
        ([(4.0, {0: 1.0}), (0.5, {1: 1.0})], [0], [0, 0]),
        ([(4.0, {3: 1.0})], [0], [0]),
        ([(0.2, {0: 1.0}), (5.5, {1: 1.0})], [1], [-1, 1]),
    ],
    ids=["hits of its own, descendants count for it", "hits of its secondaries", "next to nothing: its decay products"],
)
def test_a_particle_that_reaches_material_before_its_decay(make_event, hits, targets, assigned):
    events = make_event(K0S_OF_GENERATOR, hits)
    assert (chosen(events, "stable"), hits_of(events, "stable")) == (targets, assigned)


def with_status(events: Events, change: dict[int, int], which=slice(None)) -> Events:
    status = jagged.flat(events.truth.status).copy()
    status[which] = [change.get(code, code) for code in status[which].tolist()]
    return dataclasses.replace(events, truth=jagged.replaced(events.truth, {"status": status}))


def test_other_status_codes_of_cld_give_the_same_targets(cld_rec):
    assert unknown_status(np.array([0, 2, 2001, 2001]), [1]).endswith("often 2001 (2 times), 2 (1 times)")
    assert unknown_status(np.arange(2, 14), [1]).endswith(", 11 (1 times)")
    assert not unknown_status(np.array([0, 1, 2]), [1])
    assert "the rule 'calo' needs none" in unknown_status(np.zeros(3, dtype=np.int64), [1])  # simulation's alone
    plain = select_targets(cld_rec)
    recoded = with_status(cld_rec, {1: 2001})
    with pytest.warns(ImplausibleWarning, match=r"no particle has status 1, .*stable-status\); .*often 2001 "):
        assert set(select_targets(recoded).chosen) <= set(plain.chosen)
    assert select_targets(recoded, stable_status=(1, 2001)).chosen.tolist() == plain.chosen.tolist()
    # Neutral hadrons that the generator decays, and whose hits are their own.
    neutral = np.flatnonzero((class_index(jagged.flat(cld_rec.truth.pdg)) == 1) & np.isin(np.arange(228), plain.chosen))
    decayed = select_targets(with_status(cld_rec, {1: 2}, neutral))
    assert len(neutral) > 5
    assert decayed.chosen.tolist() == plain.chosen.tolist()
    assert decayed.column("hit_energy") == pytest.approx(plain.column("hit_energy"))


def test_dropped_and_invisible_particles_are_no_targets(make_event):
    events = make_event([(1000022, 50.0), (77, 5.0), (22, 8.0)], [(9.0, {0: 0.4, 1: 0.3, 2: 0.3})])
    assert chosen(events, "stable") == [1, 2]
    assert chosen(events, "stable", invisible=[77]) == chosen(events, "stable", invisible=[-77]) == [2]
    assert select_targets(events, invisible=[77]).final.tolist() == [False, False, True]
    events = make_event([(14, 5.0), (22, 0.05), (130, 6.0), (22, 1.0)], [(0.2, {2: 1.0}), (0.9, {3: 1.0})])
    dropped = select_targets(events, rule="stable").dropped[0]
    assert dropped.index.tolist() == [0, 1, 2]
    few = "no track, and too little energy in hits"
    assert dropped.reason.tolist() == ["invisible", "energy not above 0.1 GeV", few]
    assert (dropped.hit_energy[2], dropped.needed[2]) == pytest.approx((0.2, 0.3))
    # As another process gets them.
    assert pickle.loads(pickle.dumps(select_targets(events, rule="stable"))).dropped.to_list()[0] == dropped.to_list()


def test_hit_energy_is_weighted_and_tracks_follow_to_the_ancestor(make_event):
    particles = select_targets(make_event(**CONVERSION), rule="calo").particles[0]
    assert particles.hit_energy.tolist() == pytest.approx([4.8 + 0.28, 2.52])
    links = select_targets(make_event(**CONVERSION), rule="stable").hit_links[0]
    assert (links.source.tolist(), links.particle.tolist()) == ([0, 1], [0, 0])
    assert links.weight.tolist() == pytest.approx([1.0, 1.0])
    targets = select_targets(make_event(**K0S_DECAY), rule="stable")
    assert targets.track_links[0].particle.tolist() == [0, 0]
    assert targets.particles.n_tracks[0].tolist() == [2]


@pytest.mark.parametrize("rule", RULES)
def test_particle_seen_only_by_its_track_needs_tracks_in_the_source(make_event, rule):
    looper = make_event([(211, 0.5), (22, 3.0)], [(2.9, {1: 1.0})], tracks=[(0, 1.0)])
    assert chosen(looper, rule) == [0, 1]
    assert chosen(looper, rule, use_tracks=False) == [1]


@pytest.mark.parametrize(
    ("energy", "hit", "targets"), [(10.0, 0.49, []), (10.0, 0.5, [0]), (0.5, 0.099, []), (0.5, 0.101, [0])]
)
def test_stable_needs_five_percent_of_the_energy_and_a_tenth_of_a_gev(make_event, energy, hit, targets):
    assert chosen(make_event([(22, energy)], [(hit, {0: 1.0})]), "stable") == targets


def test_energy_counts_once_in_the_visible_sum(make_event):
    """A stable pi0 with its photons; an electron that radiates; a muon of another crossing."""
    particles = [(111, 5.0), (22, 3.0, 1, 0), (22, 2.0, 1, 0), (11, 9.0), (22, 8.0, 1, 3), (13, 7.0)]
    events = make_event(particles, [(1.0, {index: 1.0}) for index in range(6)])
    targets = select_targets(events)
    assert targets.final.tolist() == [False, True, True, True, True, True]
    overlay = jagged.replaced(events.truth, {"overlay": np.arange(6) == 5})
    targets = select_targets(dataclasses.replace(events, truth=overlay))
    assert targets.final.tolist() == [False, True, True, True, True, False]
    assert targets.chosen.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("particles", "hits", "rule", "assigned"),
    [
        ([(22, 2.0), (22, 2.0)], [(1.0, {1: 0.5, 0: 0.5})], "calo", [0]),
        ([(22, 2.0, 1, -1, 1900.0)], [(1.0, {0: 1.0})], "entering", [0]),
        ([(211, 9.0), (111, 4.0, 0, 0, 1900.0), (22, 2.0, 0, 1, 1900.1)], [(1.0, {2: 1.0})], "entering", [0]),
    ],
    ids=["equal shares: the first", "a vertex inside without a parent: itself", "deep in a shower: what entered"],
)
def test_assigned_particle(make_event, particles, hits, rule, assigned):
    assert hits_of(make_event(particles, hits), rule) == assigned


def test_rules_events_links_and_parents_that_cannot_be_are_refused(make_event):
    """They would count as hits of the next event; `keep_hits` drops both."""
    bare = dataclasses.replace(make_event([], path="data.root"), truth=None, hit_links=None, track_links=None)
    with pytest.raises(ConfigError, match=r"no truth rule 'stabel'.*stable"):
        select_targets(make_event(**PI0_DECAY), rule="stabel")
    with pytest.raises(InputError, match=r"data\.root.*needs truth particles"):
        select_targets(bare, rule="calo")
    events = make_event([(22, 10.0)], [(1.0, {0: 1.0}), (5.0, {0: 1.0})])
    kept = events.hits.energy > 2
    with pytest.raises(InputError, match=r"entry 0, 'hit_links': links lead to hits that are not there: .*keep_hits"):
        select_targets(dataclasses.replace(events, hits=events.hits[kept]))
    tracked = make_event([(211, 10.0)], tracks=[(0, 10.0)])
    with pytest.raises(InputError, match="entry 0, 'track_links': links lead to tracks that are not there: tracks"):
        select_targets(dataclasses.replace(tracked, tracks=tracked.tracks[:, :0]))
    assert select_targets(keep_hits(events, kept)).particles.hit_energy.to_list() == [[5.0]]
    circle = make_event([(22, 1.0, 0, 1), (22, 1.0, 0, 0)], [(1.0, {0: 1.0})], path="circle.root")
    with pytest.raises(InputError, match=r"circle\.root, entry 0, 'truth\.parent'"):
        select_targets(circle)
    decay = make_event(**PI0_DECAY, path="pi0.root")
    for cut in (decay.truth[:, :1], decay.truth[:, 1:]):
        with pytest.raises(InputError, match=r"pi0\.root, entry 0, 'hit_links\.particle': .* that are cut need new"):
            select_targets(dataclasses.replace(decay, truth=cut))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"e_min": np.nan}, "e_min must be an energy in GeV, found nan"),
        ({"use_tracks": "no"}, "expected use_tracks, True or False; found str"),
        ({"invisible": 22}, "expected invisible, a sequence of .*; found int"),
        ({"invisible": "22"}, "expected whole numbers in invisible; found str"),
        ({"stable_status": [1.0]}, "expected whole numbers in stable_status; found float"),
    ],
)
def test_options_of_another_kind_are_refused(make_event, options, message):
    with pytest.raises((ConfigError, TypeError), match=message):
        select_targets(make_event(**PI0_DECAY), **options)


@pytest.mark.parametrize(("rule", "assigned"), [("calo", [0, 1, 2]), ("stable", [0, 0, 0]), ("entering", [0, 1, 1])])
def test_assigned_ancestors_of_all_particles_target_or_not(make_event, rule, assigned):
    events = make_event([(22, 10.0), (11, 6.0, 0, 0, 100.0), (22, 1.0, 0, 1, 1900.0)])
    assert assigned_ancestors(events, rule=rule).tolist() == assigned
    for z in (3000.0, -3000.0):  # in either endcap
        along_z = jagged.replaced(events.truth, {"vertex.x": np.zeros(3), "vertex.z": np.array([0.0, 0.0, z])})
        moved = dataclasses.replace(events, truth=along_z)
        assert assigned_ancestors(moved, rule=rule).tolist() == assigned


def test_cld_targets_have_nearly_all_stable_energy(cld_rec):
    """The generator's events hold no neutrinos; what nears the beam pipe leaves nothing."""
    targets = select_targets(cld_rec, rule="stable")
    stable = ak.sum(cld_rec.truth.energy[cld_rec.truth.status == 1])
    dropped = ak.sum(targets.dropped.energy)
    assert ak.sum(targets.particles.energy) == pytest.approx(stable - dropped)
    assert dropped < 0.05 * stable
