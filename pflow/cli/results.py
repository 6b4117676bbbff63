"""Verbs of results: compare particles with the truth, compare variants of a detector, draw an event."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflow.cli.main import (
    add_file_options,
    add_options,
    choice,
    number,
    progress_bar,
    read_options,
    truth_options,
    warn_of_training,
)
from pflow.errors import ConfigError, InputError, warn
from pflow.io.atomic import check_output, make_folder, replacing

if TYPE_CHECKING:
    from pflow.metrics.match import HitMatching, Matching
    from pflow.metrics.report import EvaluationResult


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow evaluate`."""
    parser.add_argument(
        "reco", nargs="+", metavar="RECO.root", help="outputs of pflow reconstruct: one for all files, or one for each"
    )
    text = "the event files that they were made from, in the same order"
    parser.add_argument("--truth", required=True, nargs="+", metavar="IN.root", help=text)
    add_options(parser, "output", metavar="DIR", help="folder for metrics.json, report.html and the plots")
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME=RECO2.root",
        help="another reconstruction of the same events, evaluated beside the first; may be given several times, also "
        "with the same NAME for several files",
    )
    add_options(parser, "collection")
    add_options(parser, "rule", "min-energy", "stable-status", "invisible", otherwise="as the model was trained")
    add_options(parser, "ignore-tracks")
    text = (
        "cost of a match: energy and angle with a cut; shared hits, for which each RECO.root needs links from "
        "hits, and IN.root's reference is left out (HitPF's rule); or equal rank in energy in the event (the first "
        "paper's rule)"
    )
    parser.add_argument("--match", **choice("angle_energy", "hits", "rank", text=text))
    text = "largest cost of a match by energy and angle; efficiencies count matches up to 0.5 (default: 3)"
    parser.add_argument("--cut", metavar="COST", help=text)
    add_options(parser, "no-oracle")
    add_file_options(parser, detector="detector of the truth files (built-in name or YAML file)")
    add_options(
        parser,
        "on-error",
        help="unusable entry: stop with an error, or skip it and count it in a warning; with one output per file also "
        "an unusable file (default: raise)",
    )
    add_options(
        parser,
        "chunk-size",
        default=500,
        help="events in memory at once; more than in other commands, as each chunk costs 0.2 s in addition "
        "(default: %(default)s)",
    )
    parser.add_argument("--no-plots", action="store_true", help="write metrics.json without figures and report.html")
    add_options(parser, "force", "quiet")


def evaluate(args: argparse.Namespace) -> int:
    """Compare reconstructed particles with the truth: a table on screen, metrics.json and plots in a folder."""
    from rich.console import Console

    from pflow.io.open import matching
    from pflow.metrics.evaluation import evaluate, provenance_of, truth_settings
    from pflow.metrics.report import check_figures, document, remove_report, table

    matches = _matching(args.match, args.cut)
    truth, reco = matching(args.truth), matching(args.reco)
    folder = make_folder(args.output)
    # Before the evaluation: an output that exists ends the command at once.
    check_output(folder / "metrics.json", force=args.force)
    check_output(folder / "report.html", force=args.force)
    if not args.no_plots:
        check_figures(folder, force=args.force)
    compare = _compared(args.compare)
    files = {args.collection: reco, **compare}
    settings = truth_settings(
        files, **truth_options(args), e_min=args.e_min, use_tracks=not args.ignore_tracks, matching=matches
    )
    made = {name: provenance_of(paths[0]) for name, paths in files.items()}
    for name, of_model in made.items():  # those to compare with, too
        warn_of_training((of_model or {}).get("configuration", {}), truth, model=f"the model of {name}")
    with progress_bar(quiet=args.quiet, transient=True) as show:
        show("evaluating", 0, None)
        result = evaluate(
            reco,
            truth,
            compare=compare,
            collection=args.collection,
            settings=settings,
            oracle=not args.no_oracle,
            chunk_size=args.chunk_size,
            progress=lambda n, done, files: show(f"evaluating: {n} events", done, files if files > 1 else None),
            **vars(read_options(args)),
        )
    inputs = {
        "reco": {name: paths[0] if len(paths) == 1 else paths for name, paths in files.items()},
        "truth": truth,
        "provenance": made,
    }
    console = Console(quiet=args.quiet)
    console.print(table(result, width=console.width))
    content = document(result, inputs=inputs)
    if args.force:
        remove_report(folder, "pflow evaluation")
    # allow_nan: NaN is not JSON, and other programs would refuse the file.
    _write(folder / "metrics.json", f"{json.dumps(content, indent=1, allow_nan=False)}\n".encode(), args)
    n_plots = 0 if args.no_plots else _draw(result, content, folder, args)
    plots = f", report.html and {n_plots} plots" if n_plots else ""
    console.print(f"wrote metrics.json{plots} to {folder}", soft_wrap=True)
    return 0


