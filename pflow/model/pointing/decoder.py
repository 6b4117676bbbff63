"""The decoder's modules: states, seeds and the end; and which hits and tracks a particle is assigned.

Values of pairs of a particle and an item are rows, [F, P], so that each operation goes through memory once; values of
particles are columns, [N, F].

Letters: B batch, T particles, N = B * T, S tokens, M items, P pairs, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.api import ModelInputs
from pflow.model.decode import where
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.geometry import (
    EncodedSource,
    ItemFeatures,
    ItemPlaces,
    Items,
    Tables,
    TokenFrames,
    TokenTracks,
    cosines,
    gather,
)
from pflow.model.transformer import (
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

CONE = 0.3  # rad, angle to a seed within which hits and tracks can be assigned to its particle
# Items with a smaller unassigned fraction are in no pair: the number of pairs shrinks as hits are assigned. Over the
# width above it, the part of the unassigned fraction that can be assigned falls to 0.
MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH = 0.01, 0.005

PAIR_FEATURES = (
    *("log_across", "near", "wide", "along", "depth", "log_angle", "angle", "same_token"),
    *("theta", "near_theta", "arc", "near_theta_arc"),
)
"""Features of the position of an item relative to a seed. Of the distance across the shower's axis: logarithm, and
exponentials over a short and a long distance; of the distance along it: itself, and exponential; of the angle:
logarithm, and exponential; whether the item is in the seed's token; and differences in angle: without tracks these
tell the two showers of a converted photon, which the field separates in azimuth, from two photons."""


class PairList(NamedTuple):
    """A list of the pairs of many particles."""

    item: Tensor  # int64 [P], indices into B * M
    particle: Tensor  # int64 [P], indices into B * T
    flat: Tensor  # int64 [P], indices into B * T * M
    event: Tensor  # int64 [P], indices into B
    shape: tuple[int, int, int]  # B, T and M

    @classmethod
    def where(cls, selected: Tensor, size: int | None = None) -> PairList:
        """The pairs that `selected`, bool [B, T, M], selects; `size`, their number, avoids a GPU synchronisation."""
        batch, steps, n_items = selected.shape
        if size is None:
            event, step, item = selected.nonzero(as_tuple=True)
            particle = step if batch == 1 else event * steps + step
            flat = particle * n_items + item
        else:
            flat = where(selected.flatten(), size)
            particle, item = flat // n_items, flat % n_items
            event = particle // steps
        if batch > 1:
            item = event * n_items + item
        return cls(item, particle, flat, event, (batch, steps, n_items))

    def values(self, values: Tensor) -> Tensor:
        """The pairs' values, [P], of [B, T, M]."""
        # One index along one axis: with several indices it takes three times as long on a CPU.
        return values.flatten().index_select(0, self.flat)

    def dense(self, values: Tensor) -> Tensor:
        """Values float [P] of the pairs in a tensor of zeros [B, T, M]."""
        batch, steps, n_items = self.shape
        return values.new_zeros(batch * steps * n_items).scatter(0, self.flat, values).view(self.shape)

    def sums(self, rows: Tensor) -> Tensor:
        """Sums of rows [F, P] over the pairs of each particle, [N, F]."""
        batch, steps, _ = self.shape
        return rows.new_zeros(batch * steps, rows.shape[0]).index_add(0, self.particle, rows.t())

    def mean_state(self, weight: Tensor, token: Tensor, states: Tensor) -> Tensor:
        """Mean, weighted by float [P], of the states [B * S, W] of the tokens int64 [P] of each particle's items."""
        batch, steps, _ = self.shape
        n_tokens = states.shape[0] // max(batch, 1)
        states = states.view(batch, n_tokens, states.shape[-1])
        # Weights are summed on tokens first: the product then needs no copy of a state for each pair, [P, W].
        index = (self.particle - self.event) * n_tokens + token  # an event's tokens begin at its number times S
        on_tokens = weight.new_zeros(batch * steps * n_tokens).index_add(0, index, weight).view(batch, steps, n_tokens)
        # A particle without deposit, such as padding, gets a state of 0 and not NaN.
        return (on_tokens @ states / on_tokens.sum(-1, keepdim=True).clamp(min=1e-9)).flatten(0, 1)


def ramp(values: Tensor, start: float, width: float) -> Tensor:
    """From 0 at `start` to 1 at ``start + width``, which may lie below: a cut would turn rounding into a jump."""
    return ((values - start) / width).clamp(0.0, 1.0)


def rows_at(values: Tensor, index: Tensor) -> Tensor:
    """Values [N, F] at an index [P], a row for each column: [F, P]."""
    # Row by row into place: a copy of [P, F] that is then transposed takes ten times as long on a CPU.
    return values.t().gather(1, index.expand(values.shape[1], -1))


def sums_of_each(pairs: PairList, *rows: Tensor) -> tuple[Tensor, ...]:
    """`PairList.sums` of several rows [F, P], [N, F] of each."""
    return pairs.sums(torch.cat(rows)).split_with_sizes([each.shape[0] for each in rows], dim=1)


