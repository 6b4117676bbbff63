from collections.abc import Callable

import pytest

from pflow.cli.main import run_parsed


@pytest.fixture(scope="session")
def call() -> Callable[..., int]:
    """Runs a verb with these words; an error is raised."""
    return lambda verb, *words: run_parsed(verb, [str(word) for word in words])
