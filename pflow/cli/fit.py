"""`pflow fit | validate | test | predict`: the Lightning command line around our module and data."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from jsonargparse import Namespace
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.utilities.exceptions import SIGTERMException

from pflow.checkpoint.load import load_model
from pflow.cli.options import RaisesErrors
from pflow.config import config_dir
from pflow.data.datamodule import ParticleFlowData
from pflow.data.files import expand
from pflow.errors import ConfigError, PflowError
from pflow.inference.files import reconstruct_files
from pflow.io.atomic import check_output, replacing
from pflow.model.api import ModelInputs
from pflow.plots.style import rendered
from pflow.plots.training import plot_training
from pflow.train.callbacks import AveragedWeights, EpochLine, ProgressBar
from pflow.train.checkpoint_io import AtomicCheckpointIO
from pflow.train.history import read_history
from pflow.train.logs import make_loggers, writing_logs
from pflow.train.model_spec import ModelSpec
from pflow.train.module import ParticleFlow
from pflow.train.termination import Termination, release_ranks
from pflow.train.transfer import transfer_tokeniser

__all__ = ["TrainingCLI", "checked", "main"]

CHATTER = (
    r".*does not have many workers.*",
    r".*`__len__` defined.*",
    r".*args parameter is intended to run from within Python.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*callbacks used to create the checkpoint need to be provided.*",
    r".*ended before the epoch ended and your dataloader is not resumable.*",
    r".*A single task has no `requires_grad`.*",
    r".*number of training batches .* is smaller than the logging interval.*",
    r".*`srun` command is available on your system but is not used.*",  # on any machine where Slurm is installed
    r".*using the WeightAveraging callback with a model that overrides the configure_model.*",
    r".*checkpoint was not created with WeightAveraging.*",
)
"""Warnings of Lightning on which a user of pflow need not act."""

CLASS = "model.reconstructor"


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
        with replacing(folder / self.config_filename) as partial:
            self.parser.save(self.config, partial, skip_none=False, overwrite=True, multifile=False)


class DashesInHelp(LightningArgumentParser):  # type: ignore[misc]
    """A parser whose help shows dashes in names of options, as that of the other verbs."""

    def format_help(self, *args: Any) -> str:
        """The help text; `_with_underscores` accepts what it shows."""
        return re.sub(r"--[\w.]+", lambda name: name[0].replace("_", "-"), super().format_help(*args))


class TrainingCLI(LightningCLI):  # type: ignore[misc]
    """Lightning's command line with a trained model's options as defaults, and one folder for all that a run writes."""

    def parse_arguments(self, parser: LightningArgumentParser, args: list[str]) -> None:
        """Resolve which model is meant, make its options the defaults, and parse."""
        verb, *options = [_with_underscores(word) for word in args]
        given = _peek(options, {"start_from", "checkpoint", CLASS, f"{CLASS}.class_path"})
        asks = {"-h", "--help", "--print_config"} & {option.partition("=")[0] for option in options}
        self.spec = ModelSpec()
        if not asks or {"checkpoint", "start_from"} & given.keys():
            self.spec = ModelSpec.resolve(verb, checkpoint=given.get("checkpoint"), start_from=given.get("start_from"))
        class_path = given.get(f"{CLASS}.class_path", given.get(CLASS))
        self.spec.check_class(class_path)
        defaults = self.spec.defaults()
        if class_path is not None:
            defaults.setdefault(CLASS, {"class_path": class_path})
        self._subcommand_parsers[verb].set_defaults(defaults)
        super().parse_arguments(parser, [verb, *options])

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Verbs, and the arguments of the trainer's methods that are not options: `--checkpoint` stands for them."""
        ours = {"model", "datamodule", "ckpt_path", "weights_only", "return_predictions"}
        return {
            "fit": {*ours, "train_dataloaders", "val_dataloaders"},
            **{verb: {*ours, "dataloaders"} for verb in ("validate", "test", "predict")},
        }

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Declare our options and links between options."""
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.add_argument(
            "-o",
            "--output",
            type=str | None,
            default=None,
            help="fit: folder for checkpoints, logs and configuration (default: runs/pflow); predict: ROOT file",
        )
        parser.add_argument(
            "--checkpoint",
            type=str | None,
            default=None,
            help="fit: continue the training of this checkpoint (last.ckpt); other verbs: the trained model",
        )
        parser.add_argument(
            "--force", action="store_true", help="predict: replace a file that is not an earlier output of pflow"
        )
        parser.add_argument(
            "--start_from",
            type=str | None,
            default=None,
            help="fit: begin a new training with the weights of a trained model (a checkpoint, a folder of weights, or "
            "the name of a model that comes with pflow), whose options are the defaults",
        )
        parser.add_argument(
            "--ema.decay",
            type=float | None,
            default=None,
            help="fit: average the weights exponentially, keeping this share (e.g. 0.999) at each step; the average "
            "is validated and stored (default: no average)",
        )
        parser.add_lightning_class_args(ModelCheckpoint, "model_checkpoint")
        parser.add_lightning_class_args(EarlyStopping, "early_stopping")
        parser.link_arguments("output", "model_checkpoint.dirpath")
        parser.set_defaults(
            {
                "model_checkpoint.filename": "best",
                "model_checkpoint.monitor": "val/loss",
                "model_checkpoint.enable_version_counter": False,
                "early_stopping.monitor": "val/loss",
                "early_stopping.patience": 20,
                "early_stopping.strict": False,  # a run may end in the middle of an epoch, before any validation
            }
        )

    def instantiate_trainer(self, **options: Any) -> pl.Trainer:
        """The trainer with our loggers, progress bar and callbacks."""
        config = self.config_init[self.subcommand]
        options["plugins"] = [*_listed(config["trainer"]["plugins"]), AtomicCheckpointIO()]
        own: list[pl.Callback] = [] if config["trainer"]["enable_progress_bar"] is False else [ProgressBar()]
        if self.subcommand == "fit":
            own += [EpochLine(), LearningRateMonitor("epoch"), config["model_checkpoint"], config["early_stopping"]]
            own.append(_last_checkpoint(config["output"]))
            if config["ema"]["decay"] is not None:
                own.append(AveragedWeights(config["ema"]["decay"]))
            own.append(Termination(Path(config["output"]) / "last.ckpt"))  # after what it stores is in order
            if config["trainer"]["strategy"] == "auto" and _several_devices(config["trainer"]):
                # A batch may not use all of a model: e.g. no event of it has a track.
                options["strategy"] = "ddp_find_unused_parameters_true"
            if config["trainer"]["logger"] in (None, True):
                options["logger"] = make_loggers(Path(config["output"]))
        else:
            options.update(logger=False, enable_checkpointing=False)
        return self._instantiate_trainer({**config["trainer"], **options}, own)

    def before_instantiate_classes(self) -> None:
        """Check `output`.

        Raises
        ------
        ConfigError
            The folder already holds another run or cannot be made, no file to write is given, or a training that
            averages its weights is to go on without.
        """
        config = self.config[self.subcommand]
        if self.subcommand == "predict" and config["output"] is None:
            raise ConfigError("'predict' writes a ROOT file: say which with --output")
        if self.subcommand != "fit":
            return
        if config["output"] is None:
            config["output"] = str(Path("runs") / "pflow")
            config["model_checkpoint"]["dirpath"] = config["output"]
        folder = Path(config["output"])
        _check_run_folder(folder)
        held = [name for name in ("best.ckpt", "last.ckpt") if (folder / name).exists()]
        continued = config["checkpoint"]
        if held and (continued is None or Path(continued).resolve().parent != folder.resolve()):
            raise ConfigError(
                f"{folder} already holds a run ({', '.join(held)}): choose another folder with --output, or continue "
                f"it with --checkpoint {folder / held[-1]}"
            )
        if self.spec.purpose == "continue" and self.spec.checkpoint is not None and config["ema"]["decay"] is None:
            decay = self.spec.checkpoint.header.provenance.get("ema_decay")
            if decay is not None:
                raise ConfigError(f"the checkpoint to continue averages its weights: continue with --ema.decay {decay}")

    def instantiate_classes(self) -> None:
        """Make trainer, module and data.

        Raises
        ------
        ConfigError
            A value of an option that its class refuses, or devices and nodes that are not those of the Slurm job.
        """
        try:
            super().instantiate_classes()
            environment = getattr(self.trainer.strategy, "cluster_environment", None)
            if environment is not None:
                environment.validate_settings(self.trainer.num_devices, self.trainer.num_nodes)
        except PflowError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(str(error)) from error

    def after_instantiate_classes(self) -> None:
        """Tell the module and the data of the model that was resolved.

        Raises
        ------
        ConfigError
            Tokens are set that are not those of the model.
        """
        self.spec.check_recipe(self.datamodule.token_config)
        self.datamodule.tokeniser = self.spec.tokeniser
        if self.spec.purpose == "start":
            self.datamodule.transfer = transfer_tokeniser
        self.model.spec = self.spec

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        found: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand == "fit":  # no code from files
            found |= {"ckpt_path": self.config_init["fit"]["checkpoint"], "weights_only": True}
        return found

    def _run_subcommand(self, subcommand: str) -> None:
        if subcommand != "fit":
            super()._run_subcommand(subcommand)
            return
        with writing_logs(Path(self.config["fit"]["output"])):
            super()._run_subcommand(subcommand)

    def predict(self, model: ParticleFlow, datamodule: ParticleFlowData) -> None:
        """Reconstruct the files to predict, as `pflow reconstruct` does."""
        assert self.spec.checkpoint is not None
        assert datamodule.tokeniser is not None
        configured = model.make_reconstructor(ModelInputs(**datamodule.tokeniser.model_inputs))
        self.spec.check_network(configured)
        trained = load_model(self.spec.checkpoint.path)
        trained.reconstructor.decoding = configured.decoding
        options = datamodule.options
        reconstruct_files(
            expand(datamodule.paths["predict"], "predict"),
            checkpoint=trained,
            output=self.config_init["predict"]["output"],
            force=self.config_init["predict"]["force"],
            detector=options.detector,
            schema=options.schema,
            layout=self.config["predict"]["data"]["layout"],
            on_error=options.on_error,
            batch_size=datamodule.batch_size,
            chunk_size=datamodule.chunk_size,
            device=str(self.trainer.strategy.root_device),
        )

    def after_fit(self) -> None:
        """Draw the training curves, and say where the best model is."""
        release_ranks(self.trainer)  # they do not draw
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


class CheckingParser(RaisesErrors, DashesInHelp):
    """The parser of a command line that is only checked."""


class CheckedCLI(TrainingCLI):
    """A command line that makes trainer, module and data, and runs nothing."""

    def _set_seed(self) -> None:
        pass

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def _check_run_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made, or in which something would be lost that no run wrote."""
    there = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    if not there.is_dir():
        raise ConfigError(f"cannot write to folder {folder}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to folder {folder}: no permission to write in {there}")
    if there == folder:
        check_output(folder / "config.yaml", replace=b"# pytorch_lightning==")


