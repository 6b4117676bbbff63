import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import InputError
from pflow.event.events import ImplausibleWarning
from pflow.event.schema import make_truth
from pflow.io.edm4hep.podio import Joined, open_podio
from pflow.io.edm4hep.simulated import Contributions, count_layers, digitise, make_truth_tracks
from pflow.io.open import read_events
from pflow.physics.detector import Calorimeter, TruthTracking, load_detector
from pflow.physics.kinematics import momentum_from_track


@pytest.fixture
def sim_content(content):
    """Two events of simulated hits: three, the third without contributions, then one of two from one particle."""
    simulated = {key: values for key, values in content.items() if "MCParticles" in key}
    zeros: dict[str, list[list[float]]] = {"SimA": [[0, 0], [0]], "SimB": [[0], []]}
    for name, energy in {"SimA": [[0.4, 0.5], [0.4]], "SimB": [[0.4], []]}.items():
        simulated |= {f"{name}.energy": energy, f"{name}.cellID": zeros[name]}
        simulated |= {f"{name}.position.{axis}": zeros[name] for axis in "xyz"}
    return simulated | {
        "SimA.contributions_begin": [[0, 2], [0]],
        "SimA.contributions_end": [[2, 3], [2]],
        "_SimA_contributions.index": [[1, 0, 2], [0, 1]],
        "_SimA_contributions.collectionID": [[21, 21, 21], [21, 21]],
        "SimAContributions.energy": [[0.1, 0.3, 0.5], [0.2, 0.2]],
        "SimAContributions.time": [[5.0, 2.0, 9.0], [1.5, 1.0]],
        "_SimAContributions_particle.index": [[1, 2, 1], [0, 0]],
        "_SimAContributions_particle.collectionID": [[15, 15, 15], [15, 15]],
        "SimB.contributions_begin": [[0], []],
        "SimB.contributions_end": [[0], []],
        "_SimB_contributions.index": [[], []],
        "_SimB_contributions.collectionID": [[], []],
    }


def test_simulated_hits_are_read_where_there_are_no_digitised_ones(read, sim_content):
    assert read(sim_content).hits.subdetector.to_list() == [[0, 0, 1], [0]]


@pytest.mark.parametrize("layout", ["new", "old", "rntuple"])
def test_links_share_a_hit_by_the_energy_of_its_contributions(read, sim_content, layout, links):
    assert links(read(sim_content, layout).hit_links) == [[(0, 1, 0.25), (0, 2, 0.75), (1, 1, 1.0)], [(0, 0, 1.0)]]


def test_the_time_is_the_earliest_contribution_s(read, sim_content):
    times = read(sim_content).hits.time
    assert times[0, :2].to_list() == [2.0, 9.0]
    assert np.isnan(times[0, 2])
    assert times[1].to_list() == [1.0]


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


def test_contributions_of_unknown_particles_are_named(write, sim_content, toy):
    sim_content["_SimAContributions_particle.collectionID"] = [[16] * 3, [16] * 2]
    with pytest.warns(ImplausibleWarning, match="0 of 5 references of SimA lead from SimA to MCPart"):
        read_events(write(sim_content), detector=toy)


def test_without_contributions_or_their_particles_there_are_no_times_or_links(read, sim_content, links):
    events = read({key: values for key, values in sim_content.items() if "_particle" not in key})
    assert links(events.hit_links) == [[], []]
    assert events.hits.time[1].to_list() == [1.0]
    less = {key: values for key, values in sim_content.items() if not key.startswith("_SimA")}
    assert np.isnan(read(less).hits.time[1, 0])


def test_cells_that_digitisation_drops_leave_no_hits_and_no_links(read, toy, sim_content, links):
    ecal = dataclasses.replace(toy.calorimeters[0], sim_threshold=0.15, sim_time_window=(0.0, 4.0), sim_scale=2.0)
    detector = dataclasses.replace(toy, calorimeters=(ecal, *toy.calorimeters[1:]))
    events = read(sim_content, detector=detector).validate()
    np.testing.assert_allclose(ak.flatten(events.hits.energy), [0.6, 4.0, 0.8], rtol=1e-6)
    np.testing.assert_allclose(ak.flatten(events.hits.time), [2.1, np.nan, 1.1], rtol=1e-6)
    assert links(events.hit_links) == [[(0, 2, 1.0)], [(0, 0, 1.0)]]


def test_digitised_cld_hits_match_the_standard_digitisation(full_cld):
    """The same event before and after CLD's own digitisation."""

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


FLIGHT = 10.0
"""ns, of a hit at 3 m."""


def contributions(hit, energy, time, n_hits):
    none = np.zeros(len(hit), dtype=np.int64)
    return Contributions(
        counts=np.array([n_hits]),
        hit=np.array(hit),
        energy=np.array(energy),
        time=np.array(time) + FLIGHT,
        event=none,
        particle_id=none,
        particle=none,
    )


def calorimeter(**settings):
    return Calorimeter(name="ecal", kind="ecal", region="barrel", **settings)


