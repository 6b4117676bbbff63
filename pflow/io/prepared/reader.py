"""Reads the prepared events of one file."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from pflow.config import to_plain
from pflow.errors import InputError
from pflow.event.events import Events, concatenate
from pflow.io.layout import Layout, load_layout
from pflow.io.prepared.manifest import NAME, Manifest, Shard, load_manifest
from pflow.io.prepared.shard import check_arrow, read_shard
from pflow.physics.detector import Detector

__all__ = ["PreparedReader", "is_prepared", "prepared_inputs"]


class PreparedReader:
    """The prepared events of one input file; fulfils `pflow.io.reader.Reader`.

    Its events are those that were read from the input, with its path and entries, and valid: they need not be validated
    again. Entries that were refused then are `refused` now.

    Parameters
    ----------
    path
        The input's folder of shards, ``DIR/NUMBER/NAME``.
    detector, schema, layout, truth_tracks
        What is asked for, as of `pflow.io.open.open_events`: that as which the input was read, or None.

    Raises
    ------
    InputError
        The events were prepared otherwise than is asked for, or not to the end; names what differs.
    ConfigError
        pyarrow is not installed, or no such layout.
    """

    sources: Mapping[str, tuple[str, ...]] = {}

    def __init__(
        self,
        path: str | Path,
        *,
        detector: Detector | None = None,
        schema: str | None = None,
        layout: str | Path | Layout | None = None,
        truth_tracks: bool = False,
    ) -> None:
        check_arrow()
        self.path = str(path)
        self._folder = Path(path).parent.parent
        self._manifest = manifest = load_manifest(self._folder)
        number = int(Path(path).parent.name)
        self._input = source = manifest.inputs[number]
        self._check(detector, schema, layout, truth_tracks)
        self._shards = manifest.shards_of[number]
        self.schema = source.schema
        self.uuid = source.uuid
        self.num_entries = source.entries
        self.detector = manifest.detector
        self.absent = source.absent
        self.truth_tracks = source.truth_tracks

    def close(self) -> None:
        """Nothing stays open between two readings."""

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Read entries; see `pflow.io.reader.Reader.read`.

        Raises
        ------
        InputError
            A shard is missing or damaged; names it.
        """
        manifest = self._manifest
        make_events = functools.partial(
            Events,
            detector=manifest.detector,
            path=self._input.path,
            absent=self._input.absent,
        )
        parts = [
            read_shard(
                self._folder / manifest.path_of(shard.input, shard.start),
                shard.content,
                max(start - shard.start, 0),
                min(stop, shard.stop) - shard.start,
                block_size=manifest.block_size,
                make_events=functools.partial(make_events, reference_name=shard.reference_name if truth else ""),
                truth=truth,
            )
            for shard in self._between(start, stop)
        ]
        return parts[0] if len(parts) == 1 else concatenate(parts)

    def refused(self, start: int, stop: int) -> list[InputError]:
        """Why entries between `start` and `stop` (exclusive) could not be used when they were read, in their order."""
        return [
            error
            for shard in self._between(start, stop)
            for error in shard.errors(self._input.path)
            if error.entry is not None and start <= error.entry < stop
        ]

    def _between(self, start: int, stop: int) -> Sequence[Shard]:
        """The shards of some entries; one for a range without entries."""
        size = self._manifest.shard_size
        first = min(start // size, len(self._shards) - 1)
        return self._shards[first : max(-(-stop // size), first + 1)]

    def _check(
        self, detector: Detector | None, schema: str | None, layout: str | Path | Layout | None, truth_tracks: bool
    ) -> None:
        manifest = self._manifest
        asked: dict[str, tuple[object, object]] = {"truth_tracks": (manifest.truth_tracks, truth_tracks)}
        if detector is not None and detector != manifest.detector:
            asked["detector"] = manifest.detector.name, f"{detector.name}, which differs"
        if schema is not None:
            asked["schema"] = self._input.schema, schema
        if layout is not None:
            wanted = to_plain(load_layout(layout))
            if wanted != manifest.layout:
                asked["layout"] = (manifest.layout or {}).get("name"), f"{wanted['name']}, which differs"
        for name, (found, expected) in asked.items():
            if found != expected:
                raise InputError(
                    f"events were prepared with {found}, and are to be read with {expected}",
                    file=self._folder / NAME,
                    field=name,
                )
        n_shards = len(manifest.planned)
        if len(manifest.shards) < n_shards:
            raise InputError(
                f"{n_shards - len(manifest.shards)} of {n_shards} shards are missing: `pflow prepare` was interrupted, "
                "run it again",
                file=self._folder / NAME,
            )


def is_prepared(path: str | PathLike[str]) -> bool:
    """Whether a path is the folder of an input's prepared events."""
    return Path(path).is_dir() and (Path(path).parent.parent / NAME).is_file()


def prepared_inputs(path: str) -> list[str]:
    """Folders of all inputs of a folder of prepared events, in their order; of any other path, the path itself.

    Raises
    ------
    InputError
        A damaged manifest.
    """
    if "://" in path or not (Path(path) / NAME).is_file():
        return [path]
    manifest: Manifest = load_manifest(Path(path))
    return [str(Path(path) / manifest.folder_of(number)) for number in range(len(manifest.inputs))]
