import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.strategies.launchers.subprocess_script import _ChildProcessObserver
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

import pflow.cli.fit
from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError, OutputError
from pflow.train.callbacks import (
    AtomicCheckpointIO,
    AveragedWeights,
    EpochLine,
    Freeze,
    RunFolder,
    make_loggers,
    read_history,
    release_ranks,
)
from pflow.train.module import MONITOR

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:UserWarning",
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",
)


class Line(pl.LightningModule):
    """A linear map that remembers its weight after each step and in each validation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(2, 1)
        self.after_step: list[float] = [self.weight]
        self.in_validation: list[float] = []

    @property
    def weight(self) -> float:
        return self.layer.weight[0, 0].item()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()

    def on_train_batch_end(self, *_: Any) -> None:
        self.after_step.append(self.weight)

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.in_validation.append(self.weight)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


@pytest.fixture
def fit(tmp_path):
    """Fit for two epochs of four steps; returns the module and its last checkpoint."""
    points = torch.randn(8, 2, generator=torch.Generator().manual_seed(5))

    def run(*, decay=0.9, callbacks=(), average=True, **options):
        module, loader = Line(), DataLoader(points, batch_size=2)
        saving = ModelCheckpoint(tmp_path, filename="best", save_last=True, enable_version_counter=False)
        averaging = [AveragedWeights(decay)] if average else []
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        options |= {"accelerator": "cpu", "max_epochs": 2, "num_sanity_val_steps": 0, **quiet}
        pl.Trainer(callbacks=[*averaging, saving, *callbacks], **options).fit(module, loader, loader)
        return module, torch.load(tmp_path / "last.ckpt", weights_only=True)

    return run


def average_of(weights: list[float], decay: float) -> float:
    """The formula, written out; the first step's weights begin it."""
    average = weights[1]
    for n, weight in enumerate(weights[2:], 1):
        share = min(decay, (1 + n) / (10 + n))
        average = share * average + (1 - share) * weight
    return average


@pytest.mark.parametrize(("decay", "batches"), [(0.3, 1), (0.999, 1), (0.9, 2)])
def test_the_average_is_that_of_the_formula(fit, decay, batches):
    """With gradients of so many batches an update."""
    module, last = fit(decay=decay, accumulate_grad_batches=batches)
    steps = module.after_step[::batches]
    assert last["averaging_state"]["n_averaged"] == len(steps) - 1 == 8 // batches
    average = last["state_dict"]["layer.weight"][0, 0].item()
    assert average == pytest.approx(average_of(steps, decay), abs=1e-6)
    assert average != pytest.approx(steps[-1], abs=1e-4)


@pytest.mark.filterwarnings("ignore:.*Checkpoint directory:UserWarning")
def test_training_uses_raw_weights_and_all_else_the_averaged(fit):
    averaged, last = fit()
    plain, _ = fit(average=False)
    assert averaged.after_step == plain.after_step
    assert averaged.in_validation[-1] == pytest.approx(average_of(averaged.after_step, 0.9), abs=1e-6)
    assert plain.in_validation[-1] == plain.after_step[-1]
    assert last["current_model_state"]["layer.weight"][0, 0].item() == averaged.after_step[-1]
    assert torch.equal(averaged.layer.weight, last["state_dict"]["layer.weight"])


def test_a_useless_decay_and_checkpoints_of_weights_only_are_refused(fit, tmp_path):
    with pytest.raises(ConfigError, match=r"ema\.decay must lie between 0 and 1"):
        AveragedWeights(1.0)
    with pytest.raises(ConfigError, match="save_weights_only"):
        fit(callbacks=[ModelCheckpoint(tmp_path / "other", monitor="loss", save_weights_only=True)])


def test_frozen_modules_have_no_gradients_and_stay_in_evaluation_mode_and_none_is_refused():
    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "second": torch.nn.Linear(2, 1)})
    model.first_stage_modules = ("first",)
    module = SimpleNamespace(reconstructor=model, tokeniser="theirs", configure_model=lambda: None)
    callback = Freeze()
    callback.setup(None, module, "fit")
    model.train()
    callback.on_train_batch_start(None, module)
    for name, is_trained in (("first", False), ("second", True)):
        assert model[name].training is is_trained
        assert all(parameter.requires_grad is is_trained for parameter in model[name].parameters())
    model.first_stage_modules = ()
    with pytest.raises(ConfigError, match="Freeze: the model has no refinement"):
        callback.setup(None, module, "fit")


