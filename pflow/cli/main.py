"""`pflow VERB ...`: the table of verbs, exit codes, signals, and errors and warnings as the command line shows them.

`fit`, `validate`, `test` and `predict` are Lightning's command line, which uses jsonargparse. The other verbs use
argparse: messages are shorter, the help has no ``type: int, default: null``, and only the verb that runs is imported.
"""

from __future__ import annotations

import argparse
import inspect
import io
import itertools
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pflow.cli.options import VERBS, nearest_options
from pflow.errors import ConfigError, PflowError, first_line, nearest

EXIT_CODES = {
    0: "done",
    1: "an error, which is said in one line",
    2: "wrong usage",
    3: "done, but entries or files were skipped (--on-error skip)",
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

AGAIN_AFTER = 0.05
"""Seconds after which a signal that Python dropped is sent again."""


class Terminated(BaseException):
    """SIGTERM as an exception, so that unfinished outputs are removed."""


SIGNALS = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}
"""The signal that raises each exception."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit code, one of `EXIT_CODES`; any error is one line, with ``--debug`` a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [word for word in arguments if word != "--debug"]
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
    """Raise `Terminated` where SIGTERM would end the process.

    Python drops exceptions raised in a ``__del__``: there SIGTERM and SIGINT come again a moment later. Signals reach
    the main thread only; in another this does nothing.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main:
        yield
        return
    repeated: list[threading.Timer] = []

    def stop(*_: object) -> None:
        raise Terminated

    def dropped(event: Any) -> None:
        if (number := SIGNALS.get(event.exc_type)) is None:
            show(event)
            return
        timer = threading.Timer(AGAIN_AFTER, signal.pthread_kill, [main.ident, number])
        timer.daemon = True
        timer.start()
        repeated.append(timer)

    before, show = signal.signal(signal.SIGTERM, stop), sys.unraisablehook
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        for timer in repeated:
            timer.cancel()
        sys.unraisablehook = show
        signal.signal(signal.SIGTERM, before)


def _explained(error: BaseException) -> tuple[int, str]:
    """Exit code of an exception, and its message in one line."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, Terminated):
        return 143, "terminated"
    if isinstance(error, PflowError | OSError):
        return 1, f"error: {' '.join(str(error).split())}"
    if isinstance(error, MemoryError):
        return 1, "error: out of memory"
    return 1, f"error: {first_line(error)} (unexpected: --debug shows where; please report it)"


def _run(verb: str, arguments: list[str]) -> int:
    skipped = False

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        """The message alone, without the line of code."""
        from pflow.event.events import BadEntriesWarning

        nonlocal skipped
        skipped |= isinstance(message, BadEntriesWarning)
        print(f"warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
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
