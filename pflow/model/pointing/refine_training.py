"""Teaching the second reading: sentences that the network writes by itself, each matched to what is true.

Letters: B batch, T written particles, R true ones, M items, P pairs.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from pflow.data.batch import Target
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decode import write
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.network import PointingTransformer, Source
from pflow.model.pointing.particles import Particles
from pflow.model.pointing.refiner import Revised
from pflow.model.pointing.teacher_forcing import shares_of

__all__ = ["Matched", "Reread", "match", "teach_again"]

MIN_OVERLAP = 0.1
"""Of what a written and a true particle have together, the least part that both have, for them to be the same one."""

SPARE = 20
"""So many more particles than the longest true sentence has are written at the most."""


class Matched(NamedTuple):
    """Written particles in another order: those that are true ones first, by these; then those that are not.

    Parameters
    ----------
    columns
        As of `pflow.model.pointing.decode.Sentences`.
    target
        What each of them should be; those that are none are padding.
    """

    columns: dict[str, Tensor]
    target: Target


class Reread(NamedTuple):
    """What the second reading says, and what it should.

    Parameters
    ----------
    target
        What each written particle should be; padding: no particle.
    written : bool [B, T]
    revised
        As the second reading says.
    true : float [P], true share of each of its pairs
    rest : float [B, M], share of each item that is of no written particle
    item_weight : float [B, M], GeV^(1/2); 0 for padding
    visible : float [B], energy of all true particles of an event, GeV
    particles
        The particles as made.
    """

    target: Target
    written: Tensor
    revised: Revised
    true: Tensor
    rest: Tensor
    item_weight: Tensor
    visible: Tensor
    particles: Particles


def teach_again(
    network: PointingTransformer, source: Source, target: Target, decoding: PointingDecodingConfig
) -> Reread:
    """Let the network write sentences, and predict of their particles what they should be.

    Mistakes are its own: showers that it wrote twice or took for one, hits that it gave to the wrong particle.

    Parameters
    ----------
    network
        To be taught, with a second reading.
    source
        Of the batch; its storage is used up.
    target
        With the shares of hits and tracks.
    decoding
        When decoding stops.

    Raises
    ------
    ValueError
        The target has no shares.
    """
    share = shares_of(target)
    with torch.no_grad():
        kept = source.kept()
        decoding = dataclasses.replace(decoding, max_particles=target.mask.shape[1] + SPARE)
        written = write(network, source, decoding=decoding, sampler=Sampler())
        matched = match(written.columns, share, target, kept)
    wanted = shares_of(matched.target)
    revised = network.reread(matched.columns, kept)
    particles = network.remake(revised, matched.columns["seed"], kept, matched.target.pdg)
    energies = network.log_energy_of(target.energy).exp().masked_fill(~target.mask, 0.0)
    return Reread(
        target=matched.target,
        written=matched.columns["written"],
        revised=revised,
        true=revised.pairs.at(wanted),
        rest=(1.0 - wanted.sum(1)).clamp(min=0.0),
        item_weight=kept.scene.item_weight * kept.scene.item_mask,
        visible=energies.sum(1),
        particles=particles,
    )


def match(columns: dict[str, Tensor], share: Tensor, target: Target, source: Source) -> Matched:
    """Pair written with true particles, each with at most one, so that they have most energy together.

    Who begins at the track of a true particle is that one. Others must have `MIN_OVERLAP` of what both have together:
    hits by their energy, tracks by their momentum.

    Parameters
    ----------
    columns
        Of `pflow.model.pointing.decode.Sentences`.
    share : float [B, R, M], of the true particles
    target
        The true particles.
    source
        Of the batch.
    """
    scene = source.scene
    weight = scene.item_weight.square()[:, None]  # GeV
    taken, written = columns["taken"], columns["written"]
    common = (taken * weight) @ share.transpose(1, 2)  # [B, T, R]
    total = (taken * weight).sum(-1)[:, :, None] + (share * weight).sum(-1)[:, None] - common
    of_tokens = scene.on_tokens(share).transpose(1, 2)  # [B, S, R]
    same_track = gather(scene.token_is_track, columns["seed"])[..., None] & (gather(of_tokens, columns["seed"]) > 0.5)
    possible = same_track | (common >= MIN_OVERLAP * total.clamp(min=1e-9))
    possible &= written[..., None] & target.mask[:, None]
    gain = torch.where(possible, common + 1e-6 + 1e6 * same_track, 0.0).double().cpu().numpy()
    order, partner = zip(*(_assign(event, int(n)) for event, n in zip(gain, written.sum(1), strict=True)), strict=True)
    at = torch.from_numpy(np.stack(order)).to(share.device)  # [B, T], which was written
    who = torch.from_numpy(np.stack(partner)).to(share.device)  # [B, T], which is true; -1: none
    return Matched(
        columns={name: gather(values, at) for name, values in columns.items()},
        target=_of_partners(target, who),
    )


def _assign(gain: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Order int64 [T] of an event's written particles, of which there are n, and the true one of each in it, or -1."""
    rows, others = linear_sum_assignment(gain[:n], maximize=True)
    good = gain[rows, others] > 0
    rows, others = rows[good], others[good]
    by_true = others.argsort()
    rest = np.setdiff1d(np.arange(len(gain)), rows)  # written and none, then padding
    partner = np.full(len(gain), -1)
    partner[: len(rows)] = others[by_true]
    return np.concatenate([rows[by_true], rest]), partner


def _of_partners(target: Target, who: Tensor) -> Target:
    """The true particles `who` int64 [B, T]; -1: padding."""
    values = {}
    for field in dataclasses.fields(target):
        given = getattr(target, field.name)
        padded = torch.cat([given, given.new_zeros(len(given), 1, *given.shape[2:])], dim=1)  # -1 is the padding
        values[field.name] = gather(padded, who)
    return Target(**values)
