import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.events import Flag, ImplausibleWarning
from pflow.event.schema import make_truth
from pflow.io.edm4hep.podio import Joined, PodioFile
from pflow.io.edm4hep.simulated import count_layers, make_truth_tracks
from pflow.io.open import open_events, read_events
from pflow.physics.detector import TruthTracking, load_detector
from pflow.physics.kinematics import momentum_from_track


@pytest.fixture
def sim_content(content):
    """Two events of simulated hits: three, the third without contributions, then one of two from one particle."""
    simulated = {key: values for key, values in content.items() if "MCParticles" in key}
    for name, energy, zeros in (("SimA", [[0.4, 0.5], [0.4]], [[0, 0], [0]]), ("SimB", [[0.4], []], [[0], []])):
        simulated |= {f"{name}.energy": energy, f"{name}.cellID": zeros}
        simulated |= {f"{name}.position.{axis}": zeros for axis in "yz"}
        simulated[f"{name}.position.x"] = [[0.001] * len(event) for event in zeros]  # at the origin they are left out
    return simulated | {
        "SimA.contributions_begin": [[0, 2], [0]],
        "SimA.contributions_end": [[2, 3], [2]],
        "_SimA_contributions.index": [[1, 0, 2], [0, 1]],
        "_SimA_contributions.collectionID": [[21, 21, 21], [21, 21]],
        "SimAContributions.energy": [[0.1, 0.3, 0.5], [0.2, 0.2]],
        "SimAContributions.time": [[5.0, 2.0, 9.0], [1.5, 1.0]],
        "_SimAContributions_particle.index": [[1, 2, 1], [0, 0]],
        "_SimAContributions_particle.collectionID": [[15, 15, 15], [15, 15]],
        **{f"SimB.contributions_{end}": [[0], []] for end in ("begin", "end")},
        **{f"_SimB_contributions.{member}": [[], []] for member in ("index", "collectionID")},
    }


ALL_LINKS = [[(0, 1, 0.25), (0, 2, 0.75), (1, 1, 1.0)], [(0, 0, 1.0)]]


@pytest.mark.parametrize("layout", ["new", "old", "rntuple"])
def test_links_share_a_hit_by_the_energy_of_its_contributions(read, sim_content, layout, links):
    assert links(read(sim_content, layout).hit_links) == ALL_LINKS


def test_times_and_links_are_those_of_the_contributions(read, sim_content, links):
    hits = read(sim_content).hits
    assert hits.subdetector.to_list() == [[0, 0, 1], [0]]
    np.testing.assert_array_equal(ak.flatten(hits.time), [2.0, 9.0, np.nan, 1.0])
    events = read({key: values for key, values in sim_content.items() if "_particle" not in key})
    assert links(events.hit_links) == [[], []]
    assert events.hits.time[1].to_list() == [1.0]
    less = {key: values for key, values in sim_content.items() if not key.startswith("_SimA")}
    assert np.isnan(read(less).hits.time[1, 0])


@pytest.mark.parametrize(
    ("member", "values", "expected"),
    [
        ("_SimAContributions_particle.collectionID", [[15, 99, 15], [15, 15]], [(0, 1, 1.0), (1, 1, 1.0)]),
        ("_SimA_contributions.index", [[1, 5, 2], [0, 1]], [(0, 2, 1.0), (1, 1, 1.0)]),
    ],
    ids=["an unknown particle", "a contribution that is not there"],
)
def test_references_to_missing_objects_make_no_link(read, sim_content, links, member, values, expected):
    sim_content[member] = values
    assert links(read(sim_content).hit_links)[0] == expected


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_contributions_of_unknown_particles_are_named(write, sim_content, toy, monkeypatch, dtype):
    """Also where a file holds the ids, hashes of 32 bits, signed."""
    get = PodioFile.get

    def get_typed(file, span, collection, *members):
        values = get(file, span, collection, *members)
        return ak.values_astype(values, dtype) if members == ("collectionID",) else values

    monkeypatch.setattr(PodioFile, "get", get_typed)
    sim_content["_SimAContributions_particle.collectionID"] = [[2**31 + 16] * 3, [2**31 + 16] * 2]
    with pytest.warns(ImplausibleWarning, match="0 of 5 references of SimA lead from SimA to MCPart"):
        read_events(write(sim_content), detector=toy)


