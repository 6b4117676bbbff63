from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "network.width=8",
    "network.heads=1",
    "network.encoder_layers=1",
    "network.decoder_layers=1",
    "network.feedforward=8",
    "data.hit_energy_min=0.05",
    "model.max_particles=3",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
)


@pytest.fixture(scope="module", autouse=True)
def _scripts():
    """Modules beside the scripts are found as they are when a script runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield


@pytest.fixture(scope="module")
def ablation():
    return import_module("ablation")


@pytest.fixture(scope="module")
def setups():
    return import_module("setups")


def result(energy_error: float, separated: float) -> dict[str, object]:
    """What is measured of a row; all intervals are 0.02 wide."""

    def figure(value: float) -> list[float]:
        return [value, value - 0.01, value + 0.01]

    gamma1 = dict.fromkeys(("exact", "efficiency", "angle_mean", "angle_median"), figure(0.5))
    gammasep = {"separated": figure(separated), "separated_above": [None, 0.0, 1.0]}
    one = {"model": {**gamma1, "energy_error": figure(energy_error)}}
    two = {"model": gammasep, "always_one": {"separated": figure(0.48)}}
    return {
        "parameters": 12345,
        "training_events": 70,
        "events_an_epoch": 16,
        "seconds": 90.0,
        "cpu_seconds": 60.0,
        "revision": "abc",
        "machine": {"processor": "x86_64", "threads": 1, "cores": 2, "torch": "2"},
        "samples": {
            "gamma1": {"events": 50, "events_per_second": 30.0, "lines": one},
            "gammasep": {"events": 20, "events_per_second": 30.0, "lines": two},
        },
    }


def test_each_part_of_the_flagship_is_one_change(ablation):
    parts = list(ablation.WITHOUT)
    for part in parts:
        row, before = ablation.ROWS[part], ablation.ROWS[ablation.ROWS[part].before]
        assert set(before.changes) - set(row.changes) == set(ablation.WITHOUT[part])
        assert row.config == before.config == "flagship_photon"
    assert ablation.ROWS[parts[-1]].changes == ()
    assert list(ablation.ROWS)[-1] == parts[-1]


def test_features_are_the_flagships_on_version_1(ablation):
    row = ablation.ROWS["features"]
    (change,) = row.changes
    assert row.config == ablation.ROWS[row.before].config == "paper_v1_flags"
    assert '"layer"' in change


def test_what_is_common_wins_over_rows_and_overrides_over_both(ablation):
    budget = {"epochs": 2, "common": ["network.width=64", "network.width=8"]}
    options = ablation.fit_options(ablation.ROWS["features"], budget)
    assert options[1] == "--trainer.max_epochs=2"
    assert options[2].startswith("--data.hit_features=")
    assert options[3:] == ["--network.width=64", "--network.width=8"]


def test_a_change_counts_where_intervals_are_apart(ablation):
    columns = {column.key: column for column in ablation.SHOWN}
    less, more = columns["energy_error"], columns["separated"]
    low, high = [0.1, 0.05, 0.15], [0.3, 0.25, 0.35]
    assert ablation.compare(less, high, low) == ablation.compare(more, low, high) == "better"
    assert ablation.compare(less, low, high) == ablation.compare(more, high, low) == "worse"
    assert ablation.compare(less, low, [0.2, 0.15, 0.25]) is None
    assert ablation.compare(less, low, [None, None, None]) is None


def test_the_section_has_what_is_measured_and_names_what_is_not(ablation):
    budget = {"epochs": 1, "common": [*ablation.COMMON, "network.width=8"]}
    rows = {"paper_v1": result(0.2, 0.5), "paper_v2": result(0.1, 0.4), "features": result(0.2, 0.5)}
    text = ablation.section({"budget": budget, "rows": rows})
    assert "No result: `incidence`, `proxies`, `coverage`, `augmentation`, `merging`." in text
    assert "--override network.width=8" in text
    assert "16 events seen (1 epoch(s) with 16 of the 70 events" in text
    lines = text.splitlines()
    assert sum(line.startswith("| paper v2 |") for line in lines) == 2
    (always_one,) = (line for line in lines if line.startswith("| always one photon |"))
    assert always_one.count(" - ") == len(ablation.SHOWN) - 1
    (moved,) = (line for line in lines if line.startswith("- **paper v2** after"))
    better, worse = moved.split(" worse: ")
    assert "|/E [%], 20.0 ±1.0 to 10.00 ±1.00" in better
    assert "told right [%], 50.0 ±1.0 to 40.0 ±1.0" in worse
    assert "- **v1 + features** after paper v1: nothing." in lines


def test_events_seen_are_those_of_the_steps_that_were_made(setups):
    provenance = {"epoch": 1, "step": 20, "batch_size": 8, "n_events": 100}
    assert setups.events_an_epoch(provenance) == 80
    assert setups.events_an_epoch({**provenance, "step": 26}) == 100


def test_what_was_measured_is_not_trained_again_and_not_mixed_with_another_budget(setups, tmp_path, monkeypatch):
    monkeypatch.setattr(setups, "pflow", lambda *arguments: pytest.fail("trains"))
    (tmp_path / "result.json").write_text(json.dumps({"budget": {"epochs": 1}}))
    setups.measure("row", tmp_path, {"epochs": 1}, options=[], data=tmp_path, force=False)
    with pytest.raises(SystemExit, match="another budget"):
        setups.measure("row", tmp_path, {"epochs": 2}, options=[], data=tmp_path, force=False)
    assert setups.collect({"row": tmp_path}, {"row": {"epochs": 2}}, tmp_path) == {}


@pytest.mark.slow
def test_rows_are_measured_one_by_one(ablation, sample_dir, tmp_path, monkeypatch, capsys):
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val", "test"):
        (data / f"gamma1_{split}.root").symlink_to(sample_dir / "gamma1_val_small.root")
        (data / f"gammasep_{split}.root").symlink_to(sample_dir / "gammasep_test_small.root")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the script sets it; undone after the test
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*options: str) -> str:
        places = ["--out", tmp_path / "out", "--json", tmp_path / "ablation.json", "--report", tmp_path / "RESULTS.md"]
        words = ["ablation.py", "--data", data, *places, "--override", *TINY, *options]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        ablation.main()
        return capsys.readouterr().out

    assert "pflow fit" in run("--rows", "incidence")
    printed = run("--rows", "incidence", "merging")
    assert "incidence: already measured" in printed
    assert printed.count("pflow fit") == 1
    rows = json.loads((tmp_path / "ablation.json").read_text())["rows"]
    assert list(rows) == ["incidence", "merging"]
    assert rows["merging"]["training_events"] == 50 + 25
    assert rows["merging"]["events_an_epoch"] == 2 * 8
    assert set(rows["merging"]["samples"]["gamma1"]["lines"]) == {"model", "always_one", "classical", "limit"}
    assert "| + merging |" in (tmp_path / "RESULTS.md").read_text()
