"""`pflow VERB ...`: the verbs and the options that they share, exit codes, signals, and errors and warnings as shown.

Each option is named, typed and explained once, here. `fit`, `validate`, `test` and `predict` are Lightning's command
line, which uses jsonargparse. The other verbs use argparse: messages are shorter, the help has no ``type: int, default:
null``, and only the verb that runs is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import io
import itertools
import logging
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pflow.errors import ConfigError, PflowError, first_line, nearest, warn

if TYPE_CHECKING:
    from pflow.io.open import ReadOptions


N = TypeVar("N", int, float)

VERBS = {
    "fit": "train a model: pflow fit --config gamma1 --data.train FILE --data.val FILE",
    "validate": "losses and wrong energy of a model on validation files: pflow validate --checkpoint M --data.val FILE",
    "test": "losses and wrong energy of a model on test files: pflow test --checkpoint M --data.test FILE",
    "predict": "run a model in Lightning's prediction loop, for your own callbacks (for particles: pflow reconstruct)",
    "recipe": "train a model in stages and calibrate it: pflow recipe photon --data-dir g4 --output runs/photon",
    "inspect": "show the content of a file, or the provenance of an output or a model",
    "detector": "draft the YAML description of a file's detector, for --detector",
    "convert": "write events of any format as a flat ntuple (layout g4)",
    "reconstruct": "turn events into particles with a trained model: ROOT file in, ROOT file out",
    "evaluate": "compare reconstructed particles with the truth: metrics, table, plots, report",
    "scan": "compare variants of a detector without retuning: pflow scan FILE --vary cells=1,2,4 --output DIR",
    "display": "draw an event: a figure, or an interactive page",
    "calibrate": "choose decoding options and calibrate the uncertainties of a model on validation files",
    "export": "write a model as ONNX for inference from C++, or its weights alone",
}
"""Verbs with one line of help. `pflow.cli.main` imports the module of one when it runs."""


def at_least(smallest: N) -> Callable[[str], N]:
    """A type of options: numbers from `smallest` on, whole ones if it is whole."""
    kind = type(smallest)

    def convert(text: str) -> N:
        value = kind(text)
        # Not `value < smallest`, which NaN would pass.
        if not value >= smallest:
            raise argparse.ArgumentTypeError(f"expected at least {smallest:g}, found {value}")
        return value

    convert.__name__ = kind.__name__  # argparse puts it into "invalid int value"
    return convert


def integers(text: str) -> tuple[int, ...]:
    """A type of options: whole numbers with commas between them."""
    return tuple(int(number) for number in text.split(","))


def nearest_options(wrong: str, options: Iterable[str]) -> list[str]:
    """Up to three options that look most like a wrong one, as a whole or in their last parts; or have its initials.

    >>> nearest_options("--learning-rate", ["--model.lr", "--trainer.strategy"])
    ['--model.lr']
    """
    wrong = wrong.lstrip("-").replace("-", "_")
    by_name: dict[str, str] = {}
    for option in options:
        if option[-1] != "+":  # jsonargparse has NAME+, which appends to a list, beside NAME
            name = option.lstrip("-").replace("-", "_")
            by_name[name] = by_name[name.rpartition(".")[2]] = option
    initials = "".join(word[:1] for word in wrong.rpartition(".")[2].split("_"))
    # A single letter would be the initial of too many.
    close = [initials] if len(initials) > 1 and initials in by_name else []
    return [*dict.fromkeys(by_name[name] for name in (*close, *nearest(wrong, by_name)))][:3]


def number(smallest: N, default: N | None, metavar: str, text: str) -> dict[str, Any]:
    """Arguments of argparse's ``add_argument`` for a number from `smallest` on."""
    return {"type": at_least(smallest), "default": default, "metavar": metavar, "help": text}


def choice(*choices: str, text: str) -> dict[str, Any]:
    """Arguments of argparse's ``add_argument`` for one of some choices; the first is the default."""
    return {"choices": choices, "default": choices[0], "help": f"{text} (default: {choices[0]})"}


