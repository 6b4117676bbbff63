"""Compare reconstructed particles with the truth: a table on screen, metrics.json and plots in a folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflow.cli.options import OPTIONS, add_file_options, add_option, progress_bar, read_options, truth_options
from pflow.errors import ConfigError

if TYPE_CHECKING:
    from pflow.metrics.match import HitMatching, Matching
    from pflow.metrics.report import EvaluationResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow evaluate`."""
    parser.add_argument(
        "reco", nargs="+", metavar="RECO.root", help="outputs of pflow reconstruct: one of all files, or one of each"
    )
    parser.add_argument(
        "--truth",
        required=True,
        nargs="+",
        metavar="IN.root",
        help="the event files that they were made from, in that order",
    )
    add_option(parser, "output", metavar="DIR", help="folder for metrics.json, report.html and the plots")
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME=RECO2.root",
        help="another reconstruction of the same events, evaluated beside the first; may be given several times, also "
        "with the same NAME for several files",
    )
    add_option(parser, "collection")
    for name in ("rule", "min-energy", "stable-status", "invisible"):
        text = f"{OPTIONS[name]['help'].partition(' (default')[0]} (default: as the model was trained)"
        add_option(parser, name, default=None, help=text)
    add_option(parser, "ignore-tracks")
    parser.add_argument(
        "--match",
        choices=("angle_energy", "hits", "rank"),
        default="angle_energy",
        help="cost of a match: energy and angle with a cut; shared hits, if RECO.root has links from hits (HitPF's "
        "rule); or equal rank in energy in the event (the first paper's rule)",
    )
    parser.add_argument(
        "--cut",
        default="3",
        metavar="COST",
        help="largest cost of a match by energy and angle (default: %(default)s)",
    )
    parser.add_argument(
        "--no-oracle", action="store_true", help="leave out the oracle (perfect pattern recognition), which takes time"
    )
    add_file_options(parser, detector="detector of the truth files (built-in name or YAML file)")
    add_option(
        parser,
        "on-error",
        help="an entry that cannot be used: stop, or skip it with a counted warning; with one output of each file also "
        "a file that cannot be used (default: raise)",
    )
    add_option(
        parser,
        "chunk-size",
        default=500,
        help="events in memory at once; more than in other commands, as each chunk takes 0.2 s beside its events "
        "(default: %(default)s)",
    )
    parser.add_argument("--no-plots", action="store_true", help="write metrics.json without figures and report.html")
    add_option(parser, "force")
    add_option(parser, "quiet")


def run(args: argparse.Namespace) -> int:
    """Evaluate the files, print the table, write metrics.json and the plots."""
    from rich.console import Console

    from pflow.io.atomic import check_output, make_folder
    from pflow.io.open import matching
    from pflow.metrics.evaluation import evaluate, provenance_of, truth_settings
    from pflow.metrics.report import document, table

    matches = _matching(args.match, args.cut)
    truth, reco = matching(args.truth), matching(args.reco)
    folder = make_folder(args.output)
    check_output(folder / "metrics.json", force=args.force)
    check_output(folder / "report.html", force=args.force)
    compare = _compared(args.compare)
    files = {args.collection: reco, **compare}
    settings = truth_settings(
        files, **truth_options(args), e_min=args.min_energy, use_tracks=not args.ignore_tracks, matching=matches
    )
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
        "provenance": {name: provenance_of(paths[0]) for name, paths in files.items()},
    }
    console = Console(quiet=args.quiet)
    console.print(table(result, width=console.width))
    content = document(result, inputs=inputs)
    _write(folder / "metrics.json", f"{json.dumps(content, indent=1, allow_nan=False)}\n".encode(), args)
    n_plots = 0 if args.no_plots else _draw(result, content, folder, args)
    plots = f", report.html and {n_plots} plots" if n_plots else ""
    console.print(f"wrote metrics.json{plots} to {folder}", soft_wrap=True)
    return 0


def _matching(match: str, cut: str) -> Matching | HitMatching:
    from pflow.metrics.match import HitMatching, Matching

    if match == "hits":
        return HitMatching()
    if match == "rank":
        return Matching(cost=match, cut=0.5)  # of equal ranks alone
    try:
        return Matching(cut=float(cut))
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

    from pflow.plots.evaluation import figures
    from pflow.plots.report import report_page
    from pflow.plots.style import rendered

    images, drawn, console = {}, figures(result), Console(stderr=True)
    for name in track(drawn, description="drawing", console=console, transient=True, disable=args.quiet):
        images[name] = rendered(drawn[name], "png")
        _write(folder / f"{name}.png", images[name], args)
        _write(folder / f"{name}.pdf", rendered(drawn[name], "pdf"), args)
    _write(folder / "report.html", report_page(result, content, images).encode(), args)
    return 2 * len(images)


def _write(path: Path, data: bytes, args: argparse.Namespace) -> None:
    from pflow.io.atomic import replacing

    with replacing(path, force=args.force) as partial:
        partial.write_bytes(data)
