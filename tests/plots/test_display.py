import dataclasses
import re

import awkward as ak
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from mpl_toolkits.mplot3d import proj3d

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import Events, concatenate
from pflow.event.schema import make_hits, make_links, make_particles
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.plots.display import COLOUR_BY, arrow_points, event_page, interactive_figure, make_scene, plot_event


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


def test_lines_come_in_their_order_and_colours_by_what_there_is(event, reconstruction):
    other = dataclasses.replace(event, reference=reconstruction.particles, reference_name="Other")
    scene = make_scene(other, reconstruction=reconstruction)
    assert kinds(scene) == ["tracks", "truth", "reco", "reference"]
    assert [lines.name for lines in scene.lines[2:]] == ["PFlow particles", "Other particles"]
    assert kinds(make_scene(other)) == ["tracks", "truth", "reco"]  # the reference as reconstruction
    assert make_scene(event, reconstruction=reconstruction).colour_by == "truth"
    assert make_scene(without_truth(event), reconstruction=reconstruction).colour_by == "reco"
    assert make_scene(without_truth(event)).colour_by == "energy"


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
    with pytest.raises(ConfigError, match=r"expected one event, e\.g\. events\[3\], found 2 events"):
        make_scene(concatenate([event, event]), reconstruction=reconstruction)
    with pytest.raises(InputError, match="is event number"):
        make_scene(event, reconstruction=dataclasses.replace(reconstruction, event=reconstruction.event + 1))


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


@pytest.mark.parametrize("colour_by", COLOUR_BY)
def test_views_and_units_for_every_colour_also_without_hits(event, reconstruction, colour_by):
    figure = plot_event(make_scene(event, reconstruction=reconstruction, colour_by=colour_by))
    views = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert [axes.name for axes in views] == ["rectilinear", "rectilinear", "3d"]
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in views[:2]]
    assert labels == [("x [mm]", "y [mm]"), ("z [mm]", "r [mm]")]
    assert ("Hit energy [GeV]" in [axes.get_xlabel() for axes in figure.axes]) == (colour_by == "energy")
    bare = dataclasses.replace(event, hits=event.hits[:, :0], hit_links=event.hit_links[:, :0])
    scene = make_scene(bare, reconstruction=reconstruction, colour_by=colour_by)
    assert (scene.groups, kinds(scene)) == ((), ["tracks", "truth", "reco"])


def test_hits_are_at_their_positions_and_the_legend_names_them(event):
    across, along = plot_event(make_scene(event, colour_by="subdetector")).axes[:2]
    hcal = -1  # the last group has the hit of the HCAL at (240, 2100, 0)
    np.testing.assert_allclose(across.collections[hcal].get_offsets(), [[240, 2100]])
    np.testing.assert_allclose(along.collections[hcal].get_offsets(), [[0, np.hypot(240, 2100)]])
    assert min(across.get_xlim()[1], across.get_ylim()[1]) > 2100
    scene = make_scene(event)
    figure = plot_event(scene)
    assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == [
        "gamma 10 GeV (3 hits)",
        "pi+ 5 GeV (2 hits)",
        "no true particle (1 hits)",
        "tracks (1)",
        "true particles (2)",
    ]
    arrows = [item for item in figure.axes[0].collections if isinstance(item, LineCollection)][-1]
    expected = [mpl.colors.to_rgb(colour) for colour in scene.lines[1].colours]
    np.testing.assert_allclose(arrows.get_colors()[:, :3], expected)


def test_the_view_in_space_has_all_hits_and_particles(cld_rec):
    """Hits at the ends of the barrel and tips of arrows lay outside of it."""
    for number in (0, 4):
        scene = make_scene(cld_rec[number])
        figure = plot_event(scene)
        figure.draw_without_rendering()
        (space,) = (axes for axes in figure.axes if axes.name == "3d")
        x, y, z = np.concatenate([scene.position, *(lines.points[:, -1] for lines in scene.lines)]).T
        right, up, _ = proj3d.proj_transform(z, x, y, space.get_proj())
        places = space.transAxes.inverted().transform(space.transData.transform(np.stack([right, up], axis=1)))
        assert 0.02 < places.min() < places.max() < 0.98


@pytest.mark.parametrize(
    ("name", "radii"), [("ild_g4", (1805, 1980, 2060, 3332)), ("cld", (2150, 2352, 2400, 3566)), ("mine", (2150, 2352))]
)
def test_the_outline_has_front_and_back_of_ecal_and_hcal(event, name, radii):
    cld = load_detector("cld")
    ecal = tuple(part for part in cld.calorimeters if part.kind == "ecal")
    detector = dataclasses.replace(cld, calorimeters=ecal) if name == "mine" else load_detector(name)
    scene = dataclasses.replace(make_scene(event, colour_by="energy"), detector=detector)
    outline = plot_event(scene).axes[0].collections[0].get_segments()
    np.testing.assert_allclose([np.hypot(*line[0]) for line in outline], radii)


