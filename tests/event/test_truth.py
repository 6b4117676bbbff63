"""Truth rules on hand-made decays: every expected ancestor is worked out by hand."""

from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.build import make_hits, make_links, make_tracks, make_truth
from pflow.event.events import Events
from pflow.event.truth import assigned_ancestors, select_targets
from pflow.physics.detector import load_detector
from pflow.physics.pdg import charge_of, mass_of

DETECTOR = load_detector("ild_g4")  # calorimeter from r = 1805 mm and |z| = 2412 mm


def event(
    particles: list[dict[str, float]],
    hits: list[tuple[float, list[tuple[int, float]]]],
    tracks: list[int] = (),
    path: str = "",
) -> Events:
    """One event: particles (pdg, p [GeV] along x, status, parent, r [mm]), hits (energy, shares), track particles."""
    pdg = [int(p["pdg"]) for p in particles]
    n = len(pdg)
    truth = make_truth(
        pdg=[pdg],
        mass=[[mass_of(code) for code in pdg]],
        charge=[[charge_of(code) for code in pdg]],
        px=[[p["p"] for p in particles]],
        py=[[0.0] * n],
        pz=[[0.0] * n],
        vx=[[p.get("r", 0.0) for p in particles]],
        vy=[[0.0] * n],
        vz=[[0.0] * n],
        status=[[int(p.get("status", 1)) for p in particles]],
        parent=[[int(p.get("parent", -1)) for p in particles]],
    )
    energies = np.array([[energy for energy, _ in hits]]).reshape(1, -1)
    links = [(i, particle, weight) for i, (_, shares) in enumerate(hits) for particle, weight in shares]
    jagged = ak.Array(energies)
    return Events(
        detector=DETECTOR,
        hits=make_hits(energy=jagged, x=jagged * 0 + 1850.0, y=jagged * 0, z=jagged * 0),
        truth=truth,
        hit_links=make_links(
            source=ak.Array(np.array([[link[0] for link in links]], dtype=int).reshape(1, -1)),
            particle=ak.Array(np.array([[link[1] for link in links]], dtype=int).reshape(1, -1)),
            weight=ak.Array(np.array([[link[2] for link in links]], dtype=float).reshape(1, -1)),
        ),
        tracks=make_tracks(
            b_field=3.5,
            **{
                key: ak.Array(np.full((1, len(tracks)), value))
                for key, value in (("px", 1.0), ("py", 0.0), ("pz", 0.0), ("charge", 1.0))
            },
        ),
        track_links=make_links(
            source=ak.Array(np.arange(len(tracks)).reshape(1, -1)),
            particle=ak.Array(np.array([list(tracks)], dtype=int).reshape(1, -1)),
        ),
        path=path,
    )


def chosen(events: Events, rule: str, **options: object) -> list[int]:
    return select_targets(events, rule=rule, **options).particles.index[0].tolist()


def hits_of(events: Events, rule: str) -> list[int]:
    """Truth index of the target with the largest share of each hit; -1 for hits without a target."""
    targets = select_targets(events, rule=rule)
    best = np.full(len(events.hits[0]), -1)
    weight = np.zeros(len(best))
    for link in targets.hit_links[0].tolist():
        if link["weight"] > weight[link["source"]]:
            weight[link["source"]] = link["weight"]
            best[link["source"]] = targets.particles.index[0][link["particle"]]
    return best.tolist()


def pi0_decay() -> Events:
    """A pi0 of the generator (status 2) to two photons (status 1), one hit each."""
    return event(
        [
            {"pdg": 111, "p": 10.0, "status": 2},
            {"pdg": 22, "p": 6.0, "parent": 0},
            {"pdg": 22, "p": 4.0, "parent": 0},
        ],
        [(5.5, [(1, 1.0)]), (3.5, [(2, 1.0)])],
    )


def k0s_decay() -> Events:
    """A stable K0S of the generator that the simulation decays at r = 500 mm to pi+ pi-."""
    return event(
        [
            {"pdg": 310, "p": 5.0},
            {"pdg": 211, "p": 3.0, "status": 0, "parent": 0, "r": 500.0},
            {"pdg": -211, "p": 2.0, "status": 0, "parent": 0, "r": 500.0},
        ],
        [(2.5, [(1, 1.0)]), (1.5, [(2, 1.0)])],
        tracks=[1, 2],
    )


def conversion() -> Events:
    """A photon that converts at r = 300 mm; both electrons reach the calorimeter, the positron has a track."""
    return event(
        [
            {"pdg": 22, "p": 8.0},
            {"pdg": 11, "p": 5.0, "status": 0, "parent": 0, "r": 300.0},
            {"pdg": -11, "p": 3.0, "status": 0, "parent": 0, "r": 300.0},
        ],
        [(4.8, [(1, 1.0)]), (2.8, [(2, 0.9), (1, 0.1)])],
        tracks=[2],
    )


