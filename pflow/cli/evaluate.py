"""Compare reconstructed particles with the truth: a table on screen, metrics.json and plots in a folder."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pflow.cli.options import add_file_options, add_option, add_options, file_options

if TYPE_CHECKING:
    from pflow.event.events import Events
    from pflow.event.particles import Reconstruction
    from pflow.metrics.evaluation import Evaluation, EvaluationResult
    from pflow.metrics.match import Matching
    from pflow.metrics.match_hits import HitMatching

__all__ = ["add_arguments", "run", "zip_chunks"]

METRICS_MARK = b'"schema": "pflow-metrics-'
"""What every ``metrics.json`` of pflow holds."""


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
    add_options(parser, "collection", "rule", "min-energy", "ignore-tracks")
    parser.add_argument(
        "--match",
        choices=("angle_energy", "hits", "pt_delta_r"),
        default="angle_energy",
        help="cost of a match: energy and angle with a cut; shared hits, if RECO.root has links from hits (HitPF's "
        "rule); or transverse momentum and Delta R without a cut (Glow's rule)",
    )
    parser.add_argument(
        "--cut",
        default="3",
        metavar="COST",
        help="largest cost of a match by energy and angle, or 'none' (default: %(default)s)",
    )
    parser.add_argument(
        "--no-oracle", action="store_true", help="leave out the oracle (perfect pattern recognition), which takes time"
    )
    parser.add_argument(
        "--classes",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME,...",
        help="particle classes that get figures of their own against energy and angle, e.g. photon,neutral_hadron; "
        "the table then shows only these",
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

    from pflow.data.files import matching
    from pflow.errors import InputError, check_choice
    from pflow.metrics.evaluation import Evaluation, Settings
    from pflow.metrics.report import table
    from pflow.physics.pdg import CLASSES

    for name in args.classes:
        check_choice(name, CLASSES, "particle class")
    settings = Settings(
        rule=args.rule,
        e_min=args.min_energy,
        use_tracks=not args.ignore_tracks,
        matching=_matching(args.match, args.cut),
    )
    total = Evaluation(name=args.collection, settings=settings, oracle=not args.no_oracle)
    args.truth = matching(args.truth)
    folder = _prepare_folder(args.output, force=args.force)
    files = {args.collection: matching(args.reco), **_compared(args.compare, taken=args.collection)}
    for paths in files.values():
        check_order(paths, args.truth)
    _evaluate(args, files, total)
    if not total.n_events:
        raise InputError("no events to evaluate", file=files[args.collection][0])

    result = total.result()
    inputs = {
        "reco": {name: paths[0] if len(paths) == 1 else paths for name, paths in files.items()},
        "truth": args.truth,
        "provenance": {name: _provenance(paths[0]) for name, paths in files.items()},
    }
    if not args.quiet:
        Console().print(table(result, args.classes or CLASSES))
    n_plots = _write(result, inputs, folder, plots=not args.no_plots, classes=args.classes, force=args.force)
    if not args.quiet:
        plots = f", report.html and {n_plots} plots" if n_plots else ""
        Console().print(f"wrote metrics.json{plots} to {folder}", soft_wrap=True)
    return 0


def _evaluate(args: argparse.Namespace, files: Mapping[str, Sequence[str]], total: Evaluation) -> None:
    """Add all events to `total`. Under ``--on-error skip`` files that cannot be used are left out, with a warning.

    Raises
    ------
    InputError
        A file that cannot be used; under ``skip``: there is no other one.
    """
    from rich.console import Console
    from rich.progress import Progress

    from pflow.errors import InputError
    from pflow.event.skipped import BadEntriesWarning
    from pflow.metrics.evaluation import Evaluation

    parts = _parts(files, args.truth)
    failed: list[InputError] = []
    with Progress(console=Console(stderr=True), disable=args.quiet, transient=True) as progress:
        task = progress.add_task("evaluating", total=len(parts) if len(parts) > 1 else None)
        for of_part, truth in parts:
            # One for each part: of a file that fails in the middle no event counts.
            evaluation = Evaluation(name=total.name, settings=total.settings, oracle=total.oracle)
            try:
                for chunk, found in _chunks(args, of_part, truth):
                    named = {name: dataclasses.replace(reco, name=name) for name, reco in found.items()}
                    evaluation.update(chunk, named)
                    n_events = total.n_events + evaluation.n_events
                    progress.update(task, description=f"evaluating: {n_events} events")
            except InputError as error:
                if args.on_error == "raise":
                    raise
                failed.append(error)
            else:
                total.merge(evaluation)
            progress.update(task, advance=1)
    if len(failed) == len(parts):
        raise failed[0]
    if failed:
        errors = "".join(f"\n  {error}" for error in failed)
        warnings.warn(f"{len(failed)} of {len(parts)} files were left out:{errors}", BadEntriesWarning, stacklevel=2)


def check_order(reco: Sequence[str], truth: Sequence[str]) -> None:
    """Refuse reconstructions that were made from other files than those of the truth, or in another order.

    Event numbers do not tell: each file may count its own. Files of other programs do not say what they were made from.

    Raises
    ------
    InputError
        Names the first file that is in another's place.
    """
    from pflow.errors import InputError
    from pflow.io.columns import file_uuid

    made_from: list[tuple[str, Mapping[str, Any]]] = []
    for path in reco:
        provenance = _provenance(path)
        if provenance is None or not isinstance(provenance.get("inputs"), list):
            return
        made_from += [(path, entry) for entry in provenance["inputs"]]
    for (path, entry), expected in zip(made_from, truth, strict=False):
        uuid = file_uuid(expected)
        if uuid and entry.get("uuid") and entry["uuid"] != uuid:
            raise InputError(
                f"was made from {entry.get('path')}, and in its place in --truth is {expected}: give both in the same "
                "order",
                file=path,
            )


def _parts(
    files: Mapping[str, Sequence[str]], truth: Sequence[str]
) -> list[tuple[Mapping[str, Sequence[str]], Sequence[str]]]:
    """Files that belong together: a part for each truth file if each has its own reconstructions, else one part."""
    if any(len(paths) != len(truth) for paths in files.values()):
        return [(files, truth)]
    return [({name: [paths[i]] for name, paths in files.items()}, [truth[i]]) for i in range(len(truth))]


def _chunks(
    args: argparse.Namespace, files: Mapping[str, Sequence[str]], truth: Sequence[str]
) -> Iterator[tuple[Events, dict[str, Reconstruction]]]:
    """Events of the truth files with the reconstructions of the same entries, by name."""
    from pflow.io.open import iterate_events
    from pflow.io.particles_root import iterate_reco

    events = iterate_events(truth, **file_options(args), chunk_size=args.chunk_size, on_error=args.on_error)
    reconstructions = {}
    for name, paths in files.items():
        links: Literal["if there", "required", "left out"] = "left out"
        if args.match == "hits":
            links = "required" if name == args.collection else "if there"
        of_each = (iterate_reco(path, name=args.collection, chunk_size=args.chunk_size, links=links) for path in paths)
        reconstructions[name] = itertools.chain.from_iterable(of_each)
    return zip_chunks(events, reconstructions, files={name: ", ".join(paths) for name, paths in files.items()})


def zip_chunks(
    events: Iterator[Events],
    reconstructions: Mapping[str, Iterator[Reconstruction]],
    *,
    files: Mapping[str, str | Path],
) -> Iterator[tuple[Events, dict[str, Reconstruction]]]:
    """Add to each chunk of events the reconstructions of the same entries, from iterators with other chunk lengths.

    Raises
    ------
    InputError
        A reconstruction has fewer or more entries than the events; names its file and the first entry without a
        partner.
    """
    from pflow.errors import InputError

    entry = 0
    queues = {name: _Queue(chunks) for name, chunks in reconstructions.items()}
    for chunk in events:
        found = {name: queue.take(len(chunk)) for name, queue in queues.items()} if len(chunk) else {}
        for name, reconstruction in found.items():
            n = 0 if reconstruction is None else len(reconstruction)
            if n < len(chunk):
                raise InputError("ends here, but the truth goes on", file=files[name], entry=entry + n)
        if len(chunk):
            yield chunk, {name: reco for name, reco in found.items() if reco is not None}
        entry += len(chunk)
    for name, queue in queues.items():
        if queue.take(1):
            raise InputError("goes on, but the truth ends here", file=files[name], entry=entry)


class _Queue:
    """Entries of an iterator of chunks, taken in any numbers."""

    def __init__(self, chunks: Iterator[Reconstruction]) -> None:
        self._chunks = chunks
        self._rest: Reconstruction | None = None

    def take(self, n: int) -> Reconstruction | None:
        """The next `n` entries, or what is left of them; None for an iterator without chunks."""
        from pflow.event.particles import concatenate

        while self._rest is None or len(self._rest) < n:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._rest = chunk if self._rest is None else concatenate([self._rest, chunk])
        whole = self._rest
        self._rest = None if whole is None else whole[n:]
        return None if whole is None else whole[:n]


def _matching(match: str, cut: str) -> Matching | HitMatching:
    from pflow.errors import ConfigError
    from pflow.metrics.match import Matching
    from pflow.metrics.match_hits import HitMatching

    if match == "hits":
        return HitMatching()
    if match == "pt_delta_r" or cut.lower() == "none":
        return Matching(cost=match, cut=None)
    try:
        return Matching(cost=match, cut=float(cut))
    except ValueError as error:
        raise ConfigError(f"--cut: expected a number above 0 or 'none', found '{cut}'") from error


def _compared(options: Sequence[str], *, taken: str) -> dict[str, list[str]]:
    """Files by the name of their algorithm, from NAME=FILE."""
    from pflow.data.files import matching
    from pflow.errors import ConfigError
    from pflow.metrics.evaluation import CLASSICAL, ORACLE

    files: dict[str, list[str]] = {}
    for option in options:
        name, _, path = option.partition("=")
        if not name or not path:
            raise ConfigError(f"--compare: expected NAME=FILE, found '{option}'")
        if name in (taken, CLASSICAL, ORACLE) or not name.isidentifier():
            raise ConfigError(f"--compare: the name '{name}' is taken or is not a plain word")
        files.setdefault(name, []).extend(matching([path]))
    return files


def _provenance(path: str | Path) -> dict[str, Any] | None:
    """Provenance of a file of pflow; None for another program's file of the same members."""
    from pflow.errors import InputError
    from pflow.io.particles_root import read_provenance

    try:
        return read_provenance(path)
    except InputError:
        return None