def test_markers_name_the_classes_of_particles_without_a_colour(event, reconstruction):
    figure = plot_event(make_scene(event, reconstruction=reconstruction))  # coloured by truth
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown[-3:] == ["PFlow particles (2)", "charged hadron", "photon"]
    pion, photon = (item for item in figure.axes[0].collections[-5:-3])
    assert np.argmax(photon.get_offsets()[0]) == 0  # along x
    assert np.argmax(pion.get_offsets()[0]) == 1


def test_events_without_hits_energy_or_plain_names_can_be_drawn(event, empty_event):
    empty = plot_event(make_scene(empty_event))
    assert not empty.legends
    assert [trace.name for trace in interactive_figure(make_scene(empty_event)).data] == ["ECAL inner surface"]
    nothing = jagged.replaced(event.hits, {"energy": np.zeros(6, np.float32)})
    without_energy = make_scene(dataclasses.replace(event, hits=nothing), colour_by="energy")
    dollars = make_scene(dataclasses.replace(event, path="price_$x^{_$.root"))
    for figure in (empty, plot_event(without_energy), plot_event(dollars)):
        figure.draw_without_rendering()


def traces(figure, **fields):
    return [trace for trace in figure.data if all(getattr(trace, key) == value for key, value in fields.items())]


def test_groups_and_lines_have_traces_with_texts_and_values(event):
    figure = interactive_figure(make_scene(event))
    photon, *rest = traces(figure, mode="markers")
    names = [trace.name for trace in (photon, *rest)]
    assert names == ["gamma 10 GeV (3 hits)", "pi+ 5 GeV (2 hits)", "no true particle (1 hits)"]
    np.testing.assert_array_equal(photon.x, np.float32([1810, 1820, 1830]))
    np.testing.assert_array_equal(photon.customdata, np.float32([[3, 0, 6], [2, 1, 6], [1, 2, 6]]))
    assert list(photon.text) == ["ecal_barrel"] * 3
    assert all(unit in photon.hovertemplate for unit in ("GeV", "mm", "ns", "layer"))
    unknown = jagged.replaced(event.hits, {"time": np.full(6, np.nan, np.float32)})
    unknown = make_scene(dataclasses.replace(event, hits=unknown))
    assert "ns" not in traces(interactive_figure(unknown), mode="markers")[0].hovertemplate
    scene = make_scene(event)
    lines = traces(interactive_figure(scene), legendgroup="truth", showlegend=False)[0]
    assert np.isnan(lines.x).sum() == 2
    assert len(lines.x) == len(lines.text) == len(lines.line.color) == 2 * 11
    assert lines.text[0].startswith("true: pi+ 5 GeV (PDG 211)<br>")


def test_the_reference_beside_a_reconstruction_is_initially_hidden(event, reconstruction):
    event = dataclasses.replace(event, reference=reconstruction.particles, reference_name="Other")
    figure = interactive_figure(make_scene(event, reconstruction=reconstruction))
    assert {trace.visible for trace in traces(figure, legendgroup="reference")} == {"legendonly"}
    assert {trace.visible for trace in traces(figure, legendgroup="reco")} == {True}


def test_the_page_loads_nothing_and_shows_names_as_text(event, reconstruction):
    text = '"><img src=x onerror=alert(1)></script><script>alert(1)</script>'
    calorimeters = tuple(
        dataclasses.replace(calorimeter, name=f"{text}{k}") for k, calorimeter in enumerate(event.detector.calorimeters)
    )
    detector = dataclasses.replace(event.detector, calorimeters=calorimeters)
    names = {"reference_name": text, "path": f"{text}.root", "detector": detector}
    evil = dataclasses.replace(event, reference=reconstruction.particles, **names)
    page = event_page(make_scene(evil, colour_by="subdetector"))
    assert page.startswith("<!DOCTYPE html>")
    assert len(page) > 1_000_000
    assert "connect-src 'none'" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=|<img|<script>alert", page)


def test_a_browser_shows_the_page_without_errors(sample_dir, open_in_browser):
    scene = make_scene(read_events(sample_dir / "zqq_test_small.root", entry_stop=1))
    report = open_in_browser(event_page(scene))
    assert report["seen"] == report["resources"] == []
    assert report["canvases"] > 0
    expected = {f"{group.name} ({len(group.index)} hits)" for group in scene.groups}
    assert expected <= set(report["legend"])
    assert not [button for button in report["buttons"] if button and "hare" in button]
