"""What a model finds in events of CLD, beside Pandora: the simplified detector's test files, and real full simulation.

The real events are the fully reconstructed one (`cld_rec`) with Pandora's particles, and three simulated ones
(`cld_zuds100_sim`) with tracks made from Monte Carlo particles, which no other algorithm has reconstructed. For
development, `--split val` or `--samples` write below `--out`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measurements.evaluation import CLASSICAL, ORACLE, evaluate_file
from measurements.files import DATA, RESULTS, number, write_json
from measurements.flagship import about
from measurements.markdown import table
from measurements.quantities import Quantity, judge
from pflow.checkpoint.load import load_model
from pflow.inference.files import reconstruct_files
from pflow.metrics.report import number_text

__all__ = ["add_options", "measure", "real_table", "run", "sample_table"]

SAMPLES = ("single", "multi", "gammasep", "zqq", "zh")
REAL = {"cld_rec": False, "cld_zuds100_sim": True}
"""Real files of `edm4hep`, and whether their tracks are made from Monte Carlo particles."""
ROLE = "pflow"

EFFICIENCY = "energy_weighted_efficiency"
VISIBLE = "event.visible_energy.resolution_68_over_median"
JETS = (("genkt_r04", "kt R = 0.4"), ("genkt_r07", "kt R = 0.7"), ("durham_2", "Durham, two"))
APART = "extra.separation.separated"


def _of_jets(sample: str) -> tuple[Quantity, ...]:
    return (
        Quantity(sample, "energy-weighted efficiency [%]", EFFICIENCY, better="more", beat_pandora=True),
        Quantity(sample, "fake energy fraction [%]", "fake_energy_fraction", beat_pandora=True),
        Quantity(sample, "class right, of matched [%]", "pdg.class_accuracy", better="more", beat_pandora=True),
        Quantity(sample, "visible energy, resolution_68 / median [%]", VISIBLE, beat_pandora=True),
        Quantity(sample, "visible energy, median response [%]", "event.visible_energy.response_median"),
        *(
            Quantity(sample, f"jets ({title}), IQR / median [%]", f"jets.{name}.iqr_over_median", beat_pandora=True)
            for name, title in JETS
        ),
    )


def _of_particles(sample: str) -> tuple[Quantity, ...]:
    right = "extra.class_right.above_2_gev.of_matched"
    return (
        Quantity(sample, "class right, of matched above 2 GeV [%]", right, better="more", bound=95.0),
        Quantity(sample, "energy-weighted efficiency [%]", EFFICIENCY, better="more", beat_pandora=True),
        Quantity(sample, "fake energy fraction [%]", "fake_energy_fraction"),
    )


QUANTITIES = (
    *_of_particles("single"),
    *_of_particles("multi"),
    Quantity("gammasep", "one against two [%]", APART, better="more"),
    Quantity("gammasep", "one against two, pairs above 30 mrad [%]", f"{APART}_above", better="more", bound=99.5),
    *_of_jets("zqq"),
    *_of_jets("zh"),
)
REAL_QUANTITIES = (
    ("found, by number [%]", "class.all.efficiency", 100.0),
    ("fakes, by number [%]", "class.all.fake_rate", 100.0),
    ("energy-weighted efficiency [%]", EFFICIENCY, 100.0),
    ("fake energy fraction [%]", "fake_energy_fraction", 100.0),
    ("class right, of matched [%]", "pdg.class_accuracy", 100.0),
    ("angle, median [deg]", "angle.median_deg", 1.0),
    ("visible energy / true [%]", "event.visible_energy.response_median", 100.0),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="cld-general", help="default: %(default)s")
    parser.add_argument("--data", type=Path, default=DATA.parent, help="folder of cld_g4 and edm4hep")
    parser.add_argument("--out", type=Path, default=Path("runs/cld_results"), help="default: %(default)s")
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--samples", nargs="*", choices=(*SAMPLES, *REAL), metavar="NAME")
    parser.add_argument("--device", default="auto")


def run(args: argparse.Namespace) -> Path:
    """Measure; returns the folder of the results."""
    folder = RESULTS if args.split == "test" and args.samples is None else args.out / args.split
    chosen = (*SAMPLES, *REAL) if args.samples is None else args.samples
    model = load_model(args.model)

    def evaluated(path: Path, **options: Any) -> dict[str, Any]:
        return measure(path, model, device=args.device, **options)

    content = {
        "split": args.split,
        "models": {ROLE: about(model)},
        "samples": {
            name: evaluated(args.data / "cld_g4" / f"{name}_{args.split}.root") for name in SAMPLES if name in chosen
        },
        "real": {
            name: evaluated(args.data / "edm4hep" / f"{name}.edm4hep.root", truth_tracks=made)
            for name, made in REAL.items()
            if name in chosen
        },
    }
    write_json(folder / "cld.json", content, indent=None)
    return folder


def measure(truth: Path, model: Any, *, device: str, **options: Any) -> dict[str, Any]:
    """Reconstruct a file and evaluate it beside Pandora, if it has its particles, and the oracle."""
    with tempfile.TemporaryDirectory() as temporary:
        reco = Path(temporary) / "reco.root"
        reconstruct_files([truth], checkpoint=model, output=reco, device=device, **options)
        found = evaluate_file(truth, {ROLE: reco}, rule="stable", **options)
    print(f"{truth.name}: {found['n_events']} events", flush=True)
    return found


def sample_table(results: Mapping[str, Any]) -> str:
    """The simplified detector: Pandora, the oracle, the model, and the target."""
    rows = []
    for quantity in QUANTITIES:
        if quantity.sample not in results["samples"]:
            continue
        algorithms = results["samples"][quantity.sample]["algorithms"]
        ours, pandora, oracle = (
            number(algorithms.get(name), quantity.key) * quantity.factor for name in (ROLE, CLASSICAL, ORACLE)
        )
        numbers = [number_text(value) for value in (pandora, oracle, ours)]
        rows.append([quantity.sample, quantity.title, *numbers, quantity.target, judge(quantity, ours, pandora)])
    return table(["sample", "quantity", "Pandora", "oracle", "pflow", "target", "met"], rows, left=(0, 1, 5, 6))


def real_table(results: Mapping[str, Any]) -> str:
    """Real events: Pandora, the oracle and the model side by side."""
    rows = []
    for name, sample in results["real"].items():
        for title, key, factor in REAL_QUANTITIES:
            values = (number(sample["algorithms"].get(who), key) * factor for who in (CLASSICAL, ORACLE, ROLE))
            rows.append([f"`{name}`", title, *(number_text(value) for value in values)])
    return table(["file", "quantity", "Pandora", "oracle", "pflow"], rows, left=(0, 1))
