"""The particle of one decoder step: proxies and head, as in `pflow.model.pointing.event_head`, in double precision.

Letters: P items that the particle may be assigned, R subdetectors, V codes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.model.common.directions import tangent_basis
from pflow.model.pointing.decoder import N_CHARGE
from pflow.model.pointing.event_head import MIN_DEPOSIT
from pflow.model.pointing.head import CORRECTION_UNIT, DIRECTION_LOG_SIGMA, ENERGY_LOG_SIGMA
from pflow.model.pointing.proxies import (
    ANGLE_UNIT,
    CORE_RADIUS,
    CORE_RADIUS_WIDTH,
    EPS_ENERGY,
    LOG_WEIGHT,
    MIN_TRACK_MOMENTUM,
)

__all__ = ["Particle", "Proxies", "corrected_particle", "proxies_of"]


class Proxies(NamedTuple):
    """Proxies of `pflow.model.pointing.proxies` of one particle, double.

    Parameters
    ----------
    energy : [1], GeV
    momentum : [3], of the tracks, GeV
    directions : [3, 3], to the log-weighted and to the linear barycentre, and of the tracks
    features : [F]
    """

    energy: Tensor
    momentum: Tensor
    directions: Tensor
    features: Tensor


class Particle(NamedTuple):
    """A decoded particle.

    Parameters
    ----------
    pdg, charge : int64 [1], indices into the vocabularies
    log_energy : double [1]
    direction : double [3]
    energy_sigma, direction_sigma : float [1]
    """

    pdg: Tensor
    charge: Tensor
    log_energy: Tensor
    direction: Tensor
    energy_sigma: Tensor
    direction_sigma: Tensor


def proxies_of(fraction: Tensor, items: Tensor, seed_unit: Tensor, *, n_subdetectors: int) -> Proxies:
    """Proxies of a particle.

    Parameters
    ----------
    fraction : double [P]
        Fraction of each item that is the particle's.
    items : double [P, 12 + 2 R]
        ``item_sums`` of the encoder's graph.
    seed_unit : double [3]
    n_subdetectors
        R.
    """
    sums = torch.matmul(fraction[None], items[:, :8])[0]
    energy, momentum, track_energy, charge, n_tracks, n_hits = torch.split(sums, [1, 3, 1, 1, 1, 1])
    share = items[:, 0] * fraction / energy.clamp(min=1e-9)
    by_log = ((share + 1e-12).log() + LOG_WEIGHT).clamp(min=0.0)
    linear, logarithmic = torch.matmul(torch.stack([share, by_log]), items[:, 8:]).unbind(0)  # [4 + 2 R] each
    has_hits = energy > MIN_DEPOSIT
    along_tracks = functional.normalize(momentum + 1e-6 * seed_unit, dim=0)
    centre = logarithmic[:3] / logarithmic[3:4].clamp(min=1e-9)
    log = functional.normalize(torch.where(has_hits, centre, along_tracks), dim=0)
    straight = torch.where(has_hits, functional.normalize(linear[:3], dim=0), log)
    tracks = torch.where(track_energy > MIN_TRACK_MOMENTUM, along_tracks, log)

    position = items[:, 8:11]
    along = torch.mv(position, log)
    across = (position - along[:, None] * log).square().sum(1).sqrt()
    core = ((CORE_RADIUS - across) / CORE_RADIUS_WIDTH).clamp(0.0, 1.0)
    beyond = (along - torch.dot(linear[:3], log)).square()
    width, core, spread, concentration = torch.split(torch.mv(torch.stack([across, core, beyond, share]), share), 1)
    theta, phi = _tangents(log)
    off, track_off = straight - log, tracks - log
    features = [
        (energy + EPS_ENERGY).log() / 2.0,
        (track_energy + EPS_ENERGY).log() / 2.0,
        ((energy + 0.05) / (track_energy + 0.05)).log(),
        (1.0 + n_hits).log() / 2.0,
        n_tracks,
        charge,
        (1.0 + width / 10.0).log(),
        core,
        (1.0 + spread.clamp(min=0.0).sqrt() / 50.0).log(),
        log[2:].abs(),
        log[2:].square(),
        concentration,
        (off * theta).sum(0, keepdim=True) / ANGLE_UNIT,
        (off * phi).sum(0, keepdim=True).abs() / ANGLE_UNIT,
        (track_off.square().sum(0, keepdim=True) + 1e-8).sqrt() / ANGLE_UNIT,
        linear[4 : 4 + n_subdetectors],
        linear[4 + n_subdetectors :],
    ]
    return Proxies(energy, momentum, torch.stack([log, straight, tracks]), torch.cat(features))


def corrected_particle(
    outputs: Tensor, proxies: Proxies, token: dict[str, Tensor], *, masses: Tensor, charged: Tensor
) -> Particle:
    """The particle of the head's outputs.

    Parameters
    ----------
    outputs : float [V + 3 + 8], logits of codes and charges, and corrections
    proxies
        Of the particle.
    token
        ``token_momentum`` [1, 3], ``token_charge`` [1] and ``token_is_track`` [1] of its seed.
    masses, charged : [V]
        Mass, GeV, and whether there is a charge.
    """
    pdg_logits, charge_logits, corrections = torch.split(outputs, [len(masses), N_CHARGE, 8])
    energy, track_trust, angles, energy_log_sigma, direction_log_sigma, trust = torch.split(
        corrections.double(), [1, 1, 2, 1, 1, 2]
    )
    pdg = pdg_logits.argmax(0, keepdim=True)
    is_charged = charged.index_select(0, pdg)
    momentum = token["token_momentum"][0].double()
    p = momentum.square().sum(0, keepdim=True).sqrt()
    by_track = token["token_is_track"] & is_charged & (p > 0)

    in_tracks = track_trust.sigmoid()
    tracks = proxies.momentum.square().sum(0, keepdim=True).sqrt()
    log_energy = ((1.0 - in_tracks) * proxies.energy + in_tracks * tracks + 1e-2).log() + CORRECTION_UNIT * energy
    weights = functional.pad(trust, (1, 0)).softmax(0)
    # No product with a transposed matrix: onnxruntime 1.31 computes it wrongly in double precision.
    mean = functional.normalize((proxies.directions * weights[:, None]).sum(0), dim=0)
    sigma = direction_log_sigma.clamp(*DIRECTION_LOG_SIGMA).exp()
    off = (torch.stack(_tangents(mean)) * (sigma * angles)[:, None]).sum(0)
    direction = functional.normalize(mean + off, dim=0)

    mass = masses.index_select(0, pdg).double()
    track_energy = (p.square() + mass.square()).sqrt().clamp(min=1e-6)
    sign = 1 + token["token_charge"].sign().long()
    probable = torch.where(charge_logits[2:] > charge_logits[:1], 2, 0)
    return Particle(
        pdg=pdg,
        charge=torch.where(is_charged, torch.where(by_track, sign, probable), 1),
        log_energy=torch.where(by_track, track_energy.log(), log_energy),
        direction=torch.where(by_track, functional.normalize(momentum, dim=0), direction),
        energy_sigma=energy_log_sigma.clamp(*ENERGY_LOG_SIGMA).exp().float(),
        direction_sigma=sigma.float(),
    )


def _tangents(direction: Tensor) -> tuple[Tensor, Tensor]:
    """The tangent basis at a unit vector [3]. The exporter would take components without an axis for single floats."""
    theta, phi = tangent_basis(direction[None])
    return theta[0], phi[0]
