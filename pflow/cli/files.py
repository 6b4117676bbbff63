"""Verbs of event files: show a file's content, draft its detector's description, turn it into a flat ntuple."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain, groupby, repeat
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pflow.cli.main import add_file_options, add_options, number, read_options, truth_options
from pflow.errors import ConfigError, PflowError, reading
from pflow.io.atomic import check_output, replacing
from pflow.show import text_facts, text_table

if TYPE_CHECKING:
    from pflow.event.scales import SampleScales
    from pflow.io.draft import DetectorDraft
    from pflow.io.inspect import FileContent
    from pflow.physics.detector import Detector


HITS = ("CalorimeterHit", "SimCalorimeterHit")
KINDS = (*HITS, "Track", "TrackerHit", "SimTrackerHit", "MCParticle", "Link", "ReconstructedParticle")
"""Kinds of collections that are listed one by one."""


def inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow inspect`."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="event file: EDM4hep (TTree or RNTuple), flat ntuple or HDF5; output of `pflow reconstruct`, metrics.json "
        "of `pflow evaluate`, scan.json of `pflow scan`, or a trained model (a checkpoint, a folder of weights, the "
        "name of one of pflow's)",
    )
    add_file_options(parser, detector="built-in name or YAML file (default: the one that fits)")
    parser.add_argument("--checks", action="store_true", help="list the checks that pass, too, with their values")
    parser.add_argument("--json", action="store_true", help="print JSON only, with all checks")
    add_options(parser, "rule", "stable-status", "invisible")


def inspect(args: argparse.Namespace) -> int:
    """Show the content of a file: schema, entries, collections, truth, the detectors that fit, and what is missing.

    For an output of pflow or a trained model, show its inputs, versions and options.
    """
    from pflow.checkpoint import fitting_models, read_header
    from pflow.inference.files import readable_models
    from pflow.io.inspect import inspect_file

    made = _provenance(args.file)
    if made is not None and made["kind"] != "reconstruction":
        _print_json(made) if args.json else _print_provenance(made)
        return 0

    def sample_of(detector: Detector) -> SampleScales | None:
        """Scales of the training sample of the model that fits best."""
        fitting = fitting_models(detector)
        return read_header(fitting[0]).tokeniser.sample if fitting else None

    options = read_options(args, targets=truth_options(args))
    content = inspect_file(args.file, options, sample_of=sample_of)
    models: dict[str, str] = {}
    if content.detector:
        with options.open(args.file) as file:
            models = readable_models(file)
    if args.json:
        report = dataclasses.asdict(content)
        report["models"] = [name for name, reason in models.items() if not reason]
        report["unsuited_models"] = {name: reason for name, reason in models.items() if reason}
        report |= {"provenance": made} if made else {}
        _print_json(report)
        return 0
    _print_content(content, models, all_checks=args.checks)
    if made is not None:
        print()
        _print_provenance(made)
    return 0


def _print_content(content: FileContent, models: Mapping[str, str], *, all_checks: bool) -> None:
    print(text_facts(_facts(content, models, all_checks=all_checks)))
    title = f"means over the first {content.entries_read:,} of {content.num_entries:,} entries"
    title = title if content.entries_read < content.num_entries else "means over all entries"
    if content.parts:
        rows: list[Any] = [
            (part.name, f"{part.count:,}", f"{part.mean:,.1f}", _number(part.mean_energy), part.collections)
            for part in content.parts
        ]
        calorimeters = [part for part in content.parts if part.kind]
        mean, energy = (sum(getattr(part, name) or 0.0 for part in calorimeters) for name in ("mean", "mean_energy"))
        total = ("all calorimeters", f"{content.calorimeter_hits:,}", f"{mean:,.1f}", f"{energy:.3f}", ())
        rows.insert(len(calorimeters), total)
        header = ("part", "objects", "per entry", "GeV per entry", "collections")
        print(f"\n{content.detector}: {title}\n{text_table(header, rows)}")
    if content.collections:
        _print_collections(content, title)
    for table in content.tables:
        columns = [(typename, name) for name, typename in table.columns.items()]
        print(f"\n{table.name}: {table.type}, {table.num_entries:,} entries\n{text_table(('type', 'branch'), columns)}")


def _facts(content: FileContent, models: Mapping[str, str], *, all_checks: bool) -> Iterator[tuple[str, str]]:
    from pflow.event.checks import UNCHECKED

    def listed(label: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
        """A label beside the first of some texts."""
        return zip(chain([label], repeat("")), texts, strict=False)

    yield "file", content.path
    if content.schema:
        yield "schema", content.schema
        yield "entries", f"{content.num_entries:,}"
        yield "UUID", content.uuid or "none"
        yield "read as", content.detector or "nothing (see missing)"
    fitting = (f"{name}: {f'no: {reason}' if reason else 'fits'}" for name, reason in content.detectors.items())
    yield from listed("detectors", fitting)
    if content.detector:
        suited = ", ".join(name for name, reason in models.items() if not reason)
        none = "none comes with pflow for this detector and content; pflow fit --start-from makes one"
        unsuited = (f"not {name}: {reason}" for name, reason in models.items() if reason)
        yield from listed("models", [suited or none, *unsuited])
        yield (
            "truth",
            "particles and links from hits to them" if content.has_truth else "not both particles and links to them",
        )
        if content.truth_tracks:
            yield "tracks", "made from Monte Carlo particles"
        yield "absent", ", ".join(content.absent) or "nothing that the detector names"
    yield from listed("missing", (f"{part.name} (for {part.needed_for}): {part.reason}" for part in content.missing))
    by_state: dict[str, list[str]] = {"PROBLEM": [], "not known": [], "ok": []}
    for check in content.checks:
        state = "PROBLEM" if not check.good else "not known" if check.name == UNCHECKED else "ok"
        by_state[state].append(f"{state}, {check.name}: {check.text}")
    if not all_checks and (passed := by_state["ok"]):
        by_state["ok"] = [f"ok, {len(passed)} of {len(content.checks)}: --checks shows what they found"]
    yield from listed("checks", chain.from_iterable(by_state.values()))
    refused = [f"{entry}: {error}" for entry, error in content.bad_entries.items()]
    yield from listed(f"{len(refused)} bad entries", refused[:5])


def _print_collections(content: FileContent, title: str) -> None:
    """Print a line for each collection that pflow reads, and how many of each type are empty or not read."""
    shown = [item for item in content.collections if item.kind in HITS or (item.kind in KINDS and item.count)]
    rows: list[Any] = []
    # Sorted, because groupby joins neighbours only.
    for _, of_kind in groupby(sorted(shown, key=lambda item: KINDS.index(item.kind)), key=attrgetter("kind")):
        for item in of_kind:
            remarks = [f"  {link}" for link in item.links] + ["  refers to others"] * item.subset
            remarks += [f"  cannot be read: {item.unreadable}"] if item.unreadable else []
            rows.append((f"{item.mean:,.1f}", _number(item.mean_energy), item.type, [item.name, *remarks]))
        rows.append(None)
    header = ("per entry", "GeV per entry", "type", "collection")
    print(f"\nall collections: {title}\n{text_table(header, rows)}")
    by_encoding: dict[str, list[str]] = {}
    for item in shown:
        by_encoding.setdefault(item.cell_encoding, []).append(item.name)
    facts = [("cell encoding", f"{code}: {', '.join(names)}") for code, names in by_encoding.items() if code]
    empty = Counter(item.type for item in content.collections if item.kind in KINDS and item not in shown)
    others = Counter(item.type or "of unknown type" for item in content.collections if item.kind not in KINDS)
    for what, counts in (("empty", empty), ("others", others)):
        text = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
        facts += [(what, f"{text} (--json lists them)")] if counts else []
    if facts:
        print(text_facts(facts))


def _provenance(file: str) -> dict[str, Any] | None:
    """Provenance of an output of pflow or of a model; None for any other file."""
    from pflow.checkpoint import read_checkpoint
    from pflow.config import model_folder
    from pflow.metrics.evaluation import provenance_of

    path = Path(file)
    if path.suffix == ".json":
        with reading("expected the metrics.json of an evaluation or the scan.json of a scan", file=file):
            content = json.loads(path.read_text("utf-8"))
            is_scan = str(content["schema"]).startswith("pflow-scan")
            return {"kind": "scan", **content["provenance"]} if is_scan else {"kind": "evaluation", **content["inputs"]}
    if path.suffix == ".ckpt" or model_folder(file) is not None:
        model = read_checkpoint(file)
        return {
            "kind": "model",
            "checkpoint": {"path": model.path, "sha256": model.digest},
            "pflow_version": model.header.version,
            "training": dict(model.header.provenance),
        }
    made = provenance_of(file)  # a faulty file is reported when it is read
    return None if made is None else {"kind": "reconstruction", **made}


def _shown(made: Mapping[str, Any]) -> dict[str, Any]:
    """A provenance without the configuration, which --json has."""
    hidden = ("kind", "configuration", "decoding", "provenance")
    shown = {name: value for name, value in made.items() if name not in hidden}
    return shown | {name: _shown(of_file) for name, of_file in made.get("provenance", {}).items() if of_file}


def _print_provenance(made: Mapping[str, Any]) -> None:
    # By JSON first: YAML would write what occurs twice as an alias (&id001).
    plain = json.loads(json.dumps(_shown(made)))
    print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=sys.maxsize), end="")


def _number(energy: float | None) -> str:
    return "" if energy is None else f"{energy:.3f}"


def _print_json(report: Mapping[str, Any]) -> None:
    """Numbers that JSON cannot hold are null."""
    print(json.dumps(json.loads(json.dumps(report), parse_constant=lambda _: None), indent=2))


SHOWN = ("b_field", "ecal_inner_radius", "ecal_outer_radius", "ecal_inner_z", "phi_symmetry", "tracks", "references")

ASK = {
    "layers": "--absorber {}=MATERIAL:MM",
    "hadron_scale": "more events, see --entries, or single particles; or write it",
    "sim_scale": "--sim-scale {}=FACTOR",
    "truth_tracks": "--tracks-as cld, for --truth-tracks",
}
"""Option that gives a field which a draft lacks; with braces, one for each kind of calorimeter that lacks it."""


def pair(text: str) -> tuple[str, str]:
    """A type of options: NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found '{text}'")
    return name.strip(), value.strip()


