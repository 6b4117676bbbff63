"""Decoder steps of the translation models, and what the network saw and weighed in each of them.

Letters: B batch, B' events still decoding, S source tokens with bos and eos, T particles, H heads, V classes of a head,
special ones included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch, Target
from pflow.model.api import DecodingConfig, GeneratedParticles
from pflow.model.common.decode import Compaction, decode
from pflow.model.common.transformer import CrossAttention, KVCache, SelfAttention
from pflow.model.translation.coverage import Account, CoveredDecoder
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.network import TranslationNetwork
from pflow.model.translation.special import SAMPLE


class TranslationDecoder:
    """Decoder state of a batch (`pflow.model.common.decode.Decoder`).

    Keys and values of the source are projected once, and the decoded tokens' are cached.
    """

    def __init__(self, network: TranslationNetwork, batch: Batch, decoding: DecodingConfig) -> None:
        self.network = network
        self.eos_threshold = decoding.eos_threshold
        states, self.memory_mask = network.source(batch)
        self.account: Account | None = None
        if isinstance(network.decoder, CoveredDecoder):
            self.account, self.covered = Account.of(batch), network.decoder.project(states, self.memory_mask)
            self.memory = self.covered.layers
        else:
            self.memory = [known.contiguous() for known in network.decoder.project(states)]
        self.caches = [KVCache() for _ in self.memory]
        self.tokens = TargetTokens.bos(len(batch), batch.hits.mask.device)
        self.next: dict[str, Tensor] = {}

    def advance(self) -> Tensor:
        """Predict the next token of each event; bool [B'], True = it is a particle."""
        network, x = self.network, self.network.target(self.tokens, first=len(self.caches[0]))
        if self.account is None:
            x = network.decoder(x, self.memory, memory_mask=self.memory_mask, caches=self.caches)
        else:
            x, _, _, self.account = network.decoder(x, self.tokens, self.covered, self.account, self.caches)
        prediction = {name: value[:, 0] for name, value in network.heads(x).items()}
        token = network.special.choose(prediction, eos_threshold=self.eos_threshold)
        continuous = {name: prediction[name] for name in ("energy", "direction")}
        self.next = {"charge": token.charge, "pdg": token.pdg, **continuous, "score": token.score}
        ended: Tensor = token.ended & prediction["energy"].isfinite()  # NaN ends no event: the caller must see it
        return ~ended

    def sizes(self, goes_on: Tensor) -> Tensor:
        """`emit` needs none."""
        return torch.empty(0, dtype=torch.int64, device=goes_on.device)

    def compact(self, compaction: Compaction) -> None:
        """Drop the events that have ended."""
        if self.account is None:
            self.memory = [known.compact(compaction) for known in self.memory]
            if self.memory_mask is not None:
                self.memory_mask = compaction.apply(self.memory_mask)
        else:
            self.account, self.covered = self.account.compact(compaction), self.covered.compact(compaction)
        for cache in self.caches:
            cache.compact(compaction)
        self.next = {name: compaction.apply(value) for name, value in self.next.items()}

    def emit(self, sizes: Sequence[int]) -> dict[str, Tensor]:
        """The predicted particles, which become the next input."""
        inputs = {name: value[:, None] for name, value in self.next.items() if name != "score"}
        self.tokens = TargetTokens(**inputs, kind=torch.full_like(inputs["pdg"], SAMPLE))
        return self.next


@torch.inference_mode()
def generate(network: TranslationNetwork, batch: Batch, decoding: DecodingConfig) -> GeneratedParticles:
    """Decode the particles of each event; ValueError in training mode, or without a source that the network reads."""
    if network.training:
        raise ValueError("model: it is in training mode; call model.eval() first")
    decoder = TranslationDecoder(network, batch, decoding)
    device = batch.hits.mask.device
    columns, mask, truncated = decode(decoder, batch=len(batch), max_particles=decoding.max_particles, device=device)
    return GeneratedParticles(**columns, mask=mask, truncated=truncated)


@torch.inference_mode()
def explain(network: TranslationNetwork, batch: Batch, particles: GeneratedParticles) -> dict[str, Tensor]:
    """Probabilities and attention of each decoder step, by decoding the particles once more with teacher forcing.

    The causal mask makes this the same computation as decoding one by one with a cache. The `particles` are what the
    network decoded from the `batch`, one event without padding.

    ``probability.charge``, ``probability.pdg`` and, with special tokens by kind, ``probability.kind``: float [T + 1,
    V], for the step that predicts the first particle to the one that predicts eos; ``energy`` [T + 1], log10(E /
    GeV) normalised, and ``direction`` [T + 1, 3]; and by the names of the modules, after ``attention.``, each layer's
    weights, [H, S, S] of the encoder, [H, T + 1, T + 1] of the decoder and [H, T + 1, S] of ``memory_attention``; a row
    sums to 1.
    """
    names = ("charge", "pdg", "energy", "direction", "mask")
    target = Target(**{name: getattr(particles, name) for name in names})
    attention: dict[str, Tensor] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            attention[name] = module.weights(*args, **options)[0]  # type: ignore[operator]

        return hook

    handles = [
        module.register_forward_pre_hook(record(name), with_kwargs=True)
        for name, module in network.named_modules()
        if isinstance(module, SelfAttention | CrossAttention)
    ]
    try:
        prediction = network(dataclasses.replace(batch, target=target))
    finally:
        for handle in handles:
            handle.remove()
    probability = {f"probability.{name}": prediction[name][0].softmax(-1) for name in network.heads.classifiers}
    continuous = {name: prediction[name][0] for name in ("energy", "direction")}
    return {**probability, **continuous, **{f"attention.{name}": value for name, value in attention.items()}}
