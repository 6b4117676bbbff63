"""`pflow VERB ...`: the table of verbs, exit codes, errors and warnings as the command line shows them.

`fit` and its relatives are Lightning's command line and so use jsonargparse. The other verbs use argparse, of which
jsonargparse is a subclass: for flat options its messages are shorter, its help has no ``type: int, default: null``, and
no verb but the one that runs is imported.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from pflow.errors import PflowError, nearest

__all__ = ["VERBS", "main"]

VERBS = {
    "fit": "train a model: pflow fit --config configs/gamma1.yaml",
    "validate": "losses and errors of a checkpoint on the validation files",
    "test": "losses and errors of a checkpoint on the test files",
    "predict": "write the particles of the predict files to ROOT while logging as in training",
    "recipe": "train a model in stages and calibrate it: pflow recipe photon --data-dir g4 --output runs/photon",
    "inspect": "show what a file holds: schema, entries, collections, truth, which detector fits",
    "detector": "draft the description of the detector that a file is from, for --detector",
    "convert": "turn the first paper's HDF5 files into ROOT files and back",
    "reconstruct": "turn events into particles with a trained model: ROOT file in, ROOT file out",
    "evaluate": "compare reconstructed particles with the truth: metrics, table, plots, report",
    "display": "draw an event: a figure, or an interactive page",
    "calibrate": "choose thresholds and calibrate the uncertainties of a model on validation files",
    "export": "write a model as ONNX for inference from C++, or its weights alone",
}
"""What each verb does, in one line. ``pflow.cli.VERB`` is imported when the verb runs."""

LIGHTNING = ("fit", "validate", "test", "predict")
"""Verbs of `pflow.cli.fit`, whose ``main`` takes the verb and its options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit code.

    0 done, 1 a clear error (or an interrupted training), 2 wrong usage, 130 interrupted, 143 terminated.
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
    if verb not in VERBS:
        close = nearest(verb, VERBS)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        print(f"pflow: no verb '{verb}'.{hint}\n\n{_usage()}", file=sys.stderr)
        return 2
    # Before torch is loaded: threads that spin while they wait make training ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return _run(verb, arguments[1:])
    except PflowError as error:
        print(f"pflow {verb}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print(f"pflow {verb}: interrupted", file=sys.stderr)
        return 130


def _run(verb: str, arguments: list[str]) -> int:
    if verb in LIGHTNING:
        return int(import_module("pflow.cli.fit").main([verb, *arguments]))
    command = import_module(f"pflow.cli.{verb}")
    parser = argparse.ArgumentParser(prog=f"pflow {verb}", description=command.__doc__, allow_abbrev=False)
    command.add_arguments(parser)
    # Options of `pflow fit` follow those of a recipe after a --.
    parse = parser.parse_intermixed_args if verb == "recipe" else parser.parse_args
    parsed = parse(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning
        return int(command.run(parsed))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """The message alone, without the line of code."""
    print(f"warning: {message}", file=sys.stderr)


def _usage() -> str:
    lines = ["usage: pflow VERB [options]    (pflow VERB --help for a verb's options)", ""]
    lines += [f"  {verb:<12} {text}" for verb, text in VERBS.items()]
    return "\n".join([*lines, "", "  --version    print the version"])
