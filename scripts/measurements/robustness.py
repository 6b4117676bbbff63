"""Tables of damaged input, interruptions and full disks, from what the scripts write with ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from measurements.markdown import table


def attack_table(report: Mapping[str, Any]) -> str:
    """Outcomes of `attack.py` by kind of case; failures are those that were neither accepted nor refused."""
    rows, total = [], [0, 0, 0, 0]
    for kind in report["kinds"]:
        accepted, refused = (kind["outcomes"].get(what, 0) for what in ("accepted", "refused"))
        counts = [kind["cases"], accepted, refused, kind["cases"] - accepted - refused]
        total = [before + now for before, now in zip(total, counts, strict=True)]
        rows.append([kind["kind"], *map(str, counts), f"{kind['seconds']:.1f}", f"{kind['megabytes']:.0f}"])
    worst = (max((kind[key] for kind in report["kinds"]), default=0.0) for key in ("seconds", "megabytes"))
    rows.append(
        ["all", *map(str, total), *(f"{value:.{digits}f}" for value, digits in zip(worst, (1, 0), strict=True))]
    )
    head = ["damaged or strange", "cases", "accepted", "refused", "failed", "longest [s]", "most memory [MB]"]
    return table(head, rows)


def interrupt_table(report: Mapping[str, Any]) -> str:
    """What `interrupt.py` found after interruptions at random moments."""
    columns = ("times", "in time", "nothing", "partial", "whole", "failed")
    rows = [[job["job"], *(str(job.get(key, 0)) for key in columns)] for job in report["jobs"]]
    head = ["command", "interrupted", "before its end", "nothing written", "some files", "all files", "failed"]
    return table(head, rows)


def disk_table(report: Mapping[str, Any]) -> str:
    """What `full_disk.py` found."""
    columns = ("runs", "refused", "written", "failed")
    rows = [
        [job["job"], f"{job['bytes'] / 1000:.0f}", *(str(job.get(key, 0)) for key in columns)] for job in report["jobs"]
    ]
    return table(["command", "writes [kB]", "disks", "refused", "written", "failed"], rows)
