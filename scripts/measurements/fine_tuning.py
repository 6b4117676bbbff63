"""Fine-tune `general` with few events of a detector that was in no training, and evaluate it on its test file.

`--train` and `--val` are files of the detector that edm4hep/tiles.yaml describes, simulated for this. Each training is
`pflow fit --start-from general` with events turned and reflected, then `pflow calibrate`, both with `--val`. Rows and
tables are written when each is evaluated; a training that is there is not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from measurements.rows import DATA, write_rows
from measurements.shipped import GENERAL, SAMPLES, measure, rows
from measurements.tables import FINE_TUNED, write_tables
from pflow.cli.main import main
from pflow.io.flat import write_events
from pflow.io.open import read_events


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--train", type=Path, required=True, help="flat file of the detector, of at least 100 events")
    parser.add_argument("--val", type=Path, required=True, help="another one")
    parser.add_argument("--steps", type=int, default=100, help="of each training, of 10 events (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, default=DATA, help="folder of edm4hep (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/fine_tuning"), help="default: %(default)s")


def run(args: argparse.Namespace) -> None:
    """Train and evaluate."""
    sample = next(sample for sample in SAMPLES["cld"] if sample.detector)
    path = sample.path(args.data_dir, "test")
    detector = path.with_name(str(sample.detector))
    for n_events, name in FINE_TUNED.items():
        folder, train = args.output / str(n_events), args.output / f"train_{n_events}.root"
        if not (folder / "calibrated").is_dir():
            args.output.mkdir(parents=True, exist_ok=True)
            write_events(train, read_events(args.train, detector=detector, entry_stop=n_events), force=True)
            options = {
                "start-from": GENERAL,
                "data.train": train,
                "data.val": args.val,
                "data.detector": detector,
                "data.batch-size": 10,
                "data.augment.rotate": "true",
                "data.augment.reflect": "true",
                "model.lr": 3e-4,
                "trainer.max-steps": args.steps,
                "trainer.max-epochs": -1,
                "trainer.val-check-interval": args.steps // 4,
                "trainer.check-val-every-n-epoch": "null",
                "output": folder,
            }
            best = ("--checkpoint", str(folder / "best.ckpt"))
            calibrate = ("calibrate", str(args.val), *best, "--detector", str(detector))
            fit = ("fit", *(f"--{option}={value}" for option, value in options.items()))
            for words in (fit, (*calibrate, "--output", str(folder / "calibrated"))):
                if code := main(words):
                    raise SystemExit(code)
        result = measure(sample, path, {name: str(folder / "calibrated")})[name]
        write_rows(rows(result, sample.name, name), whole=True)
        write_tables()
