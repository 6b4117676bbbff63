"""All target particles at once.

Letters: B batch, S source tokens, M items, K tracks whose particles are decoded at the same time (0 in a network
without `parallel_tracks`), R particles that are decoded one by one, T = K + R, P pairs, W width.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Target
from pflow.model.pointing.assignment import Assignment, PairList, selected
from pflow.model.pointing.config import PointingTrainingConfig
from pflow.model.pointing.decoder import PreviousParticles
from pflow.model.pointing.generate import particles_of
from pflow.model.pointing.geometry import EncodedSource, Tables, gather
from pflow.model.pointing.head import LN10, Particles
from pflow.model.pointing.network import PointingNetwork

SCHEDULED_SAMPLING_PROB = 0.5
"""Probability that the earlier particles of a batch are the network's own predictions, not the targets."""

ORDER_NOISE_STD = 0.2
"""Standard deviation of the noise on ln E by which the targets are ordered."""


class TeacherForcing(NamedTuple):
    """Predictions of the first stage and their targets."""

    target: Target  # the particles, in the order of the predictions
    starts: Tensor  # float [B, K], logits of whether a track starts a charged particle; its target is the mask
    is_track: Tensor  # bool [B, K], True = real track
    pointer: Tensor  # float [B, R + 1, S + 1], log probabilities of the next seed and of the end
    seed_weight: Tensor  # float [B, R, S], how suitable each token is as a seed, 0 to 1
    logits: Tensor  # float [P], of the assignment
    target_fraction: Tensor  # float [P], targets of the logits, as probabilities
    weight: Tensor  # float [P], of each pair in the loss, GeV^(1/2)
    pairs: PairList
    particles: Particles


class _Pass(NamedTuple):
    starts: Tensor  # [B, K]
    logits: Tensor  # [B, R + 1, S + 1]
    seed: Tensor  # [N], indices into B * S
    assignment: Assignment
    pairs: PairList
    particles: Particles


def teacher_forcing(
    network: PointingNetwork,
    source: EncodedSource,
    target: Target,
    training: PointingTrainingConfig,
    *,
    own_particles: bool = False,
) -> TeacherForcing:
    """Predict each particle of a target with fractions of hits and tracks after the particles before it.

    In training mode the order of the targets has noise, and some are deferred. With `own_particles` the particles
    before are the network's own predictions (Bengio et al. 2015, scheduled sampling), so that it learns to recover
    from its own mistakes and to find what it has left out.
    """
    if network.training:
        target = reordered(target, training.deferred_target_prob, energy_std=network.energy_scale.std)
    k = 0
    if network.decoder.embed_track is not None:
        target, k = behind_tracks(target, source), source.tokens.track.shape[1]
    tables, fraction = source.tables(), target_fractions(target)
    weight = seed_weights(fraction, target, source)[:, k:]
    seed = (weight * source.tokens.energy.sqrt()[:, None]).argmax(-1)  # [B, R]
    on_tokens = source.on_tokens(fraction[:, k:])
    assigned = _before(fraction, k)
    previous = PreviousParticles(
        pdg=target.pdg[:, k:].flatten(),
        charge=target.charge[:, k:].flatten(),
        log_energy=network.energy_scale.log_energy(target.energy[:, k:]).flatten(),
        direction=target.direction[:, k:].flatten(0, 1),
        seed=source.in_tables(seed).flatten(),
        deposit=(fraction[:, k:] @ source.items.energy[..., None]).flatten(),
        pooled=(on_tokens @ source.states / on_tokens.sum(-1, keepdim=True).clamp(min=1e-9)).flatten(0, 1),
    )
    if own_particles:
        with torch.no_grad():
            sampled = _run(network, source, tables, target, previous, assigned, weight)
        particles, seeds = (sampled.particles.view(*target.mask.shape), sampled.seed.view(target.mask.shape)[:, k:])
        previous = Particles(*(values[:, k:].flatten(0, 1) for values in particles)).as_previous(seeds.flatten())
        assigned = _before(sampled.pairs.dense(sampled.assignment.hit_fraction), k)
    prediction = _run(network, source, tables, target, previous, assigned, weight)
    pairs = prediction.pairs
    unassigned = 1.0 - pairs.values(assigned[:, :-1])
    return TeacherForcing(
        target=target,
        starts=prediction.starts,
        is_track=gather(source.tokens.is_track, source.tokens.track[:, :k]),
        pointer=prediction.logits.log_softmax(-1),
        seed_weight=weight,
        logits=prediction.assignment.logits,
        target_fraction=(pairs.values(fraction) / unassigned.clamp(min=1e-3)).clamp(max=1.0),
        weight=pairs.of_items(tables.items.weight).sqrt() * unassigned,
        pairs=pairs,
        particles=prediction.particles.view(*target.mask.shape),
    )


