"""What each part of the flagship brings: the same training files and budget, one change from row to row.

    python scripts/ablation.py --data ../shared/data/g4 --out runs/ablation
    python scripts/ablation.py --data ../shared/data/g4 --out runs/ablation --rows incidence proxies   # some of them
    python scripts/ablation.py --only-report        # RESULTS.md anew from scripts/results/ablation.json

Each row is one `pflow fit` on gamma1_train and gammasep_train together, one `pflow reconstruct` and one
`pflow evaluate` for each test file, all on one CPU thread. A row that was measured is not trained again, unless --force
is given; one that was interrupted in its training starts anew. Logs and files are in OUT/ROW.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from setups import (
    COLUMNS,
    LINE_TITLES,
    ROOT,
    Column,
    Figure,
    cell,
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

CONFIGS = ROOT / "configs"
COMMON = (
    "seed_everything=1",
    "trainer.accelerator=cpu",
    "network.width=64",
    "network.heads=2",
    "network.encoder_layers=2",
    "network.decoder_layers=2",
    "network.feedforward=128",
    "data.hit_energy_min=0.0",
    "data.batch_size=8",
    "data.chunk=512",
    "data.buffer=4096",
    "model.lr=1.0e-3",
    "model.max_particles=20",
    "ema.decay=null",
)
"""What all rows have in common, whatever their configurations say: sizes that a CPU trains in minutes, and all hits."""
WITHOUT = {
    "proxies": ("network.proxies=false",),
    "coverage": ("network.coverage=false", "network.own_incidence=0.0"),
    "augmentation": ("data.augment=null",),
    "merging": ("data.merge=null",),
}
"""How to take the flagship's parts away, in the order in which the rows add them."""


class Row(NamedTuple):
    """A row of the table.

    Parameters
    ----------
    title
    config
        Its configuration's name in configs/.
    changes
        Options of `pflow fit` on top, as KEY=VALUE.
    before
        The row it differs from by one change.
    """

    title: str
    config: str
    changes: tuple[str, ...]
    before: str | None


def rows() -> dict[str, Row]:
    """The rows by name, in their order."""
    recipe = yaml.safe_load((CONFIGS / "data" / "pointing_hits.yaml").read_text("utf-8"))
    features = f"data.hit_features={json.dumps(recipe['hit_features'])}"
    found = {
        "paper_v1": Row("paper v1", "paper_v1_flags", (), None),
        "paper_v2": Row("paper v2", "paper_v2_kind", (), "paper_v1"),
        "features": Row("v1 + features", "paper_v1_flags", (features,), "paper_v1"),
        "incidence": Row("+ incidence", "flagship_photon", _without(WITHOUT), "features"),
    }
    parts = list(WITHOUT)
    for i, part in enumerate(parts):
        found[part] = Row(f"+ {part}", "flagship_photon", _without(parts[i + 1 :]), next(reversed(found)))
    return found


def _without(parts: Sequence[str] | Mapping[str, object]) -> tuple[str, ...]:
    return tuple(option for part in parts for option in WITHOUT[part])


