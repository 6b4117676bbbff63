"""What a run logged, epoch by epoch, read back from its CSV logs."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

__all__ = ["read_history"]


def read_history(folder: str | Path) -> Mapping[str, dict[int, float]]:
    """Values by name and epoch (from 1), of all the logs in a run's folder: a continued run has several.

    Names are those of the logs, e.g. ``val/loss``. Where an epoch was logged twice, the later log counts.
    """
    history: dict[str, dict[int, float]] = {}
    logs = sorted(Path(folder).glob("logs/version_*/metrics.csv"), key=lambda path: int(path.parent.name.split("_")[1]))
    for log in logs:
        lines = log.read_text("utf-8").splitlines(keepends=True)
        # A process that was killed may leave half a line at the end.
        for row in csv.DictReader(line for line in lines if line.endswith("\n")):
            if not row.get("epoch"):
                continue
            epoch = int(row["epoch"]) + 1
            for name, value in row.items():
                if "/" in name and not name.startswith("lr") and value:
                    history.setdefault(name, {})[epoch] = float(value)
    return history
