"""What a model finds in events of CLD, beside Pandora: the simplified detector's test files, and real full simulation.

The real events are the fully reconstructed one (`cld_rec`) with Pandora's particles, and three simulated ones
(`cld_zuds100_sim`) with tracks made from Monte Carlo particles, which no other algorithm has reconstructed. For
development, `--split val` or `--samples` write below `--output`.
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
from measurements.quantities import APART, RIGHT, Quantity, of_jets, of_particles
from measurements.tables import quantity_table
from pflow.checkpoint.load import load_model
from pflow.inference.files import reconstruct_files
from pflow.metrics.report import number_text

SAMPLES = ("single", "multi", "gammasep", "zqq", "zh")
REAL = {"cld_rec": False, "cld_zuds100_sim": True}
"""Real files of `edm4hep`, and whether their tracks are made from Monte Carlo particles."""
ROLE = "pflow"


def _found(sample: str) -> tuple[Quantity, ...]:
    efficiency, *_ = of_particles(sample, beat_pandora=True)
    _, fakes, _ = of_particles(sample, beat_pandora=False)
    right = f"{RIGHT}.above_2_gev.of_matched"
    return (
        Quantity(sample, "class right, of matched above 2 GeV [%]", right, better="more", bound=95.0),
        efficiency,
        fakes,
    )


def _of_events(sample: str) -> tuple[Quantity, ...]:
    resolution, *jets = of_jets(sample)
    response = Quantity(sample, "visible energy, median response [%]", "event.visible_energy.response_median")
    return (*of_particles(sample, beat_pandora=True), resolution, response, *jets)


QUANTITIES = (
    *_found("single"),
    *_found("multi"),
    Quantity("gammasep", "one against two [%]", APART, better="more"),
    Quantity("gammasep", "one against two, pairs above 30 mrad [%]", f"{APART}_above", better="more", bound=99.5),
    *_of_events("zqq"),
    *_of_events("zh"),
)
REAL_QUANTITIES = (
    ("found, by number [%]", "class.all.efficiency", 100.0),
    ("fakes, by number [%]", "class.all.fake_rate", 100.0),
    ("energy-weighted efficiency [%]", "energy_weighted_efficiency", 100.0),
    ("fake energy fraction [%]", "fake_energy_fraction", 100.0),
    ("class right, of matched [%]", "pdg.class_accuracy", 100.0),
    ("angle, median [deg]", "angle.median_deg", 1.0),
    ("visible energy / true [%]", "event.visible_energy.response_median", 100.0),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", "--model", default="cld-general", help="default: %(default)s")
    parser.add_argument("--data-dir", type=Path, default=DATA.parent, help="folder of cld_g4 and edm4hep")
    parser.add_argument("--output", type=Path, default=Path("runs/cld_results"), help="default: %(default)s")
    parser.add_argument("--split", choices=("test", "val"), default="test")
    parser.add_argument("--samples", nargs="*", choices=(*SAMPLES, *REAL), metavar="NAME")
    parser.add_argument("--device", default="auto")


def run(args: argparse.Namespace) -> Path:
    """Measure; returns the folder of the results."""
    folder = RESULTS if args.split == "test" and args.samples is None else args.output / args.split
    chosen = (*SAMPLES, *REAL) if args.samples is None else args.samples
    model = load_model(args.checkpoint)

    def evaluated(path: Path, **options: Any) -> dict[str, Any]:
        return measure(path, model, device=args.device, **options)

    content = {
        "split": args.split,
        "models": {ROLE: about(model)},
        "samples": {
            name: evaluated(args.data_dir / "cld_g4" / f"{name}_{args.split}.root")
            for name in SAMPLES
            if name in chosen
        },
        "real": {
            name: evaluated(args.data_dir / "edm4hep" / f"{name}.edm4hep.root", truth_tracks=made)
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
    columns = ("sample", "quantity", "Pandora", "oracle", "pflow", "target", "met")
    return quantity_table(dict(results), columns, QUANTITIES)


def real_table(results: Mapping[str, Any]) -> str:
    """Real events: Pandora, the oracle and the model side by side."""
    rows = []
    for name, sample in results["real"].items():
        for title, key, factor in REAL_QUANTITIES:
            values = (number(sample["algorithms"].get(who), key) * factor for who in (CLASSICAL, ORACLE, ROLE))
            rows.append([f"`{name}`", title, *(number_text(value) for value in values)])
    return table(["file", "quantity", "Pandora", "oracle", "pflow"], rows, left=(0, 1))
