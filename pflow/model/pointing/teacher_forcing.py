"""Teaching the pointing network: all particles of the true sentences at once, on true or on its own incidences.

Letters: B batch, S source tokens, M items, T particles, P pairs, W width.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from pflow.data.batch import Target
from pflow.model.pointing.config import PointingTrainingConfig
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.network import LN10, PointingTransformer, Source
from pflow.model.pointing.particles import Particles, Written
from pflow.model.pointing.pointer import Pairs

__all__ = ["Taught", "reordered", "seed_weights", "shares_of", "teach"]


class Taught(NamedTuple):
    """What the network says of each true particle, and what it should.

    Parameters
    ----------
    target
        The particles, in the order in which they were taught.
    pointer : float [B, T + 1, S + 1], log probabilities of the next seed and of the end
    seed_weight : float [B, T, S], how good each token is as a seed, 0 to 1
    incidence : float [P], logits
    wanted : float [P], what they should be as probabilities
    weight : float [P], GeV^(1/2)
    pairs
        What incidence, wanted and weight are of.
    particles
        The particles as made.
    """

    target: Target
    pointer: Tensor
    seed_weight: Tensor
    incidence: Tensor
    wanted: Tensor
    weight: Tensor
    pairs: Pairs
    particles: Particles


class _Pass(NamedTuple):
    pointer: Tensor
    seed: Tensor
    pairs: Pairs
    incidence: Tensor
    share: Tensor
    particles: Particles


def teach(network: PointingTransformer, source: Source, target: Target, training: PointingTrainingConfig) -> Taught:
    """Predict each next particle of true sentences.

    In training mode the order of particles of similar energy is shuffled and some are put off, and in a share
    `scheduled_sampling_prob` of the batches the particles before are as the network itself would have made them, so that it
    learns to go on from its own mistakes and to see what it has left out.

    Parameters
    ----------
    network
        To be taught.
    source
        Of the batch.
    target
        With the shares of hits and tracks.
    training
        How.

    Raises
    ------
    ValueError
        The target has no shares.
    """
    if network.training and (training.order_noise_std > 0 or training.deferred_target_prob > 0):
        target = reordered(target, network, training)
    share = shares_of(target)
    weight = seed_weights(share, target, source)
    seed = (weight * source.scene.token_energy.sqrt()[:, None]).argmax(-1)  # [B, T]
    covered = _covered(share, network)
    deposit = share @ source.scene.item_energy[..., None]  # [B, T, 1]
    item_weight = source.scene.item_weight.square()
    written = Written(
        pdg=target.pdg,
        charge=target.charge,
        log_energy=network.log_energy_of(target.energy),
        direction=target.direction,
        seed=seed,
        deposit=deposit.squeeze(-1),
        pooled=_pooled(share * item_weight[:, None], source),
    )
    if network.training and float(torch.rand(())) < training.scheduled_sampling_prob:
        with torch.no_grad():
            own = _run(network, source, target, written, covered, weight)
        written = own.particles.written(own.seed)
        covered = _covered(own.pairs.dense(own.share, share.shape), network)
    found = _run(network, source, target, written, covered, weight)
    pairs = found.pairs
    left = 1.0 - pairs.at(covered)
    true = pairs.at(share)
    return Taught(
        target=target,
        pointer=found.pointer,
        seed_weight=weight,
        incidence=found.incidence,
        wanted=(true / left.clamp(min=1e-3)).clamp(max=1.0),
        weight=pairs.at_items(source.scene.item_weight) * left,
        pairs=pairs,
        particles=found.particles,
    )


def _run(
    network: PointingTransformer, source: Source, target: Target, written: Written, covered: Tensor, weight: Tensor
) -> _Pass:
    """One pass over the sentences; covered float [B, T + 1, M] before each position, weight [B, T, S] of seeds."""
    x = network.sentence(network.read_back(written, source))
    states, pointer = network.state(x, source, covered)
    seed = _choose(pointer[:, :-1, :-1].detach(), weight, source, random=network.training)
    before = covered[:, :-1]
    query, pairs, logits = network.point(states[:, :-1], seed, source, before, target.mask)
    share = network.share(logits, pairs, before).detach()
    particles = network.particles(query, seed, share, pairs, source, pdg=target.pdg)
    return _Pass(pointer, seed, pairs, logits, share, particles)


def _choose(pointer: Tensor, weight: Tensor, source: Source, *, random: bool) -> Tensor:
    """Seeds int64 [B, T] among the good ones: the most probable, or in training every second time a random one."""
    best = (pointer + (weight + 1e-9).log()).argmax(-1)
    if not random:
        return best
    likely = weight * source.scene.token_energy.sqrt()[:, None] + 1e-12
    drawn = torch.multinomial(likely.flatten(0, 1), 1).view(best.shape) if best.numel() else best
    return torch.where(torch.rand(best.shape, device=best.device) < 0.5, best, drawn)


def shares_of(target: Target) -> Tensor:
    """Shares of the items float [B, T, M].

    Raises
    ------
    ValueError
        There are none.
    """
    if target.hit_fraction is None or target.track_fraction is None:
        raise ValueError("target: it has no shares of hits and tracks, which incidences are taught by")
    return torch.cat([target.hit_fraction, target.track_fraction], dim=-1)


def seed_weights(share: Tensor, target: Target, source: Source) -> Tensor:
    """How good each token is as a seed of each particle, float [B, T, S] in [0, 1].

    A charged particle with a track begins at its track. Any other begins at a hit token, the better the more of the
    token is its own and the more energy that is; one without hits at a track.

    Parameters
    ----------
    share : float [B, T, M]
    target
        The particles.
    source
        Of the batch.
    """
    scene = source.scene
    mine = scene.on_tokens(share)  # [B, T, S]
    energy = mine * scene.token_energy[:, None]
    is_track = scene.token_is_track[:, None]
    tracks = torch.where(is_track & (mine > 0.5), energy, 0.0)
    hits = torch.where(is_track, 0.0, energy)
    charged = (target.charge != 1) & (tracks.amax(-1) > 0)
    by_track = charged | (hits.amax(-1) <= 0)
    candidate = torch.where(by_track[..., None], tracks, hits)
    strength = (candidate / candidate.amax(-1, keepdim=True).clamp(min=1e-9)).sqrt()
    return strength * mine * target.mask[..., None]


def reordered(target: Target, network: PointingTransformer, training: PointingTrainingConfig) -> Target:
    """Particles in an order of falling energy that is uncertain by ``order_noise_std`` in ln E; those with a track first.

    Each is put off until all others are written with a probability of ``deferred_target_prob``, and written then in the same order.

    Parameters
    ----------
    target
        With shares of tracks.
    network
        Says how energies are normalised.
    training
        The noise and the probability.
    """
    if target.track_fraction is None:
        raise ValueError("target: it has no shares of tracks, by which particles are ordered")
    log_energy = LN10 * network.energy_std * target.energy
    noise = training.order_noise_std * torch.randn_like(log_energy)
    has_track = (target.track_fraction > 0.5).any(-1) & (target.charge != 1)
    late = torch.rand_like(log_energy) < training.deferred_target_prob
    key = 1e3 * has_track - 1e4 * late + log_energy + noise - 1e6 * ~target.mask
    order = key.argsort(dim=1, descending=True)
    values = {field.name: gather(getattr(target, field.name), order) for field in dataclasses.fields(target)}
    return Target(**values)


def _covered(share: Tensor, network: PointingTransformer) -> Tensor:
    """What is spoken for before each position: float [B, T, M] to [B, T + 1, M]."""
    size, steps, items = share.shape
    if not network.use_coverage:
        return share.new_zeros(size, steps + 1, items)
    nothing = share.new_zeros(size, 1, items)
    return torch.cat([nothing, share.cumsum(1).clamp(max=1.0)], dim=1)


def _pooled(weight: Tensor, source: Source) -> Tensor:
    """Mean memory float [B, T, W] weighted by the items' float [B, T, M]."""
    index = source.scene.item_token[:, None].expand(-1, weight.shape[1], -1)
    on_tokens = weight.new_zeros(*weight.shape[:2], source.states.shape[1]).scatter_add(2, index, weight)
    return (on_tokens @ source.states) / on_tokens.sum(-1, keepdim=True).clamp(min=1e-9)
