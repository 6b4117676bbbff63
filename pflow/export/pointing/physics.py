"""From columns of decoded particles to physical ones, as in `pflow.tokens.particles`. Letters: P particles, V codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from pflow.checkpoint.load import TrainedModel
from pflow.physics.kinematics import four_momentum_covariance, unit_vector
from pflow.physics.pdg import CLASSES, charges, class_index, masses
from pflow.tokens.particles import NULL_DIRECTION, momentum_and_energy
from pflow.tokens.uncertainty import curve_index

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

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        codes = np.array(model.tokeniser.pdg.codes)
        self.codes = torch.from_numpy(codes)
        self.charges = torch.from_numpy(np.asarray(charges(codes), dtype=np.float32))
        self.masses = torch.from_numpy(np.asarray(masses(codes), dtype=np.float64))
        classes = class_index(codes)
        self.in_class = torch.from_numpy(np.eye(len(CLASSES), dtype=np.float32)[classes])
        by_track = [curve_index(classes, np.full(len(codes), known)) for known in (False, True)]
        self.curve_of = torch.from_numpy(np.stack(by_track, axis=1))
        self.calibration = model.calibration

    def forward(self, columns: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Of the columns `inputs`, [P, ...]."""
        index = columns["pdg"]
        own, mass = self.charges[index], self.masses[index]
        sign = torch.where(own * (columns["charge"] - 1) < 0, -1, 1)
        p, energy = momentum_and_energy(columns["log_energy"].double().exp(), mass)
        unit = unit_vector(columns["direction"].double(), null=NULL_DIRECTION)
        sigmas = columns["energy_sigma"].double(), columns["direction_sigma"].double()
        if self.calibration is not None:
            sigmas = self.calibration.apply_curves(*sigmas, self.curve_of[index, columns["by_track"].long()])
        covariance = four_momentum_covariance(energy, mass, unit, *sigmas)
        probability = columns["pdg_logits"].softmax(-1)
        return (
            sign * self.codes[index],
            sign * own,
            energy,
            mass,
            p[:, None] * unit,
            covariance,
            probability.gather(1, index[:, None]).squeeze(1),
            probability @ self.in_class,
            probability,
        )
