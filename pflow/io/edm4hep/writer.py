"""The output of a reconstruction as a file that podio opens, with the collections of its input."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import Flag, Reconstruction, leave_out
from pflow.io.edm4hep.frames import Definitions, FrameWriter, InputCopy, Parameters
from pflow.io.edm4hep.podio import CollectionInfo, DataModel, Filled, collection_id, edm4hep_types
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.reco import RecoNames, hit_frames, reco_frames, track_frames
from pflow.io.open import EventFile
from pflow.io.particles_root import OutputWriter
from pflow.io.root import entries_at_once
from pflow.physics.pdg import CLASSES

HEADER = "EventHeader"

CLUSTER_SIZE = 32
"""Events that are written at a time, at least: with the input's collections they are some megabytes each."""


class Edm4hepRecoWriter(OutputWriter):
    """Writes the reconstruction of one file, chunk by chunk; a context manager. It appears at its place when whole.

    The output holds the collections of `pflow.io.edm4hep.reco` and of the input `file`, which must stay open; where the
    input's cannot be copied (another schema, or a podio before 1.3, with a warning), the hits and tracks that were
    used, and no definition of EDM4hep. `mc_links`: link to Monte Carlo particles, an `InputError` if the input's cannot
    be copied. `candidates`: the reconstructions have them. Other options and errors as of
    `pflow.io.particles_root.RecoWriter`; also a `ConfigError` if the input has a collection of this name.
    """

    def __init__(
        self,
        path: str | Path,
        file: EventFile,
        *,
        mc_links: bool = False,
        candidates: bool = False,
        name: str = "PFlow",
        inputs: Iterable[str | Path] = (),
        **options: Any,
    ) -> None:
        super().__init__(path, name=name, inputs=(file.path, *inputs), **options)
        self._input = file
        self._names = names = RecoNames(name)
        self._reader = reader = file.reader if isinstance(file.reader, Edm4hepReader) else None
        self._copy: InputCopy | None = None  # copies the input's collections, where they can be copied
        try:
            if reader is not None:
                chosen = reader.chosen
                self._copy = InputCopy(reader.file, (*chosen.collections["tracks"], *chosen.hit_collections))
        except InputError as error:
            text = "the output holds the hits and tracks that were used instead, without cell ids and covariances"
            warnings.warn(f"{error}; {text}", stacklevel=2)
        copied = {} if self._copy is None else self._copy.collections
        self._hit_collections: list[str] = []  # of the input, unless the output has its own hits
        self._track_id = self._mc_id = None
        # The output holds its own tracks or hits where it cannot refer to the input's.
        self._own_hits, self._own_tracks, self._sim_links = True, True, False
        if reader is not None and self._copy is not None:
            hits, tracks = reader.chosen.hit_collections, reader.sources["tracks"]
            # podio does not look at the type that a reference leads to: objects of edm4eic cannot be referred to.
            edm4hep = {name for name, info in copied.items() if info.data_type.startswith("edm4hep::")}
            self._own_hits = reader.sim or bool(reader.chosen.subsets) or not edm4hep.issuperset(hits)
            self._sim_links, self._hit_collections = reader.sim, [] if self._own_hits else hits
            self._track_id = next((reader.file.id_of(name) for name in tracks if name in edm4hep), None)
            self._own_tracks = self._track_id is None and (file.truth_tracks or bool(tracks))
            self._mc_id = next((reader.file.id_of(name) for name in reader.sources["truth"] if name in copied), None)
        if mc_links and self._mc_id is None:
            message = "links to Monte Carlo particles need an EDM4hep file that holds them, of podio 1.3 or later"
            raise InputError(message, file=file.path, field=next(iter(file.detector.truth_particles), None))
        self._mc_links = mc_links
        self._no_d0 = False
        added = names.collections(
            mc_links=mc_links,
            hits=self._own_hits,
            sim_links=self._sim_links,
            tracks=self._own_tracks,
            candidates=candidates,
            candidate_id=candidates,
        )
        self._write_header = HEADER not in copied
        if self._write_header:
            added += (CollectionInfo(name=HEADER, data_type="edm4hep::EventHeaderCollection"),)
        for name in (collection.name for collection in added if collection.name in copied):
            problem = f"the input holds a collection '{name}' already; reconstruct the file that it was made from"
            raise ConfigError(f"cannot write {self._path}: {problem}")
        model = DataModel(edm4hep_types())
        self._collections = [(model, collection) for collection in added]
        self._definitions: Definitions = {}  # ours lacks types that its types refer to
        if self._copy is not None:
            self._collections += [(self._copy.model, collection) for collection in copied.values()]
            self._definitions = self._copy.definitions
        self._entry = 0

    def _begin(self) -> None:
        self._frames = FrameWriter(self._file, collections=self._collections, definitions=self._definitions)

    def _append(self, reconstruction: Reconstruction) -> None:
        """Append the particles of the input's next entries; only flagged entries may be damaged."""
        tree = self._input.reader.tree
        step = CLUSTER_SIZE if tree is None else max(CLUSTER_SIZE, entries_at_once(tree) // 4)
        for start in range(0, len(reconstruction), step):
            chosen = reconstruction[start : start + step]
            try:
                self._extend(chosen)
            except InputError:  # an entry of the input cannot be decoded; nothing of this range is written yet
                for index in range(len(chosen)):
                    self._extend(chosen[index : index + 1], skip=True)

    def _extend(self, reconstruction: Reconstruction, *, skip: bool = False) -> None:
        start, stop = self._entry, self._entry + len(reconstruction)
        parameters: Sequence[Parameters] = [{} for _ in range(len(reconstruction))]
        try:
            frames, offsets, unused = self._content(reconstruction, start, stop)
            if self._reader is not None and self._copy is not None:
                frames |= self._copy.read(start, stop)
                parameters = self._reader.file.frame_parameters("events", start, stop)
        except InputError:
            # Only an entry that the reconstruction could not read either may be left empty.
            if not skip or not reconstruction.flags[0] & Flag.BAD_INPUT:
                raise
            frames, offsets, unused = {}, np.zeros((1, len(self._hit_collections)), np.int64), [[]]
        if self._write_header:
            ones = np.ones(len(reconstruction))
            columns = {"eventNumber": reconstruction.event.astype(np.uint64), "weight": ones}
            frames[HEADER] = Filled(counts=ones.astype(np.int64), columns=columns)
        name, flags = self._names.particles, reconstruction.flags.astype(np.int32)
        added: list[Parameters] = [
            {"Int": {f"{name}_flags": [int(flag)], f"{name}_hitOffsets": offset.tolist(), f"{name}_unusedTracks": left}}
            for flag, offset, left in zip(flags, offsets, unused, strict=True)
        ]
        self._frames.extend(frames, [_merged(*pair) for pair in zip(parameters, added, strict=True)])
        self._entry = stop

    def _content(self, reconstruction: Reconstruction, start: int, stop: int) -> tuple[dict[str, Filled], Any, Any]:
        """Our collections; offsets [event, collection] of hits in the input's collections; its unused tracks."""
        names = self._names
        if self._reader is None:
            events, origins = self._input.reader.read(start, stop, truth=self._mc_links), None
        else:
            events, origins = self._reader.read_with_origins(start, stop, truth=self._mc_links)
        skipped = (reconstruction.flags & Flag.BAD_INPUT) > 0
        events = events.emptied(skipped & (ak.to_numpy(ak.num(reconstruction.particles)) == 0))
        # Before tracks are left out: references count in the input's collection, which has them all.
        counts = None if events.tracks is None else jagged.count(events.tracks)
        events, left_out = leave_out(events)
        unused: list[list[int]] = [[] for _ in range(len(events))]
        track_index = None  # in the input's collection
        if "tracks" in left_out and counts is not None and not self._own_tracks:
            mask, index = left_out["tracks"], jagged.local_index(counts)
            track_index = index[~mask]
            for event, number in zip(jagged.event_index(counts)[mask], index[mask].tolist(), strict=True):
                unused[event].append(number)
        frames = reco_frames(
            reconstruction,
            events,
            names,
            hits=None if self._own_hits else origins,
            track_id=collection_id(names.tracks) if self._track_id is None else self._track_id,
            mc_id=self._mc_id if self._mc_links else None,
            track_index=track_index,
        )
        if self._own_hits:
            frames |= hit_frames(events, origins if self._sim_links else None, names)
        if self._own_tracks:
            frames |= track_frames(events, names.tracks)
            self._no_d0 |= events.tracks is not None and bool(np.isnan(jagged.flat(events.tracks["d0"])).any())
        offsets = np.zeros((len(events), 0), np.int64)
        if origins is not None and not self._own_hits:
            offsets = (np.cumsum(origins.counts, axis=0) - origins.counts).T
        return frames, offsets, unused

    def _end(self) -> None:
        names = self._names
        if self._no_d0:
            text = (
                "%s: the input has no d0 and z0; in %s D0 = Z0 = 0, which is no measurement: tag no flavour with them"
            )
            logging.getLogger("pflow").info(text, self._path, names.tracks)
        categories = {} if self._copy is None else self._copy.categories()
        metadata = categories.pop("metadata", [])
        encodings = {} if self._reader is None else self._reader.file.encodings
        ids = [self._reader.file.id_of(name) for name in self._hit_collections] if self._reader is not None else []
        identifications = [names.particle_id, *([names.candidate_id] if "candidates" in (self._optional or ()) else [])]
        parameters = [*CLASSES, *({"existence"} & (self._optional or frozenset()))]
        # podio has no unsigned parameters, so ids are stored as int32.
        added: Parameters = {
            "Int": {
                **{f"{name}__AlgoType": [names.algorithm_type] for name in identifications},
                f"{names.particles}__HitCollectionIDs": np.array(ids, np.uint32).astype(np.int32).tolist(),
            },
            "String": {
                **{f"{name}__CellIDEncoding": [encoding] for name, encoding in encodings.items()},
                **{f"{name}__AlgoName": [names.particles] for name in identifications},
                **{f"{name}__ParameterNames": parameters for name in identifications},
                f"{names.clusters}__SubdetectorNames": [part.name for part in self._input.detector.calorimeters],
                f"{names.particles}__HitCollections": self._hit_collections,
                f"{names.particles}__Parts": sorted(self._optional or ()),
            },
        }
        merged = _merged(metadata[0] if metadata else {}, added)
        self._frames.finish({"metadata": [merged, *metadata[1:]], **categories})


def _merged(first: Parameters, second: Parameters) -> Parameters:
    """Parameters of both; the `second` win."""
    return {kind: {**first.get(kind, {}), **second.get(kind, {})} for kind in {**first, **second}}
