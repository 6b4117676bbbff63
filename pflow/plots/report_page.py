"""Self-contained HTML pages of an evaluation or a scan: numbers, figures, definitions, provenance."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from pflow.metrics.report import DEFINITIONS, EvaluationResult, html, method, summary, unit_of
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


def html_page(
    title: str,
    facts: Sequence[tuple[str, str]],
    notes: Iterable[str],
    table: str,
    figures: Iterable[str],
    definitions: str,
    provenance: Mapping[str, Any],
) -> str:
    """A page of a title, facts with the date, HTML of notes, table, `embedded` figures and definitions, provenance."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{MARK}">',
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        html_table(("", ""), [("date", datetime.now(UTC).date().isoformat()), *facts]),
        *notes,
        f'<h2>Results</h2><div class="numbers">{table}</div>',
        '<h2>Figures</h2><div class="figures">',
        *figures,
        f"</div><details><summary>Definitions</summary>{definitions}</details>",
        "<details><summary>Provenance in full</summary>",
        f"<pre>{escape(json.dumps(provenance, indent=2))}</pre></details></body></html>",
    ]
    return "\n".join(parts) + "\n"


def report_page(result: EvaluationResult, content: Mapping[str, Any], images: Mapping[str, bytes]) -> str:
    """HTML of a result with its `content` of ``metrics.json`` and PNG `images` by name."""
    inputs = content.get("inputs", {})
    truth = [Path(path).name for path in inputs.get("truth", [])]
    samples = ", ".join(truth[:3]) + (f" and {len(truth) - 3} more" if len(truth) > 3 else "")
    facts = []
    for name, paths in inputs.get("reco", {}).items():
        known = [paths if isinstance(paths, str) else f"{len(paths)} files"]
        with suppress(KeyError, TypeError):  # plain data of any algorithm
            made = inputs["provenance"][name]
            known.append(f"model {made['checkpoint']['path']}")
            known.append(f"detector {made['configuration']['tokeniser']['detector']['name']}")
        facts.append((result.titles.get(name, name), ", ".join(known)))
    return html_page(
        f"pflow evaluation: {result.titles.get(result.name, result.name)}" + (f" on {samples}" if truth else ""),
        facts,
        [f'<p>{escape(summary(result))}.</p><p class="note">{escape(method(result))}</p>'],
        html(result),
        [embedded(png, caption(name), wide=name.endswith("_by_class")) for name, png in images.items()],
        definition_table("key in metrics.json"),
        {key: content[key] for key in ("inputs", "settings", "versions") if key in content},
    )


def definition_table(head: str) -> str:
    """HTML of all keys with units and definitions."""
    return html_table((head, "unit", "definition"), ((key, unit_of(key), text) for key, text in DEFINITIONS.items()))


def embedded(png: bytes, text: str, *, wide: bool = False) -> str:
    """HTML of a picture with its caption, over the whole width of the page if `wide`."""
    data, text = base64.b64encode(png).decode("ascii"), escape(text)
    image = f'<img alt="{text}" src="data:image/png;base64,{data}">'
    style = ' class="wide"' if wide else ""
    return f"<figure{style}>{image}<figcaption>{text}</figcaption></figure>"
