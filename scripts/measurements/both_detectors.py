"""One model for both detectors beside one for each: trained on events of ILD, of CLD and of both, both_detectors.json.

Every training is the first stage of recipe `cld`, from `ild-g4-general`. That on both takes twice the steps, so that it
sees as many events of each detector. The events of each are normalised as they are where a model of one detector begins
a training for another; all else of the network is shared. Chosen between on validation files, so these are evaluated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from measurements.commands import revision, run_pflow
from measurements.evaluation import evaluate_file
from measurements.files import DATA, REPORT, RESULTS, intervals, read_json, write_json
from measurements.learning_curves import DECODING, MODEL, QUANTITIES
from measurements.markdown import fill, table
from pflow.checkpoint.format import KEY
from pflow.checkpoint.load import load_model, read_checkpoint
from pflow.cli.main import main
from pflow.event.events import Events
from pflow.io.open import open_events
from pflow.metrics.evaluation import CLASSICAL
from pflow.metrics.report import number_text
from pflow.metrics.stats import Number
from pflow.physics.detector import Detector
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import Tokens
from pflow.train.recipe import load_recipe
from pflow.train.transfer import nearest_subdetectors, transfer_checkpoint, transfer_tokeniser

START = "ild-g4-general"
FOLDERS = {"ild": "g4", "cld": "cld_g4"}
"""Samples of each detector."""
TRAININGS = {"ild": ("ild",), "cld": ("cld",), "both": ("cld", "ild")}
"""Detectors of each training; the tokeniser is made for the first one."""
EVALUATED = ("single", "multi", "zqq", "zh", "gammasep")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=DATA.parent, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=600, help="of a training on one detector (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/both_detectors"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Train, reconstruct and evaluate each; one that was measured is not run again."""
    (args.output / "prepared").mkdir(parents=True, exist_ok=True)
    for detector in FOLDERS:
        _prepare(args, detector)
    rows = []
    for training, detectors in TRAININGS.items():
        folder = args.output / training
        if not (folder / "last.ckpt").exists():
            with each_by_its_own_tokeniser():
                main(["fit", *_fit_options(args, training)])
        for detector in detectors:
            path = args.output / f"{training}_on_{detector}.json"
            if not path.exists():
                write_json(path, _numbers(args, training, detector))
            rows.append({"training": training, "detector": detector, "numbers": read_json(path)})
    content = {"start": START, "steps": args.steps, "revision": revision(), "rows": rows}
    write_json(args.results / "both_detectors.json", content)
    if args.results == RESULTS:
        fill(REPORT, {"both_detectors": both_detectors_table(content)})


def _prepare(args: argparse.Namespace, detector: str) -> None:
    """Write the events of a detector's training and validation files to shards, which say what they are of."""
    samples = load_recipe("cld").samples
    for split, names in samples.items():
        files = [args.data_dir / FOLDERS[detector] / f"{name}_{split}.root" for name in names]
        run_pflow(args.output / "prepare.log", "prepare", *files, "-o", _shards(args, detector, split), "-q")


def _shards(args: argparse.Namespace, detector: str, split: str) -> Path:
    return Path(args.output) / "prepared" / f"{detector}_{split}"


def _fit_options(args: argparse.Namespace, training: str) -> list[str]:
    detectors = TRAININGS[training]
    steps = args.steps * len(detectors)
    data = {
        split: json.dumps([str(_shards(args, detector, split)) for detector in detectors]) for split in ("train", "val")
    }
    options = [f"{name}={value}" for name, value in DECODING.items()]
    return [
        *load_recipe("cld").write(args.output / "recipe", 0),
        *(f"--data.{split}={paths}" for split, paths in data.items()),
        *(f"--model.reconstructor.init-args.decoding.{option}" for option in options),
        "--data.layout=null",
        f"--trainer.max-steps={steps}",
        f"--trainer.val-check-interval={steps}",
        "--trainer.enable-progress-bar=false",
        f"--output={args.output / training}",
    ]


@contextmanager
def each_by_its_own_tokeniser() -> Iterator[None]:
    """Events of another detector than the tokeniser's are normalised for their own detector, not refused."""
    encode = Tokeniser.encode
    others: dict[str, Tokeniser] = {}

    def encode_any(self: Tokeniser, events: Events, **options: Any) -> Tokens:
        if not self.other_geometry(events.detector):
            return encode(self, events, **options)
        name = events.detector.name
        if name not in others or others[name].recipe != self.recipe:
            _check_same_order(events.detector, self.detector)
            others[name] = transfer_tokeniser(self, events.detector)
        return encode(others[name], events, **options)

    with patch.object(Tokeniser, "encode", encode_any):
        yield


def _check_same_order(detector: Detector, trained: Detector) -> None:
    """Subdetectors are inputs by number: one of this detector must be the same one of the other detector."""
    nearest = nearest_subdetectors(detector, trained)
    if nearest != list(range(len(detector.calorimeters))):
        raise SystemExit(f"subdetectors of {detector.name} are not the first ones of {trained.name}: {nearest}")


def _numbers(args: argparse.Namespace, training: str, detector: str) -> dict[str, Any]:
    """Value and interval of each quantity of each sample, in percent, of the model and of Pandora."""
    checkpoint = args.output / training / "last.ckpt"
    with open_events(args.data_dir / FOLDERS[detector] / f"{EVALUATED[0]}_val.root") as file:
        if load_model(checkpoint).tokeniser.other_geometry(file.detector):
            checkpoint = _for_detector(checkpoint, file.detector)
    keys = {key: path for key, (_, path) in QUANTITIES.items()}
    numbers = {}
    for sample in EVALUATED:
        truth, reco = args.data_dir / FOLDERS[detector] / f"{sample}_val.root", args.output / "reco.root"
        words = ("--checkpoint", checkpoint, "-q", "--force", "-o", reco)
        run_pflow(args.output / "reconstruct.log", "reconstruct", truth, *words)
        found = evaluate_file(truth, {MODEL: reco}, rule="stable")["algorithms"]
        numbers[sample] = {name: intervals(found[name], keys, 100.0) for name in (MODEL, CLASSICAL)}
    return numbers


def _for_detector(checkpoint: Path, detector: Detector) -> Path:
    """The same weights as a model of the other detector; without the subdetectors that it does not have."""
    found = transfer_checkpoint(read_checkpoint(checkpoint), load_model(checkpoint).reconstructor, detector)
    path = checkpoint.with_name(f"for_{detector.name}.ckpt")
    torch.save({KEY: json.dumps(found.header.to_dict()), "state_dict": found.state_dict}, path)
    return path


def both_detectors_table(content: dict[str, Any]) -> str:
    """A line for each quantity of each sample and detector, the model of its own beside that of both."""
    found = {(row["training"], row["detector"]): row["numbers"] for row in content["rows"]}
    head = ["detector", "sample", "quantity", "its own model", "model of both"]
    rows = [
        [
            detector.upper(),
            sample,
            title,
            *(number_text(Number(*found[name, detector][sample][MODEL][key])) for name in (detector, "both")),
        ]
        for detector in FOLDERS
        for sample in found["both", detector]
        for key, (title, _) in QUANTITIES.items()
    ]
    return table(head, rows, left=(0, 1, 2))