def _by_name(option: str, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Values of `pair` by name; a ConfigError for a name that has two."""
    values = dict(pairs)
    for name, value in pairs:
        if value != values[name]:
            raise ConfigError(f"{option}: {name} is given as {value} and as {values[name]}: give it once")
    return values


def detector_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow detector`."""
    parser.add_argument("file", metavar="FILE", help="EDM4hep or other podio file (TTree or RNTuple)")
    add_options(parser, "output", metavar="YAML", help="file to write")
    parser.add_argument("--name", help="name of the detector (default: its name in the simulation, or the file's name)")
    parser.add_argument(
        "--b-field", type=float, metavar="T", help="field along z, tesla, negative along -z (default: from the file)"
    )
    absorber = (
        "absorber material and thickness in mm per layer, of one calorimeter (ecal_barrel) or of all of a kind (ecal): "
        "ecal=lead:4.0; several materials hcal=steel:20,polystyrene:3; layers of two thicknesses "
        "ecal=tungsten:20x2.1+10x4.2; crystals ecal=PbWO4:220. Radiation and interaction lengths are the PDG's"
    )
    place = "calorimeter that a collection belongs to, if its name does not tell: ecal_barrel, hcal_endcap, muon ..."
    sim_scale = "factor from deposited to calibrated energy of simulated hits, for files without digitised hits"
    for option, form, text in (
        ("--absorber", "CALORIMETER=MATERIAL:MM", absorber),
        ("--place", "COLLECTION=PLACE", place),
        ("--sim-scale", "CALORIMETER=FACTOR", sim_scale),
    ):
        help_text = f"{text} (repeatable)"
        parser.add_argument(option, type=pair, action="append", default=[], metavar=form, help=help_text)
    tracks_as = "detector whose track resolutions --truth-tracks takes for tracks from Monte Carlo particles: cld"
    parser.add_argument("--tracks-as", metavar="DETECTOR", help=tracks_as)
    parser.add_argument("--entries", **number(1, 100, "N", "events to read (default: %(default)s)"))
    add_options(parser, "force")


def detector(args: argparse.Namespace) -> int:
    """Draft the description of a file's detector: a YAML file for --detector.

    A comment beside each value says how it was found: given, in the file, measured with its hits and tracks, or
    guessed. A value that the file does not contain is null: give it as an option, or fill it in.
    """
    from pflow.io.draft import Answers, draft_detector, draft_to_yaml
    from pflow.io.edm4hep.podio import open_podio
    from pflow.io.open import fitting_detectors, read_events

    # Before the events are read: an output that exists ends the command at once.
    check_output(args.output, inputs=[args.file], force=args.force)
    options = {name: getattr(args, name) for name in ("name", "b_field", "tracks_as")}
    absorber, place = _by_name("--absorber", args.absorber), _by_name("--place", args.place)
    with reading("--sim-scale: expected a number"):
        sim_scale = {name: float(factor) for name, factor in _by_name("--sim-scale", args.sim_scale).items()}
    answers = Answers(**options, absorber=absorber, sim_scale=sim_scale, place=place)
    draft = draft_detector(args.file, answers, max_entries=args.entries)
    with replacing(args.output, inputs=[args.file], force=args.force) as partial:
        partial.write_text(draft_to_yaml(draft), encoding="utf-8")
    with suppress(PflowError):  # what is to be filled in is printed below
        # Hits in other units make a smaller detector; that its tracks enter elsewhere is said by the checks of reading.
        read_events(args.file, detector=draft.detector, entry_stop=draft.entries, truth=False)
    with closing(open_podio(args.file)) as file:
        _print_draft(draft, args.output, [match.detector.name for match in fitting_detectors(file) if not match.reason])
    return 0


def _print_draft(draft: DetectorDraft, output: str, fitting: list[str]) -> None:
    places, values = [], []
    for calorimeter in draft.detector.calorimeters:
        note = draft.notes[f"calorimeters.{calorimeter.name}.kind"]
        names = (*calorimeter.collections, *calorimeter.sim_collections)
        places.append((calorimeter.name, note.how, note.text.split(" (")[0], names))
    print(text_table(("calorimeter", "how", "from", "collections"), places))
    for field in filter(draft.notes.__contains__, SHOWN):
        value = getattr(draft.detector, field)
        text = ", ".join((*value[:3], *["..."] * (len(value) > 3))) if isinstance(value, tuple) else str(value)
        values.append((field, text, *draft.notes[field]))
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
        kinds = dict.fromkeys(part.kind for part in draft.detector.calorimeters if part.name in owners)
        remedy = " ".join(dict.fromkeys(ASK[field].format(kind) for kind in kinds or [""])) if field in ASK else ""
        remedy, joint = f" ({remedy})" if remedy else "", ": " if field == "truth_tracks" else " of "
        facts.append(("to fill in", f"{field}{joint if owners else ''}{', '.join(owners)}{remedy}"))
    facts += [("fits as well", f"built-in {', '.join(fitting)}, with nominal values")] if fitting else []
    print(text_facts([*facts, ("written", f"{output}; try it with pflow inspect {draft.path} --detector {output}")]))


def convert_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow convert`."""
    parser.add_argument("input", metavar="IN", help="HDF5 file of the first paper, EDM4hep file or flat ntuple")
    parser.add_argument("output", metavar="OUT.root", help="flat ntuple in the layout g4")
    add_file_options(parser, detector="detector of the input (built-in name or YAML file)")
    text = "unusable entry: stop with an error, or write it empty and count it in a warning (default: raise)"
    add_options(parser, "on-error", help=text)
    add_options(parser, "chunk-size", "force")


def convert(args: argparse.Namespace) -> int:
    """Turn the first paper's HDF5 files, and any other readable file, into ROOT files (flat ntuples)."""
    from pflow.io.flat import write_events

    if Path(args.output).suffix.lower() != ".root":
        raise ConfigError(f"cannot write {args.output}: expected a ROOT file, .root at its end")
    check_output(args.output, inputs=[args.input], force=args.force)
    with read_options(args).open(args.input) as file:
        # A file without entries gives one chunk, which says which parts it has.
        ranges = file.ranges(args.chunk_size) or [(0, 0)]
        chunks = (file.read(start, stop, on_error=args.on_error) for start, stop in ranges)
        written = write_events(args.output, chunks, inputs=[args.input], force=args.force)
    made = ", with tracks made from Monte Carlo particles" if file.truth_tracks else ""
    print(f"{args.output}: {written} events of {file.detector.name}, from {args.input} ({file.schema}){made}")
    return 0
