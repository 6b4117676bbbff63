"""Units used everywhere in pflow, and the one constant that ties them together.

Energies, momenta and masses are in GeV, lengths in mm, times in ns, magnetic fields in T, angles in rad,
charges in units of the positron charge. Every public docstring repeats the unit of what it takes and returns.
"""

from __future__ import annotations

__all__ = ["GEV_PER_TESLA_MM", "GeV", "MeV", "T", "cm", "m", "mm", "mrad", "ns"]

GeV = 1.0
MeV = 1e-3 * GeV
mm = 1.0
cm = 10.0 * mm
m = 1000.0 * mm
ns = 1.0
T = 1.0
mrad = 1e-3

GEV_PER_TESLA_MM = 0.299792458e-3
"""Transverse momentum per charge, field and radius of curvature: pt [GeV] = 0.299792458e-3 |q| B [T] R [mm]
(the speed of light in m/ns times 1e-3)."""
