"""What the shipped models find on the test files, beside Pandora and the oracle: flagship.json and the displays.

Reconstructions are kept below OUT and used again unless they are of another model, file or version of pflow. With
--split val, --limit-events or --samples, which are for development, all results are written below OUT.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from measurements.evaluation import evaluate_file
from measurements.figures import DISPLAY_DPI, save
from measurements.files import DATA, FIGURES, RESULTS, write_json
from measurements.samples import ROLES, SAMPLES, event_file, reconstructed
from pflow.checkpoint.load import load_model
from pflow.io.open import open_events
from pflow.io.particles_root import read_reco
from pflow.plots.display import plot_event
from pflow.plots.scene import make_scene

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    for role in ROLES:
        parser.add_argument(f"--{role}", metavar="MODEL", default=f"ild-g4-{role}", help="default: %(default)s")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the samples (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/flagship_results"), help="default: %(default)s")
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--limit-events", type=int, metavar="N", help="the first N events of each file alone")
    parser.add_argument("--samples", nargs="+", choices=[sample.name for sample in SAMPLES], metavar="NAME")
    parser.add_argument("--force", action="store_true", help="reconstruct again: needed after a change of the code")
    parser.add_argument("--device", default="auto")


def run(args: argparse.Namespace) -> Path:
    """Measure; returns the folder of flagship.json."""
    folder = args.out / (args.split if args.limit_events is None else f"{args.split}_{args.limit_events}")
    final = args.split == "test" and args.limit_events is None and not args.samples
    results_dir, figures_dir = (RESULTS, FIGURES) if final else (folder, folder / "figures")
    models = {role: load_model(getattr(args, role)) for role in ROLES}
    results: dict[str, Any] = {
        "split": args.split,
        "models": {
            role: {
                "source": model.path,
                "sha256": model.digest,
                "parameters": sum(parameter.numel() for parameter in model.reconstructor.parameters()),
                "reads_tracks": bool(model.tokeniser.recipe.track_features),
            }
            for role, model in models.items()
        },
        "samples": {},
    }
    for sample in SAMPLES:
        if args.samples and sample.name not in args.samples:
            continue
        events = event_file(sample, data=args.data, split=args.split, folder=folder, limit=args.limit_events)
        if events is None:
            print(f"{sample.name}: no {args.split} file in {args.data}", flush=True)
            continue
        recos = reconstructed(sample, events, models, folder=folder, device=args.device, force=args.force)
        no_tracks = not all(results["models"][role]["reads_tracks"] for role in recos)
        found = evaluate_file(events, recos, rule=sample.rule, no_tracks=no_tracks)
        results["samples"][sample.name] = found
        role = found["models"][0]
        for worst in found["algorithms"][role]["extra"]["losses"]["worst"][:1]:
            save(
                {f"{sample.name}_worst": display(events, recos[role], worst["entry"], rule=sample.rule)},
                figures_dir,
                dpi=DISPLAY_DPI,
            )
        print(f"{sample.name}: {found['n_events']} events evaluated", flush=True)
    write_json(results_dir / "flagship.json", results, indent=None)
    return results_dir


def display(events: Path, reco: Path, entry: int, *, rule: str) -> Any:
    """One event with its reconstructed particles, hits in the colour of their true particle."""
    with open_events(events) as file:
        event = file.read(entry, entry + 1)
    answer = read_reco(reco, entry_start=entry, entry_stop=entry + 1)
    return plot_event(make_scene(event, reconstruction=answer, rule=rule, max_colours=12))
