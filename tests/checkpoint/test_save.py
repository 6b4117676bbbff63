import pytest
import torch

from pflow.checkpoint import PREFIX, read_checkpoint, write_weights
from pflow.errors import InputError


@pytest.fixture
def checkpoint(save, model):
    """A checkpoint of the small model, and a large and a shared tensor beside its weights."""
    weights = model.reconstructor.state_dict(prefix=PREFIX)
    shared = torch.zeros(4)
    return save(state_dict={**weights, "other.a": shared, "other.b": shared[::2]})


def test_weights_are_exact_and_name_their_checkpoint(checkpoint, tmp_path):
    write_weights(checkpoint, tmp_path / "toy")
    source, written = (read_checkpoint(path) for path in (checkpoint, tmp_path / "toy"))
    assert written.state_dict.keys() == source.state_dict.keys()
    assert all(torch.equal(written.state_dict[name], weight) for name, weight in source.state_dict.items())
    header = written.header.to_dict()
    assert header.pop("provenance") == {**source.header.provenance, "checkpoint_sha256": source.digest}
    assert header.items() <= source.header.to_dict().items()


def test_weights_are_repeated_byte_for_byte_without_training_state(checkpoint, tmp_path):
    first = write_weights(checkpoint, tmp_path / "a")
    second = write_weights(tmp_path / "a", tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(first) == sorted((tmp_path / "a").iterdir())
    assert "optimizer_states" not in (tmp_path / "a" / "model.json").read_text()


def test_a_model_that_cannot_be_loaded_is_not_written(save, tmp_path):
    with pytest.raises(InputError, match="do not fit"):
        write_weights(save(state_dict={}), tmp_path / "toy")
    assert not (tmp_path / "toy").exists()
