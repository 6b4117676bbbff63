"""The decoder's modules: from the particles so far to the next decoder state and its seed.

Decoding with them, step by step: `pflow.model.pointing.decoder_steps`, of batches, and, of one event,
`pflow.model.pointing.decoder_steps_one_event`.

Letters: B batch, T particles, S source tokens, M items (hits, then tracks), W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.api import ModelInputs
from pflow.model.common.attention import SelfAttention
from pflow.model.common.cache import Cache, Compaction, KeyValue, KVCache
from pflow.model.common.layers import DecoderLayer, FullyConnected, LayerStyle, final_norm, stack
from pflow.model.pointing.attention import CoverageAttention, CoverageMemory
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.seed import SeedPointer

__all__ = ["CoverageDecoder", "ParticleDecoder", "PreviousParticles", "ProjectedMemory"]

N_CHARGE = 3


class PreviousParticles(NamedTuple):
    """Particles as input of the decoder.

    Parameters
    ----------
    pdg, charge : int64 [B, T]
    log_energy : float [B, T], ln(E / GeV)
    direction : float [B, T, 3]
    seed : int64 [B, T]
    deposit : float [B, T], energy of the assigned hits, GeV
    pooled : float [B, T, W], mean memory of the assigned items
    """

    pdg: Tensor
    charge: Tensor
    log_energy: Tensor
    direction: Tensor
    seed: Tensor
    deposit: Tensor
    pooled: Tensor


class ProjectedMemory(NamedTuple):
    """What the decoder makes of the encoder states, made once for many steps.

    Parameters
    ----------
    layers
        Keys and values of each layer.
    pointer : float [B, 3, hidden, S], of `pflow.model.pointing.seed.SeedPointer.project`
    """

    layers: Sequence[KeyValue]
    pointer: Tensor

    def compact(self, compaction: Compaction) -> ProjectedMemory:
        """The events that go on, moved in place."""
        return ProjectedMemory([layer.compact(compaction) for layer in self.layers], compaction.apply(self.pointer))


class CoverageDecoder(nn.Module):
    """Pre-norm decoder layers with `CoverageAttention` to the source.

    Parameters
    ----------
    config
        Sizes and parts of the network.
    layers
        Number of layers.
    """

    def __init__(self, config: PointingNetworkConfig, *, layers: int) -> None:
        super().__init__()
        style = LayerStyle(hidden_dropout=config.dropout, norm="pre", activation="gelu")
        self.layers = stack(
            DecoderLayer(
                SelfAttention(width=config.width, heads=config.heads),
                CoverageAttention(width=config.width, heads=config.heads),
                width=config.width,
                feedforward=config.feedforward,
                style=style,
            )
            for _ in range(layers)
        )
        self.norm = final_norm(width=config.width, style=style)

    def initialise(self) -> None:
        """Set the initial strengths of the attention."""
        for layer in self.layers:
            layer.memory_attention.initialise()

    def caches(self, like: Tensor, max_length: int) -> list[KVCache]:
        """Empty caches, one a layer, for sequences of up to `max_length` tokens like float [B, ..., W]."""
        return [KVCache.like(like, heads=layer.attention.heads, max_length=max_length) for layer in self.layers]

    def forward(
        self,
        x: Tensor,
        memory: CoverageMemory,
        *,
        mask: Tensor | None = None,
        caches: Sequence[Cache] | None = None,
        projected: Sequence[KeyValue] | None = None,
    ) -> Tensor:
        """Decode.

        Parameters
        ----------
        x : float [B, T, W], the whole sequence, or with `caches` its newest token
        memory
            T positions.
        mask : bool [B, T] or None
            True = real particle: each token attends to all; None: each attends to itself and to earlier ones.
        caches
            One a layer.
        projected
            Keys and values of the memory for each layer, where they are at hand.
        """
        if mask is not None:  # attention to nothing is not defined: the first token is attended to in any case
            mask = functional.pad(mask[:, 1:], (1, 0), value=True)
        past: Sequence[Cache | None] = caches if caches is not None else [None] * len(self.layers)
        memories = [memory] * len(self.layers)
        if projected is not None:
            memories = [memory._replace(states=states) for states in projected]
        for layer, of_layer, cache in zip(self.layers, memories, past, strict=True):
            x = layer(x, of_layer, mask=mask, causal=mask is None, cache=cache)
        return self.norm(x)  # type: ignore[no-any-return]


class ParticleDecoder(nn.Module):
    """Embed the previous particles, decode, and point at the next seed.

    Parameters
    ----------
    inputs
        Sizes of the vocabularies.
    config
        Sizes and parts of the network.
    """

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width = config.width
        self.n_pdg = inputs.n_pdg
        self.bos = nn.Parameter(torch.empty(width))
        self.embed_particle = FullyConnected((inputs.n_pdg + N_CHARGE + 7, width, width), activation="gelu")
        self.embed_seed = nn.Linear(width, width, bias=False)
        self.embed_pooled = nn.Linear(width, width, bias=False)
        self.stack = CoverageDecoder(config, layers=config.decoder_layers)
        self.pointer = SeedPointer(width=width, hidden_width=config.hidden_width)

    def initialise(self) -> None:
        """Set the initial values that differ from those of `pflow.model.common.initialise`."""
        self.stack.initialise()
        self.pointer.initialise()

    def embed(self, particles: PreviousParticles, source: EncodedSource) -> Tensor:
        """Embedded particles float [B, T, W]."""
        continuous = torch.stack(
            [
                particles.log_energy / 2.0,
                ((particles.deposit + 0.05).log() - particles.log_energy).clamp(-4.0, 4.0),
                (particles.deposit + 1e-3).log() / 2.0,
                gather(source.scene.token_is_track, particles.seed).float(),
            ],
            dim=-1,
        )
        features = torch.cat(
            [
                functional.one_hot(particles.pdg, self.n_pdg),
                functional.one_hot(particles.charge, N_CHARGE),
                continuous,
                particles.direction,
            ],
            dim=-1,
        )
        x = self.embed_particle(features)
        return x + self.embed_seed(gather(source.states, particles.seed)) + self.embed_pooled(particles.pooled)  # type: ignore[no-any-return]

    def first(self, batch: int) -> Tensor:
        """The embedded beginning of the sequence, float [B, 1, W]."""
        return self.bos.expand(batch, 1, -1)

    def project(self, states: Tensor) -> ProjectedMemory:
        """Of encoder states float [B, S, W]; on a CPU, products with few queries take a third of the time with it."""
        layers = [layer.memory_attention.attention.project(states) for layer in self.stack.layers]
        return ProjectedMemory(layers, self.pointer.project(states))

    def forward(
        self,
        x: Tensor,
        source: EncodedSource,
        assigned: Tensor,
        caches: Sequence[Cache] | None = None,
        projected: ProjectedMemory | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Decode.

        Parameters
        ----------
        x : float [B, T, W]
            The embedded beginning and particles, or with `caches` the newest token.
        source
            Encoded source of the batch.
        assigned : float [B, T, M], assigned fraction of each item before each position
        caches
            Keys and values of earlier tokens, one cache a layer.
        projected
            `project` of the source's states, where it is at hand.

        Returns
        -------
        states : float [B, T, W]
        pointer : float [B, T, S + 1]
            Log probabilities of the next seed and, last, of the end of the sequence.
        """
        on_tokens = source.scene.on_tokens(assigned)
        memory = CoverageMemory.of(source.states, on_tokens, source.scene.token_mask)
        if projected is None:
            states = self.stack(x, memory, caches=caches)
            return states, self.pointer(states, source.states, source.scene, on_tokens)
        states = self.stack(x, memory, caches=caches, projected=projected.layers)
        return states, self.pointer(states, projected.pointer, source.scene, on_tokens)