def muon_decay() -> Events:
    """A muon that stops in the calorimeter (r = 2200 mm) and decays to an electron and neutrinos."""
    return event(
        [
            {"pdg": 13, "p": 1.5},
            {"pdg": 11, "p": 0.04, "status": 0, "parent": 0, "r": 2200.0},
            {"pdg": -12, "p": 0.03, "status": 0, "parent": 0, "r": 2200.0},
        ],
        [(0.3, [(0, 1.0)]), (0.03, [(1, 1.0)])],
        tracks=[0],
    )


def albedo() -> Events:
    """A pion showers at r = 1900 mm; a neutron flies back and knocks a proton out of the tracker at r = 1000 mm."""
    return event(
        [
            {"pdg": 211, "p": 20.0},
            {"pdg": 2112, "p": 1.0, "status": 0, "parent": 0, "r": 1900.0},
            {"pdg": 2212, "p": 0.8, "status": 0, "parent": 1, "r": 1000.0},
        ],
        [(15.0, [(0, 1.0)]), (0.2, [(1, 1.0)]), (0.1, [(2, 1.0)])],
    )


@pytest.mark.parametrize(
    ("make", "rule", "targets", "assigned"),
    [
        (pi0_decay, "calo", [1, 2], [1, 2]),
        (pi0_decay, "stable", [1, 2], [1, 2]),
        (pi0_decay, "entering", [1, 2], [1, 2]),
        (k0s_decay, "calo", [1, 2], [1, 2]),
        (k0s_decay, "stable", [0], [0, 0]),
        (k0s_decay, "entering", [1, 2], [1, 2]),
        (conversion, "calo", [1, 2], [1, 2]),
        (conversion, "stable", [0], [0, 0]),
        (conversion, "entering", [1, 2], [1, 2]),
        # The electron of 40 MeV is below e_min: its hit stays, without a target.
        (muon_decay, "calo", [0], [0, -1]),
        (muon_decay, "stable", [0], [0, 0]),
        (muon_decay, "entering", [0], [0, 0]),
        (albedo, "calo", [0, 1, 2], [0, 1, 2]),
        (albedo, "stable", [0], [0, 0, 0]),
        (albedo, "entering", [0], [0, 0, 0]),
    ],
)
def test_hand_made_decay(make, rule, targets, assigned):
    assert chosen(make(), rule) == targets
    assert hits_of(make(), rule) == assigned


def test_shares_of_one_ancestor_are_added():
    links = select_targets(conversion(), rule="stable").hit_links[0].tolist()
    assert [(link["source"], link["particle"]) for link in links] == [(0, 0), (1, 0)]
    assert [link["weight"] for link in links] == pytest.approx([1.0, 1.0])


def test_hit_energy_counts_shares():
    particles = select_targets(conversion(), rule="calo").particles[0]
    assert particles.hit_energy.tolist() == pytest.approx([4.8 + 0.28, 2.52])


def test_tracks_follow_the_assigned_ancestor():
    targets = select_targets(k0s_decay(), rule="stable")
    assert targets.track_links[0].particle.tolist() == [0, 0]
    assert targets.particles.n_tracks[0].tolist() == [2]


def test_particle_seen_only_by_its_track_needs_tracks_in_the_source():
    looper = event([{"pdg": 211, "p": 0.5}, {"pdg": 22, "p": 3.0}], [(2.9, [(1, 1.0)])], tracks=[0])
    for rule in ("calo", "stable", "entering"):
        assert chosen(looper, rule) == [0, 1]
        assert chosen(looper, rule, use_tracks=False) == [1]


@pytest.mark.parametrize(("hit", "visible"), [(0.49, False), (0.5, True)])
def test_stable_needs_five_percent_of_the_energy(hit, visible):
    neutral = event([{"pdg": 22, "p": 10.0}], [(hit, [(0, 1.0)])])
    assert chosen(neutral, "stable") == ([0] if visible else [])


@pytest.mark.parametrize(("hit", "visible"), [(0.099, False), (0.101, True)])
def test_stable_needs_a_tenth_of_a_gev(hit, visible):
    neutral = event([{"pdg": 22, "p": 0.5}], [(hit, [(0, 1.0)])])
    assert chosen(neutral, "stable") == ([0] if visible else [])


def test_stable_names_why_each_particle_was_dropped():
    events = event(
        [{"pdg": 14, "p": 5.0}, {"pdg": 22, "p": 0.05}, {"pdg": 130, "p": 6.0}, {"pdg": 22, "p": 1.0}],
        [(0.2, [(2, 1.0)]), (0.9, [(3, 1.0)])],
    )
    dropped = select_targets(events, rule="stable").dropped[0]
    assert dropped.index.tolist() == [0, 1, 2]
    assert dropped.reason.tolist()[:2] == ["neutrino", "energy not above 0.1 GeV"]
    assert dropped.reason[2] == "no track and 0.2 GeV in hits, less than 0.301 GeV"


