"""The C++ library and its example program, compiled once."""

from pathlib import Path

import pytest
import torch

from benchmarks.cpp import compile_library, compile_program


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder with a torch that makes no graphs."""
    if not hasattr(torch.onnx, "ops"):
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason=f"graphs need torch 2.13 or near it, not {torch.__version__}"))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The C++ library, compiled; skip modules of tests where `missing_for_cpp`."""
    return compile_library(tmp_path_factory.mktemp("cpp"), flags="-O0")


@pytest.fixture(scope="session")
def program(library):
    return compile_program(library, flags="-O0")
