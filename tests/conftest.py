"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pflow.checkpoint.load import Model
from pflow.io.open import read_events
from pflow.metrics.table import ParticleTable
from pflow.model.api import build_network
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser

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


@pytest.fixture(scope="session")
def model(sample_dir) -> Model:
    """A small model with random but fixed weights: what is done with it must not depend on how good it is."""
    training = read_events(sample_dir / "multi_test_small.root", entry_stop=20)
    tokeniser = Tokeniser.fit([training], Recipe())
    torch.manual_seed(7)
    arguments = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 64}
    network = build_network(arguments, tokeniser.sizes)
    return Model(
        network=network.eval(),
        tokeniser=tokeniser,
        max_particles=6,
        digest="0" * 64,
        path="made-by-hand.ckpt",
        config={"seed": 7},
    )
