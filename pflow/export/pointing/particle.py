"""The particle of one decoder step: proxies and head, as in `pflow.model.pointing.event_head`, in double precision.

Letters: P items that the particle may be assigned, R subdetectors, V codes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pflow.model.pointing.decoder import N_CHARGE
from pflow.model.pointing.event_head import MIN_DEPOSIT
from pflow.model.pointing.head import CORRECTION_UNIT, DIRECTION_LOG_SIGMA, ENERGY_LOG_SIGMA
from pflow.model.pointing.proxies import (
    ANGLE_UNIT,
    CORE_RADIUS,
    CORE_RADIUS_WIDTH,
    EPS_ENERGY,
    MIN_TRACK_MOMENTUM,
)
from pflow.model.pointing.showers import LOG_WEIGHT

__all__ = ["Particle", "Proxies", "corrected_particle", "proxies_of"]


class Proxies(NamedTuple):
    """Proxies of `pflow.model.pointing.proxies` of one particle, double.

    Parameters
    ----------
    energy : [1, 1], GeV
    momentum : [1, 3], of the tracks, GeV
    directions : [3, 3], to the log-weighted and to the linear barycentre, and of the tracks
    features : [1, F]
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
    log_energy : double [1, 1]
    direction : double [1, 3]
    energy_sigma, direction_sigma : float [1]
    """

    pdg: Tensor
    charge: Tensor
    log_energy: Tensor
    direction: Tensor
    energy_sigma: Tensor
    direction_sigma: Tensor


def proxies_of(fraction: Tensor, items: Tensor, seed_unit: Tensor, *, n_subdetectors: int) -> Proxies:
    """Proxies of a particle. Everything is a row or a column: onnxruntime's time goes with the number of operators.

    Parameters
    ----------
    fraction : double [P]
        Fraction of each item that is the particle's.
    items : double [P, 12 + 2 R]
        ``item_sums`` of the encoder's graph.
    seed_unit : double [1, 3]
    n_subdetectors
        R.
    """
    depths = 2 * n_subdetectors
    row = fraction.view(1, -1)
    energies, _, position, _ = torch.split(items, [1, 7, 3, 1 + depths], dim=1)
    sums = torch.matmul(row, items)
    both, momentum, charges, n_hits, _ = torch.split(sums, [2, 3, 2, 1, 4 + depths], dim=1)
    energy = both[:, :1]
    share = energies.view(1, -1) * row / energy.clamp(min=1e-9)  # [1, P]
    by_log = ((share + 1e-12).log() + LOG_WEIGHT).clamp(min=0.0)
    weighted = torch.matmul(torch.cat([by_log, share]), items)  # [2, 12 + 2 R]
    _, towards, _, depth = torch.split(weighted, [8, 3, 1, depths], dim=1)
    along_tracks = momentum + 1e-6 * seed_unit
    log, linear, tracks = torch.split(_unit(torch.cat([towards, along_tracks])), 1)  # [1, 3] each
    has_hits, has_tracks = torch.split(both > torch.tensor([[MIN_DEPOSIT, MIN_TRACK_MOMENTUM]], dtype=both.dtype), 1, 1)
    log = torch.where(has_hits, log, tracks)
    straight, tracks = torch.where(has_hits, linear, log), torch.where(has_tracks, tracks, log)

    column = log.view(3, 1)
    along = torch.matmul(position, column)
    across = torch.linalg.vector_norm(position - along * log, dim=1, keepdim=True)  # [P, 1]
    core = ((CORE_RADIUS - across) / CORE_RADIUS_WIDTH).clamp(0.0, 1.0)
    beyond = (along - torch.matmul(towards[1:], column)).square()
    shape = torch.matmul(share, torch.cat([across, core, beyond, share.view(-1, 1)], dim=1))
    width, core, spread, concentration = torch.split(shape, 1, dim=1)
    log_z = log[:, 2:]
    off, track_off = straight - log, tracks - log
    theta_off, phi_off = torch.split(torch.matmul(off, _tangents(log).view(2, 3).t().contiguous()), 1, dim=1)
    logs = torch.cat([both, both, n_hits, width, spread.clamp(min=0.0).sqrt()], dim=1)
    logs = (
        logs * torch.tensor([[1, 1, 1, 1, 1, 1 / 10, 1 / 50]], dtype=both.dtype)
        + torch.tensor([[EPS_ENERGY, EPS_ENERGY, 0.05, 0.05, 1, 1, 1]], dtype=both.dtype)
    ).log()
    of_energies, compared, to_compare, of_hits, of_width, of_spread = torch.split(logs, [2, 1, 1, 1, 1, 1], dim=1)
    features = [
        of_energies / 2.0,
        compared - to_compare,
        of_hits / 2.0,
        charges,
        of_width,
        core,
        of_spread,
        log_z.abs(),
        log_z.square(),
        concentration,
        theta_off / ANGLE_UNIT,
        phi_off.abs() / ANGLE_UNIT,
        (track_off.square().sum(1, keepdim=True) + 1e-8).sqrt() / ANGLE_UNIT,
        depth[1:],
    ]
    return Proxies(energy, momentum, torch.cat([log, straight, tracks]), torch.cat(features, dim=1))


def corrected_particle(outputs: Tensor, proxies: Proxies, track: Tensor, *, charged: Tensor) -> Particle:
    """The particle of the head's outputs.

    Parameters
    ----------
    outputs : float [1, V + 3 + 8], logits of codes and charges, and corrections
    proxies
        Of the particle.
    track : double [1, V + 5]
        ``token_track`` of the encoder's graph, of the seed.
    charged : [V]
        Whether there is a charge.
    """
    n_pdg = len(charged)
    pdg_logits, charge_logits, corrections = torch.split(outputs, [n_pdg, N_CHARGE, 8], dim=1)
    energy, track_trust, angles, energy_log_sigma, direction_log_sigma, trust = torch.split(
        corrections.double(), [1, 1, 2, 1, 1, 2], dim=1
    )
    pdg = pdg_logits.argmax(1)  # [1]
    is_charged = charged.index_select(0, pdg)
    track_log_energy, unit, has_track, sign = torch.split(track, [n_pdg, 3, 1, 1], dim=1)
    by_track = (has_track.view(1) > 0.5) & is_charged

    in_tracks = track_trust.sigmoid()
    tracks = torch.linalg.vector_norm(proxies.momentum, dim=1, keepdim=True)
    log_energy = ((1.0 - in_tracks) * proxies.energy + in_tracks * tracks + 1e-2).log() + CORRECTION_UNIT * energy
    weights = torch.cat([torch.zeros(1, 1, dtype=trust.dtype), trust], dim=1).softmax(1)
    mean = _unit(torch.matmul(weights, proxies.directions))
    sigma = direction_log_sigma.clamp(*DIRECTION_LOG_SIGMA).exp()
    direction = _unit(mean + torch.matmul(sigma * angles, _tangents(mean)))

    minus, _, plus = torch.split(charge_logits, 1, dim=1)
    probable = torch.where((plus > minus).view(1), 2, 0)
    return Particle(
        pdg=pdg,
        charge=torch.where(is_charged, torch.where(by_track, sign.view(1).long(), probable), 1),
        log_energy=torch.where(by_track, track_log_energy.index_select(1, pdg), log_energy),
        direction=torch.where(by_track, unit, direction),
        energy_sigma=energy_log_sigma.clamp(*ENERGY_LOG_SIGMA).exp().float().view(1),
        direction_sigma=sigma.float().view(1),
    )


def _unit(vectors: Tensor) -> Tensor:
    """Unit vectors [n, 3]."""
    return vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp(min=1e-12)  # type: ignore[no-any-return]


def _tangents(direction: Tensor) -> Tensor:
    """The tangent basis [2, 3] at a unit vector [1, 3], as `pflow.model.common.directions.tangent_basis`."""
    turned = torch.matmul(direction, torch.tensor([[0, 1, 0], [-1, 0, 0], [0, 0, 0]], dtype=torch.float64))
    rho = torch.linalg.vector_norm(turned, dim=1, keepdim=True)
    phi = torch.where(rho < 1e-6, torch.tensor([[0, 1, 0]], dtype=torch.float64), turned / rho)
    # phi x direction as a product with a matrix of the direction's components
    rows = [[0, 0, 0, 0, 0, -1, 0, 1, 0], [0, 0, 1, 0, 0, 0, -1, 0, 0], [0, -1, 0, 1, 0, 0, 0, 0, 0]]
    cross = torch.tensor(rows, dtype=torch.float64)
    theta = torch.matmul(phi, torch.matmul(direction, cross).view(3, 3))
    return torch.cat([theta, phi])