MADE_BY = contributions([0, 0, 0, 1, 2], [1.0, 2.0, 4.0, 3.0, 0.5], [0.0, 9.0, 50.0, 20.0, 1.0], 3)
HITS = {
    "energy": ak.Array([[7.0, 3.0, 0.5]]),
    **{axis: ak.Array([np.full(3, np.sqrt(3) * 1000)]) for axis in "xyz"},
    "layer": ak.Array([np.arange(3)]),
}


@pytest.mark.parametrize(
    ("settings", "layers", "energy", "time"),
    [
        ({}, [0, 1, 2], [7.0, 3.0, 0.5], [FLIGHT, FLIGHT + 20.0, FLIGHT + 1.0]),
        ({"sim_time_window": (-1.0, 10.0), "sim_threshold": 0.0}, [0, 2], [3.0, 0.5], [0.1, 1.1]),
        ({"sim_time_window": (-1.0, 10.0), "sim_threshold": 0.5, "sim_scale": 40.0}, [0], [120.0], [0.1]),
        (
            {"sim_scale": 2.0, "sim_deep_scale": (1, 4.0)},
            [0, 1, 2],
            [14.0, 12.0, 2.0],
            [FLIGHT, FLIGHT + 20, FLIGHT + 1],
        ),
        ({"sim_measures_time": False}, [0, 1, 2], [7.0, 3.0, 0.5], [0.0, 0.0, 0.0]),
    ],
    ids=["no settings", "window", "threshold on the energy in the window", "deep layers", "no times"],
)
def test_hits_are_digitised_as_the_detector_says(settings, layers, energy, time):
    made = digitise(calorimeter(**settings), HITS, MADE_BY)
    hits, used = made.columns, made.contributions
    assert hits["layer"].to_list() == [layers]
    assert hits["energy"].to_list() == [energy]
    np.testing.assert_allclose(hits["time"][0], time)
    if "sim_time_window" in settings:  # contributions 2 and 3 are outside; hits are renumbered
        assert used.hit.tolist() == [0, 0, 1][: 1 + len(layers)]
        assert used.energy.tolist() == [1.0, 2.0, 0.5][: 1 + len(layers)]


def test_without_contributions_there_is_no_window_and_no_time():
    made = digitise(calorimeter(sim_time_window=(-1.0, 10.0), sim_threshold=0.5), HITS, None)
    hits = made.columns
    assert hits["energy"].to_list() == [[7.0, 3.0]]
    assert np.isnan(hits["time"]).to_list() == [[True, True]]
    assert (made.contributions, made.lost) == (None, made.total)


ENCODING = "system:4,layer:4"


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


@pytest.fixture
def count(write):
    def count_content(content, layout="new", **encodings):
        file = open_podio(write(content, layout, encodings=encodings))
        try:
            return list(count_layers(file, ["Inner", "Outer"], Joined(["MCParticles"], [[2, 1]]), 0, 2))
        finally:
            file.close()

    return count_content


@pytest.mark.parametrize("layout", ["new", "old"])
def test_a_layer_counts_once_and_secondaries_do_not(count, tracker_content, layout):
    assert count(tracker_content, layout, Inner=ENCODING, Outer=ENCODING) == [3, 0, 1]


def test_without_an_encoding_every_hit_is_a_layer(count, tracker_content):
    assert count(tracker_content, Outer=ENCODING) == [4, 0, 1]


def test_references_elsewhere_are_left_out(count, tracker_content):
    tracker_content["_Inner_particle.index"] = [[0, 7, -2, 1], [0]]
    tracker_content["_Outer_particle.collectionID"] = [[99], []]
    assert count(tracker_content, Inner=ENCODING, Outer=ENCODING) == [1, 0, 1]


def test_hits_without_references_are_refused(count, tracker_content):
    less = {key: values for key, values in tracker_content.items() if not key.startswith("_Outer")}
    with pytest.raises(InputError, match="no references to particles") as caught:
        count(less, Inner=ENCODING)
    assert caught.value.field == "Outer"


EXACT = TruthTracking(
    sim_tracker_hits=("Hits",),
    min_layers=4,
    max_vertex_radius=350.0,
    inverse_pt=(0.0, 0.0),
    angle=(0.0, 0.0),
    impact=(0.0, 0.0),
)
CLD = load_detector("cld")


def particles(n=1, **columns):
    """One event of `n` pions of 5 GeV from the origin, with some of their columns replaced."""
    pion = {
        "pdg": 211,
        "mass": 0.1396,
        "charge": 1.0,
        "px": 3.0,
        "pz": 4.0,
        **dict.fromkeys(("py", "vx", "vy", "vz"), 0.0),
    }
    return make_truth(**{name: ak.Array([columns.get(name, [value] * n)]) for name, value in pion.items()})


def tracks_of(truth, layers, settings=EXACT, event=7):
    numbers = np.array([event] + [0] * (len(truth) - 1))
    detector = dataclasses.replace(CLD, truth_tracks=settings)
    return make_truth_tracks(truth, np.asarray(layers), detector, numbers, np.arange(len(truth)))


def test_charged_particles_from_the_beam_region_with_enough_layers_get_tracks():
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
