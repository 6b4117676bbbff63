"""Graphs of a trained model, their conversion to ONNX files, and what ONNX Runtime computes beside torch.

Operators are added for functions of torch that its exporter lacks, or that CPU runtimes have in single precision only.
Attention in blocks of tokens (`pflow.model.pointing.encoder`) becomes ONNX's operator Scan: the exporter has no
translation to it, and turns a loop of a script into Loop, whose body has three times as many operators. So torch traces
a placeholder, and Scan takes its place in the ONNX model.

Letters: S tokens, R rows of a block, B blocks, H heads, K width of a key, D width of a value.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx_ir.passes import common as passes
from onnxscript import ir, opset18, optimizer, rewriter
from onnxscript.rewriter.rules import common as rules
from torch import Tensor, nn

from pflow.errors import PflowError
from pflow.model.pointing.encoder import BLOCK_TOKENS, MAX_WIDE, Directions, attend_nearby, slices_nearby

op: Any = opset18  # typed for scripts, not for exported values


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The translations by the operator of torch that they replace."""
    aten = torch.ops.aten
    return {
        aten.hypot.default: _hypot,
        aten.cos.default: lambda x: op.Sin(op.Add(x, _constant(math.pi / 2, x))),
        aten.atan2.default: _atan2,
        aten.asinh.default: _asinh,
        aten.gelu.default: _gelu,
        aten.log10.default: lambda x: op.Div(op.Log(x), _constant(math.log(10.0), x)),
        aten.pow.Tensor_Scalar: _pow,
        aten.clamp.default: _clamp,
        aten.clamp.Tensor: _clamp,
        aten.index_select.default: _index_select,
        aten.scalar_tensor.default: _scalar_tensor,
    }


def _constant(value: float, like: Any) -> Any:
    return op.Constant(value=ir.tensor(np.array(value, dtype=like.dtype.numpy())))


def _scalar_tensor(value: Any, dtype: int = ir.DataType.FLOAT, **_: Any) -> Any:
    """Numbers in their own precision: torch's exporter rounds all to single precision."""
    if isinstance(value, ir.Value):
        return op.Cast(value, to=dtype)
    return op.Constant(value=ir.tensor(np.array(value, dtype=ir.DataType(dtype).numpy())))


def _hypot(x: Any, y: Any) -> Any:
    return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))


def _atan2(y: Any, x: Any) -> Any:
    """2 atan(y / (r + x)) for x >= 0, 2 atan((r - x) / y) else; both arguments are in [-1, 1]."""
    zero, unit, two = (_constant(value, y) for value in (0.0, 1.0, 2.0))
    ahead = op.GreaterOrEqual(x, zero)
    # Of |x|, as r + x would cancel for x < 0.
    steep = op.Add(_hypot(x, y), op.Abs(x))
    null = op.Equal(steep, zero)
    # At the origin 0 / 0 would be NaN, and torch's angle is 0.
    half = op.Div(y, op.Where(null, unit, steep))
    if y.dtype != ir.DataType.DOUBLE:
        angle = op.Mul(op.Atan(half), two)
    else:
        # CPU runtimes have Atan in single precision only.
        rough = op.Cast(op.Atan(op.Cast(half, to=ir.DataType.FLOAT)), to=ir.DataType.DOUBLE)
        sine, cosine = op.Sin(rough), op.Sin(op.Add(rough, _constant(math.pi / 2, y)))
        # Newton's step for tan(a) = half, whose error is of the third order.
        off = op.Div(op.Sub(op.Mul(half, cosine), sine), op.Add(cosine, op.Mul(half, sine)))
        angle = op.Mul(op.Add(rough, off), two)
    behind = op.Where(op.Less(y, zero), _constant(-math.pi, y), _constant(math.pi, y))
    return op.Where(ahead, angle, op.Sub(behind, angle))


