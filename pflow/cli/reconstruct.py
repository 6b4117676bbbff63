"""Turn events into particles with a trained model: ROOT files in, one ROOT file out, entry by entry."""

from __future__ import annotations

import argparse

from pflow.cli.options import add_checkpoint_option, add_file_options

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow reconstruct`."""
    parser.add_argument("inputs", nargs="+", metavar="IN.root", help="event files; none of them needs truth")
    add_checkpoint_option(parser)
    parser.add_argument("-o", "--output", required=True, metavar="OUT.root", help="file to write")
    parser.add_argument(
        "--format", choices=("ttree", "rntuple"), default="ttree", help="how to store the particles (default: ttree)"
    )
    add_file_options(
        parser,
        detector="read the files as this detector (built-in name or YAML file) even if the checkpoint was trained on "
        "another; without it, files of another detector are refused",
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="an entry that cannot be used: stop without output, or count a warning and leave a flagged empty entry",
    )
    parser.add_argument("--max-particles", type=int, metavar="N", help="longest answer (default: the model's own)")
    parser.add_argument(
        "--max-hits", type=int, default=32768, metavar="N", help="largest event taken on (default: %(default)s)"
    )
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="events at once (default: 32)")
    parser.add_argument("--chunk", type=int, default=256, metavar="N", help="entries read at once (default: 256)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ... (default: auto)")
    parser.add_argument(
        "--cluster", help="local:N for N processes, or the address of a dask scheduler (needs pflow[cluster])"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Reconstruct the files, show progress on the error stream, and say what was written."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from pflow.inference.files import reconstruct_files

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=args.quiet) as progress:
        task = progress.add_task("reconstructing", total=None)
        summary = reconstruct_files(
            args.inputs,
            checkpoint=args.checkpoint,
            output=args.output,
            format=args.format,
            detector=args.detector,
            schema=args.schema,
            layout=args.layout,
            on_error=args.on_error,
            max_particles=args.max_particles,
            max_hits=args.max_hits,
            batch_size=args.batch_size,
            chunk=args.chunk,
            device=args.device,
            cluster=args.cluster,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print(
        f"{args.output}: {summary.n_events} events, {summary.n_particles} particles, {summary.n_skipped} skipped, "
        f"{summary.n_truncated} that reached {summary.max_particles} particles; {summary.seconds:.1f} s"
    )
    return 0
