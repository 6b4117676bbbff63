"""Train the first paper's set-ups with several seeds, in the same budget, and evaluate them on one and two photons.

Which treatment of the special tokens, decoder and norm is the better one: recipe `paper`, its first stage, for each
variant and seed. Trainings that are finished are not repeated, and interrupted ones are resumed. The results are means
over the seeds, with the standard error of the mean. Beside them stands the shipped model, of all stages of the recipe,
and with `--models` others that are trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from measurements.rows import DATA, REPORT, Row, fill, read_rows, table, write_rows
from measurements.shipped import TRANSLATION, Sample, measure
from pflow.cli.main import main
from pflow.metrics.stats import leaves
from pflow.train.recipe import load_recipe

QUANTITIES = {
    "gamma1": {
        "energy, mean abs(dE) / E [%]": "energy.mean_abs_rel_error",
        "angle, mean [deg]": "angle.mean_deg",
        "exactly one particle [%]": "count.exact_fraction",
    },
    "gammasep": {
        "right number of photons [%]": "count.one_vs_two_accuracy",
        "right number, pairs above 30 mrad [%]": "count.one_vs_two_accuracy_above_30_mrad",
    },
}
"""What the paper reports, by sample: names in results.csv, and keys in metrics.json."""
PREFIX = "paper, "


def add_options(parser: argparse.ArgumentParser) -> None:
    variants = [name for name in load_recipe("paper").variants if not name.startswith("tracks")]
    parser.add_argument("--variants", nargs="*", default=variants, help="default: %(default)s")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="default: %(default)s")
    parser.add_argument(
        "--models", nargs="+", default=[], metavar="NAME=MODEL", help="trained models for further lines"
    )
    parser.add_argument("--epochs", type=int, default=20, help="of each training (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, default=DATA / "g4", help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("runs/paper"), help="default: %(default)s")
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--save", action="store_true", help="write the results into results.csv and RESULTS.md")


def run(args: argparse.Namespace) -> None:
    """Train and evaluate; prints the table."""
    trained: dict[str, list[str]] = {}
    for seed in args.seeds:
        for variant in args.variants:
            folder = args.output / f"{variant}_{seed}"
            fit = ["--", "--seed_everything", str(seed), "--trainer.max_epochs", str(args.epochs)]
            words = ["recipe", "paper", "--stages", "1", "--variant", variant, "--data-dir", str(args.data_dir)]
            if code := main([*words, "--output", str(folder), *fit]):
                raise SystemExit(code)
            trained.setdefault(variant, []).append(str(folder / "stage_1" / "last.ckpt"))
    trained |= {name: [model] for name, _, model in (words.partition("=") for words in args.models)}
    trained[f"{TRANSLATION}, all stages"] = [TRANSLATION]
    rows = [row for name, models in trained.items() for row in of_variant(name, models, args)]
    print(paper_table(rows))
    if args.save:
        write_rows(rows)
        fill(REPORT, {"paper": paper_table(read_rows())})


def of_variant(name: str, models: Sequence[str], args: argparse.Namespace) -> Iterator[Row]:
    """Means and standard errors over the models."""
    for sample, quantities in QUANTITIES.items():
        path = args.data_dir / f"{sample}_{args.split}.root"
        results = measure(Sample(f"g4/{sample}", ()), path, models)
        found = [dict(leaves(result.algorithms[model])) for model, result in results.items()]
        for quantity, key in quantities.items():
            values = np.array([one[key].value for one in found]) * (100.0 if quantity.endswith("[%]") else 1.0)
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
            mean = values.mean()
            yield Row(f"{PREFIX}{name}", f"g4/{sample}", quantity, mean, mean - error, mean + error)


def paper_table(rows: Sequence[Row]) -> str:
    """A line for each variant."""
    found = {row.key: row for row in rows if row.model.startswith(PREFIX)}
    columns = [(f"g4/{name}", quantity) for name, of_sample in QUANTITIES.items() for quantity in of_sample]
    lines = [
        [model.removeprefix(PREFIX), *(found[model, *column].text for column in columns)]
        for model in dict.fromkeys(model for model, *_ in found)
    ]
    return table(["set-up", *(f"{sample.removeprefix('g4/')}: {quantity}" for sample, quantity in columns)], lines)
