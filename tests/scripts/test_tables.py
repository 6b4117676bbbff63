"""The tables in the documents are those of the numbers."""

from __future__ import annotations

import pytest

from measurements.cards import fill_cards, training_table
from measurements.files import REPORT, RESULTS, ROOT, number, read_json
from measurements.markdown import replace_table
from measurements.quantities import QUANTITIES, SAMPLES, Quantity, judge
from measurements.tables import report_tables, short_table
from pflow.checkpoint.load import read_checkpoint
from pflow.metrics.stats import Number


@pytest.fixture(scope="module")
def flagship():
    return read_json(RESULTS / "flagship.json")


def around(value: float, error: float = 0.0) -> Number:
    return Number(value, value - error, value + error)


def test_the_report_holds_the_tables_of_the_results():
    text = REPORT.read_text("utf-8")
    for name, body in report_tables(RESULTS).items():
        assert replace_table(text, name, body) == text, f"{name}: run python scripts/results.py tables"


def test_every_figure_of_the_report_is_there():
    links = [line.rpartition("(")[2].rstrip(")") for line in REPORT.read_text("utf-8").splitlines() if line[:2] == "!["]
    assert {ROOT / link for link in links} == set((RESULTS / "figures").glob("*.png"))


def test_the_readme_holds_the_short_table(flagship):
    text = (ROOT / "README.md").read_text("utf-8")
    assert replace_table(text, "results", short_table(flagship)) == text


def test_the_cards_hold_their_tables(flagship, monkeypatch):
    written = {}
    monkeypatch.setattr("measurements.cards.fill", lambda path, tables: written.update({path: tables}))
    fill_cards(flagship)
    assert {path.parent.name for path in written} == {"ild-g4-photon", "ild-g4-general"}
    for path, tables in written.items():
        text = path.read_text("utf-8")
        for name, body in tables.items():
            assert replace_table(text, name, body) == text, f"{path}, {name}: run python scripts/results.py tables"


def test_results_of_other_weights_do_not_get_into_a_card(flagship, monkeypatch, capsys):
    monkeypatch.setattr("measurements.cards.fill", lambda *_: pytest.fail("writes"))
    other = {role: {**about, "sha256": "cd" * 32} for role, about in flagship["models"].items()}
    fill_cards({**flagship, "models": other})
    assert capsys.readouterr().out.count("left alone, the results are of other weights") == 2


def test_without_a_note_of_the_time_a_card_says_nothing_of_it():
    header = read_checkpoint("ild-g4-photon").header
    assert "minutes" not in training_table(header, {}, parameters=1)


@pytest.mark.parametrize(
    "text", ["<!-- a: begin -->\ntext", "text\n<!-- a: end -->", "<!-- a: end --><!-- a: begin -->"]
)
def test_half_a_place_for_a_table_is_an_error(text):
    with pytest.raises(ValueError, match="a: begin"):
        replace_table(text, "a", "new")


def test_a_table_is_replaced_and_the_rest_is_kept():
    text = "before <!-- a: begin -->\nold\n<!-- a: end --> after"
    assert replace_table(text, "a", "new") == text.replace("old", "new")


def test_every_quantity_is_of_a_sample_that_is_measured():
    assert {quantity.sample for quantity in QUANTITIES} == {sample.name for sample in SAMPLES}


def test_a_number_comes_back_from_plain_data_with_its_interval():
    tree = {"angle": {"mean_deg": 0.5, "mean_deg_interval": [0.4, None], "median_deg": None}}
    found = number(tree, "angle.mean_deg")
    assert (found.value, found.low, found.high != found.high) == (0.5, 0.4, True)
    for undefined in (number(tree, "angle.median_deg"), number(None, "angle.mean_deg")):
        assert undefined.value != undefined.value


AT_MOST = Quantity("s", "t", "k", bound=3.5)
AT_LEAST = Quantity("s", "t", "k", better="more", bound=95.0)
LESS = Quantity("s", "t", "k", beat_pandora=True)
MORE = Quantity("s", "t", "k", better="more", beat_pandora=True)
BOTH = Quantity("s", "t", "k", better="more", bound=95.0, beat_pandora=True)


@pytest.mark.parametrize(
    ("quantity", "ours", "pandora", "answer"),
    [
        (AT_MOST, around(3.5), around(7.0), "yes (open)"),
        (AT_MOST, around(3.6), around(7.0), "no"),
        (AT_LEAST, around(95.5, 0.6), around(90.0), "yes (open)"),
        (AT_LEAST, around(95.5, 0.4), around(90.0), "yes"),
        (LESS, around(4.0, 0.1), around(4.3, 0.1), "yes"),
        (LESS, around(4.0, 0.2), around(4.3, 0.2), "yes (open)"),
        (MORE, around(4.3), around(4.3), "no (open)"),
        (BOTH, around(96.0), around(90.0), "yes"),
        (BOTH, around(90.5, 0.6), around(90.0, 0.6), "no"),
        (Quantity("s", "t", "k"), around(1.0), around(1.0), "-"),
        (MORE, Number.undefined(), around(1.0), "-"),
    ],
)
def test_a_target_is_met_missed_or_open(quantity, ours, pandora, answer):
    assert judge(quantity, ours, pandora) == answer
