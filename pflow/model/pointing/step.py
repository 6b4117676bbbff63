"""One decoder step: from the particles decoded so far to the next particle, or the end.

Of tensors alone, so that the same lines decode batches (`pflow.model.pointing.generate`), are traced for the export
(`pflow.export.pointing`), and, with all steps at once after known particles, train (`forced` here, and
`pflow.model.pointing.teacher_forcing`).

Letters: B batch, T particles, N = B * T, S source tokens, M items (hits, then tracks), P pairs of a particle and an
item, W width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pflow.model.common.attention import Cache
from pflow.model.common.decode import Compaction
from pflow.model.pointing.assignment import Assignment, PairList, Pairs, PairsOfOne, selected
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import Memory
from pflow.model.pointing.geometry import EncodedSource, Tables, TokenFrames, gather
from pflow.model.pointing.head import Particles
from pflow.model.pointing.network import PointingNetwork

MAX_EMPTY_STEPS = 3
"""Decoding stops after so many steps in a row whose particle has less energy than any target, or is empty."""

MIN_START_PROBABILITY = 0.3
"""Smallest probability that a track starts a charged particle: below one half, as most tracks do."""

MIN_DEPOSIT_FRACTION = 0.5
"""A particle is empty if it has no track and hits of less than this fraction of the smallest energy of a target."""


class State(NamedTuple):
    """What one step hands to the next, beside the keys and values of the earlier particles."""

    embedded: Tensor  # float [B, W], the newest particle, or the beginning, as input of the decoder
    unassigned: Tensor  # float [B * M], unassigned fraction of each item
    assigned_energy: Tensor  # float [B * S], assigned energy of each token, GeV
    empty_steps: Tensor  # int64 [B], steps in a row with an empty particle

    @classmethod
    def first(cls, network: PointingNetwork, tables: Tables, batch: int) -> State:
        """Before the first step."""
        return cls(
            embedded=torch.zeros_like(tables.states[:batch]) + network.decoder.bos,
            unassigned=torch.ones_like(tables.items.weight),
            assigned_energy=torch.zeros_like(tables.tokens.energy),
            empty_steps=torch.zeros_like(tables.states[:batch, 0], dtype=torch.int64),
        )

    def compact(self, compaction: Compaction) -> State:
        """Keep the events that are still decoding; in place, except for the copied last particles."""
        batch = len(self.embedded)
        parts = self._replace(embedded=self.embedded.clone())
        return State(*(compaction.apply(part.view(batch, -1)).view(-1, *part.shape[1:]) for part in parts))


class TrackParticles(NamedTuple):
    """The particles that tracks start, decoded at the same time, and the state after them."""

    rows: dict[str, Tensor]  # columns [B, K, ...], as of `emit`
    mask: Tensor  # bool [B, K], True = the track starts a particle
    state: State


class Pointed(NamedTuple):
    """Where the next particle starts."""

    states: Tensor  # float [B, W], decoder states
    seed: Tensor  # int64 [B], token of the event
    stop: Tensor  # bool [B], True = there is no particle


def step(
    network: PointingNetwork,
    tables: Tables,
    state: State,
    caches: Sequence[Cache],
    memory: Memory,
    decoding: PointingDecodingConfig,
) -> tuple[State, dict[str, Tensor], Tensor]:
    """A step of one event: the state after it, the particle [1, ...] by column, and `stop`, bool [1]."""
    pointed = point(network, tables, state, caches, memory, decoding)
    pairs = PairsOfOne(candidates(tables, state, pointed).nonzero().squeeze(1))
    following, row = emit(network, tables, state, pointed, pairs)
    return following, row, pointed.stop


def point(
    network: PointingNetwork,
    tables: Tables,
    state: State,
    caches: Sequence[Cache],
    memory: Memory,
    decoding: PointingDecodingConfig,
) -> Pointed:
    """Decode the next state of each event, and choose the most probable seed of its particle.

    Decoding stops when the probability of the end reaches ``eos_threshold``.
    """
    states, logits, eos_logit = network.decoder(state.embedded, tables, state.assigned_energy, caches, memory)
    eos_probability = 1.0 / (1.0 + (logits - eos_logit).exp().sum(1))
    stop = (eos_probability >= decoding.eos_threshold) | (state.empty_steps >= MAX_EMPTY_STEPS)
    return Pointed(states, logits.argmax(-1), stop)


def candidates(tables: Tables, state: State, pointed: Pointed) -> Tensor:
    """The items that the particle of each event may be assigned, bool [B * M]: one of the seed's in any case."""
    batch = len(pointed.seed)
    seed = _in_tables(pointed.seed, tables)
    unit = TokenFrames.of(tables.tokens.frames.index_select(0, seed)).unit
    near = selected(unit.view(batch, 1, 3), tables, state.unassigned.view(batch, 1, tables.n_items))
    seed_item = tables.tokens.item.index_select(0, seed)
    return near.view(-1).scatter(0, seed_item, seed_item >= 0)


