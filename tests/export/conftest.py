"""Exported models, the C++ library and its example program, each made once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.cpp import compile_library, compile_program
from pflow.checkpoint import load_model
from pflow.io.open import read_events
from pflow.model.pointing import PointingReconstructor
from pflow.model.pointing.config import PointingDecodingConfig, PointingNetworkConfig
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder with a torch that makes no graphs."""
    if not hasattr(torch.onnx, "ops"):
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason=f"graphs need torch 2.13 or near it, not {torch.__version__}"))


@pytest.fixture(scope="session")
def no_tracks(sample_dir, made_once, make_model, save_model) -> Path:
    """A small model of ild_g4 with random weights, which reads no tracks; its export takes a third of `general`'s."""

    def make(folder: Path) -> None:
        folder.mkdir()
        features = ("log_energy", "x", "y", "z", "layer")
        config = TokenConfig(hit_features=features, hit_energy_min=1e-3, coarse=True, readout=True)
        tokeniser = Tokeniser.fit([read_events(sample_dir / "gamma1_val_small.root")], config)
        network = PointingNetworkConfig(width=24, heads=2, encoder_layers=1, decoder_layers=1, refine_layers=0)
        decoding = PointingDecodingConfig(max_particles=6)
        model = make_model(tokeniser, PointingReconstructor, network=network, decoding=decoding)
        save_model(model, folder / "no_tracks.ckpt")

    return made_once("no_tracks", make) / "no_tracks.ckpt"


@pytest.fixture(scope="session")
def exported(made_once) -> Callable[[str | Path, str], Path]:
    """Folder of a model's graphs for a detector, not to be changed; of a shipped model it takes most of a minute."""
    from pflow.export.pointing import export_model

    def exported(source: str | Path, detector: str) -> Path:
        def make(folder: Path) -> None:
            export_model(load_model(source), folder, detector=detector)

        return made_once(f"{Path(source).stem}_{detector}", make)

    return exported


@pytest.fixture(scope="session")
def exported_general(exported) -> Path:
    return exported("general", "cld")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The C++ library, compiled; skip modules of tests where `missing_for_cpp`."""
    return compile_library(tmp_path_factory.mktemp("cpp"), flags="-O0")


@pytest.fixture(scope="session")
def program(library):
    return compile_program(library, flags="-O0")
