"""`pflow fit` in a process of one thread, which finds the callbacks of the benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_fit(*options: str) -> None:
    """Train with these options, without validation."""
    paths = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": paths}
    alike = ("--trainer.limit-val-batches=0", "--trainer.enable-progress-bar=false")
    command = [sys.executable, "-m", "pflow", "fit", *options, *alike]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
