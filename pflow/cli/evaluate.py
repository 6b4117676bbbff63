"""Compare reconstructed particles with the truth: a table on screen, metrics.json and plots in a folder."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pflow.cli.options import add_file_options

if TYPE_CHECKING:
    from pflow.event.events import Events
    from pflow.event.particles import Reconstruction
    from pflow.metrics.evaluation import EvaluationResult

__all__ = ["add_arguments", "in_step", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow evaluate`."""
    parser.add_argument("reco", metavar="RECO.root", help="output of pflow reconstruct")
    parser.add_argument(
        "--truth", required=True, nargs="+", metavar="IN.root", help="the event files it was made from, in that order"
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="folder for metrics.json, report.html and the plots"
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME=RECO2.root",
        help="another reconstruction of the same events, as a line of its own; may be given several times",
    )
    parser.add_argument("--name", default="PFlow", help="collection of particles in RECO.root (default: PFlow)")
    parser.add_argument(
        "--rule", choices=("stable", "entering", "calo"), default="stable", help="which true particles are targets"
    )
    parser.add_argument("--e-min", type=float, default=0.1, metavar="GEV", help="least energy of a target")
    parser.add_argument("--no-tracks", action="store_true", help="a track does not make a particle a target")
    parser.add_argument(
        "--match",
        choices=("angle_energy", "hits", "none-cut"),
        default="angle_energy",
        help="cost of a match: energy and angle with a cut; shared hits, if RECO.root says which hits its particles "
        "are made of (HitPF's rule); or transverse momentum and Delta R without a cut (Glow's rule)",
    )
    parser.add_argument(
        "--cut",
        default="3",
        metavar="COST",
        help="largest cost of a match by energy and angle, or 'none' (default: %(default)s)",
    )
    parser.add_argument(
        "--no-limit", action="store_true", help="leave out the line of perfect pattern recognition, which takes time"
    )
    parser.add_argument(
        "--classes",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME,...",
        help="classes of particles that get figures of their own against energy and angle, e.g. photon,neutral_hadron; "
        "the table then shows these alone",
    )
    add_file_options(
        parser,
        detector="detector of the truth files (built-in name or YAML file)",
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="an entry that cannot be used: stop, or leave it out with a counted warning",
    )
    parser.add_argument("--step", type=int, default=500, metavar="N", help="events in memory at once (default: 500)")
    parser.add_argument(
        "--no-plots", action="store_true", help="write metrics.json alone, without figures and report.html"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no table and no progress bar")


def run(args: argparse.Namespace) -> int:
    """Evaluate the files, print the table, write metrics.json and the plots."""
    from rich.console import Console
    from rich.progress import Progress

    from pflow.errors import InputError
    from pflow.io.open import iterate_events
    from pflow.io.particles_root import iterate_reco
    from pflow.metrics.evaluation import Evaluation, Settings
    from pflow.metrics.match import Matching
    from pflow.metrics.overlap import HitMatching
    from pflow.metrics.report import table
    from pflow.physics.pdg import CLASSES

    _check_classes(args.classes)
    cut, by_hits = _cut(args.cut), args.match == "hits"
    matching = HitMatching() if by_hits else Matching.named(args.match, cut=cut)
    settings = Settings(rule=args.rule, e_min=args.e_min, use_tracks=not args.no_tracks, matching=matching)
    evaluation = Evaluation(name=args.name, settings=settings, limit=not args.no_limit)
    folder = _prepare_folder(args.output)
    events = iterate_events(
        args.truth,
        detector=args.detector,
        schema=args.schema,
        layout=args.layout,
        step=args.step,
        on_error=args.on_error,
    )
    files = {args.name: args.reco, **_compared(args.compare, taken=args.name)}
    answers = {
        line: iterate_reco(path, name=args.name, step=args.step, links=_links(by_hits, required=line == args.name))
        for line, path in files.items()
    }
    with Progress(console=Console(stderr=True), disable=args.quiet, transient=True) as progress:
        task = progress.add_task("evaluating", total=None)
        for chunk, found in in_step(events, answers, files=files):
            evaluation.update(chunk, {line: dataclasses.replace(answer, name=line) for line, answer in found.items()})
            progress.update(task, advance=len(chunk), description=f"evaluating: {evaluation.n_events} events")
    if not evaluation.n_events:
        raise InputError("no events to evaluate", file=args.reco)

    result = evaluation.result()
    if not args.quiet:
        Console().print(table(result, args.classes or CLASSES))
    inputs = {
        "reco": {line: str(path) for line, path in files.items()},
        "truth": [str(path) for path in args.truth],
        "provenance": {line: _provenance(path) for line, path in files.items()},
    }
    written = _write(result, inputs, folder, plots=not args.no_plots, classes=args.classes)
    if not args.quiet:
        plots = f", report.html and {written} plots" if written else ""
        Console().print(f"wrote metrics.json{plots} to {folder}", soft_wrap=True)
    return 0


def in_step(
    events: Iterator[Events], answers: Mapping[str, Iterator[Reconstruction]], *, files: Mapping[str, str | Path]
) -> Iterator[tuple[Events, dict[str, Reconstruction]]]:
    """Add to each chunk of events the answers for the same entries, from iterators of chunks of other lengths.

    Raises
    ------
    InputError
        An iterator of answers has fewer or more entries than the events; names its file and the first entry without a
        partner.
    """
    from pflow.errors import InputError

    entry = 0
    waiting = {line: _Waiting(chunks) for line, chunks in answers.items()}
    for chunk in events:
        for line, queue in waiting.items():
            there = queue.fill(len(chunk))
            if there < len(chunk):
                raise InputError("ends here, but the truth goes on", file=files[line], entry=entry + there)
        if len(chunk):
            yield chunk, {line: queue.take(len(chunk)) for line, queue in waiting.items()}
        entry += len(chunk)
    for line, queue in waiting.items():
        if queue.fill(1):
            raise InputError("goes on, but the truth ends here", file=files[line], entry=entry)


class _Waiting:
    """Entries of an iterator of chunks, to be taken in any numbers."""

    def __init__(self, chunks: Iterator[Reconstruction]) -> None:
        self._chunks = chunks
        self._rest: list[Reconstruction] = []

    def fill(self, n: int) -> int:
        """Read until `n` entries wait or none are left; return how many wait."""
        while (waiting := sum(map(len, self._rest))) < n:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._rest.append(chunk)
        return waiting

    def take(self, n: int) -> Reconstruction:
        """The next `n` entries, which must be waiting."""
        from pflow.event.particles import concatenate

        whole = concatenate(self._rest)
        self._rest = [whole[n:]]
        return whole[:n]


def _compared(options: Sequence[str], *, taken: str) -> dict[str, str]:
    """Files by the name of their line, from NAME=FILE."""
    from pflow.errors import ConfigError
    from pflow.metrics.evaluation import CLASSICAL, LIMIT

    files: dict[str, str] = {}
    for option in options:
        name, _, path = option.partition("=")
        if not name or not path:
            raise ConfigError(f"--compare: expected NAME=FILE, found '{option}'")
        if name in (taken, CLASSICAL, LIMIT, *files) or not name.isidentifier():
            raise ConfigError(f"--compare: the name '{name}' is taken or is not a plain word")
        files[name] = path
    return files


def _check_classes(names: Sequence[str]) -> None:
    from pflow.errors import check_choice
    from pflow.physics.pdg import CLASSES

    for name in names:
        check_choice(name, CLASSES, "class")


def _provenance(path: str | Path) -> dict[str, Any] | None:
    """What a file says of its origin; None for another program's file of the same members."""
    from pflow.errors import InputError
    from pflow.io.particles_root import read_provenance

    try:
        return read_provenance(path)
    except InputError:
        return None


def _links(by_hits: bool, *, required: bool) -> Literal["if there", "required", "left out"]:
    """Which links of hits to read of a file; other lines than the one under evaluation may lack them."""
    if not by_hits:
        return "left out"
    return "required" if required else "if there"


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


def _write(
    result: EvaluationResult, inputs: dict[str, Any], folder: Path, *, plots: bool, classes: Sequence[str]
) -> int:
    """Write the plots and report.html, then metrics.json; return the number of plots."""
    import json

    from pflow.io.atomic import replacing
    from pflow.metrics.report import document

    written = 0
    content = document(result, inputs=inputs)
    if plots:
        from pflow.plots.evaluation import figures
        from pflow.plots.report_page import report_page
        from pflow.plots.style import rendered

        images = {}
        for name, figure in figures(result, classes).items():
            images[name] = rendered(figure, "png")
            for suffix, data in (("png", images[name]), ("pdf", rendered(figure, "pdf"))):
                with replacing(folder / f"{name}.{suffix}") as partial:
                    partial.write_bytes(data)
                written += 1
        with replacing(folder / "report.html") as partial:
            partial.write_text(report_page(result, content, images), "utf-8")
    # Last, so that numbers on disk mean that everything is there.
    with replacing(folder / "metrics.json") as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")
    return written
