"""The two graphs of autoregressive decoding, encoder and decoder step, as modules from tensors to tensors.

Letters: B batch, S source tokens, M memory, P particles before this one, H heads, D width of a head, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch, TokenSet
from pflow.errors import ConfigError
from pflow.model.common.cache import KeyValue
from pflow.model.common.layers import Encoder
from pflow.model.translation import TranslationReconstructor
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.encoder import CrossEncoder, CrossSource, TokenSetSource
from pflow.model.translation.network import TranslationNetwork
from pflow.model.translation.special import SAMPLE

__all__ = ["DecoderStep", "EncoderGraph", "Graph", "TensorSpec", "graphs_of"]

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

    @classmethod
    def of(cls, name: str, tensor: Tensor, axes: dict[int, str]) -> TensorSpec:
        """Of a tensor; `axes` names the dimensions of any length."""
        shape = tuple(axes.get(i, size) for i, size in enumerate(tensor.shape))
        return cls(name, str(tensor.dtype).removeprefix("torch."), shape)

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


class _PaddedEncoder(nn.Module):
    """An encoder on the padded batch: tracing would turn the lengths of packed events into constants."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        for layer in self.encoder.layers:
            x = layer(x, mask=mask)
        return self.encoder.norm(x)  # type: ignore[no-any-return]


class _PaddedCrossEncoder(nn.Module):
    """`_PaddedEncoder` of hits that attend to tracks."""

    def __init__(self, encoder: CrossEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, other: Tensor, *, mask: Tensor, other_mask: Tensor) -> Tensor:
        for layer in self.encoder.layers:
            x = layer(x, layer.memory_attention.project(other), memory_mask=other_mask, mask=mask)
        return self.encoder.norm(x)  # type: ignore[no-any-return]