def _matching(match: str, cut: str | None) -> Matching | HitMatching:
    from pflow.metrics.match import HitMatching, Matching

    if match != "angle_energy" and cut is not None:
        raise ConfigError(f"--cut is for --match angle_energy, found --match {match}, which has a cut of its own")
    if match == "hits":
        return HitMatching()
    if match == "rank":
        return Matching(cost=match, cut=0.5)  # of equal ranks alone
    try:
        return Matching() if cut is None else Matching(cut=float(cut))
    except ValueError as error:
        raise ConfigError(f"--cut: expected a number above 0, found '{cut}'") from error


def _compared(options: Sequence[str]) -> dict[str, list[str]]:
    """Files by the name of their algorithm, from NAME=FILE."""
    from pflow.io.open import matching

    files: dict[str, list[str]] = {}
    for option in options:
        name, _, path = option.partition("=")
        if not name.isidentifier() or not path:
            raise ConfigError(f"--compare: expected NAME=FILE with a plain word as name, found '{option}'")
        files.setdefault(name, []).extend(matching([path]))
    return files


def _draw(result: EvaluationResult, content: dict[str, Any], folder: Path, args: argparse.Namespace) -> int:
    """Write the plots, each as soon as it is drawn, and report.html; return the number of plots."""
    from rich.console import Console
    from rich.progress import track

    from pflow.plots import rendered
    from pflow.plots.evaluation import figures
    from pflow.plots.report import report_page

    images, drawn, console = {}, figures(result), Console(stderr=True)
    for name in track(drawn, description="drawing", console=console, transient=True, disable=args.quiet):
        images[name] = rendered(drawn[name], "png")
        _write(folder / f"{name}.png", images[name], args)
        _write(folder / f"{name}.pdf", rendered(drawn[name], "pdf"), args)
    _write(folder / "report.html", report_page(result, content, images).encode(), args)
    return 2 * len(images)


def _write(path: Path, data: bytes, args: argparse.Namespace) -> None:
    with replacing(path, force=args.force) as partial:
        partial.write_bytes(data)


