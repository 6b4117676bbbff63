"""Exported models, the C++ library and its example program, each made once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.cpp import compile_library, compile_program
from pflow.checkpoint import load_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder with a torch that makes no graphs."""
    if not hasattr(torch.onnx, "ops"):
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason=f"graphs need torch 2.13 or near it, not {torch.__version__}"))


@pytest.fixture(scope="session")
def exported(made_once) -> Callable[[str, str], Path]:
    """Folder of a shipped model's graphs for a detector, not to be changed; an export takes most of a minute."""
    from pflow.export.pointing import export_model

    def exported(name: str, detector: str) -> Path:
        return made_once(f"{name}_{detector}", lambda folder: export_model(load_model(name), folder, detector=detector))

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
