"""The two graphs of autoregressive decoding, with examples to trace them, and names and shapes of their tensors.

Letters: B batch, M memory, P particles before this one, H heads, D width of a head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pflow.errors import ConfigError
from pflow.model.api import Reconstructor

__all__ = ["Graph", "TensorSpec", "graphs_of"]

_EXAMPLE_EVENTS, _EXAMPLE_LENGTH, _EXAMPLE_PAST = 3, 5, 4  # none is 1: tracing takes sizes of 1 as constants


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


@torch.no_grad()
def graphs_of(reconstructor: Reconstructor) -> tuple[Graph, Graph, Mapping[str, Any]]:
    """The encoder and the decoder step of a model.

    Parameters
    ----------
    reconstructor
        On any device, in any mode; not changed.

    Returns
    -------
    encoder, step : Graph
        The outputs of the encoder are inputs of the step, under the same names.
    special : mapping
        `pflow.model.api.DecodingGraphs.special`.

    Raises
    ------
    ConfigError
        A model that cannot be exported; names it.
    """
    graphs = reconstructor.decoding_graphs()
    if graphs is None:
        raise ConfigError(f"a {type(reconstructor).__name__} cannot be exported to ONNX")
    source = _example_source(list(graphs.source_features.values()))
    source_specs = _specs(
        [name for part in graphs.source_features for name in (part, f"{part}_mask")],
        source,
        [{0: "batch", 1: part} for part in graphs.source_features for _ in range(2)],
    )
    memory = graphs.encoder(*source)
    layers = (len(memory) - 1) // 2
    memory_specs = _specs(
        ("memory_mask", *_names("memory", layers)), memory, [{0: "batch", 1: "memory"}, *_axes("memory", layers)]
    )
    token = _example_token(graphs.special["kinds"]["sample"])
    past = [torch.ones(*part.shape[:2], _EXAMPLE_PAST, part.shape[3]) for part in memory[1:]]
    outputs = graphs.step(*token, *memory, *past)
    token_names = ("last_charge", "last_pdg", "last_energy", "last_direction", "last_kind")
    n = len(graphs.predictions)
    encoder = Graph(module=graphs.encoder, example=source, inputs=source_specs, outputs=memory_specs)
    step = Graph(
        module=graphs.step,
        example=(*token, *memory, *past),
        inputs=(
            *_specs(token_names, token, [{0: "batch"}] * 5),
            *memory_specs,
            *_specs(_names("past", layers), past, _axes("past", layers)),
        ),
        outputs=(
            *_specs(graphs.predictions, outputs[:n], [{0: "batch"}] * n),
            *_specs(_names("present", layers), outputs[n:], _axes("past_and_this", layers)),
        ),
    )
    return encoder, step, graphs.special


def _example_source(features: Sequence[int]) -> tuple[Tensor, ...]:
    """Features and mask of each part, without padding."""
    tensors: list[Tensor] = []
    for length, size in enumerate(features, _EXAMPLE_LENGTH):
        shape = _EXAMPLE_EVENTS, length
        tensors += [torch.ones(*shape, size), torch.ones(shape, dtype=torch.bool)]  # torch computes no padding
    return tuple(tensors)


def _example_token(kind: int) -> tuple[Tensor, ...]:
    none = torch.zeros(_EXAMPLE_EVENTS, dtype=torch.int64)
    return none, none, torch.zeros(_EXAMPLE_EVENTS), torch.ones(_EXAMPLE_EVENTS, 3), none + kind


def _names(prefix: str, layers: int) -> tuple[str, ...]:
    return tuple(f"{prefix}_{what}_{i}" for i in range(layers) for what in ("key", "value"))


def _axes(length: str, layers: int) -> list[dict[int, str]]:
    """Names of the axes of keys and values [B, H, length, D] of all layers."""
    return [{0: "batch", 2: length}] * 2 * layers


def _specs(
    names: Sequence[str], tensors: Sequence[Tensor], axes: Sequence[Mapping[int, str]]
) -> tuple[TensorSpec, ...]:
    """Of tensors, whose dimensions of any length `axes` names."""
    return tuple(
        TensorSpec(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(named.get(i, size) for i, size in enumerate(tensor.shape)),
        )
        for name, tensor, named in zip(names, tensors, axes, strict=True)
    )
