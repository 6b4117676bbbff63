"""Commands that are interrupted: their inputs, their outputs, and how these are compared."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch.utils.tensorboard  # noqa: F401  as below
import uproot

# What the commands import when they run: a fork of this process then has it loaded.
import pflow.cli.fit
import pflow.inference.files
import pflow.metrics.report  # noqa: F401
from attacks.child import run_limited, run_signalled
from pflow.checkpoint import load_model
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.io.particles_root import read_provenance

DATA = Path(__file__).resolve().parent.parent.parent / "tests" / "data"
SAMPLE, OLD = DATA / "gamma1_val_small.root", DATA / "gamma1_small.h5"

TINY = (
    "--model.reconstructor=pflow.model.translation.TranslationReconstructor",
    *(f"--model.reconstructor.network.{name}" for name in ("width=8", "heads=1", "feedforward=8")),
    *(f"--model.reconstructor.network.{name}_layers=1" for name in ("encoder", "decoder")),
    "--model.reconstructor.decoding.max-particles=3",
    *("--data.batch-size=4", "--data.hit-energy-min=0.05"),
    *("--trainer.accelerator=cpu", "--trainer.enable-progress-bar=false", "--trainer.max-epochs=2"),
)
"""A fit whose steps take milliseconds."""

Content = Mapping[str, Any]
"""Contents of the files of a folder, by their names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A command that writes to a folder."""

    command: Callable[[Path, Path], list[str]]
    """The command line, from the folder of the inputs and the job's folder; it resumes an unfinished earlier run."""
    content: Callable[[Path], Content]
    """What the finished files hold; raises if a file is incomplete."""
    final: bool = True
    """Whether a file has its last content as soon as it is there."""


def make_inputs(folder: Path, *, log: Path) -> None:
    """Write some events, a model and a reconstruction, with pflow itself."""
    events = folder / "events.root"
    run_limited(lambda: write_events(events, read_events(SAMPLE, entry_stop=16)), log=log, seconds=600, megabytes=8192)
    for words in (_fit(folder, folder / "run"), _command(f"{RECONSTRUCT} -o {{inputs}}/reco.root", folder, folder)):
        if run_signalled(words, log=log, sent=signal.SIGKILL, after=600).code:
            sys.exit(f"the inputs cannot be made: {log.read_text()}")


def _fit(inputs: Path, folder: Path) -> list[str]:
    events = inputs / "events.root"
    words = ["fit", *TINY, f"--data.train={events}", f"--data.val={events}", f"--output={folder}"]
    there = [path for name in ("last", "best") if (path := folder / f"{name}.ckpt").exists()]
    return words + [f"--checkpoint={path}" for path in there[:1]]


def _trained(folder: Path) -> Content:
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.ckpt")):
        weights = load_model(path).reconstructor.state_dict()
        found[path.name] = {name: weight.numpy().tobytes() for name, weight in weights.items()}
    for path in sorted(folder.glob("config.yaml")):
        assert path.read_text("utf-8").rstrip().endswith("null") or path.stat().st_size > 1000, "half a configuration"
        found[path.name] = None
    for path in sorted(folder.glob("training.*")):
        end = {".png": b"IEND\xaeB`\x82", ".pdf": b"%%EOF"}[path.suffix]
        assert path.read_bytes().rstrip(b"\n").endswith(end), f"half a picture: {path.name}"
        found[path.name] = None
    return found


def _root(folder: Path) -> Content:
    """Bytes of each branch of each ROOT file."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.root")):
        with uproot.open(path) as file:
            arrays = file["events"].arrays(library="np")
        found[path.name] = {name: [entry.tobytes() for entry in arrays[name]] for name in arrays}
        if path.name.startswith("reco"):
            read_provenance(path)
    return found


def _bytes(name: str, folder: Path) -> Content:
    """Bytes of the files in a folder of the job's own."""
    return {path.name: path.read_bytes() for path in sorted((folder / name).glob("*")) if ".tmp-" not in path.name}


def _command(line: str, inputs: Path, folder: Path) -> list[str]:
    """The words of a command, in which {inputs} and {folder} stand for the two folders."""
    return [word.format(inputs=inputs, folder=folder, old=OLD) for word in line.split()]


RECONSTRUCT = "reconstruct {inputs}/events.root --checkpoint {inputs}/run/best.ckpt -q --device=cpu --chunk-size=4"
EVALUATE = "evaluate {inputs}/reco.root --truth {inputs}/events.root -q --no-plots -o {folder}/evaluation"
CONVERT = "convert {old} {folder}/events.root --chunk-size=4"
EXPORT = "export --checkpoint {inputs}/run/best.ckpt --format weights -o {folder}/weights"

JOBS: dict[str, Job] = {
    "fit": Job(command=_fit, content=_trained, final=False),
    "reconstruct": Job(command=partial(_command, f"{RECONSTRUCT} -o {{folder}}/reco.root"), content=_root),
    "evaluate": Job(command=partial(_command, EVALUATE), content=partial(_bytes, "evaluation")),
    "convert": Job(command=partial(_command, CONVERT), content=_root),
    "export": Job(command=partial(_command, EXPORT), content=partial(_bytes, "weights")),
}
"""Jobs by their names in the report."""