class EncoderGraph(nn.Module):
    """From source tokens to the encoder's output: its mask, and its keys and values for each decoder layer.

    Parameters
    ----------
    network
        In evaluation mode, on the CPU; not changed.

    Raises
    ------
    ConfigError
        A source that cannot be exported; names it.
    """

    def __init__(self, network: TranslationNetwork) -> None:
        super().__init__()
        source: nn.Module = copy.deepcopy(network.source)
        if isinstance(source, CrossSource):
            embedders: dict[str, Any] = {"hits": source.hits, "tracks": source.tracks}
            source.add_module("encoder", _PaddedCrossEncoder(source.encoder))
        elif isinstance(source, TokenSetSource):
            embedders = {"hits": source.hits, **dict(source.others.items())}
            source.add_module("encoder", _PaddedEncoder(source.encoder))
        else:
            raise ConfigError(f"a network with a {type(source).__name__} cannot be exported to ONNX")
        self.source = source
        self.decoder = network.decoder
        self.features: dict[str, int] = {part: embedder.features for part, embedder in embedders.items()}

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Features float [B, S, F] and mask bool [B, S] of each part, in the order of `features`."""
        pairs = zip(self.features, _pairs(tensors), strict=True)
        parts: dict[str, Any] = {part: TokenSet(*pair, full=False) for part, pair in pairs}
        memory = self.source(Batch(**parts))
        return (memory.mask, *_flat(self.decoder.project(memory.states)))

    def example(self) -> tuple[Tensor, ...]:
        """Inputs of unequal lengths."""
        tensors: list[Tensor] = []
        for shift, features in enumerate(self.features.values()):
            length = _EXAMPLE_LENGTH + shift
            lengths = torch.arange(length, length - _EXAMPLE_EVENTS, -1)
            tensors.append(torch.ones(_EXAMPLE_EVENTS, length, features))
            tensors.append(torch.arange(length) < lengths[:, None])
        return tuple(tensors)


class _Past:
    """A cache of keys and values of the earlier particles, as inputs of the graph, whose outputs are longer by one."""

    def __init__(self, known: KeyValue) -> None:
        self.known = known

    def update(self, k_val: Tensor, v_val: Tensor) -> KeyValue:
        key, value = self.known
        self.known = KeyValue(torch.cat([key, k_val], dim=2), torch.cat([value, v_val], dim=2))
        return self.known


class DecoderStep(nn.Module):
    """From the last token of each event, the encoder's output and the past to the next token."""

    def __init__(self, network: TranslationNetwork) -> None:
        super().__init__()
        self.target = network.target
        self.decoder = network.decoder
        self.heads = network.heads

    def forward(
        self, charge: Tensor, pdg: Tensor, energy: Tensor, direction: Tensor, kind: Tensor, mask: Tensor, *known: Tensor
    ) -> tuple[Tensor, ...]:
        """The last token, [B] (direction [B, 3]), the memory's mask bool [B, M], and keys and values: the memory's
        [B, H, M, D] of all layers, then those of the past [B, H, P, D]."""
        pairs = [KeyValue(*pair) for pair in _pairs(known)]
        memory, past = pairs[: len(pairs) // 2], [_Past(pair) for pair in pairs[len(pairs) // 2 :]]
        tokens = TargetTokens(*(part[:, None] for part in (charge, pdg, energy, direction, kind)))  # [B] -> [B, 1]
        x = self.target(tokens, first=past[0].known.key.shape[2])
        x = self.decoder(x, memory, memory_mask=mask, caches=past)
        prediction = self.heads(x)
        return (*(value[:, 0] for value in prediction.values()), *_flat([cache.known for cache in past]))

    def example(self, memory: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Inputs for `memory`, the outputs of the encoder graph."""
        none = torch.zeros(_EXAMPLE_EVENTS, dtype=torch.int64)
        token = (none, none, torch.zeros(_EXAMPLE_EVENTS), torch.ones(_EXAMPLE_EVENTS, 3), none + SAMPLE)
        past = [torch.ones(*part.shape[:2], _EXAMPLE_PAST, part.shape[3]) for part in memory[1:]]
        return (*token, *memory, *past)


@torch.no_grad()
def graphs_of(reconstructor: nn.Module) -> tuple[Graph, Graph]:
    """The encoder and the decoder step of a model.

    Parameters
    ----------
    reconstructor
        On any device, in any mode; not changed.

    Returns
    -------
    encoder, step : Graph
        The outputs of the encoder are inputs of the step, under the same names.

    Raises
    ------
    ConfigError
        A model or a source that cannot be exported; names it.
    """
    if not isinstance(reconstructor, TranslationReconstructor):
        raise ConfigError(f"a {type(reconstructor).__name__} cannot be exported to ONNX")
    network = copy.deepcopy(reconstructor.network).cpu().eval()
    encoder = EncoderGraph(network).eval()
    source = encoder.example()
    memory = encoder(*source)
    layers = (len(memory) - 1) // 2
    memory_names = ("memory_mask", *_names("memory", layers))
    memory_specs = _specs(memory_names, memory, [{0: "batch", 1: "memory"}] + [{0: "batch", 2: "memory"}] * 2 * layers)
    source_specs = [
        TensorSpec.of(name, tensor, {0: "batch", 1: part})
        for part, pair in zip(encoder.features, _pairs(source), strict=True)
        for name, tensor in zip((part, f"{part}_mask"), pair, strict=True)
    ]

    step = DecoderStep(network).eval()
    inputs = step.example(memory)
    outputs = step(*inputs)
    token_names = ("last_charge", "last_pdg", "last_energy", "last_direction", "last_kind")
    n_heads = len(outputs) - 2 * layers
    token_specs = _specs(token_names, inputs[:5], [{0: "batch"}] * 5)
    past_specs = _specs(_names("past", layers), inputs[-2 * layers :], [{0: "batch", 2: "past"}] * 2 * layers)
    head_specs = _specs(_head_names(network), outputs[:n_heads], [{0: "batch"}] * n_heads)
    present_specs = _specs(
        _names("present", layers), outputs[n_heads:], [{0: "batch", 2: "past_and_this"}] * 2 * layers
    )
    return (
        Graph(module=encoder, example=source, inputs=tuple(source_specs), outputs=memory_specs),
        Graph(
            module=step,
            example=inputs,
            inputs=(*token_specs, *memory_specs, *past_specs),
            outputs=(*head_specs, *present_specs),
        ),
    )


def _head_names(network: TranslationNetwork) -> tuple[str, ...]:
    prediction = network.heads(torch.zeros(1, 1, network.target.width))
    return tuple(f"{name}_logits" if name in network.heads.classifiers else name for name in prediction)


def _names(prefix: str, layers: int) -> tuple[str, ...]:
    return tuple(f"{prefix}_{what}_{i}" for i in range(layers) for what in ("key", "value"))


def _specs(names: Sequence[str], tensors: Sequence[Tensor], axes: Sequence[dict[int, str]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.of(*each) for each in zip(names, tensors, axes, strict=True))


def _pairs(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """(a, b, c, d) -> [(a, b), (c, d)]."""
    return list(zip(values[::2], values[1::2], strict=True))


def _flat(pairs: Sequence[KeyValue]) -> list[Tensor]:
    return [part for pair in pairs for part in pair]
