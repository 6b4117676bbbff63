"""`pflow fit | validate | test | predict`: the Lightning command line around our module and data."""

from __future__ import annotations

import dataclasses
import logging
import sys
import warnings
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
from jsonargparse import Namespace
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.utilities.exceptions import SIGTERMException

from pflow.checkpoint.migrate import CLASS_PATHS
from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError
from pflow.io.atomic import replacing
from pflow.model.translation import TranslationNetworkConfig
from pflow.plots.style import rendered
from pflow.plots.training import plot_training
from pflow.resources import config_dir
from pflow.train.callbacks import EpochLine, ParticleWriter, ProgressBar
from pflow.train.ema import AveragedWeights
from pflow.train.history import read_history
from pflow.train.module import DEFAULT, ParticleFlow, option_defaults

__all__ = ["TrainingCLI", "main"]

CHATTER = (
    r".*does not have many workers.*",
    r".*`__len__` defined.*",
    r".*args parameter is intended to run from within Python.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*callbacks used to create the checkpoint need to be provided.*",
    r".*ended before the epoch ended and your dataloader is not resumable.*",
    r".*A single task has no `requires_grad`.*",
    r".*number of training batches .* is smaller than the logging interval.*",
)
"""Warnings of Lightning that tell a user of pflow nothing to act on."""


class SaveConfig(SaveConfigCallback):  # type: ignore[misc]
    """Keeps the whole configuration beside the checkpoints, as ``config.yaml``."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **options: Any) -> None:
        super().__init__(parser, config, **{**options, "save_to_log_dir": False, "overwrite": True})

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Write it when a fit begins."""
        if stage != "fit":
            return
        folder = Path(self.config["output"])
        folder.mkdir(parents=True, exist_ok=True)
        self.parser.save(self.config, folder / self.config_filename, skip_none=False, overwrite=True, multifile=False)


class TrainingCLI(LightningCLI):  # type: ignore[misc]
    """Adds to Lightning's: network and loss as typed groups, one folder for all that a run writes, and predictions."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Declare what is ours, and what follows from what."""
        old = {"energy_sigma"}
        parser.add_class_arguments(TranslationNetworkConfig, "network", skip=old, instantiate=False, sub_configs=True)
        parser.add_argument(
            "--network.architecture",
            type=Literal[tuple(CLASS_PATHS)],
            default=DEFAULT,
            help="kind of network (pflow.model.api)",
        )
        known = {field.name for field in dataclasses.fields(TranslationNetworkConfig)} - old
        for name, default in {**option_defaults("translation"), **option_defaults("pointing")}.items():
            if name not in known:
                parser.add_argument(
                    f"--network.{name}", type=type(default), default=default, help="pflow.model.pointing.config"
                )
        parser.add_argument("--loss.weights", type=dict[str, float] | None, default=None)
        parser.add_argument("--loss.energy", type=str, default="mse")
        parser.add_argument("--loss.direction", type=str, default="mse")
        parser.add_argument("--loss.label_smoothing", type=float, default=0.0)
        parser.link_arguments("network", "model.network", compute_fn=_plain)
        parser.link_arguments("loss", "model.loss", compute_fn=_plain)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.add_argument(
            "--output",
            type=str | None,
            default=None,
            help="fit: folder for checkpoints, logs and configuration (default: runs/pflow); predict: ROOT file",
        )
        parser.add_argument(
            "--start_from",
            type=str | None,
            default=None,
            help="fit: begin a new training with the weights, network and tokens of a trained model (a checkpoint, a "
            "folder of weights, or the name of a model that comes with pflow); --ckpt_path goes on with an old one",
        )
        parser.add_argument(
            "--ema.decay",
            type=float | None,
            default=None,
            help="fit: average the weights exponentially, keeping this share (e.g. 0.999) at each step; the average "
            "is what is validated and stored (default: no average)",
        )
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.add_lightning_class_args(EarlyStopping, "early_stopping")
        parser.link_arguments("output", "checkpoint.dirpath")
        parser.set_defaults(
            {
                "checkpoint.filename": "best",
                "checkpoint.monitor": "val/loss",
                "checkpoint.enable_version_counter": False,
                "early_stopping.monitor": "val/loss",
                "early_stopping.patience": 20,
                "early_stopping.strict": False,  # a run may end in the middle of an epoch, before any validation
            }
        )

    def _parse_ckpt_path(self) -> None:
        """Do nothing: the module and the data module take what they need from the checkpoint's header."""

    def instantiate_trainer(self, **options: Any) -> pl.Trainer:
        """The trainer with our loggers, progress bar and callbacks."""
        config = self.config_init[self.subcommand]
        own: list[pl.Callback] = [] if config["trainer"]["enable_progress_bar"] is False else [ProgressBar()]
        if self.subcommand == "fit":
            own += [EpochLine(), LearningRateMonitor("epoch"), config["checkpoint"], config["early_stopping"]]
            own.append(_last_checkpoint(config["output"]))
            if config["ema"]["decay"] is not None:
                own.append(AveragedWeights(config["ema"]["decay"]))
            if config["trainer"]["logger"] in (None, True):
                options["logger"] = _loggers(Path(config["output"]))
        else:
            options.update(logger=False, enable_checkpointing=False)
        if self.subcommand == "predict":
            own.append(ParticleWriter(config["output"]))
        return self._instantiate_trainer({**config["trainer"], **options}, own)

    def before_instantiate_classes(self) -> None:
        """Check `output`, and see to it that no code comes with a checkpoint.

        Raises
        ------
        ConfigError
            The folder already holds another run, or no file to write is given.
        """
        config = self.config[self.subcommand]
        if "weights_only" in config:
            config["weights_only"] = True  # whatever is asked for: no code from files
        if self.subcommand == "predict":
            if config["output"] is None:
                raise ConfigError("'predict' writes a ROOT file: say which with --output")
            config["return_predictions"] = False  # they are written as they come, not kept
            return
        if self.subcommand != "fit":
            return
        if config["output"] is None:
            config["output"] = str(Path("runs") / "pflow")
            config["checkpoint"]["dirpath"] = config["output"]
        folder = Path(config["output"])
        held = [name for name in ("best.ckpt", "last.ckpt") if (folder / name).exists()]
        continued = config.get("ckpt_path")
        if held and (continued is None or Path(continued).resolve().parent != folder.resolve()):
            raise ConfigError(
                f"{folder} already holds a run ({', '.join(held)}): choose another folder with --output, or continue "
                f"it with --ckpt_path {folder / held[-1]}"
            )

    def after_instantiate_classes(self) -> None:
        """Let the data module know of the checkpoint, from which the module takes its network.

        A training that goes on has the weights of its own checkpoint, whatever it began with.

        Raises
        ------
        InputError
            Not a trained model that pflow can use.
        ConfigError
            A training to continue of which there are the weights alone, or whose average would be lost.
        """
        config = self.config_init[self.subcommand]
        path = config.get("ckpt_path")
        start = config["start_from"] if self.subcommand == "fit" else None
        if path is None:
            if start is not None:
                self.datamodule.use_checkpoint(start, begin=True)
            return
        self.datamodule.use_checkpoint(path, inherit=start is not None)
        if self.subcommand != "fit":
            config["ckpt_path"] = None  # the module has all that it needs
            return
        if not Path(path).is_file():
            raise ConfigError(f"{path} holds weights alone: to continue a training, --ckpt_path takes its last.ckpt")
        decay = self.datamodule.checkpoint.header.get("provenance", {}).get("ema_decay")
        if decay is not None and config["ema"]["decay"] is None:
            raise ConfigError(f"the checkpoint to continue averages its weights: continue with --ema.decay {decay}")

    def after_fit(self) -> None:
        """Draw the training curves, and say where the best model is."""
        folder = Path(self.config["fit"]["output"])
        history = read_history(folder)
        if history and self.trainer.is_global_zero:
            figure = plot_training(history, text=folder.name)
            for kind in ("png", "pdf"):
                with replacing(folder / f"training.{kind}") as path:
                    path.write_bytes(rendered(figure, kind))
        best = self.trainer.checkpoint_callback.best_model_path
        if best and self.trainer.is_global_zero:
            print(f"best model: {best}")


