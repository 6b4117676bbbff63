"""Conversion of a graph to an ONNX file, and what ONNX Runtime computes of it beside what torch computes."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnx_ir.passes import common as passes
from onnxscript import ir, optimizer, rewriter
from onnxscript.rewriter.rules import common as rules
from torch import Tensor

from pflow.errors import ConfigError
from pflow.export.attention_scan import expand_attention
from pflow.export.graphs import BEFORE, INITIAL, LAST, NEXT, ROW, STOP, Graph, Loop, TensorSpec
from pflow.export.operators import translations

OPSET = 18
"""Version of ONNX's operators: the oldest that has the smallest of scattered values."""

TOLERANCE = 1e-3
"""Largest difference of a number, relative to the largest of its output: fifty times what the shipped models show."""

MAX_STEPS = 8
"""Most steps of a loop that are compared."""


RULES = (
    rules.no_op_cast_rule,
    rules.cast_cast_rule,
    rules.no_op_transpose_rule,
    rules.transpose_transpose_rule,
    rules.unsqueeze_unsqueeze_rule,
    rules.reshape_reshape_rule,
    rules.one_reshape_matmul_reshape_rule,
    rules.two_reshapes_matmul_reshape_rule,
    rules.matmul_add_to_gemm_rule,
    rules.transpose_a_matmul_add_to_gemm_rule,
    rules.transpose_b_matmul_add_to_gemm_rule,
    rules.transpose_ab_matmul_add_to_gemm_rule,
)
"""onnxscript's rules that keep all values. Others drop summands below 1e-8, for example inside a logarithm, so the
exporter's own optimisation is off."""


def to_onnx(graph: Graph | Loop, path: Path, *, metadata: dict[str, str]) -> list[str]:
    """Convert a graph and write it to a file, with the texts `metadata`, which a runtime shows.

    Returns the names of the inputs that the file has: inputs that the module does not use are left out.
    """
    model = _converted(graph) if isinstance(graph, Graph) else _in_loop(_converted(graph.step), graph)
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return [value.name for value in model.graph.input]


@torch.no_grad()
def check_graphs(graphs: Mapping[str, Graph | Loop], files: Mapping[str, Path]) -> None:
    """Run each graph in ONNX Runtime and in torch, on its example; a ConfigError names the output that differs."""
    values: dict[str, Tensor] = {}
    for name, graph in graphs.items():
        if isinstance(graph, Loop):
            values |= {"limit": values["limit"].clamp(max=MAX_STEPS)}
            given = {spec.name: values[spec.name] for spec in graph.inputs}
            expected = graph.run(given)
        else:
            given = dict(zip((spec.name for spec in graph.inputs), graph.example, strict=True))
            expected = dict(zip((spec.name for spec in graph.outputs), graph.module(*graph.example), strict=True))
        values |= expected
        session = onnxruntime.InferenceSession(files[name].read_bytes(), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        read = {node.name for node in session.get_inputs()}
        outputs = session.run(names, {key: value.numpy() for key, value in given.items() if key in read})
        for output, ours in zip(names, outputs, strict=True):
            _compare(ours, expected[output].numpy(), f"{files[name].name}: output '{output}'")


def _compare(found: npt.NDArray[Any], expected: npt.NDArray[Any], what: str) -> None:
    largest = 0.0  # integers and booleans must be equal
    if expected.dtype.kind == "f":
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=TOLERANCE)
    try:
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=TOLERANCE * largest)
    except AssertionError as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{what} differs in ONNX Runtime from torch: {text}") from error


def _converted(graph: Graph) -> Any:
    """The ONNX model of a graph."""
    graph.module.eval()
    dynamic = tuple(dict.fromkeys(spec.axes, torch.export.Dim.DYNAMIC) for spec in graph.inputs)
    with _quiet():
        program = torch.export.export(graph.module, graph.example, dynamic_shapes={"arrays": dynamic}, strict=False)
        converted = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=[spec.name for spec in graph.inputs],
            output_names=[spec.name for spec in graph.outputs],
            custom_translation_table=translations(),
            optimize=False,
            verbose=False,
        )
        assert converted is not None
        model = _simplified(converted.model)
    expand_attention(model, onnx)
    _forget_sources(model)
    used = set(_names_read(model.graph.node)) | {value.name for value in model.graph.output}
    inputs = [spec for spec in graph.inputs if spec.name in used]
    for values, tensors in ((model.graph.input, inputs), (model.graph.output, graph.outputs)):
        del values[:]
        values.extend(_info(tensors))
    return model


