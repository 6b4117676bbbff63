"""The particle of one decoder step: proxies and head, as in `pflow.model.pointing.head_one_event`, in double precision.

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
    PROXY_FEATURES,
    TRACK_MOMENTUM,
    TRACK_MOMENTUM_WIDTH,
)
from pflow.model.pointing.showers import DEPOSIT, DEPOSIT_WIDTH, LOG_WEIGHT

__all__ = [
    "COMPARED",
    "LOG_DEPOSIT",
    "N_CHOSEN",
    "Particle",
    "Proxies",
    "chosen_particle",
    "describing_weight",
    "proxies_of",
]

N_CHOSEN = 4 + N_CHARGE
"""Numbers of a particle: logarithm of the energy, unit vector, and which charge it has, as 0 and 1."""

LOG_ARGUMENTS = ("energy", "track_energy", "n_hits", "width", "spread")
"""Energy of the hits and of the tracks [GeV], number of hits, width and spread of the shower [mm]."""

LOGS = {
    "log_energy": ("energy", 1.0, EPS_ENERGY),
    "log_track_energy": ("track_energy", 1.0, EPS_ENERGY),
    "log_compared_energy": ("energy", 1.0, 0.05),
    "log_compared_track_energy": ("track_energy", 1.0, 0.05),
    "log_n_hits": ("n_hits", 1.0, 1.0),
    "log_width": ("width", 1 / 10, 1.0),
    "log_spread": ("spread", 1 / 50, 1.0),
    "log_deposit": ("energy", 1.0, 1e-3),
}
"""Columns of `Proxies.logs`: ln(factor x + offset) of an argument x; argument, factor and offset of each."""

COMPARED, LOG_DEPOSIT = (list(LOGS).index(name) for name in ("log_compared_energy", "log_deposit"))
"""Columns of `Proxies.logs` that the embedding reads: the first less the logarithm of the particle's energy."""

FEATURES = (
    *LOGS,
    *("core", "concentration", "theta_off", "phi_off", "abs_z", "z_squared", "track_off", "n_tracks", "charge"),
)
"""Columns of `Proxies.features` before those by subdetector: terms of `PROXY_FEATURES` without their factors."""

# One of `FEATURES`, the one of `PROXY_FEATURES` that it is a term of, and its factor in it.
_FACTORS = (
    ("log_energy", "log_energy", 0.5),
    ("log_track_energy", "log_track_energy", 0.5),
    ("log_compared_energy", "log_ratio", 1.0),
    ("log_compared_track_energy", "log_ratio", -1.0),
    ("log_n_hits", "log_n_hits", 0.5),
    ("log_width", "log_width", 1.0),
    ("log_spread", "log_spread", 1.0),
    ("core", "core", 1.0 / CORE_RADIUS_WIDTH),
    ("concentration", "concentration", 1.0),
    ("theta_off", "theta_off", 1.0 / ANGLE_UNIT),
    ("phi_off", "phi_off", 1.0 / ANGLE_UNIT),
    ("abs_z", "abs_z", 1.0),
    ("z_squared", "z_squared", 1.0),
    ("track_off", "track_off", 1.0 / ANGLE_UNIT),
    ("n_tracks", "n_tracks", 1.0),
    ("charge", "charge", 1.0),
)


