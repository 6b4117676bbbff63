"""Graphs of a trained model, their conversion to ONNX files, and what ONNX Runtime computes beside torch."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx_ir.passes import common as passes
from onnxscript import ir, optimizer, rewriter
from onnxscript.rewriter.rules import common as rules
from torch import Tensor, nn

from pflow.errors import ConfigError
from pflow.export.attention_scan import expand_attention
from pflow.export.operators import translations

OPSET = 18
"""Version of ONNX's operators: the oldest that has the smallest of scattered values."""

LARGEST_DIFFERENCE = 1e-3
"""Largest difference of a number, relative to the largest of its output: fifty times what the shipped models show."""

CHECKED_STEPS = 8
"""Most steps of a loop that are compared."""

REWRITE_RULES = (
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


LAST, NEXT, ROW, INITIAL, BEFORE, STOP = "last_", "next_", "row_", "initial_", "before_", "stop"
"""Beginnings of names, and the name of the output that ends the loop."""


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Name, type and shape of an input or output of a graph."""

    name: str
    dtype: str
    """``float32``, ``int64`` or ``bool``."""
    shape: tuple[int | str, ...]
    """Sizes; a name stands for an axis of any length, the same for all tensors with that name."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """A module to convert (in evaluation mode, on the CPU), example inputs, and its input and output tensors."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute the outputs in torch from the inputs among `values`."""
        computed = self.module(*(values[spec.name] for spec in self.inputs))
        return dict(zip((spec.name for spec in self.outputs), computed, strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A graph that repeats a step until it says stop, at most ``limit`` times; the last step's row is dropped."""

    step: Graph
    """Its outputs are ``stop`` (bool [1]), for each input ``last_NAME`` the value ``next_NAME`` that the next step
    reads, and rows ``row_NAME`` [1, ...]. Its other inputs are the same for all steps."""
    axis: str
    """Name of the axis that counts rows."""
    before: str = ""
    """Name of the axis of the inputs ``before_NAME``, rows that precede the steps' rows; empty: no such inputs."""

    @property
    def rows(self) -> tuple[TensorSpec, ...]:
        """The rows of one step."""
        return tuple(spec for spec in self.step.outputs if spec.name.startswith(ROW))

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The step's inputs, with ``last_NAME`` called ``initial_NAME``, and ``limit``, int64 [1]."""
        step = (TensorSpec(spec.name.replace(LAST, INITIAL, 1), spec.dtype, spec.shape) for spec in self.step.inputs)
        before = (
            TensorSpec(spec.name.replace(ROW, BEFORE, 1), spec.dtype, (self.before, *spec.shape[1:]))
            for spec in self.rows
            if self.before
        )
        return (*step, *before, TensorSpec("limit", "int64", (1,)))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """``truncated``, bool [1]: whether `limit` ended the loop; and the rows of all steps, [n, ...]."""
        rows = (TensorSpec(spec.name.removeprefix(ROW), spec.dtype, (self.axis, *spec.shape[1:])) for spec in self.rows)
        return (TensorSpec("truncated", "bool", (1,)), *rows)

    def run(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute the outputs in torch from the inputs among `values`."""
        state = {**values, **{name.replace(INITIAL, LAST, 1): value for name, value in values.items()}}
        steps: list[dict[str, Tensor]] = []
        while not (steps and steps[-1][STOP]) and len(steps) <= int(values["limit"]):
            steps.append(self.step.run(state))
            state |= {name.replace(NEXT, LAST, 1): value for name, value in steps[-1].items()}
        rows = {}
        for name in (spec.name for spec in self.rows):
            before = [values[name.replace(ROW, BEFORE, 1)]] if self.before else []
            rows[name.removeprefix(ROW)] = torch.cat([*before, *(step[name] for step in steps)])[:-1]
        return {"truncated": ~steps[-1][STOP], **rows}


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
            values["limit"] = values["limit"].clamp(max=CHECKED_STEPS)
        else:
            values |= dict(zip((spec.name for spec in graph.inputs), graph.example, strict=True))
        expected = graph.run(values)
        session = onnxruntime.InferenceSession(files[name].read_bytes(), providers=["CPUExecutionProvider"])
        computed = session.run(list(expected), {node.name: values[node.name].numpy() for node in session.get_inputs()})
        for (output, in_torch), in_runtime in zip(expected.items(), computed, strict=True):
            largest = 0.0  # integers and booleans must be equal
            if in_torch.is_floating_point():
                largest = np.abs(in_torch[in_torch.isfinite()].numpy()).max(initial=LARGEST_DIFFERENCE)
            try:
                np.testing.assert_allclose(in_runtime, in_torch.numpy(), rtol=0.0, atol=LARGEST_DIFFERENCE * largest)
            except AssertionError as error:
                what, text = f"{files[name].name}: output '{output}'", " ".join(str(error).split())
                raise ConfigError(f"{what} differs in ONNX Runtime from torch: {text}") from error
        values |= expected


def _converted(graph: Graph) -> Any:
    """The ONNX model of a graph."""
    graph.module.eval()
    axes = ((i for i, size in enumerate(spec.shape) if isinstance(size, str)) for spec in graph.inputs)
    dynamic = tuple(dict.fromkeys(of_input, torch.export.Dim.DYNAMIC) for of_input in axes)
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # in all threads: the exporter remarks on packages that are not installed
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning):  # the exporter's own use of torch
                warnings.simplefilter("ignore", category)
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
    finally:
        logging.disable(disabled)
    expand_attention(model)
    for value in model.graph.value_info:
        value.ClearField("metadata_props")
    used = {value.name for value in model.graph.input}
    inputs = [spec for spec in graph.inputs if spec.name in used]
    for values, specs in ((model.graph.input, inputs), (model.graph.output, graph.outputs)):
        del values[:]
        values.extend(_info(specs))
    return model


def _simplified(model: ir.Model) -> Any:
    """The model without operators that are constant, repeated or without effect, inputs that nothing reads, and the
    exporter's notes on each operator: lines of code, and files of this machine."""
    for _ in range(2):
        optimizer.fold_constants(model)
        passes.ShapeInferencePass()(model)
        _count_axes_from_front(model)
        rewriter.rewrite(model, REWRITE_RULES)
        optimizer.remove_unused_nodes(model)
    for cleaning in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedOpsetsPass(),
        passes.NameFixPass(),
        passes.ClearMetadataAndDocStringPass(),
    ):
        cleaning(model)
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.uses() or value.is_graph_output()]
    return ir.to_proto(model)


def _info(specs: Iterable[TensorSpec]) -> list[Any]:
    make, kind = onnx.helper.make_tensor_value_info, onnx.helper.np_dtype_to_tensor_dtype
    return [make(spec.name, kind(np.dtype(spec.dtype)), spec.shape) for spec in specs]


def _in_loop(model: Any, loop: Loop) -> Any:
    """The operator Loop around a step that was traced: one call of ONNX Runtime for all particles of an event."""
    node, info, step = onnx.helper.make_node, onnx.helper.make_tensor_value_info, model.graph
    int64, boolean = onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    carried = [value for value in step.input if value.name.startswith(LAST)]
    names = [value.name.removeprefix(LAST) for value in carried]
    outputs, rows = {value.name: value for value in step.output}, [row.name for row in loop.rows]
    body = onnx.helper.make_graph(
        [*step.node, node("Not", [STOP], ["goes_on"]), node("Squeeze", ["goes_on"], ["go_on"])],
        "step",
        [info("n_before", int64, []), info("go", boolean, []), *carried, info("stopped", boolean, [1])],
        [info("go_on", boolean, []), *(outputs[name] for name in (*(NEXT + name for name in names), STOP, *rows))],
        initializer=step.initializer,
    )
    tensor = onnx.helper.make_tensor
    constants = [tensor(name, int64, [1], [value]) for name, value in (("zero", 0), ("one", 1), ("last", -1))]
    constants.append(tensor("not_stopped", boolean, [1], [False]))
    given = ["trips", "", *(INITIAL + name for name in names), "not_stopped"]
    final = [*(f"final_{name}" for name in names), "ended", *(f"all_{row}" for row in rows)]
    nodes = [
        node("Add", ["limit", "one"], ["trips"]),
        node("Loop", given, final, body=body),
        node("Not", ["ended"], ["truncated"]),
    ]
    for row in rows:  # [n + 1, 1, ...]
        name = row.removeprefix(ROW)
        decoded = f"decoded_{name}" if loop.before else name
        nodes.append(node("Slice", [f"all_{row}", "zero", "last", "zero"], [f"kept_{row}"]))
        nodes.append(node("Squeeze", [f"kept_{row}", "one"], [decoded]))
        if loop.before:
            nodes.append(node("Concat", [BEFORE + name, decoded], [name], axis=0))
    graph = onnx.helper.make_graph(nodes, "decoder", _info(loop.inputs), _info(loop.outputs), initializer=constants)
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


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
