"""Cache of validated events for the next epoch or training (``--data.cache DIR``).

Each chunk of a file is a safetensors file of the buffers of its awkward arrays. A digest of
everything that the events depend on names the folder; processes may share it, as chunks are renamed when complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import awkward as ak
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from pflow.config import VERSION
from pflow.errors import PflowError
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.schema import SCHEMA
from pflow.io.atomic import make_folder, replacing
from pflow.io.open import EventFile, ReadOptions
from pflow.io.root import is_remote, split_tree
from pflow.physics.detector import Detector

FORMAT = 1  # raise it when the same files, read with the same options, give different events
NUMBERS = ("entry", "event", "flags")  # fields of `Events` with one number for each event
_unwritable: set[Path] = set()  # folders of caches to which this process could not write


class CachedFile:
    """Reads like `EventFile`, and opens the file only for chunks that the cache `folder` does not hold.

    Chunks with bad entries are not cached, so that each reading warns. The events depend on the file and `options`
    only, whose detector is given.
    """

    def __init__(
        self, path: str, folder: str | Path, *, open_file: Callable[[], EventFile], options: ReadOptions
    ) -> None:
        self._cache = Path(folder)
        assert isinstance(options.detector, Detector)
        self._detector = options.detector
        self._open_file = open_file
        self._file: EventFile | None = None
        if is_remote(path):
            source: tuple[Any, ...] = (path, self._opened.uuid, self._opened.num_entries)
        else:
            status = os.stat(split_tree(path)[0])
            source = (os.path.abspath(path), status.st_size, status.st_mtime_ns)
        chosen = (self._detector, options.schema, options.layout, options.truth_tracks)
        key = repr((FORMAT, VERSION, SCHEMA, source, *chosen)).encode()
        self._folder = self._cache / hashlib.sha256(key).hexdigest()[:32]

    def read(
        self, start: int, stop: int, *, truth: bool = True, on_error: Literal["raise", "skip"] = "raise"
    ) -> Events:
        """Read as `EventFile.read` does."""
        path = self._folder / f"{start}-{stop}.safetensors"
        events = _load(path, self._detector) if truth else None
        if events is None:
            events = self._opened.read(start, stop, truth=truth, on_error=on_error)
            unusable = Flag.BAD_INPUT | Flag.UNUSABLE_HITS | Flag.UNUSABLE_TRACKS | Flag.UNUSABLE_TRUTH
            if truth and not np.any(events.flags & unusable):
                _store(path, events, self._cache)
        return events

    def close(self) -> None:
        """Close the file if it was opened; a second call does nothing."""
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> EventFile:
        if self._file is None:
            self._file = self._open_file()
        return self._file


def check_cache(folder: str | Path) -> bool:
    """Whether a folder, made if absent, can hold a cache; warns if it cannot."""
    try:
        with replacing(make_folder(folder) / "README.txt") as partial:
            partial.write_text("Events that pflow has read. What is deleted here is made again when it is needed.\n")
    except (PflowError, OSError) as error:
        _warn(Path(folder), error)
        return False
    return True


def _warn(folder: Path, error: Exception) -> None:
    if folder not in _unwritable:
        _unwritable.add(folder)
        warnings.warn(f"events are read without a cache: {error}", stacklevel=3)


def _store(path: Path, events: Events, cache: Path) -> None:
    """Write a chunk; after a failure this process stops writing to the cache."""
    if cache in _unwritable:
        return
    fields = {name: getattr(events, name) for name in NUMBERS} | dict(events.parts())
    form, length, buffers = ak.to_buffers(ak.to_packed(ak.Array(fields)))
    about = {"path": events.path, "absent": events.absent, "reference_name": events.reference_name}
    content = save(
        {name: np.ascontiguousarray(buffer) for name, buffer in buffers.items()},
        {"form": form.to_json(), "length": str(length), "events": json.dumps(about)},
    )
    try:
        make_folder(path.parent)
        with replacing(path) as partial, partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else a machine that crashes may leave a file of zeros
    except (PflowError, OSError) as error:
        _warn(cache, error)


def _load(path: Path, detector: Detector) -> Events | None:
    """A chunk; None if absent or damaged."""
    try:
        with safe_open(path, "numpy") as file:
            metadata, names = file.metadata(), file.keys()
            buffers = {name: file.get_tensor(name) for name in names}
        form = ak.forms.from_json(metadata["form"])
        array = ak.from_buffers(form, int(metadata["length"]), buffers, behavior=jagged.BEHAVIOR)
        about = json.loads(metadata["events"])
        about["absent"] = tuple(about["absent"])
        numbers = {name: ak.to_numpy(array[name]) for name in NUMBERS}
        parts = {name: array[name] for name in array.fields if name not in NUMBERS}
        return Events(detector=detector, **about, **numbers, **parts)
    except Exception:  # damaged bytes fail anywhere
        return None
