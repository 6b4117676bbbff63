"""Graphs of a trained model, with example inputs to trace them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

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

    @property
    def axes(self) -> dict[int, str]:
        """Names of the dimensions of any length."""
        return {i: size for i, size in enumerate(self.shape) if isinstance(size, str)}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """A module to convert (in evaluation mode, on the CPU), example inputs, and its input and output tensors."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


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
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The step's inputs, with ``last_NAME`` called ``initial_NAME``, and ``limit``, int64 [1]."""
        renamed = (
            dataclasses.replace(spec, name=INITIAL + spec.name.removeprefix(LAST))
            if spec.name.startswith(LAST)
            else spec
            for spec in self.step.inputs
        )
        rows = [spec for spec in self.step.outputs if spec.name.startswith(ROW) and self.before]
        before = (
            dataclasses.replace(spec, name=spec.name.replace(ROW, BEFORE, 1), shape=(self.before, *spec.shape[1:]))
            for spec in rows
        )
        return (*renamed, *before, TensorSpec("limit", "int64", (1,)))

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
        """Compute the graph's outputs in torch."""
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
        if self.before:
            joined = {name: torch.cat([values[BEFORE + name], column]) for name, column in joined.items()}
        return {"truncated": torch.tensor([not stopped]), **joined}
