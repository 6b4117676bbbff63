"""Prepares events for training: reads and validates files once, and keeps their events in shards.

Each shard is one piece of work, and appears only when whole. The manifest is written anew after each, so that a run
that was interrupted goes on: shards that are whole are kept.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from pflow.config import to_plain
from pflow.data.files import FileOptions
from pflow.data.parallel import in_order
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events
from pflow.event.skipped import BadEntriesWarning, refused_message
from pflow.io.atomic import check_folder, disk_errors, replacing
from pflow.io.layout import Layout
from pflow.io.open import BadEntry, EventFile
from pflow.io.prepared.manifest import NAME, Input, Manifest, Refused, Shard, load_manifest, write_manifest
from pflow.io.prepared.shard import check_arrow, is_whole, write_shard
from pflow.io.remote import is_remote
from pflow.physics.detector import Detector
from pflow.version import VERSION, versions

__all__ = ["BLOCK_SIZE", "SHARD_SIZE", "prepare_events"]

BLOCK_SIZE = 256
"""Events that are read at once: as many as a training reads at once by default, which then copies nothing."""

SHARD_SIZE = 2048
"""Events of a shard: some seconds of work, and at most some 200 MB of the largest events."""

PACKAGES = ("numpy", "awkward", "uproot", "pyarrow")
"""Packages whose version can change a number."""

Plan = tuple[int, int, int]
"""Input, start and stop of a shard."""


def prepare_events(
    inputs: Sequence[str],
    folder: str | Path,
    options: FileOptions,
    *,
    block_size: int = BLOCK_SIZE,
    shard_size: int = SHARD_SIZE,
    num_workers: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Write the events of files to a folder of shards; what is there and whole of an earlier run stays.

    Parameters
    ----------
    inputs
        Files, all of the same detector and layout.
    folder
        New, empty, or of an earlier run with the same inputs and settings.
    options
        How to read the files.
    block_size, shard_size
        Events of a block, which is read at once, and of a shard, which is made by one process.
    num_workers
        Processes; 0: this one.
    on_progress
        Called with the number of events that are done, and of all.

    Raises
    ------
    ConfigError
        The folder holds something else or was prepared otherwise, the files are of several detectors or layouts, a size
        is below 1, or pyarrow is not installed.
    InputError
        A file cannot be used, or changes meanwhile.
    OutputError
        Nothing can be written.

    Warns
    -----
    BadEntriesWarning
        Entries were left empty (``on_error="skip"``).
    """
    check_arrow()
    if block_size < 1 or shard_size < 1:
        raise ConfigError(f"blocks and shards need at least 1 event, found {block_size} and {shard_size}")
    folder = Path(folder)
    earlier = load_manifest(folder) if (folder / NAME).is_file() else None
    if earlier is None:
        check_folder(folder)
    looked = functools.partial(_look_at, options=options)
    found = list(in_order(looked, inputs, num_workers=num_workers))
    known = dict(zip(inputs, (one.options for one in found), strict=True))
    manifest = Manifest(
        pflow_version=VERSION,
        versions=versions(*PACKAGES),
        detector=found[0].detector,
        layout=None if found[0].layout is None else to_plain(found[0].layout),
        truth_tracks=options.truth_tracks,
        on_error=options.on_error,
        block_size=block_size,
        shard_size=shard_size,
        inputs=tuple(one.input for one in found),
    )
    _check_alike(found)
    if earlier is not None and (difference := earlier.difference(manifest)):
        raise ConfigError(f"{folder} was prepared otherwise: {difference}; choose another folder")
    if earlier is not None:
        manifest = dataclasses.replace(manifest, shards=earlier.shards)
    done = {(one.input, one.start, one.stop): one for one in manifest.shards}
    n_events = sum(one.entries for one in manifest.inputs)
    work = functools.partial(
        _shard, folder=folder, manifest=manifest, options=dataclasses.replace(options, known=known), done=dict(done)
    )
    with disk_errors(folder):
        folder.mkdir(exist_ok=True)
    write_manifest(folder, manifest)
    n_done = 0
    for plan, shard in zip(manifest.planned, in_order(work, manifest.planned, num_workers=num_workers), strict=True):
        if done.get(plan) != shard:
            done[plan] = shard
            manifest = dataclasses.replace(manifest, shards=tuple(done[one] for one in manifest.planned if one in done))
            write_manifest(folder, manifest)
        n_done += shard.stop - shard.start
        if on_progress is not None:
            on_progress(n_done, n_events)
    refused = [error for shard in manifest.shards for error in shard.errors(manifest.inputs[shard.input].path)]
    if refused:
        warnings.warn(refused_message(refused, n_events), BadEntriesWarning, stacklevel=2)
    return manifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Found:
    """What an input is."""

    input: Input
    detector: Detector
    layout: Layout | None
    options: FileOptions


def _look_at(path: str, options: FileOptions) -> _Found:
    with options.open(path) as file:
        if not file.num_entries:
            raise InputError("the file has no entries", file=path)
        return _Found(
            input=_described(file, options),
            detector=file.detector,
            layout=file.layout,
            options=options.detected(file),
        )


def _described(file: EventFile, options: FileOptions) -> Input:
    status = None if is_remote(file.path) else Path(file.path).stat()
    return Input(
        path=file.path,
        bytes=None if status is None else status.st_size,
        modified=None if status is None else status.st_mtime_ns,
        uuid=file.uuid,
        schema=options.schema or file.schema,
        entries=file.num_entries,
        truth_tracks=file.truth_tracks,
        absent=file.absent,
    )


def _check_alike(found: Sequence[_Found]) -> None:
    for one in found[1:]:
        if one.detector != found[0].detector:
            raise ConfigError(
                f"{found[0].input.path} is of detector '{found[0].detector.name}' and {one.input.path} of "
                f"'{one.detector.name}': prepare them into folders of their own"
            )
        if one.layout != found[0].layout:
            raise ConfigError(
                f"{found[0].input.path} and {one.input.path} have different layouts: "
                "prepare them into folders of their own"
            )


def _shard(plan: Plan, *, folder: Path, manifest: Manifest, options: FileOptions, done: dict[Plan, Shard]) -> Shard:
    """Make a shard, unless it is there and whole."""
    number, start, stop = plan
    path = folder / manifest.path_of(number, start)
    before = done.get(plan)
    if before is not None and is_whole(path, before.content):
        return before
    refused: list[BadEntry] = []
    names: set[str] = set()
    with options.open(manifest.inputs[number].path) as file:

        def read(first: int) -> Events:
            last = min(first + manifest.block_size, stop)
            events, bad = file.read_all(first, last, strict=options.on_error == "raise")
            refused.extend(bad)
            names.add(events.reference_name)
            return events

        if _described(file, options) != manifest.inputs[number]:
            raise InputError("was replaced while it was prepared", file=file.path)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            content = write_shard(partial, map(read, range(start, stop, manifest.block_size)))
    return Shard(
        input=number,
        start=start,
        stop=stop,
        content=content,
        reference_name=names.pop(),
        refused=tuple(
            Refused(entry=one.entry, field=one.error.field, message=str(one.error).removeprefix(f"{one.error.where}: "))
            for one in refused
        ),
    )