class Proxies(NamedTuple):
    """Proxies of `pflow.model.pointing.proxies` of one particle, double.

    Parameters
    ----------
    energy : [1, 1], GeV
    momentum : [1, 3], of the tracks, GeV
    directions : [3, 3], to the log-weighted and to the linear barycentre, and of the tracks
    logs : [1, 8], see `LOGS`
    features : [1, F], `FEATURES`, and by subdetector fractions of the deposit, and fractions times layer
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
    chosen : float [1, `N_CHOSEN`], logarithm of the energy, unit vector, and which charge it has
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
        ``item_sums`` of the encoder's graph, see `pflow.export.pointing.encoder`.
    seed_unit : double [1, 3]
    n_subdetectors
        R.
    """
    depths = 2 * n_subdetectors
    row = fraction.view(1, -1)
    sums = torch.matmul(row, items)
    hit_and_track_energy, n_hits, momentum, charges, _ = torch.split(sums, [2, 1, 3, 2, 4 + depths], dim=1)
    energies, _, position, _ = torch.split(items, [1, 7, 3, 1 + depths], dim=1)
    energy = hit_and_track_energy[:, :1]
    ends = torch.tensor([[DEPOSIT, TRACK_MOMENTUM]], dtype=torch.float64)
    widths = torch.tensor([[DEPOSIT_WIDTH, TRACK_MOMENTUM_WIDTH]], dtype=torch.float64)
    presence = 1.0 - ((ends - hit_and_track_energy) / widths).clamp(0.0, 1.0).view(2, 1)  # of hits, and of tracks
    deposit_fraction = energies.view(1, -1) * row * (presence[:1] / energy.clamp(min=1e-9))  # [1, P]
    log_weight = ((deposit_fraction + 1e-12).log() + LOG_WEIGHT).clamp(min=0.0)
    weighted = torch.matmul(torch.cat([log_weight, deposit_fraction]), items)  # [2, 12 + 2 R]
    _, towards, _, depth = torch.split(weighted, [8, 3, 1, depths], dim=1)
    candidates = functional.normalize(torch.cat([towards, momentum + 1e-6 * seed_unit]))
    by_hits, rest = torch.split(candidates, [1, 2])
    axis = functional.normalize(candidates[2:] + presence[:1] * (by_hits - candidates[2:]))
    directions = torch.cat([axis, functional.normalize(axis + presence * (rest - axis))])  # [3, 3]

    frame = torch.cat([axis, _tangents(axis)])
    along, off = torch.split(torch.matmul(frame, position.t()), [1, 2])  # [1, P], [2, P], mm
    across = torch.linalg.vector_norm(off, dim=0, keepdim=True)
    core = (CORE_RADIUS - across).clamp(0.0, CORE_RADIUS_WIDTH)
    per_hit = torch.cat([core, deposit_fraction, across, along, along.square()])
    shape = torch.matmul(deposit_fraction, per_hit.t())
    core_and_concentration, width, mean, square = torch.split(shape, [2, 1, 1, 1], dim=1)
    spread = (square - mean.square() / presence[:1].clamp(min=1e-9)).clamp(min=0.0).sqrt()
    scales = [[factor * (of == name) for of, factor, _ in LOGS.values()] for name in LOG_ARGUMENTS]
    offsets = torch.tensor([[offset for *_, offset in LOGS.values()]], dtype=torch.float64)
    arguments = torch.cat([hit_and_track_energy, n_hits, width, spread], dim=1)  # `LOG_ARGUMENTS`
    logs = torch.addmm(offsets, arguments, torch.tensor(scales, dtype=torch.float64)).log()

    # In the frame of the axis: of the linear barycentre along the tangents, and the cosine to the tracks.
    turned = torch.matmul(directions[1:], frame.t()).view(1, -1)
    _, theta_off, phi_off, cosine, _ = torch.split(turned, [1, 1, 1, 1, 2], dim=1)
    z = axis[:, 2:]
    track_off = ((2.0 + 1e-8) - 2.0 * cosine).clamp(min=1e-8).sqrt()
    sizes = torch.cat([phi_off, z], dim=1).abs()
    # `FEATURES`, then those by subdetector
    features = [logs, core_and_concentration, theta_off, sizes, z.square(), track_off, charges, depth[1:]]
    return Proxies(energy, momentum, directions, logs, torch.cat(features, dim=1))


def describing_weight(weight: Tensor) -> Tensor:
    """Weights [.., W] of the network's features of a particle for those of `proxies_of`."""
    n_others = weight.shape[1] - len(PROXY_FEATURES)  # those by subdetector
    factors = torch.zeros(len(PROXY_FEATURES) + n_others, len(FEATURES) + n_others)
    for feature, network_feature, factor in _FACTORS:
        factors[PROXY_FEATURES.index(network_feature), FEATURES.index(feature)] = factor
    factors[len(PROXY_FEATURES) :, len(FEATURES) :] = torch.eye(n_others)
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