OPTIONS: dict[str, dict[str, Any]] = {
    "checkpoint": {
        "required": True,
        "metavar": "MODEL",
        "help": "trained model: a checkpoint of `pflow fit`, a folder of weights of `pflow export`, or the name of a "
        "model that comes with pflow",
    },
    "output": {"required": True, "metavar": "PATH", "help": "file or folder to write"},
    "detector": {"metavar": "NAME", "help": "built-in name or YAML file (default: detected from the file)"},
    "schema": {"metavar": "NAME", "help": "file schema (default: detected from the file)"},
    "layout": {"metavar": "YAML", "help": "table from branches to fields, for your own flat ntuples"},
    "truth-tracks": {
        "action": "store_true",
        "help": "make tracks from the Monte Carlo particles of EDM4hep files that have no tracks; events, outputs and "
        "reports are marked accordingly",
    },
    "rule": choice("stable", "entering", "calo", text="truth rule: which true particles are targets"),
    "min-energy": number(0.0, 0.1, "GEV", "smallest energy of a target (default: %(default)s)"),
    "stable-status": {
        "type": integers,
        "default": (1,),
        "metavar": "CODE,...",
        "help": "generator status of stable particles under rule stable (default: 1)",
    },
    "invisible": {
        "type": integers,
        "default": (),
        "metavar": "PDG,...",
        "help": "PDG codes of further invisible particles, beside neutrinos, neutralinos and the like",
    },
    "ignore-tracks": {"action": "store_true", "help": "a track alone does not make a particle a target"},
    "collection": {
        "default": "PFlow",
        "metavar": "NAME",
        "help": "collection of particles in the reconstructed file (default: %(default)s)",
    },
    "on-error": choice("raise", "skip", text="unusable entry: stop with an error, or skip and count it in a warning"),
    "no-oracle": {
        "action": "store_true",
        "help": "leave out the oracle (perfect pattern recognition), which takes time",
    },
    "chunk-size": number(1, 256, "N", "events in memory at once (default: %(default)s)"),
    "batch-size": number(
        1, None, "N", "events in one pass of the network (default: 32; on a GPU 256, or fewer if they do not fit)"
    ),
    "device": {"default": "auto", "help": "auto, cpu, cuda, cuda:1 ... (default: %(default)s)"},
    "max-particles": number(
        1,
        None,
        "N",
        "largest number of particles of an event; all particles with a track are kept, even beyond it, and then no "
        "others (default: the model's own limit, which grows with the event's tracks and hits)",
    ),
    "max-hits": number(
        1,
        32768,
        "N",
        "largest number of hits of an event, and 16 times that of its tracks; one with more is an unusable entry "
        "(default: %(default)s, some 3 GB)",
    ),
    "cluster": {
        "help": "local:N for N processes, or address of a dask scheduler, whose workers it waits for (pflow[cluster])"
    },
    "force": {"action": "store_true", "help": "replace outputs that exist"},
    "quiet": {"action": "store_true", "help": "no progress bar and no table"},
}
"""Arguments of argparse's ``add_argument``, by the option's name without dashes."""
OTHER_DETECTOR = (
    "read the files as this detector (built-in name or YAML file) even if the model was trained on another; without "
    "it, files of another detector are refused"
)
"""Help of ``--detector`` in verbs that run a model."""
_ALSO = {"output": "-o", "quiet": "-q", "min-energy": "--e-min"}  # as in Python and in `pflow fit`


def add_options(parser: argparse._ActionsContainer, *names: str, otherwise: str = "", **settings: Any) -> None:
    """Declare options of `OPTIONS` in a parser or group; `settings` override the table's.

    With `otherwise` they may be left out; they are then None, and the help gives `otherwise` as the default.
    """
    for name in names:
        declared = dict(OPTIONS[name])
        if otherwise:
            text = f"{declared['help'].partition(' (default')[0]} (default: {otherwise})"
            declared |= {"required": False, "default": None, "help": text}
        also = [_ALSO[name]] if name in _ALSO else []
        parser.add_argument(*also, f"--{name}", **{**declared, **settings})


def read_options(args: argparse.Namespace, **expected: Any) -> ReadOptions:
    """The options of `add_file_options`; `expected` as of `pflow.event.checks.Expected`."""
    from pflow.event.checks import Expected
    from pflow.io.open import ReadOptions

    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(ReadOptions) if field.name in args}
    return ReadOptions(**given, expected=Expected(**expected))


def truth_options(args: argparse.Namespace) -> dict[str, Any]:
    """``rule``, ``stable-status`` and ``invisible`` as arguments of `pflow.select_targets`; None: not given."""
    # By |PDG|: whoever names an antiparticle means the particle, too.
    invisible = None if args.invisible is None else tuple(map(abs, args.invisible))
    return {"rule": args.rule, "stable_status": args.stable_status, "invisible": invisible}


