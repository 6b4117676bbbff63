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
