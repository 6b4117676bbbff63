"""Training of the refinement. Letters: B batch, T decoded, R target particles, M items, S source tokens, P pairs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Target
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.generate import decode_first_stage
from pflow.model.pointing.geometry import EncodedSource, gather
from pflow.model.pointing.head import Particles
from pflow.model.pointing.network import DecodedParticles, PointingNetwork, RefinedAssignment
from pflow.model.pointing.teacher_forcing import select, target_fractions

MIN_OVERLAP = 0.1
"""Smallest common energy of a matched pair, as a fraction of the energy that one or both have."""

EXTRA_PARTICLES = 20
"""Decoding stops after so many more particles than the longest target sequence has."""


class RefinementOutput(NamedTuple):
    """Predictions of the refinement and their targets, as `TeacherForcing` of the first stage."""

    target: Target  # of each decoded particle; padding: it is matched to none
    decoded: Tensor  # bool [B, T], True = decoded, False = padding
    refined: RefinedAssignment
    target_fraction: Tensor  # float [P], true fraction of the item of each pair
    target_unassigned: Tensor  # float [B, M], fraction of each item of no decoded particle
    item_weight: Tensor  # float [B, M], GeV^(1/2); 0 for padding
    visible_energy: Tensor  # float [B], energy of all target particles of an event, GeV
    particles: Particles


@torch.no_grad()
def decode_and_match(
    network: PointingNetwork, source: EncodedSource, target: Target, decoding: PointingDecodingConfig
) -> tuple[DecodedParticles, Target]:
    """Decode with the first stage as a reconstruction does, and `match` the decoded particles to target particles.

    The network, which has a refiner, decodes in evaluation mode, without dropout, and in full precision. ValueError:
    the target has no fractions of hits and tracks.
    """
    fraction = target_fractions(target)
    decoding = decoding.limited(target.mask.shape[1] + EXTRA_PARTICLES)
    with _evaluating(network), torch.autocast(source.states.device.type, enabled=False):
        precise = source.change(
            lambda part: part.to(torch.float32 if part.is_floating_point() else part.dtype, copy=True)
        )
        columns, mask, _ = decode_first_stage(network, precise, decoding)
    if mask.shape[1] == 0:  # one row of padding
        columns = {name: values.new_zeros(len(mask), 1, *values.shape[2:]) for name, values in columns.items()}
        mask = functional.pad(mask, (0, 1))
    return match(DecodedParticles.of(columns, mask), fraction, target, source)


@contextlib.contextmanager
def _evaluating(network: PointingNetwork) -> Iterator[None]:
    """Evaluation mode; each module then has its own mode again."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def refine_matched(
    network: PointingNetwork,
    source: EncodedSource,
    target: Target,
    decoded: DecodedParticles,
    matched: Target,
    *,
    dtype: torch.dtype = torch.float32,
) -> RefinementOutput:
    """Refine particles of `decode_and_match`; no gradients reach the first stage's decoding.

    `dtype` is the precision of energies and directions.
    """
    assert network.refiner is not None
    true = target_fractions(matched)
    refined = network.refiner(decoded, source, dtype=torch.float32)
    particles = network.predict_refined(refined, decoded.seed, source, pdg=matched.pdg, dtype=dtype)
    energies = network.energy_scale.log_energy(target.energy).exp().masked_fill(~target.mask, 0.0)
    return RefinementOutput(
        target=matched,
        decoded=decoded.mask,
        refined=refined,
        target_fraction=refined.pairs.values(true),
        target_unassigned=(1.0 - true.sum(1)).clamp(min=0.0),
        item_weight=source.items.weight.sqrt() * source.items.mask,
        visible_energy=energies.sum(1),
        particles=particles,
    )


def match(
    decoded: DecodedParticles, fraction: Tensor, target: Target, source: EncodedSource
) -> tuple[DecodedParticles, Target]:
    """Match each decoded particle to at most one target particle, with the largest total common energy.

    A decoded particle with the track of a target particle as its seed is matched to it. Others need `MIN_OVERLAP`: hits
    count by their energy, tracks by their momentum. `fraction`, float [B, R, M], has the targets' items. Returns the
    decoded particles in another order, matched ones first, in the order of the targets, and the target of each; padding
    for those that are not matched.
    """
    weight = source.items.weight[:, None]  # GeV
    common = (decoded.hit_fraction * weight) @ fraction.transpose(1, 2)  # [B, T, R]
    total = (decoded.hit_fraction * weight).sum(-1)[:, :, None] + (fraction * weight).sum(-1)[:, None] - common
    of_tokens = source.assigned(fraction).transpose(1, 2)  # [B, S, R]
    same_track = gather(source.tokens.is_track, decoded.seed)[..., None] & (gather(of_tokens, decoded.seed) > 0.5)
    possible = same_track | (common >= MIN_OVERLAP * total.clamp(min=1e-9))
    possible &= decoded.mask[..., None] & target.mask[:, None]
    gain = torch.where(possible, common + 1e-6 + 1e6 * same_track, 0.0).double()
    # One GPU synchronisation reads these, with the numbers of decoded particles; copying the result back needs none.
    values = torch.cat([gain, decoded.mask[..., None]], dim=-1).cpu().numpy()
    matches = [_match_event(event[:, :-1], int(event[:, -1].sum())) for event in values]
    both = torch.from_numpy(np.stack([np.stack(part) for part in zip(*matches, strict=True)]))
    # [B, T] of decoded particles, and of targets, -1: none
    index, target_index = both.to(fraction.device, non_blocking=True)
    target_index = torch.where(target_index < 0, target.mask.shape[1], target_index)
    return DecodedParticles(*(gather(values, index) for values in decoded)), select(target, target_index)


def _match_event(gain: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Order int64 [T] of an event's `n` decoded particles and the padding, and the target of each in it, or -1."""
    from scipy.optimize import linear_sum_assignment  # here: its import is a tenth of the start of a reconstruction

    rows, columns = linear_sum_assignment(gain[:n], maximize=True)
    good = gain[rows, columns] > 0
    rows, columns = rows[good], columns[good]
    by_target = columns.argsort()
    rest = np.setdiff1d(np.arange(len(gain)), rows)  # not matched, then padding
    partner = np.full(len(gain), -1)
    partner[: len(rows)] = columns[by_target]
    return np.concatenate([rows[by_target], rest]), partner
