"""A fit that is told to end before each kind of batch: it goes on as if it had not ended."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver

from pflow.cli.fit import main
from pflow.data.datamodule import ParticleFlowData
from pflow.train.termination import release_ranks

SAME_NUMBER = ("--data.batch_size=20", "--trainer.max_epochs=2")
BY_TOKENS = ("--data.max_tokens=9000", "--trainer.max_epochs=2", "--trainer.max_steps=99")
"""Lightning fetches a batch ahead, as it does not know their number."""


@pytest.fixture(scope="module")
def options(small, tiny) -> list[str]:
    data = [f"--data.train={small['val']}", f"--data.val={small['test']}", "--trainer.limit_val_batches=2"]
    return ["fit", *tiny, *data, "--ema.decay=0.9"]


@pytest.fixture(scope="module", autouse=True)
def no_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pflow.cli.fit.rendered", lambda figure, kind: b"")
        yield


def fit(options: list[str], folder: Path, told_before: int | None = None) -> tuple[int, str]:
    """Exit code, and the batches that came: t in training, v in validation; told to end before one, by its number."""
    batches, hook = "", ParticleFlowData.on_before_batch_transfer

    def counted(self: ParticleFlowData, batch: Any, index: int) -> Any:
        nonlocal batches
        self.ending.told |= len(batches) == told_before
        batches += "v" if self.trainer.validating else "t"
        return hook(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParticleFlowData, "on_before_batch_transfer", counted)
        return main([*options, f"--output={folder}"]), batches


def left(folder: Path) -> list[Any]:
    """Losses of all validations, and the content of both checkpoints."""
    found: list[Any] = []
    for path in sorted((folder / "logs").glob("version_*/metrics.csv")):
        with path.open(newline="") as stream:
            found += [row["val/loss"] for row in csv.DictReader(stream) if row.get("val/loss")]
    for name in ("best", "last"):
        content = torch.load(folder / f"{name}.ckpt", weights_only=True)
        states = (content[key] for key in ("state_dict", "current_model_state"))
        found += [content["global_step"], *(value.tolist() for state in states for value in state.values())]
    return found


@pytest.mark.parametrize(
    ("batching", "epoch"), [(SAME_NUMBER, "tttvv"), (BY_TOKENS, "tttttttvv")], ids=["same number", "by tokens"]
)
def test_a_fit_goes_on_as_if_it_had_not_ended(options, tmp_path, batching, epoch):
    options = [*options, *batching]
    assert fit(options, tmp_path / "whole") == (0, 2 * epoch)
    whole = left(tmp_path / "whole")
    last_of_training, last_of_validation, first_of_next = len(epoch) - 3, len(epoch) - 1, len(epoch)
    for number in (last_of_training, last_of_validation, first_of_next):
        folder = tmp_path / str(number)
        assert fit(options, folder, told_before=number)[0] == 143
        n_steps = (2 * epoch)[:number].count("t")
        assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == n_steps
        assert fit([*options, f"--checkpoint={folder / 'last.ckpt'}"], folder)[0] == 0
        assert left(folder) == whole, number


def test_a_rank_may_end_with_another_exit_code_first():
    """Lightning watches the ranks that it started, and would kill this process."""
    ended = subprocess.Popen(["false"])
    ended.wait()
    strategy = SimpleNamespace(launcher=SimpleNamespace(procs=[ended]))
    watch = _ChildProcessObserver(main_pid=ended.pid, child_processes=strategy.launcher.procs)  # it kills nothing
    trainer: Any = SimpleNamespace(strategy=strategy)
    release_ranks(trainer)
    assert watch._run()
