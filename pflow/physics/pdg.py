"""Charge, mass and particle-flow class of PDG codes, from the `particle` package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from particle import PDGID, InvalidParticle, Particle, ParticleNotFound

from pflow.physics.arrays import Floats, Index, Mask

CLASSES = ("charged_hadron", "neutral_hadron", "photon", "electron", "muon")
"""Particle-flow classes, in the order of their class index."""

CLASS_PDG = {"charged_hadron": 211, "neutral_hadron": 130, "photon": 22, "electron": 11, "muon": 13}
"""|PDG| written for a particle of a class whose species is unknown (Pandora's convention)."""

INVISIBLE = (
    *(12, 14, 16, 18, 39, *range(51, 61)),  # neutrinos, a fourth one; graviton; dark matter
    *(1000012, 1000014, 1000016, 2000012, 2000014, 2000016),  # sneutrinos
    *(1000022, 1000023, 1000025, 1000035, 1000045, 1000039, 5000039, 5100039),  # neutralinos, gravitino, gravitons
    *(4000012, 4000014, 4000016, 9900012, 9900014, 9900016),  # excited and heavy neutrinos
    *(1023, 4900021, 4900022, 4900023),  # dark photons, gluons and Z, of MadGraph's models and of Pythia
    *(4900012, 4900014, 4900016, *range(4900101, 4900109), 4900111, 4900113, 4900211, 4900213),  # hidden valley
)
"""|PDG| of particles that no detector sees unless they decay: the codes that CMS leaves out of generator jets (CMSSW,
RecoJets/Configuration/python/GenJetParticles_cff.py), with further codes of the PDG's numbering scheme (Monte Carlo
Particle Numbering Scheme, Review of Particle Physics) and of Pythia's hidden valley."""


@cache
def charge_of(pdg: int, unknown: float = 0.0) -> float:
    """Electric charge in e; `unknown` for codes that are in no table, e.g. private ions."""
    charge = PDGID(pdg).charge
    return unknown if charge is None else float(charge)


@cache
def _particle(pdg: int) -> Any:
    try:
        return Particle.from_pdgid(pdg)
    except (ParticleNotFound, InvalidParticle):
        return None


def mass_of(pdg: int) -> float:
    """Mass in GeV from the PDG tables; 0 without an entry.

    >>> round(mass_of(-211), 5)
    0.13957
    """
    mass = getattr(_particle(pdg), "mass", None)
    return 0.0 if mass is None else 1e-3 * float(mass)


def name_of(pdg: int) -> str:
    """Name, e.g. ``pi+``; the code itself if it is in no table.

    >>> name_of(-211)
    'pi-'
    """
    return str(getattr(_particle(pdg), "name", pdg))


@cache
def class_of(pdg: int) -> str:
    """Particle-flow class of a PDG code, one of `CLASSES`: electron, muon, photon; else a hadron by its charge."""
    hadron = "charged_hadron" if charge_of(pdg) != 0 else "neutral_hadron"
    return {22: "photon", 11: "electron", 13: "muon"}.get(abs(pdg), hadron)


def _lookup(function: Any, pdg: npt.ArrayLike, dtype: type) -> npt.NDArray[Any]:
    values = np.asarray(pdg, dtype=np.int64)
    # Many particles have few codes: the Python function is called once for each code.
    codes = np.unique(values)
    results: npt.NDArray[Any] = np.array([function(code) for code in codes.tolist()], dtype=dtype)
    return np.asarray(results[np.searchsorted(codes, values)])  # six times as fast as the inverse of `unique`


def charges(pdg: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Charges in e of an array of PDG codes, same shape, float32."""
    return _lookup(charge_of, pdg, np.float32)


def known_charges(pdg: npt.ArrayLike) -> Floats:
    """Charges in e of an array of PDG codes, same shape, float64; NaN for codes that are in no table."""
    return _lookup(partial(charge_of, unknown=math.nan), pdg, np.float64)


def masses(pdg: npt.ArrayLike) -> Floats:
    """Masses in GeV of an array of PDG codes, same shape, float64."""
    return _lookup(mass_of, pdg, np.float64)


def class_index(pdg: npt.ArrayLike) -> Index:
    """Index into `CLASSES` of each PDG code, same shape, int64."""
    return _lookup(lambda code: CLASSES.index(class_of(code)), pdg, np.int64)


SHORT = 5.0  # mm of c tau: a B meson has 0.5, a K0S 27


@cache
def _decays_at_once(pdg: int) -> bool:
    code, length = PDGID(pdg), getattr(_particle(pdg), "ctau", None)
    parton = code.is_quark or code.is_diquark or abs(pdg) == 21 or code.is_generator_specific
    return bool(parton or (length is not None and length < SHORT))


def decays_at_once(pdg: npt.ArrayLike) -> Mask:
    """True for each code of a particle that ends within some mm, as taus and neutral pions, and of partons, same shape.

    >>> decays_at_once([15, 111, 21, 310, 22, 2112]).tolist()
    [True, True, True, False, False, False]
    """
    return _lookup(_decays_at_once, pdg, np.bool_)


def is_invisible(pdg: npt.ArrayLike, more: Sequence[int] = ()) -> Mask:
    """True for each code of `INVISIBLE` or of `more`, or of the antiparticle, same shape."""
    return np.isin(np.abs(np.asarray(pdg)), (*INVISIBLE, *map(abs, more)))
