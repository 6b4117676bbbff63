"""Training on two devices: two processes on the CPU, with gloo."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from pflow.cli.main import main
from pflow.data.datamodule import ParticleFlowData
from pflow.data.dataset import LabelledBatch, collate
from pflow.io.open import read_events
from pflow.train.module import MONITOR

pytestmark = pytest.mark.slow

STEPS = 13
"""Rank 0 has 32 events and rank 1 18, in batches of 4: eight steps an epoch; in the last three rank 1 has no events
left. The training ends within the second epoch, where it validates."""


@pytest.fixture(scope="module")
def options(small, tiny) -> list[str]:
    return [
        *("fit", *tiny, "--data.batch_size=4", "--data.chunk-size=16", "--trainer.val_check_interval=5"),
        *("--model.reconstructor.network.dropout=0", "--model.final_lr=1", "--model.warmup=0"),
        *(f"--data.train={small['val']}", f"--data.val={small['test']}"),
    ]


@pytest.fixture(scope="module")
def fitted(options, made_once) -> Path:
    def fit(folder: Path) -> None:
        folder.mkdir()
        assert started([*options, f"--trainer.max_steps={STEPS}"], folder).wait(timeout=300) == 0

    return made_once("two", fit)


def started(options: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """A fit on two devices, which is going on."""
    # A shell lets its background jobs ignore SIGINT, and so these tests if it runs them there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    recorder = {"class_path": "recorder.Recorder", "init_args": {"folder": str(folder)}}
    callback = [f"--trainer.callbacks={json.dumps([recorder])}"]
    devices = ["--trainer.devices=2", "--data.num_workers=1", f"--output={folder / 'run'}"]
    paths = [str(Path(__file__).parent), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-m", "pflow", *options, *callback, *devices],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )


def steps(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / f"rank{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def entries(steps: Sequence[dict[str, Any]], epoch: int) -> list[int]:
    return [entry for step in steps if step["epoch"] == epoch and step["weight"] for entry in step["entries"]]


def logged(folder: Path, key: str) -> list[float]:
    with (folder / "logs" / "version_0" / "metrics.csv").open(newline="") as stream:
        return [float(row[key]) for row in csv.DictReader(stream) if row.get(key)]


def test_each_event_comes_once_an_epoch_and_the_ranks_end_together(fitted):
    rank0, rank1 = (steps(fitted, rank) for rank in (0, 1))
    assert len(rank0) == len(rank1) == STEPS
    assert sorted(entries(rank0, 0) + entries(rank1, 0)) == list(range(50))
    assert len(entries(rank0, 0)) == 32
    for pair in zip(rank0, rank1, strict=True):
        numbers = [len(step["entries"]) if step["weight"] else 0 for step in pair]
        assert [step["weight"] for step in pair] == [pytest.approx(2 * number / sum(numbers)) for number in numbers]
    assert [step["weight"] for step in rank1[5:8]] == [0, 0, 0]


def test_a_training_is_resumed_and_all_ranks_stop_after_the_same_step(fitted, options, tmp_path):
    """All processes but the first get a signal, also those that load."""
    words = ["--trainer.limit_val_batches=1", "--trainer.max_epochs=100000", "--trainer.max_steps=-1"]
    fit = started([*options, *words, f"--checkpoint={fitted / 'run' / 'last.ckpt'}"], tmp_path)
    try:
        wait_for(lambda: all(len(steps(tmp_path, rank)) > 9 for rank in (0, 1)))
        for process in psutil.Process(fit.pid).children(recursive=True):
            process.send_signal(signal.SIGINT)
        assert fit.wait(timeout=120) == 128 + signal.SIGINT
    finally:
        fit.kill()
        fit.wait()
    rank0, rank1 = (steps(tmp_path, rank) for rank in (0, 1))
    assert len(rank0) == len(rank1)
    wait_for(lambda: not psutil.pid_exists(rank1[0]["process"]))
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == STEPS + len(rank0)
    assert rank0[0]["epoch"] == 1
    for epoch in range(1, rank0[-1]["epoch"]):
        before = [entries(steps(fitted, rank), epoch) for rank in (0, 1)]
        assert sorted(sum(before, entries(rank0, epoch) + entries(rank1, epoch))) == list(range(50))


def wait_for(condition: Callable[[], bool], timeout: float = 180.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_losses_are_those_of_one_device_with_the_batches_joined(fitted, options, small, tmp_path, monkeypatch):
    ranks = [steps(fitted, rank) for rank in (0, 1)]
    train_dataloader = ParticleFlowData.train_dataloader

    def joined(self: ParticleFlowData) -> DataLoader[LabelledBatch]:
        """Batches of this epoch, each of all events that the ranks had in a step."""
        train_dataloader(self)
        tokens = self.tokeniser.encode(read_events(small["val"]))
        batches = []
        for step in zip(*ranks, strict=True):
            if step[0]["epoch"] == self.trainer.current_epoch:
                rows = [entry for rank in step if rank["weight"] for entry in rank["entries"]]
                numbers = torch.tensor(rows)
                paths = (small["val"],) * len(rows)
                batches.append(LabelledBatch(collate(tokens, rows), numbers, numbers, paths))
        return DataLoader(batches, batch_size=None)

    monkeypatch.setattr(ParticleFlowData, "train_dataloader", joined)
    again = ["--trainer.reload_dataloaders_every_n_epochs=1", f"--trainer.max_steps={STEPS}", f"--output={tmp_path}"]
    assert main([*options, *again]) == 0
    for key, count in (("train/loss", 1), ("val/loss", 2), ("val/pdg", 2), (MONITOR, 2)):
        values = logged(tmp_path, key)
        assert len(values) >= count
        np.testing.assert_allclose(values, logged(fitted / "run", key), rtol=1e-5)


def test_one_device_resumes_a_training_of_two(fitted, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    words = [f"--checkpoint={fitted / 'run'}", f"--output={tmp_path}", "--trainer.max_epochs=3"]
    words += ["--trainer.limit_val_batches=1", "--trainer.devices=1", "--trainer.max_steps=-1", "--data.num_workers=0"]
    assert main(["fit", *words, "--trainer.callbacks=null"]) == 0
    assert "the rest of its epoch is reshuffled" in capsys.readouterr().err
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 3
