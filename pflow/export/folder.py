"""Export of a trained model to a folder of ONNX files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from pflow.checkpoint.format import EXPORT_FILES, EXPORT_FORMAT, GRAPHS, TOKENS, Header
from pflow.checkpoint.load import TrainedModel
from pflow.config import VERSION
from pflow.errors import ConfigError
from pflow.export.convert import OPSET, check_graphs, to_onnx
from pflow.export.pointing import constants, pointing_graphs
from pflow.io.atomic import check_output, replacing
from pflow.model.api import describe
from pflow.model.pointing import PointingReconstructor
from pflow.physics.detector import Detector, load_detector


def export_model(
    model: TrainedModel, folder: str | Path, *, detector: str | Path | Detector | None = None, force: bool = False
) -> tuple[Path, ...]:
    """Write a model as ``encoder.onnx``, ``decoder.onnx``, for some ``refinement.onnx``, and ``tokens.json``.

    Returns the paths. The folder appears only when it is complete; one that exists must be empty, or with `force` hold
    nothing but an earlier export. `detector`, by default the training's, is what the graphs of a model for any detector
    are for. ConfigError: there are no graphs of this architecture, the folder cannot be made there, the model is for
    another detector, or ONNX Runtime computes something else than torch.
    """
    if detector is not None:
        detector = load_detector(detector)
        if differing := model.tokeniser.other_geometry(detector):
            raise ConfigError(
                f"{model.path} was trained on detector '{model.tokeniser.detector.name}', from which '{detector.name}' "
                f"differs in {', '.join(differing)}"
            )
        model = dataclasses.replace(model, tokeniser=dataclasses.replace(model.tokeniser, detector=detector))
    folder = check_output(folder, force=force, holds=EXPORT_FILES)
    if not hasattr(torch.onnx, "ops"):
        raise ConfigError(f"graphs need torch 2.13 (tested) or near it, and {torch.__version__} is installed")
    network = model.reconstructor
    if not isinstance(network, PointingReconstructor):
        raise ConfigError(f"{model.path} is a {type(network).__name__}: only pointing networks have graphs")
    graphs = pointing_graphs(model, network)
    header = Header(version=VERSION, tokeniser=model.tokeniser, model=describe(network), calibration=model.calibration)
    metadata = {**constants(model, graphs["encoder"]), "pflow_version": VERSION, "checkpoint_sha256": model.digest}
    with replacing(folder, force=force, holds=EXPORT_FILES) as partial:
        files = {name: partial / GRAPHS[name] for name in graphs}
        description: dict[str, Any] = {
            "format": EXPORT_FORMAT,
            "run": metadata,
            "checkpoint": header.to_dict(),
        }
        for name, graph in graphs.items():
            read = to_onnx(graph, files[name], metadata={**metadata, "graph": name})
            tensors = {"inputs": [spec for spec in graph.inputs if spec.name in read], "outputs": graph.outputs}
            described = {which: [dataclasses.asdict(spec) for spec in specs] for which, specs in tensors.items()}
            description[name] = {"file": GRAPHS[name], "opset": OPSET, **described}
        check_graphs(graphs, files)
        description["sha256"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files.values()}
        text = json.dumps(description, indent=2, ensure_ascii=False, allow_nan=False)
        (partial / TOKENS).write_text(text + "\n", encoding="utf-8")
    return tuple(folder / name for name in (*(GRAPHS[graph] for graph in graphs), TOKENS))
