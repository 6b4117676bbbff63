"""Units of pflow: GeV, mm, ns, T, rad, and charges in units of the positron charge."""

from __future__ import annotations

__all__ = ["GEV_PER_TESLA_MM"]

GEV_PER_TESLA_MM = 0.299792458e-3
"""Transverse momentum per charge, field and radius of curvature: pt [GeV] = 0.299792458e-3 |q| B [T] R [mm]
(the speed of light in m/ns times 1e-3)."""
