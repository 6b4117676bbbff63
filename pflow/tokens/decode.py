"""Tokens to particles: the inverse of encode, with energy, momentum, mass, charge and code made consistent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.calibration.uncertainty import QUANTITIES
from pflow.event.build import make_particles
from pflow.event.particles import Reconstruction
from pflow.physics.kinematics import four_momentum_covariance, unit_vector
from pflow.physics.pdg import CLASSES, class_index, masses
from pflow.tokens.vocab import CHARGES, PdgVocabulary, signed_pdg

if TYPE_CHECKING:
    from pflow.tokens.tokeniser import Tokeniser

__all__ = ["REST_MOMENTUM", "decode"]

REST_MOMENTUM = 1e-3
"""Momentum over mass of a particle whose predicted energy lies below its mass; keeps its direction."""


def decode(
    tokeniser: Tokeniser,
    *,
    charge: npt.ArrayLike,
    pdg: npt.ArrayLike,
    energy: npt.ArrayLike,
    direction: npt.ArrayLike,
    mask: npt.ArrayLike,
    score: npt.ArrayLike | None = None,
    pdg_probability: npt.ArrayLike | None = None,
    energy_sigma: npt.ArrayLike | None = None,
    direction_sigma: npt.ArrayLike | None = None,
    event: npt.ArrayLike | None = None,
    flags: npt.ArrayLike | None = None,
    name: str = "PFlow",
) -> Reconstruction:
    """Turn target tokens, true or generated, into particles.

    Parameters
    ----------
    tokeniser
        The one that the model was trained with.
    charge, pdg
        int [B, T], indices into the vocabularies.
    energy
        float [B, T], log10(E / GeV), normalised.
    direction
        float [B, T, 3]; need not have length 1. A null vector becomes +z.
    mask
        bool [B, T], True = real particle.
    score
        float [B, T], probability of the identity given. If None, that of `pdg` in `pdg_probability`; unknown without.
    pdg_probability
        float [B, T, V], probability of each |PDG| of the vocabulary. The particles' ``scores`` are its sums over the
        codes of each class.
    energy_sigma, direction_sigma
        float [B, T], standard deviations of ln E and of the angle in each of the two axes across the direction, rad.
        Both or neither; from them, calibrated by the tokeniser's ``widths``, the particles' ``covariance``.
    event, flags
        [B], event numbers (default: 0, 1, ...) and `pflow.event.events.Flag` bits (default: none).
    name
        Name of the algorithm.

    Raises
    ------
    ValueError
        One standard deviation without the other, or a `pdg_probability` of another vocabulary.

    Notes
    -----
    The mass is that of the code in the PDG tables, the code's sign follows from the charge
    (`pflow.tokens.vocab.signed_pdg`), and E^2 = m^2 + p^2 holds: |p| = sqrt(E^2 - m^2). A predicted energy below the
    mass cannot be; the particle is then taken to be nearly at rest, |p| = 0.001 m, and its energy raised to fit.
    """
    if (energy_sigma is None) != (direction_sigma is None):
        raise ValueError("a covariance needs energy_sigma and direction_sigma, found one of them")
    real = np.asarray(mask, dtype=np.bool_)
    counts = real.sum(axis=1)
    absolute = tokeniser.pdg.decode(np.asarray(pdg)[real])
    code, sign = signed_pdg(absolute, np.asarray(CHARGES)[np.asarray(charge, dtype=np.int64)[real]])
    mass = masses(code)
    total = tokeniser.energy.invert(np.asarray(energy)[real][:, np.newaxis])[:, 0]
    squared = total**2 - mass**2
    momentum = np.where(squared >= (REST_MOMENTUM * mass) ** 2, np.sqrt(np.maximum(squared, 0.0)), REST_MOMENTUM * mass)
    unit = unit_vector(np.asarray(direction, dtype=np.float64)[real], null=(0.0, 0.0, 1.0))
    total = np.hypot(momentum, mass)
    probability = None if pdg_probability is None else _probabilities(pdg_probability, real, tokeniser.pdg)
    if score is not None:
        chosen = np.asarray(score)[real]
    elif probability is not None:
        chosen = probability[np.arange(len(code)), np.asarray(pdg)[real]]
    else:
        chosen = np.full(len(code), np.nan)
    fields = {
        "pdg": code,
        "charge": sign,
        "energy": total,
        "mass": mass,
        **{key: momentum * unit[:, axis] for axis, key in enumerate(("px", "py", "pz"))},
        "score": chosen,
    }
    if probability is not None:
        fields["scores"] = probability @ _codes_to_classes(tokeniser.pdg)
    if energy_sigma is not None:
        sigmas = [np.asarray(values, dtype=np.float64)[real] for values in (energy_sigma, direction_sigma)]
        if tokeniser.widths is not None:
            classes = class_index(code)
            sigmas = [tokeniser.widths.apply(*pair, classes) for pair in zip(QUANTITIES, sigmas, strict=True)]
        fields["covariance"] = four_momentum_covariance(total, mass, unit, *sigmas)
    n = len(counts)
    return Reconstruction(
        particles=make_particles(**{key: ak.unflatten(value, counts) for key, value in fields.items()}),
        event=np.arange(n) if event is None else np.asarray(event, dtype=np.int64),
        flags=np.zeros(n, dtype=np.uint32) if flags is None else np.asarray(flags, dtype=np.uint32),
        name=name,
    )


def _probabilities(
    pdg_probability: npt.ArrayLike, real: npt.NDArray[np.bool_], vocabulary: PdgVocabulary
) -> npt.NDArray[np.float64]:
    """Probability of each code for the real particles, [N, V]."""
    values = np.asarray(pdg_probability, dtype=np.float64)
    if values.shape != (*real.shape, len(vocabulary)):
        raise ValueError(f"pdg_probability has shape {values.shape}, expected {(*real.shape, len(vocabulary))}")
    return np.asarray(values[real])


def _codes_to_classes(vocabulary: PdgVocabulary) -> npt.NDArray[np.float64]:
    """Matrix [V, 5]: 1 where a code belongs to a class."""
    return np.eye(len(CLASSES))[class_index(vocabulary.codes)]
