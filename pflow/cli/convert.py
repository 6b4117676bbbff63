"""Turn the first paper's HDF5 files, and any other readable file, into ROOT files (flat ntuples)."""

from __future__ import annotations

import argparse
from pathlib import Path

from pflow.cli.options import add_file_options, add_option, read_options
from pflow.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow convert`."""
    parser.add_argument("input", metavar="IN", help="HDF5 file of the first paper, EDM4hep file or flat ntuple")
    parser.add_argument("output", metavar="OUT.root", help="flat ntuple in the layout g4")
    add_file_options(parser, detector="detector of the input (built-in name or YAML file)")
    add_option(
        parser,
        "on-error",
        help="an entry that cannot be used: stop, or write it empty, with a counted warning (default: raise)",
    )
    add_option(parser, "chunk-size")
    add_option(parser, "force")


def run(args: argparse.Namespace) -> int:
    """Convert the file; the output appears only when whole."""
    from pflow.io.atomic import check_output
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
