"""Draft the description of the detector that a file is from: a YAML file for --detector.

A comment beside each value says how it was found: given, in the file, measured with its hits and tracks, or guessed.
A value that the file does not contain is null: give it as an option, or fill it in.
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

ASK = {
    "layers": "--absorber ecal=MATERIAL:MM",
    "hadron_scale": "more --entries, or single particles; or write it",
    "sim_scale": "--sim-scale ecal=FACTOR, for simulated hits",
    "truth_tracks": "--tracks-as cld, for --truth-tracks",
}
"""Option that gives a field which a draft lacks."""


def pair(text: str) -> tuple[str, str]:
    """A type of options: NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found '{text}'")
    return name.strip(), value.strip()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow detector`."""
    parser.add_argument("file", metavar="FILE", help="EDM4hep or other podio file (TTree or RNTuple)")
    add_option(parser, "output", metavar="YAML", help="file to write")
    parser.add_argument("--name", help="name of the detector (default: what the simulation called it, or the file's)")
    parser.add_argument("--b-field", type=float, metavar="T", help="field along z, tesla (default: of file or tracks)")
    parser.add_argument(
        "--absorber",
        type=pair,
        action="append",
        default=[],
        metavar="CALORIMETER=MATERIAL:MM",
        help="material and thickness in each layer of a calorimeter (ecal_barrel) or of all of a kind (ecal), whose "
        "radiation and interaction lengths are the PDG's: ecal=lead:4.0; several hcal=steel:20,polystyrene:3; layers "
        "of two thicknesses ecal=tungsten:20x2.1+10x4.2; crystals ecal=PbWO4:220 (repeatable)",
    )
    parser.add_argument(
        "--place",
        type=pair,
        action="append",
        default=[],
        metavar="COLLECTION=PLACE",
        help="calorimeter of a collection whose name does not say it: ecal_barrel, hcal_endcap, muon ... (repeatable)",
    )
    parser.add_argument(
        "--sim-scale",
        type=pair,
        action="append",
        default=[],
        metavar="CALORIMETER=FACTOR",
        help="factor from deposited to calibrated energy of simulated hits, if none are digitised (repeatable)",
    )
    tracks_as = "detector with the resolutions of tracks from Monte Carlo particles, for --truth-tracks: cld"
    parser.add_argument("--tracks-as", metavar="DETECTOR", help=tracks_as)
    parser.add_argument("--entries", **number(1, 100, "N", "events to read (default: %(default)s)"))
    add_option(parser, "force")


def run(args: argparse.Namespace) -> int:
    """Draft the description and write it."""
    from pflow.errors import reading
    from pflow.io.atomic import check_output
    from pflow.io.draft.draft import Answers, draft_detector, write_draft
    from pflow.io.edm4hep.podio import open_podio
    from pflow.io.open import fitting_detectors

    check_output(args.output, inputs=[args.file], force=args.force)
    options = {name: getattr(args, name) for name in ("name", "b_field", "tracks_as")}
    with reading("--sim-scale: expected a number"):
        sim_scale = {name: float(factor) for name, factor in args.sim_scale}
    answers = Answers(**options, absorber=dict(args.absorber), sim_scale=sim_scale, place=dict(args.place))
    draft = draft_detector(args.file, answers, max_entries=args.entries)
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
    for kind, field in (("ecal", "electron_scale"), ("hcal", "hadron_scale")):
        for part in [part for part in draft.detector.calorimeters if part.kind == kind][:1]:  # all have the same
            note = draft.notes[f"calorimeters.{part.name}.{field}"]
            values.append((field, str(getattr(part, field)), *note))
    print(f"\n{text_table(('value', '', 'how', 'from'), values)}\n")
    facts = [("left out", f"{name} ({reason})") for name, reason in sorted(draft.left_out.items())]
    missing: dict[str, list[str]] = {}
    for field in draft.to_fill_in():
        owner, _, name = re.sub(r"^calorimeters\.", "", field).rpartition(".")
        what, owners = (owner, [name]) if owner == "truth_tracks" else (name, [owner] if owner else [])
        missing.setdefault(what, []).extend(owners)
    for field, owners in missing.items():
        remedy = f" ({ASK[field]})" if field in ASK else ""
        facts.append(("to fill in", f"{field}{' of ' if owners else ''}{', '.join(owners)}{remedy}"))
    facts += [("fits as well", f"built-in {', '.join(fitting)}, with nominal values")] if fitting else []
    print(text_facts([*facts, ("written", f"{output}; try it with pflow inspect {draft.path} --detector {output}")]))