WINDOW = {"sim_time_window": (0.0, 4.0), "sim_scale": 2.0}


@pytest.mark.parametrize(
    ("settings", "energy", "time", "expected"),
    [
        ({}, [0.4, 0.5, 0.4], [12.0, 19.0, 11.0], ALL_LINKS),
        (WINDOW | {"sim_threshold": 0.15}, [0.6, 0.8], [2.1, 1.1], [[(0, 2, 1.0)], [(0, 0, 1.0)]]),
        (WINDOW | {"sim_threshold": 0.35}, [0.8], [1.1], [[], [(0, 0, 1.0)]]),
        ({"sim_scale": 2.0, "sim_deep_scale": (1, 4.0)}, [0.8, 2.0, 0.8], [12.0, 19.0, 11.0], ALL_LINKS),
        ({"sim_measures_time": False}, [0.4, 0.5, 0.4], [0.0, 0.0, 0.0], ALL_LINKS),
    ],
    ids=["no settings", "window", "threshold on the energy in the window", "deep layers", "no times"],
)
def test_hits_are_digitised_as_the_detector_says(read, toy, sim_content, links, settings, energy, time, expected):
    """Hits of SimA are in layers 0, 1 and 0, 3 m or ten nanoseconds away; a hit that is dropped has no links."""
    calorimeters = (dataclasses.replace(toy.calorimeters[0], **settings), *toy.calorimeters[1:])
    detector = dataclasses.replace(toy, calorimeters=calorimeters)
    sim_content |= {"SimA.cellID": [[0, 1], [0]], "SimA.position.x": [[3000.0] * 2, [3000.0]]}
    sim_content["SimAContributions.time"] = [[15.0, 12.0, 19.0], [11.5, 11.0]]
    events = read(sim_content, detector=detector, encodings={"SimA": "layer:8"}).validate()
    hits = events.hits[events.hits.subdetector == 0]
    np.testing.assert_allclose(ak.flatten(hits.energy), energy, rtol=1e-6)
    np.testing.assert_allclose(ak.flatten(hits.time), time, rtol=1e-5)
    assert links(events.hit_links) == expected


def test_digitised_cld_hits_match_the_standard_digitisation(full_cld):

    def cells(events, subdetector):
        hits = events.hits[events.hits.subdetector == subdetector][0]
        position = np.round(np.stack([ak.to_numpy(hits.position[axis]) for axis in "xyz"], axis=-1), 2)
        return {tuple(where): value for where, value in zip(position.tolist(), hits.energy.to_list(), strict=True)}

    cld_rec, cld_sim = full_cld
    for number, _ in enumerate(cld_rec.detector.calorimeters):
        theirs, ours = cells(cld_rec, number), cells(cld_sim, number)
        assert len(ours) == pytest.approx(len(theirs), rel=0.03)
        assert sum(ours.values()) == pytest.approx(sum(theirs.values()), rel=0.01)
        assert theirs.keys() <= ours.keys()
        if theirs:
            assert np.median([abs(ours[cell] / energy - 1) for cell, energy in theirs.items()]) < 0.01


ENCODED = dict.fromkeys(("Inner", "Outer"), "system:4,layer:4")


@pytest.fixture
def tracker_content():
    """Two events of two and one particles: in the first, hits in layers 0, 0, 1, 1 and, in another collection, 0."""
    return {
        "Inner.cellID": [[0, 0, 16, 16], [16]],
        "Inner.quality": [[0, 0, 0, 1 << 30], [0]],
        "_Inner_particle.index": [[0, 0, 0, 1], [0]],
        "_Inner_particle.collectionID": [[15, 15, 15, 15], [15]],
        "Outer.cellID": [[0], []],
        "_Outer_particle.index": [[0], []],
        "_Outer_particle.collectionID": [[15], []],
    }


def count(file):
    return list(count_layers(file, ["Inner", "Outer"], Joined(["MCParticles"], [[2, 1]], 2), range(2)))


@pytest.mark.parametrize(
    ("layout", "encodings", "changes", "layers"),
    [
        ("new", ENCODED, {}, [3, 0, 1]),
        ("old", ENCODED, {}, [3, 0, 1]),
        ("new", {"Outer": ENCODED["Outer"]}, {}, [4, 0, 1]),
        ("new", ENCODED, {"index": [[0, 7, -2, 1], [0]]}, [2, 0, 1]),
        ("new", ENCODED, {"collectionID": [[99, 99, 15, 15], [15]]}, [2, 0, 1]),
    ],
    ids=["new", "old", "without an encoding every hit", "outside", "of another collection"],
)
def test_a_layer_counts_once_and_secondaries_do_not(podio, tracker_content, layout, encodings, changes, layers):
    tracker_content |= {f"_Inner_particle.{member}": values for member, values in changes.items()}
    assert count(podio(tracker_content, layout, encodings=encodings)) == layers


