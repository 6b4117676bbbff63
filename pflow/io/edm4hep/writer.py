"""The output of a reconstruction as a file that podio opens, with the collections of its input or without."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
import uproot

from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, Flag, count_flags
from pflow.event.particles import Reconstruction
from pflow.io.atomic import check_output, replacing
from pflow.io.edm4hep.collection_id import collection_id
from pflow.io.edm4hep.data_model import EDM4HEP, DataModel
from pflow.io.edm4hep.frame_writer import Filled, FrameWriter, Parameters
from pflow.io.edm4hep.input_copy import InputCopy
from pflow.io.edm4hep.own_objects import hit_frames, track_frames
from pflow.io.edm4hep.podio import CollectionInfo
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.reco_frames import References, algorithm_type, reco_frames
from pflow.io.edm4hep.reco_names import RecoNames
from pflow.io.open import EventFile
from pflow.io.rootfile import write_note
from pflow.physics.pdg import CLASSES

__all__ = ["NOTE", "Edm4hepRecoWriter"]

NOTE = "pflow_provenance"
"""Key of the provenance."""

HEADER = "EventHeader"

CLUSTER_SIZE = 32
"""Events that are written at a time: with the input's collections they are some megabytes each."""


class Edm4hepRecoWriter:
    """Writes a reconstruction chunk by chunk; a context manager. The file appears at its place only when whole.

    The content is that of `pflow.io.edm4hep.reco_names`, and ``EventHeader``.

    Parameters
    ----------
    path
        The output file.
    files
        The open files that the events come from; they must stay open.
    provenance
        Where the particles come from; plain data, as JSON can hold. ``flagged`` is added as by
        `pflow.io.particles_root.RecoWriter`.
    keep_input
        Copy all collections of the input, so that all references lead to objects of the same file.
    mc_links
        Write links to Monte Carlo particles.
    name
        Name of the collection of particles.
    inputs
        Files and folders beside `files` that must not be overwritten.
    force
        Replace any file; without it, only an earlier output of a reconstruction.

    Raises
    ------
    ConfigError
        An output that cannot be written, a name that is no identifier or taken, an option that is not for these files,
        or files that differ in their collections.
    InputError
        A file that cannot be copied or has no Monte Carlo particles, where that is asked for.
    """

    def __init__(
        self,
        path: str | Path,
        files: Sequence[EventFile],
        *,
        provenance: Mapping[str, Any],
        keep_input: bool = False,
        mc_links: bool = False,
        name: str = "PFlow",
        inputs: Iterable[str | Path] = (),
        force: bool = False,
    ) -> None:
        if not name.isidentifier():
            raise ConfigError(f"'{name}' cannot name a collection: expected letters, digits and underscores")
        sources = (*(file.path for file in files), *inputs)
        self._checks: Any = {"inputs": sources, "replace": NOTE.encode(), "force": force}
        self._path = check_output(path, **self._checks)
        self._provenance = provenance
        self._names = RecoNames(name)
        self._keep_input = keep_input
        self._sources = {file.path: _Source(file, mc_links=mc_links, keep_input=keep_input) for file in files}
        self._first = next(iter(self._sources.values()))
        for source in self._sources.values():
            source.check_like(self._first)
        self._optional: frozenset[str] | None = None
        self._flagged: Counter[str] = Counter()

    def __enter__(self) -> Edm4hepRecoWriter:
        first = self._first
        own = self._names.collections(
            mc_links=first.mc_id is not None,
            own_hits=first.own_hits,
            sim_links=first.own_hits and first.reader is not None,
            own_tracks=first.own_tracks,
        )
        if HEADER not in first.copied:
            own += (CollectionInfo(name=HEADER, data_type="edm4hep::EventHeaderCollection"),)
        for collection in own:
            if collection.name in first.copied:
                raise ConfigError(
                    f"cannot write {self._path}: the input holds a collection '{collection.name}' already; "
                    "reconstruct the file that it was made from, or without keeping the input's collections"
                )
        definitions = {"edm4hep": json.dumps(EDM4HEP)} | ({} if first.copy is None else first.copy.definitions)
        ours = DataModel(EDM4HEP)
        collections = [(ours, collection) for collection in own]
        if first.copy is not None:
            collections += [(first.copy.model, collection) for collection in first.copied.values()]
        with ExitStack() as stack:
            partial = stack.enter_context(replacing(self._path, **self._checks))
            file = stack.enter_context(uproot.recreate(partial, compression=uproot.ZSTD(5)))
            self._file = file
            self._frames = FrameWriter(file, collections=collections, definitions=definitions)
            self._write_header = HEADER not in first.copied
            stack.push(self._finish)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def extend(self, reconstruction: Reconstruction, events: Events) -> None:
        """Append consecutive events of one of the files.

        Parameters
        ----------
        reconstruction
            The particles.
        events
            The events that they were made from, consecutive entries of a file, with truth for links to it.

        Raises
        ------
        InputError
            An entry of the input cannot be decoded, and is not flagged ``BAD_INPUT``: such ones are left empty.
        ValueError
            Particles have links, scores or covariances and those before had none, or the other way round.
        """
        self._flagged.update(count_flags(reconstruction.flags))
        if ak.any(ak.num(reconstruction.particles, axis=1)):
            optional = reconstruction.optional_parts
            if optional != (self._optional or optional):
                raise ValueError("chunks of one reconstruction differ in what they hold of links, scores, covariances")
            self._optional = optional
        for start in range(0, len(events), CLUSTER_SIZE):
            chosen = slice(start, start + CLUSTER_SIZE)
            try:
                self._extend(reconstruction[chosen], events[chosen])
            except InputError:  # an entry of the input cannot be decoded; nothing of this range is written yet
                self._extend_one_by_one(reconstruction[chosen], events[chosen])

    def _extend_one_by_one(self, reconstruction: Reconstruction, events: Events) -> None:
        """Append events of which some cannot be decoded: those that were skipped as such are left empty."""
        for at in range(len(events)):
            one = slice(at, at + 1)
            try:
                self._extend(reconstruction[one], events[one])
            except InputError:
                if not reconstruction.flags[at] & Flag.BAD_INPUT:
                    raise
                none = np.zeros((1, len(self._first.hit_ids)), dtype=np.int64)
                self._frames.extend(self._header(reconstruction[one]), self._parameters(reconstruction[one], none))

    def _extend(self, reconstruction: Reconstruction, events: Events) -> None:
        source, names = self._sources[events.path], self._names
        start, stop = int(events.entry[0]), int(events.entry[-1]) + 1
        origins = None if source.reader is None else source.reader.hit_origins(start, stop)
        references = References(
            hits=None if source.own_hits else origins,
            track_id=collection_id(names.tracks) if source.track_id is None else source.track_id,
            mc_id=source.mc_id,
        )
        frames = reco_frames(reconstruction, events, references, names)
        if source.own_hits:
            frames |= hit_frames(events, origins, names)
        if source.own_tracks:
            frames |= track_frames(events, names)
        frames |= self._header(reconstruction)
        parameters: list[Parameters] = [{} for _ in range(len(events))]
        if source.copy is not None:
            frames |= source.copy.read(source.copied.values(), start, stop)
            if self._keep_input:
                parameters = source.copy.parameters(start, stop)
        offsets = np.zeros((len(events), 0), np.int64)
        if references.hits is not None:
            offsets = (np.cumsum(references.hits.counts, axis=0) - references.hits.counts).T
        own = self._parameters(reconstruction, offsets)
        self._frames.extend(frames, [_merged(*pair) for pair in zip(parameters, own, strict=True)])

    def _header(self, reconstruction: Reconstruction) -> dict[str, Filled]:
        """Event headers with the numbers of the events, unless those of the input are copied."""
        if not self._write_header:
            return {}
        ones = np.ones(len(reconstruction))
        columns = {"eventNumber": reconstruction.event.astype(np.uint64), "weight": ones}
        return {HEADER: Filled(counts=ones.astype(np.int64), columns=columns)}

    def _parameters(self, reconstruction: Reconstruction, offsets: npt.NDArray[np.int64]) -> list[Parameters]:
        """Our parameters of each frame; `offsets` [event, collection] of the hits."""
        name = self._names.particles
        flags = reconstruction.flags.astype(np.int32)
        return [
            {"Int": {f"{name}_flags": [int(flag)], f"{name}_hitOffsets": offset.tolist()}}
            for flag, offset in zip(flags, offsets, strict=True)
        ]

    def _finish(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            return
        first, names = self._first, self._names
        categories = {} if first.copy is None or not self._keep_input else first.copy.categories()
        metadata = categories.pop("metadata", [])
        encodings = {} if first.reader is None else first.reader.file.encodings
        own: Parameters = {
            "Int": {
                f"{names.particle_id}__AlgoType": [algorithm_type(names)],
                f"{names.particles}__HitCollectionIDs": first.hit_ids,
            },
            "String": {
                **{f"{name}__CellIDEncoding": [encoding] for name, encoding in encodings.items()},
                f"{names.particle_id}__AlgoName": [names.particles],
                f"{names.particle_id}__ParameterNames": list(CLASSES),
                f"{names.clusters}__SubdetectorNames": [one.name for one in first.detector.calorimeters],
                f"{names.particles}__HitCollections": [] if first.own_hits else list(first.hit_collections),
                f"{names.particles}__Parts": sorted(self._optional or ()),
            },
        }
        merged = _merged(metadata[0] if metadata else {}, own)
        self._frames.finish({"metadata": [merged, *metadata[1:]], **categories})
        write_note(self._file, NOTE, {**self._provenance, **({"flagged": self._flagged} if self._flagged else {})})


class _Source:
    """What a file offers that particles can refer to."""

    def __init__(self, file: EventFile, *, mc_links: bool, keep_input: bool) -> None:
        self.path = file.path
        self.detector = file.detector
        self.reader: Edm4hepReader | None = file.edm4hep
        sources = {} if self.reader is None else self.reader.sources
        self.hit_collections = tuple(
            name for calorimeter in file.detector.calorimeters for name in sources.get(calorimeter.name, ())
        )
        self.own_hits = self.reader is None or self.reader.sim
        self.hit_ids: list[int] = []
        if self.reader is not None and not self.own_hits:
            ids = [self.reader.file.id_of(name) for name in self.hit_collections]
            self.hit_ids = np.array(ids, np.uint32).astype(np.int32).tolist()  # as parameters are
        tracks, truth = sources.get("tracks", ()), sources.get("truth", ())
        self.track_id = self.reader.file.id_of(tracks[0]) if self.reader is not None and tracks else None
        self.own_tracks = self.track_id is None and (file.truth_tracks or self.reader is None)
        self.mc_id = self._mc_id(truth) if mc_links else None
        self.keep_input = keep_input
        self.copy = self._copy()

    def _mc_id(self, truth: Sequence[str]) -> int:
        if self.reader is None or not truth:
            raise InputError(
                "links to Monte Carlo particles need an EDM4hep file that holds them",
                file=self.path,
                field=self.detector.truth_particles[0],
            )
        return self.reader.file.id_of(truth[0])

    @property
    def copied(self) -> dict[str, CollectionInfo]:
        """Collections that are copied, by name: all, or the one with the event numbers."""
        found = () if self.copy is None else self.copy.collections
        return {collection.name: collection for collection in found if self.keep_input or collection.name == HEADER}

    def _copy(self) -> InputCopy | None:
        if self.reader is None:
            if self.keep_input:
                raise ConfigError(f"{self.path}: only the collections of EDM4hep files can be kept")
            return None
        try:
            return InputCopy(self.reader.file)
        except InputError:
            if self.keep_input:
                raise
            return None  # the event numbers are all that would be copied

    def check_like(self, first: _Source) -> None:
        """Refuse to write files that differ into one output.

        Raises
        ------
        ConfigError
            Names both files and what differs.
        """
        for what in ("detector", "hit_collections", "own_hits", "track_id", "own_tracks", "mc_id"):
            if getattr(self, what) != getattr(first, what):
                raise ConfigError(
                    f"{self.path} and {first.path} differ ({what.replace('_', ' ')}), so that they do not fit into one "
                    "EDM4hep file; reconstruct them one by one"
                )
        for name in sorted({*self.copied, *first.copied}):
            if self.copied.get(name) != first.copied.get(name):
                raise ConfigError(
                    f"collection '{name}' is not the same in {self.path} and {first.path}, so that they do not fit "
                    "into one EDM4hep file; reconstruct them one by one"
                )


def _merged(one: Parameters, other: Parameters) -> Parameters:
    """Parameters of both; the latter's win."""
    return {kind: {**one.get(kind, {}), **other.get(kind, {})} for kind in {**one, **other}}