def _run(
    network: PointingNetwork,
    source: EncodedSource,
    tables: Tables,
    target: Target,
    previous: PreviousParticles,
    assigned: Tensor,
    weight: Tensor,
) -> _Pass:
    """One pass; assigned float [B, T + 1, M] before each position, weight float [B, R, S] of seeds."""
    decoder, (batch, steps, _) = network.decoder, weight.shape
    k = target.mask.shape[1] - steps
    embedded = decoder.embed(previous, tables).view(batch, steps, len(decoder.bos))
    x = torch.cat([decoder.bos.expand(batch, 1, -1), embedded], dim=1)
    memory = decoder.project(source.states)
    states, logits, eos_logit = decoder(x, tables, source.on_tokens(assigned[:, k:]).flatten(), memory=memory)
    states = states[:, :-1]
    seed = _choose_seeds(logits[:, :-1].detach(), weight, source, random=network.training)
    starts, of_track = logits.new_zeros(batch, 0), None
    if decoder.embed_track is not None:
        is_track = gather(source.tokens.is_track, source.tokens.track)
        of_tracks, starts = decoder.of_tracks(source, memory, is_track)
        states = torch.cat([of_tracks, states], dim=1)
        seed = torch.cat([source.tokens.track, seed], dim=1)
        of_track = functional.pad(target.mask[:, :k], (0, steps)).flatten()
    unassigned = 1.0 - assigned[:, :-1]
    near = selected(gather(source.tokens.unit, seed), tables, unassigned)
    if k:
        near |= functional.pad(seed[:, :k, None] == source.items.token[:, None], (0, 0, 0, steps))
    pairs, seed = PairList.where(near & target.mask[..., None]), source.in_tables(seed).flatten()
    assignment, particles = particles_of(
        network,
        tables,
        states.flatten(0, 1),
        seed,
        pairs.values(unassigned),
        pairs,
        target.pdg.flatten(),
        of_track=of_track,
        dtype=torch.float32,
    )
    return _Pass(starts, torch.cat([logits, eos_logit], dim=-1), seed, assignment, pairs, particles)


def _choose_seeds(logits: Tensor, weight: Tensor, source: EncodedSource, *, random: bool) -> Tensor:
    """Suitable seeds int64 [B, T]: the most probable, or if `random` half of them drawn by weight and energy."""
    best = (logits + (weight + 1e-9).log()).argmax(-1)
    if not random:
        return best
    likely = weight * source.tokens.energy.sqrt()[:, None] + 1e-12
    # The same numbers as by torch.multinomial, which waits for a GPU to look whether weights are possible.
    drawn = (likely / torch.empty_like(likely).exponential_()).argmax(-1)
    return torch.where(torch.rand(best.shape, device=best.device) < 0.5, best, drawn)


def target_fractions(target: Target) -> Tensor:
    """Fractions of hits and tracks, float [B, T, M]; ValueError if the target has none."""
    if target.hit_fraction is None or target.track_fraction is None:
        raise ValueError("target: it has no fractions of hits and tracks, the targets of the assignment")
    return torch.cat([target.hit_fraction, target.track_fraction], dim=-1)


