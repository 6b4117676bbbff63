"""The first paper's networks: a Transformer from detector hits to a sequence of particles.

Letters: B batch, S source length, T target particles, W target width.
"""

from __future__ import annotations

from torch import Tensor, nn

from pflow.data.batch import Batch
from pflow.model.api import ModelInputs
from pflow.model.common.initialise import initialise
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.decoder import Decoder
from pflow.model.translation.embed import SourceEmbedder, TargetEmbedder, TargetTokens
from pflow.model.translation.encoder import CrossSource, Memory, TokenSetSource, make_encoder
from pflow.model.translation.heads import Heads
from pflow.model.translation.special import SPECIAL

__all__ = ["TranslationNetwork"]


class TranslationNetwork(nn.Module):
    """Encoder-decoder Transformer from hits (and tracks) to a sequence of particles."""

    def __init__(self, inputs: ModelInputs, config: TranslationNetworkConfig) -> None:
        super().__init__()
        config.check_inputs(inputs)
        self.special = SPECIAL[config.special]()

        def embed(features: int, *, framed: bool = True) -> SourceEmbedder:
            return SourceEmbedder(features=features, special=self.special, config=config, framed=framed)

        self.source: TokenSetSource | CrossSource
        if config.source == "cross":
            self.source = CrossSource(
                hits=embed(inputs.hit_features), tracks=embed(inputs.track_features), encoder=make_encoder(config)
            )
        else:
            others = {"tracks": inputs.track_features, "tracker_hits": inputs.tracker_hit_features}
            self.source = TokenSetSource(
                hits=embed(inputs.hit_features),
                others={name: embed(features, framed=False) for name, features in others.items() if features},
                encoder=make_encoder(config),
            )
        self.target = TargetEmbedder(n_charge=inputs.n_charge, n_pdg=inputs.n_pdg, special=self.special, config=config)
        self.decoder = Decoder(config)
        offset = self.special.offset
        classes = {"charge": inputs.n_charge + offset, "pdg": inputs.n_pdg + offset, **self.special.heads}
        self.heads = Heads(classes=classes, width=config.decoder_width)
        initialise(self)

    def encode(self, batch: Batch) -> Memory:
        """The encoded source of `batch`: states float [B, S, width] and their mask."""
        memory: Memory = self.source(batch)
        return memory

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Predict each next token after the target tokens before it (teacher forcing).

        At each of T + 1 positions, for the token after bos, the first particle, ..., the last: ``charge`` and ``pdg``,
        logits [B, T + 1, V] over the physical classes behind the special ones; ``energy`` [B, T + 1], log10 E
        normalised; ``direction`` [B, T + 1, 3], unit vector; with special tokens of version 2 ``kind``, logits [B, T +
        1, 4]. ValueError: the batch has no target, or lacks a source that the network reads.
        """
        if batch.target is None:
            raise ValueError("target: the batch has none, and training needs one")
        memory = self.encode(batch)
        x = self.target(TargetTokens.teacher(batch.target))
        x = self.decoder(x, self.decoder.project(memory.states), memory_mask=memory.mask)
        return self.heads(x)  # type: ignore[no-any-return]
