import pytest

from pflow.io.open import read_events


@pytest.fixture(scope="session")
def events(sample_dir):
    return read_events(sample_dir / "multi_test_small.root")
