"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
