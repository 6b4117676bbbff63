"""Draw one event: a figure (x-y, z-r and 3D) as PNG or PDF, and a self-contained interactive 3D page as HTML."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflow.cli.options import add_file_options, add_option, add_options, number, read_options, truth_options
from pflow.errors import ConfigError, InputError

MAX_COLOURS = {".png": 12, ".pdf": 12, ".html": 40}
"""Formats, and how many particles, by energy, have a colour of their own in them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow display`."""
    parser.add_argument("input", metavar="IN.root", help="event file; needs neither truth nor tracks")
    parser.add_argument("--entry", **number(0, 0, "N", "entry to draw, from 0 (default: 0)"))
    parser.add_argument("--reco", metavar="RECO.root", help="output of pflow reconstruct whose particles are drawn")
    text = "entry of RECO.root if it joins several inputs (default: --entry)"
    parser.add_argument("--reco-entry", **number(0, None, "N", text))
    add_option(parser, "collection")
    add_option(
        parser,
        "output",
        required=False,
        nargs="+",
        metavar="FILE",
        help="files to write: .png, .pdf or .html (default: display_N.png and display_N.html)",
    )
    parser.add_argument(
        "--colour",
        "--color",
        choices=("truth", "reco", "energy", "subdetector"),
        help="what the colour of a hit stands for: its true particle; its reconstructed particle, of --reco or of the "
        "algorithm in IN.root (the nearest in angle if the algorithm assigns no hits); its energy; its subdetector "
        "(default: the first of these in the file)",
    )
    add_option(parser, "rule", help="truth rule: which true particles are drawn (default: stable)")
    add_options(parser, "stable-status", "invisible")
    add_file_options(parser, detector="detector of the file (built-in name or YAML file)")
    add_option(parser, "force")


def run(args: argparse.Namespace) -> int:
    """Draw the event, and print the names of the files."""
    from pflow.io.atomic import check_output, replacing
    from pflow.io.particles_root import read_reco
    from pflow.metrics.evaluation import check_input
    from pflow.plots.display import event_page, make_scene, plot_event
    from pflow.plots.style import rendered

    entry, inputs = args.entry, [args.input, *([args.reco] if args.reco else [])]
    outputs = [Path(name) for name in args.output or (f"display_{entry}.png", f"display_{entry}.html")]
    for path in outputs:
        if path.suffix.lower() not in MAX_COLOURS:
            raise ConfigError(f"cannot write {path}: expected a name that ends in {', '.join(MAX_COLOURS)}")
        check_output(path, inputs=inputs, force=args.force)
    chosen, reconstruction = truth_options(args), None
    with read_options(args, targets=chosen).open(args.input) as file:
        if entry >= len(file):
            text = f"there is no such entry; the file has {len(file)}, counted from 0"
            raise InputError(text, file=args.input, entry=entry)
        event = file.read(entry, entry + 1)
    if args.reco:
        entry = entry if args.reco_entry is None else args.reco_entry
        reconstruction = read_reco(args.reco, name=args.collection, entry_start=entry, entry_stop=entry + 1)
        if not len(reconstruction):
            raise InputError("there is no such entry", file=args.reco, entry=entry)
        check_input(args.reco, args.input)
        reconstruction.check_events(event)
    for path in outputs:
        suffix = path.suffix.lower()
        options = {"colour_by": args.colour, "max_colours": MAX_COLOURS[suffix], **chosen}
        scene = make_scene(event, reconstruction=reconstruction, **options)
        drawn = event_page(scene).encode() if suffix == ".html" else rendered(plot_event(scene), suffix[1:])
        with replacing(path, inputs=inputs, force=args.force) as partial:
            partial.write_bytes(drawn)
        print(f"wrote {path}")
    return 0
