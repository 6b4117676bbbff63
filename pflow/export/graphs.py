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
    """Name, type and shape of an input or output of a graph.

    Parameters
    ----------
    name
        In the ONNX file.
    dtype
        ``float32``, ``int64`` or ``bool``.
    shape
        Sizes; a name stands for an axis of any length, the same for all tensors with that name.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def axes(self) -> dict[int, str]:
        """Names of the dimensions of any length."""
        return {i: size for i, size in enumerate(self.shape) if isinstance(size, str)}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """A module to convert.

    Parameters
    ----------
    module
        In evaluation mode, on the CPU; from tensors to tensors.
    example
        Inputs to trace it with.
    inputs, outputs
        In the order of the module's.
    """

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Export:
    """What the exporter of an architecture (`pflow.model.api.Reconstructor.exporter`) makes of a trained model.

    Parameters
    ----------
    graphs
        ``encoder``, ``decoder`` and, if there is one, ``refinement``; they are run in this order, for one event at a
        time, and each reads outputs of those before it.
    how_to
        How to use them, step by step.
    run
        What a host must know besides, as texts; the files of the graphs hold them too.
    description
        More for ``tokens.json``, plain data.
    """

    graphs: Mapping[str, Graph | Loop]
    how_to: Sequence[str]
    run: Mapping[str, str]
    description: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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