def test_epochs_that_end_before_the_steps_are_said():
    module = SimpleNamespace(
        parameters=list, data=SimpleNamespace(n_events=lambda split: 10), device="cpu", print=lambda *_, **__: None
    )
    trainer = SimpleNamespace(estimated_stepping_batches=100, max_steps=500, max_epochs=50)
    with pytest.warns(UserWarning, match="max_steps is 500, but 50 epochs .* have 100 steps"):
        EpochLine().on_fit_start(trainer, module)


def test_a_resume_takes_the_patience_that_is_asked_for(tmp_path):
    early = EarlyStopping("val/loss", patience=8)
    trainer = SimpleNamespace(early_stopping_callbacks=[early], ckpt_path=tmp_path / "a" / "last.ckpt")
    content = {"callbacks": {early.state_key: {"patience": 2}}}
    RunFolder.on_load_checkpoint(SimpleNamespace(folder=tmp_path), trainer, None, content)
    assert content["callbacks"][early.state_key]["patience"] == 8


def test_the_average_is_on_the_trainings_device_and_taken_at_once(monkeypatch):
    module, averaged = Line(), AveragedWeights(0.9)
    device = torch.device("meta")  # stands for a GPU: the module itself is moved there later
    trainer = SimpleNamespace(checkpoint_callbacks=[], strategy=SimpleNamespace(root_device=device))
    averaged.setup(trainer, module, "fit")
    assert {value.device for value in averaged._average_model.module.parameters()} == {device}
    module.to(device)
    lerp, calls = torch._foreach_lerp_, []
    monkeypatch.setattr(torch, "_foreach_lerp_", lambda *args: calls.append(len(args[0])) or lerp(*args))
    for _ in range(3):  # the host waits for no device
        averaged._average_model.update_parameters(module)
    assert calls == [2, 2]


SAME_NUMBER = ("--data.batch_size=20", "--trainer.max_epochs=2")
NETWORK = "--model.reconstructor.network"
BY_TOKENS = ("--data.max_tokens=9000", "--trainer.max_epochs=2", "--trainer.max_steps=99")
"""Lightning fetches a batch ahead, as it does not know their number."""


@pytest.fixture
def interrupted(small, tiny):
    """Runs a fit that gets a signal with one of its batches, by its number; returns the exit code and the batches."""
    data = [f"--data.train={small['val']}", f"--data.val={small['test']}", "--trainer.limit_val_batches=2"]

    def fit(*options: str, during: int | None = None, number: int = signal.SIGTERM) -> tuple[int, str]:
        batches, hook = "", ParticleFlowData.on_before_batch_transfer

        def counted(self: ParticleFlowData, batch: Any, index: int) -> Any:
            nonlocal batches
            if len(batches) == during:
                self.stop.signal = self.stop.agreed = number
            batches += "v" if self.trainer.validating else "t"
            return hook(self, batch, index)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ParticleFlowData, "on_before_batch_transfer", counted)
            defaults = () if "--checkpoint" in options else (*tiny, *data, "--ema.decay=0.9", f"{NETWORK}.dropout=0.1")
            return pflow.cli.fit.main("fit", [*defaults, *options]), batches

    return fit


def left(path: Path) -> list[Any]:
    """The content of a checkpoint: its step, the weights and their averages."""
    content = torch.load(path, weights_only=True)
    states = (content[key] for key in ("state_dict", "current_model_state"))
    return [content["global_step"], *(value.tolist() for state in states for value in state.values())]


@pytest.mark.parametrize("batching", [SAME_NUMBER, BY_TOKENS], ids=["same number", "by tokens"])
def test_an_interrupted_fit_is_resumed_as_if_it_had_not_been(interrupted, tmp_path, batching, capsys):
    """Interrupted in a validation, which then is finished, and within an epoch; by tokens at the end of an epoch."""
    epoch, n_train = "tttvv", 3
    assert interrupted(*batching, f"--output={tmp_path / 'whole'}") == (0, 2 * epoch)
    for during in (n_train, len(epoch)) if batching is SAME_NUMBER else (n_train - 1,):
        folder = tmp_path / str(during)
        code, batches = interrupted(*batching, f"--output={folder}", during=during, number=signal.SIGINT)
        stop = (2 * epoch).index("t", during + (during == n_train - 1))
        assert (code, batches) == (130, (2 * epoch)[: stop + 1])
        command = capsys.readouterr().err.splitlines()[-1].partition("resume with: pflow fit ")[2].split()
        assert command == ["--checkpoint", str(folder)]
        assert left(folder / "last.ckpt")[0] == batches.count("t")
        code, others = interrupted(*command)
        assert (code, (batches + others).count("t")) == (0, 2 * n_train)
        for name in ("best.ckpt", "last.ckpt"):
            assert left(folder / name) == left(tmp_path / "whole" / name), (during, name)


