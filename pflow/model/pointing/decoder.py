"""The decoder's modules: states, seeds and the end. Letters: B batch, T particles, N = B * T, S tokens, W width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.api import ModelInputs
from pflow.model.common.transformer import (
    Caches,
    ConstantLinear,
    CrossAttention,
    FullyConnected,
    KeyValue,
    LayerStyle,
    Mask,
    SelfAttention,
    TransformerLayer,
    final_norm,
    gelu,
    split_heads,
    stack,
)
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.geometry import EncodedSource, Tables, TokenTracks, gather

N_CHARGE = 3
EPS_UNASSIGNED = 0.02  # added to unassigned fractions before the logarithm: assigned tokens are still attended to
START_PRIOR = 3.0  # initial logit that a track starts a charged particle: 95%
MASKED_LOGIT = -1e4  # logit of padding: finite, so that an event without tokens has gradients


class PreviousParticles(NamedTuple):
    """Particles as input of the decoder."""

    pdg: Tensor  # int64 [N]
    charge: Tensor  # int64 [N]
    log_energy: Tensor  # float [N], ln(E / GeV)
    direction: Tensor  # float [N, 3]
    seed: Tensor  # int64 [N], indices into B * S
    deposit: Tensor  # float [N], energy of the assigned hits, GeV
    pooled: Tensor  # float [N, W], mean memory of the assigned items


class Memory(NamedTuple):
    """What the decoder makes of the encoder states, made once for many steps."""

    layers: Sequence[KeyValue]  # keys and values of each layer
    pointer: Tensor  # float [B, 3, hidden, S], of `SeedPointer.project`


class Coverage(NamedTuple):
    """Which fraction of each token of the source no particle has yet."""

    log_unassigned: Tensor  # float [B, 1, T, S], of the unassigned fraction and `EPS_UNASSIGNED`
    padding: Tensor | None  # float [B, S], `MASKED_LOGIT` for padding, else 0

    @classmethod
    def of(cls, assigned: Tensor, mask: Mask) -> Coverage:
        """From the assigned fraction float [B, 1, T, S] of each token."""
        log_unassigned = ((1.0 + EPS_UNASSIGNED) - assigned).clamp(min=EPS_UNASSIGNED).log()
        padding = None if mask is None else torch.where(mask, 0.0, MASKED_LOGIT).to(log_unassigned.dtype)
        return cls(log_unassigned, padding)


class CoverageAttention(nn.Module):
    """Attention to the source: a head's logits gain s_h ln(unassigned fraction), with s_h learned."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.attention = CrossAttention(width=width, heads=heads)
        self.strength = nn.Parameter(torch.ones(heads))

    def set_initial_values(self) -> None:
        """Set the initial strengths."""
        self.strength.fill_(1.0)

    def forward(self, x: Tensor, memory: tuple[KeyValue, Coverage], *, mask: None = None) -> Tensor:
        """Attend from x float [B, T, W] or [B, W] to keys and values of the source; its coverage knows the mask."""
        known, coverage = memory
        bias = self.strength[:, None, None] * coverage.log_unassigned  # [B, H, T, S]
        if coverage.padding is not None:
            bias = bias + coverage.padding[:, None, None]
        return self.attention(x, known, bias=bias)  # type: ignore[no-any-return]


