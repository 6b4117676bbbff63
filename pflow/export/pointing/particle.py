"""The particle of one decoder step: proxies and head, as in `pflow.model.pointing.event_head`, in double precision.

Few operators, as onnxruntime's time goes with their number: factors of features are in the weights of the next layer.

Letters: P items that the particle may be assigned, R subdetectors, V codes, W width, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.model.pointing.decoder import N_CHARGE
from pflow.model.pointing.head import CORRECTION_UNIT, DIRECTION_LOG_SIGMA
from pflow.model.pointing.proxies import (
    ANGLE_UNIT,
    CORE_RADIUS,
    CORE_RADIUS_WIDTH,
    EPS_ENERGY,
    TRACK_MOMENTUM,
    TRACK_MOMENTUM_WIDTH,
)
from pflow.model.pointing.showers import DEPOSIT, DEPOSIT_WIDTH, LOG_WEIGHT

__all__ = ["ALONE", "COMPARED", "N_CHOSEN", "Particle", "Proxies", "chosen_particle", "describing_weight", "proxies_of"]

N_CHOSEN = 4 + N_CHARGE
"""Of a particle: logarithm of the energy, unit vector, and which charge it has."""

LOGS = (
    *((0, 1.0, EPS_ENERGY), (1, 1.0, EPS_ENERGY), (0, 1.0, 0.05), (1, 1.0, 0.05)),
    *((2, 1.0, 1.0), (3, 1 / 10, 1.0), (4, 1 / 50, 1.0), (0, 1.0, 1e-3)),
)
"""Logarithms of features: which of energy, momenta of tracks, number of hits, width and spread; factor, and offset."""

COMPARED, ALONE = 2, 7
"""Those of the energy that are features of the embedding."""

# A feature of `proxies_of`, the feature of the network that it is part of, and its factor; without subdetectors.
_FACTORS = (
    *((0, 0, 0.5), (1, 1, 0.5), (2, 2, 1.0), (3, 2, -1.0), (4, 3, 0.5), (5, 6, 1.0), (6, 8, 1.0)),
    *((8, 7, 1.0 / CORE_RADIUS_WIDTH), (9, 11, 1.0), (10, 12, 1.0 / ANGLE_UNIT), (11, 13, 1.0 / ANGLE_UNIT)),
    *((12, 9, 1.0), (13, 10, 1.0), (14, 14, 1.0 / ANGLE_UNIT), (15, 4, 1.0), (16, 5, 1.0)),
)
_N_FEATURES, _N_OF_NETWORK = 17, 15


class Proxies(NamedTuple):
    """Proxies of `pflow.model.pointing.proxies` of one particle, double.

    Parameters
    ----------
    energy : [1, 1], GeV
    momentum : [1, 3], of the tracks, GeV
    directions : [3, 3], to the log-weighted and to the linear barycentre, and of the tracks
    logs : [1, 8], see `LOGS`
    features : [1, F]
    """

    energy: Tensor
    momentum: Tensor
    directions: Tensor
    logs: Tensor
    features: Tensor


class Particle(NamedTuple):
    """A decoded particle.

    Parameters
    ----------
    chosen : float [1, `N_CHOSEN`]
    energy_log_sigma, direction_sigma : double [1, 1]
    by_track : bool [1], True = charged, with the momentum of a track
    """

    chosen: Tensor
    energy_log_sigma: Tensor
    direction_sigma: Tensor
    by_track: Tensor


def proxies_of(fraction: Tensor, items: Tensor, seed_unit: Tensor, *, n_subdetectors: int) -> Proxies:
    """Proxies of a particle.

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
    sums = torch.matmul(row, items)
    both, n_hits, momentum, charges, _ = torch.split(sums, [2, 1, 3, 2, 4 + depths], dim=1)
    energies, _, position, _ = torch.split(items, [1, 7, 3, 1 + depths], dim=1)
    energy = both[:, :1]
    end = torch.tensor([[DEPOSIT, TRACK_MOMENTUM]], dtype=both.dtype)
    width = torch.tensor([[DEPOSIT_WIDTH, TRACK_MOMENTUM_WIDTH]], dtype=both.dtype)
    counts = 1.0 - ((end - both) / width).clamp(0.0, 1.0).view(2, 1)  # the presence of hits, and of tracks
    share = energies.view(1, -1) * row * (counts[:1] / energy.clamp(min=1e-9))  # [1, P]
    by_log = ((share + 1e-12).log() + LOG_WEIGHT).clamp(min=0.0)
    weighted = torch.matmul(torch.cat([by_log, share]), items)  # [2, 12 + 2 R]
    _, towards, _, depth = torch.split(weighted, [8, 3, 1, depths], dim=1)
    candidates = functional.normalize(torch.cat([towards, momentum + 1e-6 * seed_unit]))
    by_hits, rest = torch.split(candidates, [1, 2])
    axis = functional.normalize(candidates[2:] + counts[:1] * (by_hits - candidates[2:]))
    directions = torch.cat([axis, functional.normalize(axis + counts * (rest - axis))])  # [3, 3]

    frame = torch.cat([axis, _tangents(axis)])
    along, off = torch.split(torch.matmul(frame, position.t()), [1, 2])  # [1, P], [2, P], mm
    across = torch.linalg.vector_norm(off, dim=0, keepdim=True)
    core = (CORE_RADIUS - across).clamp(0.0, CORE_RADIUS_WIDTH)
    shape = torch.matmul(share, torch.cat([core, share, across, along, along.square()]).t())
    core_and_concentration, width, mean, square = torch.split(shape, [2, 1, 1, 1], dim=1)
    spread = (square - mean.square() / counts[:1].clamp(min=1e-9)).clamp(min=0.0).sqrt()
    scales = torch.tensor([[factor * (of == i) for of, factor, _ in LOGS] for i in range(5)], dtype=both.dtype)
    offsets = torch.tensor([[offset for *_, offset in LOGS]], dtype=both.dtype)
    logs = torch.addmm(offsets, torch.cat([both, n_hits, width, spread], dim=1), scales).log()

    # In the frame of the axis: of the linear barycentre along the tangents, and the cosine to the tracks.
    turned = torch.matmul(directions[1:], frame.t()).view(1, -1)
    _, theta_off, phi_off, cosine, _ = torch.split(turned, [1, 1, 1, 1, 2], dim=1)
    z = axis[:, 2:]
    track_off = ((2.0 + 1e-8) - 2.0 * cosine).clamp(min=1e-8).sqrt()
    sizes = torch.cat([phi_off, z], dim=1).abs()
    features = [logs, core_and_concentration, theta_off, sizes, z.square(), track_off, charges, depth[1:]]
    return Proxies(energy, momentum, directions, logs, torch.cat(features, dim=1))


