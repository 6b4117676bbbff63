import dataclasses
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from pflow.metrics.evaluation import AlgorithmMetrics
from pflow.metrics.report import EvaluationResult, EvaluationSettings, document
from pflow.metrics.stats import Number
from pflow.plots.report import report_page
from pflow.plots.style import rendered

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


def report(result, figures=()) -> str:
    inputs = {"reco": {result.titles["PFlow"]: "a.root"}, "truth": ["b.root"]}
    page, outline = report_page(result, document(result, inputs=inputs), dict(figures)), Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return page


def test_the_page_loads_nothing(result):
    page = report(result, {"response": PNG})
    assert [source[:22] for source in re.findall(r'(?:src|href)="([^"]*)', page)] == ["data:image/png;base64,"]
    assert not re.search("<(script|link|iframe)", page)


def test_the_page_has_numbers_events_method_definitions_and_provenance(result):
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


def test_names_are_text_and_not_markup(result):
    evil = "<script>alert(1)</script>"
    page = report(dataclasses.replace(result, titles={"PFlow": evil, "reference": "A & B"}), {evil: PNG})
    assert "<script" not in page
    assert evil in unescape(page)
    assert "A &amp; B" in page


def test_a_browser_shows_the_page_without_errors(result, open_in_browser):
    shown = open_in_browser(report(result, {"response": rendered(Figure(), "png")}))
    assert shown["seen"] == shown["resources"] == []
    assert "7 events" in shown["text"]
