"""Tokens to particles: the inverse of encode, with energy, momentum, mass, charge and code made consistent."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.particles import Reconstruction
from pflow.event.schema import make_particles
from pflow.physics.arrays import namespace
from pflow.physics.kinematics import four_momentum_covariance, unit_vector
from pflow.physics.pdg import CLASSES, class_index, masses
from pflow.tokens.scale import Normaliser
from pflow.tokens.tokens import ParticleTokens
from pflow.tokens.uncertainty import UncertaintyCalibration
from pflow.tokens.vocab import CHARGES, PdgVocabulary, signed_pdg

REST_MOMENTUM = 1e-3
"""Momentum over mass of a particle whose predicted energy is below its mass; keeps its direction."""

NULL_DIRECTION = (0.0, 0.0, 1.0)
"""Direction of a particle that is predicted none."""


def momentum_and_energy(predicted: Any, mass: Any) -> tuple[Any, Any]:
    """Momentum and energy, GeV, from predicted energies and masses, float64 [N]; arrays or tensors.

    E^2 = m^2 + p^2 holds: |p| = sqrt(E^2 - m^2). A particle whose predicted energy is below its mass gets |p| = 0.001 m
    and the energy that belongs to it.
    """
    xp, rest = namespace(mass), REST_MOMENTUM * mass
    squared = predicted**2 - mass**2
    momentum = xp.where(squared >= rest**2, xp.sqrt(squared.clip(0.0)), rest)
    return momentum, xp.hypot(momentum, mass)


def decode(
    tokens: ParticleTokens,
    *,
    pdg: PdgVocabulary,
    energy: Normaliser,
    calibration: UncertaintyCalibration | None = None,
    event: npt.ArrayLike | None = None,
    flags: npt.ArrayLike | None = None,
) -> Reconstruction:
    """Turn target tokens, true or generated, into particles, with the mass and signed PDG code of each.

    Their ``scores`` are sums of `pdg_probability` over the codes of each class; `calibration` is applied to the
    standard deviations before they become the ``covariance``.
    """
    code, charge = signed_pdg(pdg.decode(tokens.pdg), np.asarray(CHARGES)[tokens.charge])
    mass = masses(code)
    momentum, total = momentum_and_energy(energy.invert(tokens.energy[:, np.newaxis])[:, 0], mass)
    unit = unit_vector(tokens.direction.astype(np.float64), null=NULL_DIRECTION)
    fields = {
        "pdg": code,
        "charge": charge,
        "energy": total,
        "mass": mass,
        **{key: momentum * unit[:, axis] for axis, key in enumerate(("px", "py", "pz"))},
        "score": np.full(len(code), np.nan),
    }
    if tokens.pdg_probability is not None:
        probability = tokens.pdg_probability.astype(np.float64)
        fields["score"] = probability[np.arange(len(code)), tokens.pdg]
        fields["scores"] = probability @ np.eye(len(CLASSES))[class_index(pdg.codes)]  # [N, V] x [V, 5]
    if tokens.score is not None:
        fields["score"] = tokens.score
    if tokens.existence is not None:
        fields["existence"] = tokens.existence
    if tokens.energy_sigma is not None and tokens.direction_sigma is not None:
        energy_sigma, direction_sigma = (
            sigma.astype(np.float64) for sigma in (tokens.energy_sigma, tokens.direction_sigma)
        )
        if calibration is not None:
            energy_sigma, direction_sigma = calibration.apply(
                energy_sigma, direction_sigma, class_index(code), tokens.by_track
            )
        fields["covariance"] = four_momentum_covariance(total, mass, unit, energy_sigma, direction_sigma)
    n = len(tokens.counts)
    return Reconstruction(
        particles=make_particles(**{key: jagged.unflatten(value, tokens.counts) for key, value in fields.items()}),
        event=np.arange(n) if event is None else np.asarray(event, dtype=np.int64),
        flags=np.zeros(n, dtype=np.uint32) if flags is None else np.asarray(flags, dtype=np.uint32),
    )
