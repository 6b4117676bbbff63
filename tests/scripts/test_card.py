from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from pflow.physics.pdg import CLASSES

ROOT = Path(__file__).resolve().parents[2]
HEADER = {
    "version": "1.2.3",
    "tokeniser": {
        "recipe": {
            "rule": "stable",
            "e_min": 0.1,
            "order": "energy",
            "hit_features": ["log_energy", "x"],
            "track_features": [],
            "hit_energy_min": 0.0,
            "coarse": False,
            "merge": {"ecal_mm": 10.0, "hcal_mm": 60.0, "layers": 5},
        },
        "detector": {"name": "ild_g4", "b_field": 3.5},
        "pdg": {"codes": [22]},
    },
    "network": {"architecture": "pointing", "width": 96},
    "loss": {"weights": {"energy": 0.3}},
    "provenance": {
        "train": ["gamma1_train.root"],
        "n_events": 4250,
        "batch_size": 16,
        "lr": 0.0015,
        "schedule": "cosine",
        "weight_decay": 0.01,
        "ema_decay": 0.998,
        "seed": 1,
        "precision": "32-true",
        "step": 454,
        "torch": "2.13.0",
    },
    "sha256": "ab" * 32,
}
SUMMARY = {"wall_s": 5400, "parts": 1, "steps": 6810, "device": "2 CPU cores", "threads": 1}


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.fixture
def card():
    return import_module("flagship.card")


def line(angle: float) -> dict:
    reco_classes = [*CLASSES, "missed"]
    counts = [[0] * len(reco_classes) for _ in CLASSES]
    counts[CLASSES.index("photon")][-1] = 3
    return {
        "angle": {"mean_deg": angle, "mean_deg_interval": [angle - 0.002, angle + 0.002]},
        "confusion": {"counts": counts, "reco_classes": reco_classes},
        "extra": {"losses": {what: dict.fromkeys(CLASSES, 0.125) for what in ("missed", "fake")}},
    }


@pytest.fixture
def results() -> dict:
    about = {"source": "toy", "sha256": HEADER["sha256"], "parameters": 577448}
    return {
        "split": "test",
        "models": {"photon": {**about, "reads_tracks": False}, "general": {**about, "reads_tracks": True}},
        "samples": {
            "gamma1": {
                "n_events": 500,
                "settings": {"truth_rule": "stable"},
                "models": ["photon", "general"],
                "lines": {
                    "photon": line(0.016),
                    "general": line(0.033),
                    "classical": line(0.044),
                    "limit": line(0.011),
                    "limit_no_tracks": line(0.014),
                },
            },
            "zqq": {"n_events": 6, "settings": {"truth_rule": "stable"}, "models": ["general"], "lines": {}},
        },
    }


def test_the_training_is_what_the_weights_say(card):
    text = card.training_text(HEADER, SUMMARY, parameters=577448)
    for part in (
        "| training events | 4,250 |",
        "| classes | PDG code 22 |",
        "cells of 10 mm (ECAL) and 60 mm (HCAL), 5 layers deep",
        "| features of a track token | no tracks are read |",
        "| network | `pointing`, 577,448 parameters: width 96 |",
        "6,810 steps in 90 minutes on 2 CPU cores, 1 thread |",
    ):
        assert part in text


def test_without_a_note_of_the_time_nothing_is_said_of_it(card):
    assert "minutes" not in card.training_text(HEADER, {}, parameters=1)


def test_a_card_has_the_results_of_its_own_model_alone(card, results):
    text = card.results_text(results, "photon")
    assert "| gamma1 | angle, mean [deg] | 0.0160 ±0.0020 | 0.0440 ±0.0020 | 0.0140 ±0.0020 |" in text
    assert "| gamma1 | photon model | missed | 12.50% |" in text
    assert "3 of 3 targets of class photon missed" in text
    assert "general model" not in text
    assert "zqq" not in text


def test_a_model_with_tracks_is_beside_the_limit_with_tracks(card, results):
    del results["samples"]["zqq"]
    text = card.results_text(results, "general")
    assert "| 0.0330 ±0.0020 | 0.0440 ±0.0020 | 0.0110 ±0.0020 |" in text


@pytest.mark.parametrize("name", ["ild-g4-photon", "ild-g4-general"])
def test_the_cards_have_both_sections_and_keep_all_else(card, name):
    before = (ROOT / "pflow" / "weights" / name / "README.md").read_text("utf-8")
    after = card.card(before, training="how it was trained", results="what it finds")
    assert [after.count(f"<!-- {part}: begin -->") for part in ("training", "results")] == [1, 1]
    assert after.index("how it was trained") < after.index("what it finds") < after.index("## Limits")
    assert card.card(after, training="x", results="y") == card.card(before, training="x", results="y")


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """The script, and the folder of weights that it believes to come with pflow."""
    script = import_module("flagship_results")
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "model.json").write_text(json.dumps(HEADER))
    (folder / "README.md").write_text("# toy\n")
    monkeypatch.setattr(script, "weights_dir", lambda: tmp_path)
    monkeypatch.setattr(script, "shipped_models", lambda: ["toy"])
    return script, folder


def test_the_card_of_a_shipped_model_is_filled(shipped, results):
    script, folder = shipped
    del results["models"]["general"]
    script.fill_cards(results)
    text = (folder / "README.md").read_text()
    assert text.startswith("# toy\n")
    assert "| training events | 4,250 |" in text
    assert "0.0160 ±0.0020" in text


def test_results_of_other_weights_do_not_get_into_a_card(shipped, results, capsys):
    script, folder = shipped
    del results["models"]["general"]
    results["models"]["photon"]["sha256"] = "cd" * 32
    script.fill_cards(results)
    assert (folder / "README.md").read_text() == "# toy\n"
    assert "left alone, the results are of other weights" in capsys.readouterr().out
