"""Results as rows of results.csv, the tables in the documents that are made of them, and the commands that measure."""

import math
from pathlib import Path

import pytest

import results
from measurements import rows, shipped, tables
from measurements.rows import CSV, REPORT, ROOT, Row, read_rows, replace_table, write_rows
from pflow.config import shipped_models, weights_dir
from pflow.io.flat import write_events
from pflow.io.open import read_events

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_the_documents_hold_the_tables_of_the_results(monkeypatch):
    written = {}
    monkeypatch.setattr(tables, "fill", lambda path, tables: written.update({path: tables}))
    tables.write_tables()
    cards = {weights_dir() / name / "README.md" for name in shipped_models()}
    assert set(written) == {REPORT, ROOT / "README.md", *cards}
    for path, bodies in written.items():
        text = path.read_text("utf-8")
        for name, body in bodies.items():
            assert replace_table(text, name, body) == text, f"{path}, {name}: run python scripts/results.py tables"


def test_every_figure_of_the_report_and_every_row_of_a_sample_is_there():
    links = [line.rpartition("(")[2].rstrip(")") for line in REPORT.read_text("utf-8").splitlines() if line[:2] == "!["]
    drawn = {name for of_model in shipped.FIGURES.values() for name in of_model}
    drawn |= {f"radius_field{photons}_{gev}" for photons in ("", "_photons") for gev in (91, 200)}  # of `pflow.scan`
    assert {ROOT / link for link in links} == {rows.RESULTS / "figures" / f"{name}.png" for name in drawn}
    assert all((ROOT / link).is_file() for link in links)
    measured = {(model, sample.name) for verb in shipped.SAMPLES.values() for sample in verb for model in sample.models}
    assert measured <= {(row.model, row.sample) for row in read_rows()}


def test_rows_come_back_and_take_the_places_of_those_before(tmp_path):
    path = tmp_path / "results.csv"
    first, second = Row("m", "s", "a, b [%]", 1.5, 1.0, 2.0, 3.0, 4.0), Row("m", "s", "c", 2.0)
    write_rows([first, second], path)
    write_rows([Row("m", "s", "a, b [%]", 7.25)], path)
    rows = read_rows(path)
    assert [(row.key, row.value) for row in rows] == [(first.key, 7.25), (second.key, 2.0)]
    assert math.isnan(rows[0].reference)
    head = "model,sample,quantity,value,low,high,reference,oracle,difference,difference_low,difference_high"
    assert path.read_text().splitlines()[0] == head
    write_rows(
        [Row("m", "s", "d", 1.0, difference=-0.5, difference_low=-0.75, difference_high=-0.25)], path, whole=True
    )
    assert [(row.quantity, row.difference_text) for row in read_rows(path)] == [("d", "-0.50 ±0.25")]
    assert Row("m", "s", "d", 93.2, 93.2, 93.2).text == "93.2"  # all seeds agree
    of_one_event = Row("m", "s", "d", 83.6, 78.0, 89.0, reference=86.9, difference=-3.27869)
    assert (of_one_event.text, of_one_event.difference_text) == ("83.6 ±5.5", "-3.3")


@pytest.mark.parametrize(
    "text", ["<!-- a: begin -->\ntext", "text\n<!-- a: end -->", "<!-- a: end --><!-- a: begin -->"]
)
def test_a_table_is_replaced_and_half_a_place_for_it_is_an_error(text):
    with pytest.raises(ValueError, match="a: begin"):
        replace_table(text, "a", "new")
    text = "before <!-- a: begin -->\nold\n<!-- a: end --> after"
    assert replace_table(text, "a", "new") == text.replace("old", "new")


@pytest.fixture(scope="module")
def sample(sample_dir, tmp_path_factory) -> Path:
    """Of few events with one or two photons."""
    path: Path = tmp_path_factory.mktemp("results") / "few.root"
    write_events(path, read_events(sample_dir / "gammasep_test_small.root", entry_stop=4))
    return path


@pytest.mark.slow
def test_the_shipped_models_are_measured(sample, tmp_path):
    (tmp_path / "g4").mkdir()
    (tmp_path / "g4" / "gammasep_val.root").symlink_to(sample)
    before = CSV.read_bytes(), REPORT.read_bytes()
    results.main(["flagship", "--split", "val", "--data-dir", str(tmp_path), "--output", str(tmp_path)])
    rows = read_rows(tmp_path / "val" / "results.csv")
    assert {row.model for row in rows} == {shipped.PHOTON, shipped.TRANSLATION, shipped.GENERAL}
    counts = [row for row in rows if "right number" in row.quantity]
    assert all(row.low <= row.value <= row.high and row.oracle == 100 for row in counts)
    assert {row.quantity for row in rows} >= {
        "pairs: opening angle / true, median",
        "pairs: mass / true, resolution_68",
    }
    assert (tmp_path / "val" / "figures" / "gammasep_two_found.png").is_file()
    assert (CSV.read_bytes(), REPORT.read_bytes()) == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:in . of 4 events less than")  # after one step of training
@pytest.mark.usefixtures("no_figures")
def test_the_papers_set_ups_are_trained_and_measured_over_the_seeds(sample, tmp_path, capsys):
    for name in ("gamma1", "gammasep"):
        for split in ("train", "val", "test"):
            (tmp_path / f"{name}_{split}.root").symlink_to(sample)
    before = CSV.read_bytes(), REPORT.read_bytes()
    options = ["--variants", "v1_flags", "--seeds", "1", "2", "--epochs", "1", "--data-dir", str(tmp_path)]
    results.main(["paper", *options, "--models", "one=ild-g4-photon", "--output", str(tmp_path / "runs")])
    lines = capsys.readouterr().out.strip().splitlines()[-6:]
    assert [line.split(" | ")[:3] for line in lines] == [
        [f"| {name}", sample, seeds]
        for sample in ("gamma1", "gammasep")
        for name, seeds in (("v1_flags, 1 epochs", "2"), ("one", "-"), ("ild-g4-translation, all stages", "-"))
    ]
    assert ["±" in line for line in lines] == [True, False, False] * 2
    assert (CSV.read_bytes(), REPORT.read_bytes()) == before
