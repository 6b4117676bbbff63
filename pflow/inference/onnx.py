"""ONNX Runtime: a model's graphs, made once and kept, and run one event at a time on the CPU."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import awkward as ak
import numpy as np
import numpy.typing as npt
import onnxruntime
import platformdirs
import torch

import pflow
from pflow.checkpoint.format import GRAPHS, TOKENS, Header, read_checked
from pflow.checkpoint.load import TrainedModel
from pflow.data.batch import Batch
from pflow.errors import InputError, reading
from pflow.event import jagged
from pflow.event.build import make_links, make_particles
from pflow.event.events import Events, Flag
from pflow.event.particles import Reconstruction
from pflow.export.folder import export_model
from pflow.inference.engine import Engine, TokenEngine
from pflow.model.api import GeneratedParticles, describe
from pflow.tokens.features import missing_part, unknown_values
from pflow.version import VERSION

Arrays = dict[str, npt.NDArray[Any]]

MAX_KEPT = 32
"""Models whose graphs are kept in the cache."""


class Graphs:
    """Sessions, of one thread each, of the graphs that `pflow export` wrote to a folder; InputError: a damaged one."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, file = Path(folder), Path(folder) / TOKENS
        with reading("expected what `pflow export` wrote", file=file):
            text = json.loads(file.read_text(encoding="utf-8"))
            digests = {name: str(text["sha256"][path]) for name, path in GRAPHS.items() if name in text}
            self.known = tuple(filter(None, text["run"].get("known", "").split(",")))
            self._energy_above = float(text["run"].get("energy_above", 0.0))  # GeV
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # it would keep one for each number of hits, tracks and particles ever seen
        self._sessions: dict[str, Any] = {}
        for name, digest in digests.items():
            content = read_checked(self.folder / GRAPHS[name], digest, stated_in=TOKENS)
            with self._running(name):
                self._sessions[name] = onnxruntime.InferenceSession(
                    content, options, providers=["CPUExecutionProvider"]
                )
        self._inputs = {name: [one.name for one in run.get_inputs()] for name, run in self._sessions.items()}
        self._outputs = {name: [one.name for one in run.get_outputs()] for name, run in self._sessions.items()}
        unknown = [name for name in self.known if name not in self.inputs]
        if unknown or not 0.0 <= self._energy_above < np.inf:
            what = f"inputs {unknown}, which the encoder lacks" if unknown else f"energy_above {self._energy_above} GeV"
            raise InputError(f"not of these graphs: {what}", file=file, field="run")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arrays that the encoder reads."""
        return tuple(self._inputs.get("encoder", ()))

    def has_particles(self, source: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Whether there is anything to reconstruct: a track, or a hit that counts. Else no graph must be run."""
        return len(source.get("track_momentum", ())) > 0 or bool((source["hit_energy"] > self._energy_above).any())

    def reconstruct(
        self, source: Mapping[str, npt.NDArray[Any]], *, max_particles: int | None = None
    ) -> tuple[Arrays | None, bool]:
        """Outputs of the last graph (None: no particles) for an event with hits or tracks, and whether it was cut.

        `source` has the arrays `inputs`; an event is cut at `max_particles`, by default as many as the model allows
        for one of this size.
        """
        values = self.run("encoder", source)
        if max_particles is not None:
            values["limit"] = np.array([max_particles])
        rows = self.run("decoder", values)
        truncated = bool(rows.pop("truncated")[0])
        if not len(next(iter(rows.values()))):
            return None, truncated
        return (self.run("refinement", values | rows) if "refinement" in self._sessions else rows), truncated

    def run(self, graph: str, values: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Outputs of one graph by name, from `values` that have its inputs."""
        names = self._outputs[graph]
        with self._running(graph):
            inputs = {name: values[name] for name in self._inputs[graph]}
            return dict(zip(names, self._sessions[graph].run(names, inputs), strict=True))

    def _running(self, graph: str) -> AbstractContextManager[None]:
        """Name the file where the runtime, which has exceptions of its own, cannot load or run a graph."""
        return reading("not a graph that onnxruntime runs", file=self.folder / GRAPHS[graph])


_ready: WeakKeyDictionary[TrainedModel, tuple[Any, Graphs]] = WeakKeyDictionary()
"""The graphs of models in memory, and the `_state` that they were made of."""


def graphs_of(model: TrainedModel) -> Graphs:
    """The graphs of a model: those that it is, or those in the cache, made where they are not there.

    The cache is ``$PFLOW_CACHE`` or the user's cache folder; where nothing can be written they are made for this
    process alone. CannotExportError: there are none of this architecture. InputError: an exported folder that is
    damaged.
    """
    state = _state(model)
    known, graphs = _ready.get(model, (None, None))
    if graphs is None or known != state:
        graphs = Graphs(model.graphs) if model.graphs is not None else _cached(model)
        _ready[model] = state, graphs
    return graphs


def _state(model: TrainedModel) -> Any:
    """What changes with the weights and options of a network, in a tenth of the time that a digest of them takes."""
    network = model.reconstructor
    tensors = itertools.chain(network.parameters(), network.buffers())
    return describe(network), [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in tensors]


def _cached(model: TrainedModel) -> Graphs:
    cache = Path(os.environ.get("PFLOW_CACHE") or platformdirs.user_cache_dir("pflow")) / "graphs"
    folder = cache / _fingerprint(model)
    if folder.is_dir():
        with suppress(InputError):  # damaged: made anew
            graphs = Graphs(folder)
            with suppress(OSError):
                os.utime(folder)  # the last that is removed
            return graphs
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        for old in sorted(filter(Path.is_dir, cache.iterdir()), key=os.path.getmtime)[: -MAX_KEPT + 1]:
            shutil.rmtree(old, ignore_errors=True)
    place = cache if os.access(cache, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="new-", ignore_cleanup_errors=True) as partial:
        made = Path(partial) / "graphs"
        export_model(model, made)
        graphs = Graphs(made)
        if place is not None:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another process was faster
                os.rename(made, folder)
            graphs.folder = folder
    return graphs


def _fingerprint(model: TrainedModel) -> str:
    """SHA-256 of the weights, the header and the code that makes graphs of them."""
    header = Header(
        version=VERSION,
        tokeniser=model.tokeniser,
        model=describe(model.reconstructor),
        calibration=model.calibration,
    )
    digest = hashlib.sha256(json.dumps([header.to_dict(), model.digest, _code()]).encode())
    for name, weight in model.reconstructor.state_dict().items():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


@functools.cache
def _code() -> str:
    """Digest of the modules that graphs are traced from: a change of them makes other graphs."""
    package = Path(pflow.__file__).parent
    files = sorted(path for room in ("export", "model") for path in (package / room).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


class GraphEngine(Engine):
    """Graphs in ONNX Runtime, for at most `max_particles` of an event; default: the model's own."""

    name = "onnxruntime"

    def __init__(self, model: TrainedModel, graphs: Graphs, *, max_particles: int | None = None) -> None:
        super().__init__(model)
        self._graphs, self._max_particles = graphs, max_particles


class OnnxEngine(GraphEngine):
    """Graphs from physical hits and tracks to physical particles, with their links."""

    def encode(self, events: Events) -> list[Arrays]:
        """``hit_energy`` [N], ``track_momentum`` [K, 3] and so on, of each event; see `Engine.encode`."""
        self.model.tokeniser.check_detector(events)
        parts = {"hit": events.hits} | ({} if events.tracks is None else {"track": events.tracks})
        columns = {part: jagged.columns(records) for part, records in parts.items()}
        offsets = {part: jagged.offsets(jagged.count(records)) for part, records in parts.items()}
        arrays: Arrays = {}
        for name in self._graphs.inputs:
            part, _, field = name.partition("_")
            if part not in parts:
                raise missing_part(events, "tracks")
            dtype = np.int32 if field in ("subdetector", "layer") else np.float32
            vector = [values for path, values in columns[part].items() if path.startswith(f"{field}.")]
            values = np.stack(vector, axis=1) if vector else columns[part][field]
            arrays[name] = values = np.ascontiguousarray(values, dtype=dtype)
            if name in self._graphs.known:
                finite = np.isfinite(values) if dtype == np.float32 else values >= 0
                known = np.asarray(finite if finite.ndim == 1 else finite.all(axis=1))
                if not known.all():
                    raise unknown_values(events, f"{part}s", known, field=f"{part}s.{field}")
        return [
            {name: values[slice(*offsets[name.partition("_")[0]][i : i + 2])] for name, values in arrays.items()}
            for i in range(len(events))
        ]

    def run(self, encoded: list[Arrays], events: Events) -> tuple[Reconstruction, npt.NDArray[np.bool_]]:
        """The particles, one event after the other."""
        columns, flags = [], np.zeros(len(events), dtype=np.uint32)
        for index, source in enumerate(encoded):
            found, truncated = None, False
            if self._graphs.has_particles(source):
                found, truncated = self._graphs.reconstruct(source, max_particles=self._max_particles)
            flags[index] = Flag.MAX_PARTICLES if truncated else Flag.NONE
            columns.append(_NONE if found is None else found)
        reconstruction = _joined(columns, events, flags)
        return reconstruction, ~reconstruction.finite()


class OnnxTokenEngine(GraphEngine, TokenEngine):
    """Graphs from pflow's tokens to those of particles."""

    def generate(self, batch: Batch) -> GeneratedParticles:
        """Decode one event."""
        source = {}
        for part in self._graphs.inputs[::2]:
            tokens = getattr(batch, part)
            n = max(1, tokens.mask.shape[1])  # padding in place of none: an axis of length 0 ends some runtimes
            for name, value in ((part, tokens.features[0]), (f"{part}_mask", tokens.mask[0])):
                source[name] = np.zeros((n, *value.shape[1:]), value.numpy().dtype)
                source[name][: len(value)] = value.numpy()
        found, truncated = self._graphs.reconstruct(source, max_particles=self._max_particles)
        if found is None:
            none = np.zeros(0)
            found = dict.fromkeys(("energy", "score"), none) | {"direction": np.zeros((0, 3))}
            found |= {name: none.astype(np.int64) for name in ("charge", "pdg")}
        columns = {name: torch.from_numpy(value)[None] for name, value in found.items()}
        mask = torch.ones(columns["pdg"].shape, dtype=torch.bool)
        return GeneratedParticles(**columns, mask=mask, truncated=torch.tensor([truncated]))


_NONE: Arrays = {
    "pdg": np.zeros(0, dtype=np.int64),
    **{name: np.zeros(0) for name in ("charge", "energy", "mass", "score")},
    **{name: np.zeros((0, n)) for name, n in (("momentum", 3), ("class_probability", 5), ("covariance", 10))},
    **{f"{part}_link_{name}": np.zeros(0, dtype=np.int64) for part in ("hit", "track") for name in (part, "particle")},
    **{f"{part}_link_weight": np.zeros(0) for part in ("hit", "track")},
}
"""Columns of an event without particles."""


def _joined(
    columns: Sequence[Mapping[str, npt.NDArray[Any]]], events: Events, flags: npt.NDArray[np.uint32]
) -> Reconstruction:
    """The particles and links of all events; `flags` are added to those of the events."""

    def column(name: str, orders: Sequence[Any] | None = None) -> Any:
        counts = np.array([len(of_event[name]) for of_event in columns], dtype=np.int64)
        parts = [of_event[name][slice(None) if orders is None else orders[i]] for i, of_event in enumerate(columns)]
        return jagged.unflatten(np.concatenate(parts or [_NONE[name]]), counts)

    def links(part: str) -> ak.Array:
        orders = [np.argsort(of_event[f"{part}_link_{part}"], kind="stable") for of_event in columns]
        source, particle, weight = (column(f"{part}_link_{name}", orders) for name in (part, "particle", "weight"))
        return make_links(source=source, particle=particle, weight=weight, normalise=False)

    momentum = column("momentum")
    return Reconstruction(
        particles=make_particles(
            **{name: column(name) for name in ("pdg", "charge", "energy", "mass", "score", "covariance")},
            **{name: momentum[..., axis] for axis, name in enumerate(("px", "py", "pz"))},
            scores=column("class_probability"),
        ),
        event=events.event,
        flags=events.flags | flags,
        hit_links=links("hit"),
        track_links=None if events.tracks is None else links("track"),
    )
