"""What the tests of exports use."""

import pytest

from benchmarks.cpp import compile_library, compile_program
from pflow.checkpoint.load import TrainedModel
from pflow.io.open import read_events
from pflow.model.api import DecodingConfig
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.tokens.config import TokenConfig
from pflow.tokens.tokeniser import Tokeniser

TRACK_FEATURES = ("log_pt", "nx", "ny", "nz", "charge", "calo_x", "calo_y", "calo_z")
TRACKER_HIT_FEATURES = ("x", "y", "z")
MAX_PARTICLES = 6


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The C++ library, compiled; skip modules of tests where `missing_for_cpp`."""
    return compile_library(tmp_path_factory.mktemp("cpp"), flags="-O0")


@pytest.fixture(scope="session")
def program(library):
    """The example program."""
    return compile_program(library, flags="-O0")


@pytest.fixture(scope="session")
def events(sample_dir):
    return read_events(sample_dir / "multi_test_small.root")


@pytest.fixture(scope="session")
def tokenisers(events):
    """By the source of the network."""
    tracks = {"track_features": TRACK_FEATURES}
    recipes = {
        "hits": TokenConfig(hit_energy_min=0.01),
        "cross": TokenConfig(**tracks),
        "typed": TokenConfig(**tracks, tracker_hit_features=TRACKER_HIT_FEATURES),
    }
    return {source: Tokeniser.fit([events], recipe) for source, recipe in recipes.items()}


@pytest.fixture(scope="session")
def make_model(make_model, tokenisers):
    """A small translation model with random weights."""

    def make(*, seed: int = 0, source: str = "hits", **arguments) -> TrainedModel:
        sizes = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "feedforward": 32}
        if arguments.get("decoder") == "multi_projection":
            sizes["n_projections"] = 2
        network = TranslationNetworkConfig(source=source, **sizes, **arguments)
        decoding = DecodingConfig(max_particles=MAX_PARTICLES)
        return make_model(tokenisers[source], TranslationReconstructor, seed=seed, network=network, decoding=decoding)

    return make
