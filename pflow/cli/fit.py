"""`pflow fit | validate | test | predict`: Lightning's command line, for new models, trained ones, and resumes."""

from __future__ import annotations

import logging
import os
import pkgutil
import re
import signal
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, StochasticWeightAveraging
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.warnings import PossibleUserWarning

import pflow.model
from pflow.checkpoint import Checkpoint, check_weights, read_checkpoint
from pflow.cli.main import nearest_options, warn_of_training
from pflow.config import config_dir, load_yaml, resolve, to_plain
from pflow.data.datamodule import ParticleFlowData
from pflow.errors import ConfigError, PflowError
from pflow.io.atomic import disk_errors
from pflow.io.open import matching
from pflow.train.callbacks import (
    COLUMNS,
    AtomicCheckpointIO,
    AveragedWeights,
    EpochLine,
    Interrupted,
    LastCheckpoint,
    NoLogger,
    RunFolder,
    StopOnSignal,
    best_of,
    check_run_folder,
)
from pflow.train.module import ParticleFlow

CHATTER = (
    *("`__len__` defined", "Checkpoint directory .* exists and is not empty", "dirpath has changed"),
    *("callbacks used to create the checkpoint need to be provided", "intended to run from within Python"),
    *("WeightAveraging callback with a model that overrides", "checkpoint was not created with WeightAveraging"),
    "could not find the monitored key",  # in an epoch without a validation
    "Couldn't infer the batch indices",  # a `Prediction` has its entries
)
"""Warnings of Lightning on which a user of pflow need not act."""
SAVE_EVERY = timedelta(minutes=5)
"""The most of a training that is lost when its process is killed."""
ARCHITECTURES = {
    module.name: f"pflow.model.{module.name}.{module.name.capitalize()}Reconstructor"
    for module in pkgutil.iter_modules(pflow.model.__path__)
    if module.ispkg
}
"""Classes of networks by the short names that ``--model.reconstructor`` takes."""

DECISIVE = {
    "--checkpoint": "checkpoint",
    "--ckpt_path": "ckpt_path",
    "--start_from": "start_from",
    "--model.reconstructor": "class_path",
    "--model.reconstructor.class_path": "class_path",
    "--model.reconstructor.help": "class_path",
    **dict.fromkeys(("-o", "--output"), "output"),
}
"""Options that choose the model, on the command line and in configurations."""

FILES = ("--data.train", "--data.val", "--data.test")
SEVERAL = "several files are a list, '[a.root, b.root]', or a pattern, 'train*.root'"

LINKED = {
    "model.start_from": "start_from",
    "data.seed": "seed_everything",
    "model_checkpoint.dirpath": "output",
    "early_stopping.monitor": "model_checkpoint.monitor",
    "early_stopping.mode": "model_checkpoint.mode",
}
"""Options that take the value of another one; jsonargparse ignores a value of their own in a configuration."""

IN_WORDS = {
    r"Expected a <class '(?:\w+\.)*(\w+)'>": r"expected \1",
    " or expected ": " or ",
    r"Expected a typing\.Literal\[(.*?)\]": r"expected one of \1",
    r"Call to compute_fn of link .*? failed: ": "",
    "Expected a dot import path string: ": "expected a class, found ",
    r"\. Got value: ": ", found ",
}
"""Parts of jsonargparse's messages, and what the user reads instead."""

MOST_USED = """\
most used:
  --data.train FILES --data.val FILES    training and validation files; 'train/*.root' matches several
  --config gamma1                        a configuration that comes with pflow, or a YAML file
  --start-from general                   start from a trained model; its options become the defaults
  --checkpoint RUN                       resume the training in this folder; needs no other option
  --trainer.max-epochs N                 length of the training; or --trainer.max-steps N
  --model.lr X                           highest learning rate
  --model.reconstructor.network.width N  size of the network; also .encoder-layers, .heads ...
  --data.batch-size N                    events in a batch
  --output RUN                           folder for checkpoints, logs and configuration
  --print-config                         show all options with their values, as YAML
"""


