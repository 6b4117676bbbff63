"""Teaching the pointing network: all particles of the true sentences at once, on true or on its own incidences.

Letters: B batch, S source tokens, M items, T written particles, K of them beyond the true end, P pairs, W width.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from pflow.model.batch import Target
from pflow.model.pointing.network import LN10, Particles, PointingTransformer, Source, Written
from pflow.model.pointing.point import Pairs
from pflow.model.pointing.revise import Revised
from pflow.model.pointing.scene import gather

__all__ = ["Reread", "Taught", "reordered", "seed_weights", "teach"]


class Reread(NamedTuple):
    """What the second reading says, and what it should.

    Parameters
    ----------
    revised
        As it says.
    true : float [P], true share of each of its pairs
    rest : float [B, M], share of each item that is of no target
    item_weight : float [B, M], GeV^(1/2); 0 for padding
    written : bool [B, T], the true particles and those beyond the end
    particles
        The particles as made.
    """

    revised: Revised
    true: Tensor
    rest: Tensor
    item_weight: Tensor
    written: Tensor
    particles: Particles


class Taught(NamedTuple):
    """What the network says of each true particle, and what it should.

    Parameters
    ----------
    target
        The particles, in the order in which they were taught; padded where more are written.
    ends : bool [B, T + 1], where the end is the right answer
    pointer : float [B, T + 1, S + 1], log probabilities of the next seed and of the end
    seed_weight : float [B, T, S], how good each token is as a seed, 0 to 1
    incidence : float [P], logits
    wanted : float [P], what they should be as probabilities
    weight : float [P], GeV^(1/2)
    pairs
        What incidence, wanted and weight are of.
    particles
        The particles as made.
    reread
        What came of the second reading, where there is one.
    """

    target: Target
    ends: Tensor
    pointer: Tensor
    seed_weight: Tensor
    incidence: Tensor
    wanted: Tensor
    weight: Tensor
    pairs: Pairs
    particles: Particles
    reread: Reread | None


class _Pass(NamedTuple):
    states: Tensor
    pointer: Tensor
    seed: Tensor
    query: Tensor
    pairs: Pairs
    incidence: Tensor
    share: Tensor
    particles: Particles


def teach(network: PointingTransformer, source: Source, target: Target) -> Taught:
    """Predict each next particle of true sentences.

    In training mode the order of particles of similar energy is shuffled, and in a share `own_incidence` of the batches
    the particles before are as the network itself would have made them, so that it learns to go on from its own
    mistakes.

    Parameters
    ----------
    network
        To be taught.
    source
        Of the batch.
    target
        With the shares of hits and tracks.

    Raises
    ------
    ValueError
        The target has no shares.
    """
    if target.hit_share is None or target.track_share is None:
        raise ValueError("target: it has no shares of hits and tracks, which incidences are taught by")
    if network.training and network.order_jitter > 0:
        target = reordered(target, network)
    assert target.hit_share is not None
    assert target.track_share is not None
    share = torch.cat([target.hit_share, target.track_share], dim=-1)  # [B, T, M]
    weight = seed_weights(share, target, source)
    seed = (weight * source.scene.token_energy.sqrt()[:, None]).argmax(-1)  # [B, T]
    covered = _covered(share, network)
    deposit = share @ source.scene.item_energy[..., None]  # [B, T, 1]
    item_weight = source.scene.item_weight.square()
    written = Written(
        pdg=target.pdg,
        charge=target.charge,
        log_energy=LN10 * (network.energy_mean + network.energy_std * target.energy),
        direction=target.direction,
        seed=seed,
        deposit=deposit.squeeze(-1),
        pooled=_pooled(share * item_weight[:, None], source),
    )
    n_true = target.mask.sum(1)
    beyond: Written | None = None
    real = target.mask
    if network.training and float(torch.rand(())) < network.own_incidence:
        with torch.no_grad():
            own = _run(network, source, target, written, covered, weight, real)
            written, taken = _as_written(own.particles, own.seed), own.pairs.dense(own.share, share.shape)
            if network.beyond:
                beyond, more, n_more = _go_on(network, source, own, covered=_covered(taken, network), last=n_true)
                k = more.shape[1]
                target, share, weight = _padded(target, k), _pad(share, k), _pad(weight, k)
                written = Written(*(_append(*parts, n_true) for parts in zip(written, beyond, strict=True)))
                taken = _append(taken, more, n_true)
                real = torch.arange(share.shape[1], device=n_true.device) < (n_true + n_more)[:, None]
        covered = _covered(taken, network)
    seeds = None if beyond is None else torch.where(target.mask, -1, written.seed)
    found = _run(network, source, target, written, covered, weight, real, seeds)
    position = torch.arange(share.shape[1] + 1, device=n_true.device)
    pairs = found.pairs
    left = 1.0 - covered[pairs.event, pairs.particle, pairs.item]
    true = share[pairs.event, pairs.particle, pairs.item]
    return Taught(
        target=target,
        ends=(position >= n_true[:, None]) & (position <= real.sum(1, keepdim=True)),
        pointer=found.pointer,
        seed_weight=weight,
        incidence=found.incidence,
        wanted=(true / left.clamp(min=1e-3)).clamp(max=1.0),
        weight=source.scene.item_weight.flatten()[pairs.item_of] * left,
        pairs=pairs,
        particles=found.particles,
        reread=None if network.revision is None else _reread(network, source, target, share, found, real),
    )


def _run(
    network: PointingTransformer,
    source: Source,
    target: Target,
    written: Written,
    covered: Tensor,
    weight: Tensor,
    real: Tensor,
    seeds: Tensor | None = None,
) -> _Pass:
    """One pass over the sentences.

    Parameters
    ----------
    covered : float [B, T + 1, M], before each position
    weight : float [B, T, S], of seeds
    real : bool [B, T], what is written
    seeds : int64 [B, T] or None
        Seeds that are given; -1: to be chosen among the good ones.
    """
    x = network.sentence(network.read_back(written, source))
    states, pointer = network.state(x, source, covered)
    seed = _choose(pointer[:, :-1, :-1].detach(), weight, source, random=network.training)
    if seeds is not None:
        seed = torch.where(seeds >= 0, seeds, seed)
    before = covered[:, :-1]
    query, pairs, logits = network.point(states[:, :-1], seed, source, before, real)
    share = network.share(logits, pairs, before).detach()
    particles = network.particles(query, seed, share, pairs, source, pdg=target.pdg)
    return _Pass(states, pointer, seed, query, pairs, logits, share, particles)


def _as_written(particles: Particles, seed: Tensor) -> Written:
    """The particles as the network would have written them."""
    return Written(
        pdg=particles.pdg.argmax(-1),
        charge=particles.charge.argmax(-1),
        log_energy=particles.log_energy.detach(),
        direction=particles.direction.detach(),
        seed=seed,
        deposit=particles.proxies.energy,
        pooled=particles.pooled,
    )


def _go_on(
    network: PointingTransformer, source: Source, own: _Pass, *, covered: Tensor, last: Tensor
) -> tuple[Written, Tensor, Tensor]:
    """Particles that the network might write where it should have ended.

    Parameters
    ----------
    own
        As the network makes the true particles.
    covered : float [B, T + 1, M]
    last : int64 [B], position of the true end

    Returns
    -------
    particles [B, K]
    taken : float [B, K, M], what they take
    count : int64 [B], so many of them are to be written, drawn from 0 to K
    """
    rows = torch.arange(len(last), device=last.device)
    tokens = own.pointer[rows, last, :-1]  # [B, S]
    k = min(network.beyond, tokens.shape[1])
    noise = -torch.empty_like(tokens).exponential_().log()  # Gumbel's: the k largest are drawn without replacement
    best = (tokens + noise).masked_fill(~source.scene.token_mask, -torch.inf).topk(k, dim=-1)
    seed = best.indices
    possible = best.values.isfinite()
    before = covered[rows, last][:, None].expand(-1, k, -1)
    states = own.states[rows, last][:, None].expand(-1, k, -1)
    query, pairs, logits = network.point(states, seed, source, before, possible)
    share = network.share(logits, pairs, before)
    particles = network.particles(query, seed, share, pairs, source)
    drawn = torch.randint(k + 1, last.shape, device=last.device)
    return _as_written(particles, seed), pairs.dense(share, before.shape), torch.minimum(drawn, possible.sum(1))


def _reread(
    network: PointingTransformer, source: Source, target: Target, share: Tensor, found: _Pass, real: Tensor
) -> Reread:
    """Read what was found once more."""
    assert network.revision is not None
    first = found.pairs.dense(found.share, share.shape)
    if network.training and network.broken > 0:
        found, first = _break(network, source, target, found, first, real)
    written = _as_written(found.particles, found.seed)
    read = network.related(network.read_back(written, source), written.log_energy, written.direction, real)
    revised = network.revision(read, found.query, found.seed, first, real, source.scene, source.states)
    pairs = revised.pairs
    parts = revised.log_share.exp().detach()
    return Reread(
        revised=revised,
        true=share[pairs.event, pairs.particle, pairs.item],
        rest=(1.0 - share.sum(1)).clamp(min=0.0),
        item_weight=source.scene.item_weight * source.scene.item_mask,
        written=real,
        particles=network.particles(revised.query, found.seed, parts, pairs, source, pdg=target.pdg),
    )


def _break(
    network: PointingTransformer, source: Source, target: Target, found: _Pass, first: Tensor, real: Tensor
) -> tuple[_Pass, Tensor]:
    """In some events, let the first particle beyond the end be a piece of another: what lies nearer to a token of it.

    So are photons that convert and hadrons that shower in several places written twice, more often in files that were
    never seen than in those that the network is trained on.

    Parameters
    ----------
    first : float [B, T, M], shares of the first reading

    Returns
    -------
    What was found and `first`, with these pieces.
    """
    scene = source.scene
    beyond = target.mask.sum(1)  # position of the piece
    candidate = (real.sum(1) > beyond) & (torch.rand(beyond.shape, device=beyond.device) < network.broken)
    start = gather(scene.token_position, found.seed)  # [B, T, 3]
    away = torch.linalg.vector_norm(scene.token_position[:, None] - start[:, :, None], dim=-1)  # [B, T, S], mm
    energy = scene.on_tokens(first) * scene.token_energy[:, None]
    of_hits = ~scene.token_is_track[:, None] & target.mask[..., None] & candidate[:, None, None]
    lever = torch.where(of_hits, energy * away, 0.0).flatten(1)  # what is far is drawn first: other showers, not halves
    event = (lever.sum(1) > 0).nonzero().squeeze(1)
    if not len(event):
        return found, first
    drawn = torch.multinomial(lever[event], 1).squeeze(1)
    host, token = drawn // away.shape[2], drawn % away.shape[2]
    at, position = beyond[event], scene.item_position[event]
    from_token, from_seed = (
        (position - scene.token_position[event, index][:, None]).square().sum(-1)
        for index in (token, found.seed[event, host])
    )
    is_hit = torch.arange(position.shape[1], device=position.device) < scene.n_hits
    piece = torch.where((from_token < from_seed) & is_hit, first[event, host], 0.0)  # [E, M]
    first, seed, query = first.clone(), found.seed.clone(), found.query.clone()
    first[event, host] -= piece
    first[event, at] = piece
    seed[event, at] = token
    query[event, at] = network.query(torch.cat([found.states[event, host], source.states[event, token]], dim=-1))
    pairs = Pairs.where(first > 0)
    share = first[pairs.event, pairs.particle, pairs.item]
    particles = network.particles(query, seed, share, pairs, source, pdg=target.pdg)
    return found._replace(seed=seed, query=query, pairs=pairs, share=share, particles=particles), first


def _choose(pointer: Tensor, weight: Tensor, source: Source, *, random: bool) -> Tensor:
    """Seeds int64 [B, T] among the good ones: the most probable, or in training every second time a random one."""
    best = (pointer + (weight + 1e-9).log()).argmax(-1)
    if not random:
        return best
    likely = weight * source.scene.token_energy.sqrt()[:, None] + 1e-12
    drawn = torch.multinomial(likely.flatten(0, 1), 1).view(best.shape) if best.numel() else best
    return torch.where(torch.rand(best.shape, device=best.device) < 0.5, best, drawn)


def _pad(values: Tensor, k: int) -> Tensor:
    """[B, T, ...] to [B, T + k, ...], with zeros."""
    return torch.cat([values, values.new_zeros(len(values), k, *values.shape[2:])], dim=1)


def _padded(target: Target, k: int) -> Target:
    values = {field.name: _pad(getattr(target, field.name), k) for field in dataclasses.fields(target)}
    return Target(**values)


def _append(values: Tensor, more: Tensor, at: Tensor) -> Tensor:
    """`more` [B, K, ...] into `values` [B, T, ...] from the positions `at` int64 [B] on, [B, T + K, ...]."""
    padded = _pad(values, more.shape[1])
    position = at[:, None] + torch.arange(more.shape[1], device=at.device)
    padded[torch.arange(len(at), device=at.device)[:, None], position] = more
    return padded


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


def reordered(target: Target, network: PointingTransformer) -> Target:
    """Particles in an order of falling energy that is uncertain by ``order_jitter`` in ln E; those with a track first.

    Parameters
    ----------
    target
        With shares of tracks.
    network
        Says how energies are normalised.
    """
    assert target.track_share is not None
    log_energy = LN10 * network.energy_std * target.energy
    noise = network.order_jitter * torch.randn_like(log_energy)
    has_track = (target.track_share > 0.5).any(-1) & (target.charge != 1)
    key = 1e3 * has_track + log_energy + noise - 1e6 * ~target.mask
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
