"""`pflow fit`: the Lightning command line around our module and data."""

from __future__ import annotations

import argparse
import logging
import pkgutil
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytorch_lightning as pl
import torch
from jsonargparse import ActionConfigFile
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.warnings import PossibleUserWarning

import pflow.model
from pflow.checkpoint.load import read_checkpoint
from pflow.cli.options import VERBS, nearest_options
from pflow.config import config_dir, load_yaml, resolve
from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError, PflowError
from pflow.io.atomic import disk_errors, replacing
from pflow.plots.style import rendered
from pflow.plots.training import plot_training
from pflow.train.callbacks import COLUMNS, AveragedWeights, EpochLine, Interrupted, StopOnSignal, release_ranks
from pflow.train.model_spec import ModelSpec
from pflow.train.module import MONITOR, ParticleFlow
from pflow.train.run_folder import AtomicCheckpointIO, check_run_folder, make_loggers, read_history

CHATTER = (
    r".*`__len__` defined.*",
    r".*Checkpoint directory .* exists and is not empty.*",
    r".*callbacks used to create the checkpoint need to be provided.*",
    r".*ended before the epoch ended and your dataloader is not resumable.*",
    r".*A single task has no `requires_grad`.*",
    r".*using the WeightAveraging callback with a model that overrides the configure_model.*",
    r".*checkpoint was not created with WeightAveraging.*",
    r".*dirpath has changed.*",  # a training that is resumed in another folder
    r".*could not find the monitored key.*",  # in an epoch without a validation
)
"""Warnings of Lightning on which a user of pflow need not act."""
AUTHORS = r"(pytorch_lightning|lightning_fabric|jsonargparse)\b"
"""Modules that call deprecated functions, which are for their authors to replace."""
SAVE_EVERY = timedelta(minutes=5)
"""The most of a training that is lost when its process is killed."""
PROG = "pflow fit"
LIGHTNING = ("trainer", "model_checkpoint", "early_stopping")
"""Groups of options that are Lightning's own."""
ARCHITECTURES = {
    module.name: f"pflow.model.{module.name}.{module.name.capitalize()}Reconstructor"
    for module in pkgutil.iter_modules(pflow.model.__path__)
    if module.ispkg and module.name != "common"
}
"""Classes of networks by the short names that ``--model.reconstructor`` takes."""
MODEL = {
    "checkpoint": ("checkpoint",),
    "start_from": ("start_from",),
    "class_path": ("model", "reconstructor", "class_path"),
}
"""Options that say which model is meant, and where configurations have them."""

MOST_USED = """\
used most:
  --data.train FILES --data.val FILES    to train on and to validate on; 'train/*.root' names several
  --config gamma1                        a configuration that comes with pflow, or a YAML file
  --start-from general                   begin with a trained model, whose options are the defaults
  --checkpoint RUN                       resume the training in this folder; needs no other option
  --trainer.max-epochs N                 how long; or --trainer.max-steps N
  --model.lr X                           highest learning rate
  --model.reconstructor.network.width N  size of the network; also .encoder-layers, .heads ...
  --data.batch-size N                    events in a batch
  --output RUN                           folder for checkpoints, logs and configuration
  --print-config                         show all options with their values, as YAML
"""