class Run(NamedTuple):
    """What a command trains or evaluates: a new model, or a trained one, whose options are the defaults."""

    words: list[str]
    """The options to parse."""
    defaults: dict[str, Any]
    """Changed defaults, by option name."""
    model: Checkpoint | None = None
    resumes: bool = False
    """Whether the training of `model` is continued, with the configuration of its folder."""


def resolve_run(verb: str, args: Sequence[str]) -> Run:
    """Choose between resume, start from a model, and a new model; the last value of each option counts.

    Options are read from the command line and its configurations. ConfigError: the training to resume has no
    checkpoint, or only weights; the weights belong to another network class; an option of `LINKED` is given.
    InputError: not a trained model that pflow can use.
    """
    words: list[str] = []
    given: dict[str, str | None] = dict.fromkeys(DECISIVE.values())
    weights: tuple[str, set[str]] | None = None  # the last configuration with weights of losses, and their names
    for word in args:
        name, equals, value = word.partition("=") if word.startswith("--") else (words[-1] if words else "", "", word)
        # jsonargparse knows options by underscores alone; users may write dashes.
        name = f"--{name[2:].replace('-', '_')}" if name.startswith("--") else name
        if name in ("-c", "--config") and value:
            value = str(resolve("", value))
            config = load_yaml(value)
            for path in DECISIVE:
                inner = _at(config, path.removeprefix("--"))
                # null takes back an earlier value; "" means that the configuration says nothing.
                if isinstance(inner, str | None) and inner != "":
                    given[DECISIVE[path]] = inner
            named = _at(config, "model.reconstructor.init_args.loss.weights")
            weights = (value, {*named}) if isinstance(named, dict) else weights
            for path in LINKED:
                if _at(config, path) not in ("", None):
                    raise ConfigError(f"{value}: {path} takes the value of {LINKED[path]}: give that instead")
        elif (path := name.removeprefix("--")) in LINKED:
            raise ConfigError(f"{name} takes the value of --{LINKED[path].replace('_', '-')}: give that instead")
        elif name in DECISIVE and value:
            value = ARCHITECTURES.get(value, value) if DECISIVE[name] == "class_path" else value
            given[DECISIVE[name]] = None if value == "null" else value
        elif weights and ".loss.weights." in name:
            weights[1].add(name.rpartition(".")[2])
        words.append(f"{name}{equals}{value}" if word.startswith("--") else value)
    for name in FILES:
        if sum(word.partition("=")[0] == name for word in words) > 1:
            warnings.warn(f"{name} is given twice, and the last one counts: {SEVERAL}", stacklevel=2)
    if (wanted := given["ckpt_path"]) in ("best", "last"):  # Lightning looks for them after the model is made
        folder = Path(given["output"] or load_yaml(config_dir() / "base.yaml")["output"]).expanduser()
        if (named := folder / f"{wanted}.ckpt").is_file():
            given["ckpt_path"] = str(named)
            words.append(f"--ckpt_path={named}")
    resumed, start, class_path = given["checkpoint"], given["start_from"], given["class_path"]
    if verb != "fit":
        if resumed is not None and any(word.startswith("--start_from") for word in words):
            raise ConfigError("--checkpoint and --start-from both name the model: give one of them")
        words += [] if resumed is None else [f"--start_from={resumed}"]
        start, resumed = resumed or given["ckpt_path"] or start, None
    elif resumed is None:
        resumed = given["ckpt_path"]
    else:
        folder = Path(resumed) if Path(resumed).is_dir() else Path(resumed).parent
        if (folder / "config.yaml").is_file():
            there = any(word.startswith(("-o", "--output")) for word in words)
            # The folder's configuration comes first, so that options of the command line override it.
            words = ["--config", str(folder / "config.yaml"), *words, *([] if there else ["--output", str(folder)])]
            resumed = str(folder / "last.ckpt") if Path(resumed).is_dir() else resumed
            if not Path(resumed).is_file():
                begin = f"begin it again, with pflow fit --config {folder}/config.yaml"
                raise ConfigError(f"{folder} has no last.ckpt to resume: {begin}")
            began = load_yaml(folder / "config.yaml").get("start_from")
            if start is not None and Path(start).name != Path(str(began)).name:  # by name: the run may have been moved
                text = f"--checkpoint resumes {folder}, which began with {began or 'random weights'}, not {start}"
                raise ConfigError(f"{text}: leave out --start-from")
    if (source := resumed or start) is None or source in ("best", "last", "hpc"):  # words of Lightning's ckpt_path
        return Run(words, {"model.reconstructor": {"class_path": class_path or ARCHITECTURES["pointing"]}})
    model = read_checkpoint(source)
    check_weights(model)  # so that its options are safe defaults: they make a network that its weights fit
    if resumed and not Path(resumed).is_file():
        raise ConfigError(
            f"{resumed} holds weights alone: to continue a training, --checkpoint takes its last.ckpt; "
            "--start-from begins a new one with them"
        )
    theirs = model.header.model["class_path"]
    if class_path is not None and class_path not in (theirs, theirs.rpartition(".")[2]):
        wrong = f"model.reconstructor.class_path is {class_path}, but the weights have {theirs}"
        raise ConfigError(f"{model.path}: {wrong}")
    # A mapping in a configuration replaces the whole one, and weights that it does not name are 1.
    before = {name: w for name, w in (_at(dict(model.header.model), "init_args.loss.weights") or {}).items() if w != 1}
    if weights and (lost := before.keys() - weights[1]):
        text = ", ".join(f"{name} (the model's: {before[name]:g})" for name in sorted(lost))
        warnings.warn(f"{weights[0]}: weights of losses that it does not name are 1: {text}", stacklevel=2)
    tokens = {f"data.{name}": value for name, value in to_plain(model.header.tokeniser.config).items()}
    # No option of the data: the model says whether batches have a readout (`use_readout`).
    tokens.pop("data.readout")
    return Run(words, {"model.reconstructor": dict(model.header.model), **tokens}, model, resumes=resumed is not None)


