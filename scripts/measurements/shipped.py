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
from pflow.checkpoint import load_model
from pflow.inference.files import reconstruct_files
from pflow.io.atomic import replacing
from pflow.metrics.evaluation import evaluate
from pflow.metrics.match import Matching
from pflow.metrics.oracle import ORACLE
from pflow.metrics.report import REFERENCE, EvaluationResult, EvaluationSettings, paired
from pflow.metrics.stats import Number, leaves
from pflow.plots import rendered
from pflow.plots.evaluation import figures

PHOTON, TRANSLATION, GENERAL = "ild-g4-photon", "ild-g4-translation", "general"


@dataclasses.dataclass(frozen=True)
class Sample:
    """Files FOLDER/NAME_{train,val,test}.root, or one of full simulation, and how they are evaluated."""

    name: str
    models: tuple[str, ...]
    rule: str = "stable"
    truth_tracks: bool = False
    detector: str | None = None  # its description, beside the file; None: pflow knows it
    matching: Matching = dataclasses.field(default_factory=Matching)

    def path(self, data: Path, split: str) -> Path:
        return data / f"{self.name}{'.edm4hep' if self.name.startswith('edm4hep/') else f'_{split}'}.root"


UDS = ("uds200", "uds500")
"""Samples of two jets of light quarks at 200 and 500 GeV, test files alone."""
SAMPLES = {
    "flagship": (
        *(Sample(f"g4/{name}", (PHOTON, TRANSLATION, GENERAL)) for name in ("gamma1", "gammasep")),
        *(Sample(f"g4/{name}", (GENERAL,)) for name in ("single", "multi", "zqq", "zh", *UDS)),
        Sample("g4/tau10", (GENERAL, TRANSLATION), rule="entering"),
    ),
    "cld": (
        *(Sample(f"cld_g4/{name}", (GENERAL,)) for name in ("gammasep", "single", "multi", "zqq", "zh", *UDS)),
        Sample("edm4hep/cld_rec", (GENERAL,)),
        Sample("edm4hep/cld_jettags", (GENERAL,)),
        Sample("edm4hep/cld_zuds100_sim", (GENERAL,), truth_tracks=True),
        Sample("edm4hep/tiles_zqq", (GENERAL,), detector="tiles.yaml"),
    ),
}
"""Samples by the verb that evaluates them."""

