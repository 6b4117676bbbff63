from __future__ import annotations

import dataclasses

import pytest
import torch

from pflow.checkpoint.load import PREFIX, load_model, read_checkpoint
from pflow.checkpoint.save import write_weights
from pflow.errors import ConfigError, InputError
from pflow.tokens.uncertainty import Curve, UncertaintyCalibration


@pytest.fixture
def checkpoint(save, model):
    """A checkpoint of the small model, and a large and a shared tensor beside its weights."""
    weights = model.reconstructor.state_dict(prefix=PREFIX)
    shared = torch.zeros(4)
    return save(state_dict={**weights, "other.a": shared, "other.b": shared[::2]})


def test_weights_are_kept_to_the_last_bit(checkpoint, tmp_path):
    write_weights(checkpoint, tmp_path / "toy")
    expected, found = (read_checkpoint(source).state_dict for source in (checkpoint, tmp_path / "toy"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_header_is_kept_and_says_which_checkpoint_it_was(checkpoint, tmp_path):
    write_weights(checkpoint, tmp_path / "toy")
    source = read_checkpoint(checkpoint)
    found = read_checkpoint(tmp_path / "toy").header.to_dict()
    assert found.pop("provenance") == {**source.header.provenance, "checkpoint_sha256": source.digest}
    assert found.items() <= source.header.to_dict().items()


def test_the_same_checkpoint_gives_the_same_two_files_and_no_state_of_the_training(checkpoint, tmp_path):
    first = write_weights(checkpoint, tmp_path / "a")
    second = write_weights(tmp_path / "a", tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(first) == sorted((tmp_path / "a").iterdir())
    assert "optimizer_states" not in (tmp_path / "a" / "model.json").read_text()


def test_a_calibration_and_decoding_options_take_the_place_of_the_models_own(checkpoint, model, tmp_path):
    calibration = UncertaintyCalibration(energy={"photon": Curve((0.0,), (1.0,))})
    decoding = dataclasses.replace(model.reconstructor.decoding, max_particles=2)
    write_weights(checkpoint, tmp_path / "toy", calibration=calibration, decoding=decoding)
    assert load_model(tmp_path / "toy").reconstructor.decoding == decoding
    assert read_checkpoint(tmp_path / "toy").header.calibration == calibration


def test_half_precision_halves_matrices_and_nothing_else(checkpoint, tmp_path):
    whole, half = (write_weights(checkpoint, tmp_path / str(half), half=half)[0] for half in (False, True))
    expected, found = (read_checkpoint(source).state_dict for source in (checkpoint, tmp_path / "True"))
    for name, value in expected.items():
        torch.testing.assert_close(found[name].float(), value, rtol=5e-4 if value.ndim > 1 else 0, atol=1e-7)
    assert half.stat().st_size < 0.7 * whole.stat().st_size
    assert {value.dtype for value in load_model(tmp_path / "True").reconstructor.parameters()} == {torch.float32}


def test_weights_too_large_for_half_precision_are_an_error(save, model, tmp_path):
    weights = {**model.reconstructor.state_dict(prefix=PREFIX), "other.large": torch.full((2, 2), 1e6)}
    with pytest.raises(ConfigError, match=r"'other\.large' has weights up to 1e\+06, too large"):
        write_weights(save(state_dict=weights), tmp_path / "toy", half=True)


def test_a_model_that_cannot_be_loaded_is_not_written(save, tmp_path):
    with pytest.raises(InputError, match="do not fit"):
        write_weights(save(state_dict={}), tmp_path / "toy")
    assert not (tmp_path / "toy").exists()