def _prepare_folder(path: str, *, force: bool) -> Path:
    from pflow.io.atomic import check_output, make_folder
    from pflow.plots.style import MARK

    folder = make_folder(path)
    check_output(folder / "metrics.json", replace=METRICS_MARK, force=force)
    check_output(folder / "report.html", replace=MARK, force=force)
    return folder


def _write(
    result: EvaluationResult, inputs: dict[str, Any], folder: Path, *, plots: bool, classes: Sequence[str], force: bool
) -> int:
    """Write the plots and report.html, then metrics.json; return the number of plots."""
    import json

    from pflow.io.atomic import replacing
    from pflow.metrics.report import document

    n_plots = 0
    content = document(result, inputs=inputs)
    if plots:
        from pflow.plots.evaluation import figures
        from pflow.plots.report_page import report_page
        from pflow.plots.style import MARK, rendered

        images = {}
        for name, figure in figures(result, classes).items():
            images[name] = rendered(figure, "png")
            for suffix, data in (("png", images[name]), ("pdf", rendered(figure, "pdf"))):
                with replacing(folder / f"{name}.{suffix}", replace=MARK, force=force) as partial:
                    partial.write_bytes(data)
                n_plots += 1
        with replacing(folder / "report.html", replace=MARK, force=force) as partial:
            partial.write_text(report_page(result, content, images), "utf-8")
    # Last: metrics.json is there only if all the rest is.
    with replacing(folder / "metrics.json", replace=METRICS_MARK, force=force) as partial:
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")
    return n_plots
