"""Encoder and decoder step as modules from tensors to tensors, for an export.

Letters: B batch, S source tokens, M memory, P particles before this one, H heads, D width of a head.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch, TokenSet
from pflow.model.api import DecodingGraphs
from pflow.model.common.cache import KeyValue
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.network import TranslationNetwork
from pflow.model.translation.special import BOS, EOS, PAD, SAMPLE

__all__ = ["decoding_graphs"]


class _Encoder(nn.Module):
    """From source tokens to the encoder's output: its mask, and its keys and values for each decoder layer."""

    def __init__(self, network: TranslationNetwork) -> None:
        super().__init__()
        self.source = network.source
        self.decoder = network.decoder

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Features float [B, S, F] and mask bool [B, S] of each part, in the order of the source's embedders."""
        pairs = zip(self.source.embedders, _pairs(tensors), strict=True)
        parts: dict[str, Any] = {part: TokenSet(*pair, full=False) for part, pair in pairs}
        memory = self.source(Batch(**parts))
        return (memory.mask, *itertools.chain(*self.decoder.project(memory.states)))


class _Past:
    """A cache of keys and values of the earlier particles, as inputs of the graph, whose outputs are longer by one."""

    def __init__(self, known: KeyValue) -> None:
        self.known = known

    def update(self, k_val: Tensor, v_val: Tensor) -> KeyValue:
        key, value = self.known
        self.known = KeyValue(torch.cat([key, k_val], dim=2), torch.cat([value, v_val], dim=2))
        return self.known


class _Step(nn.Module):
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
        return (*(value[:, 0] for value in prediction.values()), *itertools.chain(*(cache.known for cache in past)))


def decoding_graphs(network: TranslationNetwork, config: TranslationNetworkConfig) -> DecodingGraphs:
    """The graphs of a copy of `network`, in evaluation mode on the CPU."""
    network = copy.deepcopy(network).cpu().eval()
    special = network.special
    return DecodingGraphs(
        encoder=_Encoder(network),
        step=_Step(network),
        source_features={part: embedder.features for part, embedder in network.source.embedders.items()},
        predictions=(*(f"{name}_logits" for name in network.heads.classifiers), "energy", "direction"),
        special={
            "special": config.special,
            "kinds": {"pad": PAD, "bos": BOS, "eos": EOS, "sample": SAMPLE},
            "first_class": special.offset,
            "end": {"output": f"{special.end}_logits", "first_class": EOS, "class": EOS},
        },
    )


def _pairs(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """(a, b, c, d) -> [(a, b), (c, d)]."""
    return list(zip(values[::2], values[1::2], strict=True))
