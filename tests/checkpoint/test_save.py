from __future__ import annotations

import json

import pytest
import torch

from pflow.checkpoint.format import KEY, pack_header, read_checkpoint
from pflow.checkpoint.load import PREFIX, load_model
from pflow.checkpoint.save import write_weights
from pflow.checkpoint.weights import read_weights
from pflow.errors import ConfigError, InputError

NETWORK = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 64}


@pytest.fixture
def checkpoint(model, tmp_path):
    """A checkpoint as a fit writes it, with the state of its training."""
    header = pack_header(
        tokeniser=model.tokeniser,
        network=NETWORK,
        loss={"energy": "mse"},
        max_particles=3,
        provenance={"train": ["a.root"]},
        version="1.2.3",
    )
    weights = {f"{PREFIX}{name}": value for name, value in model.reconstructor.state_dict().items()}
    weights["loss.log_variances.charge"] = torch.zeros(())
    torch.save({KEY: header, "state_dict": weights, "optimizer_states": [torch.ones(9)]}, tmp_path / "best.ckpt")
    return tmp_path / "best.ckpt"


def test_weights_are_kept_to_the_last_bit(checkpoint, tmp_path):
    write_weights(checkpoint, tmp_path / "toy")
    expected, found = read_checkpoint(checkpoint).state_dict, read_weights(tmp_path / "toy").state_dict
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_header_is_kept_and_says_which_checkpoint_it_was(checkpoint, tmp_path):
    write_weights(checkpoint, tmp_path / "toy")
    text = json.loads((tmp_path / "toy" / "model.json").read_text())
    source = read_checkpoint(checkpoint)
    assert {name: text[name] for name in source.header} == source.header
    assert text["checkpoint_sha256"] == source.digest


def test_the_folder_holds_two_files_and_no_state_of_the_training(checkpoint, tmp_path):
    files = write_weights(checkpoint, tmp_path / "toy")
    assert sorted(files) == sorted((tmp_path / "toy").iterdir())
    assert "optimizer_states" not in (tmp_path / "toy" / "model.json").read_text()


def test_the_same_checkpoint_gives_the_same_bytes(checkpoint, tmp_path):
    first = write_weights(checkpoint, tmp_path / "a")
    second = write_weights(tmp_path / "a", tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_tensors_that_share_memory_are_written(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    shared = torch.zeros(4)
    content["state_dict"] |= {"loss.a": shared, "loss.b": shared[::2]}
    torch.save(content, checkpoint)
    write_weights(checkpoint, tmp_path / "toy")
    assert read_weights(tmp_path / "toy").state_dict["loss.b"].shape == (2,)


def test_half_precision_halves_matrices_and_nothing_else(checkpoint, tmp_path):
    whole, half = (write_weights(checkpoint, tmp_path / str(half), half=half)[0] for half in (False, True))
    expected, found = read_checkpoint(checkpoint).state_dict, read_weights(tmp_path / "True").state_dict
    for name, value in expected.items():
        torch.testing.assert_close(found[name].float(), value, rtol=5e-4 if value.ndim > 1 else 0, atol=1e-7)
    assert half.stat().st_size < 0.7 * whole.stat().st_size


def test_a_model_in_half_precision_computes_in_single(checkpoint, tmp_path):
    write_weights(checkpoint, tmp_path / "toy", half=True)
    assert {value.dtype for value in load_model(tmp_path / "toy").reconstructor.parameters()} == {torch.float32}


def test_weights_too_large_for_half_precision_are_an_error(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content["state_dict"]["loss.large"] = torch.full((2, 2), 1e6)
    torch.save(content, checkpoint)
    with pytest.raises(ConfigError, match=r"'loss\.large' has weights up to 1e\+06, too large"):
        write_weights(checkpoint, tmp_path / "toy", half=True)


def test_a_model_that_cannot_be_loaded_is_not_written(checkpoint, tmp_path):
    content = torch.load(checkpoint, weights_only=True)
    content["state_dict"] = {}
    torch.save(content, checkpoint)
    with pytest.raises(InputError, match="do not fit"):
        write_weights(checkpoint, tmp_path / "toy")
    assert not (tmp_path / "toy").exists()


def test_a_folder_that_holds_something_is_refused(checkpoint, tmp_path):
    with pytest.raises(ConfigError, match="not empty"):
        write_weights(checkpoint, tmp_path)
