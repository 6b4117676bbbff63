"""Builders of the records of `pflow.event.events.Events` from jagged arrays, with the schema's types and defaults."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import awkward as ak
import numpy as np

from pflow.event import jagged
from pflow.event.links import Links
from pflow.event.schema import SCHEMA
from pflow.physics import kinematics


def build(part: str, /, **quantities: Any) -> ak.Array:
    """Records of a part from an array [event, object] for each quantity; None takes the schema's default.

    ValueError: an unknown or missing quantity, or a shape that does not fit.
    """
    given = {name: values for name, values in quantities.items() if values is not None}
    known = {name: field for field in SCHEMA[part] for name in field.quantities}
    wrong = [name for name in quantities if name not in known]
    missing = [name for name, field in known.items() if field.required and name not in given]
    if wrong or missing:
        problem = f"have no {', '.join(wrong)}" if wrong else f"need {', '.join(missing)}"
        raise ValueError(f"{part.replace('_', ' ')} {problem}; they have {', '.join(known)}")
    counts = jagged.count(next(iter(given.values())))
    n = int(counts.sum())
    columns = {}
    for name, field in known.items():
        if name in given:
            values = jagged.flat(given[name], field.dtype)
        elif not field.width and not field.optional:
            values = np.full(n, field.default, dtype=field.dtype)
        else:
            continue
        if field.width and not len(values):
            values = values.reshape(0, field.width)
        shape = (n, field.width) if field.width else (n,)
        if values.shape != shape:
            raise ValueError(f"{name} of all {part.replace('_', ' ')} has shape {values.shape}, expected {shape}")
        columns[field.quantities[name]] = values
    return jagged.records(columns, counts)


make_hits = functools.partial(build, "hits")
"""Calorimeter hits: energy, x, y, z; time, subdetector, layer."""

make_tracker_hits = functools.partial(build, "tracker_hits")
"""Tracker hits: x, y, z; energy (deposited), time, layer."""


def make_tracks(*, b_field: float, **quantities: Any) -> ak.Array:
    """Tracks of unit charge from px, py, pz, charge or omega, phi, tan_lambda; `b_field` in T; else ValueError."""
    names = ("px", "py", "pz", "charge"), ("omega", "phi", "tan_lambda")
    has_momentum, has_helix = (all(quantities.get(name) is not None for name in group) for group in names)
    if has_momentum and has_helix:
        return build("tracks", **quantities)
    if not has_momentum and not has_helix:
        raise ValueError("tracks need px, py, pz and charge, or omega, phi and tan_lambda")
    given, missing = names if has_momentum else names[::-1]
    flat = {name: jagged.flat(quantities[name]) for name in given}
    if has_momentum:
        values: Sequence[Any] = kinematics.track_from_momentum(**flat, b_field=b_field)
    else:
        values = (*kinematics.momentum_from_track(**flat, b_field=b_field), np.sign(flat["omega"]))
    counts = jagged.count(quantities[given[0]])
    computed = {name: jagged.unflatten(column, counts) for name, column in zip(missing, values, strict=True)}
    return build("tracks", **{**quantities, **computed})


def make_truth(**quantities: Any) -> ak.Array:
    """Truth particles: pdg, charge, mass, px, py, pz; vx, vy, vz, status, parent. E^2 = m^2 + p^2."""
    flat = (jagged.flat(quantities[name], np.float64) for name in ("px", "py", "pz", "mass"))
    energy = jagged.unflatten(kinematics.energy(*flat), jagged.count(quantities["pdg"]))
    return build("truth", **quantities, energy=energy)


def make_particles(*, mass: Any = None, **quantities: Any) -> ak.Array:
    """Particles of a reconstruction: pdg, charge, energy, px, py, pz; mass, score, existence, scores, covariance.

    The mass defaults to sqrt(max(0, E^2 - p^2)). `existence` is the probability that the particle exists, and by which
    its energy counts in sums; without it energies count whole. `scores` [event, particle, 5] are the probabilities of
    `pflow.physics.pdg.CLASSES`; `covariance` [event, particle, 10] is ordered as `pflow.physics.kinematics.COVARIANCE`.

    >>> photon = {"pdg": [22], "charge": [0], "energy": [5], "px": [3], "py": [4], "pz": [0]}
    >>> particles = make_particles(**{name: [value, []] for name, value in photon.items()})  # two events
    >>> particles.pt.to_list(), particles.mass.to_list()
    ([[5.0], []], [[0.0], []])
    """
    if mass is None:
        energy, *momentum = (jagged.flat(quantities[name], np.float64) for name in ("energy", "px", "py", "pz"))
        squared = energy**2 - sum(p**2 for p in momentum)
        mass = jagged.unflatten(np.sqrt(np.maximum(squared, 0.0)), jagged.count(quantities["energy"]))
    return build("particles", **quantities, mass=mass)


def make_links(*, source: Any, particle: Any, weight: Any = None, normalise: bool = True) -> ak.Array:
    """Links from arrays [event, link] of indices; `normalise` divides weights as `Links.normalised` does."""
    sources = jagged.flat(source)
    links = Links(
        counts=jagged.count(source),
        source=sources,
        particle=jagged.flat(particle),
        weight=np.ones(len(sources)) if weight is None else jagged.flat(weight, np.float64),
    )
    return (links.normalised() if normalise else links).records()
