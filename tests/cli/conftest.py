from collections.abc import Callable

import pytest

from pflow.cli.main import run_parsed


@pytest.fixture(scope="module")
def call(request: pytest.FixtureRequest) -> Callable[..., int]:
    """Runs the verb that a file tests, with these words; an error is raised."""
    verb = request.path.stem.removeprefix("test_")
    return lambda *words: run_parsed(verb, [str(word) for word in words])