COUNT = {
    "exactly the right number of photons [%]": "count.one_vs_two_accuracy",
    "the same, pairs above 30 mrad [%]": "count.one_vs_two_accuracy_above_30_mrad",
}
EFFICIENCY, FAKES = "efficiency by energy, cost <= 0.5 [%]", "fake energy [%]"
_PARTICLES = {
    EFFICIENCY: "energy_weighted_efficiency",
    "efficiency by energy, cost <= 3 [%]": "energy_weighted_efficiency_loose",
    FAKES: "fake_energy_fraction",
    "class right, of matched [%]": "pdg.class_accuracy",
}
RESPONSE, RESOLUTION = "sum of energies, median response [%]", "sum of energies, resolution_68 / median [%]"
_SUMS = {
    RESPONSE: "event.visible_energy.response_median",
    RESOLUTION: "event.visible_energy.resolution_68_over_median",
}
_FULL = {
    "efficiency by number, cost <= 0.5 [%]": "class.all.efficiency",
    "efficiency by number, cost <= 3 [%]": "class.all.efficiency_loose",
    "fakes, by number [%]": "class.all.fake_rate",
    **_PARTICLES,
    "angle, median [deg]": "angle.median_deg",
    RESPONSE: "event.visible_energy.response_median",
}
DURHAM = "jets (Durham, two): IQR / median [%]"
_JETS = {
    **_SUMS,
    "jets (kt R = 0.4): IQR / median [%]": "jets.genkt_r04.iqr_over_median",
    "jets (kt R = 0.7): IQR / median [%]": "jets.genkt_r07.iqr_over_median",
    DURHAM: "jets.durham_2.iqr_over_median",
    "angle, 68% quantile [deg]": "angle.q68_deg",
    "photons: efficiency by number, cost <= 0.5 [%]": "class.photon.efficiency",
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
BUDGET = {
    "in all [%]": "confusion_budget.resolution.measured",
    "confusion of photons [%]": "confusion_budget.gain.photons",
    "confusion of neutral hadrons [%]": "confusion_budget.gain.neutral_hadrons",
    "confusion of charged particles [%]": "confusion_budget.gain.charged",
    "photons' energies [%]": "confusion_budget.gain.measurement_photons",
    "neutral hadrons' energies [%]": "confusion_budget.gain.measurement_neutral_hadrons",
    "tracks' momenta [%]": "confusion_budget.gain.measurement_charged",
    "rest [%]": "confusion_budget.gain.rest",
}
"""Contributions to RMS90 / Mean90 of the sum of energies."""


def _two_jets(energy: int) -> dict[str, str]:
    """Jet energy resolution and scale of events at rest, by sqrt(s) in GeV."""
    tree = f"jet_energy.{energy}"
    return {
        "jets: sqrt2 RMS90 / Mean90, barrel [%]": f"{tree}.resolution_barrel",
        "jets: sqrt2 RMS90 / Mean90, endcaps [%]": f"{tree}.resolution_endcap",
        "jets: Mean90 / sqrt(s), barrel [%]": f"{tree}.scale_barrel",
    }


QUANTITIES: dict[str, dict[str, str]] = {
    "gamma1": {
        "energy, median response [%]": "energy.response_median",
        "energy, resolution_68 / median [%]": "energy.resolution_68_over_median",
        "angle, median [deg]": "angle.median_deg",
        "angle, mean [deg]": "angle.mean_deg",
        "exactly one particle [%]": "count.exact_fraction",
    },
    "gammasep": {
        **COUNT,
        "pairs: opening angle / true, median": "photon_pairs.opening_response",
        "pairs: mass / true, median": "photon_pairs.mass_response",
        "pairs: mass / true, resolution_68": "photon_pairs.mass_width",
        "pairs: mean angle of the harder [deg]": "photon_pairs.angle_1_mean_deg",
        "pairs: mean angle of the softer [deg]": "photon_pairs.angle_2_mean_deg",
    },
    "single": _PARTICLES,
    "multi": {**_PARTICLES, **_SUMS},
    "zqq": {**_PARTICLES, **_JETS, **_two_jets(91), **BY_CLASS, **BUDGET},
    "zh": {**_PARTICLES, **_JETS, **BY_CLASS, **BUDGET},
    "uds200": {**_PARTICLES, **_SUMS, **_two_jets(200), **BUDGET},
    "uds500": {**_PARTICLES, **_SUMS, **_two_jets(500), **BUDGET},
    "tau10": {**_PARTICLES, "decay mode right [%]": "taus.mode_right"},
    "cld_rec": _FULL,
    "cld_jettags": _FULL,
    "cld_zuds100_sim": _FULL,
    "tiles_zqq": {**_PARTICLES, **_JETS, **_two_jets(91), **BY_CLASS},
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
        write_rows(
            [row for model, result in results.items() for row in rows(result, sample.name, model)], target, whole=True
        )
        for model, result in results.items():
            names = FIGURES.get((sample.name, model), {})
            drawn = figures(result) if names else {}
            target.with_name("figures").mkdir(parents=True, exist_ok=True)
            for name, of_evaluation in names.items():
                if of_evaluation in drawn:  # not of a few events
                    with replacing(target.with_name("figures") / f"{name}.png", force=True) as partial:
                        partial.write_bytes(rendered(drawn[of_evaluation], "png"))
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
    if sample.detector is not None:
        options["detector"] = path.with_name(sample.detector)
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
    change = paired(result.algorithms[model], result.algorithms[REFERENCE]) if REFERENCE in flat else {}
    for quantity, key in QUANTITIES[sample.rpartition("/")[2]].items():
        factor = 100.0 if quantity.endswith("[%]") else 1.0
        ours, reference, oracle, difference = (
            of.get(key, Number.undefined()) * factor
            for of in (flat[model], flat.get(REFERENCE, {}), flat.get(ORACLE, {}), change)
        )
        if not math.isnan(ours.value):
            numbers = (ours.value, ours.low, ours.high, reference.value, oracle.value)
            yield Row(model, sample, quantity, *numbers, difference.value, difference.low, difference.high)


FIGURES = {
    ("g4/gamma1", GENERAL): {"gamma1_resolution_68": "resolution_68_vs_energy"},
    ("g4/gammasep", GENERAL): {
        "gammasep_two_found": "two_photons_found",
        "gammasep_pairs": "photon_pairs",
        "gammasep_pairs_angle": "photon_pairs_angle",
    },
    ("g4/zqq", GENERAL): {
        "zqq_visible_energy": "visible_energy",
        "zqq_confusion_budget": "confusion_budget",
        "zqq_jet_energy": "jet_energy_resolution_vs_abs_cos_theta",
    },
    ("g4/tau10", GENERAL): {"tau10_modes": "tau_modes"},
    ("edm4hep/tiles_zqq", GENERAL): {"zero_shot_visible_energy": "visible_energy"},
}
"""By sample and model, the figures of RESULTS.md and the names that an evaluation gives them."""
