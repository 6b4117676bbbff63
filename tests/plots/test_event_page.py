import dataclasses
import re

import numpy as np

from pflow.io.open import read_events
from pflow.plots.event_page import event_page, interactive_figure
from pflow.plots.scene import make_scene


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
    unknown = dataclasses.replace(make_scene(event), time=np.full(6, np.nan, np.float32))
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


def test_the_page_holds_the_library_loads_nothing_and_shows_names_as_text(event, reconstruction):
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
