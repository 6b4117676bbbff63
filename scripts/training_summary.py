"""What a finished training took, from the logs of its run: written into the run's folder as ``training.json``.

    python scripts/training_summary.py runs/flagship_photon
    python scripts/training_summary.py runs/flagship_photon_2 --after runs/flagship_photon

A training that was continued has a log for each part, and the time is theirs together: from the moment when a part
began to train, after the files were looked through for vocabularies and normalisers, to its last entry, which is of its
last validation or epoch. What came after that and was lost with an interruption does not count. What the training
whose weights it began with took is kept as ``before``.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from pflow.checkpoint.format import read_checkpoint
from pflow.io.atomic import replacing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the training; to be run where it was trained")
    parser.add_argument("--after", type=Path, help="folder of the training whose weights it began with")
    given = parser.parse_args()
    run = given.run
    seconds = [part for log in sorted(run.glob("logs/version_*/events.out.tfevents.*")) if (part := duration(log)) > 0]
    header = read_checkpoint(run / "last.ckpt").header["provenance"]
    summary = {
        "wall_s": round(sum(seconds)),
        "parts": len(seconds),
        "steps": header["step"],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "threads": torch.get_num_threads(),
    }
    if given.after is not None:
        summary["before"] = json.loads((given.after / "training.json").read_text("utf-8"))
    with replacing(run / "training.json") as partial:
        partial.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    print(json.dumps(summary))


def duration(log: Path) -> float:
    """Seconds from the first to the last entry of a TensorBoard log."""
    times = [event.wall_time for event in EventFileLoader(str(log)).Load()]
    return max(times) - min(times) if times else 0.0


if __name__ == "__main__":
    main()
