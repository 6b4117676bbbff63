import dataclasses
import io
import math
import re
from html import unescape
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from pflow.event.move import Move
from pflow.metrics.evaluation import AlgorithmMetrics
from pflow.metrics.oracle import ORACLE
from pflow.metrics.report import REFERENCE, EvaluationResult, EvaluationSettings, document
from pflow.metrics.scan import HEADLINES, MODEL, Limit, PointResult, ScanPoint, ScanResult
from pflow.metrics.stats import Number
from pflow.plots import rendered, styled
from pflow.plots.report import plot_scan, report_page, scan_figures, scan_page

PNG = b"\x89PNG"
VOID = {"meta", "img"}


class Outline(HTMLParser):
    """Checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def result() -> EvaluationResult:
    tree = AlgorithmMetrics().result()
    return EvaluationResult(
        settings=EvaluationSettings(),
        n_events=7,
        n_bad_input=0,
        n_max_particles=0,
        name="PFlow",
        algorithms={"PFlow": tree, "reference": tree},
        titles={"PFlow": "PFlow", "reference": "Classic"},
    )


def whole(page) -> str:
    """The page, whose tags are all closed."""
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return page


def report(result, figures=()) -> str:
    inputs = {"reco": {result.titles["PFlow"]: "a.root"}, "truth": ["b.root"]}
    return whole(report_page(result, document(result, inputs=inputs), dict(figures)))


def test_the_page_has_numbers_and_provenance_names_as_text_and_loads_nothing(result):
    page = report(result, {"response": PNG})
    assert [source[:22] for source in re.findall(r'(?:src|href)="([^"]*)', page)] == ["data:image/png;base64,"]
    assert not re.search("<(script|link|iframe)", page)
    result.algorithms["PFlow"]["count"]["exact_fraction"] = Number(0.934, 0.922, 0.946)
    text = unescape(report(result))
    for part in (
        "0.934 ±0.012",
        "7 events",
        "PFlow - Classic",
        "rule 'stable'",
        "class.*.efficiency",
        "a.root",
        "Classic",
    ):
        assert part in text
    evil = "<script>alert(1)</script>"
    page = report(dataclasses.replace(result, titles={"PFlow": evil, "reference": "A & B"}), {evil: PNG})
    assert "<script" not in page
    assert evil in unescape(page)
    assert "A &amp; B" in page


KEYS = ("jet_energy.91.resolution", "fake_energy_fraction")


def point(name, factor, *, kind="point", move=Move(), algorithms=(MODEL, ORACLE), limits=(), **values) -> PointResult:  # noqa: B008
    replicas = factor * np.linspace(0.04, 0.06, 200)
    number = Number(0.05 * factor, 0.045 * factor, 0.055 * factor, replicas)
    series = {"edges": [10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 90.0, 130.0, 200.0], "unit": "mrad", "n_events": [5] * 8}
    series |= {"value": [0.5] * 8, "low": [0.4] * 8, "high": [0.6] * 8}
    return PointResult(
        point=ScanPoint(name=name, kind=kind, sample="s", move=move, values=values),
        algorithms={algorithm: dict.fromkeys(KEYS, number) for algorithm in algorithms},
        titles={algorithm: algorithm for algorithm in algorithms},
        pairs=dict.fromkeys(algorithms, series),
        limits=limits,
        places=np.arange(100),
        hits=2000.0,
        tokens=700.0,
    )


@pytest.fixture(scope="module")
def scanned() -> ScanResult:
    merged = (Limit("outside", "cells of 20 mm <are outside>"),)
    points = [
        point("nominal", 1.0, kind="nominal", algorithms=(MODEL, ORACLE, REFERENCE), cells=1.0, time=0.0),
        point("cells=4", 1.3, limits=merged, cells=4.0, time=0.0),
        point("time=none", 1.1, cells=1.0, time=math.inf),
        point("null test", 1.02, kind="null test", move=Move(scale=1.25), cells=1.0, time=0.0),
    ]
    return ScanResult(points=points, labels={"cells": "Cell size", "time": "Time [ns]"}, provenance={"inputs": []})


def test_each_headline_has_a_figure_with_a_panel_for_each_parameter(scanned):
    drawn = scan_figures(scanned)
    assert set(drawn) == {"jet_energy_91_resolution", "fake_energy_fraction", "two_photons_found"}
    cells, time = drawn["jet_energy_91_resolution"].axes
    assert (cells.get_xlabel(), time.get_xlabel()) == ("Cell size", "Time [ns]")
    assert [tick.get_text() for tick in cells.get_xticklabels()] == ["1", "4"]
    assert [tick.get_text() for tick in time.get_xticklabels()] == ["0", "none"]
    assert np.ptp(time.get_xticks()) == time.get_xticks()[1] > 0
    # Points that differ in the other parameter would be lone markers.
    assert {container.get_label() for container in cells.containers} == {MODEL, ORACLE}
    for figure in drawn.values():
        figure.draw_without_rendering()
    near = point("cells=1.1", 1.0, cells=1.1, time=0.0)
    (cells, _) = plot_scan(dataclasses.replace(scanned, points=[*scanned.points, near]), "fake_energy_fraction").axes
    assert cells.get_xlabel() == "Cell size (not to scale)"
    assert cells.get_xticks().tolist() == [0, 1, 2]
    assert [tick.get_text() for tick in cells.get_xticklabels()] == ["1", "1.1", "4"]


def test_points_have_paired_bars_and_doubtful_ones_are_open(scanned):
    axes = plot_scan(scanned, "fake_energy_fraction").axes[0]
    bars = [container for container in axes.containers if container.get_label() == MODEL]
    (x, y) = bars[0].lines[0].get_data()
    np.testing.assert_allclose(np.asarray(y, dtype=np.float64), [0.05, 0.065])
    np.testing.assert_allclose(np.asarray(x, dtype=np.float64), [1, 4])
    segments = bars[0].lines[2][0].get_segments()
    # All resamples of the ratio agree: there is no bar, though the values have errors.
    assert np.ptp(segments[1][:, 1]) == 0
    assert axes.patches[0].get_bbox().intervaly == pytest.approx([0.045, 0.055])
    number = scanned["cells=4"].algorithms[MODEL][KEYS[1]]
    varied = dataclasses.replace(number, replicas=number.replicas * np.linspace(0.98, 1.01, 200))
    for key, size in ((KEYS[1], 0.05), ("confusion_budget.confusion", 1.0)):
        numbers = (scanned.nominal.algorithms[MODEL][KEYS[1]], varied)
        pairs = zip(scanned.points, numbers, strict=False)
        points = [dataclasses.replace(of, algorithms={MODEL: {key: shown}}) for of, shown in pairs]
        result = dataclasses.replace(scanned, points=points)
        change = result.change(points[1], key)
        ends = plot_scan(result, key).axes[0].containers[0].lines[2][0].get_segments()[1][:, 1] - varied.value
        assert ends == pytest.approx(size * (np.array([change.low, change.high]) - change.value))
    (doubtful,) = (line for line in axes.lines if line.get_label().startswith("may be the model's"))
    np.testing.assert_allclose(np.array(doubtful.get_data(), dtype=np.float64), [[4], [0.065]])


def test_a_figure_says_why_a_change_may_be_the_models(scanned):
    figure = plot_scan(scanned, "jet_energy.91.resolution")
    assert [text.get_text() for text in figure.axes[0].texts] == ["o"]
    assert figure.axes[0].get_title(loc="left") == "s, 100 events; null test: 1.0200"
    assert "RMS_{90}" in figure.axes[0].get_ylabel()
    note = figure.get_supxlabel().replace("\n", " ")
    assert "bands: of the nominal value" in note
    assert note.endswith("may be the model's: o: the detector or the nominal one is outside of its training.")
    certain = dataclasses.replace(scanned, points=[scanned.nominal, scanned["time=none"]])
    assert "model's" not in plot_scan(certain, "jet_energy.91.resolution").get_supxlabel()
    lost = dataclasses.replace(scanned.nominal, places=np.arange(40))
    note = plot_scan(dataclasses.replace(certain, points=[lost, certain.points[1]]), KEYS[0]).get_supxlabel()
    assert note.replace("\n", " ").endswith("nominal has 40, time=none 100 (40 are the same).")
    null = point("null test", 1.02, kind="null test", cells=1.0, time=0.0)
    number = null.algorithms[MODEL][KEYS[0]]
    varied = dataclasses.replace(number, replicas=number.replicas * np.linspace(0.999, 1.001, 200))
    null.algorithms[MODEL][KEYS[0]] = varied
    failed = plot_scan(dataclasses.replace(scanned, points=[scanned.nominal, null]), KEYS[0])
    assert "null test not passed: 1.020" in failed.axes[0].get_title(loc="left")


def test_pairs_of_photons_have_the_reference_beside_them_and_signs_of_limits(scanned):
    figure = scan_figures(scanned)["two_photons_found"]
    (legend,) = figure.legends
    names = [f"{MODEL}, nominal", f"{REFERENCE}, nominal", f"{MODEL}, cells=4 (o)", f"{MODEL}, time=none"]
    assert [text.get_text() for text in legend.get_texts()] == names
    assert figure.get_supxlabel().replace("\n", " ").endswith("one is outside of its training.")


def test_the_legend_has_the_curves_of_all_panels_with_a_colour_each(scanned):
    first, large, *_ = scanned.points
    both = [
        dataclasses.replace(of, point=dataclasses.replace(of.point, name=f"{sample}{of.point.name}", **changed))
        for of in (first, large)
        for sample, detector in (("s", 0.0), ("other", 1.0))
        for changed in [{"sample": sample, "values": {"cells": of.point.values["cells"], "detector": detector}}]
    ]
    figure = plot_scan(ScanResult(points=both, labels={"cells": "Cells", "detector": "Detector"}), KEYS[0])
    # A sixth curve beside the nominal one has a used colour, and then another marker.
    many = [point(f"p{k}", 1.0, kind="point" if k else "nominal", cells=k % 2, time=k // 2) for k in range(14)]
    axes = plot_scan(ScanResult(points=many, labels={"cells": "Cells"}), KEYS[0]).axes[0]
    shown = [of for of in axes.containers if of.get_label().startswith(MODEL)]
    lines = [of.lines[0] for of in shown]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(lines) == 7
    assert len({line.get_color() for line in lines}) == 6
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert {f"{MODEL}, detector=other", f"{MODEL}, cells=4"} <= set(names)
    colors = {
        container.get_label(): container.lines[0].get_color() for axes in figure.axes for container in axes.containers
    }
    curves = [name for name in colors if name.startswith(MODEL)]
    assert len({colors[name] for name in curves}) == len(curves) == 3
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()] == ["s", "other"]
    # Detectors have no order that a line could show.
    lines = [{container.lines[0].get_linestyle() for container in axes.containers} for axes in figure.axes]
    assert lines == [{"-"}, {"None"}]


def test_the_page_is_whole_and_begins_with_the_limits(scanned):
    page = whole(scan_page(scanned, {"fake_energy_fraction": PNG}))
    assert page.index("Limits") < page.index("Results") < page.index("Figures")
    assert "cells of 20 mm &lt;are outside&gt;" in page
    assert re.search(r"<figcaption>fake energy</figcaption>", page)
    assert "http" not in page  # nothing is loaded
    assert "paired for shared events" in page


def test_a_browser_shows_all_columns_of_a_scan(scanned, open_in_browser):
    number = Number(0.999869, 0.999774, 0.999964, np.linspace(0.9, 1.1, 200))
    known = dict.fromkeys((key.replace("*", "91") for key in HEADLINES), number)
    points = [dataclasses.replace(of, algorithms=dict.fromkeys(of.algorithms, known)) for of in scanned.points]
    shown = open_in_browser(scan_page(dataclasses.replace(scanned, points=points), {}))
    assert "pairs, mass" in shown["text"]
    assert not shown["cut"]


def test_the_style_changes_no_global_state_and_figures_find_its_fonts(caplog):
    before = dict(mpl.rcParams)
    with styled():
        assert mpl.rcParams["font.size"] != before["font.size"]
    rendered(Figure(), "png")
    assert dict(mpl.rcParams) == before
    with styled():
        figure = Figure()
        figure.add_subplot().set(xlabel=r"$E_{reco}$ and $\sigma_{68}$", title="title")
    figure.savefig(io.BytesIO())
    assert not caplog.messages


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_same_content_gives_the_same_bytes_of_the_format(format, start):
    figure = Figure(layout="constrained")
    figure.add_subplot().plot([1, 2], label="PFlow")
    first, second = rendered(figure, format), rendered(figure, format)
    assert first.startswith(start)
    assert first == second
