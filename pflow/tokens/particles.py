"""Tokens to particles: the inverse of encode, with energy, momentum, mass, charge and code made consistent."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.particles import Reconstruction
from pflow.event.schema import make_particles
from pflow.physics.arrays import constant, double, namespace
from pflow.physics.kinematics import four_momentum_covariance, unit_vector
from pflow.physics.pdg import CLASSES, charges, class_index, masses
from pflow.tokens.scale import Normaliser
from pflow.tokens.tokens import ParticleTokens
from pflow.tokens.uncertainty import UncertaintyCalibration
from pflow.tokens.vocab import CHARGES, PdgVocabulary

REST_MOMENTUM = 1e-3
"""Momentum over mass of a particle whose predicted energy is below its mass; keeps its direction."""

NULL_DIRECTION = (0.0, 0.0, 1.0)
"""Direction of a particle that is predicted none."""

AS_GIVEN = ("score", "existence")
"""Fields of particles that are a model's."""


def momentum_and_energy(predicted: Any, mass: Any) -> tuple[Any, Any]:
    """Momentum and energy, GeV, from predicted energies and masses, float64 [N]; arrays or tensors.

    E^2 = m^2 + p^2 holds: |p| = sqrt(E^2 - m^2). A particle whose predicted energy is below its mass gets |p| = 0.001 m
    and the energy that belongs to it.
    """
    xp, rest = namespace(mass), REST_MOMENTUM * mass
    squared = predicted**2 - mass**2
    momentum = xp.where(squared >= rest**2, xp.sqrt(squared.clip(0.0)), rest)
    return momentum, xp.hypot(momentum, mass)


def physical_particles(
    *,
    pdg: Any,
    charge: Any,
    energy: Any,
    direction: Any,
    vocabulary: PdgVocabulary,
    pdg_probability: Any = None,
    energy_sigma: Any = None,
    direction_sigma: Any = None,
    by_track: Any = None,
    calibration: UncertaintyCalibration | None = None,
) -> dict[str, Any]:
    """Columns of N particles in physical units, consistent with each other; arrays, or tensors of given tensors.

    Parameters are as of `pflow.tokens.tokens.ParticleTokens`, but `energy` is in GeV, float64. Returned are ``pdg``
    int64, with the sign whose charge has the predicted sign (a neutral one stays positive: 0 is the particle);
    ``charge`` [e]; ``energy``, ``mass`` and ``momentum`` [N, 3], GeV; if the probabilities are given, ``score``, the
    code's, and ``scores`` [N, 5], of each class; if the sigmas are, ``covariance`` of the calibrated ones.
    """
    xp, codes = namespace(energy), np.array(vocabulary.codes, dtype=np.int64)

    def of_code(values: npt.NDArray[Any]) -> Any:
        return constant(values, like=energy)[pdg]

    code, of_particle, mass = of_code(codes), of_code(charges(codes)), of_code(masses(codes))
    is_antiparticle = of_particle * (charge - CHARGES.index(0)) < 0
    momentum, total = momentum_and_energy(energy, mass)
    unit = unit_vector(double(direction), null=NULL_DIRECTION)
    columns = {
        "pdg": xp.where(is_antiparticle, -code, code),
        "charge": xp.where(is_antiparticle, -of_particle, of_particle),
        "energy": total,
        "mass": mass,
        "momentum": momentum[:, None] * unit,
    }
    if pdg_probability is not None:
        probability = double(pdg_probability)
        columns["score"] = probability[xp.arange(pdg.shape[0]), pdg]
        columns["scores"] = probability @ constant(np.eye(len(CLASSES))[class_index(codes)], like=energy)
    if energy_sigma is not None and direction_sigma is not None:
        sigmas = double(energy_sigma), double(direction_sigma)
        if calibration is not None:
            sigmas = calibration.apply(*sigmas, of_code(class_index(codes)), by_track)
        columns["covariance"] = four_momentum_covariance(total, mass, unit, *sigmas)
    return columns


def decode(
    tokens: ParticleTokens,
    *,
    pdg: PdgVocabulary,
    energy: Normaliser,
    calibration: UncertaintyCalibration | None = None,
    event: npt.ArrayLike | None = None,
    flags: npt.ArrayLike | None = None,
) -> Reconstruction:
    """Turn target tokens, true or generated, into particles, see `physical_particles`."""
    given = {name: value for name, value in vars(tokens).items() if name not in ("counts", "energy", *AS_GIVEN)}
    in_gev = energy.invert(tokens.energy[:, np.newaxis])[:, 0]
    fields = physical_particles(**given, energy=in_gev, vocabulary=pdg, calibration=calibration)
    fields |= zip(("px", "py", "pz"), fields.pop("momentum").T, strict=True)
    fields |= {name: vars(tokens)[name] for name in AS_GIVEN if vars(tokens)[name] is not None}
    n = len(tokens.counts)
    return Reconstruction(
        particles=make_particles(**{key: jagged.unflatten(value, tokens.counts) for key, value in fields.items()}),
        event=np.arange(n) if event is None else np.asarray(event, dtype=np.int64),
        flags=np.zeros(n, dtype=np.uint32) if flags is None else np.asarray(flags, dtype=np.uint32),
    )