ROWS = rows()
SHOWN = tuple(column for column in COLUMNS if column.key != "angle_all")
"""Columns of the table: those of the comparison of set-ups but for one."""
LESS_IS_BETTER = {"energy_error", "angle_mean", "angle_median"}
COST = ["row", "parameters", "training [min]", "its CPU time [min]", "one photon: events/s", "one or two: events/s"]
TEXT = """\
## Ablation: what each part of the flagship brings

Each row is one change on the row above it (the features are added to version 1, not to version 2), all with the same
budget: {seen:,} events seen ({epochs} epoch(s) with {each:,} of the {events:,} events of `gamma1_train` and
`gammasep_train` together), the same seed and order of files, learning rate and its schedule, batch size and sizes of
the network, one CPU thread, and
{common}.
The figures are of sentences written freely, on {tests}
events.

{results}

- **paper v1**, **paper v2**: `configs/paper_v1_flags.yaml` and `paper_v2_kind.yaml`, all hits as they are.
- **+ features**: version 1 reads of each hit what the flagship reads: unit direction and logarithm of the radius,
  subdetector and layer besides its energy and position.
- **+ incidence**: the pointing network, which says hit by hit what a particle is made of, without all that follows.
  This is more than one change: it comes with an encoder whose attention knows directions, with a pointer at a seed in
  place of the special tokens, with geometry that knows the field's bend (`network.bend`), with likelihoods as losses of
  energy and direction, and with the loss weights of `configs/flagship_photon.yaml`.
- **+ proxies**: energy and direction are corrections to the energy sum and the log-weighted barycentre of these hits.
- **+ coverage**: what is spoken for goes back to the decoder, and in half of the batches the network is trained on its
  own incidences (`network.own_incidence`).
- **+ augmentation**: rotation, reflection and overlay, as in `configs/data/pointing_hits.yaml`.
- **+ merging**: hits summed into coarser cells before the encoder; with it, this is `configs/flagship_photon.yaml` but
  for sizes, learning rate and average of the weights.

"Matched" is the fraction of true photons with a partner (cost `angle_energy`, cut 3: within 17 degrees); energy error
and angles are of these, so a row that matches few shows its better events. "Told right" is one particle for one photon
and two or more for two; "above 30 mrad" leaves out pairs that open by less. A row that tells no more right than "always
one photon" has not learned to count, and its "exactly one" means nothing. Errors are half the 68.3% interval of the
test's statistics and say nothing of another seed.

What changed from one row to the next by more than both errors:

{moves}

{cost}

Measured with the code of {revisions} on {machine},
a machine shared with other work: compare CPU times, the rest is rough. Times of a training include start, reading and
one validation an epoch; events per second are those of `pflow reconstruct` with its defaults.
{missing}
**This is a short training: {seen:,} events, where `configs/flagship_photon.yaml` sees {ratio:.0f} times as many in a
larger network, and one seed.** It shows what learns fast. Not measured: where each row ends after a long training,
other seeds, the parts in another order or alone, tracks, particles other than photons. The budget is equal in events,
not in time: in the time of a row without merging, the one with it could see more.

    python scripts/ablation.py --data ../shared/data/g4 --out runs/ablation{options}

All numbers are in `scripts/results/ablation.json`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with gamma1_*.root and gammasep_*.root")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/ablation"), help="folder for runs (default: %(default)s)"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--epochs", type=int, default=1, help="for each row (default: %(default)s)")
    parser.add_argument(
        "--override", nargs="*", default=(), metavar="KEY=VALUE", help="changes to what all rows have in common"
    )
    parser.add_argument("--force", action="store_true", help="train again what is already measured")
    parser.add_argument("--only-report", action="store_true", help="run nothing, write RESULTS.md anew")
    parser.add_argument("--json", type=Path, default=ROOT / "scripts" / "results" / "ablation.json", help="results")
    parser.add_argument("--report", type=Path, default=ROOT / "RESULTS.md", help="document with the table")
    args = parser.parse_args()
    if not args.only_report:
        if args.data is None:
            parser.error("--data is needed to train")
        os.environ["OMP_NUM_THREADS"] = "1"  # of the commands that are run
        torch.set_num_threads(1)  # what is noted of the machine
        budget = {"epochs": args.epochs, "common": [*COMMON, *args.override]}
        budgets = {name: {**budget, "config": row.config, "changes": list(row.changes)} for name, row in ROWS.items()}
        for name in args.rows:
            options = fit_options(ROWS[name], budget)
            measure(name, args.out / name, budgets[name], options=options, data=args.data, force=args.force)
        found = collect({name: args.out / name for name in ROWS}, budgets, args.data)
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, {"budget": budget, "rows": found})
    write_section(args.report, "ablation", section(json.loads(args.json.read_text("utf-8"))))


def fit_options(row: Row, budget: Mapping[str, Any]) -> list[str]:
    """Options of `pflow fit` for a row."""
    options = [f"--config={CONFIGS / row.config}.yaml", f"--trainer.max_epochs={budget['epochs']}"]
    return options + [f"--{option}" for option in (*row.changes, *budget["common"])]


def section(results: Mapping[str, Any]) -> str:
    """The text and tables of RESULTS.md."""
    budget, measured = results["budget"], results["rows"]
    some = next(iter(measured.values()))
    models = {name: model_figures(result) for name, result in measured.items()}
    lines = [result_row(ROWS[name].title, samples, SHOWN) for name, samples in models.items()]
    lines += [result_row(LINE_TITLES[line], samples, SHOWN) for line, samples in reference_lines(some).items()]
    seen = budget["epochs"] * some["events_an_epoch"]
    override = budget["common"][len(COMMON) :]
    options = f" --epochs {budget['epochs']}" if budget["epochs"] != 1 else ""
    options += f" --override {' '.join(override)}" if override else ""
    missing = [f"`{name}`" for name in ROWS if name not in measured]
    flagship = yaml.safe_load((CONFIGS / "flagship_photon.yaml").read_text("utf-8"))["trainer"]["max_epochs"]
    return TEXT.format(
        seen=seen,
        epochs=budget["epochs"],
        each=some["events_an_epoch"],
        events=some["training_events"],
        common=f"`{' '.join(budget['common'])}`",
        tests=tests_text(some),
        results=table(["row", *(column.title for column in SHOWN)], lines),
        moves="\n".join(f"- {line}" for line in moves(models)),
        cost=table(COST, (cost_row(name, result) for name, result in measured.items())),
        machine=machine_text(some),
        revisions=" and ".join(dict.fromkeys(f"`{result['revision']}`" for result in measured.values())),
        missing=f"\nNo result: {', '.join(missing)}.\n" if missing else "",
        ratio=flagship * some["training_events"] / seen,
        options=options,
    )


def moves(models: Mapping[str, Mapping[str, Mapping[str, Figure]]]) -> Iterator[str]:
    """For each row whose row before is there too, the figures that changed by more than both errors."""
    for name, samples in models.items():
        before = ROWS[name].before
        if before is None or before not in models:
            continue
        said: dict[str, list[str]] = {"better": [], "worse": []}
        for column in SHOWN:
            old, new = (found[column.sample][column.key] for found in (models[before], samples))
            change = compare(column, old, new)
            if change is not None:
                said[change].append(f"{column.title}, {cell(old, column.factor)} to {cell(new, column.factor)}")
        words = [f"{change}: {'; '.join(found)}" for change, found in said.items() if found]
        yield f"**{ROWS[name].title}** after {ROWS[before].title}: {'. '.join(words) or 'nothing'}."


def compare(column: Column, old: Figure, new: Figure) -> str | None:
    """Whether a figure is ``better`` or ``worse`` with its interval outside of the other's, or neither."""
    (_, low, high), (_, new_low, new_high) = old, new
    if low is None or high is None or new_low is None or new_high is None:
        return None
    if low <= new_high and new_low <= high:
        return None
    return "better" if (new_high < low) == (column.key in LESS_IS_BETTER) else "worse"


def cost_row(name: str, result: Mapping[str, Any]) -> list[str]:
    """What a row costs, as cells."""
    minutes = (f"{result[key] / 60:.1f}" for key in ("seconds", "cpu_seconds"))
    speeds = (f"{part['events_per_second']:.0f}" for part in result["samples"].values())
    return [ROWS[name].title, f"{result['parameters']:,}", *minutes, *speeds]


if __name__ == "__main__":
    main()