def rows_of_each(pairs: PairList, *values: Tensor) -> tuple[Tensor, ...]:
    """The values of each pair's particle, [F, P], of several columns [N, F]."""
    return rows_at(torch.cat(values, dim=1), pairs.particle).split_with_sizes([each.shape[1] for each in values])


def lengths(rows: Tensor) -> Tensor:
    """Lengths [1, P] of the vectors in rows [F, P]; torch's norm along them takes fifty times as long on a CPU."""
    return rows.square().sum(0, keepdim=True).sqrt()


class Assignment(NamedTuple):
    """Hits and tracks of particles."""

    query: Tensor  # float [N, W], what describes the particle to the assignment and to its head
    logits: Tensor  # float [P], of the particle's fraction of the item's unassigned part
    hit_fraction: Tensor  # float [P], fraction of the item that is the particle's


class ParticleAssignment(nn.Module):
    """Assign items to the particles that start at given seeds."""

    def __init__(self, config: PointingNetworkConfig, *, n_subdetectors: int) -> None:
        super().__init__()
        width = config.width
        self.query = FullyConnected((2 * width, width, width))
        self.pair_logits = AssignmentLogits(config, n_subdetectors=n_subdetectors)

    def forward(self, states: Tensor, seed: Tensor, tables: Tables, unassigned: Tensor, pairs: PairList) -> Assignment:
        """Assign to particles with decoder states [N, W] and seeds int64 [N], indices into B * S.

        `unassigned`, float [P], is the unassigned fraction of each pair's item before the particle.
        """
        query = self.query(torch.cat([states, tables.states.index_select(0, seed)], dim=1))
        logits = self.pair_logits(query, seed, tables, tables.hidden, (1.0 - unassigned)[None], pairs)
        # 0 where `candidates` drops the item: rounding at its threshold then changes next to nothing.
        available = unassigned * ramp(unassigned, MIN_UNASSIGNED, MIN_UNASSIGNED_WIDTH)
        return Assignment(query, logits, logits.sigmoid() * available)


def candidates(tables: Tables, seed: Tensor, unassigned: Tensor) -> Tensor:
    """Items that the particles of seeds int64 [B, T], indices into B * S, may be assigned, bool [B, T, M].

    They are near the seed and not assigned to others: `unassigned`, float [B, T, M] or [B, 1, M]. The items
    of the seed's token are among them in any case, so that each particle has a pair.
    """
    frames = TokenFrames.of(tables.tokens.frames.index_select(0, seed.flatten()))
    unit, of_token = frames.unit.view(*seed.shape, 3), tables.items.token.view(len(seed), 1, tables.n_items)
    near = (cosines(unit, tables.items.direction) > math.cos(CONE)) & (unassigned >= MIN_UNASSIGNED)
    near = near | (of_token == seed[..., None])
    return near & tables.items.mask.view_as(of_token) if tables.padded else near


class AssignmentLogits(nn.Module):
    """A logit for each pair of a particle and an item.

    Of the particle's query, the memory of the item's token, the item, its position relative to the seed along and
    across the axis of the shower that starts there, and `n_known` known fractions of the item.
    """

    def __init__(
        self, config: PointingNetworkConfig, *, n_subdetectors: int, n_known: int = 1, initial: float | None = None
    ) -> None:
        super().__init__()
        width, hidden_width = config.width, config.hidden_width
        self.query = nn.Linear(width, hidden_width)
        self.token = nn.Linear(width, hidden_width, bias=False)
        self.item = nn.Linear(sum(ItemFeatures.widths()) + n_subdetectors, hidden_width, bias=False)
        self.geometry = nn.Linear(len(PAIR_FEATURES) + n_known, hidden_width, bias=False)
        self.out = FullyConnected((hidden_width, 16, 1), initial=initial)
        # Distances over which exponentials fall by e: of across (twice) and along [mm], angle [rad], theta.
        falls_over = torch.tensor([[10.0], [50.0], [50.0], [0.02], [1.0]])
        self.register_buffer("falls_over", falls_over, persistent=False)

    def items(self, memory: Tensor, items: Items) -> Tensor:
        """The part that all particles share, float [B, M, hidden]: memory float [B, S, W] of the tokens, and items."""
        return gather(self.token(memory), items.token) + self.item(items.features)  # type: ignore[no-any-return]

    def forward(
        self, query: Tensor, seed: Tensor, tables: Tables, hidden: Tensor, known: Tensor, pairs: PairList
    ) -> Tensor:
        """Logits float [P] of queries [N, W] and seeds int64 [N], indices into B * S.

        `hidden`, float [B * M, hidden], is from `items`; `known`, float [n_known, P], are the known fractions.
        """
        # One linear map of joined inputs, taken apart: what items and particles add is not computed for each pair.
        x = hidden.index_select(0, pairs.item) + self.query(query).index_select(0, pairs.particle)
        features = torch.cat([*self._features(seed, tables, pairs), known])
        x = torch.addmm(x, features.t(), self.geometry.weight.t())
        return self.out(gelu(x)).squeeze(-1)  # type: ignore[no-any-return]

    def _features(self, seed: Tensor, tables: Tables, pairs: PairList) -> Sequence[Tensor]:
        """`PAIR_FEATURES`, float [1, P] each."""
        start = TokenFrames.of(rows_at(tables.tokens.frames.index_select(0, seed), pairs.particle), dim=0)
        from_start = ItemPlaces.of(rows_at(tables.items.places, pairs.item) - start.place, dim=0)
        offset, apart = from_start.position, from_start.unit
        along = (offset * start.axis).sum(0, keepdim=True)
        across = lengths(offset.addcmul(along, start.axis, value=-1))
        angle = lengths(apart)
        # Rounded angle and rest are subtracted apart and then summed: a small difference keeps its digits.
        theta = from_start.theta.sum(0, keepdim=True)
        arc = (apart * start.azimuth).sum(0, keepdim=True)
        sizes = torch.cat([across, across, along.abs(), angle, theta.abs()])
        near, wide, depth, narrow, near_theta = (sizes / -self.get_buffer("falls_over")).exp().chunk(5)
        token = tables.items.token.index_select(0, pairs.item)
        same = (token == seed.index_select(0, pairs.particle))[None].to(along.dtype)
        # asinh resolves angles of the order of their units, and still grows slowly up to the edge of the cone.
        turned, bent = torch.cat([theta, arc]).asinh().chunk(2)
        return (
            *(torch.log1p(across / 10.0), near, wide, (along / 300.0).clamp(-3.0, 5.0), depth),
            *((angle + 1e-3).log() / 2.0, narrow, same, turned, near_theta, bent, near_theta * bent.abs()),
        )


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


