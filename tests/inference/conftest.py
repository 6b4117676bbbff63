"""A small model with random but fixed weights: what reconstruction does with it must not depend on how good it is."""

from __future__ import annotations

import pytest
import torch

from pflow.checkpoint.load import Model
from pflow.io.open import read_events
from pflow.model.api import build_network
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser


@pytest.fixture(scope="session")
def model(sample_dir):
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


@pytest.fixture(scope="session")
def events(sample_dir):
    return read_events(sample_dir / "multi_test_small.root")
