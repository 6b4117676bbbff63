"""An evaluation as a self-contained HTML page: numbers, figures, definitions, provenance."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from pflow.metrics.evaluation import EvaluationResult
from pflow.metrics.report import DEFINITIONS, html, method, summary, unit_of
from pflow.plots.evaluation import caption
from pflow.plots.style import MARK
from pflow.show import html_table

CSS = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1200px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; margin-bottom: 0; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; } th, td { padding: .2em .8em; text-align: left; }
thead th { border-bottom: 2px solid #888; }
.numbers :is(td, th):not(:first-child) { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tbody tr:hover { background: #f3f6fa; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(360px, 1fr)); gap: 1em; }
figure { margin: 0; } figure img { width: 100%; } figcaption { font-size: .85em; color: #555; text-align: center; }
.wide { grid-column: 1 / -1; }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto; font-size: .85em; }
.note { color: #555; } summary { margin-top: 1.5em; font-weight: bold; cursor: pointer; }
""".strip()


def report_page(result: EvaluationResult, content: Mapping[str, Any], images: Mapping[str, bytes]) -> str:
    """HTML of a result with its `content` of ``metrics.json`` and PNG `images` by name."""
    origin = {key: content[key] for key in ("inputs", "settings", "versions") if key in content}
    inputs = content.get("inputs", {})
    truth = [Path(path).name for path in inputs.get("truth", [])]
    samples = ", ".join(truth[:3]) + (f" and {len(truth) - 3} more" if len(truth) > 3 else "")
    title = f"pflow evaluation: {result.titles.get(result.name, result.name)}" + (f" on {samples}" if truth else "")
    definitions = ((key, unit_of(key), text) for key, text in DEFINITIONS.items())
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{MARK}">',
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        html_table(("", ""), _origin(result, inputs)),
        f'<p>{escape(summary(result))}.</p><p class="note">{escape(method(result))}</p>',
        "<h2>Results</h2>",
        f'<div class="numbers">{html(result)}</div>',
        "<h2>Figures</h2>",
        '<div class="figures">',
        *(embedded(png, caption(name), wide=name.endswith("_by_class")) for name, png in images.items()),
        "</div>",
        "<details><summary>Definitions</summary>",
        html_table(("key in metrics.json", "unit", "definition"), definitions),
        "</details><details><summary>Provenance in full</summary>",
        f"<pre>{escape(json.dumps(origin, indent=2))}</pre></details>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _origin(result: EvaluationResult, inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The date, and files, model and detector of each reconstruction."""
    lines = [("date", datetime.now(UTC).date().isoformat())]
    for name, paths in inputs.get("reco", {}).items():
        facts = [paths if isinstance(paths, str) else f"{len(paths)} files"]
        with suppress(KeyError, TypeError):  # plain data of any algorithm
            made = inputs["provenance"][name]
            facts.append(f"model {made['checkpoint']['path']}")
            facts.append(f"detector {made['configuration']['tokeniser']['detector']['name']}")
        lines.append((result.titles.get(name, name), ", ".join(facts)))
    return lines


def embedded(png: bytes, text: str, *, wide: bool = False) -> str:
    """HTML of a picture with its caption, over the whole width of the page if `wide`."""
    data, text = base64.b64encode(png).decode("ascii"), escape(text)
    image = f'<img alt="{text}" src="data:image/png;base64,{data}">'
    style = ' class="wide"' if wide else ""
    return f"<figure{style}>{image}<figcaption>{text}</figcaption></figure>"
