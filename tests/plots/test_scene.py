import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, concatenate
from pflow.event.schema import make_hits, make_links, make_particles
from pflow.plots.display import COLOUR_BY, arrow_points, make_scene


def contents(scene):
    return {group.name: group.index.tolist() for group in scene.groups}


def kinds(scene):
    return [lines.kind for lines in scene.lines]


def without_truth(event):
    return dataclasses.replace(event, truth=None, hit_links=None, track_links=None)


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({"colour_by": "truth"}, {"gamma 10 GeV": [0, 1, 2], "pi+ 5 GeV": [3, 4], "no true particle": [5]}),
        ({"max_colours": 1}, {"gamma 10 GeV": [0, 1, 2], "1 other particles": [3, 4], "no true particle": [5]}),
        ({"colour_by": "subdetector"}, {"ecal_barrel": [0, 1, 2, 3, 5], "hcal_barrel": [4]}),
        ({"colour_by": "energy"}, {"hits": [0, 1, 2, 3, 4, 5]}),
    ],
)
def test_hits_in_groups(event, options, groups):
    assert contents(make_scene(event, **options)) == groups


def test_hits_by_the_reconstructed_particle_nearest_in_angle(event, reconstruction):
    # The pi+ bends by 11 degrees towards +x; the hit at -x is 101 degrees from it, 180 from the photon.
    scene = make_scene(event, reconstruction=reconstruction, colour_by="reco")
    assert contents(scene) == {"gamma 9 GeV": [0, 1, 2], "pi+ 5.1 GeV": [3, 4, 5]}
    assert scene.note == "hits coloured by the nearest PFlow particle in angle (it assigns no hits)"


def test_a_charged_particles_angle_is_its_calorimeter_entry(event):
    # Both start along y. In 3.5 T the pi+ of pt 1.2 GeV has R = 1.2 / (0.299792458e-3 * 3.5) = 1143.648 mm and meets
    # r = 1805 mm at an angle of arcsin(1805 / (2 R)) = 52.107 degrees from y, towards +x.
    turn = np.arcsin(1805 / (2 * 1143.648))
    x, y = [1805 * np.sin(turn), 0.0], [1805 * np.cos(turn), 1805.0]
    hits = make_hits(energy=[[1.0, 1.0]], x=[x], y=[y], z=[[0.0, 0.0]])
    particles = make_particles(
        pdg=[[22, 211]], charge=[[0.0, 1.0]], energy=[[1.0, 1.208]], px=[[0.0, 0.0]], py=[[1.0, 1.2]], pz=[[0.0, 0.0]]
    )
    event = Events(detector=event.detector, hits=hits, reference=particles, reference_name="Hand")
    assert contents(make_scene(event, colour_by="reco")) == {"pi+ 1.21 GeV": [0], "gamma 1 GeV": [1]}


def test_a_particle_its_track_and_its_hits_have_the_same_colour(event):
    scene = make_scene(event, colour_by="truth")
    tracks, truth = scene.lines
    pion = next(group.colour for group in scene.groups if group.name.startswith("pi+"))
    assert tracks.colours == (pion,)
    assert truth.colours[0] == pion
    assert len({group.colour for group in scene.groups}) == 3


@pytest.mark.parametrize(("d0", "z0"), [(0.0, 0.0), (2.0, -3.0)])
def test_tracks_start_at_their_perigee_and_end_at_the_calorimeter(event, d0, z0):
    # EDM4hep: x = -d0 sin(phi), y = d0 cos(phi); phi = pi / 2 here.
    tracks = event.tracks
    for name, value in (("d0", d0), ("z0", z0)):
        tracks = ak.with_field(tracks, ak.Array(np.float32([[value]])), name)
    points = make_scene(dataclasses.replace(event, tracks=tracks)).lines[0].points[0]
    np.testing.assert_allclose(points[0], [-d0, 0.0, z0], atol=1e-5)
    assert np.hypot(points[-1, 0], points[-1, 1]) == pytest.approx(event.detector.ecal_inner_radius, rel=1e-5)