def _asinh(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Asinh(x)
    size = op.Abs(x)
    # Of |x|, as the sum would cancel for x < 0.
    log = op.Log(op.Add(size, op.Sqrt(op.Add(op.Mul(size, size), _constant(1.0, x)))))
    return op.Mul(op.Sign(x), log)


def _gelu(x: Any, approximate: str = "none") -> Any:
    """GELU in the order of operators that ONNX Runtime fuses."""
    error = op.Erf(op.Div(x, _constant(math.sqrt(2.0), x)))
    return op.Mul(op.Mul(x, op.Add(error, _constant(1.0, x))), _constant(0.5, x))


def _pow(x: Any, exponent: float) -> Any:
    return op.Mul(x, x) if exponent == 2 else op.Pow(x, _constant(exponent, x))


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    """Clip with numbers or scalar tensors as bounds; torch's exporter writes Max and Min, which are slower."""
    bounds = [
        bound if bound is None else op.CastLike(bound, x) if isinstance(bound, ir.Value) else _constant(bound, x)
        for bound in (low, high)
    ]
    return op.Clip(x, *bounds)


def _index_select(x: Any, dim: int, index: Any) -> Any:
    """GatherElements for 1-d tensors: Gather copies element by element, which takes ten times as long."""
    return op.GatherElements(x, index) if len(x.shape) == 1 else op.Gather(x, index, axis=dim)


DOMAIN, PLACEHOLDER = "pflow", "AttentionInBlocks"

MAX_SINGLE = 1000.0
"""Largest strength of a head whose preference for directions is computed in single precision, which rounds its logits
to 6e-8 of the strength."""


def attend_by_scan(
    query: Tensor, key: Tensor, value: Tensor, directions: Directions, strength: Tensor, *, strengths: list[float]
) -> Tensor:
    """Attend as `pflow.model.pointing.encoder.attend_nearby`; during an export insert the placeholder.

    `strengths` are the values of `strength`, which cannot be read from a traced tensor. The placeholder gives float
    [B, R, H D]: all heads of a block are computed together, as much as caches hold. Its inputs are ``queries``, float
    [B, R, sum of K]; ``rows``, double [B, R, 4], and ``columns``, double [S, 4], whose products are n_i . n_j - 1; of
    each head that sees one slice of the tokens, its first token and the one after its last, int64 [B, 1]; and keys and
    values of each head, float [S, K] and [S, D]. Its attributes are ``widths``, K of each head; ``sliced``, 1 for a
    head that sees a slice; ``strengths`` (0: directions are part of the head's queries and keys).
    """
    if not torch.compiler.is_compiling():
        return attend_nearby(query, key, value, directions, strength)
    queries, keys, values = list(query.unbind(1)), list(key.unbind(1)), list(value.unbind(1))
    starts, stops = slices_nearby(query, key, directions, strength)[0].unbind()  # [H, B] each
    slices, widths = [], []
    sliced = [int(of_head > MAX_WIDE) for of_head in strengths]
    precise = [of_head if of_head > MAX_SINGLE else 0.0 for of_head in strengths]
    unit = directions.unit.float()
    for head, of_head in enumerate(strengths):
        if sliced[head]:
            slices += [starts[head][:, None], stops[head][:, None]]
        if not precise[head]:
            # One product then gives logits and preference; the -1, the same for all keys, drops out of the softmax.
            queries[head] = torch.cat([queries[head], of_head * unit], dim=1)
            keys[head] = torch.cat([keys[head], unit], dim=1)
        widths.append(int(queries[head].shape[1]))
    length = torch.ones_like(directions.angle, dtype=torch.int64).sum()
    first = torch.arange(0, unit.shape[0], BLOCK_TOKENS)[:, None]
    row_in_block = torch.minimum(first + torch.arange(BLOCK_TOKENS), length - 1).view(-1)  # the last one is repeated
    # The 1 and -1 subtract in the product, in double precision: n_i . n_j of near tokens is too close to 1 for float.
    ones = torch.ones_like(directions.unit[:, :1])
    rows = torch.cat([directions.unit, ones], dim=1).index_select(0, row_in_block).view(-1, BLOCK_TOKENS, 4)
    columns = torch.cat([directions.unit, -ones], dim=1)
    in_blocks = torch.cat(queries, dim=1).index_select(0, row_in_block).view(-1, BLOCK_TOKENS, sum(widths))
    tensors = in_blocks, rows, columns, *slices, *keys, *values
    width = sum(int(part.shape[1]) for part in values)
    attended = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{PLACEHOLDER}",
        tensors,
        {"widths": widths, "sliced": sliced, "strengths": precise},
        dtype=query.dtype,
        shape=(in_blocks.shape[0], BLOCK_TOKENS, width),
        version=1,
    )
    return attended.view(-1, width)[: unit.shape[0]]