def _at(config: Any, path: str) -> Any:
    """The value at a dotted path of a configuration; "": it says nothing of it."""
    for key in path.split("."):
        config = config.get(key, "") if isinstance(config, dict) else ""
    return config


class Parser(LightningArgumentParser):  # type: ignore[misc]
    """A parser with dashes in its help and one-line errors that give the nearest names."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a ConfigError: the option, the mistake and the nearest names, in one line."""
        text = re.sub(r"Expected a path but \S+ either not accessible or invalid", "", " ".join(message.split()))
        key = ".".join(re.findall(r'Parser key "([\w.]+)"', text))
        value = re.search(r"Given value: (?!NestedArg|Namespace)(\S+)$", text)
        # jsonargparse lists the error of each type of a union; the user did not mean the plain types.
        text = re.sub(r'Parser key "[\w.]+":|Does not validate.*?Errors:| Given value type.*', "", text)
        text = re.sub(r" Subclass types expect one of:.*?\(implicit class_path\)", "", text)
        reasons = [part.strip() for part in text.split(" - ") if part.strip()]
        plain = " or ".join(part for part in reasons if not part.endswith("<class 'NoneType'>"))
        plain = next((part for part in reasons if not part.startswith("Expected a <class")), plain)
        reason = next((part for part in reasons if "arguments are required" in part), plain)
        for theirs, ours in IN_WORDS.items():
            reason = re.sub(theirs, ours, reason)
        reason += f", found {value[1]}" if value and ", found " not in reason else ""
        wrong = re.search(r"rguments: --([\w.]+)|(?:Group '([\w.]+)' does not accept )?[Oo]ption '([\w.]+)'", reason)
        suggestions = []
        if wrong and "nearest matches" not in reason:  # an architecture's own parser has added them
            known = getattr(self, "of_verb", self)._option_string_actions  # type: ignore[union-attr]
            suggestions = nearest_options(".".join(filter(None, wrong.groups())), known)
            if wrong[1] == "lr_scheduler":  # Lightning's
                suggestions = ["--model.warmup", "--model.final_lr"]
        if key:
            reason = f"--{key}.{reason[2:]}" if re.match(r"--[\w.]+:", reason) else f"--{key}: {reason}"
        reason = re.sub(r"^(--[\w.]+): .*arguments are required: (\w+)$", r"\1 needs \2, too: give \1.\2", reason)
        if re.search(r"rguments: [^-]", reason):
            reason += f": {SEVERAL}"
        raise ConfigError(reason, suggestions=suggestions) from ex

    def format_help(self, *args: Any) -> str:
        """The help text with dashes."""
        text = re.sub(r"default config file locations:.*?\n\n", "", super().format_help(*args), flags=re.DOTALL)
        return re.sub(r"--[\w.]+", lambda name: name[0].replace("_", "-"), text)


