"""Field of a solenoid from the curvature of charged particles."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from pflow.physics.kinematics import GEV_PER_TESLA_MM

Floats = npt.NDArray[np.float64]

MIN_STEPS = 3
"""Fewest values for an estimate; the spread of fewer is unreliable."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldEstimate:
    """A field along z, T: median of `count` values, and its uncertainty (from their median deviation)."""

    b_field: float
    uncertainty: float
    count: int


def field_from_momenta(pt: Floats, pt_per_tesla: Floats) -> FieldEstimate | None:
    """Field from `pt` [track] of particles, GeV, and `pt_per_tesla` of their tracks, GeV/T; None for too few tracks."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _median(pt / pt_per_tesla)


def field_from_steps(start: Floats, end: Floats, start_momentum: Floats, end_momentum: Floats) -> FieldEstimate | None:
    """Field from the bending of particles of charge 1 on steps, e.g. between tracker layers; None for too few steps.

    On a step with chord c the direction turns by 2 asin(c / 2R), with R = pt / (0.299792458e-3 B). Points (x, y), mm,
    and momenta (px, py), GeV, float64 [step, 2] each.
    """
    chord = np.hypot(*(end - start).T)
    cross = start_momentum[:, 0] * end_momentum[:, 1] - start_momentum[:, 1] * end_momentum[:, 0]
    turn = np.abs(np.arctan2(cross, (start_momentum * end_momentum).sum(axis=1)))
    pt = (np.hypot(*start_momentum.T) + np.hypot(*end_momentum.T)) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        return _median(2 * np.sin(turn / 2) / chord * pt / GEV_PER_TESLA_MM)


def _median(values: Floats) -> FieldEstimate | None:
    values = values[np.isfinite(values)]
    if len(values) < MIN_STEPS:
        return None
    median = float(np.median(values))
    # 1.4826: standard deviation of a Gaussian over its median deviation; 1.2533: error of its median over its mean's.
    spread = 1.4826 * float(np.median(np.abs(values - median)))
    return FieldEstimate(b_field=median, uncertainty=1.2533 * spread / len(values) ** 0.5, count=len(values))