def warn_of_training(
    configuration: Mapping[str, Any], paths: Iterable[str], *, calibration: bool = True, model: str = "the model"
) -> None:
    """Warn of event files that a model was trained on, known by their UUIDs or, in older models, by their names.

    With `calibration` also of those that it was calibrated on.
    """
    from pflow.event.events import ImplausibleWarning
    from pflow.io.root import file_uuid

    files, made, seen = [(path, file_uuid(path)) for path in paths], configuration.get("provenance"), dict[str, None]()
    known = {uuid for part in (made or {}).get("calibrated_on", ()) for uuid in part["uuids"]} if calibration else ()
    if fitted := [path for path, uuid in files if uuid in known]:
        warn(f"{', '.join(fitted)}: {model} was calibrated on this file: its scores are too good", ImplausibleWarning)
    while made:
        for path, uuid in files:
            if uuid in made["uuids"] if "uuids" in made else Path(path).name in made.get("train", ()):
                seen[path] = None
        made = made.get("began_with")
    if seen:
        text = f"{model} was trained on this file, or one of its name, and is too good on events that it knows"
        warn(f"{', '.join(seen)}: {text}", ImplausibleWarning)


def add_file_options(parser: argparse.ArgumentParser, *, detector: str) -> None:
    """Declare how event files are read: ``--detector`` with its own help text and the other options of reading."""
    add_options(parser, "detector", help=detector)
    add_options(parser, "schema", "layout", "truth-tracks")


@contextlib.contextmanager
def progress_bar(*, quiet: bool, transient: bool = False) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar on the error stream of a terminal, unless `quiet`; yields a function of what, how much, of how much.

    A `transient` bar disappears in the end; any does after an error.
    """
    from rich import progress as bar
    from rich.console import Console

    columns = (bar.TextColumn("{task.description}"), bar.BarColumn(), bar.MofNCompleteColumn())
    times = (bar.TimeElapsedColumn(), bar.TimeRemainingColumn())
    console = Console(stderr=True)
    options: Any = {"console": console, "disable": quiet or not console.is_terminal, "transient": transient}
    # Chunks take long: estimate the speed from the last hour, not from the last half minute.
    with bar.Progress(*columns, *times, speed_estimate_period=3600, **options) as progress:
        task = progress.add_task("", total=None)
        try:
            yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)
        except BaseException:
            progress.live.transient = True  # no bar that stands still above the error
            raise


EXIT_CODES = {
    0: "done",
    1: "error, explained in one line",
    2: "options that cannot work: an unknown one, a value, a combination, an output that exists",
    3: "done, but entries or files were skipped (--on-error skip)",
    129: "the terminal was closed (SIGHUP)",
    130: "interrupted (SIGINT)",
    143: "terminated (SIGTERM)",
}
"""Return values of `main`."""

LIGHTNING = ("fit", "validate", "test", "predict")
"""Verbs of `pflow.cli.fit`."""

MODULES = {
    **dict.fromkeys(("inspect", "detector", "convert"), "files"),
    **dict.fromkeys(("reconstruct", "calibrate", "export"), "models"),
    **dict.fromkeys(("evaluate", "scan", "display"), "results"),
    "recipe": "recipe",
}
"""Modules of the other verbs: functions ``VERB(args)``, whose docstring is the help, and ``VERB_arguments(parser)``."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP, its argument, as an exception, so that unfinished outputs are removed."""


