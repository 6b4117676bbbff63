"""The set-ups of the first paper side by side: the same training files and budget, the same test files.

    python scripts/compare_setups.py --data ../shared/data/g4 --out runs/compare --epochs 4
    python scripts/compare_setups.py --data ../shared/data/g4 --out runs/full --epochs 50 --override    # full sizes
    python scripts/compare_setups.py --only-report        # RESULTS.md anew from scripts/results/setups.json

Each set-up is one `pflow fit` on gamma1_train and gammasep_train together (the best of its epochs by the loss on both
validation files), one `pflow reconstruct` and one `pflow evaluate` for each test file. By default `--override` shrinks
networks and events to what a CPU can train; it is written into the table. A set-up that was measured is not trained
again, unless --force is given; one that was interrupted starts anew. Logs and files are in OUT/SETUP.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from setups import (
    ALWAYS_ONE,
    COLUMNS,
    LINE_TITLES,
    ROOT,
    collect,
    machine_text,
    measure,
    model_figures,
    reference_lines,
    result_row,
    table,
    tests_text,
    write_json,
    write_section,
)

SETUPS = ("paper_v1_flags", "paper_v1_kind", "paper_v2_kind", "tracks_cross", "tracks_typed")
SMALL = (
    "network.width=64",
    "network.heads=2",
    "network.encoder_layers=2",
    "network.decoder_layers=2",
    "network.feedforward=128",
    "data.hit_energy_min=0.02",
    "data.batch_size=8",
    "model.max_particles=20",
)
"""What a CPU trains in minutes: small networks, and the half of the hits that holds about nine tenths of the energy."""
COST = [
    "set-up",
    "parameters",
    "best epoch",
    "training [min]",
    "its CPU time [min]",
    "one photon: events/s",
    "one or two: events/s",
]
TEXT = """\
## The first paper's set-ups side by side

What `configs/paper_v1_flags.yaml`, `paper_v1_kind`, `paper_v2_kind`, `tracks_cross` and `tracks_typed` find on the test
files after the same budget: {epochs} epochs of the {events:,} events of `gamma1_train` and `gammasep_train` together
({seen:,} events seen), with
{overrides}.
The weights are those of the epoch with the least loss on both validation files. Tests: {tests}
events.

{results}

"Matched" is the fraction of true photons with a partner (cost `angle_energy`, cut 3: within 17 degrees); energy error
and the first two angles are of these. The third angle pairs by rank in energy, however far apart. "Told right" is one
particle for one photon and two or more for two; "above 30 mrad" leaves out pairs that open by less. A set-up that tells
no more right than the line "always one photon" has not learned to count, and its "exactly one" means nothing. Errors
are half the 68.3% interval of the test's statistics and say nothing of another seed. PandoraPFA and the limit read all
hits; PandoraPFA's energy scale is not tuned to this detector, which is part of its energy error.

{cost}

Measured on {machine}, a machine shared with other work: compare CPU times, the rest is
rough. Events per second are those of `pflow reconstruct` with its defaults.
{missing}
{caution}

    # these tables
    python scripts/compare_setups.py --data ../shared/data/g4 --out runs/compare --epochs {epochs}{option}
    # the configurations as they are, full sizes and all hits
    python scripts/compare_setups.py --data ../shared/data/g4 --out runs/compare_full --epochs 50 --override

All numbers are in `scripts/results/setups.json`.
"""
SHORT = "This is a short training, for a CPU: small networks, part of the hits"
CAUTION = """\
**{what}, and one seed each.**
It hints at which set-up learns first, not at which is best; what a larger budget changes in the order is not known.
Better than "always one photon" in telling one from two, outside of both errors: {counting}. The samples are photons,
with tracks from conversions only, so the two set-ups with tracks cannot show here what tracks are for. The best model
of the paper, on samples and with a training of its own: 5% energy error, 2.98 degrees, 99.6% of one or two photons told
right."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with gamma1_*.root and gammasep_*.root")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder for runs (default: %(default)s)")
    parser.add_argument("--setups", nargs="+", choices=SETUPS, default=SETUPS, metavar="NAME", help="some of the five")
    parser.add_argument("--epochs", type=int, default=4, help="for each set-up (default: %(default)s)")
    parser.add_argument(
        "--override", nargs="*", default=SMALL, metavar="KEY=VALUE", help="changes to every configuration; none: as is"
    )
    parser.add_argument("--force", action="store_true", help="train again what is already measured")
    parser.add_argument("--only-report", action="store_true", help="run nothing, write RESULTS.md anew")
    parser.add_argument("--json", type=Path, default=ROOT / "scripts" / "results" / "setups.json", help="results")
    parser.add_argument("--report", type=Path, default=ROOT / "RESULTS.md", help="document with the table")
    args = parser.parse_args()
    if not args.only_report:
        if args.data is None:
            parser.error("--data is needed to train")
        budget = {"epochs": args.epochs, "override": list(args.override)}
        for name in args.setups:
            options = [f"--config={ROOT / 'configs' / name}.yaml", *(f"--{option}" for option in args.override)]
            options += [f"--trainer.max_epochs={args.epochs}"]
            measure(name, args.out / name, budget, options=options, data=args.data, force=args.force)
        found = collect({name: args.out / name for name in SETUPS}, dict.fromkeys(SETUPS, budget), args.data)
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, {"budget": budget, "setups": found})
    write_section(args.report, "setups", section(json.loads(args.json.read_text("utf-8"))))


def section(results: dict[str, Any]) -> str:
    """The text and tables of RESULTS.md."""
    budget, setups = results["budget"], results["setups"]
    some = next(iter(setups.values()))
    rows = [result_row(f"`{name}`", model_figures(result)) for name, result in setups.items()]
    rows += [result_row(LINE_TITLES[line], samples) for line, samples in reference_lines(some).items()]
    overrides = " ".join(budget["override"])
    missing = [f"`{name}`" for name in SETUPS if name not in setups]
    return TEXT.format(
        epochs=budget["epochs"],
        events=some["training_events"],
        seen=budget["epochs"] * some["training_events"],
        overrides=f"`{overrides}`" if overrides else "nothing changed in the configurations",
        option=f" --override {overrides}" if tuple(budget["override"]) != SMALL else "",
        tests=tests_text(some),
        machine=machine_text(some),
        results=table(["set-up", *(column.title for column in COLUMNS)], rows),
        cost=table(COST, (cost_row(name, result) for name, result in setups.items())),
        caution=CAUTION.format(
            what=SHORT if tuple(budget["override"]) == SMALL else f"{budget['epochs']} epochs",
            counting=", ".join(f"`{name}`" for name, result in setups.items() if counts(result)) or "none",
        ),
        missing=f"\nNo result: {', '.join(missing)}.\n" if missing else "",
    )


def counts(result: dict[str, Any]) -> bool:
    """Whether a set-up tells one photon from two better than always answering one."""
    found = result["samples"]["gammasep"]["lines"]
    return bool(found["model"]["separated"][1] > found[ALWAYS_ONE]["separated"][2])


def cost_row(name: str, result: dict[str, Any]) -> list[str]:
    """What a set-up costs, as cells."""
    speeds = (f"{part['events_per_second']:.0f}" for part in result["samples"].values())
    minutes = (f"{result[key] / 60:.1f}" for key in ("seconds", "cpu_seconds"))
    return [f"`{name}`", f"{result['parameters']:,}", str(result["best_epoch"]), *minutes, *speeds]


if __name__ == "__main__":
    main()
