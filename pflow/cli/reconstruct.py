"""Turn events into particles with a trained model: ROOT files in, ROOT files out, entry by entry."""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING

from pflow.cli.options import OPTIONS, OTHER_DETECTOR, add_file_options, add_option, add_options, progress_bar

if TYPE_CHECKING:
    from pflow.inference.files import Summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow reconstruct`."""
    parser.add_argument("inputs", nargs="+", metavar="IN.root", help="event files; truth is not needed")
    add_option(
        parser,
        "checkpoint",
        required=False,
        help=f"{OPTIONS['checkpoint']['help']} (default: the one that comes with pflow for the detector of the file)",
    )
    place = parser.add_mutually_exclusive_group(required=True)
    add_option(
        place,
        "output",
        required=False,
        metavar="OUT.root",
        help="file to write, for all inputs, of one detector (EDM4hep: for one)",
    )
    place.add_argument(
        "--output-dir",
        metavar="DIR",
        help="folder for one file for each input, IN.reco.root; finished outputs of the same input, model and "
        "settings stay",
    )
    parser.add_argument(
        "--format",
        choices=("ttree", "rntuple", "edm4hep"),
        default="ttree",
        help="how to store the particles: as plain branches, or as collections of EDM4hep 1.0 for podio, beside the "
        "collections of the input that they refer to (default: ttree)",
    )
    parser.add_argument(
        "--mc-links",
        action="store_true",
        help="with --format edm4hep: write links from particles to the input's Monte Carlo particles",
    )
    parser.add_argument(
        "--candidates",
        nargs="?",
        const=0.05,
        type=float,
        metavar="P",
        help="also write, as a second collection, particles that exist less probably than not, with a probability of "
        "at least P (default: %(const)s)",
    )
    parser.add_argument(
        "--merge-mm",
        type=float,
        metavar="MM",
        help="size to which cells of the ECAL are merged before the network, mm, among those of the model's training "
        "(general: 5 to 40; default: 20): smaller ones tell closer photons apart, and take longer",
    )
    add_file_options(parser, detector=OTHER_DETECTOR)
    add_option(
        parser,
        "on-error",
        help="an entry that cannot be used: stop without output, or leave a flagged empty entry with a counted "
        "warning; with --output-dir also a file that cannot be used: stop, or list it at the end (default: raise)",
    )
    add_options(parser, "max-particles", "max-hits", "batch-size", "chunk-size", "device")
    add_options(parser, "cluster", "force", "verbose")
    add_option(parser, "quiet", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Reconstruct the files, show progress on the error stream, and print what was written."""
    from pflow.inference.files import reconstruct_files

    options = {name: value for name, value in vars(args).items() if name not in ("inputs", "quiet", "verbose")}
    with progress_bar(quiet=args.quiet) as show:
        show("reconstructing", 0, None)
        options["on_progress"] = functools.partial(show, "reconstructing")
        summary = reconstruct_files(args.inputs, **options)
    print(_report(summary, args.output or args.output_dir))
    if args.verbose:
        for path, entry in summary.truncated:
            print(f"{path}, entry {entry}: cut at its largest number of particles")
    return 0


def _report(summary: Summary, place: str) -> str:
    """One line on the results; counts of zero are left out."""
    n_outputs = len(summary.written) + len(summary.finished_before) + len(summary.failed)
    counts = [
        (len(summary.written) if n_outputs > 1 else 0, "files written"),
        (len(summary.finished_before), "there before"),
        (len(summary.failed), "left out"),
        (summary.flagged["BAD_INPUT"], "skipped"),
        (summary.n_left_out, "with hits or tracks left out"),
        (summary.flagged["NOT_FINITE"], "whose numbers are not finite"),
        (len(summary.truncated), "cut at their largest number of particles"),
    ]
    events = [f"{summary.n_events} events", f"{summary.n_particles} particles"]
    happened = [f"{n} {what}" for n, what in counts if n]
    momentum, *elsewhere = summary.track_momentum
    # One event may hold a Lambda or a converted photon, whose tracks are in a neutral particle or in none.
    for flag, particles, part in zip(
        ("NEUTRAL_TRACKS", "LOST_TRACKS"), ("neutral particles", "none"), elsewhere, strict=True
    ):
        if 2 * summary.flagged[flag] > summary.n_events:
            happened.append(f"{part / momentum:.1%} of the momentum of tracks in {particles}")
    said = ", ".join([*events, *happened, f"{summary.seconds:.1f} s"])
    return f"{place}: {said} ({summary.model}, detector {summary.detector}, device {summary.device})"
