"""The first reading: particles are written one after the other.

Keys and values of past tokens are kept, and events that are finished leave the batch. Letters: B batch, T particles, S
source tokens, M items, W width.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.model.common.cache import Compaction
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.geometry import Scene, gather
from pflow.model.pointing.network import PointingTransformer, Source
from pflow.model.pointing.particles import Particles
from pflow.model.pointing.pointer import IMPOSSIBLE

__all__ = ["Sentences", "charge_of", "write"]


class Sentences(NamedTuple):
    """What was written; T is the longest sentence's length.

    Parameters
    ----------
    columns
        Of each, zeros where an event has ended: ``written`` bool [B, T]; ``is_particle`` bool [B, T], whether it has as
        much energy as a target; ``seed`` int64 [B, T]; ``read`` float [B, T, W], as the decoder reads it back;
        ``query`` float [B, T, W]; and those of `Particles.columns`. T is 1 where nothing was written.
    truncated : bool [B], True = as many were written as there may be and the event had not ended
    """

    columns: dict[str, Tensor]
    truncated: Tensor


def write(
    network: PointingTransformer, source: Source, *, decoding: PointingDecodingConfig, sampler: Sampler
) -> Sentences:
    """Write the particles of each event.

    An event ends when the end is at least as probable as ``eos_threshold``; with ``require_all_tracks`` particles begin at the tracks that are
    then not assigned, before it does. What has less energy than any
    target takes its hits and is no particle. ``max_empty_steps`` of these one after the other, or of what took neither a track nor
    more than ``min_deposit_fraction`` of that energy, end an event too.

    Parameters
    ----------
    network
        In evaluation mode, and without gradients.
    source
        Of the batch; its storage is used up.
    decoding
        When decoding stops.
    sampler
        Chooses seeds and identities.
    """
    size, device = len(source.states), source.states.device
    max_particles = decoding.max_particles
    choice = functools.partial(sampler, batch=size)
    truncated = torch.zeros(size, dtype=torch.bool, device=device)
    rows = torch.arange(size, device=device)
    covered = torch.zeros_like(source.scene.item_energy)  # [B, M]
    caches = network.decoder.caches(source.states, max_particles + 1)
    x = network.begin.expand(size, 1, -1)
    crumbs = torch.zeros(size, dtype=torch.int64, device=device)  # [B], at the end of the sentence so far
    least = decoding.min_deposit_fraction * math.exp(network.min_log_energy)
    steps: list[_Step] = []
    for position in range(max_particles + 1):
        states, pointer = network.state(x, source, covered[:, None], caches)
        ended = (pointer[:, 0, -1].exp() >= decoding.eos_threshold) | (crumbs >= decoding.max_empty_steps)
        left = _tracks_left(source, covered) & ended[:, None] & decoding.require_all_tracks  # [B, S]
        goes_on = ~ended | left.any(1)
        if position == max_particles:
            truncated[rows] = goes_on
            break
        nothing = not bool(goes_on.any())
        if nothing and steps:
            break
        if not nothing and not bool(goes_on.all()):
            compaction = Compaction.of(goes_on)
            # On copies: what is kept of the steps before knows its own rows.
            rows, covered, states, pointer, crumbs, left = (
                compaction.apply(part.clone()) for part in (rows, covered, states, pointer, crumbs, left)
            )
            source = _compacted(source, compaction)
            for cache in caches:
                cache.compact(compaction)
        forced = left.any(1, keepdim=True)
        tokens = torch.where(forced & ~left, IMPOSSIBLE, pointer[:, 0, :-1])
        seed = choice(tokens, rows=rows)[:, None]
        real = torch.full_like(seed, not nothing, dtype=torch.bool)
        query, pairs, logits = network.point(states, seed, source, covered[:, None], real)
        share = network.share(logits, pairs, covered[:, None])
        made = network.particles(query, seed, share, pairs, source)
        pdg = choice(made.pdg[:, 0], rows=rows)[:, None]
        if sampler.draws:
            made = network.particles(query, seed, share, pairs, source, pdg=pdg)
        taken = pairs.dense(share, (len(rows), 1, covered.shape[1]))
        if bool(forced.any()):
            taken = torch.where((forced & (source.scene.item_token == seed))[:, None], 1.0, taken)
        charge = charge_of(network, made, pdg, seed, source)
        is_particle = real & (made.log_energy >= network.min_log_energy)
        crumbs = torch.where(is_particle[:, 0] & ~_took_little(least, source.scene, taken[:, 0]), 0, crumbs + 1)
        if network.use_coverage:
            covered = (covered + taken[:, 0]).clamp(max=1.0)
        x = network.read_back(made.written(seed, pdg=pdg, charge=charge), source)
        columns = {"written": real, "is_particle": is_particle, "seed": seed, "read": x, "query": query}
        steps.append(_Step(rows, columns | made.columns(pdg, charge, taken)))
        if nothing:
            break
    return Sentences(_side_by_side(steps, size), truncated)


def charge_of(network: PointingTransformer, made: Particles, pdg: Tensor, seed: Tensor, source: Source) -> Tensor:
    """Charge index int64 [B, 1] that fits the identity: the track's, 0 for neutral ones, else the most probable."""
    charged = network.get_buffer("charged")[pdg]
    track = 1 + gather(source.scene.token_charge, seed).sign().long()
    most_probable = torch.where(made.charge[..., 2] > made.charge[..., 0], 2, 0)
    return torch.where(charged, torch.where(made.by_track, track, most_probable), 1)


def _tracks_left(source: Source, covered: Tensor) -> Tensor:
    """Which tokens are tracks that are not spoken for, bool [B, S]; covered float [B, M]."""
    scene = source.scene
    left = scene.item_mask[:, scene.n_hits :] & (covered[:, scene.n_hits :] < 0.5)
    # Tracks are the last of the tokens as of the items.
    return functional.pad(left, (scene.token_mask.shape[1] - left.shape[1], 0))


def _took_little(least: float, scene: Scene, taken: Tensor) -> Tensor:
    """Whether particles that took float [B, M] of the items have no track and next to no energy of hits, bool [B]."""
    deposit = (taken * scene.item_energy).sum(-1)  # GeV; tracks have none
    return (deposit < least) & ~(taken[:, scene.n_hits :] >= 0.5).any(-1)


class _Step(NamedTuple):
    """What is kept of a step: columns [B', 1, ...] of the events `rows` int64 [B']."""

    rows: Tensor
    columns: dict[str, Tensor]


def _compacted(source: Source, compaction: Compaction) -> Source:
    """The events that go on; storage is reused."""
    return Source(
        scene=source.scene.compact(compaction),
        states=compaction.apply(source.states),
        items=compaction.apply(source.items),
    )


def _side_by_side(steps: list[_Step], size: int) -> dict[str, Tensor]:
    """Columns [B, T, ...] of all steps; zeros where an event has ended."""
    columns = {name: value.new_zeros(size, len(steps), *value.shape[2:]) for name, value in steps[0].columns.items()}
    for position, step in enumerate(steps):
        for name, value in step.columns.items():
            columns[name][step.rows, position] = value[:, 0]
    return columns