def describing_weight(weight: Tensor) -> Tensor:
    """Weights [.., W] of the network's features of a particle for those of `proxies_of`."""
    n_others = weight.shape[1] - _N_OF_NETWORK
    factors = torch.zeros(_N_OF_NETWORK + n_others, _N_FEATURES + n_others)
    for row, column, factor in _FACTORS:
        factors[column, row] = factor
    factors[_N_OF_NETWORK:, _N_FEATURES:] = torch.eye(n_others)
    return weight @ factors


def chosen_particle(outputs: Tensor, proxies: Proxies, of_code: Tensor) -> Particle:
    """The particle of the head's outputs.

    Parameters
    ----------
    outputs : float [1, 3 + 8], logits of charges, and corrections
    proxies
        Of the particle.
    of_code : float [1, 2 `N_CHOSEN`]
        ``token_codes`` of the encoder's graph, of the seed and the code.
    """
    minus, _, plus, energy, track_trust, angles, energy_log_sigma, direction_log_sigma, trust = torch.split(
        outputs.double(), [1, 1, 1, 1, 1, 2, 1, 1, 2], dim=1
    )
    in_tracks = track_trust.sigmoid()
    tracks = torch.linalg.vector_norm(proxies.momentum, dim=1, keepdim=True)
    log_energy = (proxies.energy + in_tracks * (tracks - proxies.energy) + 1e-2).log() + CORRECTION_UNIT * energy
    weights = torch.cat([torch.zeros(1, 1, dtype=trust.dtype), trust], dim=1).softmax(1)
    mean = functional.normalize(torch.matmul(weights, proxies.directions))
    sigma = direction_log_sigma.clamp(*DIRECTION_LOG_SIGMA).exp()
    direction = functional.normalize(torch.addmm(mean, sigma * angles, _tangents(mean)))
    is_plus = (plus > minus).double()
    predicted = torch.cat([log_energy, direction, 1.0 - is_plus, torch.zeros_like(is_plus), is_plus], dim=1)
    known, values = torch.split(of_code, N_CHOSEN, dim=1)
    known = known > 0.5
    return Particle(torch.where(known, values, predicted.float()), energy_log_sigma, sigma, by_track=known[:, 0])


def _tangents(direction: Tensor) -> Tensor:
    """The tangent basis [2, 3] at a unit vector [1, 3], as `pflow.model.common.directions.tangent_basis`."""
    direction = direction + torch.tensor([[1e-12, 0.0, 0.0]], dtype=torch.float64)  # along the axis there is none
    theta = torch.addmm(torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64), direction[:, 2:], direction)
    phi = torch.matmul(direction, torch.tensor([[0, 1, 0], [-1, 0, 0], [0, 0, 0]], dtype=torch.float64))
    return functional.normalize(torch.cat([theta, phi]))
