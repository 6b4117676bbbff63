"""Compare forms of a detector, by moving a sample or by samples of each, with one model and nothing retuned."""

from __future__ import annotations

import argparse

from pflow.cli.options import OPTIONS, add_option, add_options, number, progress_bar

WIDTH = 220
"""Columns of the table in a file or a pipe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow scan`."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="event files with truth; files of the first file's detector are the nominal sample, each other detector "
        "is a point of the scan",
    )
    add_option(
        parser,
        "output",
        metavar="DIR",
        help="folder for scan.csv, scan.json, figures, report.html, and the numbers of each point, which a later scan "
        "reuses",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="move the events into other forms of their detector; may be given several times. cells, ecal_cells, "
        "hcal_cells: factors on the cell size; layers: every 1st, 2nd, 3rd ... layer is read; hcal_layers: number of "
        "HCAL layers; ecal_threshold, hcal_threshold: of a cell, GeV; time: resolution of hits, ns, or none",
    )
    parser.add_argument(
        "--grid", action="store_true", help="all combinations of the values (default: vary one parameter at a time)"
    )
    add_option(
        parser,
        "checkpoint",
        required=False,
        default="general",
        help=f"{OPTIONS['checkpoint']['help']} (default: %(default)s)",
    )
    parser.add_argument(
        "--tuned",
        metavar="MODEL",
        help="a model tuned to the nominal sample: its ratio to the untuned model there is the model's error",
    )
    add_option(
        parser,
        "detector",
        action="append",
        help="detector of the files, a built-in name or YAML file (default: detected from each file); once for all "
        "files, or once for each, in their order",
    )
    add_options(parser, "schema", "layout", "truth-tracks")
    for name in ("rule", "min-energy"):
        text = f"{OPTIONS[name]['help'].partition(' (default')[0]} (default: as the model was trained)"
        add_option(parser, name, default=None, help=text)
    parser.add_argument("--entries", **number(1, None, "N", "most entries of each file (default: all)"))
    parser.add_argument("--no-oracle", action="store_true", help="leave out the oracle (perfect pattern recognition)")
    parser.add_argument(
        "--no-null-test", action="store_true", help="leave out the null test (all lengths scaled, same physics)"
    )
    add_option(parser, "on-error")
    add_options(parser, "max-hits", "batch-size", "chunk-size", "device")
    add_option(parser, "cluster")
    add_option(
        parser,
        "force",
        help="replace existing outputs, and points made with other settings; matching finished points stay",
    )
    add_option(parser, "quiet")


def run(args: argparse.Namespace) -> int:
    """Scan, show progress on the error stream, print the table."""
    from rich.console import Console

    from pflow.inference.scan import scan
    from pflow.metrics.scan import parse_variations

    parse_variations(args.vary)  # before torch is loaded
    options = {name: value for name, value in vars(args).items() if name not in ("files", "quiet", "min_energy")}
    options["e_min"] = args.min_energy
    for name in ("oracle", "null_test"):
        options[name] = not options.pop(f"no_{name}")
    with progress_bar(quiet=args.quiet) as show:
        show("scanning", 0, None)
        result = scan(args.files, **options, on_progress=show)
    console = Console(quiet=args.quiet)
    if not console.is_terminal:
        console.width = WIDTH
    for table in result.tables(console.width):
        console.print(table)
    for text in result.sentences:
        console.print(text, soft_wrap=True, markup=False)
    console.print(f"wrote scan.csv, scan.json, report.html and figures to {args.output}", soft_wrap=True)
    return 0