def scan_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow scan`."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="event files with truth; the files of the first file's detector are the nominal sample, and each further "
        "detector is a point of the scan",
    )
    add_options(
        parser,
        "output",
        metavar="DIR",
        help="folder for scan.csv, scan.json, figures, report.html and each point's numbers, for reuse by later scans",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="vary the detector by changing the events; may be given several times. cells, ecal_cells, "
        "hcal_cells: factors on the cell size; layers: every 1st, 2nd, 3rd ... layer is read; hcal_layers: number of "
        "HCAL layers; ecal_threshold, hcal_threshold: of a cell, GeV; time: resolution of hits, ns, or none",
    )
    text = "all combinations of the values (default: vary one parameter at a time)"
    parser.add_argument("--grid", action="store_true", help=text)
    add_options(parser, "checkpoint", otherwise="%(default)s", default="general")
    text = "a model tuned to the nominal sample; its ratio to the untuned model there is the model's own error"
    parser.add_argument("--tuned", metavar="MODEL", help=text)
    add_options(
        parser,
        "detector",
        action="append",
        help="detector of the files, a built-in name or YAML file (default: detected from each file); once for all "
        "files, or once for each, in their order",
    )
    add_options(parser, "schema", "layout", "truth-tracks")
    add_options(parser, "rule", "min-energy", otherwise="as the model was trained")
    parser.add_argument("--entries", **number(1, None, "N", "most entries of each file (default: all)"))
    add_options(parser, "no-oracle")
    parser.add_argument(
        "--no-null-test", action="store_true", help="leave out the null test (all lengths scaled: the same physics)"
    )
    add_options(parser, "on-error", "max-hits", "batch-size", "chunk-size", "device", "cluster")
    text = "replace existing outputs, and points made with other settings; matching finished points stay"
    add_options(parser, "force", help=text)
    add_options(parser, "quiet")


def scan(args: argparse.Namespace) -> int:
    """Compare variants of a detector with one model and without retuning, by changed events or simulated samples."""
    from rich.console import Console

    from pflow.metrics.scan import parse_variations

    parse_variations(args.vary)  # before torch is loaded
    from pflow.checkpoint import read_checkpoint
    from pflow.inference import scan as scans

    options = {name: value for name, value in vars(args).items() if name not in ("files", "quiet")}
    for name in ("oracle", "null_test"):
        options[name] = not options.pop(f"no_{name}")
    tuned = read_checkpoint(args.tuned).header.to_dict() if args.tuned else {}
    with progress_bar(quiet=args.quiet) as show:
        show("scanning", 0, None)
        result = scans.scan(args.files, **options, on_progress=show)
    for name, configuration in {"the model": result.provenance["configuration"], "the tuned model": tuned}.items():
        warn_of_training(configuration, [entry["path"] for entry in result.provenance["inputs"]], model=name)
    console = Console(quiet=args.quiet)
    # For a file or a pipe, rich would take 80 columns.
    if not console.is_terminal:
        console.width = 220
    for table in result.tables(console.width):
        console.print(table)
    for text in result.sentences:
        # Without markup, which takes a unit in brackets, [mm], for a style and drops it.
        console.print(text, soft_wrap=not console.is_terminal, markup=False)
    console.print(f"wrote scan.csv, scan.json, report.html and figures to {args.output}", soft_wrap=True)
    return 0


MAX_COLOURS = {".png": 12, ".pdf": 12, ".html": 40}
"""Formats, and how many particles, by energy, have a colour of their own in them."""


def display_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow display`."""
    parser.add_argument("input", metavar="IN.root", help="event file; needs neither truth nor tracks")
    parser.add_argument("--entry", **number(0, 0, "N", "entry to draw, from 0 (default: 0)"))
    parser.add_argument("--reco", metavar="RECO.root", help="output of pflow reconstruct whose particles are drawn")
    text = "entry of RECO.root if it joins several inputs (default: --entry)"
    parser.add_argument("--reco-entry", **number(0, None, "N", text))
    add_options(parser, "collection")
    add_options(
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
        help="meaning of a hit's colour: its true particle; its reconstructed particle, of --reco or of the "
        "algorithm in IN.root (the nearest in angle if the algorithm assigns no hits); its energy; its subdetector "
        "(default: the first of these in the file)",
    )
    add_options(parser, "rule", help="truth rule: which true particles are drawn (default: stable)")
    add_options(parser, "stable-status", "invisible")
    add_file_options(parser, detector="detector of the file (built-in name or YAML file)")
    add_options(parser, "force")


def display(args: argparse.Namespace) -> int:
    """Draw one event: a figure (x-y, z-r and 3D) as PNG or PDF, and a self-contained interactive 3D page as HTML."""
    from pflow.event.events import ImplausibleWarning
    from pflow.event.scales import charged_without_track
    from pflow.io.particles_root import count_entries, read_reco
    from pflow.metrics.evaluation import NEAR_TRACK, check_order, without_tracks
    from pflow.plots import rendered
    from pflow.plots.display import event_page, make_scene, plot_event

    if args.reco_entry is not None and not args.reco:
        raise ConfigError("--reco-entry: an entry of the file of --reco, which is not given")
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
        if entry >= (n_entries := count_entries(args.reco)):
            text = f"there is no such entry; the file has {n_entries}, counted from 0"
            raise InputError(text, file=args.reco, entry=entry)
        reconstruction = read_reco(args.reco, name=args.collection, entry_start=entry, entry_stop=entry + 1)
        check_order([args.reco], [args.input])
        if event.tracks is not None:
            near = charged_without_track(event, reconstruction.particles, near=NEAR_TRACK)
            for text in without_tracks(reconstruction.name, *near):
                warn(text, ImplausibleWarning)
    for path in outputs:
        suffix = path.suffix.lower()
        options = {"colour_by": args.colour, "max_colours": MAX_COLOURS[suffix], **chosen}
        scene = make_scene(event, reconstruction=reconstruction, **options)
        drawn = event_page(scene).encode() if suffix == ".html" else rendered(plot_event(scene), suffix[1:])
        with replacing(path, inputs=inputs, force=args.force) as partial:
            partial.write_bytes(drawn)
        print(f"wrote {path}")
    return 0
