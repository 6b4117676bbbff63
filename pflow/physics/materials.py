"""Radiation and nuclear interaction lengths of the layers of a calorimeter, from the materials that they are made of.

Values of the Particle Data Group: "Atomic and nuclear properties of materials", table 6.1 of the Review of Particle
Physics (2022), and pdg.lbl.gov/AtomicNuclearProperties.
"""

from __future__ import annotations

import re

import numpy as np

from pflow.errors import ConfigError, check_choice
from pflow.physics.arrays import Floats

MATERIALS = {  # radiation length, nuclear interaction length, g/cm2; density, g/cm3
    "aluminium": (24.01, 107.2, 2.699),
    "BaF2": (9.91, 149.0, 4.893),
    "BGO": (7.97, 159.1, 7.130),
    "copper": (12.86, 137.3, 8.960),
    "CsI": (8.39, 171.5, 4.510),
    "iron": (13.84, 132.1, 7.874),
    "lead": (6.37, 199.6, 11.350),
    "lead_glass": (7.87, 158.0, 6.220),
    "liquid_argon": (19.55, 119.7, 1.396),
    "liquid_xenon": (8.48, 172.1, 2.953),
    "NaI": (9.49, 154.6, 3.667),
    "PbWO4": (7.39, 168.3, 8.300),
    "polystyrene": (43.79, 81.7, 1.060),
    "silicon": (21.82, 108.4, 2.329),
    "steel": (13.84, 132.1, 7.874),  # iron's
    "titanium": (16.16, 126.2, 4.540),
    "tungsten": (6.76, 191.9, 19.300),
    "uranium": (6.00, 209.0, 18.950),
}

SYNTAX = "CALORIMETER=MATERIAL:MM, of each layer, e.g. ecal=lead:4.0, hcal=steel:20,polystyrene:3 or, of layers of two "
SYNTAX += "thicknesses, ecal=tungsten:20x2.1+10x4.2"


def matter_of_layers(text: str, count: int) -> Floats:
    """Thickness, mm, radiation and interaction lengths of each layer, float64 [layers, 3], summed over its materials.

    `text`: ``MATERIAL:MM``, several separated by commas, where ``MM`` is the thickness in every layer or, counted from
    the inside, ``20x2.1+10x4.2``. There are `count` layers, or more if the text counts more.

    Raises
    ------
    ConfigError
        Another form, an unknown material (with the nearest), or fewer layers than `count`.

    Examples
    --------
    >>> matter_of_layers("tungsten:1x2.1+2x4.2", 3).round(3).tolist()
    [[2.1, 0.6, 0.021], [4.2, 1.199, 0.042], [4.2, 1.199, 0.042]]
    """
    per_material: list[tuple[str, list[float]]] = []
    for part in text.split(","):
        name, _, numbers = part.partition(":")
        folded = {known.casefold(): known for known in MATERIALS}
        name = folded.get(name.strip().casefold(), name.strip())
        check_choice(name, MATERIALS, "material")
        runs = [re.fullmatch(r"(?:(\d+)x)?(\d+\.?\d*)", run.strip()) for run in numbers.split("+")]
        some_uncounted = len(runs) > 1 and not all(run and run[1] for run in runs)
        if some_uncounted or not all(run and float(run[2]) > 0 for run in runs):
            raise ConfigError(f"absorber '{text}': expected {SYNTAX}")
        thickness = [float(run[2]) for run in runs if run for _ in range(int(run[1] or 1))]
        counted = any(run[1] for run in runs if run)
        if counted and len(thickness) < count:
            raise ConfigError(f"absorber '{text}' is of {len(thickness)} layers, and hits are in {count}")
        per_material.append((name, thickness if counted else thickness[:1]))
    n_layers = max(count, *(len(thickness) for _, thickness in per_material))
    total = np.zeros((n_layers, 3))
    for name, thickness in per_material:
        radiation, interaction, density = MATERIALS[name]
        if 1 < len(thickness) < n_layers:
            raise ConfigError(f"absorber '{text}': its materials are of {len(thickness)} and of {n_layers} layers")
        mm = np.broadcast_to(np.array(thickness), n_layers)
        per_mm = 0.1 * density / np.array([radiation, interaction])  # lengths are in cm: g/cm2 over g/cm3
        total += np.column_stack([mm, mm[:, np.newaxis] * per_mm])
    return total
