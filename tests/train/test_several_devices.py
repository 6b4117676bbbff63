"""Training on two devices: two processes on the CPU, with gloo."""

from __future__ import annotations

import csv
import dataclasses
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
import pytest
import torch
from torch.utils.data import DataLoader

from pflow.cli.fit import main
from pflow.data.collate import collate
from pflow.data.datamodule import ParticleFlowData
from pflow.data.dataset import LabelledBatch
from pflow.event import jagged
from pflow.io.events_root import write_events
from pflow.io.open import read_events

pytestmark = pytest.mark.slow

STEPS = 13
"""Rank 0 has 32 events and rank 1 18, in batches of 4: eight steps an epoch, in three of which rank 1 has none left.
The training ends within the second epoch, where it validates."""


@pytest.fixture(scope="module")
def options(small, tiny) -> list[str]:
    return [
        *("fit", *tiny, "--data.batch_size=4", "--data.chunk-size=16", "--trainer.val_check_interval=5"),
        *("--model.reconstructor.network.dropout=0", "--model.schedule=constant", "--model.warmup=0"),
        *(f"--data.train={small['val']}", f"--data.val={small['test']}"),
    ]


@pytest.fixture(scope="module")
def fitted(options, tmp_path_factory) -> Path:
    """Folder of a fit on two devices."""
    folder = tmp_path_factory.mktemp("two")
    assert started([*options, f"--trainer.max_steps={STEPS}"], folder).wait(timeout=300) == 0
    return folder


def started(options: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """A fit on two devices, which is going on."""
    # A shell lets its background jobs ignore SIGINT, and so these tests if it runs them there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    callback = ["--trainer.callbacks+=recorder.Recorder", f"--trainer.callbacks.folder={folder}"]
    devices = ["--trainer.devices=2", f"--output={folder / 'run'}"]
    paths = [str(Path(__file__).parent), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-m", "pflow", *options, *callback, *devices],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def steps(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]


def entries(steps: Sequence[dict[str, Any]], epoch: int) -> list[int]:
    return [entry for step in steps if step["epoch"] == epoch and step["weight"] for entry in step["entries"]]


def logged(folder: Path, key: str, version: int = 0) -> list[float]:
    with (folder / "logs" / f"version_{version}" / "metrics.csv").open(newline="") as stream:
        return [float(row[key]) for row in csv.DictReader(stream) if row.get(key)]


def test_each_event_comes_once_an_epoch_and_the_ranks_end_together(fitted):
    one, other = (steps(fitted, rank) for rank in (0, 1))
    assert len(one) == len(other) == STEPS
    assert sorted(entries(one, 0) + entries(other, 0)) == list(range(50))
    assert len(entries(one, 0)) == 32
    for pair in zip(one, other, strict=True):
        numbers = [len(step["entries"]) if step["weight"] else 0 for step in pair]
        assert [step["weight"] for step in pair] == [pytest.approx(2 * number / sum(numbers)) for number in numbers]
    assert [step["weight"] for step in other[5:8]] == [0, 0, 0]


def test_a_validation_on_two_devices_gives_the_numbers_of_one(fitted, small, capsys):
    model = f"--checkpoint={fitted / 'run' / 'last.ckpt'}"
    data = [f"--data.val={small['test']}", "--data.batch_size=4", "--data.chunk-size=16"]
    assert main(["validate", model, *data, "--trainer.enable_progress_bar=false"]) == 0
    printed = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    alone = {words[0]: float(words[1]) for words in printed if words and words[0].startswith("val/")}
    assert {"val/loss", "val/pdg", "val/energy_error", "val/angle_deg"} < alone.keys()
    for key, value in alone.items():
        assert logged(fitted / "run", key)[-1] == pytest.approx(value, rel=1e-6), key


@pytest.mark.parametrize(("told", "number"), [("one", signal.SIGTERM), ("all", signal.SIGINT)])
def test_all_ranks_stop_after_the_same_step_and_are_resumed(options, tmp_path, told, number):
    """One rank gets a signal, or all processes, also those that load, as from a terminal or a batch system."""
    words = ["--trainer.limit_val_batches=1", "--trainer.max_epochs=100000", "--data.num_workers=1"]
    fit = started([*options, *words], tmp_path)
    try:
        wait_for(lambda: all(lines(tmp_path, rank) > 9 for rank in (0, 1)))
        if told == "one":
            os.kill(steps(tmp_path, 1)[0]["process"], number)
        else:
            os.killpg(fit.pid, number)
        assert fit.wait(timeout=120) == 128 + number
    finally:
        fit.kill()
        fit.wait()
    n_steps = lines(tmp_path, 0)
    assert lines(tmp_path, 1) == n_steps
    wait_for(lambda: not Path(f"/proc/{steps(tmp_path, 1)[0]['process']}").exists())
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["global_step"] == n_steps
    words += [f"--checkpoint={tmp_path / 'run' / 'last.ckpt'}", f"--trainer.max_steps={n_steps + 3}"]
    assert started([*options, *words], tmp_path).wait(timeout=300) == 0
    assert lines(tmp_path, 0) == n_steps + 3
    epochs = {step["epoch"] for step in steps(tmp_path, 0)}
    for epoch in sorted(epochs)[:-1]:
        assert sorted(entries(steps(tmp_path, 0), epoch) + entries(steps(tmp_path, 1), epoch)) == list(range(50))


def wait_for(condition: Callable[[], bool], timeout: float = 180.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def lines(folder: Path, rank: int) -> int:
    """Number of steps that a rank has begun."""
    path = folder / f"rank{rank}.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def test_losses_are_those_of_one_device_with_the_batches_joined(fitted, options, small, tmp_path, monkeypatch):
    ranks = [steps(fitted, rank) for rank in (0, 1)]
    whole = ParticleFlowData.train_dataloader

    def joined(self: ParticleFlowData) -> DataLoader[LabelledBatch]:
        """Batches of this epoch, each of all events that the ranks had in a step."""
        whole(self)
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
    for key, count in (("train/loss", 1), ("val/loss", 2)):
        values = logged(tmp_path, key)
        assert len(values) >= count
        np.testing.assert_allclose(values, logged(fitted / "run", key), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")
def test_one_device_resumes_a_training_of_two(fitted, options, tmp_path):
    words = [f"--checkpoint={fitted / 'run' / 'last.ckpt'}", f"--output={tmp_path}", "--trainer.max_epochs=3"]
    with pytest.warns(UserWarning, match="the rest of its epoch is shuffled anew"):
        assert main([*options, *words]) == 0
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 2


def test_an_entry_that_the_other_device_skips_is_in_the_exit_code(options, small, tmp_path):
    events = read_events(small["val"])
    energy = jagged.columns(events.hits)["energy"].copy()
    start, stop = jagged.offsets(jagged.count(events.hits))[20:22]
    energy[start:stop] = np.nan  # in the second chunk, that of rank 1
    write_events(
        tmp_path / "bad.root", dataclasses.replace(events, hits=jagged.replaced(events.hits, {"energy": energy}))
    )
    words = [f"--data.train={tmp_path / 'bad.root'}", "--data.on_error=skip", "--trainer.limit_val_batches=0"]
    devices = ["--trainer.devices=2", "--trainer.max_epochs=1", f"--output={tmp_path / 'run'}"]
    ended = subprocess.run(
        [sys.executable, "-m", "pflow", *options, *words, *devices],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=600,
    )
    assert ended.returncode == 3
