"""How far the shipped models come: the section `flagship` of RESULTS.md with its numbers and figures.

    python scripts/flagship_results.py --photon ild-g4-photon --general ild-g4-general
    python scripts/flagship_results.py --photon a.ckpt --general b.ckpt --val    # for development
    python scripts/flagship_results.py --only-report    # figures and text anew from scripts/results/flagship.json

Each model reconstructs the test files that it is made for, once: what lies in OUT is used again unless it is of another
model, file or version of pflow, or --force is given (needed after a change of the code). All is then evaluated with our
own evaluation beside Pandora and the limit, and the cards of models that come with pflow, pflow/pretrained/NAME/README.md,
get their tables. With --val, --limit-events or --samples everything is written below OUT, and RESULTS.md and the cards
are left alone.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from flagship.card import card, results_text, training_text
from flagship.displays import display
from flagship.figures import figures
from flagship.measure import measure
from flagship.samples import ROLES, SAMPLES, event_file, reconstructed
from flagship.section import section
from matplotlib.figure import Figure
from sections import replace_section

from pflow.checkpoint.load import Model, load_model
from pflow.checkpoint.weights import HEADER
from pflow.io.atomic import replacing
from pflow.plots.style import styled
from pflow.resources import shipped_models, weights_dir

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 2_000_000
"""All figures together: they are part of the repository."""
DISPLAY_DPI, FIGURE_DPI = 75, 90


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for role in ROLES:
        parser.add_argument(f"--{role}", metavar="MODEL", help=f"{role} model: name of a shipped one, or a checkpoint")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/g4", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/flagship_results"), help="default: %(default)s")
    parser.add_argument("--val", action="store_true", help="the validation files instead of the test files")
    parser.add_argument("--limit-events", type=int, metavar="N", help="the first N events of each file alone")
    names = [sample.name for sample in SAMPLES]
    parser.add_argument("--samples", nargs="+", choices=names, metavar="NAME", help="some samples: for development")
    parser.add_argument("--force", action="store_true", help="reconstruct again what is there")
    parser.add_argument("--only-report", action="store_true", help="run nothing, draw and write from the results")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda ... (default: auto)")
    args = parser.parse_args()
    split = "val" if args.val else "test"
    folder = args.out / (split if args.limit_events is None else f"{split}_{args.limit_events}")
    final = not (args.val or args.limit_events is not None or args.samples)
    place = ROOT / "scripts/results" if final else folder
    report = ROOT / "RESULTS.md" if final else folder / "RESULTS.md"
    place.mkdir(parents=True, exist_ok=True)
    results_file, pictures = place / "flagship.json", place / "figures"

    if not args.only_report:
        models = {role: load_model(getattr(args, role)) for role in ROLES if getattr(args, role)}
        if not models:
            parser.error("--photon or --general is needed, or --only-report")
        results: dict[str, Any] = {
            "split": split,
            "command": _command(args),
            "models": {role: _about(model) for role, model in models.items()},
            "samples": {},
        }
        drawn = {}
        for sample in SAMPLES:
            if args.samples and sample.name not in args.samples:
                continue
            events = event_file(sample, data=args.data, split=split, folder=folder, limit=args.limit_events)
            if events is None:
                print(f"{sample.name}: no {split} file in {args.data}", flush=True)
                continue
            recos = reconstructed(sample, events, models, folder=folder, device=args.device, force=args.force)
            if not recos:
                continue
            no_tracks = not all(results["models"][role]["reads_tracks"] for role in recos)
            found = results["samples"][sample.name] = measure(events, recos, rule=sample.rule, no_tracks=no_tracks)
            first = found["models"][0]
            worst = found["lines"][first]["extra"]["losses"]["worst"]
            if worst:
                worst[0]["display"] = name = f"{sample.name}_worst"
                drawn[name] = display(events, recos[first], worst[0]["entry"], rule=sample.rule)
            print(f"{sample.name}: {found['n_events']} events evaluated", flush=True)
        _save(drawn, pictures, dpi=DISPLAY_DPI)
        with replacing(results_file) as partial:
            partial.write_text(json.dumps(results, allow_nan=False, separators=(",", ":")) + "\n", "utf-8")

    results = json.loads(results_file.read_text("utf-8"))
    plots = figures(results)
    _save(plots, pictures, dpi=FIGURE_DPI)
    displays = [
        event["display"]
        for sample in results["samples"].values()
        for line in sample["models"]
        for event in sample["lines"][line]["extra"]["losses"]["worst"]
        if "display" in event
    ]
    images = {name: os.path.relpath(pictures / f"{name}.png", report.parent) for name in (*plots, *displays)}
    _check_size(pictures)
    body = section(
        results, command=results["command"], json=os.path.relpath(results_file, report.parent), images=images
    )
    before = report.read_text("utf-8") if report.is_file() else "# Results\n"
    with replacing(report) as partial:
        partial.write_text(replace_section(before, "flagship", body), "utf-8")
    print(f"wrote {results_file}, {report} and {len(images)} figures in {pictures}")
    if final:
        fill_cards(results)


def fill_cards(results: dict[str, Any]) -> None:
    """The tables in the cards of the models that come with pflow, if the results are of these very weights."""
    for role, about in results["models"].items():
        if about["source"] not in shipped_models():
            continue
        folder = weights_dir() / about["source"]
        header = json.loads((folder / HEADER).read_text("utf-8"))
        if header["sha256"] != about["sha256"]:
            print(f"{folder}: its card is left alone, the results are of other weights")
            continue
        path, time = folder / "README.md", folder / "training.json"
        training = training_text(
            header, json.loads(time.read_text("utf-8")) if time.is_file() else {}, parameters=about["parameters"]
        )
        text = card(path.read_text("utf-8"), training=training, results=results_text(results, role))
        with replacing(path) as partial:
            partial.write_text(text, "utf-8")
        print(f"wrote {path}")


def _command(args: argparse.Namespace) -> str:
    """What was asked for, to be repeated."""
    words = ["python scripts/flagship_results.py"]
    words += [f"--{role} {getattr(args, role)}" for role in ROLES if getattr(args, role)]
    words += ["--val"] if args.val else []
    words += [] if args.limit_events is None else [f"--limit-events {args.limit_events}"]
    words += [f"--samples {' '.join(args.samples)}"] if args.samples else []
    return " ".join(words)


def _about(model: Model) -> dict[str, Any]:
    """What the section says of a model."""
    return {
        "source": model.path,
        "sha256": model.digest,
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "reads_tracks": bool(model.tokeniser.recipe.track_features),
    }


def _save(drawn: dict[str, Figure], folder: Path, *, dpi: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        with replacing(folder / f"{name}.png") as partial, styled():
            figure.savefig(partial, format="png", dpi=dpi, metadata={"Software": None})


def _check_size(folder: Path) -> None:
    size = sum(path.stat().st_size for path in folder.glob("*.png"))
    print(f"figures: {size / 1e6:.2f} MB")
    if size > MAX_BYTES:
        raise SystemExit(f"more than {MAX_BYTES / 1e6:.0f} MB of figures in {folder}: draw fewer or smaller ones")


if __name__ == "__main__":
    main()