def seed_weights(fraction: Tensor, target: Target, source: EncodedSource) -> Tensor:
    """How suitable each token is as a seed of each particle, float [B, T, S] in [0, 1]; fractions are float [B, T, M].

    The seed of a charged particle with a track is its track. The seed of any other is a hit token, with a weight that
    increases with the particle's fraction of the token and with their energy; without hits it is a track.
    """
    of_token = source.assigned(fraction)  # [B, T, S]
    energy = of_token * source.tokens.energy[:, None]
    is_track = source.tokens.is_track[:, None]
    tracks = torch.where(is_track & (of_token > 0.5), energy, 0.0)
    hits = torch.where(is_track, 0.0, energy)
    charged = (target.charge != 1) & (tracks.amax(-1) > 0)
    by_track = charged | (hits.amax(-1) <= 0)
    candidate = torch.where(by_track[..., None], tracks, hits)
    strength = (candidate / candidate.amax(-1, keepdim=True).clamp(min=1e-9)).sqrt()
    return strength * of_token * target.mask[..., None]


def reordered(target: Target, deferred_prob: float, *, energy_std: float) -> Target:
    """Targets with a track first, each group by falling ln E with noise; deferred targets behind all others.

    `energy_std` is the standard deviation of log10(E / GeV), by which energies are normalised.
    """
    assert target.track_fraction is not None
    log_energy = LN10 * energy_std * target.energy
    noise = ORDER_NOISE_STD * torch.randn_like(log_energy)
    has_track = (target.track_fraction > 0.5).any(-1) & (target.charge != 1)
    deferred = torch.rand_like(log_energy) < deferred_prob
    key = 1e3 * has_track - 1e4 * deferred + log_energy + noise - 1e6 * ~target.mask
    return select(target, key.argsort(dim=1, descending=True))


def select(target: Target, index: Tensor) -> Target:
    """The targets with fractions of index int64 [B, T']; padding where the index is the number of targets."""
    values = {}
    for field in dataclasses.fields(target):
        given = getattr(target, field.name)
        values[field.name] = gather(torch.cat([given, given.new_zeros(len(given), 1, *given.shape[2:])], dim=1), index)
    return Target(**values)


def behind_tracks(target: Target, source: EncodedSource) -> Target:
    """The targets of the particles that tracks start, [B, K], then the other targets, [B, R], in their order.

    A track starts the charged particle of most of it, unless a track of that particle has a larger momentum; it has no
    target then, like a track of a neutral particle or of none.
    """
    assert target.track_fraction is not None
    n_targets = target.mask.shape[1]
    momentum = gather(source.tokens.energy, source.tokens.track)  # [B, K]
    share, owner = (target.track_fraction * (target.charge != 1)[..., None]).max(1)
    owner = torch.where(share > 0.5, owner, n_targets)
    largest = torch.zeros_like(functional.pad(target.energy, (0, 1)))
    largest = largest.scatter_reduce(1, owner, momentum, "amax").gather(1, owner)
    owner = torch.where(momentum >= largest, owner, n_targets)
    started = torch.zeros_like(functional.pad(target.mask, (0, 1))).scatter(1, owner, True)[:, :-1]
    rest = target.mask & ~started
    order = (~rest).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(rest.sum(1).max())]
    order = torch.where(gather(rest, order), order, n_targets)
    return select(target, torch.cat([owner, order], dim=1))


def _before(fraction: Tensor, k: int) -> Tensor:
    """Assigned fraction of each item before each position, 0 before the first k; [B, T, M] to [B, T + 1, M]."""
    nothing = fraction.new_zeros(len(fraction), 1, fraction.shape[2])
    before = torch.cat([nothing, fraction.cumsum(1).clamp(max=1.0)], dim=1)
    before[:, :k] = 0.0
    return before