def expand_attention(model: Any) -> None:
    """Put Scan in the place of each placeholder of an ONNX model."""
    for i, node in enumerate(model.graph.node):
        if node.domain == DOMAIN:
            node.CopyFrom(_scan(node, f"attention_{i}"))
    # No runtime knows the placeholders' domain, and no operator is of it any more.
    standard = [opset for opset in model.opset_import if opset.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(standard)


def _scan(placeholder: Any, name: str) -> Any:
    """The node Scan of a placeholder."""
    node, kind = onnx.helper.make_node, onnx.TensorProto
    sizes, sliced, strengths = (
        onnx.helper.get_node_attr_value(placeholder, which) for which in ("widths", "sliced", "strengths")
    )
    queries, rows, columns, *rest = placeholder.input
    n_heads, n_bounds = len(sizes), 2 * sum(sliced)
    bounds, keys, values = rest[:n_bounds], rest[n_bounds:-n_heads], rest[-n_heads:]
    axis = onnx.helper.make_tensor(f"{name}_axis", kind.INT64, [1], [0])
    lengths = onnx.helper.make_tensor(f"{name}_sizes", kind.INT64, [n_heads], sizes)
    body = [node("Split", ["queries", lengths.name], [f"query_{head}" for head in range(n_heads)], axis=1)]
    slices = [f"slice_{i}" for i in range(n_bounds)]
    ends = iter(slices)
    for head, (strength, key, value) in enumerate(zip(strengths, keys, values, strict=True)):
        seen = {"key": key, "value": value} | ({"columns": columns} if strength else {})
        if sliced[head]:
            slice_of_head = next(ends), next(ends), axis.name
            for part, whole in seen.items():
                body.append(node("Slice", [whole, *slice_of_head], [f"{part}_{head}"]))
                seen[part] = f"{part}_{head}"
        near, factor = [], {}
        if strength:
            body.append(node("Gemm", ["rows", seen["columns"]], [f"precise_{head}"], transB=1))
            body.append(node("Cast", [f"precise_{head}"], [f"near_{head}"], to=kind.FLOAT))
            # Gemm scales and adds the preference for directions: no operators for it alone.
            near, factor = [f"near_{head}"], {"beta": strength}
        body.append(node("Gemm", [f"query_{head}", seen["key"], *near], [f"logits_{head}"], transB=1, **factor))
        body.append(node("Softmax", [f"logits_{head}"], [f"weight_{head}"], axis=1))
        body.append(node("MatMul", [f"weight_{head}", seen["value"]], [f"attended_{head}"]))
    body.append(node("Concat", [f"attended_{head}" for head in range(n_heads)], ["attended"], axis=1))
    info = onnx.helper.make_tensor_value_info
    scanned = [
        info("queries", kind.FLOAT, ["rows", sum(sizes)]),
        info("rows", kind.DOUBLE, ["rows", 4]),
        *(info(bound, kind.INT64, [1]) for bound in slices),
    ]
    result = info("attended", kind.FLOAT, None)
    graph = onnx.helper.make_graph(body, name, scanned, [result], initializer=[axis, lengths])
    inputs = [queries, rows, *bounds]
    return node("Scan", inputs, [placeholder.output[0]], body=graph, num_scan_inputs=len(inputs))


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


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A module to convert (in evaluation mode, on the CPU), which goes from a dictionary of tensors to another one."""

    module: nn.Module
    example: dict[str, Tensor]
    inputs: tuple[TensorSpec, ...]
    """In the order of the example, as the outputs in that of the module's."""
    outputs: tuple[TensorSpec, ...]

    def run(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute the outputs in torch from the inputs among `values`."""
        return self.module({name: values[name] for name in self.example})  # type: ignore[no-any-return]


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
        # One step more than the limit, as the last one's row is dropped.
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
    enabled = gc.isenabled()
    gc.disable()  # it would look through a trace's many objects again and again: 8% of the time
    try:
        model = _converted(graph) if isinstance(graph, Graph) else _in_loop(_converted(graph.step), graph)
    finally:
        if enabled:
            gc.enable()
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return [value.name for value in model.graph.input]


@torch.no_grad()
def check_graphs(graphs: Mapping[str, Graph | Loop], files: Mapping[str, Path]) -> None:
    """Run each graph in ONNX Runtime and in torch, on its example; a PflowError names the output that differs."""
    values: dict[str, Tensor] = {}
    for name, graph in graphs.items():
        if isinstance(graph, Loop):
            values["limit"] = values["limit"].clamp(max=CHECKED_STEPS)
        else:
            values |= graph.example
        expected = graph.run(values)
        session = onnxruntime.InferenceSession(files[name].read_bytes(), providers=["CPUExecutionProvider"])
        # By the session's own inputs: those that a graph does not use are not in the file.
        computed = session.run(list(expected), {node.name: values[node.name].numpy() for node in session.get_inputs()})
        for (output, in_torch), in_runtime in zip(expected.items(), computed, strict=True):
            largest = 0.0  # integers and booleans must be equal
            if in_torch.is_floating_point():
                largest = np.abs(in_torch[in_torch.isfinite()].numpy()).max(initial=LARGEST_DIFFERENCE)
            try:
                np.testing.assert_allclose(in_runtime, in_torch.numpy(), rtol=0.0, atol=LARGEST_DIFFERENCE * largest)
            except AssertionError as error:
                what, text = f"{files[name].name}: output '{output}'", " ".join(str(error).split())
                raise PflowError(f"{what} differs in ONNX Runtime from torch: {text}") from error
        # The next graph reads torch's values, so that it is not blamed for the rounding of this one.
        values |= expected


def _converted(graph: Graph) -> Any:
    """The ONNX model of a graph."""
    graph.module.eval()
    dynamic = {
        spec.name: {i: torch.export.Dim.DYNAMIC for i, size in enumerate(spec.shape) if isinstance(size, str)}
        for spec in graph.inputs
    }
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # in all threads: the exporter remarks on packages that are not installed
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning):  # the exporter's own use of torch
                warnings.simplefilter("ignore", category)
            program = torch.export.export(graph.module, (graph.example,), dynamic_shapes=(dynamic,), strict=False)
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
    # The exporter's notes name files of this machine.
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
    # Loop wants a scalar as its condition, and the step gives bool [1]. That is carried along, too, as its last value
    # tells whether the step or the limit ended the loop.
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
    # One step more than the limit, as the last one's row is sliced off below.
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
