"""Conversion of a graph to an ONNX file."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch

from pflow.export.attention_scan import expand_attention
from pflow.export.graphs import Graph
from pflow.export.loop import Loop, in_loop
from pflow.export.operators import translations

__all__ = ["OPSET", "to_onnx"]

OPSET = 18
"""Version of ONNX's operators: the oldest that has the smallest of scattered values."""

_EXPECTED = (
    (r"Converting a tensor to a Python \w+ might cause the trace to be incorrect", Warning),
    (r"torch\.\w+ results are registered as constants in the trace", Warning),
    ("Using len to get tensor shape might cause the trace to be incorrect", Warning),
    ("Exporting aten::index operator of advanced indexing", UserWarning),
    ("You are using the legacy TorchScript-based ONNX export", DeprecationWarning),
    ("The feature will be removed", DeprecationWarning),  # torch's exporter uses its own old interface
    ("Constant folding - Only steps=1 can be constant folded", UserWarning),
)


def to_onnx(graph: Graph | Loop, path: Path, *, metadata: dict[str, str]) -> None:
    """Convert a graph and write it to a file, with the texts `metadata`, which a runtime shows.

    Uses torch's older exporter, which traces: the newer one (``dynamo=True``) cannot convert these graphs in torch 2.5
    and takes ten times as long in 2.13. Tracing turns sizes that Python reads into constants, of which torch warns.
    Here those are numbers of features and heads; tests run the files with other lengths than the example's.
    """
    model = _traced(graph, path) if isinstance(graph, Graph) else in_loop(_traced(graph.step, path), graph, onnx)
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _traced(graph: Graph, path: Path) -> Any:
    """The ONNX model of a graph; `path` is written on the way."""
    specs = (*graph.inputs, *graph.outputs)
    graph.module.eval()  # or the exporter leaves all in it in training mode
    with warnings.catch_warnings(), translations(OPSET):
        for message, category in _EXPECTED:
            warnings.filterwarnings("ignore", message, category)
        torch.onnx.export(
            graph.module,
            graph.example,
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=[spec.name for spec in graph.inputs],
            output_names=[spec.name for spec in graph.outputs],
            dynamic_axes={spec.name: spec.axes for spec in specs},
        )
    model = onnx.load(str(path))
    expand_attention(model, onnx)
    _count_axes_from_front(model)
    for value, spec in zip(model.graph.output, graph.outputs, strict=True):  # tracing loses the fixed sizes
        element = value.type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(spec.name, element, spec.shape))
    return model


def _count_axes_from_front(model: Any) -> None:
    """Replace negative axes of sums and the like: onnxruntime 1.31 keeps them where the tensor is empty."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info, *graph.output)}
    constants = {one.name: one for one in model.graph.initializer}
    constants |= {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
    changed = []
    for node in list(model.graph.node):
        if node.op_type.startswith("Reduce") and len(node.input) == 2 and node.input[1] in constants:
            of = types.get(node.input[0])
            axes = onnx.numpy_helper.to_array(constants[node.input[1]])
            if (axes < 0).any() and of is not None and of.HasField("shape"):
                front = onnx.numpy_helper.from_array(axes % len(of.shape.dim), f"{node.output[0]}_axes")
                node.input[1] = front.name
                changed.append(onnx.helper.make_node("Constant", [], [front.name], value=front))
        changed.append(node)
    used = set(_names_read(changed)) | {value.name for value in model.graph.output}
    del model.graph.node[:]
    model.graph.node.extend(node for node in changed if node.op_type != "Constant" or node.output[0] in used)


def _names_read(nodes: Iterable[Any]) -> Iterator[str]:
    """Names of the tensors that nodes and the graphs in them read or hand out."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            yield from (value.name for value in attribute.g.output)
            yield from _names_read(attribute.g.node)
