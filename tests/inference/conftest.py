import pytest

from pflow.io.open import read_events


@pytest.fixture(scope="session")
def events(sample_dir):
    return read_events(sample_dir / "multi_test_small.root")


@pytest.fixture(scope="session")
def cld_rec(cld_path):
    """Two events of CLD."""
    return read_events(cld_path, entry_stop=2)
