import dataclasses
import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

import pflow
from pflow.metrics.report import DEFINITIONS, SCHEMA, TABLE_ROWS, document, number_text, pattern_of, table
from pflow.metrics.stats import Number, Series, leaves

TRUTH = [[(22, 10.0, 90, 0), (211, 5.0, 40, 50)], [(22, 20.0, 90, 0)], [], [(22, 9.0, 90, 0), (22, 5.0, 90, 1)]]
RECO = [[(22, 10.5, 90, 0)], [(22, 20.0, 90, 0), (130, 1.0, 20, 30)], [], [(22, 9.0, 90, 0), (22, 4.0, 90, 1)]]


@pytest.fixture(scope="module")
def result(make_records, make_events, make_reco):
    events = make_events(TRUTH, reference=make_records(TRUTH), reference_name="Classic")
    evaluated = pflow.evaluate(make_reco(RECO), events, oracle=False)
    return dataclasses.replace(evaluated, n_bad_input=1, n_max_particles=2)


def printed(result) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(table(result))
    return " ".join(console.file.getvalue().split())


def test_numbers_stay_whole_in_80_columns(result):
    """Four algorithms: their errors are in units of the last digit, and labels are wrapped."""
    trees = dict.fromkeys(("PFlow", "another", "oracle", "pandora"), result.algorithms["PFlow"])
    console = Console(file=io.StringIO(), width=80)
    console.print(table(dataclasses.replace(result, algorithms=trees), width=console.width))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith(" efficiency  ")).split()[-5:-1]  # without the difference
    assert all(re.fullmatch(r"0\.\d+\([+-]?\d+\)", number) for number in row)


def test_the_document_is_the_result_as_json_with_stable_keys(result):
    content = json.loads(json.dumps(document(result, inputs={"reco": "a.root"}), allow_nan=False))
    assert (content["schema"], content["inputs"]) == (SCHEMA, {"reco": "a.root"})
    assert content["settings"]["truth_rule"] == "stable"
    assert content["visible_energy"] == result.energy != content["energy"]
    assert "angle/0.1 rad" in content["settings"]["matching"]["definition"]
    assert [content[key] for key in ("n_events_read", "n_bad_input", "n_max_particles")] == [4, 1, 2]
    assert {"pflow", "numpy", "python"} <= set(content["versions"])
    assert content["definitions"]["angle.mean_deg"]["unit"] == "deg"
    assert content["class"]["muon"]["efficiency"] is None
    assert content["class"]["muon"]["efficiency_interval"] == [0.0, 1.0]
    assert set(result.algorithms["PFlow"]) < set(content)
    assert content["class"]["photon"]["efficiency"] == 1.0
    assert content["class"]["charged_hadron"]["efficiency"] == 0.0
    assert content["reference"]["count"]["exact_fraction"] == 1.0
    change = content["differences"]
    assert change["to"] == "reference"
    assert change["PFlow"]["count.exact_fraction"] == content["count"]["exact_fraction"] - 1
    assert len(change["PFlow"]["fake_energy_fraction_interval"]) == 2
    assert (content["sample"], content["detector"]) == ("truth.root", "ild_g4")
    binned = content["binned"]["energy"]
    assert len(binned["all"]["efficiency"]) == len(binned["edges"]) - 1
    assert np.shape(binned["all"]["efficiency_interval"]) == (len(binned["edges"]) - 1, 2)


def definition_of(key: str) -> str:
    pattern = pattern_of(key, DEFINITIONS)
    assert pattern, f"pflow.metrics.report.DEFINITIONS has no definition of '{key}'"
    return DEFINITIONS[pattern]


def test_numbers_have_definitions_and_definitions_numbers(result):
    keys = [key for key, content in leaves(result.algorithms["PFlow"]) if isinstance(content, Number | Series)]
    used = {definition_of(key) for key in keys}
    of_samples = ("jets.", "jet_energy.", "taus.", "hadronic_mass.", "confusion_budget.")
    optional = {text for keys, text in DEFINITIONS.items() if keys.startswith(of_samples)}
    assert used | optional == set(DEFINITIONS.values())
    assert all(definition_of(key) for key in TABLE_ROWS)


@pytest.mark.parametrize("has_jets", [True, False])
def test_the_table_says_that_jets_are_left_out(result, has_jets):
    algorithms = {name: {key: tree[key] for key in tree if key != "jets"} for name, tree in result.algorithms.items()}
    algorithms["PFlow"] |= {"jets": {}} if has_jets else {}
    text = printed(dataclasses.replace(result, algorithms=algorithms))
    assert ("Jets are left out: fastjet is not installed (pip install 'pflow[jets]')" in text) is not has_jets


def test_table_shows_algorithms_numbers_and_settings(result):
    text = printed(result)
    for part in (
        "PFlow",
        "Classic",
        "exact count",
        "angle, mean [deg]",
        "photon: efficiency",
        "4 events, 1 of them left out (bad input), 2 stopped at the maximum number of particles",
        "truth.root, ild_g4, 0 to 20 GeV",
        "rule 'stable', energy above 0.1 GeV",
        "above cost 3",
        "Efficiency: matches of cost at most 0.5; loose efficiency, fakes and all else: 3.",
        "PFlow - Classic",
        "exact count │ 0.50 ±0.31 │ 1.00 -0.37 │ -0.50 ±0.30",
    ):
        assert part in text
    assert "muon" not in text  # no algorithm has a number


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(0.0, 0.0, 0.12), "0.00 +0.12"),
        (Number(0.5, math.nan, math.nan), "0.5000"),
        (Number(0.0, 0.0, 0.0), "0.0000 ±0.0000"),
        (Number(math.nan, 0.0, 1.0), "-"),
        (Number(1234.6, 1134.6, 1334.6), "1235 ±100"),
    ],
)
def test_numbers_have_two_digits_of_their_error(number, text):
    assert number_text(number) == text