SIGNALS = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}
"""The signal that raises each exception."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit code, one of `EXIT_CODES`; any error is one line, with ``--debug`` a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in {*arguments, *sys.argv}  # a recipe's, too, whose stages are verbs
    # Taken out here, because no verb's parser knows it.
    arguments = [word for word in arguments if word != "--debug"]
    # Shells do this only where a word begins with it, and not in --output=~/run.
    arguments = [re.sub(r"(?<==)~(?=/|$)", lambda _: str(Path.home()), word) for word in arguments]
    verb = arguments[0] if arguments else "--help"
    if verb in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if verb == "--version":
        from pflow.config import VERSION

        print(f"pflow {VERSION}")
        return 0
    if verb not in VERBS:
        close = nearest(verb, VERBS)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        print(f"pflow: no verb '{verb}'.{hint}\n\n{_usage()}", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal has no ±
    # Before torch is loaded: threads that spin while they wait make training ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with raised_signals():
            return _run(verb, arguments[1:])
    except BrokenPipeError:  # the reader of the output is gone: nothing is to be flushed to it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt, Terminated) as error:
        if debug:
            traceback.print_exc()
        code, text = _explained(error)
        print(f"pflow {verb}: {text}", file=sys.stderr)
        return code


@contextmanager
def raised_signals() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM, or SIGHUP unless it is ignored (nohup), would end the process.

    Python drops exceptions raised in a ``__del__``: there SIGTERM and SIGINT come again a moment later. Signals reach
    the main thread only; in another this does nothing.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield
        return
    repeated: list[threading.Timer] = []

    def stop(number: int, _: object) -> None:
        raise Terminated(number)

    def dropped(event: Any) -> None:
        if (number := SIGNALS.get(event.exc_type)) is None:
            show(event)
            return
        timer = threading.Timer(0.05, signal.pthread_kill, [main.ident, number])
        # Otherwise the process would wait for the timer when it ends.
        timer.daemon = True
        timer.start()
        repeated.append(timer)

    ends = [end for end in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(end) is not signal.SIG_IGN]
    before, show = {end: signal.signal(end, stop) for end in ends}, sys.unraisablehook
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        # A signal that comes after the verb would strike whoever called it.
        for timer in repeated:
            timer.cancel()
        sys.unraisablehook = show
        for end, handler in before.items():
            signal.signal(end, handler)


def _explained(error: BaseException) -> tuple[int, str]:
    """Exit code of an exception, and its message in one line."""
    for stop in (error, error.__cause__):  # a library that is interrupted while it is imported raises an ImportError
        if isinstance(stop, KeyboardInterrupt):
            return 130, "interrupted"
        if isinstance(stop, Terminated):
            return 128 + (stop.args[0] if stop.args else signal.SIGTERM), "terminated"
    if isinstance(error, PflowError | OSError):
        return 2 if isinstance(error, ConfigError) else 1, f"error: {' '.join(str(error).split())}"
    if isinstance(error, MemoryError):
        return 1, "error: out of memory"
    if str(error).startswith("DataLoader worker"):  # was killed: so does Linux end what needs too much memory
        return 1, f"error: {first_line(error)} Out of memory? Fewer --data.num-workers need less"
    return 1, f"error: {first_line(error)} (unexpected: --debug shows where; please report it)"


@contextmanager
def _noted() -> Iterator[None]:
    """Show what pflow logs, such as what few tracks leave unchecked, on stderr: a note asks for nothing."""
    log, notes = logging.getLogger("pflow"), logging.StreamHandler(sys.stderr)
    notes.setFormatter(logging.Formatter("note: %(message)s"))
    if log.level:  # in a stage of a recipe, or for a caller who has logging of their own
        yield
        return
    log.setLevel(logging.INFO)
    log.addHandler(notes)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)
        log.removeHandler(notes)


def _run(verb: str, arguments: list[str]) -> int:
    skipped = False

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        """The message alone, without the line of code."""
        from pflow.event.events import BadEntriesWarning

        nonlocal skipped
        skipped |= isinstance(message, BadEntriesWarning)
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings(), _noted():
        warnings.simplefilter("default", UserWarning)
        # NumPy's warnings of a division by zero, NaN ...: a user of the command line cannot act on them.
        warnings.filterwarnings("ignore", ".*encountered", RuntimeWarning)
        warnings.showwarning = show
        if verb in LIGHTNING:
            code = int(import_module("pflow.cli.fit").main(verb, arguments))
        else:
            code = run_parsed(verb, arguments)
    return code or (3 if skipped else 0)


def run_parsed(verb: str, arguments: list[str]) -> int:
    """Run a verb whose options argparse reads."""
    module = import_module(f"pflow.cli.{MODULES[verb]}")
    run = getattr(module, verb)
    parser = argparse.ArgumentParser(prog=f"pflow {verb}", description=inspect.getdoc(run), allow_abbrev=False)
    getattr(module, f"{verb}_arguments")(parser)
    # argparse reports missing options first and suggests none, and it lists the options in a private attribute only.
    known = parser._option_string_actions
    for word in itertools.takewhile("--".__ne__, arguments):
        if (name := word.partition("=")[0]).startswith("--") and name not in known:
            error = ConfigError(f"unrecognized arguments: {name}", suggestions=nearest_options(name, known))
            parser.error(str(error))
    # After a --, `pflow recipe` takes options of `pflow fit`.
    parse = parser.parse_intermixed_args if verb == "recipe" else parser.parse_args
    return int(run(parse(arguments)))


def _usage() -> str:
    tables = (VERBS.items(), EXIT_CODES.items())
    verbs, codes = ("\n".join(f"  {name:<12} {text}" for name, text in table) for table in tables)
    return f"""\
usage: pflow VERB [options]    (pflow VERB --help for a verb's options)

{verbs}

  --version    print the version
  --debug      show the traceback of an error

exit codes:
{codes}"""
