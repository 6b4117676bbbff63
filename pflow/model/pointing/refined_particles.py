"""Refined particles: what they are once their hits are reassigned, and which of them are kept.

`pflow.model.pointing.refiner` reassigns the hits. Here the head predicts the particles of the new assignment, and the
decoding options decide on identities, energies, directions and existence. In torch and in exported graphs alike.
Letters: B batch, T particles.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.geometry import EncodedSource
from pflow.model.pointing.head import Particles
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.refiner import DecodedParticles, RefinedAssignment
from pflow.model.pointing.shower_directions import with_front_direction


class RefinedParticles(NamedTuple):
    """Refined particles."""

    particles: Particles  # with expected energies
    pdg: Tensor  # int64 [B, T], index into the vocabulary
    charge: Tensor  # int64 [B, T], the same
    assignment: RefinedAssignment
    is_particle: Tensor  # bool [B, T], True = kept


def refine(
    network: PointingNetwork, decoded: DecodedParticles, source: EncodedSource, decoding: PointingDecodingConfig
) -> RefinedParticles:
    """Reassign the hits of decoded particles, choose identities, and decide which particles are kept.

    An energy that no track measures is the expected one: the predicted energy times the existence probability, as in
    the loss ``visible_energy``. A shower that is decoded in pieces, each with the energy of the whole, would count
    twice. The thresholds are those of `decoding` from ``existence_threshold`` on.
    """
    assert network.refiner is not None
    head, seed, log_odds = network.head, decoded.seed, decoding.electron_log_odds
    refined = network.refiner(decoded, source, existence_threshold=decoding.existence_threshold)
    particles, proxies = network.predict_refined(refined, seed, source, electron_log_odds=log_odds)
    pdg = head.with_electron_log_odds(particles.pdg, log_odds).argmax(-1)
    charge = head.choose_charge(particles, pdg)
    is_photon, by_track = head.is_photon(pdg), particles.by_track

    predicted = particles.log_energy
    expected = predicted + functional.logsigmoid(refined.existence_logit).masked_fill(by_track, 0.0)
    if decoding.energy_cut == "expected":
        too_small = expected < network.min_log_energy
    else:
        too_small = predicted < network.min_log_energy
        expected = expected.clamp(min=network.min_log_energy)
    is_particle = refined.kept & ~too_small  # NaN is kept: the caller must see it
    if decoding.min_trackless_energy:
        is_charged = head.get_buffer("charged")[pdg]
        is_particle = is_particle & ~(is_charged & ~by_track & (expected < math.log(decoding.min_trackless_energy)))
    if decoding.min_photon_existence:
        smallest_logit = math.log(decoding.min_photon_existence / (1.0 - decoding.min_photon_existence))
        is_particle = is_particle & ~(is_photon & (refined.existence_logit < smallest_logit))

    direction = particles.direction
    if decoding.min_direction_change:
        change = (direction - decoded.direction).square().sum(-1)  # rad^2, as the angle is small
        unchanged = ~by_track & (change < decoding.min_direction_change**2)
        direction = torch.where(unchanged[..., None], decoded.direction.to(direction.dtype), direction)
    if decoding.photon_depth:
        flat, depth = direction.flatten(0, 1), decoding.photon_depth
        joined = with_front_direction(flat, is_photon.flatten(), proxies.showers, refined.pairs, depth=depth)
        direction = joined.view(direction.shape)
    particles = particles._replace(log_energy=expected, direction=direction)
    return RefinedParticles(particles, pdg, charge, refined, is_particle)
