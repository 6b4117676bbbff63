import dataclasses
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from pflow.metrics.evaluation import AlgorithmMetrics, EvaluationResult, EvaluationSettings
from pflow.metrics.report import document
from pflow.metrics.stats import Number
from pflow.plots.report_page import report_page
from pflow.plots.style import rendered

PNG = b"\x89PNG"
VOID = {"meta", "img"}


class Outline(HTMLParser):
    """Collects text, tags and references, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


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


def parsed(text: str) -> Outline:
    outline = Outline()
    outline.feed(text)
    outline.close()
    assert outline.open == []
    return outline


def report(result, figures=()) -> str:
    return report_page(
        result, document(result, inputs={"reco": {"PFlow": "a.root"}, "truth": ["b.root"]}), dict(figures)
    )


def test_the_page_loads_nothing(result):
    outline = parsed(report(result, {"response": PNG}))
    assert len(outline.sources) == 1
    assert all(source.startswith("data:image/png;base64,") for source in outline.sources)
    assert not {"script", "link", "iframe"} & set(outline.tags)


def test_the_page_has_numbers_events_method_definitions_and_provenance(result):
    result.algorithms["PFlow"]["count"]["exact_fraction"] = Number(0.934, 0.922, 0.946)
    text = parsed(report(result)).text
    for part in ("0.934 ±0.012", "7 events", "rule 'stable'", "class.*.efficiency", "a.root", "Classic"):
        assert part in text


def test_names_are_text_and_not_markup(result):
    evil = "<script>alert(1)</script>"
    changed = dataclasses.replace(result, titles={"PFlow": evil, "reference": "A & B"})
    outline = parsed(report_page(changed, document(changed, inputs={"reco": {"PFlow": evil}}), {evil: PNG}))
    assert "script" not in outline.tags
    assert evil in outline.text
    assert "A & B" in outline.text


def test_a_browser_shows_the_page_without_errors(result, open_in_browser):
    shown = open_in_browser(report(result, {"response": rendered(Figure(), "png")}))
    assert shown["seen"] == shown["resources"] == []
    assert "7 events" in shown["text"]
