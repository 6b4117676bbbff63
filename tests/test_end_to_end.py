"""The whole way through the command line, as a user goes it: fit, reconstruct, evaluate on a tiny file."""

from __future__ import annotations

import json

import pytest
import uproot

from pflow.cli.main import main
from pflow.io.particles_root import read_provenance

NETWORK = {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sample_dir):
    """What `pflow fit`, `reconstruct` and `evaluate` leave behind."""
    folder = tmp_path_factory.mktemp("end_to_end")
    arguments = [f"--network.{name}={value}" for name, value in NETWORK.items()]
    fit = [
        "fit",
        "--data.train",
        str(sample_dir / "gamma1_test_small.root"),
        "--data.val",
        str(sample_dir / "gamma1_val_small.root"),
        "--data.batch_size=20",
        *arguments,
        "--model.lr=3e-3",
        "--trainer.max_epochs=2",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--output",
        str(folder / "run"),
    ]
    assert main(fit) == 0
    sample = str(sample_dir / "gamma1_val_small.root")
    reco = str(folder / "reco.root")
    assert main(["reconstruct", sample, "--checkpoint", str(folder / "run" / "best.ckpt"), "-o", reco, "-q"]) == 0
    assert main(["evaluate", reco, "--truth", sample, "-o", str(folder / "evaluation")]) == 0
    return folder


def test_fit_leaves_checkpoints_logs_and_its_configuration(folder):
    names = {path.name for path in (folder / "run").rglob("*")}
    assert {"best.ckpt", "last.ckpt", "config.yaml", "metrics.csv", "training.png", "training.pdf"} <= names


def test_logs_name_each_loss(folder):
    header = next((folder / "run").rglob("metrics.csv")).read_text().splitlines()[0].split(",")
    for loss in ("charge", "pdg", "energy", "direction", "loss"):
        assert f"val/{loss}" in header


def test_reconstruction_lines_up_with_its_input(folder, sample_dir):
    ours = uproot.open(folder / "reco.root")["events"]
    theirs = uproot.open(sample_dir / "gamma1_val_small.root")["events"]
    assert ours["event"].array().tolist() == theirs["event"].array().tolist()


def test_reconstruction_names_its_checkpoint(folder):
    provenance = read_provenance(folder / "reco.root")
    assert provenance["checkpoint"]["path"].endswith("best.ckpt")
    assert len(provenance["checkpoint"]["sha256"]) == 64


def test_evaluation_holds_the_papers_quantities_and_matched_ones(folder):
    metrics = json.loads((folder / "evaluation" / "metrics.json").read_text())
    text = json.dumps(metrics)
    for key in ("legacy", "efficiency", "fake_rate", "response_median", "angle"):
        assert key in text
    assert list((folder / "evaluation").glob("*.png"))


def test_resume_continues_from_the_last_checkpoint(folder, sample_dir, capsys):
    arguments = [f"--network.{name}={value}" for name, value in NETWORK.items()]
    again = [
        "fit",
        "--data.train",
        str(sample_dir / "gamma1_test_small.root"),
        "--data.val",
        str(sample_dir / "gamma1_val_small.root"),
        "--data.batch_size=20",
        *arguments,
        "--trainer.max_epochs=3",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--output",
        str(folder / "run"),
        "--ckpt_path",
        str(folder / "run" / "last.ckpt"),
    ]
    assert main(again) == 0
    logs = sorted((folder / "run").rglob("metrics.csv"))
    rows = [line.split(",") for line in logs[-1].read_text().splitlines()]
    epochs = {row[rows[0].index("epoch")] for row in rows[1:]}
    assert epochs - {""} == {"2"}
