import json

import pytest
import torch

from pflow.checkpoint import KEY, Header
from pflow.model.api import describe


@pytest.fixture(scope="session")
def header(model) -> Header:
    return Header(
        version="1.2.3",
        tokeniser=model.tokeniser,
        model=describe(model.reconstructor),
        provenance={"train": ["a.root"]},
    )


@pytest.fixture
def save(model, header, save_model, tmp_path):
    """Write a checkpoint of the small model as a fit does, with some keys changed; None leaves one out."""

    def write(**changes):
        keys = {"optimizer_states": [torch.ones(9)], **changes}
        return save_model(model, tmp_path / "model.ckpt", header.provenance, **keys)

    return write


@pytest.fixture
def save_header(save, header):
    """Write a checkpoint with some fields of the header changed; None leaves one out."""

    def write(**changes):
        content = {**header.to_dict(), **changes}
        return save(**{KEY: json.dumps({key: value for key, value in content.items() if value is not None})})

    return write
