"""The command line: wiring only. Training verbs go to the Lightning CLI, the others to `pflow.cli`."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TextIO

from pflow.errors import PflowError, nearest

__all__ = ["main"]

TRAINING = {
    "fit": "train a model: pflow fit --config configs/gamma1.yaml",
    "validate": "losses and errors of a checkpoint on the validation files",
    "test": "the same on the test files",
    "predict": "write the particles of the predict files to ROOT while logging as in training",
}
COMMANDS = {
    "inspect": "say what a file holds: schema, entries, collections, truth, which detector fits",
    "convert": "turn the first paper's HDF5 files into ROOT files and back",
    "reconstruct": "turn events into particles with a trained model: ROOT file in, ROOT file out",
    "evaluate": "compare reconstructed particles with the truth: metrics, table, plots, report",
    "display": "draw an event: a figure, or an interactive page",
    "calibrate": "make the uncertainties that a model states as large as its errors on validation files",
    "export": "write a model as ONNX, with all that inference from C++ needs, or its weights alone, to pass on",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `pflow VERB ...`; return the exit code.

    0 done, 1 a clear error (or a training that was interrupted), 2 wrong usage, 130 interrupted, 143 terminated.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = arguments[0] if arguments else "--help"
    if verb in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if verb == "--version":
        from pflow.version import VERSION

        print(f"pflow {VERSION}")
        return 0
    if verb not in TRAINING and verb not in COMMANDS:
        close = nearest(verb, [*TRAINING, *COMMANDS])
        hint = f" Did you mean '{close[0]}'?" if close else ""
        print(f"pflow: no verb '{verb}'.{hint}\n\n{_usage()}", file=sys.stderr)
        return 2
    # Before torch is loaded: threads that spin while they wait make training ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    run = _training if verb in TRAINING else _command
    try:
        return run(verb, arguments[1:])
    except PflowError as error:
        print(f"pflow {verb}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print(f"pflow {verb}: interrupted", file=sys.stderr)
        return 130


def _training(verb: str, arguments: list[str]) -> int:
    run: Callable[[list[str]], int] = import_module("pflow.cli.fit").main
    return run([verb, *arguments])


def _command(verb: str, arguments: list[str]) -> int:
    command = import_module(f"pflow.cli.{verb}")
    parser = argparse.ArgumentParser(prog=f"pflow {verb}", description=command.__doc__)
    command.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning
        code: int = command.run(parsed)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as a user of the command line wants to see it: the message, not the line of code."""
    print(f"warning: {message}", file=sys.stderr)


def _usage() -> str:
    lines = ["usage: pflow VERB [options]    (pflow VERB --help for a verb's options)", ""]
    lines += [f"  {verb:<12} {text}" for verb, text in {**TRAINING, **COMMANDS}.items()]
    return "\n".join([*lines, "", "  --version    print the version"])
