"""Draft the description of the detector that a file is from: a YAML file for --detector.

Each value says how it was found: in the file, measured with its hits and tracks, guessed, or left to fill in.
"""

from __future__ import annotations

import argparse
import re
from contextlib import closing
from typing import TYPE_CHECKING

from pflow.cli.options import add_option, number
from pflow.show import text_facts, text_table

if TYPE_CHECKING:
    from pflow.io.draft.draft import DetectorDraft

SHOWN = ("b_field", "ecal_inner_radius", "ecal_outer_radius", "ecal_inner_z", "phi_symmetry", "tracks", "references")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow detector`."""
    parser.add_argument("file", metavar="FILE", help="EDM4hep or other podio file (TTree or RNTuple)")
    add_option(parser, "output", metavar="YAML", help="file to write")
    parser.add_argument("--name", help="name of the detector (default: what the simulation called it, or the file's)")
    parser.add_argument("--b-field", type=float, metavar="T", help="field along z, tesla (default: of file or tracks)")
    parser.add_argument("--entries", **number(1, 100, "N", "events to read (default: %(default)s)"))
    add_option(parser, "force")


def run(args: argparse.Namespace) -> int:
    """Draft the description and write it."""
    from pflow.io.atomic import check_output
    from pflow.io.detect import fitting_detectors
    from pflow.io.draft.draft import draft_detector, write_draft
    from pflow.io.edm4hep.podio import open_podio

    check_output(args.output, inputs=[args.file], force=args.force)
    draft = draft_detector(args.file, name=args.name, b_field=args.b_field, max_entries=args.entries)
    write_draft(draft, args.output, force=args.force)
    with closing(open_podio(args.file)) as file:
        _print(draft, args.output, [match.detector.name for match in fitting_detectors(file) if match.fits])
    return 0


def _print(draft: DetectorDraft, output: str, fitting: list[str]) -> None:
    places, values = [], []
    for calorimeter in draft.detector.calorimeters:
        note = draft.notes[f"calorimeters.{calorimeter.name}.kind"]
        names = (*calorimeter.collections, *calorimeter.sim_collections)
        places.append((calorimeter.name, note.how, note.text.split(" (")[0], names))
    print(text_table(("calorimeter", "how", "from", "collections"), places))
    for field in filter(draft.notes.__contains__, SHOWN):
        value = getattr(draft.detector, field)
        values.append((field, ", ".join(value) if isinstance(value, tuple) else str(value), *draft.notes[field]))
    print(f"\n{text_table(('value', '', 'how', 'from'), values)}\n")
    facts = [("left out", f"{name} ({reason})") for name, reason in sorted(draft.left_out.items())]
    missing = dict.fromkeys(re.sub(r"^calorimeters\.\w+", "calorimeters", field) for field in draft.to_fill_in())
    facts += [("to fill in", f"{', '.join(missing)} (FILL IN in the file)")] if missing else []
    facts += [("fits as well", f"built-in {', '.join(fitting)}, with nominal values")] if fitting else []
    print(text_facts([*facts, ("written", f"{output}; try it with pflow inspect {draft.path} --detector {output}")]))