def test_arrows_start_where_particles_enter_the_calorimeter(event):
    truth = make_scene(event).lines[1]
    np.testing.assert_allclose(truth.points[1, 0], [1805.0, 0, 0], atol=1e-3)
    # 10 GeV: one and a half units of a quarter of the radius.
    np.testing.assert_allclose(truth.points[1, 1], [1805.0 * (1 + 0.375), 0, 0], rtol=1e-6, atol=1e-3)


def test_lines_come_in_their_order(event, reconstruction):
    event = dataclasses.replace(event, reference=reconstruction.particles, reference_name="Other")
    scene = make_scene(event, reconstruction=reconstruction)
    assert kinds(scene) == ["tracks", "truth", "reco", "reference"]
    assert [lines.name for lines in scene.lines[2:]] == ["PFlow particles", "Other particles"]
    assert kinds(make_scene(event)) == ["tracks", "truth", "reco"]  # the reference as reconstruction


def test_colours_are_by_truth_then_reconstruction_then_energy(event, reconstruction):
    assert make_scene(event, reconstruction=reconstruction).colour_by == "truth"
    assert make_scene(without_truth(event), reconstruction=reconstruction).colour_by == "reco"
    assert make_scene(without_truth(event)).colour_by == "energy"


@pytest.mark.parametrize("colour_by", COLOUR_BY)
def test_an_event_may_have_no_hits(event, reconstruction, colour_by):
    bare = dataclasses.replace(event, hits=event.hits[:, :0], hit_links=event.hit_links[:, :0])
    scene = make_scene(bare, reconstruction=reconstruction, colour_by=colour_by)
    assert (scene.groups, kinds(scene)) == ((), ["tracks", "truth", "reco"])


def test_particles_with_a_momentum_are_shown_as_arrows(event, reconstruction):
    still = ak.with_field(reconstruction.particles, ak.Array([[0.0, 0.0]]), "px")
    scene = make_scene(dataclasses.replace(event, reference=still, reference_name="Other"))
    assert len(scene.lines[-1]) == 1


def test_wrong_events_and_options_are_refused(event, reconstruction):
    for option, message in (("thruth", "nearest matches: truth"), ("reco", "no reconstructed particles")):
        with pytest.raises(ConfigError, match=message):
            make_scene(event, colour_by=option)
    with pytest.raises(InputError, match=r"hand\.root: holds no truth"):
        make_scene(without_truth(event), colour_by="truth")
    with pytest.raises(ConfigError, match="expected one event and its reconstruction"):
        make_scene(concatenate([event, event]), reconstruction=reconstruction)


def test_colours_follow_the_particle_of_the_largest_weight(event, reconstruction):
    linked = dataclasses.replace(
        reconstruction,
        hit_links=make_links(source=[[0, 1, 1, 5]], particle=[[1, 0, 1, 1]], weight=[[1.0, 0.3, 0.7, 0.5]]),
        track_links=make_links(source=[[0]], particle=[[1]]),
    )
    scene = make_scene(event, reconstruction=linked, colour_by="reco")
    assert contents(scene) == {"pi+ 5.1 GeV": [0, 1, 5], "no reconstructed particle": [2, 3, 4]}
    assert scene.note == "hits coloured by the PFlow particle with the largest weight"
    assert scene.lines[0].colours == (scene.groups[0].colour,)


@pytest.mark.parametrize(("energy", "units"), [(1.0, 1.0), (10.0, 1.5), (0.1, 0.5), (1e5, 2.5), (0.0, 0.2)])
def test_an_arrow_grows_by_half_a_unit_a_decade(energy, units):
    arrow = arrow_points([[1.0, 2.0, 3.0]], [[0.0, 0.6, 0.8]], [energy], 100.0)[0]
    np.testing.assert_allclose(arrow[0], [1, 2, 3])
    np.testing.assert_allclose(arrow[1] - arrow[0], np.array([0.0, 0.6, 0.8]) * units * 100.0, atol=1e-9)