def emit(
    network: PointingNetwork,
    tables: Tables,
    state: State,
    pointed: Pointed,
    pairs: Pairs,
) -> tuple[State, dict[str, Tensor]]:
    """The particle that starts at the seed of each event, as columns [B, ...], and the state after it.

    A particle with less energy than any target keeps its hits, but ``is_particle`` is False.
    """
    batch, seed = len(pointed.seed), _in_tables(pointed.seed, tables)
    unassigned = pairs.of_items(state.unassigned)
    assignment, particles = particles_of(network, tables, pointed.states, seed, unassigned, pairs)
    charge = network.head.choose_charge(particles)
    fraction = assignment.hit_fraction
    token = pairs.of_items(tables.items.token)
    deposit = fraction * pairs.of_items(tables.items.weight)
    is_large = particles.log_energy >= network.min_log_energy
    has_track = pairs.any((fraction >= 0.5) & tables.tokens.is_track.index_select(0, token))
    min_deposit = MIN_DEPOSIT_FRACTION * math.exp(network.min_log_energy)  # GeV
    counts = is_large & ((particles.deposit >= min_deposit) | has_track)
    following = State(
        embedded=network.decoder.embed(particles.as_previous(seed, charge=charge), tables),
        unassigned=state.unassigned.scatter(0, pairs.item, unassigned - fraction),
        assigned_energy=state.assigned_energy.scatter_add(0, token, deposit),
        empty_steps=torch.where(counts, 0, state.empty_steps + 1),
    )
    row = {
        "is_particle": is_large | particles.log_energy.isnan(),  # the caller must see it
        "seed": pointed.seed,
        "embedded": following.embedded,
        "query": assignment.query,
        "hit_fraction": torch.zeros_like(state.unassigned).scatter(0, pairs.item, fraction).view(batch, tables.n_items),
        **particles.columns(charge),
    }
    return following, row


def emit_tracks(
    network: PointingNetwork, source: EncodedSource, tables: Tables, memory: Memory, is_track: Tensor
) -> TrackParticles:
    """The charged particles of tracks of a network with `parallel_tracks`, and the state before all others.

    `is_track`, bool [B, K], says which of ``source.tokens.track`` are tracks.
    """
    track, (batch, n_items) = source.tokens.track, source.items.mask.shape
    states, starts = network.decoder.of_tracks(source, memory, is_track)
    states, seed = states.flatten(0, 1), source.in_tables(track).flatten()
    mask = is_track & (starts.sigmoid() >= MIN_START_PROBABILITY)
    nothing = torch.ones_like(source.items.weight[:, None].expand(-1, track.shape[1], -1))
    near = selected(gather(source.tokens.unit, track), tables, nothing)
    is_seed = track[..., None] == source.items.token[:, None]
    pairs = PairList.where((near | is_seed) & mask[..., None])
    assignment, particles = particles_of(
        network, tables, states, seed, pairs.values(nothing), pairs, of_track=mask.flatten()
    )
    charge = network.head.choose_charge(particles)
    fraction = pairs.dense(assignment.hit_fraction)
    assigned = fraction.sum(1, keepdim=True).clamp(max=1.0)  # [B, 1, M]
    state = State.first(network, tables, batch)._replace(
        unassigned=(1.0 - assigned).flatten(), assigned_energy=source.on_tokens(assigned).flatten()
    )
    columns = {
        "is_particle": mask.flatten(),
        "seed": track.flatten(),
        "embedded": network.decoder.embed(particles.as_previous(seed, charge=charge), tables),
        "query": assignment.query,
        "hit_fraction": fraction.view(-1, n_items),
        **particles.columns(charge),
    }
    rows = {name: values.view(*track.shape, *values.shape[1:]) for name, values in columns.items()}
    return TrackParticles(rows, mask, state)


def particles_of(
    network: PointingNetwork,
    tables: Tables,
    states: Tensor,
    seed: Tensor,
    unassigned: Tensor,
    pairs: Pairs,
    pdg: Tensor | None = None,
    *,
    of_track: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Assignment, Particles]:
    """Assign items to particles, and predict them in the precision `dtype`.

    Of decoder states [N, W], seeds int64 [N], indices into B * S, the unassigned fraction [P] of the item of each pair,
    and identities int64 [N] where they are known. Particles `of_track`, bool [N], are decoded at the same time: each
    has its track, and their fractions of an item sum to at most 1.
    """
    assignment = network.assignment(states, seed, tables, unassigned, pairs)
    if of_track is not None:
        shared, fraction = pairs.of_particles(of_track), assignment.hit_fraction
        is_seed = pairs.item == pairs.of_particles(tables.tokens.item.index_select(0, seed))
        fraction = torch.where(shared & is_seed, 1.0, fraction)
        total = torch.zeros_like(tables.items.weight).index_add(0, pairs.item, fraction * shared)
        fraction = torch.where(shared, fraction / pairs.of_items(total.clamp(min=1.0)), fraction)
        assignment = assignment._replace(hit_fraction=fraction)
    fraction = assignment.hit_fraction.detach().to(dtype)
    particles = network.head(assignment.query, seed, fraction, pairs, tables, pdg=pdg)
    return assignment, particles


def _in_tables(token: Tensor, tables: Tables) -> Tensor:
    """Indices into B * S of one token int64 [B] of each event."""
    if len(token) == 1:
        return token
    return token + torch.arange(len(token), device=token.device) * tables.n_tokens
