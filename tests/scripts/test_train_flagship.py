from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from pflow.checkpoint.format import KEY, pack_header
from pflow.io.open import read_events
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("gamma1", "gammasep", "single", "multi", "zqq")

PFLOW = """\
#!/bin/sh
set -e
echo "$@" >> calls
while [ $# -gt 0 ]; do
    case "$1" in
        fit | calibrate) verb="$1" ;;
        --output) out="$2" ;;
    esac
    shift
done
mkdir -p "$out"
if [ "$verb" = calibrate ]; then
    echo new > "$out/model.safetensors"
    echo new > "$out/model.json"
else
    touch "$out/last.ckpt"
    [ ! -f interrupted ]
fi
"""
"""In place of pflow: notes how it was called, and leaves what it would."""


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose pflow, training summary and environment are stand-ins, and the data beside it."""
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "train_flagship.sh", folder / "scripts")
    (folder / "scripts" / "environment.sh").write_text('export PATH="$PWD/bin:$PATH"\n')
    (folder / "scripts" / "training_summary.py").write_text(
        "import pathlib, sys\npathlib.Path(sys.argv[1], 'training.json').write_text('{}')\n"
    )
    (folder / "bin").mkdir()
    for name, text in (("pflow", PFLOW), ("python", None)):
        path = folder / "bin" / name
        path.write_text(text or f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        path.chmod(0o755)
    (tmp_path / "data" / "g4").mkdir(parents=True)
    for name in SAMPLES:
        for split in ("train", "val"):
            (tmp_path / "data" / "g4" / f"{name}_{split}.root").touch()
    return folder


@pytest.fixture
def train(checkout):
    """A function that runs the script; returns the exit code, what it said, and its calls of pflow."""

    def run(*words: str) -> tuple[int, str, list[str]]:
        calls = checkout / "calls"
        calls.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "scripts/train_flagship.sh", *words],
            cwd=checkout,
            env={**os.environ, "PFLOW_DATA": str(checkout.parent / "data")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout, calls.read_text().splitlines() if calls.exists() else []

    return run


@pytest.mark.parametrize("words", [("hadrons",), ("all", "out", "more")])
def test_what_it_does_not_know_is_wrong_usage(train, words):
    code, said, calls = train(*words)
    assert (code, calls) == (2, [])
    assert said.startswith("usage: ")


def test_a_missing_file_is_named_before_any_training(train, checkout):
    missing = checkout.parent / "data" / "g4" / "zqq_val.root"
    missing.unlink()
    code, said, calls = train("all")
    assert (code, calls) == (1, [])
    assert said.startswith(f"no {missing}: set PFLOW_DATA")


def test_a_model_is_trained_on_its_samples_and_its_weights_are_put_beside_the_card(train, checkout):
    weights = checkout / "pflow" / "weights" / "ild-g4-general"
    weights.mkdir(parents=True)
    for name in ("README.md", "model.json"):
        (weights / name).write_text("old\n")
    code, said, calls = train("general", "out")
    assert code == 0, said
    data = checkout.parent / "data" / "g4"

    def lists(train: str) -> str:
        names = {"train": train.split(), "val": ("single", "multi", "zqq")}
        return " ".join(
            f"--data.{split} [{','.join(f'{data}/{name}_{split}.root' for name in names[split])}]" for split in names
        )

    first, second, third, calibrate = calls
    files = lists("single multi zqq gammasep gamma1")
    config = "--config configs/flagship_general.yaml"
    assert first == f'fit {config} {files} --data.repeat {{"zqq*": 6, "multi*": 3}} --output out/flagship_general'
    assert second == (
        f'fit {config} --config configs/flagship_general_2.yaml {files} --data.repeat {{"zqq*": 8, "multi*": 3, '
        '"gamma1*": 2} --output out/flagship_general_2 --start_from out/flagship_general/last.ckpt'
    )
    assert third == (
        f"fit {config} --config configs/flagship_general_2.yaml --config configs/flagship_general_3.yaml {files} "
        '--data.repeat {"zqq*": 8, "multi*": 3, "gamma1*": 2} --output out/flagship_general_3 '
        "--start_from out/flagship_general_2/last.ckpt"
    )
    validation = " ".join(f"{data}/{name}_val.root" for name in ("single", "multi", "zqq"))
    assert calibrate == (
        "calibrate --output out/flagship_general_3/weights --checkpoint out/flagship_general_3/last.ckpt "
        f"--end 0.97 --keep 0.12 -- {validation}"
    )
    texts = {path.name: path.read_text() for path in weights.iterdir()}
    assert texts == {"README.md": "old\n", "model.json": "new\n", "model.safetensors": "new\n", "training.json": "{}"}


def test_an_interrupted_training_goes_on_and_a_finished_one_is_not_run_again(train, checkout):
    (checkout / "interrupted").touch()
    code, _, calls = train("photon")
    assert code != 0
    assert [call.split()[0] for call in calls] == ["fit"]
    (checkout / "interrupted").unlink()
    code, _, (first, second, third, calibrate) = train("photon")
    assert code == 0
    assert first.endswith("--output runs/flagship_photon --ckpt_path runs/flagship_photon/last.ckpt")
    assert second.endswith("--output runs/flagship_photon_2 --start_from runs/flagship_photon/last.ckpt")
    assert third.endswith("--output runs/flagship_photon_3 --start_from runs/flagship_photon_2/last.ckpt")
    assert calibrate.startswith(
        "calibrate --output runs/flagship_photon_3/weights --checkpoint runs/flagship_photon_3/last"
    )
    assert "--end 0.97 --keep 0.5 -- " in calibrate
    code, said, calls = train("photon")
    assert code == 0
    assert "training is finished" in said
    assert [call.split()[0] for call in calls] == ["calibrate"]


def test_both_models_are_trained_if_none_is_named(train):
    _, _, calls = train()
    outputs = [call.split("--output runs/")[1].split()[0] for call in calls if call.startswith("fit")]
    assert outputs == [f"flagship_{model}{stage}" for model in ("photon", "general") for stage in ("", "_2", "_3")]


@pytest.fixture
def checkpoint(sample_dir, tmp_path) -> Path:
    """A checkpoint after seven steps."""
    tokeniser = Tokeniser.fit([read_events(sample_dir / "gammasep_test_small.root", entry_stop=5)], Recipe())
    header = pack_header(
        tokeniser=tokeniser, network={}, loss={}, max_particles=3, provenance={"step": 7}, version="1.2.3"
    )
    path = tmp_path / "last.ckpt"
    torch.save({KEY: header, "state_dict": {}}, path)
    return path


def test_the_time_of_a_training_is_that_of_its_parts(checkpoint, monkeypatch):
    run = checkpoint.parent
    for part, times in enumerate([(100.0, 130.0, 190.0), (1000.0, 1005.0), (2000.0,)]):
        folder = run / "logs" / f"version_{part}"
        folder.mkdir(parents=True)
        with (folder / "events.out.tfevents.0").open("wb") as stream:
            records = RecordWriter(stream)
            for time in times:
                records.write(Event(wall_time=time).SerializeToString())
            records.flush()
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setattr(sys, "argv", ["training_summary.py", str(run)])
    import_module("training_summary").main()
    found = json.loads((run / "training.json").read_text())
    assert (found["wall_s"], found["parts"], found["steps"]) == (95, 2, 7)
    monkeypatch.setattr(sys, "argv", ["training_summary.py", str(run), "--after", str(run)])
    import_module("training_summary").main()
    assert json.loads((run / "training.json").read_text()) == {**found, "before": found}