def _simplified(model: ir.Model) -> Any:
    """The model without operators that are constant, repeated or without effect."""
    for _ in range(2):
        optimizer.fold_constants(model)
        passes.ShapeInferencePass()(model)
        _count_axes_from_front(model)
        rewriter.rewrite(model, RULES)
        optimizer.remove_unused_nodes(model)
    for cleaning in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.NameFixPass(),
    ):
        cleaning(model)
    return ir.to_proto(model)


def _info(specs: Iterable[TensorSpec]) -> list[Any]:
    make = onnx.helper
    return [
        make.make_tensor_value_info(spec.name, make.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.shape)
        for spec in specs
    ]


def _forget_sources(model: Any) -> None:
    """Remove what the exporter notes of each operator: lines of code, and files of this machine."""
    model.ClearField("metadata_props")
    for values in (model.graph.node, model.graph.value_info, model.graph.input, model.graph.output):
        for value in values:
            value.ClearField("metadata_props")
            value.ClearField("doc_string")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks, on packages that are not installed and the like, from the user's terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning):  # the exporter's own use of torch
                warnings.simplefilter("ignore", category)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _in_loop(model: Any, loop: Loop) -> Any:
    """The operator Loop around a step that was traced: one call of ONNX Runtime for all particles of an event."""
    make, step = onnx.helper, model.graph
    carried = [value for value in step.input if value.name.startswith(LAST)]
    names = [value.name.removeprefix(LAST) for value in carried]
    outputs = {value.name: value for value in step.output}
    rows = [name for name in outputs if name.startswith(ROW)]
    int64, boolean = onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    scalars = [make.make_tensor_value_info(name, kind, []) for name, kind in (("n_before", int64), ("go", boolean))]
    stopped = make.make_tensor_value_info("stopped", boolean, [1])
    body = make.make_graph(
        [*step.node, make.make_node("Not", [STOP], ["goes_on"]), make.make_node("Squeeze", ["goes_on"], ["go_on"])],
        "step",
        [*scalars, *carried, stopped],
        [
            make.make_tensor_value_info("go_on", boolean, []),
            *(outputs[NEXT + name] for name in names),
            outputs[STOP],
            *(outputs[row] for row in rows),
        ],
        initializer=step.initializer,
    )
    constants = [make.make_tensor(name, int64, [1], [value]) for name, value in (("zero", 0), ("one", 1), ("last", -1))]
    constants.append(make.make_tensor("not_stopped", boolean, [1], [False]))
    made = [make.make_node("Add", ["limit", "one"], ["trips"])]
    given = ["trips", "", *(INITIAL + name for name in names), "not_stopped"]
    final = [*(f"final_{name}" for name in names), "ended", *(f"all_{row}" for row in rows)]
    made += [make.make_node("Loop", given, final, body=body), make.make_node("Not", ["ended"], ["truncated"])]
    for row in rows:  # [n + 1, 1, ...]
        made.append(make.make_node("Slice", [f"all_{row}", "zero", "last", "zero"], [f"kept_{row}"]))
        name = row.removeprefix(ROW)
        made.append(make.make_node("Squeeze", [f"kept_{row}", "one"], [f"decoded_{name}" if loop.before else name]))
        if loop.before:
            made.append(make.make_node("Concat", [BEFORE + name, f"decoded_{name}"], [name], axis=0))

    graph = make.make_graph(made, "decoder", _info(loop.inputs), _info(loop.outputs), initializer=constants)
    return make.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _count_axes_from_front(model: ir.Model) -> None:
    """Replace negative axes of sums and the like: onnxruntime 1.31 keeps them where the tensor is empty."""
    node: Any
    for node in model.graph:
        axes = ir.convenience.get_const_tensor(node.inputs[1]) if len(node.inputs) == 2 else None
        if node.op_type.startswith("Reduce") and axes is not None and (axes.numpy() < 0).any():
            name = f"{node.outputs[0].name}_axes"
            front = ir.tensor(axes.numpy() % len(node.inputs[0].shape), name=name)
            node.replace_input_with(1, ir.Value(name=name, const_value=front))
            model.graph.register_initializer(node.inputs[1])


def _names_read(nodes: Iterable[Any]) -> Iterator[str]:
    """Names of the tensors that nodes and the graphs in them read or hand out."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            yield from (value.name for value in attribute.g.output)
            yield from _names_read(attribute.g.node)