class CoverageDecoder(nn.Module):
    """Pre-norm decoder layers with `CoverageAttention` to the source, of the sizes and the dropout of a `config`."""

    def __init__(self, config: PointingNetworkConfig, *, layers: int) -> None:
        super().__init__()
        width, feedforward = config.width, config.feedforward
        style = LayerStyle(hidden_dropout=config.dropout, norm="pre", activation="gelu")
        sizes = {"width": width, "heads": config.heads}
        self.layers = stack(
            TransformerLayer(
                SelfAttention(**sizes), CoverageAttention(**sizes), width=width, feedforward=feedforward, style=style
            )
            for _ in range(layers)
        )
        self.norm = final_norm(width=width, style=style)

    def project(self, states: Tensor) -> list[KeyValue]:
        """Keys and values of the source for each layer, of encoder states float [B, S, W]."""
        return [layer.memory_attention.attention.project(states).contiguous() for layer in self.layers]

    def forward(
        self, x: Tensor, memory: Sequence[KeyValue], coverage: Coverage, *, mask: Mask = None, caches: Caches = None
    ) -> Tensor:
        """Decode x, float [B, T, W] or with `caches` [B, W], with a memory from `project`.

        With `mask` each token attends to all; else to itself and to earlier ones.
        """
        if mask is not None:  # attention to nothing is not defined: the first token is attended to in any case
            mask = functional.pad(mask[:, 1:], (1, 0), value=True)
        past = caches if caches is not None else [None] * len(self.layers)
        for layer, known, cache in zip(self.layers, memory, past, strict=True):
            x = layer(x, (known, coverage), mask=mask, causal=mask is None, cache=cache)
        return self.norm(x)  # type: ignore[no-any-return]


