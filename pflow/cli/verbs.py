"""The verbs, and the nearest options to a wrong one; imported by every command line, and light."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

VERBS = {
    "fit": "train a model: pflow fit --config gamma1 --data.train FILE --data.val FILE",
    "validate": "losses and errors of a checkpoint on the validation files",
    "test": "losses and errors of a checkpoint on the test files",
    "recipe": "train a model in stages and calibrate it: pflow recipe photon --data-dir g4 --output runs/photon",
    "inspect": "show what a file holds, or what an output or a model was made from, and the command that repeats it",
    "detector": "draft the description of the detector that a file is from, for --detector",
    "convert": "turn the first paper's HDF5 files into ROOT files",
    "overlay": "join events of several files into one each: pile-up, background, large events",
    "reconstruct": "turn events into particles with a trained model: ROOT file in, ROOT file out",
    "evaluate": "compare reconstructed particles with the truth: metrics, table, plots, report",
    "display": "draw an event: a figure, or an interactive page",
    "calibrate": "choose decoding options and calibrate the uncertainties of a model on validation files",
    "export": "write a model as ONNX for inference from C++, or its weights alone",
}
"""Verbs with one line of help. `pflow.cli.main` imports ``pflow.cli.VERB`` when it runs."""


def nearest_options(wrong: str, options: Iterable[str]) -> list[str]:
    """Up to three options that look most like a wrong one: the whole of them, their last parts, or initials of these.

    >>> nearest_options("--learning-rate", ["--model.lr", "--trainer.strategy"])
    ['--model.lr']
    """

    def parts(option: str) -> tuple[str, str]:
        full_name = option.lstrip("-").replace("-", "_").casefold()
        return full_name, full_name.rpartition(".")[2]

    def initials(last: str) -> str:
        return "".join(word[:1] for word in last.split("_"))

    def likeness(option: str) -> tuple[float, float]:
        (whole, last), (known, known_last) = parts(wrong), parts(option)
        by_whole, by_last = SequenceMatcher(None, whole, known).ratio(), SequenceMatcher(None, last, known_last).ratio()
        shortened = len(min(last, known_last, key=len)) > 1 and (
            last == initials(known_last) or known_last == initials(last)
        )
        return max(by_whole, by_last, shortened), by_whole

    ranked = sorted(((likeness(option), option) for option in options if option[-1] != "+"), reverse=True)
    return [option for (best, _), option in ranked if best >= 0.6][:3]
