"""What the shipped models find on the test files, beside Pandora and the oracle: flagship.json and the displays.

`--decoding-alone` measures them without their refinement instead: refinement.json. Decoding then stops at the
probability that is best for it (`EOS_THRESHOLD`). For development, `--split val` or `--samples` write below `--output`.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from measurements.evaluation import evaluate_file
from measurements.figures import DISPLAY_DPI, save
from measurements.files import DATA, FIGURES, RESULTS, write_json
from measurements.quantities import ROLES, SAMPLES
from pflow.checkpoint.load import Model, load_model
from pflow.inference.files import reconstruct_files
from pflow.io.open import open_events
from pflow.io.particles_root import read_reco
from pflow.plots.display import plot_event
from pflow.plots.scene import make_scene

EOS_THRESHOLD = {"photon": 0.5, "general": 0.9}
"""Probability from which decoding stops, as calibrated without refinement."""


def add_options(parser: argparse.ArgumentParser) -> None:
    for role in ROLES:
        parser.add_argument(f"--{role}", metavar="MODEL", default=f"ild-g4-{role}", help="default: %(default)s")
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of the samples (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/flagship_results"), help="default: %(default)s")
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--samples", nargs="+", choices=[sample.name for sample in SAMPLES], metavar="NAME")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--decoding-alone", action="store_true", help="without refinement")


def run(args: argparse.Namespace) -> Path:
    """Measure; returns the folder of the results."""
    folder = RESULTS if args.split == "test" and not args.samples else args.output / args.split
    models = {role: load_model(getattr(args, role)) for role in ROLES}
    if args.decoding_alone:
        for role, model in models.items():
            _remove_refinement(model, role)
    measured: dict[str, Any] = {}
    for sample in SAMPLES:
        truth = args.data_dir / f"{sample.name}_{args.split}.root"
        if args.samples and sample.name not in args.samples:
            continue
        if not truth.is_file():
            print(f"{sample.name}: no file {truth}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as temporary:
            recos = {role: Path(temporary) / f"{role}.root" for role in sample.roles}
            for role, reco in recos.items():
                reconstruct_files([truth], checkpoint=models[role], output=reco, device=args.device)
            no_tracks = not all(_reads_tracks(models[role]) for role in recos)
            found = measured[sample.name] = evaluate_file(truth, recos, rule=sample.rule, no_tracks=no_tracks)
            print(f"{sample.name}: {found['n_events']} events", flush=True)
            role = sample.roles[0]
            worst = found["algorithms"][role]["extra"]["losses"]["worst"]
            if worst and not args.decoding_alone:
                figure = _display(truth, recos[role], worst[0]["entry"], rule=sample.rule)
                save({f"{sample.name}_worst": figure}, folder / FIGURES.name, dpi=DISPLAY_DPI)
    if args.decoding_alone:
        alone = {name: {role: part["algorithms"][role] for role in part["models"]} for name, part in measured.items()}
        write_json(folder / "refinement.json", alone, indent=None)
    else:
        of_models = {role: about(model) for role, model in models.items()}
        content = {"split": args.split, "models": of_models, "samples": measured}
        write_json(folder / "flagship.json", content, indent=None)
    return folder


def about(model: Model) -> dict[str, Any]:
    """Name, digest and size of a model."""
    return {
        "source": model.path,
        "sha256": model.digest,
        "parameters": sum(parameter.numel() for parameter in model.reconstructor.parameters()),
        "reads_tracks": _reads_tracks(model),
    }


def _reads_tracks(model: Model) -> bool:
    return bool(model.tokeniser.recipe.track_features)


def _remove_refinement(model: Model, role: str) -> None:
    reconstructor: Any = model.reconstructor
    reconstructor.network.refiner = None
    reconstructor.decoding = dataclasses.replace(reconstructor.decoding, eos_threshold=EOS_THRESHOLD[role])


def _display(events: Path, reco: Path, entry: int, *, rule: str) -> Figure:
    """One event with its reconstructed particles, hits in the colour of their true particle."""
    with open_events(events) as file:
        event = file.read(entry, entry + 1)
    answer = read_reco(reco, entry_start=entry, entry_stop=entry + 1)
    return plot_event(make_scene(event, reconstruction=answer, rule=rule, max_colours=12))