class SeedPointer(nn.Module):
    """Probabilities of the next seed and of the end of the sequence, which sum to 1.

    Each token has a logit that a particle starts there: the product of state and token, a second such product times the
    token's assigned fraction, and a third times the logarithm of its unassigned energy. The end has a logit of the
    state alone.
    """

    def __init__(self, *, width: int, hidden_width: int) -> None:
        super().__init__()
        self.hidden_width = hidden_width
        self.state = nn.Linear(width, 3 * hidden_width)
        self.token = nn.Linear(width, 3 * hidden_width)
        self.offset = nn.Parameter(torch.empty(3))
        self.eos = FullyConnected((width, width, 1))

    def set_initial_values(self) -> None:
        """Set the initial offsets: small logits, smaller ones for assigned tokens."""
        self.offset.copy_(torch.tensor([-3.0, -3.0, 0.5]))

    def project(self, memory: Tensor) -> Tensor:
        """Keys of a memory float [B, S, W], scaled for the logits: [B, 3, hidden, S]."""
        keys: Tensor = torch.matmul(self.token.weight, memory.transpose(1, 2)) + self.token.bias[:, None]
        keys = keys * self.hidden_width**-0.5
        return keys.view(len(memory), 3, self.hidden_width, memory.shape[1])

    def forward(
        self, state: Tensor, keys: Tensor, assigned: Tensor, unassigned_energy: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits of each token, float [B, T, S] or [B, S], and of the end, float [B, T, 1] or [B, 1].

        Parameters
        ----------
        state
            Decoder states, [B, T, W] or [B, W].
        keys
            `project` of the memory.
        assigned, unassigned_energy
            Of each token, [B, 1, T, S]; the energy in GeV.
        """
        query = split_heads(self.state(state), 3)
        products = query @ keys + self.offset.view(3, 1, 1)  # [B, 3, T, S]
        plain, of_assigned, of_energy = products.chunk(3, dim=1)  # [B, 1, T, S] each
        logits = plain.addcmul(of_assigned, assigned).addcmul(of_energy, (unassigned_energy + 1e-3).log())
        return logits.view(*state.shape[:-1], -1 if len(state) else assigned.shape[3]), self.eos(state)


class ParticleDecoder(nn.Module):
    """Embed the previous particles, decode, and point at the next seed."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width = config.width
        self.n_pdg = inputs.n_pdg
        self.bos = nn.Parameter(torch.empty(width))
        self.embed_particle = FullyConnected((inputs.n_pdg + N_CHARGE + 7, width, width))
        self.embed_seed = nn.Linear(width, width, bias=False)
        self.embed_pooled = nn.Linear(width, width, bias=False)
        self.stack = CoverageDecoder(config, layers=config.decoder_layers)
        self.pointer = SeedPointer(width=width, hidden_width=config.hidden_width)
        self.embed_track = self.starts = None
        if config.parallel_tracks:  # initially the state of each track is the state at the beginning
            self.embed_track = ConstantLinear(width, width, bias=False)
            self.starts = FullyConnected((width, width, 1), initial=START_PRIOR)

    def of_tracks(self, source: EncodedSource, memory: Memory, mask: Tensor) -> tuple[Tensor, Tensor]:
        """States of the particles that the tracks may start, float [B, K, W], and logits [B, K] that they do.

        The tracks, of `mask` bool [B, K], see each other, and no other particle. A track that starts none is for a
        neutral particle (K0S, Lambda, converted photon), is one more of a particle's tracks, or is no particle's.
        """
        assert self.embed_track is not None
        assert self.starts is not None
        track, tokens = source.tokens.track, source.tokens
        nothing = tokens.energy.new_zeros(len(track), 1, track.shape[1], tokens.mask.shape[1])
        x = self.bos + self.embed_track(gather(source.states, track))
        states = self.stack(x, memory.layers, Coverage.of(nothing, tokens.mask), mask=mask)
        return states, self.starts(states).squeeze(-1)

    def embed(self, particles: PreviousParticles, tables: Tables) -> Tensor:
        """Embedded particles float [N, W]."""
        log_energy, deposit = particles.log_energy[:, None], particles.deposit[:, None]
        features = [
            functional.one_hot(particles.pdg, self.n_pdg).to(log_energy.dtype),
            functional.one_hot(particles.charge, N_CHARGE).to(log_energy.dtype),
            log_energy / 2.0,
            ((deposit + 0.05).log() - log_energy).clamp(-4.0, 4.0),
            (deposit + 1e-3).log() / 2.0,
            TokenTracks.of(tables.tokens.tracks.index_select(0, particles.seed)).is_track,
            particles.direction,
        ]
        first, last = self.embed_particle[0], self.embed_particle[-1]
        hidden = gelu(first(torch.cat(features, dim=1)))
        # The sum of three maps as one.
        weight = torch.cat([last.weight, self.embed_seed.weight, self.embed_pooled.weight], dim=1)  # type: ignore[list-item]
        inputs = torch.cat([hidden, tables.states.index_select(0, particles.seed), particles.pooled], dim=1)
        return functional.linear(inputs, weight, last.bias)  # type: ignore[arg-type]

    def project(self, states: Tensor) -> Memory:
        """Of encoder states float [B, S, W]."""
        return Memory(self.stack.project(states), self.pointer.project(states))

    def forward(
        self, x: Tensor, tables: Tables, assigned_energy: Tensor, memory: Memory, caches: Caches = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """States like x, logits of the next seed, [B, T, S] or [B, S], and of the end, [B, T, 1] or [B, 1].

        Of the embedded beginning and particles [B, T, W], or with `caches` the newest token [B, W]. `assigned_energy`,
        float [B * T * S], is each token's energy assigned before each position, GeV; `memory` is `project` of the
        source's states.
        """
        batch, steps, n_tokens = len(x), 1 if x.ndim == 2 else x.shape[1], tables.n_tokens
        energy = tables.tokens.energy.view(batch, 1, 1, n_tokens)
        assigned_energy = assigned_energy.view(batch, 1, steps, n_tokens)
        assigned = assigned_energy / energy.clamp(min=1e-9)
        mask = tables.tokens.mask.view(batch, n_tokens) if tables.padded else None
        decoded = self.stack(x, memory.layers, Coverage.of(assigned, mask), caches=caches)
        logits, eos_logit = self.pointer(decoded, memory.pointer, assigned, (energy - assigned_energy).clamp(min=0.0))
        if mask is not None:
            logits = logits.masked_fill(~(mask if x.ndim == 2 else mask[:, None]), MASKED_LOGIT)
        return decoded, logits, eos_logit
