"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pflow.metrics.table import ParticleTable

REPOSITORY = Path(__file__).resolve().parent.parent


def shared_data() -> Path:
    """Folder with the real files: $PFLOW_DATA, by default ../shared/data beside the checkout."""
    return Path(os.environ.get("PFLOW_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    folder = shared_data()
    if not folder.is_dir():
        pytest.skip(f"real data not found in {folder}; set PFLOW_DATA to the folder that holds it")
    return folder


@pytest.fixture(scope="session")
def sample_dir() -> Path:
    """The small samples that come with the repository."""
    return REPOSITORY / "tests" / "data"


def _photons(energy: list[float], direction: list[list[float]], counts: list[int]) -> ParticleTable:
    e = np.array(energy)
    return ParticleTable(
        counts=np.array(counts),
        pdg=np.full(len(e), 22),
        charge=np.zeros(len(e)),
        energy=e,
        momentum=e[:, None] * np.array(direction, dtype=np.float64),
    )


@pytest.fixture(scope="session")
def photons() -> Callable[..., ParticleTable]:
    """Makes a table of photons: their energies, GeV, unit vectors, and the number of them in each event."""
    return _photons
