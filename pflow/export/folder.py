"""Export of a trained model to a folder of ONNX files."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pflow.checkpoint.load import Model
from pflow.checkpoint.onnx_folder import FILES, FORMAT_OF_POINTING, GRAPHS, TOKENS
from pflow.errors import ConfigError
from pflow.export import description as translation
from pflow.export.check import check_graphs
from pflow.export.convert import OPSET, require_onnx, to_onnx
from pflow.export.graphs import Graph, graphs_of
from pflow.export.loop import Loop
from pflow.export.pointing import description as pointing
from pflow.export.pointing.graphs import pointing_graphs
from pflow.io.atomic import check_folder, replacing_folder
from pflow.model.api import Reconstructor
from pflow.model.pointing import PointingReconstructor

__all__ = ["export_model"]


def export_model(model: Model, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write a model as graphs and ``tokens.json``: ``encoder.onnx`` with ``decoder_step.onnx``, or, if it points, with
    ``decoder.onnx`` and ``refinement.onnx``.

    The folder appears only when it is complete.

    Parameters
    ----------
    model
        From `pflow.load_model`; not changed.
    folder
        Made if it does not exist; else it must be empty, or with `force` hold nothing but an earlier export.
    force
        Replace an earlier export.

    Returns
    -------
    tuple of Path
        The files.

    Raises
    ------
    ConfigError
        The folder cannot be made there, the package onnx is not installed, or the model has a part that cannot be
        exported (such as merging of hits for a translation network); names it.
    """
    from pflow.version import VERSION

    folder = check_folder(folder, replace=FILES, force=force)
    require_onnx()
    graphs, description, metadata = _export(model.reconstructor, model, VERSION)
    with replacing_folder(folder, replace=FILES, force=force) as partial:
        for name, graph in graphs.items():
            to_onnx(graph, partial / GRAPHS[name], metadata={**metadata, "graph": name})
        check_graphs(graphs, {name: partial / GRAPHS[name] for name in graphs})
        digests = {GRAPHS[name]: hashlib.sha256((partial / GRAPHS[name]).read_bytes()).hexdigest() for name in graphs}
        description["sha256"] = digests
        text = json.dumps(description, indent=2, ensure_ascii=False, allow_nan=False)
        (partial / TOKENS).write_text(text + "\n", encoding="utf-8")
    return tuple(folder / name for name in (*(GRAPHS[graph] for graph in graphs), TOKENS))


Export = tuple[Mapping[str, Graph | Loop], dict[str, Any], dict[str, str]]
"""Graphs by name, content of ``tokens.json``, and metadata of all files."""


@functools.singledispatch
def _export(reconstructor: Reconstructor, model: Model, version: str) -> Export:
    """Of a translation network; an architecture with graphs of its own registers another function."""
    if model.tokeniser.config.merge is not None:
        raise ConfigError(
            f"{model.path}: the model reads merged hits, and the merging is not part of the exported files"
        )
    encoder, step, special = graphs_of(reconstructor)
    description = translation.describe(
        model, encoder=encoder, step=step, special=special, files=GRAPHS, opset=OPSET, version=version
    )
    return {"encoder": encoder, "step": step}, description, _origin(model, version)


@_export.register
def _pointing(reconstructor: PointingReconstructor, model: Model, version: str) -> Export:
    graphs = pointing_graphs(model, reconstructor)
    inputs = tuple(spec.name for spec in graphs["encoder"].inputs)
    metadata = pointing.metadata(model, inputs, version=version)
    tensors = {
        name: {"file": GRAPHS[name], "opset": OPSET, **translation.tensors(graph)} for name, graph in graphs.items()
    }
    description = {
        "format": FORMAT_OF_POINTING,
        "run": metadata,
        **pointing.describe(model, version=version),
        **tensors,
    }
    return graphs, description, metadata


def _origin(model: Model, version: str) -> dict[str, str]:
    return {"pflow_version": version, "checkpoint_sha256": model.digest}
