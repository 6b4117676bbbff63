"""Train the first paper's set-ups with several seeds, in the same budget, and evaluate them on one and two photons.

Which decoder, treatment of the special tokens and form is the better one: recipe `paper`, its first stage, for each
variant and seed. Trainings that are finished are not repeated, and interrupted ones are resumed; each is evaluated as
soon as it is there, into seeds.csv below `--output`. The results are means over the seeds there, with the standard
error of the mean; `--variants` without a name trains none. Beside them stand the shipped model, of all stages of the
recipe, and with `--models` others that are trained.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from measurements.rows import DATA, REPORT, Row, fill, read_rows, table, write_rows
from measurements.shipped import COUNT, TRANSLATION, Sample, measure
from pflow.cli.recipe import load_recipe, run_recipe
from pflow.metrics.match import Matching
from pflow.metrics.stats import Number, leaves

QUANTITIES = {
    "gamma1": {
        "energy, mean abs(dE) / E [%]": "energy.mean_abs_rel_error",
        "angle, mean [deg]": "angle.mean_deg",
        "exactly one particle [%]": "count.exact_fraction",
    },
    "gammasep": COUNT,
}
"""By sample, of matched particles under truth rule `stable`: names in results.csv, and keys in metrics.json."""
BEFORE = {
    "exactly the right number of photons [%]": "right number of photons [%]",
    "the same, pairs above 30 mrad [%]": "right number, pairs above 30 mrad [%]",
}
"""Quantities measured when three particles counted as right for two photons; the table marks them."""
BY_RANK = {
    "exact number [%]": "count.exact_fraction",
    "excess": "excess",
    "mean abs(dE) / E [%]": "energy.mean_abs_rel_error",
    "angle, mean [deg]": "angle.mean_deg",
    "charge right [%]": "charge.accuracy",
    "abs(PDG) right [%]": "pdg.accuracy",
}
"""The same of what the paper reports: of pairs by rank in energy, under its truth rule."""
RULES: dict[str, tuple[str, Matching, Mapping[str, Mapping[str, str]]]] = {
    "stable": ("paper, ", Matching(), QUANTITIES),
    "calo": ("paper under calo, ", Matching(cost="rank", cut=0.5), dict.fromkeys(QUANTITIES, BY_RANK)),
}
"""Names of models in results.csv, matching, and quantities, by truth rule."""
PUBLISHED = "as_published_"
SQUARE = [f"{form}{name}" for name in ("v1_flags", "v1_kind", "v2_flags", "v2_kind") for form in ("", PUBLISHED)]
"""Decoders and treatments of the special tokens, in our form and as published."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variants", nargs="*", default=SQUARE, help="default: %(default)s")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="default: %(default)s")
    parser.add_argument(
        "--models", nargs="+", default=[], metavar="NAME=MODEL", help="trained models for further lines"
    )
    parser.add_argument("--rule", choices=RULES, default="calo", help="truth rule of all (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="of each training (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, default=DATA / "g4", help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("runs/paper"), help="default: %(default)s")
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--save", action="store_true", help="write the results into results.csv and RESULTS.md")


def run(args: argparse.Namespace) -> None:
    """Train and evaluate; prints the table."""
    seeds = args.output / "seeds.csv"
    for seed in args.seeds:
        for variant in args.variants:
            folder = args.output / f"{variant}_{seed}"
            fit = [f"--seed_everything={seed}", f"--trainer.max_epochs={args.epochs}", f"--data.rule={args.rule}"]
            recipe = load_recipe("paper").variant(variant)
            first = dataclasses.replace(recipe, stages=recipe.stages[:1], calibrate=None)
            if code := run_recipe(first, output=folder, data_dir=args.data_dir, options=fit):
                raise SystemExit(code)
            model = folder / "stage_1" / ("best.ckpt" if variant.startswith(PUBLISHED) else "last.ckpt")
            name = f"{variant}, {args.epochs} epochs, seed {seed}"
            if not any(row.model == f"{RULES[args.rule][0]}{name}" for row in read_rows(seeds)):
                write_rows(measured(name, str(model), args), seeds)
    rows = list(means(read_rows(seeds)))
    models = [words.partition("=")[::2] for words in args.models]
    for name, model in [*models, (f"{TRANSLATION}, all stages", TRANSLATION)]:
        rows += measured(name, model, args)
    print(paper_tables(rows)["published" if args.rule == "calo" else "paper"])
    if args.save:
        write_rows(rows)
        fill(REPORT, paper_tables(read_rows()))


def measured(name: str, model: str, args: argparse.Namespace) -> Iterator[Row]:
    """Results of a model, without errors: seeds differ by more."""
    prefix, matching, of_samples = RULES[args.rule]
    for sample, quantities in of_samples.items():
        path = args.data_dir / f"{sample}_{args.split}.root"
        of_rule = Sample(f"g4/{sample}", (), rule=args.rule, matching=matching)
        result = measure(of_rule, path, {model: model}, oracle=False)[model]
        flat = dict(leaves(result.algorithms[model]))
        differences = result.algorithms[model]["count"]["difference"]  # numbers of events
        excess = sum(int(excess) * n for excess, n in differences.items()) / sum(differences.values())
        flat["excess"] = Number(excess, math.nan, math.nan)
        for quantity, key in quantities.items():
            factor = 100.0 if quantity.endswith("[%]") else 1.0
            yield Row(f"{prefix}{name}", f"g4/{sample}", quantity, flat[key].value * factor)


def means(rows: Sequence[Row]) -> Iterator[Row]:
    """Means of variants over their seeds, with standard errors, and the numbers of seeds."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        values.setdefault((row.model.partition(", seed")[0], row.sample, row.quantity), []).append(row.value)
    for (model, sample, quantity), of_seeds in values.items():
        n, mean = len(of_seeds), float(np.mean(of_seeds))
        error = float(np.std(of_seeds, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
        yield Row(model, sample, quantity, mean, mean - error, mean + error)
        yield Row(model, sample, "seeds", n)


def paper_tables(rows: Sequence[Row]) -> dict[str, str]:
    """The tables of RESULTS.md, by the name of their place: a line for each set-up, under calo for each sample, too."""
    texts: dict[str, dict[tuple[str, str], str]] = {}
    for row in rows:
        texts.setdefault(row.model, {})[row.sample.removeprefix("g4/"), row.quantity] = row.text
    ours, published = (
        {model.removeprefix(prefix): cells for model, cells in texts.items() if model.startswith(prefix)}
        for prefix, *_ in RULES.values()
    )
    places = [(sample, quantity) for sample, quantities in QUANTITIES.items() for quantity in quantities]
    lines = [[model, *(_cell(cells, *place) for place in places)] for model, cells in ours.items()]
    shown = [quantity for quantity in BY_RANK if not quantity.startswith("abs(PDG)")]  # of photons the charge's
    by_rank = [
        [model, sample, cells.get((sample, "seeds"), "-"), *(cells[sample, quantity] for quantity in shown)]
        for sample in QUANTITIES
        for model, cells in published.items()
    ]
    head = ["set-up", "sample", "seeds", *shown]
    return {"paper": table(["set-up", *map(": ".join, places)], lines), "published": table(head, by_rank, left=2)}


def _cell(cells: Mapping[tuple[str, str], str], sample: str, quantity: str) -> str:
    """The text of a quantity; one of `BEFORE` has a star."""
    if (sample, quantity) in cells:
        return cells[sample, quantity]
    before = cells.get((sample, BEFORE.get(quantity, "")))
    return "-" if before is None else f"{before} *"