def _number(seed: bool | int) -> int:
    """The seed, with which a training is the same again; Lightning's ``true`` would be 0 for it and 1 for the data."""
    if isinstance(seed, bool):
        raise ConfigError(f"seed_everything is {seed}: give a number, with which the training is the same again")
    return seed


class TrainingCLI(LightningCLI):  # type: ignore[misc]
    """Lightning's command line for `ParticleFlow` and `ParticleFlowData`; without `run` it only makes the objects."""

    def __init__(self, verb: str, args: Sequence[str], *, run: bool = True) -> None:
        self.verb, self.chosen = verb, resolve_run(verb, args)
        self.resumed = self.chosen.model if self.chosen.resumes else None
        usage = f"pflow {verb} [options]" + (f"\n\n{MOST_USED}" if verb == "fit" else "")
        common = {"default_config_files": [str(config_dir() / "base.yaml")], "allow_abbrev": False}
        with _without_chatter():
            super().__init__(
                ParticleFlow,
                ParticleFlowData,
                save_config_callback=None,
                seed_everything_default=1,
                parser_class=Parser,
                parser_kwargs={verb: {**common, "usage": usage}, "allow_abbrev": False} if run else common,
                args=[*([verb] if run else []), *self.chosen.words],
                run=run,
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,
            )

    def subcommands(self) -> dict[str, set[str]]:
        """Only add the subcommand of this verb: each parser takes a second to make."""
        return {self.verb: LightningCLI.subcommands()[self.verb]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Declare our options and links between options."""
        self.parser.of_verb = parser
        seed = "seed of random numbers, with which a training is the same again"
        parser._option_string_actions["--seed_everything"].help = f"{seed} (a whole number, default: %(default)s)"
        parser.set_defaults(self.chosen.defaults)
        resume = "fit: resume the training in this folder, or from this checkpoint in it; else: the trained model"
        start = "start a new training from the weights of a trained model; the options of its network and its tokens "
        start += "become the defaults, its learning rate does not (1e-4 to 3e-4 fine-tune general)"
        average = "validate and store an exponential average of the weights, with this decay per step (e.g. 0.999)"
        parser.add_argument("--checkpoint", type=str | None, default=None, help=resume)
        parser.add_argument("-o", "--output", type=str, help="folder for checkpoints, logs and configuration")
        parser.add_argument("--start_from", type=str | None, default=None, help=start)
        parser.add_argument("--ema.decay", type=float | None, default=None, help=average)
        parser.add_lightning_class_args(ModelCheckpoint, "model_checkpoint")
        parser.add_lightning_class_args(EarlyStopping, "early_stopping")
        parser.add_lightning_class_args(LearningRateMonitor, "learning_rate_monitor")
        parser.link_arguments("seed_everything", "data.seed", compute_fn=_number)
        resumes = self.chosen.resumes  # its weights come from the checkpoint, not from `start_from`
        parser.link_arguments("start_from", "model.start_from", compute_fn=lambda start: None if resumes else start)
        parser.link_arguments("output", "model_checkpoint.dirpath", compute_fn=os.path.expanduser)
        for name in ("monitor", "mode"):  # early stopping follows the quantity of the best checkpoint
            parser.link_arguments(f"model_checkpoint.{name}", f"early_stopping.{name}")

    def before_instantiate_classes(self) -> None:
        """Check what the classes do not."""
        self.options = self.config[self.subcommand] if self.subcommand else self.config
        self.folder = Path(self.options["output"]).expanduser()
        split = {"fit": "train", "validate": "val"}.get(self.verb, self.verb)
        limit = f"limit_{split}_batches"
        if self.options["trainer"][limit] == 0:
            raise ConfigError(f"trainer.{limit} is 0, so pflow {self.verb} would do nothing: give a number of batches")
        if self.verb == "fit":
            for name, forbids in (("enable_checkpointing", False), ("barebones", True)):
                if self.options["trainer"][name] is forbids:
                    text = f"trainer.{name} is {forbids}, but pflow fit writes checkpoints: use a Trainer in Python"
                    raise ConfigError(text)
            saved = self.options["model_checkpoint"]
            if saved["save_top_k"] not in (0, 1) and "{" not in (saved["filename"] or "{"):
                text = (
                    f"model_checkpoint.save_top_k is {saved['save_top_k']}, but all would be {saved['filename']}.ckpt"
                )
                raise ConfigError(f"{text}: give each a name, as --model_checkpoint.filename 'best-{{epoch}}'")
            if saved["save_last"] == "link":
                raise ConfigError(
                    "model_checkpoint.save_last: pflow fit writes last.ckpt itself, no link: leave it out"
                )
            check_run_folder(self.folder, continued=self.resumed.path if self.resumed else None)
        if self.subcommand and self.options["weights_only"] is None:
            self.options["weights_only"] = True  # no code from files

    def instantiate_classes(self) -> None:
        """Make trainer, module and data; a ConfigError for options that they refuse."""
        try:
            super().instantiate_classes()
            environment = getattr(self.trainer.strategy, "cluster_environment", None)
            if environment is not None:  # devices and nodes against a Slurm job
                environment.validate_settings(self.trainer.num_devices, self.trainer.num_nodes)
        except PflowError:
            raise
        except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
            # Of a union jsonargparse gives the error of each type, e.g. of a logger whose library is not installed.
            text = " ".join(str(error).split())
            found = re.search(r"Problem with given class_path '([\w.]+'): (.*?)(?: - Expected a |$)", text)
            raise ConfigError(f"'{found[1]}: {found[2]}" if found else str(error)) from error
        split = {"fit": "" if self.resumed else "val", "validate": "val", "test": "test"}.get(self.verb, "")
        if self.chosen.model and (paths := self.datamodule.paths.get(split)):
            warn_of_training(self.chosen.model.header.to_dict(), matching(paths), calibration=False)
        # Before `setup` of the data, which would fit a new tokeniser for a model without one.
        if self.resumed:
            self.model.tokeniser = self.resumed.header.tokeniser

    def instantiate_trainer(self, **changed: Any) -> pl.Trainer:
        """The trainer with the configured callbacks and pflow's; in a fit also with pflow's loggers."""
        given = self._get(self.config_init, "trainer")
        plugins, callbacks = (
            [*some] if isinstance(some, list) else [some]
            for some in (given[name] or [] for name in ("plugins", "callbacks"))
        )
        logs = given["logger"] in (None, True)  # `RunFolder` makes them
        if logs or given["logger"] is False:
            changed["logger"] = NoLogger(self.folder) if self.verb == "fit" else False
        if self.verb == "predict" and not callbacks:
            keep = "pflow reconstruct writes particles to a file, and so may a callback (--trainer.callbacks); "
            keep += "a prediction has the paths and entries of its events"
            warnings.warn(f"nothing is kept of what is predicted: {keep}", stacklevel=2)
        devices = torch.cuda.device_count() if given["devices"] in ("auto", "-1", -1) else given["devices"]
        if given["strategy"] == "auto" and (devices not in (0, 1, "1") or given["num_nodes"] > 1):
            # A batch may not use all of a model: e.g. no event of it has a track.
            changed["strategy"] = "ddp_find_unused_parameters_true"
        if self.verb == "fit":
            if any(isinstance(callback, StochasticWeightAveraging) for callback in callbacks):
                raise ConfigError("StochasticWeightAveraging: its average would be in no checkpoint: use --ema.decay")
            callbacks.insert(0, RunFolder(self.folder, self.parser.of_verb, self.options, logs=logs))
            changed["default_root_dir"] = given["default_root_dir"] or self.folder  # of what callbacks write
            # Lightning's ``save_last`` writes only beside a new best checkpoint.
            last = {"dirpath": self.folder, "filename": "last", "enable_version_counter": False}
            average = [] if (decay := self.options["ema"]["decay"]) is None else [AveragedWeights(decay)]
            self.trainer_defaults["callbacks"] = [
                *(EpochLine(), *average, StopOnSignal(self.folder / "last.ckpt")),
                *(LastCheckpoint(**last), LastCheckpoint(**last, train_time_interval=SAVE_EVERY)),
            ]
        return super().instantiate_trainer(plugins=[*plugins, AtomicCheckpointIO()], callbacks=callbacks, **changed)

    def fit(self, **options: Any) -> None:
        """Train; print the run folder, in a resume the checkpoint, and how good a model is that it starts from."""
        start, first = None if self.resumed else self.chosen.model, self.trainer.is_global_zero
        text = f"checkpoints, logs and configuration: {self.folder}"
        if self.resumed:
            options["ckpt_path"], made = self.resumed.path, self.resumed.header.provenance
            text += f"\nresume {self.resumed.path}: epoch {made['epoch'] + 1}, step {made['step']}"
        elif start is None:
            text += f"; first scales and vocabulary, from up to {self.datamodule.tokeniser_events:,} training events"
        if first:
            print(text, flush=True)
        with disk_errors(self.folder):
            at_start: Mapping[str, float] = {}
            if start is not None and not self.trainer.fast_dev_run:  # without validation files the list is empty
                at_start = next(iter(self.trainer.validate(self.model, self.datamodule, verbose=False)), {})
            figures = [column.format(at_start[key]) for key, column in COLUMNS.items() if key in at_start]
            if figures and first:
                print(f"start: {', '.join(figures)}", flush=True)
            self.trainer.fit(**options)
            best = best_of(self.trainer, self.folder)
            # A training may end with a worse model than it began with.
            if start is not None and best.monitor in at_start and best.best_model_score is not None:
                gain = (at_start[best.monitor] - float(best.best_model_score)) * (1 if best.mode == "min" else -1)
                if gain <= 0 and first:
                    print(f"no better than at the start: the model it began with, {start.path}, is as good")


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Silence Lightning's own messages."""
    for logger in ("pytorch_lightning.utilities.rank_zero", "lightning_fabric.utilities.seed"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):  # of libraries: only their authors can act on them
            module = r"(pytorch_lightning|lightning_fabric|jsonargparse)\b"
            warnings.filterwarnings("ignore", category=category, module=module)
        warnings.filterwarnings("ignore", category=PossibleUserWarning)
        warnings.filterwarnings("ignore", message=f".*({'|'.join(CHATTER)})")
        yield


def main(verb: str, args: Sequence[str]) -> int:
    """Run a verb; returns the exit code: 0 done, 129, 130 or 143 interrupted."""
    try:
        TrainingCLI(verb, args)
    except ConfigError as error:
        option = re.search(r"(?:accept option|Option) '([\w.]+)'", str(error))
        if not option or any(option[1] in word for word in args):
            raise
        text = "not on the command line; a configuration or the trained model has it, for this or another class"
        raise ConfigError(f"{error}: {text}") from error
    except Interrupted as stopped:
        return 0 if rank_zero_only.rank else 128 + int(stopped.args[0])  # else Lightning would kill the first rank
    except SystemExit as done:  # also after --help and --print_config
        if not isinstance(done.__context__, KeyboardInterrupt):
            return int(done.code or 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning ignores it from here on
        return 130
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        # Lightning's own refusals, of any class, are about the options; others are unexpected.
        if frame.f_globals["__name__"].partition(".")[0] in ("pytorch_lightning", "lightning_fabric"):
            raise ConfigError(str(error)) from error
        raise
    return 0
