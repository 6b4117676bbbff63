"""Export of a trained model to a folder of ONNX files."""

from __future__ import annotations

import json
from pathlib import Path

from pflow.checkpoint.load import Model
from pflow.errors import ConfigError
from pflow.export.convert import OPSET, require_onnx, to_onnx
from pflow.export.description import describe
from pflow.export.graphs import graphs_of
from pflow.io.atomic import check_folder, replacing_folder

__all__ = ["FILES", "TOKENS", "export_model"]

FILES = {"encoder": "encoder.onnx", "step": "decoder_step.onnx"}
"""Names of the graphs' files."""

TOKENS = "tokens.json"
"""Name of the description beside them."""


def export_model(model: Model, folder: str | Path) -> tuple[Path, ...]:
    """Write a model as ``encoder.onnx``, ``decoder_step.onnx`` and ``tokens.json``.

    The folder appears only when it is complete.

    Parameters
    ----------
    model
        From `pflow.load_model`; not changed.
    folder
        Made if it does not exist; else it must be empty.

    Returns
    -------
    tuple of Path
        The three files.

    Raises
    ------
    ConfigError
        The folder cannot be made there, the package onnx is not installed, or the model has a part that cannot be
        exported (such as merging of hits); names it.
    """
    from pflow.version import VERSION

    folder = check_folder(folder)
    require_onnx()
    if model.tokeniser.recipe.merge is not None:
        raise ConfigError(
            f"{model.path}: the model reads merged hits, and the merging is not part of the exported files"
        )
    encoder, step, special = graphs_of(model.reconstructor)
    description = describe(
        model, encoder=encoder, step=step, special=special, files=FILES, opset=OPSET, version=VERSION
    )
    metadata = {"pflow_version": VERSION, "checkpoint_sha256": model.digest}
    with replacing_folder(folder) as partial:
        for name, graph in (("encoder", encoder), ("step", step)):
            to_onnx(graph, partial / FILES[name], metadata={**metadata, "graph": name})
        text = json.dumps(description, indent=2, ensure_ascii=False, allow_nan=False)
        (partial / TOKENS).write_text(text + "\n", encoding="utf-8")
    return tuple(folder / name for name in (*FILES.values(), TOKENS))