class BeginRun(pl.Callback):  # type: ignore[misc]
    """Writes ``config.yaml`` and begins the logs just before the first step, after all checks.

    `configuration` is written without ``checkpoint``: it says how to train, not which training to resume.
    """

    def __init__(self, folder: Path, parser: LightningArgumentParser, configuration: Any, *, loggers: bool) -> None:
        self.folder, self.parser, self.configuration = folder, parser, configuration.clone()
        self.configuration.pop("checkpoint", None)
        self.loggers, self.done = loggers, False

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, content: dict[str, Any]) -> None:
        """Tell the others where the checkpoints are, if the folder was moved: else they would forget the best one."""
        if Path(trainer.ckpt_path).resolve().parent == self.folder.resolve():
            for state in content["callbacks"].values():
                if "best_model_path" in state:
                    state.update(_moved(state, state["dirpath"], str(self.folder.resolve())))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write, unless it is a trial (``trainer.fast_dev_run``)."""
        self.done = True
        if trainer.fast_dev_run:
            return
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(self.folder / "config.yaml", force=True) as partial:
                self.parser.save(self.configuration, partial, skip_none=False, overwrite=True, multifile=False)
        if self.loggers:  # loggers write when they are made
            trainer.loggers = make_loggers(self.folder)
        groups = {group: self.configuration[group].as_dict() for group in ("model", "data", "trainer")}
        for logger in trainer.loggers:
            logger.log_hyperparams(groups)


class WrongUsageError(ConfigError):
    """An option that `pflow fit` does not have, or a value that it does not take."""


class Parser(LightningArgumentParser):  # type: ignore[misc]
    """A parser whose help shows our options before Lightning's, with dashes, and whose errors are short."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a WrongUsageError with the message and the nearest names."""
        wrong = re.search(r"rguments: --([\w.]+)|(?:Group '([\w.]+)' does not accept )?[Oo]ption '([\w.]+)'", message)
        suggestions = []
        if wrong and "nearest matches" not in message:  # as an architecture's own parser says
            suggestions = nearest_options(".".join(filter(None, wrong.groups())), self._option_string_actions)
        raise WrongUsageError(" ".join(message.split()), suggestions=suggestions) from ex

    def format_help(self, *args: Any) -> str:
        """The help text in the spelling that `_with_full_names` accepts, without options that do nothing in a fit."""
        for action in self._actions:
            if action.dest in ("trainer.limit_test_batches", "trainer.limit_predict_batches"):
                action.help = argparse.SUPPRESS
        lightning = [group for name, group in self.groups.items() if name in LIGHTNING]
        self._action_groups.sort(key=lightning.__contains__)  # argparse has no public name for them
        text = re.sub(r"default config file locations:.*?\n\n", "", super().format_help(*args), flags=re.DOTALL)
        text = text.replace("\n\noptions:", f"\n\n{MOST_USED}\noptions:", self.prog == PROG)
        return re.sub(r"--[\w.]+", lambda name: name[0].replace("_", "-"), text)


class ConfigFile(ActionConfigFile):  # type: ignore[misc]
    """A configuration: a file, or the name of one that comes with pflow."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Read it."""
        super().__call__(parser, cfg, str(resolve("", values)), option_string)


