"""Fixtures that make particles from a list of (pdg, energy [GeV], theta [deg], phi [deg]) for each event."""

from collections.abc import Callable, Sequence

import awkward as ak
import numpy as np
import pytest

from pflow.event.schema import make_particles
from pflow.metrics.table import ParticleTable
from pflow.physics.pdg import charge_of

Particle = tuple[int, float, float, float]


def records(events: Sequence[Sequence[Particle]]) -> ak.Array:
    """Records of massless particles."""
    counts = np.array([len(event) for event in events], dtype=np.int64)
    flat = np.array([particle for event in events for particle in event], dtype=np.float64).reshape(-1, 4)
    pdg = flat[:, 0].astype(np.int64)
    energy = flat[:, 1]
    theta, phi = np.radians(flat[:, 2]), np.radians(flat[:, 3])
    columns = {
        "pdg": pdg,
        "charge": np.array([charge_of(int(code)) for code in pdg]),
        "energy": energy,
        "px": energy * np.sin(theta) * np.cos(phi),
        "py": energy * np.sin(theta) * np.sin(phi),
        "pz": energy * np.cos(theta),
    }
    return make_particles(**{name: ak.unflatten(values, counts) for name, values in columns.items()})


@pytest.fixture
def make_records() -> Callable[..., ak.Array]:
    return records


@pytest.fixture
def make_table() -> Callable[..., ParticleTable]:
    return lambda events: ParticleTable.from_records(records(events))
