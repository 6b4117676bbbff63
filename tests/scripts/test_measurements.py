"""What is measured beside pflow's own metrics, and the commands that measure."""

from __future__ import annotations

import os

import numpy as np
import pytest

import results
from measurements import setups
from measurements.files import REPORT, ROOT, read_json
from measurements.lost_energy import Losses
from measurements.separation import always_one, one_or_two
from pflow.io.open import read_events
from pflow.metrics.counting import CountMetrics
from pflow.metrics.match import Matches

TINY = (
    "model.reconstructor.network.width=8",
    "model.reconstructor.network.heads=1",
    "model.reconstructor.network.encoder_layers=1",
    "model.reconstructor.network.decoder_layers=1",
    "model.reconstructor.network.feedforward=8",
    "data.hit_energy_min=0.05",
    "model.reconstructor.decoding.max_particles=3",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
)


@pytest.fixture
def samples(sample_dir, tmp_path):
    """Folder with a few events under the names of the full samples."""
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "val", "test"):
        (folder / f"gamma1_{split}.root").symlink_to(sample_dir / "gamma1_val_small.root")
        (folder / f"gammasep_{split}.root").symlink_to(sample_dir / "gammasep_test_small.root")
    return folder


def test_the_worst_events_are_those_with_the_largest_share_missed_or_fake(sample_dir, photons):
    events = read_events(sample_dir / "gammasep_test_small.root", entry_stop=3)
    losses = Losses()
    along = [1, 0, 0]
    truth = photons([10.0, 20.0, 5.0], [along] * 3, [1, 1, 1])
    reco = photons([10.0, 2.0, 20.0, 7.0], [along] * 4, [2, 1, 1])
    # Event 0 has a fake of 2 of 10 GeV, event 1 is right, event 2 misses 5 and has a fake of 7 of 5 GeV.
    losses.update(events, truth, reco, Matches(truth=np.array([0, 1]), reco=np.array([0, 2]), cost=np.zeros(2)))
    found = losses.result()
    assert [(event["entry"], event["share"]) for event in found["worst"]] == [(2, 2.4), (0, 0.2)]
    assert found["missed"]["photon"] == pytest.approx(5 / 35)
    assert found["fake"]["photon"] == pytest.approx(9 / 35)


def test_narrow_pairs_are_left_out_above_30_mrad(photons):
    count = CountMetrics()
    directions = [[1, 0, 0], *([v for a in (0.02, 0.05) for v in ([1, 0, 0], [np.cos(a), np.sin(a), 0])])]
    count.update(photons([10.0] * 5, directions, [1, 2, 2]), photons([10.0] * 4, [[1, 0, 0]] * 4, [1, 1, 2]))
    found = {name: number.value for name, number in one_or_two(count).items()}
    assert found == {"separated": pytest.approx(2 / 3), "separated_above": 1.0}
    one = {name: number.value for name, number in always_one(count).items()}
    assert one == {"separated": pytest.approx(1 / 3), "separated_above": 0.5}


def test_each_row_of_the_ablation_adds_one_part():
    rows = [setups.ABLATION.setups[name] for name in ("pointing", *setups.PARTS)]
    for before, row, options in zip(rows, rows[1:], setups.PARTS.values(), strict=False):
        assert set(before.changes) - set(row.changes) == set(options)
    assert rows[-1].changes == ()
    assert '"layer"' in setups.ABLATION.setups["features"].changes[0]


def test_options_for_all_come_last_and_win(tmp_path):
    budget = {"config": "paper/v1_flags", "epochs": 2, "changes": ["a=1"], "common": ["b=2"]}
    assert setups.fit_options(budget, tmp_path)[4:] == ["--trainer.max-epochs=2", "--a=1", "--b=2"]


@pytest.mark.slow
def test_set_ups_are_trained_once_and_with_one_budget(samples, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))  # undone after the test
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    places = ["--data-dir", samples, "--output", tmp_path / "out", "--results", tmp_path]

    def run(*options: str) -> str:
        results.main([str(word) for word in ("ablation", *places, *options, "--override", *TINY)])
        return capsys.readouterr().out

    assert "pflow fit" in run("--only", "merging")
    assert "pflow" not in run("--only", "merging").replace("merging: already measured", "")
    found = read_json(tmp_path / "ablation.json")["rows"]["merging"]
    assert (found["training_events"], found["events_an_epoch"]) == (50 + 25, 2 * 8)
    assert set(found["samples"]["gamma1"]["algorithms"]) == {"model", "always_one", "classical", "oracle"}
    with pytest.raises(SystemExit, match="another budget"):
        run("--only", "merging", "--epochs", "2")


@pytest.mark.slow
def test_the_shipped_models_are_measured_with_and_without_refinement(samples, tmp_path, capsys):
    before = REPORT.read_bytes()
    options = [
        str(word) for word in ("--split", "val", "--output", tmp_path, "--data-dir", samples, "--samples", "gammasep")
    ]
    results.main(["flagship", *options])
    folder = tmp_path / "val"
    found = read_json(folder / "flagship.json")["samples"]
    assert set(found) == {"gammasep"}
    names = {"photon", "general", "oracle", "oracle_no_tracks", "classical", "always_one"}
    assert set(found["gammasep"]["algorithms"]) == names
    assert (folder / "figures" / "gammasep_two_found.png").is_file()
    results.main(["flagship", "--decoding-alone", *options])
    assert set(read_json(folder / "refinement.json")["gammasep"]) == {"photon", "general"}
    assert "| decoding alone | with refinement |" in capsys.readouterr().out
    assert REPORT.read_bytes() == before
