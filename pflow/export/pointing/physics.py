"""From columns of decoded particles to physical ones, as in `pflow.tokens.particles`. Letters: P particles, V codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.checkpoint.load import Model
from pflow.model.common.directions import tangent_basis
from pflow.physics.pdg import CLASSES, charges, class_index, masses
from pflow.tokens.particles import REST_MOMENTUM
from pflow.tokens.uncertainty import Curve, curve_index, curves_of

__all__ = ["PhysicalParticles"]


class PhysicalParticles(nn.Module):
    """Codes, charges, momenta, calibrated covariance and probabilities of particles, in the order of `outputs`.

    Parameters
    ----------
    model
        Whose vocabulary and calibration count.
    """

    inputs = ("pdg", "charge", "log_energy", "direction", "pdg_logits", "energy_sigma", "direction_sigma", "by_track")
    outputs = (
        *("pdg", "charge", "energy", "mass", "momentum", "covariance"),
        *("score", "class_probability", "pdg_probability"),
    )

    def __init__(self, model: Model) -> None:
        super().__init__()
        codes = np.array(model.tokeniser.pdg.codes)
        self.codes = torch.from_numpy(codes)
        self.charges = torch.from_numpy(np.asarray(charges(codes), dtype=np.float32))
        self.masses = torch.from_numpy(np.asarray(masses(codes), dtype=np.float64))
        classes = class_index(codes)
        self.in_class = torch.from_numpy(np.eye(len(CLASSES), dtype=np.float32)[classes])
        by_track = [curve_index(classes, np.full(len(codes), known)) for known in (False, True)]
        self.curve_of = torch.from_numpy(np.stack(by_track, axis=1))
        calibration = model.calibration
        self.energy = None if calibration is None else _Curves(calibration.energy)
        self.direction = None if calibration is None else _Curves(calibration.direction)

    def forward(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Of the columns `inputs`, [P, ...]."""
        index = columns["pdg"]
        own, mass = self.charges[index], self.masses[index]
        sign = torch.where(own * (columns["charge"] - 1) < 0, -1, 1)
        predicted = columns["log_energy"].double().exp()
        smallest_momentum = REST_MOMENTUM * mass
        squared = predicted.square() - mass.square()
        above = squared >= smallest_momentum.square()
        p = torch.where(above, squared.clamp(min=0.0).sqrt(), smallest_momentum)
        energy = (p.square() + mass.square()).sqrt()
        unit = _unit(columns["direction"].double())
        energy_sigma, direction_sigma = columns["energy_sigma"].double(), columns["direction_sigma"].double()
        if self.energy is not None and self.direction is not None:
            curve = self.curve_of[index, columns["by_track"].long()]
            energy_sigma, direction_sigma = self.energy(energy_sigma, curve), self.direction(direction_sigma, curve)
        probability = columns["pdg_logits"].softmax(-1)
        return (
            sign * self.codes[index],
            sign * own,
            energy,
            mass,
            p[:, None] * unit,
            _covariance(energy, mass, unit, energy_sigma, direction_sigma),
            probability.gather(1, index[:, None]).squeeze(1),
            probability @ self.in_class,
            probability,
        )


class _Curves(nn.Module):
    """Calibration curves, `pflow.tokens.uncertainty.CURVES`: sums of the slopes of their pieces."""

    def __init__(self, curves: Mapping[str, Curve]) -> None:
        super().__init__()
        longest = max((len(curve.log_sigma) for curve in curves.values()), default=1)
        rows = []
        for curve in curves_of(curves):
            curve = curve or Curve((0.0,), (0.0,))
            missing = longest - len(curve.log_sigma)
            x = np.array([*curve.log_sigma, *curve.log_sigma[-1:] * missing])
            y = np.array([*curve.log_factor, *curve.log_factor[-1:] * missing])
            slope = np.diff(y) / np.where(np.diff(x) > 0, np.diff(x), 1.0)
            rows.append((x[:-1], x[1:], slope, y[:1]))
        self.begin, self.end, self.slope, self.first = (
            torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True)
        )

    def forward(self, sigma: Tensor, index: Tensor) -> Tensor:
        """Calibrated standard deviations, double [P], by the curves int64 [P]."""
        begin, end, slope = self.begin[index], self.end[index], self.slope[index]  # [P, pieces]
        beyond = torch.maximum(torch.minimum(sigma.log()[:, None], end), begin) - begin
        return sigma * (self.first[index, 0] + (slope * beyond).sum(1)).exp()


def _unit(vectors: Tensor) -> Tensor:
    """Unit vectors; +z for null vectors."""
    length = vectors.square().sum(1, keepdim=True).sqrt()
    along_z = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    return torch.where(length > 0, vectors / torch.where(length > 0, length, 1.0), along_z)


def _covariance(energy: Tensor, mass: Tensor, unit: Tensor, energy_sigma: Tensor, direction_sigma: Tensor) -> Tensor:
    """See `pflow.physics.kinematics.four_momentum_covariance`; double [P, 10]."""
    s_energy = energy * energy_sigma
    p = (energy.square() - mass.square()).clamp(min=0.0).sqrt()
    highest = ((energy + s_energy).square() - mass.square()).clamp(min=0.0).sqrt()
    along = torch.where(p > 0, torch.minimum(energy * s_energy / torch.where(p > 0, p, 1.0), highest), highest)
    by_energy = torch.cat([unit * along[:, None], s_energy[:, None]], dim=1)  # [P, 4]
    across = (p * direction_sigma)[:, None]
    theta, phi = (functional.pad(axis * across, (0, 1)) for axis in tangent_basis(unit))  # [P, 4] each
    columns = [
        by_energy[:, row] * by_energy[:, column] + theta[:, row] * theta[:, column] + phi[:, row] * phi[:, column]
        for row in range(4)
        for column in range(row + 1)
    ]
    return torch.stack(columns, dim=1)
