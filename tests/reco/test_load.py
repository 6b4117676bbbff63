from __future__ import annotations

import hashlib

import pytest
import torch

from pflow.errors import InputError
from pflow.reco.load import PREFIX, load_model
from pflow.tokens.checkpoint import KEY, pack_header

NETWORK = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 64}


@pytest.fixture
def save(model, tmp_path):
    """Write a checkpoint of the model, as a fit would."""

    def write(*, network=NETWORK, weights=None, name="model.ckpt"):
        header = pack_header(
            tokeniser=model.tokeniser, network=network, loss={}, max_particles=6, provenance={}, version="0"
        )
        state = model.network.state_dict() if weights is None else weights
        path = tmp_path / name
        torch.save({KEY: header, "state_dict": {PREFIX + key: value for key, value in state.items()}}, path)
        return path

    return write


def test_a_loaded_model_has_the_same_weights(save, model):
    loaded = load_model(save())
    for name, value in model.network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], value), name


def test_a_loaded_model_is_ready_to_reconstruct(save, model):
    path = save()
    loaded = load_model(path)
    assert not loaded.network.training
    assert loaded.tokeniser == model.tokeniser
    assert loaded.max_particles == 6
    assert loaded.config["network"] == NETWORK
    assert loaded.path == str(path)
    assert loaded.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_weights_of_the_loss_are_left_aside(save, model, tmp_path):
    path = save()
    content = torch.load(path, weights_only=True)
    content["state_dict"]["loss.log_variances.charge"] = torch.zeros(())
    torch.save(content, path)
    assert load_model(path).digest


def test_weights_of_another_size_are_an_error_that_names_the_file(save):
    with pytest.raises(InputError, match=r"model\.ckpt, 'state_dict': its weights do not fit.*size mismatch"):
        load_model(save(network={**NETWORK, "width": 16}))


def test_missing_weights_are_an_error_that_names_them(save, model):
    weights = dict(model.network.state_dict())
    gone = next(iter(weights))
    del weights[gone]
    with pytest.raises(InputError, match=rf"Missing key.*{gone}"):
        load_model(save(weights=weights))


def test_weights_that_belong_nowhere_are_an_error(save, model):
    weights = {**model.network.state_dict(), "extra": torch.zeros(1)}
    with pytest.raises(InputError, match=r"Unexpected key.*extra"):
        load_model(save(weights=weights))


@pytest.mark.parametrize("network", [{"width": 30, "heads": 4}, {"breadth": 3}, {"special": "none"}])
def test_a_configuration_that_makes_no_network_is_an_error(save, network):
    with pytest.raises(InputError, match=r"'pflow\.network': its configuration makes no network"):
        load_model(save(network=network))


def test_a_file_that_is_no_checkpoint_is_an_error(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a model")
    with pytest.raises(InputError, match=r"notes\.txt"):
        load_model(path)
