"""Show what a file holds: schema, entries, collections, truth, which detector fits, and what is missing."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pflow.cli.options import add_file_options, add_options, add_renamed, at_least, file_options

if TYPE_CHECKING:
    from rich.console import Console

    from pflow.io.edm4hep.collection_content import CollectionContent
    from pflow.io.summary import EventTruth, FileContent

__all__ = ["add_arguments", "run"]


HITS = ("CalorimeterHit", "SimCalorimeterHit")
KINDS = (*HITS, "Track", "TrackerHit", "SimTrackerHit", "MCParticle", "Link", "ReconstructedParticle")
"""Kinds of collections that are listed one by one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow inspect`."""
    parser.add_argument("file", metavar="FILE", help="event file: EDM4hep (TTree or RNTuple), flat ntuple or HDF5")
    add_file_options(parser, detector="built-in name or YAML file (default: the one that fits)")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    add_renamed(
        parser,
        "--targets",
        former="--truth",
        action="store_true",
        help="list the targets and the dropped particles of each event, as `pflow evaluate` chooses them",
    )
    add_options(parser, "rule", "min-energy", "ignore-tracks")
    parser.add_argument(
        "--entries", type=at_least(0), default=10, metavar="N", help="events that --targets lists (default: 10)"
    )


def run(args: argparse.Namespace) -> int:
    """Print what the file holds."""
    from rich.console import Console

    from pflow.io.summary import inspect_file, inspect_truth

    where = file_options(args)
    content = inspect_file(args.file, **where)
    truth = None
    if args.targets:
        chosen = {"rule": args.rule, "e_min": args.min_energy, "use_tracks": not args.ignore_tracks}
        truth = inspect_truth(args.file, **chosen, entries=args.entries, **where)
    if args.json:
        found = dataclasses.asdict(content)
        if truth is not None:
            settings = {"rule": args.rule, "e_min_gev": args.min_energy, "use_tracks": not args.ignore_tracks}
            found["truth"] = {**settings, "events": [dataclasses.asdict(event) for event in truth]}
        print(json.dumps(_finite(found), indent=2, allow_nan=False))
        return 0
    console = Console(highlight=False)
    _print_content(console, content)
    if truth is not None:
        _print_truth(console, truth, args.rule)
    return 0


def _print_content(console: Console, content: FileContent) -> None:
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    facts.add_row("file", content.path)
    facts.add_row("schema", content.schema)
    facts.add_row("entries", f"{content.num_entries:,}")
    facts.add_row("UUID", content.uuid or "none")
    facts.add_row("read as", content.detector or "nothing: no detector fits")
    for number, fit in enumerate(content.detectors):
        facts.add_row("" if number else "detectors", f"{fit.name}: {'fits' if fit.fits else f'no: {fit.reason}'}")
    if content.detector:
        facts.add_row("truth", "particles and links from hits to them" if content.has_truth else "none")
        if content.truth_tracks:
            facts.add_row("tracks", "made from Monte Carlo particles")
        facts.add_row("absent", ", ".join(content.absent) or "nothing that the detector names")
    for number, part in enumerate(content.missing):
        facts.add_row("" if number else "missing", f"{part.name} (for {part.needed_for}): {part.reason}")
    for number, (entry, error) in enumerate(list(content.bad_entries.items())[:5]):
        title = f"{len(content.bad_entries)} bad entries" if not number else ""
        facts.add_row(title, f"{entry}: {error}")
    console.print(facts, soft_wrap=True)

    title = f"means over the first {content.entries_read:,} of {content.num_entries:,} entries"
    title = title if content.entries_read < content.num_entries else "means over all entries"
    if content.parts:
        _print_parts(console, content, title)
    if content.collections:
        _print_collections(console, content, title)


def _print_parts(console: Console, content: FileContent, title: str) -> None:
    from rich.table import Column, Table

    table = Table(
        "part",
        Column("collections", overflow="fold"),
        *(Column(header, justify="right") for header in ("objects", "per entry", "GeV per entry")),
        title=f"{content.detector}: {title}",
    )
    last_calorimeter = max(number for number, part in enumerate(content.parts) if part.kind)
    for number, part in enumerate(content.parts):
        energy = "" if part.mean_energy is None else f"{part.mean_energy:.3f}"
        table.add_row(part.name, "\n".join(part.collections), f"{part.count:,}", f"{part.mean:,.1f}", energy)
        if number == last_calorimeter:
            _add_total(table, content)
    console.print(table)


def _print_collections(console: Console, content: FileContent, title: str) -> None:
    """Collections of the kinds that pflow reads, one a line; of others and of empty ones the number of each type."""
    from rich.table import Column, Table

    table = Table(
        Column("collection", overflow="fold"),
        Column("type", overflow="fold"),
        *(Column(header, justify="right") for header in ("per entry", "GeV per entry")),
        Column("remarks", overflow="fold"),
        title=f"all collections: {title}",
    )
    shown = [own for own in content.collections if own.kind in HITS or (own.kind in KINDS and own.count)]
    for kind in KINDS:
        for own in shown:
            if own.kind == kind:
                energy = "" if own.mean_energy is None else f"{own.mean_energy:.3f}"
                table.add_row(own.name, own.type, f"{own.mean:,.1f}", energy, _remarks(own))
        table.add_section()
    console.print(table)
    by_encoding: dict[str, list[str]] = {}
    for own in shown:
        by_encoding.setdefault(own.cell_encoding, []).append(own.name)
    for encoding, names in by_encoding.items():
        if encoding:
            console.print(f"cell encoding {encoding}: {', '.join(names)}", soft_wrap=True)
    empty = Counter(own.type for own in content.collections if own.kind in KINDS and own not in shown)
    others = Counter(own.type or "of unknown type" for own in content.collections if own.kind not in KINDS)
    for what, counts in (("empty", empty), ("others", others)):
        if counts:
            text = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
            console.print(f"{what}: {text} (--json lists them)", soft_wrap=True)


def _remarks(own: CollectionContent) -> str:
    """Ends of links, and what is special about a collection."""
    starts: dict[str, list[str]] = {}
    for link in own.links:
        start, _, end = link.partition(" -> ")
        starts.setdefault(end, []).append(start)
    remarks = [f"{', '.join(names)} -> {end}" for end, names in starts.items()]
    remarks += ["refers to others"] if own.subset else []
    remarks += [f"cannot be read: {own.unreadable}"] if own.unreadable else []
    return "\n".join(remarks)


def _add_total(table: Any, content: FileContent) -> None:
    calorimeters = [part for part in content.parts if part.kind]
    table.add_row(
        "all calorimeters",
        "",
        f"{content.calorimeter_hits:,}",
        f"{sum(part.mean for part in calorimeters):,.1f}",
        f"{sum(part.mean_energy or 0.0 for part in calorimeters):.3f}",
        style="bold",
        end_section=True,
    )


def _print_truth(console: Console, events: Sequence[EventTruth], rule: str) -> None:
    from rich.table import Column, Table

    for event in events:
        headers = (Column(header, justify="right") for header in ("particle", "PDG", "energy [GeV]"))
        table = Table(*headers, "", title=f"entry {event.entry}, event {event.event}, rule {rule}")
        for particles in (event.targets, event.dropped):
            for own in particles:
                what = f"dropped: {own.reason}" if own.reason else "target"
                table.add_row(str(own.index), str(own.pdg), f"{own.energy:.4f}", what)
            table.add_section()
        table.add_row("", "", f"{event.target_energy:.4f}", f"{len(event.targets)} targets", style="bold")
        table.add_row("", "", f"{event.dropped_energy:.4f}", f"{len(event.dropped)} dropped", style="bold")
        console.print(table)


def _finite(value: Any) -> Any:
    """The same plain data with numbers that JSON cannot hold as null."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value