def _listed(value: Any) -> list[Any]:
    """A value that may be a list, one item or None, as a list."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _several_devices(trainer: Any) -> bool:
    """Whether a trainer's options ask for more than one device."""
    devices = trainer["devices"]
    if devices in ("auto", "-1", -1):
        return torch.cuda.device_count() > 1 or trainer["num_nodes"] > 1
    n_devices = len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdecimal() else 2
    return bool(n_devices * trainer["num_nodes"] > 1)


def _with_underscores(word: str) -> str:
    """An option with underscores for dashes in its name; ``--data.chunk-size`` is ``--data.chunk_size``."""
    return re.sub(r"^--[^=]+", lambda name: "--" + name[0][2:].replace("-", "_"), word)


def _peek(options: list[str], names: set[str]) -> dict[str, str]:
    """Values of some options before the parse, from configuration files and the command line.

    The last one counts; null takes back what was said before.
    """
    found: dict[str, str] = {}
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        name = {"-c": "--config"}.get(name, name).removeprefix("--")
        if name not in names | {"config"}:
            continue
        value = value if equals else next(words, "")
        if name == "config" and Path(value).is_file():
            content = yaml.safe_load(Path(value).read_text(encoding="utf-8"))
            for dotted in names:
                inner: Any = content
                for key in dotted.split("."):
                    inner = inner.get(key, "") if isinstance(inner, dict) else ""
                if inner is None:
                    found.pop(dotted, None)
                elif isinstance(inner, str) and inner:
                    found[dotted] = inner
        elif value in ("", "null"):
            found.pop(name, None)
        else:
            found[name] = value
    return found


