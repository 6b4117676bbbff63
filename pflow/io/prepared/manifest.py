"""The manifest of a folder of prepared events: all that they depend on, and what was written to each shard."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pflow.config import from_plain, to_plain
from pflow.errors import InputError, reading
from pflow.io.atomic import replacing
from pflow.io.prepared.shard import ShardContent
from pflow.physics.detector import Detector

__all__ = ["FORMAT", "NAME", "Input", "Manifest", "Refused", "Shard", "load_manifest", "write_manifest"]

NAME = "manifest.json"
"""Name of the file in the folder."""

FORMAT = 1
"""Version; to be raised when the layout of shards changes, or when reading the same files gives other events."""

MARK = '"pflow": "prepared events"'
"""Text by which a manifest is recognised."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """A file whose events were prepared.

    Parameters
    ----------
    path, bytes, modified, uuid
        Where it was, its size, when it was last changed, in ns since 1970 (None for files on servers), and its UUID.
    schema, entries, truth_tracks, absent
        As of `pflow.io.reader.Reader`; the schema that was asked for, if one was.
    """

    path: str
    bytes: int | None
    modified: int | None
    uuid: str
    schema: str
    entries: int
    truth_tracks: bool
    absent: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refused:
    """An entry that could not be used and was left empty."""

    entry: int
    field: str | None
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """A finished shard.

    Parameters
    ----------
    input
        Number of the input, from 0.
    start, stop
        Its entries of that input; stop is exclusive.
    content
        What was written to it.
    reference_name
        As of `pflow.event.events.Events`.
    refused
        Entries that were left empty.
    """

    input: int
    start: int
    stop: int
    content: ShardContent
    reference_name: str = ""
    refused: tuple[Refused, ...] = ()

    def errors(self, path: str) -> list[InputError]:
        """Why entries of the input, which was at `path`, were left empty."""
        return [InputError(one.message, file=path, entry=one.entry, field=one.field) for one in self.refused]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a folder of prepared events holds, and all that it depends on.

    Parameters
    ----------
    format
        `FORMAT` of the shards.
    pflow_version, versions
        By what they were made: versions of pflow, and of the packages that read files.
    detector, layout, truth_tracks, on_error
        How the inputs were read, as `pflow.io.open.open_events` was asked to; detector and layout as they were found,
        the layout as plain data, None for other schemas.
    block_size, shard_size
        Events of a block and of a shard; the last one of an input may have fewer.
    inputs
        The files, in the order in which they were given.
    shards
        Those that are finished, in this order.
    """

    format: int = FORMAT
    pflow_version: str
    versions: Mapping[str, str | None]
    detector: Detector
    layout: Mapping[str, Any] | None
    truth_tracks: bool
    on_error: str
    block_size: int
    shard_size: int
    inputs: tuple[Input, ...]
    shards: tuple[Shard, ...] = ()

    @functools.cached_property
    def planned(self) -> list[tuple[int, int, int]]:
        """Input, start and stop of each shard of the whole."""
        return [
            (number, start, min(start + self.shard_size, one.entries))
            for number, one in enumerate(self.inputs)
            for start in range(0, one.entries, self.shard_size)
        ]

    @functools.cached_property
    def shards_of(self) -> Mapping[int, Sequence[Shard]]:
        """The shards of each input."""
        found: dict[int, list[Shard]] = {number: [] for number in range(len(self.inputs))}
        for shard in self.shards:
            found[shard.input].append(shard)
        return found

    def folder_of(self, number: int) -> Path:
        """Folder of an input's shards, in that of the manifest; it ends with the name of the input."""
        return Path(f"{number:05}") / Path(self.inputs[number].path).name

    def path_of(self, number: int, start: int) -> Path:
        """The file of a shard, in the folder of the manifest."""
        return self.folder_of(number) / f"{start // self.shard_size:05}.arrow"

    def difference(self, other: Manifest) -> str | None:
        """What differs first in what the events depend on, with both values; None if nothing does."""
        for field in dataclasses.fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "shards" or ours == theirs:
                continue
            if field.name != "inputs":
                return f"{field.name}: {_said(ours)} and {_said(theirs)}"
            for one, two in zip(ours, theirs, strict=False):
                for part in dataclasses.fields(one):
                    if getattr(one, part.name) != getattr(two, part.name):
                        return f"{part.name} of {two.path}: {getattr(one, part.name)} and {getattr(two, part.name)}"
            return f"number of inputs: {len(ours)} and {len(theirs)}"
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest, or replace an earlier one, at once."""
    with replacing(folder / NAME, replace=MARK.encode()) as partial:
        partial.write_text(json.dumps({"pflow": "prepared events", **to_plain(manifest)}, indent=1), "utf-8")


def load_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; read once as long as it stays the same.

    Raises
    ------
    InputError
        There is none, it is damaged, or of another format.
    """
    path = folder / NAME
    with reading("expected the manifest of prepared events", file=path):
        status = path.stat()
        return _load(str(path), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _load(path: str, modified: int, size: int) -> Manifest:
    content = json.loads(Path(path).read_text("utf-8"))
    kind, version = content.pop("pflow", None), content.get("format")
    if kind != "prepared events" or version != FORMAT:
        raise InputError(f"expected prepared events of format {FORMAT}, found {kind} of format {version}", file=path)
    return from_plain(Manifest, content, where=path)


def _said(value: Any) -> Any:
    """A value as a message shows it: of those with a name, the name."""
    if isinstance(value, Mapping):
        return value.get("name") or dict(value)
    return getattr(value, "name", value)
