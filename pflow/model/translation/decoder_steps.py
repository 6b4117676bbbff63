"""Decoder steps of the translation models. Letters: B batch, B' events that go on, T particles, V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pflow.data.batch import Batch
from pflow.model.api import DecodingConfig, GeneratedParticles
from pflow.model.common.cache import Compaction, KVCache
from pflow.model.common.decode import decode
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.network import TranslationNetwork
from pflow.model.translation.special import SAMPLE


class TranslationDecoder:
    """Decoder state of a batch (`pflow.model.common.decode.Decoder`).

    Keys and values of the source are projected once, and those of the decoded tokens are kept.
    """

    def __init__(self, network: TranslationNetwork, batch: Batch, decoding: DecodingConfig) -> None:
        self.network = network
        self.eos_threshold = decoding.eos_threshold
        states, self.memory_mask = network.encode(batch)
        self.memory = [known.contiguous() for known in network.decoder.project(states)]
        self.caches = [KVCache() for _ in self.memory]
        self.tokens = TargetTokens.bos(len(batch), batch.hits.mask.device)
        self.next: dict[str, Tensor] = {}

    def advance(self) -> Tensor:
        """Predict the next token of each event; bool [B'], True = it is a particle."""
        x = self.network.target(self.tokens, first=len(self.caches[0]))
        x = self.network.decoder(x, self.memory, memory_mask=self.memory_mask, caches=self.caches)
        prediction = {name: value[:, 0] for name, value in self.network.heads(x).items()}
        token = self.network.special.choose(prediction, eos_threshold=self.eos_threshold)
        self.next = {
            "charge": token.charge,
            "pdg": token.pdg,
            "energy": prediction["energy"],
            "direction": prediction["direction"],
            "score": token.score,
        }
        ended: Tensor = token.ended & prediction["energy"].isfinite()  # NaN goes on: who decodes must see it
        return ~ended

    def sizes(self, goes_on: Tensor) -> Tensor:
        """`emit` needs none."""
        return torch.empty(0, dtype=torch.int64, device=goes_on.device)

    def compact(self, compaction: Compaction) -> None:
        """Drop the events that have ended."""
        self.memory = [known.compact(compaction) for known in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = compaction.apply(self.memory_mask)
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
