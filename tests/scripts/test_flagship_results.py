from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from pflow.checkpoint.format import KEY, pack_header
from pflow.event.events import Events
from pflow.io.open import read_events
from pflow.metrics.counting import CountMetrics
from pflow.metrics.match import Matches
from pflow.metrics.number import Number
from pflow.model.api import build_network
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser

ROOT = Path(__file__).resolve().parents[2]
NETWORK = {"width": 8, "heads": 1, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 8}


@pytest.fixture(scope="module", autouse=True)
def _scripts():
    """Modules beside the scripts are found as they are when a script runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield


@pytest.fixture(scope="module")
def targets():
    return import_module("flagship.targets")


def number(value: float, error: float = 0.0) -> Number:
    return Number(value, value - error, value + error)


def test_an_upper_bound_is_met_at_the_bound_itself(targets):
    goals = (targets.Goal(at_most=True, bound=3.5),)
    assert targets.judge(goals, number(3.5), number(7.0))[0] is True
    assert targets.judge(goals, number(3.6), number(7.0))[0] is False


def test_an_answer_is_open_where_the_bound_lies_within_the_error(targets):
    goals = (targets.Goal(at_most=False, bound=95.0),)
    assert targets.judge(goals, number(95.5, 0.6), number(90.0)) == (True, True)
    assert targets.judge(goals, number(95.5, 0.4), number(90.0)) == (True, False)


def test_better_than_pandora_is_against_its_figure_and_its_error(targets):
    assert targets.judge((targets.LESS,), number(4.0, 0.1), number(4.3, 0.1)) == (True, False)
    assert targets.judge((targets.LESS,), number(4.0, 0.2), number(4.3, 0.2)) == (True, True)
    assert targets.judge((targets.MORE,), number(4.3), number(4.3)) == (False, True)


def test_all_goals_must_be_met_and_a_clear_miss_settles_it(targets):
    goals = (targets.MORE, targets.Goal(at_most=False, bound=95.0))
    assert targets.judge(goals, number(96.0), number(90.0)) == (True, False)
    assert targets.judge(goals, number(90.5, 0.6), number(90.0, 0.6)) == (False, False)


def test_no_verdict_without_a_target_or_without_a_number(targets):
    assert targets.judge((), number(1.0), number(1.0)) == (None, False)
    assert targets.judge((targets.MORE,), Number.undefined(), number(1.0)) == (None, False)


def test_a_number_comes_back_from_plain_data_with_its_interval(targets):
    tree = {"angle": {"mean_deg": 0.5, "mean_deg_interval": [0.4, None], "median_deg": None}}
    found = targets.number(tree, "angle.mean_deg")
    assert (found.value, found.low) == (0.5, 0.4)
    assert np.isnan(found.high)
    assert np.isnan(targets.number(tree, "angle.median_deg").value)
    assert np.isnan(targets.number(None, "angle.mean_deg").value)


def test_every_row_is_of_a_sample_that_is_measured(targets):
    assert {row.sample for row in targets.ROWS} == {sample.name for sample in import_module("flagship.samples").SAMPLES}


@pytest.fixture(scope="module")
def three_events(sample_dir) -> Events:
    return read_events(sample_dir / "gammasep_test_small.root", entry_stop=3)


def test_the_worst_events_are_those_with_the_largest_share_missed_or_fake(three_events, photons):
    losses = import_module("flagship.losses").Losses()
    along = [1, 0, 0]
    truth = photons([10.0, 20.0, 5.0], [along] * 3, [1, 1, 1])
    reco = photons([10.0, 2.0, 20.0, 7.0], [along] * 4, [2, 1, 1])
    # Event 0 has a fake of 2 of 10 GeV, event 1 is right, event 2 misses 5 and invents 7 of 5 GeV.
    losses.update(three_events, truth, reco, Matches(truth=np.array([0, 1]), reco=np.array([0, 2]), cost=np.zeros(2)))
    result = losses.result()
    assert [(event["entry"], event["share"]) for event in result["worst"]] == [(2, 2.4), (0, 0.2)]
    assert result["missed"]["photon"] == pytest.approx(5 / 35)
    assert result["fake"]["photon"] == pytest.approx(9 / 35)


def test_pairs_below_30_mrad_are_left_out_above_it(photons):
    separation = import_module("separation")
    count = CountMetrics()
    opening = [0.02, 0.05]
    directions = [[1, 0, 0], *([v for a in opening for v in ([1, 0, 0], [np.cos(a), np.sin(a), 0])])]
    truth = photons([10.0] * 5, directions, [1, 2, 2])
    count.update(truth, photons([10.0] * 4, [[1, 0, 0]] * 4, [1, 1, 2]))
    assert {name: n.value for name, n in separation.told_apart(count).items()} == {
        "separated": pytest.approx(2 / 3),
        "separated_above": 1.0,
    }
    assert {name: n.value for name, n in separation.always_one(count).items()} == {
        "separated": pytest.approx(1 / 3),
        "separated_above": 0.5,
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, sample_dir) -> Path:
    tokeniser = Tokeniser.fit([read_events(sample_dir / "multi_test_small.root", entry_stop=20)], Recipe())
    torch.manual_seed(7)
    network = build_network(NETWORK, tokeniser.sizes)
    header = pack_header(tokeniser=tokeniser, network=NETWORK, loss={}, max_particles=3, provenance={}, version="0")
    weights = {f"network.{name}": value for name, value in network.state_dict().items()}
    path = tmp_path_factory.mktemp("flagship") / "random.ckpt"
    torch.save({KEY: header, "state_dict": weights}, path)
    return path


@pytest.mark.slow
def test_one_command_measures_and_keeps_reconstructions(checkpoint, sample_dir, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("gammasep", "zqq"):
        (data / f"{name}_val.root").symlink_to(sample_dir / f"{name}_test_small.root")
    before = (ROOT / "RESULTS.md").read_bytes()

    def run(*options: object) -> str:
        words = ("flagship_results.py", "--val", "--out", tmp_path, *options)
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        import_module("flagship_results").main()
        return capsys.readouterr().out

    options = ("--photon", checkpoint, "--general", checkpoint, "--data", data, "--limit-events", 6)
    printed = run(*options)
    assert "gamma1: no val file" in printed
    assert "6 events to" in printed
    folder = tmp_path / "val_6"
    results = json.loads((folder / "flagship.json").read_text())
    assert set(results["samples"]) == {"gammasep", "zqq"}
    assert set(results["samples"]["gammasep"]["lines"]) == {
        *("photon", "general", "limit", "limit_no_tracks", "classical")
    }
    report = (folder / "RESULTS.md").read_text()
    assert "Not measured: `gamma1`, `single`, `multi`, `tau10`." in report
    assert "there are no pulls to check" in report
    for link in [line.rpartition("(")[2].rstrip(")") for line in report.splitlines() if line.startswith("![")]:
        assert (folder / link).is_file(), link

    assert "events to" not in run(*options)
    (folder / "RESULTS.md").unlink()
    run("--only-report", "--limit-events", 6)
    assert (folder / "RESULTS.md").read_text() == report
    assert (ROOT / "RESULTS.md").read_bytes() == before
