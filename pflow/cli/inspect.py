"""Show what a file holds: schema, entries, collections, truth, which detector fits."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pflow.cli.options import add_file_options, add_option

if TYPE_CHECKING:
    from rich.console import Console

    from pflow.io.summary import EventTruth, FileContent

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow inspect`."""
    parser.add_argument("file", metavar="FILE", help="event file: EDM4hep (TTree or RNTuple), flat ntuple or HDF5")
    add_file_options(parser, detector="built-in name or YAML file (default: the one that fits)")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--truth", action="store_true", help="list the targets and the dropped particles of each event")
    add_option(parser, "rule")
    parser.add_argument("--entries", type=int, default=10, metavar="N", help="events that --truth lists (default: 10)")


def run(args: argparse.Namespace) -> int:
    """Print what the file holds."""
    from rich.console import Console

    from pflow.io.summary import inspect_file, inspect_truth

    where: dict[str, Any] = {name: getattr(args, name) for name in ("detector", "schema", "layout", "truth_tracks")}
    content = inspect_file(args.file, **where)
    truth = inspect_truth(args.file, rule=args.rule, entries=args.entries, **where) if args.truth else None
    if args.json:
        found = dataclasses.asdict(content)
        if truth is not None:
            found["truth"] = {"rule": args.rule, "events": [dataclasses.asdict(event) for event in truth]}
        print(json.dumps(_finite(found), indent=2, allow_nan=False))
        return 0
    console = Console(highlight=False)
    _print_content(console, content)
    if truth is not None:
        _print_truth(console, truth, args.rule)
    return 0


def _print_content(console: Console, content: FileContent) -> None:
    from rich.table import Column, Table

    facts = Table.grid(padding=(0, 2))
    facts.add_row("file", content.path)
    facts.add_row("schema", content.schema)
    facts.add_row("entries", f"{content.num_entries:,}")
    facts.add_row("UUID", content.uuid or "none")
    facts.add_row("read as", content.detector)
    for number, fit in enumerate(content.detectors):
        facts.add_row("" if number else "detectors", f"{fit.name}: {'fits' if fit.fits else f'no: {fit.reason}'}")
    facts.add_row("truth", "particles and links from hits to them" if content.has_truth else "none")
    if content.truth_tracks:
        facts.add_row("tracks", "made from Monte Carlo particles")
    facts.add_row("absent", ", ".join(content.absent) or "nothing that the detector names")
    for number, (entry, error) in enumerate(list(content.bad_entries.items())[:5]):
        title = f"{len(content.bad_entries)} bad entries" if not number else ""
        facts.add_row(title, f"{entry}: {error}")
    console.print(facts, soft_wrap=True)

    title = f"means over the first {content.entries_read:,} of {content.num_entries:,} entries"
    table = Table(
        "part",
        Column("collections", overflow="fold"),
        *(Column(header, justify="right") for header in ("objects", "per entry", "GeV per entry")),
        title=title if content.entries_read < content.num_entries else "means over all entries",
    )
    last_calorimeter = max(number for number, part in enumerate(content.parts) if part.kind)
    for number, part in enumerate(content.parts):
        energy = "" if part.mean_energy is None else f"{part.mean_energy:.3f}"
        table.add_row(part.name, "\n".join(part.collections), f"{part.count:,}", f"{part.mean:,.1f}", energy)
        if number == last_calorimeter:
            _add_total(table, content)
    console.print(table)


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