class TrainingCLI(LightningCLI):  # type: ignore[misc]
    """Trainer, module and data of a fit, with a trained model's options as defaults."""

    def __init__(self, options: Sequence[str]) -> None:
        try:
            with _without_chatter():
                super().__init__(
                    ParticleFlow,
                    ParticleFlowData,
                    save_config_callback=None,
                    seed_everything_default=1,
                    auto_configure_optimizers=False,
                    load_from_checkpoint_support=False,
                    parser_kwargs={"prog": PROG, "default_config_files": [str(config_dir() / "base.yaml")]},
                    args=_with_full_names(options),
                    run=False,
                )
        except PflowError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(str(error)) from error

    def init_parser(self, **options: Any) -> LightningArgumentParser:
        """A parser without arguments but ``--config``."""
        header = [f"pytorch_lightning=={pl.__version__}"]
        texts = {"usage": f"{PROG} [options]", "description": VERBS["fit"]}
        parser = Parser(**{**options, **texts}, dump_header=header, allow_abbrev=False)
        text = "YAML file, or the name of a built-in one: gamma1"
        parser.add_argument("-c", "--config", action=ConfigFile, help=text)
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Declare our options and links between options."""
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        checkpoint = "resume the training in this folder, or of this checkpoint in it, with its config.yaml"
        folder = "folder for checkpoints, logs and configuration"
        start = (
            "begin a new training with the weights of a trained model (a checkpoint, a folder of weights, or the name "
            "of a model that comes with pflow), whose options are the defaults"
        )
        average = (
            "average the weights exponentially, keeping this share (e.g. 0.999) at each step; the average is validated "
            "and stored (default: no average)"
        )
        parser.add_argument("--checkpoint", type=str | None, default=None, help=checkpoint)
        parser.add_argument("-o", "--output", type=str | None, default="runs/pflow", help=folder)
        parser.add_argument("--start_from", type=str | None, default=None, help=start)
        parser.add_argument("--ema.decay", type=float | None, default=None, help=average)
        parser.add_lightning_class_args(ModelCheckpoint, "model_checkpoint")
        parser.add_lightning_class_args(EarlyStopping, "early_stopping")
        parser.link_arguments("output", "model_checkpoint.dirpath")
        parser.set_defaults(
            {
                "model_checkpoint.filename": "best",
                "model_checkpoint.monitor": MONITOR,
                "model_checkpoint.enable_version_counter": False,
                "early_stopping.monitor": MONITOR,
                "early_stopping.patience": 20,
                "early_stopping.strict": False,  # a run may end in the middle of an epoch, before any validation
            }
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: list[str]) -> None:
        """Parse, with the options of the model that is meant as defaults."""
        given = _model_given(args)
        checkpoint = given["checkpoint"]
        if checkpoint is not None:
            args = _with_its_run(args, Path(checkpoint))
            given = _model_given(args)
        self.spec = ModelSpec.resolve(checkpoint=checkpoint, start_from=given["start_from"])
        self.spec.check_class(given["class_path"])
        defaults = self.spec.defaults()
        if given["class_path"] is not None:
            defaults.setdefault("model.reconstructor", {"class_path": given["class_path"]})
        parser.set_defaults(defaults)
        self.config = parser.parse_args(args)

    def before_instantiate_classes(self) -> None:
        """Check what the classes do not."""
        check_run_folder(self.folder, continued=self.spec.resumed)
        decay = self.spec.provenance.get("ema_decay")
        if self.spec.resumed and decay is not None and self.config["ema"]["decay"] is None:
            raise ConfigError(f"the checkpoint to continue averages its weights: continue with --ema.decay {decay}")

    def instantiate_trainer(self, **options: Any) -> pl.Trainer:
        """The trainer with our loggers and callbacks."""
        config = self.config_init
        given = (config["trainer"][name] or [] for name in ("plugins", "callbacks"))
        plugins, callbacks = ([*some] if isinstance(some, list) else [some] for some in given)
        options["plugins"] = [*plugins, AtomicCheckpointIO()]
        ours = config["trainer"]["logger"] in (None, True)
        self.begin = BeginRun(self.folder, self.parser, self.config, loggers=ours)
        callbacks += [self.begin, EpochLine()]
        callbacks += [LearningRateMonitor("epoch"), config["model_checkpoint"], config["early_stopping"]]
        # Lightning's ``save_last`` writes only beside a new best checkpoint.
        last = {"dirpath": self.folder, "filename": "last", "enable_version_counter": False}
        callbacks += [ModelCheckpoint(**last), ModelCheckpoint(**last, train_time_interval=SAVE_EVERY)]
        if config["ema"]["decay"] is not None:
            callbacks.append(AveragedWeights(config["ema"]["decay"]))
        callbacks.append(StopOnSignal(self.folder / "last.ckpt"))  # last: it stores the state of the others
        if config["trainer"]["strategy"] == "auto" and _several_devices(config["trainer"]):
            # A batch may not use all of a model: e.g. no event of it has a track.
            options["strategy"] = "ddp_find_unused_parameters_true"
        if ours:
            options["logger"] = bool(config["trainer"]["fast_dev_run"])  # else `BeginRun` makes them
        return pl.Trainer(**{**config["trainer"], **options, "callbacks": callbacks})

    def after_instantiate_classes(self) -> None:
        """Tell the module and the data of the model; check its tokens, and devices and nodes against a Slurm job."""
        environment = getattr(self.trainer.strategy, "cluster_environment", None)
        if environment is not None:
            environment.validate_settings(self.trainer.num_devices, self.trainer.num_nodes)
        self.spec.check_tokens(self.datamodule.token_config)
        self.datamodule.tokeniser = self.spec.tokeniser
        self.datamodule.begins_with_model = self.spec.purpose == "start"
        self.model.spec = self.spec

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(self.config["output"])

    def run(self) -> None:
        """Train, draw the training curves, and say which model is the best."""
        if self.trainer.is_global_zero:
            n = self.datamodule.tokeniser_events
            first = "" if self.spec.tokeniser else f"; first scales and vocabulary, from up to {n:,} training events"
            print(f"checkpoints, logs and configuration: {self.folder}{first}", flush=True)
            if self.spec.resumed:
                made = self.spec.provenance
                print(f"resume {self.spec.resumed}: epoch {made['epoch'] + 1}, step {made['step']}", flush=True)
        with disk_errors(self.folder):
            # No code from files.
            self.trainer.fit(self.model, self.datamodule, ckpt_path=self.spec.resumed, weights_only=True)
        release_ranks(self.trainer)  # they do not draw
        if not self.trainer.is_global_zero:
            return
        if self.spec.resumed and not self.begin.done:
            self._say_that_nothing_is_left()
        if history := read_history(self.folder):
            figure = plot_training(history, text=self.folder.name)
            for kind in ("png", "pdf"):
                with replacing(self.folder / f"training.{kind}", force=True) as path:
                    path.write_bytes(rendered(figure, kind))
        best, last = self.trainer.checkpoint_callback, self.folder / "last.ckpt"
        if best.best_model_score is not None and Path(best.best_model_path).is_file():
            epoch = read_checkpoint(best.best_model_path).header.provenance["epoch"] + 1
            quantity = COLUMNS.get(best.monitor, f"{best.monitor} {{:.4g}}").format(float(best.best_model_score))
            print(f"best model: {best.best_model_path} (epoch {epoch}, {quantity})")
        elif last.exists():
            print(f"no best model by {best.monitor}, without a validation; the last one is {last}")

    def _say_that_nothing_is_left(self) -> None:
        """Say which option to raise; ConfigError if the checkpoint is of another folder, which then stays empty."""
        last, trainer = self.spec.provenance, self.trainer
        by_steps = 0 < trainer.max_steps <= trainer.global_step
        option, done = ("max_steps", last["step"]) if by_steps else ("max_epochs", last["epoch"] + 1)
        text = (
            f"nothing left to train: {self.spec.resumed} has {done} {option[4:]}, and trainer.{option} is "
            f"{getattr(trainer, option)}; to train on, raise --trainer.{option.replace('_', '-')}"
        )
        if not (self.folder / "last.ckpt").exists():
            raise ConfigError(text)
        print(text)


def _moved(value: Any, old: str, new: str) -> Any:
    """Plain data with the beginning of each path in it replaced."""
    if isinstance(value, dict):
        return {_moved(key, old, new): _moved(part, old, new) for key, part in value.items()}
    return new + value.removeprefix(old) if isinstance(value, str) and value.startswith(old) else value


def _with_its_run(options: list[str], checkpoint: Path) -> list[str]:
    """Options of a resumed training: those given replace its run's, and it stays in its folder."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    if not (folder / "config.yaml").is_file():
        return options
    elsewhere = any(word.startswith(("-o", "--output")) for word in options)
    return ["--config", str(folder / "config.yaml"), *options, *([] if elsewhere else ["--output", str(folder)])]


