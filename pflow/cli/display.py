"""Draw one event: a figure (x-y, z-r and 3D) as PNG or PDF, and a self-contained interactive 3D page as HTML."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pflow.cli.options import add_file_options

if TYPE_CHECKING:
    from pflow.event.events import Events
    from pflow.event.particles import Reconstruction
    from pflow.plots.scene import Scene

__all__ = ["add_arguments", "run"]

FORMATS = (".png", ".pdf", ".html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow display`."""
    parser.add_argument("input", metavar="IN.root", help="file of events; needs neither truth nor tracks")
    parser.add_argument("--entry", type=int, default=0, metavar="N", help="which entry, from 0 (default: 0)")
    parser.add_argument("--reco", metavar="RECO.root", help="output of pflow reconstruct, to show its particles")
    parser.add_argument(
        "--reco-entry",
        type=int,
        metavar="N",
        help="entry of RECO.root, if it joins several inputs (default: as --entry)",
    )
    parser.add_argument("--name", default="PFlow", help="collection of particles in RECO.root (default: PFlow)")
    parser.add_argument(
        "-o",
        "--output",
        nargs="+",
        metavar="FILE",
        help="files to write, .png, .pdf or .html (default: display_N.png and display_N.html)",
    )
    parser.add_argument(
        "--colour",
        "--color",
        choices=("truth", "reco", "energy", "subdetector"),
        help="what the colour of a hit stands for: its true particle, its reconstructed particle (of --reco, or of the "
        "algorithm whose particles IN.root holds; the nearest in angle where it assigns no hits), its energy, its "
        "subdetector (default: the first that there is)",
    )
    parser.add_argument(
        "--rule", choices=("stable", "entering", "calo"), default="stable", help="which true particles to show"
    )
    parser.add_argument(
        "--max-particles",
        type=_count,
        metavar="N",
        help="particles with a colour of their own, by energy (default: 12 in a figure, 40 in a page)",
    )
    add_file_options(
        parser,
        detector="detector of the file (built-in name or YAML file)",
    )


def run(args: argparse.Namespace) -> int:
    """Draw the event and say what was written."""
    from pflow.io.atomic import check_output

    inputs = [args.input, *([args.reco] if args.reco else [])]
    outputs = _outputs(args.output, args.entry)
    for path in outputs:
        check_output(path, inputs=inputs)
    event = _read_event(args)
    reconstruction = None
    if args.reco:
        entry = args.entry if args.reco_entry is None else args.reco_entry
        reconstruction = _read_reco(args.reco, args.name, entry, event)
    for path in outputs:
        _write(path, _scene(event, reconstruction, args, path), inputs)
        print(f"wrote {path}")
    return 0


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected at least 0, found {value}")
    return value


def _outputs(named: Sequence[str] | None, entry: int) -> list[Path]:
    from pflow.errors import ConfigError

    if named is None:
        return [Path(f"display_{entry}{suffix}") for suffix in (".png", ".html")]
    outputs = [Path(name) for name in named]
    for path in outputs:
        if path.suffix.lower() not in FORMATS:
            raise ConfigError(f"cannot write {path}: expected a name that ends in {', '.join(FORMATS)}")
    return outputs


def _read_event(args: argparse.Namespace) -> Events:
    from pflow.errors import InputError
    from pflow.io.open import open_events

    with open_events(args.input, detector=args.detector, schema=args.schema, layout=args.layout) as file:
        if not 0 <= args.entry < len(file):
            raise InputError(_range(len(file)), file=args.input, entry=args.entry)
        return file.read(args.entry, args.entry + 1)


def _read_reco(path: str, name: str, entry: int, event: Events) -> Reconstruction:
    """The particles of one entry, checked to be of the event's number.

    Raises
    ------
    InputError
        No such entry, or it is another event's.
    """
    from pflow.errors import InputError
    from pflow.io.particles_root import read_reco

    reconstruction = read_reco(path, name=name, entry_start=entry, entry_stop=entry + 1) if entry >= 0 else None
    if reconstruction is None or not len(reconstruction):
        raise InputError("there is no such entry", file=path, entry=entry)
    if reconstruction.event[0] != event.event[0]:
        raise InputError(
            f"is of event number {reconstruction.event[0]}, but the input's entry {event.entry[0]} is of "
            f"{event.event[0]}: made from another file?",
            file=path,
            entry=entry,
        )
    return reconstruction


def _range(n: int) -> str:
    return f"there is no such entry; the file has {n}, counted from 0" if n else "the file has no entries"


def _scene(event: Events, reconstruction: Reconstruction | None, args: argparse.Namespace, path: Path) -> Scene:
    from pflow.plots.scene import make_scene

    usual = 40 if path.suffix.lower() == ".html" else 12
    return make_scene(
        event,
        reconstruction=reconstruction,
        colour_by=args.colour,
        rule=args.rule,
        max_particles=usual if args.max_particles is None else args.max_particles,
    )


def _write(path: Path, scene: Scene, inputs: Sequence[str]) -> None:
    from pflow.io.atomic import replacing

    suffix = path.suffix.lower()
    with replacing(path, inputs=inputs) as partial:
        if suffix == ".html":
            from pflow.plots.event_page import event_page

            partial.write_text(event_page(scene), encoding="utf-8")
        else:
            from pflow.plots.display import plot_event
            from pflow.plots.style import rendered

            partial.write_bytes(rendered(plot_event(scene), suffix.removeprefix(".")))
