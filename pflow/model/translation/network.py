"""The first paper's networks: a Transformer from detector hits to a sequence of particles.

Letters: B batch, S source length, T target particles, W target width.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch
from pflow.model.api import ModelInputs
from pflow.model.common.cache import Compaction, KeyValue, KVCache
from pflow.model.common.initialise import initialise
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.decoder import Decoder, MultiProjectionDecoder, VanillaDecoder
from pflow.model.translation.embed import SourceEmbedder, TargetEmbedder, TargetTokens
from pflow.model.translation.encoder import CrossEncoder, CrossSource, Memory, TokenSetSource, make_encoder
from pflow.model.translation.heads import Heads
from pflow.model.translation.special import SpecialTokens, special_tokens

__all__ = ["DecoderState", "TranslationNetwork"]


@dataclasses.dataclass
class DecoderState:
    """Keys and values of the memory and of the tokens decoded so far.

    Parameters
    ----------
    memory
        One pair a standard decoder layer.
    memory_mask : bool [B, S] or None
    caches
        One a standard decoder layer.
    """

    memory: list[KeyValue]
    memory_mask: Tensor | None
    caches: list[KVCache]

    @property
    def length(self) -> int:
        """Number of tokens decoded so far."""
        return len(self.caches[0])

    def compact(self, compaction: Compaction) -> None:
        """Drop the events that have ended."""
        self.memory = [known.compact(compaction) for known in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = compaction.apply(self.memory_mask)
        for cache in self.caches:
            cache.compact(compaction)


class TranslationNetwork(nn.Module):
    """Encoder-decoder Transformer from hits (and tracks) to a sequence of particles.

    The initial weights are drawn from torch's global generator; `initialise` draws them again from a given one.

    Parameters
    ----------
    inputs
        Sizes that follow from the tokeniser.
    config
        Sizes and parts of the network.

    Raises
    ------
    ValueError
        A source that does not read exactly the token types of `inputs`.
    """

    def __init__(self, inputs: ModelInputs, config: TranslationNetworkConfig) -> None:
        super().__init__()
        config.check_inputs(inputs)
        self.special: SpecialTokens = special_tokens(config.special)

        def embed(features: int, *, framed: bool = True) -> SourceEmbedder:
            return SourceEmbedder(features=features, special=self.special, config=config, framed=framed)

        self.source: TokenSetSource | CrossSource
        if config.source == "cross":
            self.source = CrossSource(
                hits=embed(inputs.hit_features), tracks=embed(inputs.track_features), encoder=CrossEncoder(config)
            )
        else:
            others = {"tracks": inputs.track_features, "tracker_hits": inputs.tracker_hit_features}
            self.source = TokenSetSource(
                hits=embed(inputs.hit_features),
                others={name: embed(features, framed=False) for name, features in others.items() if features},
                encoder=make_encoder(config),
            )
        self.target = TargetEmbedder(n_charge=inputs.n_charge, n_pdg=inputs.n_pdg, special=self.special, config=config)
        self.decoder: Decoder
        self.decoder = VanillaDecoder(config) if config.n_projections is None else MultiProjectionDecoder(config)
        offset = self.special.offset
        classes = {"charge": inputs.n_charge + offset, "pdg": inputs.n_pdg + offset, **self.special.heads}
        self.heads = Heads(classes=classes, config=config)
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights from `generator` or from torch's global one."""
        initialise(self, generator)

    def encode(self, batch: Batch) -> Memory:
        """The encoded source of `batch`: states float [B, S, width] and their mask."""
        memory: Memory = self.source(batch)
        return memory

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Predict each next token after the target tokens before it (teacher forcing).

        Parameters
        ----------
        batch
            With a target of T particles.

        Returns
        -------
        dict
            At each of T + 1 positions, for the token after bos, the first particle, ..., the last:
            ``charge`` and ``pdg``, logits [B, T + 1, V] over the physical classes behind the special ones;
            ``energy`` [B, T + 1], log10 E normalised; ``direction`` [B, T + 1, 3], unit vector;
            ``kind`` [B, T + 1, 4] or ``stop`` [B, T + 1, 2], logits, with these special tokens;
            ``energy_log_sigma`` [B, T + 1], if asked for.

        Raises
        ------
        ValueError
            The batch has no target, or lacks a source that the network reads.
        """
        if batch.target is None:
            raise ValueError("target: the batch has none, and training needs one")
        memory = self.encode(batch)
        x = self.target(TargetTokens.teacher(batch.target))
        x = self.decoder(x, self.decoder.project(memory.states), memory_mask=memory.mask)
        return self.heads(x)  # type: ignore[no-any-return]

    def start(self, memory: Memory, max_length: int) -> DecoderState:
        """State before the first of at most `max_length` tokens; keys and values of the memory are projected once."""
        known = [KeyValue(*(part.contiguous() for part in pair)) for pair in self.decoder.project(memory.states)]
        caches = [
            KVCache(
                batch=pair.key.shape[0],
                heads=pair.key.shape[1],
                max_length=max_length,
                head_width=pair.key.shape[3],
                dtype=pair.key.dtype,
                device=pair.key.device,
            )
            for pair in known
        ]
        return DecoderState(known, memory.mask, caches)

    def step(self, tokens: TargetTokens, state: DecoderState) -> dict[str, Tensor]:
        """Decode one more token of each event, [B, 1], and predict the next; `state` is updated.

        Returns
        -------
        dict
            As `forward`, for one position: logits [B, V], ``energy`` [B], ``direction`` [B, 3].
        """
        x = self.target(tokens, first=state.length)
        x = self.decoder(x, state.memory, memory_mask=state.memory_mask, caches=state.caches)
        return {name: value[:, 0] for name, value in self.heads(x).items()}
