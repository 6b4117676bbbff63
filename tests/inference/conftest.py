import pytest

from pflow.io.open import read_events


@pytest.fixture(scope="session")
def events(sample_dir):
    return read_events(sample_dir / "multi_test_small.root")


@pytest.fixture(scope="session")
def cld_rec(data_dir):
    """A fully simulated event of CLD."""
    return read_events(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
