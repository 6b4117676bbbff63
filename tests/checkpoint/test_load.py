from __future__ import annotations

import hashlib
import json

import pytest
import safetensors.torch
import torch

from pflow.checkpoint.format import KEY, pack_header
from pflow.checkpoint.load import PREFIX, load_model
from pflow.checkpoint.save import write_weights
from pflow.errors import InputError
from pflow.resources import shipped_models, weights_dir

NETWORK = {"width": 32, "heads": 4, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 64}


@pytest.fixture
def save(model, tmp_path):
    """Write a checkpoint of the model, as a fit would."""

    def write(*, network=NETWORK, weights=None, name="model.ckpt"):
        header = pack_header(
            tokeniser=model.tokeniser, network=network, loss={}, max_particles=6, provenance={}, version="0"
        )
        state = model.reconstructor.state_dict() if weights is None else weights
        path = tmp_path / name
        torch.save({KEY: header, "state_dict": {PREFIX + key: value for key, value in state.items()}}, path)
        return path

    return write


def test_a_loaded_model_has_the_same_weights(save, model):
    loaded = load_model(save())
    for name, value in model.reconstructor.state_dict().items():
        assert torch.equal(loaded.reconstructor.state_dict()[name], value), name


def test_a_loaded_model_is_ready_to_reconstruct(save, model):
    path = save()
    loaded = load_model(path)
    assert not loaded.reconstructor.training
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
    weights = dict(model.reconstructor.state_dict())
    gone = next(iter(weights))
    del weights[gone]
    with pytest.raises(InputError, match=rf"Missing key.*{gone}"):
        load_model(save(weights=weights))


def test_weights_that_belong_nowhere_are_an_error(save, model):
    weights = {**model.reconstructor.state_dict(), "extra": torch.zeros(1)}
    with pytest.raises(InputError, match=r"Unexpected key.*extra"):
        load_model(save(weights=weights))


@pytest.mark.parametrize("network", [{"width": 30, "heads": 4}, {"breadth": 3}, {"special": "none"}])
def test_a_configuration_that_makes_no_network_is_an_error(save, network):
    with pytest.raises(InputError, match=r"'network': its configuration makes no network"):
        load_model(save(network=network))


def test_a_file_that_is_no_checkpoint_is_an_error(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a model")
    with pytest.raises(InputError, match=r"notes\.txt"):
        load_model(path)


def test_an_architecture_that_there_is_not_is_an_error(save):
    with pytest.raises(InputError, match="no architecture 'recurrent': expected one of translation"):
        load_model(save(network={**NETWORK, "architecture": "recurrent"}))


@pytest.fixture
def shipped(save, tmp_path, monkeypatch):
    """A folder of models as pflow ships them, with one in it."""
    folder = tmp_path / "weights"
    folder.mkdir()
    write_weights(save(), folder / "toy-photon")
    monkeypatch.setattr("pflow.resources.weights_dir", lambda: folder)
    monkeypatch.setattr("pflow.checkpoint.format.weights_dir", lambda: folder)
    return folder


def test_a_folder_of_weights_is_the_same_model(save, model, tmp_path):
    write_weights(save(), tmp_path / "toy")
    loaded = load_model(tmp_path / "toy")
    assert loaded.tokeniser == model.tokeniser
    assert loaded.max_particles == 6
    for name, value in model.reconstructor.state_dict().items():
        assert torch.equal(loaded.reconstructor.state_dict()[name], value), name


def test_the_digest_of_a_folder_is_that_of_its_weights(shipped):
    content = (shipped / "toy-photon" / "model.safetensors").read_bytes()
    assert load_model(shipped / "toy-photon").digest == hashlib.sha256(content).hexdigest()


def test_a_model_that_comes_with_pflow_is_loaded_by_its_name(shipped):
    loaded = load_model("toy-photon")
    assert loaded.path == "toy-photon"
    assert loaded.digest == load_model(shipped / "toy-photon").digest


def test_models_that_come_with_pflow_are_listed(shipped):
    (shipped / "notes").mkdir()
    assert shipped_models() == ["toy-photon"]


def test_an_unknown_name_is_an_error_with_the_nearest(shipped):
    with pytest.raises(InputError, match=r"toy-foton: no such.* \(toy-photon\) \(nearest matches: toy-photon"):
        load_model("toy-foton")


def test_a_name_goes_before_a_folder_of_that_name(shipped, tmp_path, monkeypatch):
    (tmp_path / "toy-photon").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_model("toy-photon").path == "toy-photon"
    with pytest.raises(InputError, match="not a folder of weights"):
        load_model("./toy-photon")


def test_tensors_that_belong_nowhere_are_an_error_in_a_folder_too(shipped):
    folder = shipped / "toy-photon"
    content = safetensors.torch.save(
        {**safetensors.torch.load_file(folder / "model.safetensors"), PREFIX + "extra": torch.zeros(1)}
    )
    (folder / "model.safetensors").write_bytes(content)
    header = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**header, "sha256": hashlib.sha256(content).hexdigest()}))
    with pytest.raises(InputError, match=r"toy-photon.*Unexpected key.*extra"):
        load_model("toy-photon")


def test_models_that_come_with_pflow_load_and_are_small():
    for name in shipped_models():
        assert load_model(name).max_particles >= 1
    assert sum(path.stat().st_size for path in weights_dir().rglob("*") if path.is_file()) <= 8e6
