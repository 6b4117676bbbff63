"""ONNX's operator Loop around a step that torch traced: one call of ONNX Runtime for all particles of an event."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflow.export.graphs import Graph, TensorSpec

__all__ = ["Loop", "in_loop"]

LAST, NEXT, ROW, INITIAL, STOP = "last_", "next_", "row_", "initial_", "stop"
"""Beginnings of names, and the name of the output that ends the loop."""


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A graph that repeats a step until it says stop, at most ``limit`` times; the last step's row is dropped."""

    step: Graph
    """Its outputs are ``stop`` (bool [1]), for each input ``last_NAME`` the value ``next_NAME`` that the next step
    reads, and rows ``row_NAME`` [1, ...]. Its other inputs are the same for all steps."""
    axis: str
    """Name of the axis that counts rows."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Those of the step, with ``initial_NAME`` in place of ``last_NAME``, and ``limit``, int64 [1]."""
        renamed = (
            dataclasses.replace(spec, name=INITIAL + spec.name.removeprefix(LAST))
            if spec.name.startswith(LAST)
            else spec
            for spec in self.step.inputs
        )
        return (*renamed, TensorSpec("limit", "int64", (1,)))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """``truncated``, bool [1]: whether `limit` ended the loop; and the rows of all steps, [n, ...]."""
        rows = (
            TensorSpec(spec.name.removeprefix(ROW), spec.dtype, (self.axis, *spec.shape[1:]))
            for spec in self.step.outputs
            if spec.name.startswith(ROW)
        )
        return (TensorSpec("truncated", "bool", (1,)), *rows)

    def run(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the graph computes of its inputs, in torch."""
        state = {LAST + name.removeprefix(INITIAL): value for name, value in values.items()}
        rows: list[dict[str, Tensor]] = []
        stopped = False
        while not stopped and len(rows) <= int(values["limit"]):
            inputs = [state.get(spec.name, values.get(spec.name)) for spec in self.step.inputs]
            outputs = dict(zip((spec.name for spec in self.step.outputs), self.step.module(*inputs), strict=True))
            rows.append({name.removeprefix(ROW): value for name, value in outputs.items() if name.startswith(ROW)})
            state = {name.replace(NEXT, LAST, 1): value for name, value in outputs.items() if name.startswith(NEXT)}
            stopped = bool(outputs[STOP])
        joined = {name: torch.cat([row[name] for row in rows])[: len(rows) - 1] for name in rows[0]}
        return {"truncated": torch.tensor([not stopped]), **joined}


def in_loop(model: Any, loop: Loop, onnx: Any) -> Any:
    """The ONNX model of the loop from that of its step; `onnx` is the package."""
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
        made.append(make.make_node("Squeeze", [f"kept_{row}", "one"], [row.removeprefix(ROW)]))

    def info(specs: tuple[TensorSpec, ...]) -> list[Any]:
        return [
            make.make_tensor_value_info(spec.name, make.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)), spec.shape)
            for spec in specs
        ]

    graph = make.make_graph(made, "decoder", info(loop.inputs), info(loop.outputs), initializer=constants)
    return make.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
