"""Evaluate the shipped models on the test files, beside Pandora and the oracle, for results.csv and the figures.

For development, `--split val` or `--samples` write below `--output`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from measurements.rows import CSV, DATA, Row, write_rows
from pflow.checkpoint.load import load_model
from pflow.inference.files import reconstruct_files
from pflow.io.atomic import replacing
from pflow.metrics.evaluation import REFERENCE, EvaluationResult, EvaluationSettings, evaluate
from pflow.metrics.match import Matching
from pflow.metrics.oracle import ORACLE
from pflow.metrics.stats import Number, leaves
from pflow.plots.evaluation import figures
from pflow.plots.style import rendered

PHOTON, TRANSLATION, GENERAL = "ild-g4-photon", "ild-g4-translation", "general"


@dataclasses.dataclass(frozen=True)
class Sample:
    """Files FOLDER/NAME_{train,val,test}.root, or one of full simulation, and how they are evaluated."""

    name: str
    models: tuple[str, ...]
    rule: str = "stable"
    truth_tracks: bool = False
    matching: Matching = dataclasses.field(default_factory=Matching)

    def path(self, data: Path, split: str) -> Path:
        return data / f"{self.name}{'.edm4hep' if self.name.startswith('edm4hep/') else f'_{split}'}.root"


SAMPLES = {
    "flagship": (
        *(Sample(f"g4/{name}", (PHOTON, TRANSLATION, GENERAL)) for name in ("gamma1", "gammasep")),
        *(Sample(f"g4/{name}", (GENERAL,)) for name in ("single", "multi", "zqq", "zh")),
        Sample("g4/tau10", (GENERAL, TRANSLATION), rule="entering"),
    ),
    "cld": (
        *(Sample(f"cld_g4/{name}", (GENERAL,)) for name in ("gammasep", "single", "multi", "zqq", "zh")),
        Sample("edm4hep/cld_rec", (GENERAL,)),
        Sample("edm4hep/cld_zuds100_sim", (GENERAL,), truth_tracks=True),
    ),
}
"""Samples by the verb that evaluates them."""

_PHOTONS = {
    "right number of photons [%]": "count.one_vs_two_accuracy",
    "right number, pairs above 30 mrad [%]": "count.one_vs_two_accuracy_above_30_mrad",
}
_ENERGY = {
    "energy, median response [%]": "energy.response_median",
    "energy, resolution_68 / median [%]": "energy.resolution_68_over_median",
    "angle, median [deg]": "angle.median_deg",
    "angle, mean [deg]": "angle.mean_deg",
}
_PARTICLES = {
    "energy-weighted efficiency [%]": "energy_weighted_efficiency",
    "fake energy fraction [%]": "fake_energy_fraction",
    "class right, of matched [%]": "pdg.class_accuracy",
}
_VISIBLE = {"visible energy, median response [%]": "event.visible_energy.response_median"}
_FULL = {
    "found, by number [%]": "class.all.efficiency",
    "fakes, by number [%]": "class.all.fake_rate",
    **_PARTICLES,
    "angle, median [deg]": "angle.median_deg",
    **_VISIBLE,
}
_JETS = {
    **_VISIBLE,
    "visible energy, resolution_68 / median [%]": "event.visible_energy.resolution_68_over_median",
    "jets (kt R = 0.4), IQR / median [%]": "jets.genkt_r04.iqr_over_median",
    "jets (kt R = 0.7), IQR / median [%]": "jets.genkt_r07.iqr_over_median",
    "jets (Durham, two), IQR / median [%]": "jets.durham_2.iqr_over_median",
    "angle, 68% quantile [deg]": "angle.q68_deg",
    "photons found [%]": "class.photon.efficiency",
    "electrons: class right, of matched [%]": "class.electron.identified",
}
CLASSES = ("photon", "neutral hadron", "charged hadron")
OF_CLASS = {
    "energy, median response [%]": "response_median",
    "energy, resolution_68 / median [%]": "resolution_68_over_median",
    "fakes, by number [%]": "fake_rate",
}
BY_CLASS = {
    f"{name}: {quantity}": f"class.{name.replace(' ', '_')}.{key}"
    for name in CLASSES
    for quantity, key in OF_CLASS.items()
}
QUANTITIES: dict[str, dict[str, str]] = {
    "gamma1": {**_ENERGY, "exactly one particle [%]": "count.exact_fraction"},
    "gammasep": _PHOTONS,
    "single": _PARTICLES,
    "multi": _PARTICLES,
    "zqq": {**_PARTICLES, **_JETS, **BY_CLASS},
    "zh": {**_PARTICLES, **_JETS, **BY_CLASS},
    "tau10": _PARTICLES,
    "cld_rec": _FULL,
    "cld_zuds100_sim": _FULL,
}
"""By sample: names in results.csv, and keys in metrics.json."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of g4, cld_g4 and edm4hep (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/results"), help="default: %(default)s")
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--samples", nargs="+", metavar="NAME", help="only these, e.g. g4/zqq")
    parser.add_argument("--checkpoint", "--model", metavar="MODEL", help="instead of the shipped models")
    parser.add_argument("--save-as", metavar="NAME", help="name of this model's results in results.csv")
    parser.add_argument("--device", default="auto")


