"""A drafted detector as a YAML file that says how each value was found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import yaml

from pflow.io.atomic import replacing
from pflow.io.draft.draft import DetectorDraft
from pflow.io.draft.notes import counted
from pflow.physics.detector import Calorimeter, Detector, TruthTracking

__all__ = ["draft_to_yaml", "write_draft"]

LAST = ("calorimeters", "tracks", "truth_tracks", "tracker_hits")
"""Fields that are written behind the lengths."""


def write_draft(draft: DetectorDraft, path: str | Path, *, force: bool = False) -> None:
    """Write a draft as a file for ``--detector``; it appears only when whole.

    A file that is there, perhaps an earlier draft with what was filled in, is replaced under `force` only.

    Raises
    ------
    ConfigError
        Nothing can be written there.
    """
    with replacing(path, inputs=[draft.path], replace=False, force=force) as partial:
        partial.write_text(draft_to_yaml(draft), encoding="utf-8")


def draft_to_yaml(draft: DetectorDraft) -> str:
    """The text of the file, from which `pflow.physics.detector.load_detector` gives the drafted detector."""
    lines = [
        f"# Drafted by pflow detector from {Path(draft.path).name}, {counted(draft.entries, 'event')}.",
        "# Fields, meaning and units (mm, T, GeV): pflow/physics/detector.py. How a value was found stands behind it:",
        "# found (in the file), measured (with hits and tracks), guessed (check it), FILL IN (the file cannot tell).",
        *_lines(draft.detector, "", draft),
    ]
    if draft.left_out:
        lines += ["# Left out:", *(f"#   {name}: {reason}" for name, reason in sorted(draft.left_out.items()))]
    return "\n".join(lines) + "\n"


def _lines(described: Detector | Calorimeter | TruthTracking, prefix: str, draft: DetectorDraft) -> Iterator[str]:
    """One line a field; fields at their default are left out unless there is a note."""
    for field in sorted(dataclasses.fields(described), key=lambda own: own.name in LAST):
        value, note = getattr(described, field.name), draft.notes.get(f"{prefix}{field.name}")
        if field.name == "calorimeters":
            yield "calorimeters:"
            for own in value:
                for number, line in enumerate(_lines(own, f"calorimeters.{own.name}.", draft)):
                    yield f"  {' ' if number else '-'} {line}"
        elif isinstance(value, TruthTracking):
            yield f"{field.name}:"
            yield from (f"  {line}" for line in _lines(value, f"{field.name}.", draft))
        elif note is not None or value != field.default:
            plain = list(value) if isinstance(value, tuple) else value
            text = yaml.safe_dump(plain, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()
            mark = "" if note is None else f"  # {note.how.upper() if note.how == 'fill in' else note.how}: {note.text}"
            yield f"{field.name}: {text}{mark}"