def test_a_step_of_the_optimiser_is_finished_before_a_stop(interrupted, tmp_path):
    """Gradients that have been accumulated are in no checkpoint."""
    options = ("--data.batch_size=20", "--trainer.max_epochs=1", "--trainer.accumulate_grad_batches=2")
    assert interrupted(*options, f"--output={tmp_path}", during=0) == (143, "tt")
    assert left(tmp_path / "last.ckpt")[0] == 1


def test_an_epoch_without_validation_shows_none(capsys):
    """Lightning keeps the numbers of the last validation."""
    numbers = {"train/loss": 1.0, "val/loss": 2.0, MONITOR: 0.25}
    trainer = SimpleNamespace(callback_metrics=numbers, current_epoch=0, sanity_checking=False)
    module, line = SimpleNamespace(print=print), EpochLine()
    line.on_validation_end(trainer, module)
    for _ in range(2):
        line.on_train_epoch_end(trainer, module)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["epoch 1: train loss 1.0000, val loss 2.0000, wrong energy 25.00%", "epoch 1: train loss 1.0000"]


def test_a_killed_fit_loses_minutes_only(interrupted, tmp_path, monkeypatch):
    monkeypatch.setattr("pflow.cli.fit.SAVE_EVERY", timedelta(0))
    monkeypatch.setattr(EpochLine, "on_train_batch_start", lambda *args: 1 // (4 - args[-1]), raising=False)
    with pytest.raises(ZeroDivisionError):
        interrupted("--data.batch_size=8", "--trainer.max_epochs=1", f"--output={tmp_path / 'run'}")
    assert left(tmp_path / "run" / "last.ckpt")[0] == 4


def test_a_rank_may_end_with_another_exit_code_first():
    """Lightning watches the ranks that it started, and would kill this process."""
    ended = subprocess.Popen(["false"])
    ended.wait()
    strategy = SimpleNamespace(launcher=SimpleNamespace(procs=[ended]))
    watch = _ChildProcessObserver(main_pid=ended.pid, child_processes=strategy.launcher.procs)  # it kills nothing
    release_ranks(SimpleNamespace(strategy=strategy))
    assert watch._run()


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, largest_file):
    writer = AtomicCheckpointIO()
    writer.save_checkpoint({"x": torch.ones(3)}, tmp_path / "best.ckpt")
    with largest_file(5000), pytest.raises(OutputError, match=r"cannot write .*best\.ckpt: File too large"):
        writer.save_checkpoint({"x": torch.ones(5000)}, tmp_path / "best.ckpt")
    assert os.listdir(tmp_path) == ["best.ckpt"]
    assert torch.load(tmp_path / "best.ckpt")["x"].tolist() == [1, 1, 1]


def test_both_logs_go_to_the_next_free_version(tmp_path):
    (tmp_path / "logs" / "version_3").mkdir(parents=True)
    assert {logger.log_dir for logger in make_loggers(tmp_path)} == {str(tmp_path / "logs" / "version_4")}


def test_the_history_is_by_name_and_epoch_and_later_logs_count(tmp_path, tmp_path_factory):
    """The first log is left at the middle of epoch 2; the second ends in half a line that a killed process left."""
    logs = {
        1: "lr-AdamW,step\n0.1,0\n",
        2: "epoch,lr-AdamW,step,train/loss,val/loss\n,0.1,0,,\n0,,9,,3.0\n0,,9,4.0,\n1,,14,,2.0\n3,,39,0.1,0.1\n",
        10: "epoch,lr-AdamW,step,train/loss,val/loss\n1,,19,2.5,1.5\n2,,29,2.0,1.0\n3,,39,1.5,0.",
    }
    for version, text in logs.items():
        folder = tmp_path / "logs" / f"version_{version}"
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(text)
    assert read_history(tmp_path) == {
        "train/loss": {1: 4.0, 2: 2.5, 3: 2.0},
        "val/loss": {1: 3.0, 1.5: 2.0, 2: 1.5, 3: 1.0},
    }
    assert not read_history(tmp_path_factory.mktemp("empty"))
