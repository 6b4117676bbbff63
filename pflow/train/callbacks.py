"""Callbacks: run folder with checkpoints and logs, one line per epoch, averaged weights, frozen modules, signals."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, WeightAveraging
from pytorch_lightning.cli import LightningArgumentParser
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor

from pflow.checkpoint import read_checkpoint
from pflow.errors import ConfigError
from pflow.io.atomic import lock, replacing
from pflow.plots import rendered
from pflow.plots.evaluation import plot_training
from pflow.train.module import MONITOR, ParticleFlow

COLUMNS = {"train/loss": "train loss {:.4f}", "val/loss": "val loss {:.4f}", MONITOR: "wrong energy {:.2%}"}
UNWRITABLE = "Unable to serialize instance"
OF_LIGHTNING = b"# pytorch_lightning=="
"""First line of a run's ``config.yaml``."""


class EpochLine(pl.Callback):  # type: ignore[misc]
    """Prints the size of the model, then a line after each epoch, which stays when the progress bar moves on."""

    validated = False  # in this epoch: Lightning keeps the numbers of the last validation

    def on_validation_end(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Note that the epoch has numbers of a validation."""
        self.validated |= not trainer.sanity_checking

    def on_fit_start(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Print the numbers of parameters and events, and the device."""
        size = sum(parameter.numel() for parameter in pl_module.parameters())
        train, val = (f"{pl_module.data.n_events(split):,}" for split in ("train", "val"))
        text = f"{size:,} parameters, {train} training and {val} validation events, on {pl_module.device}"
        _print(pl_module, text)
        if (steps := trainer.estimated_stepping_batches) < trainer.max_steps:
            text = f"trainer.max_steps is {trainer.max_steps}, but {trainer.max_epochs} epochs (trainer.max_epochs)"
            warnings.warn(f"{text} have {steps} steps: for more, --trainer.max-epochs -1", stacklevel=2)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Print losses and wrong energy of the epoch."""
        metrics = trainer.callback_metrics
        shown = [key for key in COLUMNS if key in metrics and (self.validated or not key.startswith("val/"))]
        self.validated = False
        figures = [COLUMNS[key].format(float(metrics[key])) for key in shown]
        _print(pl_module, f"epoch {trainer.current_epoch + 1}: {', '.join(figures)}")

    def on_train_end(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Say that the training was stopped early, and why."""
        for early in trainer.early_stopping_callbacks:
            if early.stopping_reason_message and early.stopped_epoch:
                reason = early.stopping_reason_message.removesuffix(" Signaling Trainer to stop.")
                epochs = f"epoch {trainer.current_epoch} of {trainer.max_epochs}"
                _print(pl_module, f"stopped early, after {epochs}: {reason}")


def _print(pl_module: ParticleFlow, text: str) -> None:
    """Print a line above a progress bar, at once also into a pipe; TQDM's bar knows no ``flush``."""
    pl_module.print(text)
    sys.stdout.flush()


def check_run_folder(folder: Path, *, continued: str | None = None) -> None:
    """A ConfigError if a training cannot write to a folder: not new, empty, or of the checkpoint to continue."""
    # The folder may be new: then the nearest parent that exists decides whether it can be made.
    there = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    if not there.is_dir():
        raise ConfigError(f"cannot write to folder {folder}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to folder {folder}: no permission to write in {there}")
    configuration = folder / "config.yaml"
    held = [name for name in ("best.ckpt", "last.ckpt") if (folder / name).exists()]
    if not (configuration.is_file() and configuration.read_bytes().startswith(OF_LIGHTNING)):
        drawn = [] if held else ["training.png", "training.pdf"]
        if others := [name for name in ("config.yaml", *drawn) if (folder / name).exists()]:
            text = f"{folder / others[0]} is not of a training and would be replaced: choose another folder (--output)"
            raise ConfigError(text)
    if held and (continued is None or Path(continued).resolve().parent != folder.resolve()):
        raise ConfigError(
            f"{folder} already holds a run ({', '.join(held)}): choose another folder with --output, or resume it: "
            f"pflow fit --checkpoint {folder if 'last.ckpt' in held else folder / held[-1]}"
        )


class AtomicCheckpointIO(TorchCheckpointIO):  # type: ignore[misc]
    """Writes a checkpoint so that the one before stays until the new one is whole, also across file systems."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint; OutputError if it could not be written."""
        content = io.BytesIO()  # on a full disk torch hides the error of the file behind one of its own
        torch.save(checkpoint, content)
        Path(path).parent.mkdir(parents=True, exist_ok=True)  # as Lightning does
        with replacing(path, force=True) as partial:
            partial.write_bytes(content.getvalue())


class LastCheckpoint(ModelCheckpoint):  # type: ignore[misc]
    """``last.ckpt``; a class of its own, so that its state is not taken for a `ModelCheckpoint` of the user."""

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Save between two steps of the optimiser: a checkpoint does not hold the gradients of half a step."""
        if not trainer.fit_loop._should_accumulate():
            super().on_train_batch_end(trainer, *args)


def best_of(trainer: pl.Trainer, folder: Path) -> ModelCheckpoint:
    """The callback that keeps the best model in the run's folder; others are the user's."""
    those = (one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint) and one.monitor)
    return next(one for one in those if one.dirpath and Path(one.dirpath).resolve() == folder.resolve())


def make_loggers(folder: Path) -> list[Any]:
    """CSV logs, and TensorBoard's if it is installed, in the next free ``logs/version_N`` of a run's folder."""
    loggers: list[Any] = [CSVLogger(save_dir=folder, name="logs")]
    if find_spec("tensorboard") is not None:
        # By itself it would choose another number, and one run would have two folders.
        loggers.append(TensorBoardLogger(save_dir=folder, name="logs", version=loggers[0].version))
    return loggers


class NoLogger(DummyLogger):  # type: ignore[misc]
    """Logs nothing: in the place of a run's loggers before the first step, when callbacks look for some, or of none."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = str(folder)

    @property
    def save_dir(self) -> str:
        """The run's folder, for what callbacks and profilers write beside logs."""
        return self._folder


def read_history(folder: str | Path) -> Mapping[str, dict[float, float]]:
    """What a run logged, by name and passed epochs, e.g. 2.5, of all CSV logs in its folder.

    The log of a resume replaces what earlier ones have from its first step on.
    """
    rows: list[dict[str, str]] = []
    # As texts version_10 comes before version_2, and the older log would count.
    logs = sorted(Path(folder).glob("logs/version_*/metrics.csv"), key=lambda path: int(path.parent.name.split("_")[1]))
    for log in logs:
        lines = log.read_text("utf-8").splitlines(keepends=True)
        # A process that was killed may leave half a line at the end.
        later = list(csv.DictReader(line for line in lines if line.endswith("\n")))
        rows = [row for row in rows if not later or int(row["step"]) < int(later[0]["step"])] + later
    ends = {int(row["epoch"]): int(row["step"]) + 1 for row in rows if row.get("epoch")}
    history: dict[str, dict[float, float]] = {}
    for row in rows:
        if row.get("epoch"):
            epoch = int(row["epoch"])
            begin = ends.get(epoch - 1, int(rows[0]["step"]))
            passed = epoch + (int(row["step"]) + 1 - begin) / (ends[epoch] - begin)
            for name, value in row.items():
                if "/" in name and not name.startswith("lr") and value:
                    history.setdefault(name, {})[passed] = float(value)
    return history


class RunFolder(pl.Callback):  # type: ignore[misc]
    """Write logs, configuration and training curves of a run, and print which model is the best.

    Logs begin just before the first step, after all checks. A new training writes ``config.yaml`` with its first batch,
    a resumed one with its first checkpoint, so that a failing resume changes nothing. ``checkpoint``, ``ckpt_path`` and
    ``weights_only`` are not written to it: the file describes the training, not how to resume one. While a training
    runs it is locked, and a second training of this folder is refused.
    """

    def __init__(self, folder: Path, parser: LightningArgumentParser, configuration: Any, *, logs: bool) -> None:
        # A clone: the fit itself still needs the checkpoint.
        self.folder, self.parser, self.configuration, self.logs = folder, parser, configuration.clone(), logs
        for name in ("checkpoint", "ckpt_path", "weights_only"):
            self.configuration.pop(name, None)
        self.began = self.saved = False
        self.validated: int | None = None  # step of the last validation
        self.locks: list[BinaryIO] = []  # of ``config.yaml``, and of the one whose place it took

    def _lock(self) -> None:
        """Lock the configuration that is there, unless this run has; ConfigError: another process has."""
        try:
            if not self.locks and (file := lock(self.folder / "config.yaml")):
                self.locks.append(file)
        except BlockingIOError as error:
            text = f"another pflow fit is training in {self.folder}, and both would replace its checkpoints"
            raise ConfigError(f"{text}: wait until it ends, or choose another folder (--output)") from error

    def _unlock(self) -> None:
        while self.locks:
            self.locks.pop().close()

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: ParticleFlow, content: dict[str, Any]) -> None:
        """Pass the folder's new path to the checkpoint callbacks if it moved; otherwise they lose the best model."""
        for early in trainer.early_stopping_callbacks:
            if (state := content["callbacks"].get(early.state_key)) is not None:
                state["patience"] = early.patience  # Lightning would take the checkpoint's
        if Path(trainer.ckpt_path).resolve().parent == self.folder.resolve():
            for state in content["callbacks"].values():
                if "best_model_path" in state:
                    state.update(_moved(state, state["dirpath"], str(self.folder.resolve())))

    def on_train_start(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Make the loggers, which write at once, unless this is a trial run."""
        self.began, self.saved = True, bool(trainer.fast_dev_run)
        if not trainer.fast_dev_run:
            if trainer.is_global_zero:
                self._lock()
            trainer.loggers = make_loggers(self.folder) if self.logs else trainer.loggers
            for logger in trainer.loggers:
                groups = ("model", "data", "trainer")
                logger.log_hyperparams({group: self.configuration[group].as_dict() for group in groups})

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: ParticleFlow, *_: Any) -> None:
        """Write the configuration of a new training."""
        if trainer.ckpt_path is None:
            self.on_save_checkpoint(trainer, pl_module, {})

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: ParticleFlow, _: dict[str, Any]) -> None:
        """Write the configuration, once."""
        if trainer.is_global_zero and not self.saved:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock()  # of another new training that has written it meanwhile
            with replacing(self.folder / "config.yaml", force=True) as partial:
                try:
                    self.parser.save(self.configuration, partial, skip_none=False, overwrite=True, multifile=False)
                except ValueError as error:
                    what = ", ".join(re.findall(r"'cannot represent an object', (.*?)\)", str(error)))
                    text = f"config.yaml cannot hold {what or error}, the default of an option: give it as text"
                    raise ConfigError(f"{text}, as --trainer.callbacks.interval step for a Timer") from error
                # jsonargparse's text for what it cannot write, e.g. a device, cannot be read again: a default is used.
                lines = partial.read_text("utf-8").splitlines(keepends=True)
                partial.write_text("".join(line for line in lines if UNWRITABLE not in line), "utf-8")
                if file := lock(partial):  # before it takes the place of the other one
                    self.locks.append(file)
        self.saved = True

    def on_exception(self, trainer: pl.Trainer, pl_module: ParticleFlow, exception: BaseException) -> None:
        """Unlock the folder, for another training in this process."""
        self._unlock()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Note after which step it was."""
        self.validated = trainer.global_step

    def on_train_end(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Save the last step, after which there need be no validation, and so no checkpoint."""
        saved = [of._last_global_step_saved for of in trainer.checkpoint_callbacks if isinstance(of, LastCheckpoint)]
        if saved and max(saved) < trainer.global_step and not trainer.fast_dev_run:
            trainer.save_checkpoint(self.folder / "last.ckpt", weights_only=False)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Draw the training curves; print the best model, or that the training was already complete.

        ConfigError: nothing was saved, or the training was complete, and its checkpoint is in another folder.
        """
        release_ranks(trainer)  # they do not draw
        if not trainer.is_global_zero:
            return
        self._unlock()
        last = self.folder / "last.ckpt"
        # Lightning does not call on_train_start where nothing is left to train.
        if not self.began:
            by_steps = 0 < trainer.max_steps <= trainer.global_step
            option, done = ("max_steps", trainer.global_step) if by_steps else ("max_epochs", trainer.current_epoch)
            text = (
                f"nothing left to train: {trainer.ckpt_path} has {done} {option[4:]}, and trainer.{option} is "
                f"{getattr(trainer, option)}; to train on, raise --trainer.{option.replace('_', '-')}"
            )
            if not last.exists():
                raise ConfigError(text)
            print(text)
        if history := read_history(self.folder):
            figure = plot_training(history, text=self.folder.name)
            for kind in ("png", "pdf"):
                with replacing(self.folder / f"training.{kind}", force=True) as path:
                    path.write_bytes(rendered(figure, kind))
        elif not (self.logs or trainer.fast_dev_run):
            text = f"training.png is not drawn: it shows the CSV logs in {self.folder}/logs, which pflow writes without"
            print(f"{text} --trainer.logger, and a CSVLogger with save_dir {self.folder} and name logs")
        best = best_of(trainer, self.folder)
        if best.best_model_score is not None and Path(best.best_model_path).is_file():
            epoch = read_checkpoint(best.best_model_path).header.provenance["epoch"] + 1
            quantity = COLUMNS.get(best.monitor, f"{best.monitor} {{:.4g}}").format(float(best.best_model_score))
            print(f"best model: {best.best_model_path} (epoch {epoch}, {quantity})")
            if self.validated is not None and (more := trainer.global_step - self.validated):
                print(f"not validated, and maybe better: the last {more} of {trainer.global_step} steps, in {last}")
        elif last.exists():
            print(f"no best model by {best.monitor}, without a validation; the last one is {last}")
        elif not trainer.fast_dev_run:
            raise ConfigError(
                f"{self.folder}: nothing was saved, as the training ended after {trainer.global_step} steps"
            )


def _moved(value: Any, old: str, new: str) -> Any:
    """Plain data in which the beginning of each path is replaced."""
    if isinstance(value, dict):
        return {_moved(key, old, new): _moved(part, old, new) for key, part in value.items()}
    return new + value.removeprefix(old) if isinstance(value, str) and value.startswith(old) else value


class AveragedWeights(WeightAveraging):  # type: ignore[misc]
    """Exponential moving average of the parameters, updated at each step; validation and checkpoints use it.

    An update keeps the share ``min(decay, (1 + n) / (10 + n))`` of the average after n updates, so that the first
    weights are soon forgotten, as in TensorFlow's ``ExponentialMovingAverage``; it reaches back about ``1 / (1 -
    decay)`` steps. ConfigError: a decay outside (0, 1), or checkpoints that would hold the average alone, from
    which no training can continue.
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"ema.decay must lie between 0 and 1 (exclusive), found {decay}")
        self.decay = decay
        super().__init__(use_buffers=False, multi_avg_fn=self._average)

    def _average(self, averages: list[Tensor], current: list[Tensor], _: Tensor | int) -> None:
        assert self._average_model is not None  # Lightning has no public name for the average
        n = int(self._average_model.n_averaged)  # on the host: no GPU synchronisation
        share = min(self.decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(averages, current, 1 - share)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begin with the module's weights, on the device of the training."""
        if any(getattr(callback, "save_weights_only", False) for callback in trainer.checkpoint_callbacks):
            raise ConfigError("ema.decay needs whole checkpoints: set model_checkpoint.save_weights_only to false")
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            self._average_model.to(trainer.strategy.root_device)
            # Back on the host, where `_average` reads it in each step.
            self._average_model.n_averaged = torch.zeros((), dtype=torch.long)


class Freeze(pl.Callback):  # type: ignore[misc]
    """Trains the second stage of a trained model: its ``first_stage_modules`` get no gradients and are evaluated."""

    def setup(self, trainer: pl.Trainer, pl_module: ParticleFlow, stage: str) -> None:
        """Freeze, before there is an optimiser; ConfigError: random weights."""
        if stage != "fit":
            return
        if pl_module.tokeniser is None:
            raise ConfigError("Freeze: the weights are random; name a trained model with --start-from")
        # Lightning builds the model only after `setup` of the callbacks, too late to freeze a part here.
        pl_module.configure_model()
        reconstructor = pl_module.reconstructor
        assert reconstructor is not None
        names = reconstructor.first_stage_modules
        if not names:
            raise ConfigError("Freeze: the model has no refinement, hence no second stage: nothing would be frozen")
        self._frozen = [reconstructor.get_submodule(name).requires_grad_(False) for name in names]

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Keep frozen modules in evaluation mode, e.g. without dropout."""
        for module in self._frozen:
            module.eval()


# No `except Exception` on its way out of the fit may take it for a failure.
class Interrupted(BaseException):
    """A fit was stopped between two batches by a signal, whose number is its argument."""


class StopOnSignal(pl.Callback):  # type: ignore[misc]
    """Stops a fit after a batch when SIGINT, SIGTERM or SIGHUP comes, and writes a checkpoint to resume from.

    The signal may reach ranks at different moments, or only some of them; all stop after the same batch
    (`pflow.data.dataset.StepLoader`). A validation is finished first. A second SIGINT stops at once.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_start(self, trainer: pl.Trainer, pl_module: ParticleFlow) -> None:
        """Replace Lightning's handlers; at the end Lightning restores the handlers from before the fit."""

        def note(number: int, frame: Any) -> None:
            pl_module.data.stop.signal = number
            if number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                # The signal may interrupt a print, and Python refuses to enter the same buffer twice.
                os.write(2, b"\nstopping after this step or validation; Ctrl-C again stops at once\n")

        # Python refuses to set handlers outside of the main thread.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell starts its background jobs
                    signal.signal(number, note)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: ParticleFlow, *_: Any) -> None:
        """Raise `Interrupted` if one of the ranks got a signal; after an epoch its validation comes first.

        Not within a step of the optimiser: a checkpoint does not hold the gradients that have been accumulated.
        """
        if pl_module.data.stop.agreed and not (trainer.is_last_batch or trainer.fit_loop._should_accumulate()):
            raise Interrupted(pl_module.data.stop.agreed)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Write the checkpoint, and say how to resume."""
        if isinstance(exception, Interrupted):
            release_ranks(trainer)
            # On all ranks: Lightning waits for each when it saves. Before the first step there is nothing to resume.
            if trainer.global_step:
                trainer.save_checkpoint(self.path, weights_only=False)
        if isinstance(exception, Interrupted | KeyboardInterrupt) and trainer.is_global_zero:
            said = "interrupted" if exception.args in ((), (signal.SIGINT,)) else "terminated"
            saved = f"saved {self.path}; resume with: pflow fit --checkpoint {self.path.parent}"
            saved = saved if self.path.exists() else "nothing was saved"
            print(f"pflow fit: {said}: {saved}", file=sys.stderr, flush=True)


def release_ranks(trainer: pl.Trainer) -> None:
    """Let the processes end that Lightning started for other ranks; once one has not ended with 0 it kills this one."""
    getattr(trainer.strategy.launcher, "procs", []).clear()
