"""What an export of a trained model consists of: graphs, with examples to trace them, and how to use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from pflow.export.loop import Loop

__all__ = ["Export", "Graph", "TensorSpec", "specs"]


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
    """A module to convert, in evaluation mode on the CPU, inputs to trace it with, and what it reads and returns."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Export:
    """What the exporter of an architecture (`pflow.model.api.Reconstructor.exporter`) makes of a trained model."""

    graphs: Mapping[str, Graph | Loop]
    """``encoder``, ``decoder`` and, if there is one, ``refinement``; they are run in this order, for one event at a
    time, and each reads outputs of those before it."""
    how_to: Sequence[str]
    """How to use them, step by step."""
    run: Mapping[str, str]
    """What a host must know besides; the files of the graphs hold it too."""
    description: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """More for ``tokens.json``, plain data."""


def specs(tensors: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]]) -> tuple[TensorSpec, ...]:
    """Of named tensors, whose dimensions of any length `axes` names."""
    return tuple(
        TensorSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(axes.get(name, {}).get(i, size) for i, size in enumerate(tensor.shape)),
        )
        for name, tensor in tensors.items()
    )