def run(args: argparse.Namespace) -> bool:
    """Evaluate; returns whether the results went into the repository's results.csv."""
    final = args.split == "test" and (args.save_as is not None if args.checkpoint else not args.samples)
    target = CSV if final else args.output / args.split / CSV.name
    for sample in SAMPLES[args.verb]:
        path = sample.path(args.data_dir, args.split)
        if (args.samples and sample.name not in args.samples) or not path.is_file():
            print(f"{sample.name}: left out{'' if path.is_file() else f', there is no file {path}'}", flush=True)
            continue
        name = args.save_as or args.checkpoint
        models = {name: args.checkpoint} if args.checkpoint else {model: model for model in sample.models}
        results = measure(sample, path, models, device=args.device)
        write_rows([row for model, result in results.items() for row in rows(result, sample.name, model)], target)
        for model, result in results.items():
            if (sample.name, model) in FIGURES:
                name, of_evaluation = FIGURES[sample.name, model]
                target.with_name("figures").mkdir(parents=True, exist_ok=True)
                with replacing(target.with_name("figures") / f"{name}.png", force=True) as partial:
                    partial.write_bytes(rendered(figures(result)[of_evaluation], "png"))
        print(f"{sample.name}: {results[min(results)].n_events} events", flush=True)
    return final


def measure(
    sample: Sample, path: Path, models: Mapping[str, str], *, device: str = "auto", oracle: bool = True
) -> dict[str, EvaluationResult]:
    """Reconstruct a file with models and evaluate them beside Pandora, if the file has its particles, and the oracle.

    `models` are checkpoints by the names that results have.

    Returns
    -------
    dict
        By model; each result holds all models, and the oracle of what its own model reads.
    """
    options: dict[str, Any] = {"truth_tracks": True} if sample.truth_tracks else {}
    with tempfile.TemporaryDirectory() as folder:
        recos = {name: Path(folder) / f"{k}.root" for k, name in enumerate(models)}
        loaded = {name: load_model(path) for name, path in models.items()}
        for name, reco in recos.items():
            reconstruct_files([path], checkpoint=loaded[name], output=reco, device=device, **options)

        results = {}
        for name, reco in recos.items():
            # Without tracks the oracle of the calorimeter alone is the limit.
            uses_tracks = bool(loaded[name].tokeniser.config.track_features)
            options["settings"] = EvaluationSettings(rule=sample.rule, use_tracks=uses_tracks, matching=sample.matching)
            others = {other: path for other, path in recos.items() if other != name}
            results[name] = evaluate(reco, path, name=name, compare=others, oracle=oracle, **options)
        return results


def rows(result: EvaluationResult, sample: str, model: str) -> Iterator[Row]:
    """The rows of a sample; quantities that the model has no number for are left out."""
    flat = {name: dict(leaves(tree)) for name, tree in result.algorithms.items()}
    for quantity, key in QUANTITIES[sample.rpartition("/")[2]].items():
        factor = 100.0 if quantity.endswith("[%]") else 1.0
        ours, reference, oracle = (
            flat[name][key] * factor if name in flat else Number.undefined() for name in (model, REFERENCE, ORACLE)
        )
        if not math.isnan(ours.value):
            yield Row(model, sample, quantity, ours.value, ours.low, ours.high, reference.value, oracle.value)


ALONE = {"g4": "ILD alone", "cld_g4": "CLD alone"}
"""Names in results.csv of the models trained on the files of one detector, by the folder of these."""

FIGURES = {
    ("g4/gamma1", GENERAL): ("gamma1_resolution_68", "resolution_68_vs_energy"),
    ("g4/gammasep", GENERAL): ("gammasep_two_found", "two_photons_found"),
    ("g4/zqq", GENERAL): ("zqq_visible_energy", "visible_energy"),
    ("cld_g4/zqq", ALONE["g4"]): ("zero_shot_visible_energy", "visible_energy"),
}
"""By sample and model, the figure of RESULTS.md and the name that an evaluation gives it."""
