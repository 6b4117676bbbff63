"""Shards of prepared events: Arrow IPC files of flat columns, which are mapped into memory.

A record batch holds a block of consecutive events: ``entry``, ``event`` and ``flags``, and a list of records for each
part of `pflow.event.events.Events`, as its table describes them. Any reader of Arrow opens them. They are not
compressed, so that nothing is copied where a block is read as it stands.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
from vector.backends.awkward import behavior as vector_behavior

from pflow.errors import InputError, missing_package, reading
from pflow.event import jagged
from pflow.event.events import PARTS, TRUTH_PARTS, Events, concatenate

__all__ = ["ShardContent", "check_arrow", "is_whole", "read_shard", "write_shard"]

NUMBERS = ("entry", "event", "flags")
"""Columns with one number for each event."""

DAMAGED = "damaged shard of prepared events"

REPAIR = "`pflow prepare` with the same files and options makes it anew"

RECORD = b"record"
"""Metadata of a column of vectors: which kind of vector."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardContent:
    """What was written.

    Parameters
    ----------
    bytes
        Size of the file.
    checksums
        CRC-32 of the columns of each block.
    """

    bytes: int
    checksums: tuple[int, ...]


def check_arrow() -> None:
    """Refuse to go on without pyarrow.

    Raises
    ------
    ConfigError
        Says which extra to install.
    """
    try:
        import pyarrow.ipc  # noqa: F401
    except ImportError as error:
        raise missing_package("pyarrow", "prepared events", extra="prepare") from error


def write_shard(path: str | Path, blocks: Iterable[Events]) -> ShardContent:
    """Write blocks of events, at least one, all with the same parts; the file is visible before it is whole."""
    import pyarrow as pa

    checksums = []
    writer = None
    with pa.OSFile(str(path), "wb") as sink:
        for events in blocks:
            batch = _record_batch(events)
            checksums.append(_checksum(batch))
            writer = pa.ipc.new_file(sink, batch.schema) if writer is None else writer
            writer.write_batch(batch)
        assert writer is not None  # there is a block
        writer.close()
    return ShardContent(bytes=Path(path).stat().st_size, checksums=tuple(checksums))


def read_shard(
    path: str | Path,
    content: ShardContent,
    start: int,
    stop: int,
    *,
    block_size: int,
    make_events: Callable[..., Events],
    truth: bool = True,
) -> Events:
    """Read the events `start` to `stop` (exclusive) of a shard, and compare the checksums of their blocks.

    Parameters
    ----------
    path
        The file.
    content
        What was written to it.
    start, stop
        Events of the shard, from 0.
    block_size
        Events of a block; the last one may have fewer.
    make_events
        Makes `Events` from these parts and numbers; knows all else.
    truth
        Whether to read truth, links and reference.

    Raises
    ------
    InputError
        The file is missing, or does not hold what was written to it.
    """
    import pyarrow as pa

    wanted = set(PARTS) if truth else set(PARTS) - set(TRUTH_PARTS)
    blocks = []
    with reading(f"{DAMAGED}; {REPAIR}", file=path), pa.memory_map(str(path)) as source:
        if source.size() != content.bytes:
            raise InputError(
                f"{DAMAGED}: {source.size()} bytes where {content.bytes} were written; {REPAIR}", file=path
            )
        file = pa.ipc.open_file(source)
        for number in range(start // block_size, max(-(-stop // block_size), start // block_size + 1)):
            batch = _checked(file, number, content, path)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            events = make_events(
                **{name: columns[name].to_numpy() for name in NUMBERS},
                **{name: _part(columns[name]) for name in columns if name in wanted},
            )
            first = number * block_size
            low, high = max(start - first, 0), min(stop - first, len(events))
            blocks.append(events if (low, high) == (0, len(events)) else events[low:high])
    return blocks[0] if len(blocks) == 1 else concatenate(blocks)


def is_whole(path: str | Path, content: ShardContent) -> bool:
    """Whether a shard is there and holds what was written to it, all of which is read."""
    import pyarrow as pa

    if not Path(path).is_file():
        return False
    try:
        with pa.memory_map(str(path)) as source:
            file = pa.ipc.open_file(source)
            found = tuple(_checksum(file.get_batch(number)) for number in range(file.num_record_batches))
            return source.size() == content.bytes and found == content.checksums
    except (OSError, pa.ArrowInvalid):  # damaged where it says how it is laid out
        return False


def _checked(file: Any, number: int, content: ShardContent, path: str | Path) -> Any:
    """A block whose checksum is right."""
    batch = file.get_batch(number)
    if _checksum(batch) != content.checksums[number]:
        raise InputError(f"{DAMAGED}: block {number} does not hold what was written; {REPAIR}", file=path)
    return batch


def _record_batch(events: Events) -> Any:
    import pyarrow as pa

    arrays = [pa.array(getattr(events, name)) for name in NUMBERS]
    names = [*NUMBERS]
    fields = [pa.field(name, array.type, nullable=False) for name, array in zip(NUMBERS, arrays, strict=True)]
    for name, part in events.parts():
        offsets = pa.array(jagged.offsets(jagged.count(part)))
        objects = _to_arrow(jagged.flat_records(part).layout)
        arrays.append(pa.LargeListArray.from_arrays(offsets, objects))
        names.append(name)
        fields.append(pa.field(name, arrays[-1].type, nullable=False))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _to_arrow(content: Any) -> Any:
    """Numbers, or records of them, of an awkward layout."""
    import pyarrow as pa

    if isinstance(content, ak.contents.NumpyArray):
        return pa.array(np.ascontiguousarray(content.data))
    content = content.to_packed()
    parts = [_to_arrow(part[: content.length]) for part in content.contents]
    fields = [
        pa.field(name, part.type, nullable=False, metadata=_metadata(inner))
        for name, part, inner in zip(content.fields, parts, content.contents, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=fields)


def _metadata(content: Any) -> dict[bytes, bytes] | None:
    name = content.parameter("__record__")
    return None if name is None else {RECORD: name.encode()}


def _part(column: Any) -> ak.Array:
    """[event, object] records of a list column, as views."""
    offsets = ak.index.Index64(column.offsets.to_numpy())
    return ak.Array(ak.contents.ListOffsetArray(offsets, _from_arrow(column.values)), behavior=vector_behavior)


def _from_arrow(array: Any, name: str | None = None) -> Any:
    import pyarrow as pa

    if not pa.types.is_struct(array.type):
        return ak.contents.NumpyArray(array.to_numpy())
    fields = [array.type.field(i) for i in range(array.type.num_fields)]
    parts = [
        _from_arrow(array.field(i), (field.metadata or {}).get(RECORD, b"").decode() or None)
        for i, field in enumerate(fields)
    ]
    parameters = None if name is None else {"__record__": name}
    return ak.contents.RecordArray(parts, [field.name for field in fields], len(array), parameters=parameters)


def _checksum(batch: Any) -> int:
    """CRC-32 of the names and types of all columns and of their bytes, one after the other."""
    crc = zlib.crc32(batch.schema.serialize())
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                crc = zlib.crc32(buffer, crc)
    return crc
