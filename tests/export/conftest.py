"""The C++ library and its example program, compiled once."""

import pytest

from benchmarks.cpp import compile_library, compile_program


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The C++ library, compiled; skip modules of tests where `missing_for_cpp`."""
    return compile_library(tmp_path_factory.mktemp("cpp"), flags="-O0")


@pytest.fixture(scope="session")
def program(library):
    """The example program."""
    return compile_program(library, flags="-O0")