class CoverageAttention(nn.Module):
    """Attention to the source: a head's logits gain s_h ln(unassigned fraction), with s_h learned."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.attention = CrossAttention(width=width, heads=heads)
        self.strength = nn.Parameter(torch.ones(heads))

    def set_initial_values(self) -> None:
        """Set the initial strengths."""
        self.strength.fill_(1.0)

    def forward(self, x: Tensor, memory: tuple[KeyValue, Tensor], *, mask: Mask = None) -> Tensor:
        """Attend from x float [B, T, W] or [B, W] to the source, whose tokens have a `mask`.

        The memory is keys and values, and ln(unassigned fraction) of each token, float [B, 1, T, S].
        """
        known, log_unassigned = memory
        bias = self.strength[:, None, None] * log_unassigned  # [B, H, T, S]
        if mask is not None:
            bias = bias + torch.where(mask, 0.0, MASKED_LOGIT).to(bias.dtype)[:, None, None]
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
        self,
        x: Tensor,
        memory: Sequence[KeyValue],
        assigned: Tensor,
        *,
        memory_mask: Mask,
        mask: Mask = None,
        caches: Caches = None,
    ) -> Tensor:
        """Decode x, float [B, T, W] or with `caches` [B, W], with a memory from `project`.

        `assigned`, float [B, 1, T, S], is the fraction of each token of the source that other particles have. With
        `mask` each particle attends to all; else to itself and to earlier ones.
        """
        log_unassigned = ((1.0 + EPS_UNASSIGNED) - assigned).clamp(min=EPS_UNASSIGNED).log()
        if mask is not None:  # attention to nothing is not defined: the first token is attended to in any case
            mask = functional.pad(mask[:, 1:], (1, 0), value=True)
        past = caches if caches is not None else [None] * len(self.layers)
        for layer, known, cache in zip(self.layers, memory, past, strict=True):
            x = layer(x, (known, log_unassigned), memory_mask=memory_mask, mask=mask, causal=mask is None, cache=cache)
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
        # In this order the keys lie in memory as [hidden, S], as the product of each step reads them.
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
        # 1 MeV is added: a token whose energy is all assigned still has a finite logarithm.
        logits = plain.addcmul(of_assigned, assigned).addcmul(of_energy, (unassigned_energy + 1e-3).log())
        # Of a batch without events -1 cannot be inferred.
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
        # Tracks are decoded before all other particles: no item is assigned yet.
        nothing = tokens.energy.new_zeros(len(track), 1, track.shape[1], tokens.mask.shape[1])
        x = self.bos + self.embed_track(gather(source.states, track))
        states = self.stack(x, memory.layers, nothing, memory_mask=tokens.mask, mask=mask)
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
        # Padding and tokens without energy count as unassigned, and not as NaN.
        assigned = assigned_energy / energy.clamp(min=1e-9)
        mask = tables.tokens.mask.view(batch, n_tokens) if tables.padded else None
        decoded = self.stack(x, memory.layers, assigned, memory_mask=mask, caches=caches)
        # Rounding may assign more than there is: the pointer takes the logarithm of what is left.
        logits, eos_logit = self.pointer(decoded, memory.pointer, assigned, (energy - assigned_energy).clamp(min=0.0))
        if mask is not None:
            logits = logits.masked_fill(~(mask if x.ndim == 2 else mask[:, None]), MASKED_LOGIT)
        return decoded, logits, eos_logit
