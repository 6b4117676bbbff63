import dataclasses
import re

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection

from pflow.event import jagged
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.plots.display import COLOUR_BY, event_page, interactive_figure, make_scene, plot_event
from pflow.plots.style import rendered


@pytest.mark.parametrize("colour_by", COLOUR_BY)
def test_views_and_units_for_every_kind_of_colour(event, reconstruction, colour_by):
    figure = plot_event(make_scene(event, reconstruction=reconstruction, colour_by=colour_by))
    views = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert [axes.name for axes in views] == ["rectilinear", "rectilinear", "3d"]
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in views[:2]]
    assert labels == [("x [mm]", "y [mm]"), ("z [mm]", "r [mm]")]
    assert ("Hit energy [GeV]" in [axes.get_xlabel() for axes in figure.axes]) == (colour_by == "energy")


def test_hits_are_at_their_positions_within_the_axes(event):
    across, along = plot_event(make_scene(event, colour_by="subdetector")).axes[:2]
    hcal = -1  # the last group has the hit of the HCAL at (240, 2100, 0)
    np.testing.assert_allclose(across.collections[hcal].get_offsets(), [[240, 2100]])
    np.testing.assert_allclose(along.collections[hcal].get_offsets(), [[0, np.hypot(240, 2100)]])
    assert min(across.get_xlim()[1], across.get_ylim()[1]) > 2100


def test_the_legend_names_particles_and_lines_in_their_colours(event):
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
    nothing = jagged.replaced(event.hits, {"energy": np.zeros(6, np.float32)})
    without_energy = make_scene(dataclasses.replace(event, hits=nothing), colour_by="energy")
    dollars = make_scene(dataclasses.replace(event, path="price_$x^{_$.root"))
    for figure in (empty, plot_event(without_energy), plot_event(dollars)):
        assert rendered(figure, "png")


def traces(figure, **fields):
    return [trace for trace in figure.data if all(getattr(trace, key) == value for key, value in fields.items())]


def test_each_group_has_a_trace_with_positions_and_values(event):
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


def test_lines_are_separated_and_have_texts(event):
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


def test_a_browser_shows_an_empty_event(empty_event, open_in_browser):
    report = open_in_browser(event_page(make_scene(empty_event)))
    assert report["seen"] == []
    assert report["traces"] == 1