def _model_given(options: Sequence[str]) -> dict[str, str | None]:
    """The model's options and configurations, before the full parse; later ones replace earlier ones."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    places = {"-c": "config", "--config": "config", "--model.reconstructor": "class_path"}
    places |= {f"--{'.'.join(keys)}": name for name, keys in MODEL.items()}
    for option, name in places.items():  # all in one list, in the order of the command line
        parser.add_argument(option, dest="given", action="append", type=partial(lambda *pair: pair, name), default=[])
    found: dict[str, str | None] = dict.fromkeys(MODEL)
    for name, value in parser.parse_known_args(options)[0].given:
        if name != "config":
            found[name] = None if value == "null" else value  # null takes back what was said before
            continue
        content = load_yaml(resolve("", value))
        for option, keys in MODEL.items():
            inner: Any = content
            for key in keys:
                inner = inner.get(key, "") if isinstance(inner, Mapping) else inner
            if inner != "":
                found[option] = inner
    return found


def _several_devices(trainer: Any) -> bool:
    """Whether a trainer's options ask for more than one device."""
    devices = trainer["devices"]
    if devices in ("auto", "-1", -1):
        return torch.cuda.device_count() > 1 or trainer["num_nodes"] > 1
    n_devices = len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdecimal() else 2
    return bool(n_devices * trainer["num_nodes"] > 1)


def _with_full_names(options: Sequence[str]) -> list[str]:
    """Options with underscores for dashes in their names, and architectures by their class."""
    words = [re.sub(r"^--[^=]+", lambda name: "--" + name[0][2:].replace("-", "_"), word) for word in options]
    name = "--model.reconstructor"
    for i, word in enumerate(words):
        option, equals, value = word.rpartition("=")
        if value in ARCHITECTURES and name in (option, words[i - 1]):
            words[i] = f"{option}{equals}{ARCHITECTURES[value]}"
    return words


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Silence Lightning's own messages."""
    for logger in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.seed"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category, module=AUTHORS)
        warnings.filterwarnings("ignore", category=PossibleUserWarning)
        warnings.filterwarnings("ignore", message="|".join(CHATTER))
        yield


def main(options: list[str]) -> int:
    """Run `pflow fit`; returns the exit code: 0 done, 2 wrong usage, 130 or 143 interrupted."""
    try:
        cli = TrainingCLI(options)
    except WrongUsageError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    except SystemExit as done:  # after --help or --print_config
        return int(done.code or 0)
    try:
        with _without_chatter():
            cli.run()
            return 0
    except Interrupted as stopped:
        code = 128 + int(stopped.args[0])
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning ignores it from here on
        code = 130
    if not cli.trainer.is_global_zero:
        return 0  # with another code Lightning would kill the first rank
    last, saved = cli.folder / "last.ckpt", "nothing was saved"
    if last.exists():
        saved = f"saved {last}; resume with: {PROG} --checkpoint {cli.folder}"
    print(f"{PROG}: {'interrupted' if code == 130 else 'terminated'}: {saved}", file=sys.stderr, flush=True)
    return code