def test_hits_without_references_are_refused(podio, tracker_content):
    less = {key: values for key, values in tracker_content.items() if not key.startswith("_Outer")}
    with pytest.raises(InputError, match="no references to particles") as caught:
        count(podio(less, encodings=ENCODED))
    assert caught.value.field == "Outer"


EXACT = TruthTracking(
    **{"sim_tracker_hits": ("Hits",), "min_layers": 4, "max_vertex_radius": 350.0},
    **dict.fromkeys(("inverse_pt", "angle", "impact"), (0.0, 0.0)),
)
CLD = load_detector("cld")


def particles(n=1, **columns):
    """One event of `n` pions of 5 GeV from the origin, with some of their columns replaced."""
    pion = {"pdg": 211, "mass": 0.1396, "charge": 1.0, "px": 3.0, "py": 0.0, "pz": 4.0}
    pion |= dict.fromkeys(("vx", "vy", "vz"), 0.0)
    return make_truth(**{name: ak.Array([columns.get(name, [value] * n)]) for name, value in pion.items()})


def tracks_of(truth, layers, settings=EXACT, event=7):
    numbers = np.array([event] + [0] * (len(truth) - 1))
    detector = dataclasses.replace(CLD, truth_tracks=settings)
    return make_truth_tracks(truth, np.asarray(layers), detector, numbers, np.arange(len(truth)))


def test_charged_particles_with_enough_layers_get_tracks():
    truth = particles(5, charge=[1.0, 0.0, 1.0, -1.0, 2.0], vx=[0.0, 0.0, 400.0, 100.0, 0.0])
    tracks, links = tracks_of(truth, [4, 9, 9, 4, 9])
    assert links.particle.to_list() == [[0, 3]]
    assert links.source.to_list() == [[0, 1]]
    assert tracks.charge.to_list() == [[1.0, -1.0]]
    assert tracks_of(truth, [3, 9, 9, 3, 9])[1].particle.to_list() == [[]]


def test_without_smearing_a_track_is_the_particle_s_helix():
    tracks, _ = tracks_of(particles(1, vx=[3.0], vy=[-2.0], vz=[5.0], charge=[-1.0]), [9])
    track = tracks[0, 0]
    assert track.omega < 0
    px, py, pz = momentum_from_track(*(np.array(track[name]) for name in ("omega", "phi", "tan_lambda")), CLD.b_field)
    np.testing.assert_allclose([np.hypot(px, py), pz], [3.0, 4.0], rtol=1e-6)
    # A stiff track's closest point lies on its tangent through the vertex: 2 mm below the axis, and 4 mm back along z.
    np.testing.assert_allclose([track.d0, track.z0], [-2.0, 1.0], atol=0.01)
    end = track.calo_position
    assert end.z == pytest.approx(CLD.ecal_inner_z)
    assert np.hypot(end.x, end.y) == pytest.approx(2302 * 3 / 4, rel=0.02)


def test_track_parameters_have_the_stated_resolutions():
    n = 4000
    settings = dataclasses.replace(EXACT, inverse_pt=(3e-5, 2e-3), angle=(3e-5, 1.5e-3), impact=(2e-3, 1.5e-2))
    tracks, _ = tracks_of(particles(n), np.full(n, 9), settings)
    track = tracks[0]
    sin_theta, p = 0.6, 5.0
    expected = {
        "1/pt": (1 / track.momentum.pt, np.hypot(3e-5, 2e-3 / 3)),
        "phi": (track.phi, np.hypot(3e-5, 1.5e-3 / 3)),
        "lambda": (np.arctan(track.tan_lambda), np.hypot(3e-5, 1.5e-3 / 5)),
        "d0": (track.d0, np.hypot(2e-3, 1.5e-2 / (p * sin_theta**1.5))),
        "z0": (track.z0, np.hypot(2e-3, 1.5e-2 / (p * sin_theta**2.5))),
    }
    for name, (values, sigma) in expected.items():
        assert np.std(ak.to_numpy(values)) == pytest.approx(sigma, rel=0.05), name
    means = [float(ak.mean(values)) for values, _ in expected.values()]
    np.testing.assert_allclose(means, [1 / 3, 0.0, np.arctan(4 / 3), 0.0, 0.0], atol=1e-3)