def test_equal_shares_go_to_the_first_particle():
    shared = event([{"pdg": 22, "p": 2.0}, {"pdg": 22, "p": 2.0}], [(1.0, [(1, 0.5), (0, 0.5)])])
    assert chosen(shared, "calo") == [0]


def test_a_vertex_inside_without_a_parent_is_assigned_to_itself():
    lonely = event([{"pdg": 22, "p": 2.0, "r": 1900.0}], [(1.0, [(0, 1.0)])])
    assert chosen(lonely, "entering") == [0]


def test_shower_deep_below_the_entry_belongs_to_it():
    chain = event(
        [
            {"pdg": 211, "p": 9.0},
            {"pdg": 111, "p": 4.0, "status": 0, "parent": 0, "r": 1900.0},
            {"pdg": 22, "p": 2.0, "status": 0, "parent": 1, "r": 1900.1},
        ],
        [(1.0, [(2, 1.0)])],
    )
    assert hits_of(chain, "entering") == [0]


def test_events_do_not_mix():
    one, other = pi0_decay(), k0s_decay()
    from pflow.event.events import concatenate

    both = select_targets(concatenate([one, event([], []), other]), rule="stable")
    assert both.particles.index.tolist() == [[1, 2], [], [0]]
    assert both.hit_links.particle.tolist() == [[0, 1], [], [0, 0]]


def test_unknown_rule_names_the_nearest():
    with pytest.raises(ConfigError, match="stable"):
        select_targets(pi0_decay(), rule="stabel")


def test_events_without_truth_are_refused():
    events = pi0_decay()
    bare = Events(detector=DETECTOR, hits=events.hits, path="data.root")
    with pytest.raises(InputError, match=r"data\.root.*truth"):
        select_targets(bare)


def test_own_ancestor_is_refused():
    circle = event(
        [{"pdg": 22, "p": 1.0, "status": 0, "parent": 1}, {"pdg": 22, "p": 1.0, "status": 0, "parent": 0}],
        [(1.0, [(0, 1.0)])],
        path="circle.root",
    )
    for rule in ("calo", "stable", "entering"):
        with pytest.raises(InputError, match=r"circle\.root, entry 0, 'truth\.parent'"):
            select_targets(circle, rule=rule)


@pytest.fixture(scope="module")
def cld(data_dir):
    from pflow import read_events

    return read_events(data_dir / "edm4hep" / "cld_rec.edm4hep.root")


def test_cld_stable_energy_is_all_that_left_a_trace(cld):
    # DATA: 239.68 GeV visible in the generator (status 1, no neutrinos).
    targets = select_targets(cld, rule="stable")
    no_neutrino = targets.dropped.reason != "neutrino"
    dropped = ak.sum(targets.dropped.energy[no_neutrino])
    assert ak.sum(targets.particles.energy) == pytest.approx(239.68 - dropped, rel=1e-3)
    assert dropped < 0.01 * 239.68


def test_cld_every_generator_particle_is_a_target_or_named(cld):
    targets = select_targets(cld, rule="stable")
    listed = sorted([*targets.particles.index[0].tolist(), *targets.dropped.index[0].tolist()])
    assert listed == np.flatnonzero(cld.truth.status[0] == 1).tolist()
    assert all(targets.dropped.reason[0])


def test_cld_shares_of_a_hit_never_exceed_one(cld):
    for rule in ("calo", "stable", "entering"):
        links = select_targets(cld, rule=rule).hit_links[0]
        assert np.bincount(ak.to_numpy(links.source), ak.to_numpy(links.weight)).max() < 1 + 1e-5


def test_cld_track_pt_is_that_of_the_linked_truth(cld):
    links = cld.track_links[0]
    ratio = cld.tracks.momentum.pt[0][links.source] / cld.truth.momentum.pt[0][links.particle]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.01)


def test_assigned_ancestors_of_all_particles_target_or_not():
    particles = [
        {"pdg": 22, "p": 10.0, "status": 1, "parent": -1, "r": 0.0},
        {"pdg": 11, "p": 6.0, "status": 0, "parent": 0, "r": 100.0},
        {"pdg": 22, "p": 1.0, "status": 0, "parent": 1, "r": 1900.0},
    ]
    events = event(particles, hits=[])
    assert assigned_ancestors(events, rule="calo").tolist() == [0, 1, 2]
    assert assigned_ancestors(events, rule="stable").tolist() == [0, 0, 0]
    assert assigned_ancestors(events, rule="entering").tolist() == [0, 1, 1]


def test_assigned_ancestors_need_truth_and_a_rule():
    events = event([], hits=[])
    with pytest.raises(ConfigError, match="no truth rule 'best'"):
        assigned_ancestors(events, rule="best")
    bare = dataclasses.replace(events, truth=None, hit_links=None, track_links=None)
    with pytest.raises(InputError, match="needs truth particles"):
        assigned_ancestors(bare, rule="calo")
