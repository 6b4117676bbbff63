from __future__ import annotations

import hashlib
import json
import os

import pytest
import torch

from pflow.checkpoint.format import FORMAT, KEY, pack_header, read_checkpoint
from pflow.errors import ConfigError, InputError


@pytest.fixture
def header(tokeniser) -> str:
    return pack_header(
        tokeniser=tokeniser,
        network={"width": 8},
        loss={"energy": "mse"},
        max_particles=5,
        provenance={"train": ["a.root"]},
        version="1.2.3",
    )


@pytest.fixture
def save(tmp_path, header):
    def write(**changes):
        content = {KEY: header, "state_dict": {"network.weight": torch.ones(2)}, **changes}
        path = tmp_path / "model.ckpt"
        torch.save({key: value for key, value in content.items() if value is not None}, path)
        return path

    return write


def test_what_was_written_is_read_back(save, tokeniser):
    path = save()
    checkpoint = read_checkpoint(path)
    assert checkpoint.tokeniser == tokeniser
    assert checkpoint.header["network"] == {"width": 8}
    assert checkpoint.header["provenance"] == {"train": ["a.root"]}
    assert checkpoint.state_dict["network.weight"].tolist() == [1, 1]
    assert checkpoint.path == str(path)


def test_the_digest_is_that_of_the_file(save):
    path = save()
    assert read_checkpoint(path).digest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("network", [{"a": object()}, {"a": float("nan")}])
def test_a_header_of_anything_but_plain_data_is_an_error(tokeniser, network):
    with pytest.raises(ConfigError, match="plain data only"):
        pack_header(tokeniser=tokeniser, network=network, loss={}, max_particles=1, provenance={}, version="1")


class Payload:
    """What a malicious file would hold: an object whose unpickling runs a command."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_code_in_a_checkpoint_is_refused_and_not_run(save, tmp_path):
    marker = tmp_path / "ran"
    path = save(callbacks=Payload(marker))
    with pytest.raises(InputError, match=r"model\.ckpt.*runs no code from files"):
        read_checkpoint(path)
    assert not marker.exists()


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "absent.ckpt")


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", b"root\x00\x00\xf3\x00" * 100])
def test_another_file_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "other.ckpt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"other\.ckpt.*not a checkpoint"):
        read_checkpoint(path)


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_truncated_checkpoint_is_an_error(save, share):
    path = save()
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match="not a checkpoint"):
        read_checkpoint(path)


def test_a_checkpoint_of_another_program_is_an_error(save):
    with pytest.raises(InputError, match="not a checkpoint of pflow"):
        read_checkpoint(save(**{KEY: None}))


def test_a_header_that_is_not_json_is_an_error(save):
    with pytest.raises(InputError, match="not JSON"):
        read_checkpoint(save(**{KEY: "{"}))


def test_weights_that_are_missing_are_an_error(save):
    with pytest.raises(InputError, match="weights are missing"):
        read_checkpoint(save(state_dict=None))


def changed(header: str, **changes) -> str:
    content = {**json.loads(header), **changes}
    return json.dumps({key: value for key, value in content.items() if value is not None})


def test_a_newer_format_is_refused_with_the_version_that_wrote_it(save, header):
    with pytest.raises(InputError, match=rf"pflow 1\.2\.3 in format {FORMAT + 1}"):
        read_checkpoint(save(**{KEY: changed(header, format=FORMAT + 1)}))


@pytest.mark.parametrize("number", [None, 0, "one"])
def test_a_header_without_a_format_is_an_error(save, header, number):
    with pytest.raises(InputError, match="states no format"):
        read_checkpoint(save(**{KEY: changed(header, format=number)}))


@pytest.mark.parametrize("field", ["tokeniser", "network", "max_particles"])
def test_a_field_that_is_missing_is_named(save, header, field):
    with pytest.raises(InputError, match=rf"'pflow\.{field}': missing"):
        read_checkpoint(save(**{KEY: changed(header, **{field: None})}))


def test_a_tokeniser_that_makes_none_is_an_error(save, header):
    with pytest.raises(InputError, match=r"'pflow\.tokeniser': tokeniser: field"):
        read_checkpoint(save(**{KEY: changed(header, tokeniser={"recipe": {}})}))
