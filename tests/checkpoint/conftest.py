from __future__ import annotations

import pytest

from pflow.tokens.tokeniser import Tokeniser


@pytest.fixture(scope="session")
def tokeniser(model) -> Tokeniser:
    return model.tokeniser