def _last_checkpoint(folder: str) -> ModelCheckpoint:
    """Writes ``last.ckpt`` whether it is the best or not; Lightning's ``save_last`` writes only with a new best one."""
    return ModelCheckpoint(dirpath=folder, filename="last", enable_version_counter=False)


def checked(argv: list[str]) -> TrainingCLI:
    """What one of Lightning's verbs would run with some options, none of which is wrong; nothing is run.

    Parameters
    ----------
    argv
        As of `main`.

    Raises
    ------
    PflowError
        An option that the verb does not have, a value that it does not take, or a checkpoint that cannot be used.
    """
    return _command_line(argv, CheckedCLI, CheckingParser)


def main(argv: list[str]) -> int:
    """Run one of Lightning's verbs.

    Parameters
    ----------
    argv
        The verb (``fit``, ``validate``, ``test``, ``predict``) and its options.

    Returns
    -------
    int
        Exit code: 0 done, 2 wrong usage, 143 terminated.

    Raises
    ------
    PflowError
        A configuration, file or checkpoint that cannot be used.
    KeyboardInterrupt
        The training was interrupted.
    """
    try:
        _command_line(argv, TrainingCLI, DashesInHelp)
    except SIGTERMException:  # a SystemExit without a code, as if all were done
        print(f"pflow {argv[0]}: terminated", file=sys.stderr)
        return 143
    except SystemExit as leaving:
        if isinstance(leaving.__context__, KeyboardInterrupt):  # Lightning's exit, after which it ignores SIGINT
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt from None
        return leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    return 0


def _command_line(argv: list[str], kind: type[TrainingCLI], parser: type[DashesInHelp]) -> TrainingCLI:
    logging.getLogger("pytorch_lightning.utilities.rank_zero").setLevel(logging.WARNING)
    defaults = str(config_dir() / "base.yaml")
    with warnings.catch_warnings():
        # Deprecated functions that Lightning calls are for its authors to replace.
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category)
        for message in CHATTER:
            warnings.filterwarnings("ignore", message=message)
        return kind(
            ParticleFlow,
            ParticleFlowData,
            save_config_callback=SaveConfig,
            parser_class=parser,
            seed_everything_default=1,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={verb: {"default_config_files": [defaults]} for verb in TrainingCLI.subcommands()},
            args=argv,
        )
