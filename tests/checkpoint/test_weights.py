from __future__ import annotations

import hashlib
import json

import pytest
import torch
from safetensors.torch import save

from pflow.checkpoint.format import FORMAT, pack_header, read_checkpoint
from pflow.checkpoint.weights import read_weights
from pflow.errors import InputError


@pytest.fixture
def folder(tmp_path, tokeniser):
    """A folder of weights."""
    content = save({"network.weight": torch.tensor([1.0, 0.1])})
    (tmp_path / "model.safetensors").write_bytes(content)
    header = pack_header(
        tokeniser=tokeniser, network={"width": 8}, loss={}, max_particles=5, provenance={}, version="1.2.3"
    )
    (tmp_path / "model.json").write_text(
        json.dumps({**json.loads(header), "sha256": hashlib.sha256(content).hexdigest()})
    )
    return tmp_path


def change(folder, **changes) -> None:
    """Change fields of the text; None takes one out."""
    path = folder / "model.json"
    header = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in header.items() if value is not None}))


def test_weights_are_read_to_the_last_bit(folder):
    weights = read_weights(folder)
    assert torch.equal(weights.state_dict["network.weight"], torch.tensor([1.0, 0.1]))
    assert weights.digest == weights.header["sha256"]


def test_a_folder_is_a_checkpoint(folder, tokeniser):
    checkpoint = read_checkpoint(folder)
    assert checkpoint.tokeniser == tokeniser
    assert checkpoint.header["network"] == {"width": 8}
    assert checkpoint.path == str(folder)
    assert checkpoint.digest == read_weights(folder).digest


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"not a folder of weights: it has no {name}"):
        read_weights(folder)


def test_the_folder_of_a_training_names_its_checkpoints(tmp_path):
    (tmp_path / "best.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match=r"nearest matches: .*best\.ckpt"):
        read_weights(tmp_path)


def test_other_weights_than_those_of_the_text_are_an_error(folder):
    (folder / "model.safetensors").write_bytes(save({"network.weight": torch.zeros(2)}))
    with pytest.raises(InputError, match=r"model\.safetensors: not the weights that model\.json was written for"):
        read_weights(folder)


def test_a_file_that_is_no_safetensors_is_an_error(folder):
    (folder / "model.safetensors").write_bytes(b"nothing of the kind")
    change(folder, sha256=hashlib.sha256(b"nothing of the kind").hexdigest())
    with pytest.raises(InputError, match=r"model\.safetensors: not a safetensors file"):
        read_weights(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_a_text_that_is_not_json_is_an_error(folder, content):
    (folder / "model.json").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.json: not JSON"):
        read_weights(folder)


@pytest.mark.parametrize("digest", [None, 7])
def test_a_text_without_a_digest_is_an_error(folder, digest):
    change(folder, sha256=digest)
    with pytest.raises(InputError, match=r"model\.json, 'sha256': missing"):
        read_weights(folder)


def test_a_text_that_is_a_list_is_an_error(folder):
    (folder / "model.json").write_text("[]")
    with pytest.raises(InputError, match=r"model\.json, 'sha256'"):
        read_checkpoint(folder)


def test_a_newer_format_is_refused_with_the_version_that_wrote_it(folder):
    change(folder, format=FORMAT + 1)
    with pytest.raises(InputError, match=rf"model\.json, 'format': written by pflow 1\.2\.3 in format {FORMAT + 1}"):
        read_checkpoint(folder)


@pytest.mark.parametrize("field", ["tokeniser", "network", "max_particles"])
def test_a_field_that_is_missing_is_named(folder, field):
    change(folder, **{field: None})
    with pytest.raises(InputError, match=rf"model\.json, '{field}': missing"):
        read_checkpoint(folder)
