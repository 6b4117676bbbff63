"""Commands of pflow as child processes, timed, and the revision that they ran with."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from measurements.files import ROOT


def run_pflow(log: Path, *arguments: object) -> tuple[float, float, str]:
    """Run a verb with its output in a file; seconds, CPU seconds and that output."""
    start, used = time.perf_counter(), _cpu_seconds()
    print(f"pflow {' '.join(map(str, arguments))}", flush=True)
    command = [sys.executable, "-m", "pflow", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log.write_text(done.stdout, encoding="utf-8")
    if done.returncode:
        sys.exit(f"pflow {arguments[0]} failed, see {log}:\n{done.stdout[-2000:]}")
    return time.perf_counter() - start, _cpu_seconds() - used, done.stdout


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def revision() -> str:
    """The commit of this checkout, with ``-dirty`` if files differ from it; ``unknown`` outside of a repository."""
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or "unknown"
