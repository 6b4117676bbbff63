"""Teacher forcing: all target particles at once, after the true particles or after the network's own predictions.

Letters: B batch, S source tokens, M items (hits, then tracks), T particles, P pairs, W width.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from pflow.data.batch import Target
from pflow.model.pointing.assignment import Assignment
from pflow.model.pointing.config import PointingTrainingConfig
from pflow.model.pointing.decoder import PreviousParticles
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.head import LN10, Particles
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import Pairs

__all__ = ["TeacherForcing", "reordered", "seed_weights", "target_fractions", "teacher_forcing"]


class TeacherForcing(NamedTuple):
    """Predictions of the first stage and their targets.

    Parameters
    ----------
    target
        The particles, in the order of the predictions.
    pointer : float [B, T + 1, S + 1], log probabilities of the next seed and of the end
    seed_weight : float [B, T, S], how suitable each token is as a seed, 0 to 1
    logits : float [P], logits of the assignment
    target_fraction : float [P], targets of the logits, as probabilities
    weight : float [P], weight of each pair in the loss, GeV^(1/2)
    pairs
        Pairs of particles and items.
    particles
        Predicted particles.
    """

    target: Target
    pointer: Tensor
    seed_weight: Tensor
    logits: Tensor
    target_fraction: Tensor
    weight: Tensor
    pairs: Pairs
    particles: Particles


class _Pass(NamedTuple):
    pointer: Tensor
    seed: Tensor
    assignment: Assignment
    particles: Particles


def teacher_forcing(
    network: PointingNetwork, source: EncodedSource, target: Target, training: PointingTrainingConfig
) -> TeacherForcing:
    """Predict each particle after the particles before it.

    In training mode the order of the targets has noise, and some are deferred. With ``scheduled_sampling_prob`` the
    particles before are the network's own predictions (Bengio et al. 2015), so that it learns to go on after its own
    mistakes and to find what it has left out.

    Parameters
    ----------
    network
        In training or evaluation mode.
    source
        Encoded source of the batch.
    target
        With the fractions of hits and tracks.
    training
        Noise and probabilities.

    Raises
    ------
    ValueError
        The target has no fractions.
    """
    if network.training and (training.order_noise_std > 0 or training.deferred_target_prob > 0):
        target = reordered(target, training, energy_std=network.energy_scale.std)
    fraction = target_fractions(target)
    weight = seed_weights(fraction, target, source)
    seed = (weight * source.scene.token_energy.sqrt()[:, None]).argmax(-1)  # [B, T]
    assigned = _assigned_before(fraction, network)
    deposit = fraction @ source.scene.item_energy[..., None]  # [B, T, 1]
    item_weight = source.scene.item_weight.square()
    previous = PreviousParticles(
        pdg=target.pdg,
        charge=target.charge,
        log_energy=network.energy_scale.log_energy(target.energy),
        direction=target.direction,
        seed=seed,
        deposit=deposit.squeeze(-1),
        pooled=_pooled(fraction * item_weight[:, None], source),
    )
    if network.training and float(torch.rand(())) < training.scheduled_sampling_prob:
        with torch.no_grad():
            own = _run(network, source, target, previous, assigned, weight)
        previous = own.particles.as_previous(own.seed)
        assigned = _assigned_before(own.assignment.pairs.dense(own.assignment.hit_fraction, fraction.shape), network)
    found = _run(network, source, target, previous, assigned, weight)
    pairs = found.assignment.pairs
    unassigned = 1.0 - pairs.pair_values(assigned)
    return TeacherForcing(
        target=target,
        pointer=found.pointer,
        seed_weight=weight,
        logits=found.assignment.logits,
        target_fraction=(pairs.pair_values(fraction) / unassigned.clamp(min=1e-3)).clamp(max=1.0),
        weight=pairs.item_values(source.scene.item_weight) * unassigned,
        pairs=pairs,
        particles=found.particles,
    )


def _run(
    network: PointingNetwork,
    source: EncodedSource,
    target: Target,
    previous: PreviousParticles,
    assigned: Tensor,
    weight: Tensor,
) -> _Pass:
    """One pass; assigned float [B, T + 1, M] before each position, weight float [B, T, S] of seeds."""
    decoder = network.decoder
    x = torch.cat([decoder.first(len(assigned)), decoder.embed(previous, source)], dim=1)
    states, pointer = decoder(x, source, assigned)
    seed = _choose_seeds(pointer[:, :-1, :-1].detach(), weight, source, random=network.training)
    assignment = network.assignment(states[:, :-1], seed, source, 1.0 - assigned[:, :-1], target.mask)
    return _Pass(pointer, seed, assignment, network.predict(assignment, seed, source, pdg=target.pdg))


def _choose_seeds(pointer: Tensor, weight: Tensor, source: EncodedSource, *, random: bool) -> Tensor:
    """Suitable seeds int64 [B, T]: the most probable, or if `random` half of them drawn by weight and energy."""
    best = (pointer + (weight + 1e-9).log()).argmax(-1)
    if not random:
        return best
    likely = weight * source.scene.token_energy.sqrt()[:, None] + 1e-12
    # The same numbers as by torch.multinomial, which waits for a GPU to look whether weights are possible.
    drawn = (likely / torch.empty_like(likely).exponential_()).argmax(-1)
    return torch.where(torch.rand(best.shape, device=best.device) < 0.5, best, drawn)


def target_fractions(target: Target) -> Tensor:
    """Fractions of hits and tracks, float [B, T, M].

    Raises
    ------
    ValueError
        The target has none.
    """
    if target.hit_fraction is None or target.track_fraction is None:
        raise ValueError("target: it has no fractions of hits and tracks, the targets of the assignment")
    return torch.cat([target.hit_fraction, target.track_fraction], dim=-1)


def seed_weights(fraction: Tensor, target: Target, source: EncodedSource) -> Tensor:
    """How suitable each token is as a seed of each particle, float [B, T, S] in [0, 1].

    The seed of a charged particle with a track is its track. The seed of any other is a hit token, with a weight that
    increases with the particle's fraction of the token and with their energy; without hits it is a track.

    Parameters
    ----------
    fraction : float [B, T, M]
    target
        The particles.
    source
        Encoded source of the batch.
    """
    scene = source.scene
    of_token = scene.on_tokens(fraction)  # [B, T, S]
    energy = of_token * scene.token_energy[:, None]
    is_track = scene.token_is_track[:, None]
    tracks = torch.where(is_track & (of_token > 0.5), energy, 0.0)
    hits = torch.where(is_track, 0.0, energy)
    charged = (target.charge != 1) & (tracks.amax(-1) > 0)
    by_track = charged | (hits.amax(-1) <= 0)
    candidate = torch.where(by_track[..., None], tracks, hits)
    strength = (candidate / candidate.amax(-1, keepdim=True).clamp(min=1e-9)).sqrt()
    return strength * of_token * target.mask[..., None]


def reordered(target: Target, training: PointingTrainingConfig, *, energy_std: float) -> Target:
    """Targets with a track first, each group by falling ln E with noise; deferred targets behind all others.

    Parameters
    ----------
    target
        With fractions of tracks.
    training
        ``order_noise_std`` and ``deferred_target_prob``.
    energy_std
        Standard deviation of log10(E / GeV), by which energies are normalised.
    """
    if target.track_fraction is None:
        raise ValueError("target: it has no fractions of tracks, by which particles are ordered")
    log_energy = LN10 * energy_std * target.energy
    noise = training.order_noise_std * torch.randn_like(log_energy)
    has_track = (target.track_fraction > 0.5).any(-1) & (target.charge != 1)
    deferred = torch.rand_like(log_energy) < training.deferred_target_prob
    key = 1e3 * has_track - 1e4 * deferred + log_energy + noise - 1e6 * ~target.mask
    order = key.argsort(dim=1, descending=True)
    values = {field.name: gather(getattr(target, field.name), order) for field in dataclasses.fields(target)}
    return Target(**values)


def _assigned_before(fraction: Tensor, network: PointingNetwork) -> Tensor:
    """Assigned fraction of each item before each position: float [B, T, M] to [B, T + 1, M]."""
    size, steps, items = fraction.shape
    if not network.coverage:
        return fraction.new_zeros(size, steps + 1, items)
    nothing = fraction.new_zeros(size, 1, items)
    return torch.cat([nothing, fraction.cumsum(1).clamp(max=1.0)], dim=1)


def _pooled(weight: Tensor, source: EncodedSource) -> Tensor:
    """Mean memory float [B, T, W], weighted by float [B, T, M] of the items."""
    index = source.scene.item_token[:, None].expand(-1, weight.shape[1], -1)
    on_tokens = weight.new_zeros(*weight.shape[:2], source.states.shape[1]).scatter_add(2, index, weight)
    return (on_tokens @ source.states) / on_tokens.sum(-1, keepdim=True).clamp(min=1e-9)