def _plain(group: Any) -> dict[str, Any]:
    """Plain data of a group of options."""
    return dict(group.as_dict()) if isinstance(group, Namespace) else dict(group)


def _last_checkpoint(folder: str) -> ModelCheckpoint:
    """Keeps the newest state, better or not: Lightning's own ``save_last`` writes it with a new best one alone."""
    return ModelCheckpoint(dirpath=folder, filename="last", enable_version_counter=False)


def _loggers(folder: Path) -> list[Any]:
    """CSV and TensorBoard logs side by side in the next free ``logs/version_N`` of a run's folder."""
    used = [int(path.name.removeprefix("version_")) for path in (folder / "logs").glob("version_[0-9]*")]
    number = max(used, default=-1) + 1
    return [logger(save_dir=folder, name="logs", version=number) for logger in (CSVLogger, TensorBoardLogger)]


def main(argv: list[str]) -> int:
    """Run one of Lightning's verbs.

    Parameters
    ----------
    argv
        The verb (``fit``, ``validate``, ``test``, ``predict``) and its options.

    Returns
    -------
    int
        Exit code: 0 done, 1 interrupted, 2 wrong usage, 143 terminated.

    Raises
    ------
    PflowError
        A configuration, file or checkpoint that cannot be used.
    """
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)
    defaults = str(config_dir() / "base.yaml")
    with warnings.catch_warnings():
        # What Lightning calls in its own libraries is theirs to renew.
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category)
        for message in CHATTER:
            warnings.filterwarnings("ignore", message=message)
        try:
            TrainingCLI(
                ParticleFlow,
                ParticleFlowData,
                save_config_callback=SaveConfig,
                seed_everything_default=1,
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,
                parser_kwargs={verb: {"default_config_files": [defaults]} for verb in VERBS},
                args=argv,
            )
        except SIGTERMException:  # a SystemExit without a code, as if all were done
            print(f"pflow {argv[0]}: terminated", file=sys.stderr)
            return 143
        except SystemExit as leaving:
            return leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    return 0


VERBS = ("fit", "validate", "test", "predict")