def test_the_noise_depends_on_the_event_and_not_on_its_neighbours():
    settings = dataclasses.replace(EXACT, angle=(0.01, 0.0))
    alone, with_neighbour = particles(2), ak.concatenate([particles(2), particles(3)])
    tracks, _ = tracks_of(alone, np.full(2, 9), settings)
    with_others, _ = tracks_of(with_neighbour, np.full(5, 9), settings)
    renumbered, _ = tracks_of(alone, np.full(2, 9), settings, event=8)
    assert tracks.phi[0].to_list() == with_others.phi[0].to_list()
    assert tracks.phi[0].to_list() != renumbered.phi[0].to_list()


def test_truth_tracks_are_made_where_there_are_none_whatever_else_is_read(cld_sim, cld_path, cld_sim_path):
    assert (cld_sim.flags == Flag.TRUTH_TRACKS).all()
    with open_events(cld_path, truth_tracks=True) as file:
        assert not file.truth_tracks
    with open_events(cld_sim_path, truth_tracks=True) as file:
        assert file.truth_tracks
        alone = file.read(1, 2, truth=False)
        assert len(file.read(3, 3).tracks) == 0
    assert alone.truth is None
    assert alone.track_links is None
    assert ak.array_equal(alone.tracks, cld_sim.tracks[1:2])


def by_particle(events):
    """Tracks of the first event in the order of their particles, and these."""
    links = events.track_links[0]
    links = links[ak.argsort(links.particle)]
    return events.tracks[0][links.source], links.particle.to_list()


def test_truth_tracks_are_near_the_standard_tracks(full_cld):
    (theirs, particles), (ours, same) = (by_particle(events) for events in full_cld)
    assert particles == same
    assert len(particles) == 24
    assert np.median(abs(ours.momentum.pt / theirs.momentum.pt - 1)) < 0.01
    assert np.median((ours.calo_position - theirs.calo_position).mag) < 10.0  # mm
    assert np.degrees(np.median(ours.calo_momentum.deltaangle(theirs.calo_momentum))) < 0.5


def without_tracks(content):
    return {key: values for key, values in content.items() if "Track" not in key}


def test_truth_tracks_need_a_description_and_tracker_hits(write, content, toy):
    with pytest.raises(ConfigError, match="'toy' does not describe truth_tracks"):
        open_events(write(without_tracks(content)), detector=toy, truth_tracks=True)
    tracking = dataclasses.replace(load_detector("cld").truth_tracks, sim_tracker_hits=("Inner", "Outer"))
    detector = dataclasses.replace(toy, truth_tracks=tracking)
    with pytest.raises(InputError, match="need one of Inner, Outer") as caught:
        open_events(write(without_tracks(content)), detector=detector, truth_tracks=True)
    assert caught.value.field == "Inner"
    detector = dataclasses.replace(toy, truth_tracks=dataclasses.replace(tracking, sim_tracker_hits=()))
    with pytest.raises(InputError, match="need sim_tracker_hits, of which detector 'toy' names none"):
        open_events(write(without_tracks(content)), detector=detector, truth_tracks=True)


def test_both_forms_hold_the_same_and_simulated_hits_give_the_digitised_ones(
    sample_dir, cld_rec, cld_rntuple_path, cld_sim, assert_same
):
    path, digitised = sample_dir / "cld_zqq_small_sim.edm4hep.root", cld_rec[:3]
    simulated = read_events(path, truth_tracks=True)
    assert_same(simulated, cld_sim)
    assert_same(cld_rec, read_events(cld_rntuple_path))
    lost = ak.to_numpy(ak.num(digitised.hits) - ak.num(simulated.hits))
    assert lost.min() >= 0
    assert lost.max() <= 6  # just above the threshold
    np.testing.assert_allclose(ak.sum(simulated.hits.energy, axis=1), ak.sum(digitised.hits.energy, axis=1), rtol=5e-4)
    np.testing.assert_array_equal(ak.num(simulated.hit_links), ak.num(digitised.hit_links) - lost)
