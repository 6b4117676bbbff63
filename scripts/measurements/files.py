"""Where results are, and how they are written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflow.io.atomic import replacing
from pflow.metrics.stats import Number

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PFLOW_DATA", ROOT.parent / "shared" / "data")) / "g4"
"""The Geant4 samples."""
RESULTS = ROOT / "scripts" / "results"
FIGURES = RESULTS / "figures"
REPORT = ROOT / "RESULTS.md"


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file."""
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def write_json(path: Path, content: Any, *, indent: int | None = 1) -> None:
    """Write plain data, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    separators = (",", ":") if indent is None else None
    with replacing(path) as partial:
        partial.write_text(
            json.dumps(content, indent=indent, separators=separators, allow_nan=False) + "\n", encoding="utf-8"
        )
    print(f"wrote {path}", flush=True)


def number(tree: dict[str, Any] | None, key: str) -> Number:
    """A number with its interval from plain data, by its dotted key; undefined where there is none."""
    *path, name = key.split(".")
    for step in path:
        tree = (tree or {}).get(step)
    value = (tree or {}).get(name)
    if tree is None or value is None:
        return Number.undefined()
    low, high = (math.nan if end is None else end for end in tree[f"{name}_interval"])
    return Number(value, low, high)


def intervals(tree: dict[str, Any] | None, keys: Mapping[str, str], factor: float = 1.0) -> dict[str, list[float]]:
    """Value and interval of the numbers with these dotted keys, by name; without those that are undefined."""
    found = {name: number(tree, key) * factor for name, key in keys.items()}
    return {name: [n.value, n.low, n.high] for name, n in found.items() if not math.isnan(n.value)}


def rounded(content: Any) -> Any:
    """Floats of plain data to six digits, which keeps the files small."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content
