"""Compare reconstructed particles with the truth: a table on screen, metrics.json and plots in a folder."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pflow.events import Events
    from pflow.metrics.evaluation import EvaluationResult
    from pflow.reconstruction import Reconstruction

__all__ = ["add_arguments", "in_step", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow evaluate`."""
    parser.add_argument("reco", metavar="RECO.root", help="output of pflow reconstruct")
    parser.add_argument(
        "--truth", required=True, nargs="+", metavar="IN.root", help="the event files it was made from, in that order"
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder for metrics.json and the plots")
    parser.add_argument("--name", default="PFlow", help="collection of particles in RECO.root (default: PFlow)")
    parser.add_argument(
        "--rule", choices=("stable", "entering", "calo"), default="stable", help="which true particles are targets"
    )
    parser.add_argument("--e-min", type=float, default=0.1, metavar="GEV", help="least energy of a target")
    parser.add_argument("--no-tracks", action="store_true", help="a track does not make a particle a target")
    parser.add_argument(
        "--match",
        choices=("angle_energy", "none-cut"),
        default="angle_energy",
        help="cost of a match: energy and angle with a cut, or transverse momentum and Delta R without (Glow's rule)",
    )
    parser.add_argument(
        "--cut", default="3", metavar="COST", help="largest cost of a match, or 'none' (default: %(default)s)"
    )
    parser.add_argument(
        "--no-limit", action="store_true", help="leave out the line of perfect pattern recognition, which takes time"
    )
    parser.add_argument("--detector", help="detector of the truth files (built-in name or YAML file)")
    parser.add_argument("--schema", help="how the truth files are laid out, if looking at them is not enough")
    parser.add_argument("--layout", help="YAML table from branches to fields, for flat files of your own")
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="an entry that cannot be used: stop, or leave it out with a counted warning",
    )
    parser.add_argument("--step", type=int, default=500, metavar="N", help="events in memory at once (default: 500)")
    parser.add_argument("--no-plots", action="store_true", help="write metrics.json alone")
    parser.add_argument("-q", "--quiet", action="store_true", help="no table and no progress bar")


def run(args: argparse.Namespace) -> int:
    """Evaluate the files, print the table, write metrics.json and the plots."""
    from rich.console import Console
    from rich.progress import Progress

    from pflow.errors import InputError
    from pflow.io.read import iterate_events
    from pflow.io.reco import iterate_reco, read_provenance
    from pflow.metrics.evaluation import Evaluation, Settings
    from pflow.metrics.match import Matching
    from pflow.metrics.report import table

    matching = Matching.named(args.match, cut=_cut(args.cut))
    settings = Settings(rule=args.rule, e_min=args.e_min, use_tracks=not args.no_tracks, matching=matching)
    evaluation = Evaluation(name=args.name, settings=settings, limit=not args.no_limit)
    folder = _prepare_folder(args.output)
    try:
        provenance: dict[str, Any] | None = read_provenance(args.reco)
    except InputError:
        provenance = None  # another program's file of the same members, or none at all: the next read says which

    events = iterate_events(
        args.truth,
        detector=args.detector,
        schema=args.schema,
        layout=args.layout,
        step=args.step,
        on_error=args.on_error,
    )
    answers = iterate_reco(args.reco, name=args.name, step=args.step)
    with Progress(console=Console(stderr=True), disable=args.quiet, transient=True) as progress:
        task = progress.add_task("evaluating", total=None)
        for chunk, answer in in_step(events, answers, file=args.reco):
            evaluation.update(chunk, {args.name: answer})
            progress.update(task, advance=len(chunk), description=f"evaluating: {evaluation.n_events} events")
    if not evaluation.n_events:
        raise InputError("no events to evaluate", file=args.reco)

    result = evaluation.result()
    if not args.quiet:
        Console().print(table(result))
    inputs = {"reco": str(args.reco), "truth": [str(path) for path in args.truth], "provenance": provenance}
    written = _write(result, inputs, folder, plots=not args.no_plots)
    if not args.quiet:
        plots = f" and {written} plots" if written else ""
        Console().print(f"wrote metrics.json{plots} to {folder}", soft_wrap=True)
    return 0


def in_step(
    events: Iterator[Events], answers: Iterator[Reconstruction], *, file: str | Path
) -> Iterator[tuple[Events, Reconstruction]]:
    """Pair chunks of events with chunks of answers of other lengths: each pair covers the same entries.

    Raises
    ------
    InputError
        One has fewer entries than the other; names `file` and the first entry without a partner.
    """
    from pflow.errors import InputError

    entry = 0
    waiting: Reconstruction | None = None
    for chunk in events:
        rest = chunk
        while len(rest):
            if waiting is None or not len(waiting):
                waiting = next(answers, None)
                if waiting is None:
                    raise InputError(
                        f"ends here, but the truth goes on for at least {len(rest)} more", file=file, entry=entry
                    )
            n = min(len(rest), len(waiting))
            yield rest[:n], waiting[:n]
            rest, waiting = rest[n:], waiting[n:]
            entry += n
    while waiting is None or not len(waiting):
        waiting = next(answers, None)
        if waiting is None:
            return
    raise InputError("goes on, but the truth ends here", file=file, entry=entry)


def _cut(text: str) -> float | None:
    from pflow.errors import ConfigError

    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"--cut: expected a number or 'none', found '{text}'") from error


def _prepare_folder(path: str) -> Path:
    from pflow.errors import ConfigError

    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to folder {folder}: {error.strerror}") from error
    return folder


def _write(result: EvaluationResult, inputs: dict[str, Any], folder: Path, *, plots: bool) -> int:
    """Write the plots, then metrics.json; return the number of plots."""
    import json

    from pflow.io.atomic import replacing
    from pflow.metrics.report import document

    written = 0
    if plots:
        from pflow.plots.evaluation import figures
        from pflow.plots.style import save

        for name, figure in figures(result).items():
            for suffix in ("png", "pdf"):
                with replacing(folder / f"{name}.{suffix}") as partial:
                    save(figure, partial, format=suffix)
            written += 1
    # Last, so that numbers on disk mean that everything is there.
    with replacing(folder / "metrics.json") as partial:
        partial.write_text(json.dumps(document(result, inputs=inputs), indent=1, allow_nan=False) + "\n", "utf-8")
    return written
