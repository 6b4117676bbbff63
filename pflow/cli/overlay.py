"""Join events of several files into one each: pile-up, beam background, large events for benchmarks.

Entry k of the first file is joined with one entry of each other file, in file order from a random entry on; a file with
fewer entries begins again. Cells that several events hit are summed; truth and links are kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from pflow.cli.options import add_file_options, add_option, read_options

if TYPE_CHECKING:
    import numpy as np

    from pflow.event.events import Events
    from pflow.io.open import EventFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pflow overlay`."""
    parser.add_argument("inputs", nargs="+", metavar="FILE", help="event files; the first one says how many events")
    add_option(parser, "output", metavar="OUT.root", help="flat ntuple in the layout g4")
    parser.add_argument(
        "--rotate",
        action="store_true",
        help="rotate the events of all files except the first about z, by a random symmetry of the detector",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the entries and rotations (default: %(default)s)")
    add_file_options(parser, detector="detector of the files (built-in name or YAML file)")
    add_option(
        parser,
        "on-error",
        help="an entry that cannot be used: stop, or leave the events joined with it in their place without content, "
        "with a counted warning (default: raise)",
    )
    add_option(
        parser,
        "chunk-size",
        default=100,
        help="events of each file in memory at once; fewer than in other commands, which read one file at a time "
        "(default: %(default)s)",
    )
    add_option(parser, "force")


def run(args: argparse.Namespace) -> int:
    """Write the joined events; the output appears only when whole."""
    import numpy as np

    from pflow.errors import ConfigError, InputError
    from pflow.io.atomic import check_output
    from pflow.io.flat import write_events

    if len(args.inputs) < 2:
        raise ConfigError("overlay: joins the events of two files or more (which may be the same), found one")
    check_output(args.output, inputs=args.inputs)
    generator = np.random.default_rng(args.seed)
    with ExitStack() as stack:
        files = [stack.enter_context(read_options(args).open(path)) for path in args.inputs]
        for file in files:
            if file.num_entries == 0:
                raise InputError("the file has no entries", file=file.path)
            if file.detector != files[0].detector:
                raise ConfigError(
                    f"overlay: {file.path} is of detector '{file.detector.name}', {files[0].path} of "
                    f"'{files[0].detector.name}'"
                )
        chunks = _joined(files, args.chunk_size, generator, rotated=args.rotate, on_error=args.on_error)
        written = write_events(args.output, chunks, inputs=args.inputs, force=args.force)
    print(f"{args.output}: {written} events of {len(files)} joined events each, of {files[0].detector.name}")
    return 0


def _joined(
    files: Sequence[EventFile],
    chunk_size: int,
    generator: np.random.Generator,
    *,
    rotated: bool,
    on_error: Literal["raise", "skip"],
) -> Iterator[Events]:
    """The joined events; those joined with an entry that cannot be used are without content."""
    import dataclasses

    import numpy as np

    from pflow.event.augment import random_phi, rotate
    from pflow.event.events import Flag, concatenate
    from pflow.event.overlay import overlay

    first, *others = files
    # A file that is joined with itself begins at another entry than 0: no event is joined with itself.
    starts = [generator.integers(file.path == first.path and file.num_entries > 1, file.num_entries) for file in others]
    for start in range(0, first.num_entries, chunk_size):
        base = first.read(start, min(start + chunk_size, first.num_entries), on_error=on_error)
        n = len(base)
        parts = [base]
        for file, offset in zip(others, starts, strict=True):
            entries = (int(offset) + start + np.arange(n)) % file.num_entries
            partner = _read(file, entries, on_error)
            if rotated:
                partner = rotate(partner, random_phi(file.detector, n, generator))
            parts.append(partner)
        joined = concatenate([dataclasses.replace(part, reference=None, reference_name="") for part in parts])
        groups = np.arange(len(parts) * n).reshape(len(parts), n).T
        events = overlay(joined, groups.tolist())
        yield events.emptied((events.flags & Flag.BAD_INPUT) > 0)


def _read(file: EventFile, entries: np.ndarray, on_error: Literal["raise", "skip"]) -> Events:
    """Read consecutive entries of a file; after the last entry comes 0."""
    import numpy as np

    from pflow.event.events import concatenate

    breaks = np.flatnonzero(np.diff(entries) != 1) + 1
    runs = np.split(entries, breaks)
    return concatenate([file.read(int(run[0]), int(run[-1]) + 1, on_error=on_error) for run in runs])
