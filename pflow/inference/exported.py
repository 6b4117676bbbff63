"""An exported pointing network in ONNX Runtime: one event at a time, from arrays of hits and tracks to particles.

What `pflow export` writes, run as its ``tokens.json`` says; nothing but the tokeniser is read of the network itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflow.checkpoint.digest import read_checked
from pflow.checkpoint.format import Header
from pflow.checkpoint.onnx_folder import (
    FORMAT_OF_POINTING,
    FORMAT_OF_TRANSLATION,
    GRAPHS,
    POINTING_GRAPHS,
    TOKENS,
)
from pflow.errors import InputError, missing_package, reading

__all__ = ["ExportedModel", "ExportedParticles"]

Arrays = dict[str, npt.NDArray[Any]]


class ExportedParticles(NamedTuple):
    """Particles of one event.

    Parameters
    ----------
    columns
        Outputs of the refinement's graph by name; None: there are no particles.
    truncated
        Whether the largest number of particles was decoded before the event ended.
    """

    columns: Arrays | None
    truncated: bool


class ExportedModel:
    """Sessions of the three graphs, of one thread each, and what the checkpoint's header says.

    Parameters
    ----------
    folder
        Written by `pflow export`.

    Raises
    ------
    ConfigError
        The package onnxruntime is not installed.
    InputError
        Not such a folder, one of another architecture or layout, a graph whose SHA-256 is not that of the
        description, or one that cannot be loaded.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            import onnxruntime as runtime
        except ImportError as error:
            raise missing_package("onnxruntime", "exported models", extra="onnx") from error
        self.path = str(folder)
        text = _read_description(Path(folder))
        with reading("expected what `pflow export` wrote", file=Path(folder) / TOKENS):
            header = Header.from_dict(text["checkpoint"], file=str(Path(folder) / TOKENS), prefix="checkpoint.")
            self.tokeniser = header.tokeniser
            self.config = header.to_dict()
            self.digest = str(text["run"]["checkpoint_sha256"])
            self.known = tuple(filter(None, text["run"]["known"].split(",")))
            self.decoding = dict(self.config["model"]["init_args"]["decoding"])
            self._energy_above = float(text["run"]["energy_above"])  # GeV
            digests = {name: str(text["sha256"][GRAPHS[name]]) for name in POINTING_GRAPHS}
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # it would keep one for each number of hits, tracks and particles ever seen
        self._sessions: dict[str, Any] = {}
        for name in POINTING_GRAPHS:
            content = read_checked(Path(folder) / GRAPHS[name], digests[name], stated_in=TOKENS)
            with self._running(name):
                self._sessions[name] = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = {name: [one.name for one in run.get_inputs()] for name, run in self._sessions.items()}
        self._outputs = {name: [one.name for one in run.get_outputs()] for name, run in self._sessions.items()}
        unknown = [name for name in self.known if name not in self.inputs]
        if unknown or not 0.0 <= self._energy_above < np.inf:
            what = (
                f"inputs {unknown}, which the encoder lacks" if unknown else f"energy_above {self._energy_above:g} GeV"
            )
            raise InputError(f"not of these graphs: {what}", file=Path(folder) / TOKENS, field="run")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the arrays that the encoder reads."""
        return tuple(self._inputs["encoder"])

    def has_particles(self, source: Mapping[str, npt.NDArray[Any]]) -> bool:
        """Whether there is anything to reconstruct: a track, or a hit that counts. Else no graph must be run."""
        return len(source.get("track_momentum", ())) > 0 or bool((source["hit_energy"] > self._energy_above).any())

    def reconstruct(
        self, source: Mapping[str, npt.NDArray[Any]], *, max_particles: int | None = None
    ) -> ExportedParticles:
        """Particles of an event with hits or tracks; `source` has the arrays `inputs`.

        There are at most `max_particles`; default: as many as the model's thresholds allow for an event of this size.
        """
        values = self.encode(source)
        rows, truncated = self.decode(values, max_particles=max_particles)
        return ExportedParticles(self.refine(values, rows) if len(rows["seed"]) else None, truncated)

    def encode(self, source: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """Outputs of the encoder by name."""
        return self._run("encoder", source)

    def decode(
        self, values: Mapping[str, npt.NDArray[Any]], *, max_particles: int | None = None
    ) -> tuple[Arrays, bool]:
        """Rows of the decoded particles [T, ...] by name, and whether there would be more."""
        if max_particles is not None:
            values = {**values, "limit": np.array([max_particles])}
        rows = self._run("decoder", values)
        return rows, bool(rows.pop("truncated")[0])

    def refine(self, values: Mapping[str, npt.NDArray[Any]], rows: Arrays) -> Arrays:
        """The physical particles, by the names of the outputs of the refinement's graph."""
        return self._run("refinement", {**values, **rows})

    def _run(self, graph: str, values: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        names = self._outputs[graph]
        with self._running(graph):
            inputs = {name: values[name] for name in self._inputs[graph]}
            return dict(zip(names, self._sessions[graph].run(names, inputs), strict=True))

    def _running(self, graph: str) -> AbstractContextManager[None]:
        """Name the file where the runtime, which has exceptions of its own, cannot load or run a graph."""
        return reading("not a graph that onnxruntime runs", file=Path(self.path) / GRAPHS[graph])


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / TOKENS
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("no such file: not a folder that `pflow export` wrote", file=str(path)) from error
    except ValueError as error:
        raise InputError(f"not JSON: {error}", file=str(path)) from error
    number = text.get("format") if isinstance(text, dict) else None
    if number != FORMAT_OF_POINTING:
        what = f"layout {number}, of another version of pflow: export the model again"
        if number == FORMAT_OF_TRANSLATION:
            what = "that of a translation network"
        raise InputError(
            f"expected layout {FORMAT_OF_POINTING}, of a pointing network; found {what}", file=str(path), field="format"
        )
    return dict(text)
