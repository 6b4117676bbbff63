"""Prepare events for training: read and validate files once, and keep their events in shards that load fast.

`pflow fit --data.train DIR --data.val DIR` then makes the same batches as from the files. The shards are Arrow files of
flat columns, some five times as large as compressed ROOT files; DIR/manifest.json says what they depend on. Run
again, an interrupted run goes on, and a damaged shard is made anew.
"""

from __future__ import annotations

import argparse

from pflow.cli.options import add_file_options, add_option, add_renamed, at_least, file_options

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow prepare`."""
    parser.add_argument("inputs", nargs="+", metavar="FILE", help="event files with truth; patterns may be quoted")
    add_option(parser, "output", metavar="DIR", help="folder of the shards: new, or of an earlier run that is to go on")
    parser.add_argument(
        "--num-workers",
        type=at_least(0),
        default=0,
        metavar="N",
        help="processes that read and write; 0: this one (default: %(default)s)",
    )
    parser.add_argument(
        "--shard-size", type=at_least(1), default=2048, metavar="N", help="events of a shard (default: %(default)s)"
    )
    add_renamed(
        parser,
        "--block-size",
        former="--chunk-size",
        type=at_least(1),
        default=256,
        metavar="N",
        help="events of a block of a shard, best the --data.chunk-size of the training (default: %(default)s)",
    )
    add_file_options(parser, detector="detector of the files (built-in name or YAML file; default: detected)")
    add_option(parser, "on-error")
    add_option(parser, "quiet", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Write the shards that are missing."""
    from rich.console import Console
    from rich.progress import Progress

    from pflow.data.files import FileOptions, matching
    from pflow.data.prepare import prepare_events

    options = FileOptions(**file_options(args), on_error=args.on_error)
    with Progress(console=Console(stderr=True), disable=args.quiet) as progress:
        task = progress.add_task("preparing", total=None)
        manifest = prepare_events(
            list(dict.fromkeys(matching(args.inputs))),
            args.output,
            options,
            block_size=args.block_size,
            shard_size=args.shard_size,
            num_workers=args.num_workers,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    size = sum(shard.content.bytes for shard in manifest.shards)
    n_events = sum(one.entries for one in manifest.inputs)
    print(
        f"{args.output}: {n_events} events of {len(manifest.inputs)} files, {manifest.detector.name}, "
        f"{len(manifest.shards)} shards, {size / 1e6:.1f} MB"
    )
    return 0
