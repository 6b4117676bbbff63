import pytest

from pflow.checkpoint.load import load_model
from pflow.errors import ConfigError
from pflow.export import operators
from pflow.export.folder import export_model


@pytest.mark.usefixtures("tiny_graphs")
def test_a_wrong_translation_is_an_error_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(operators, "_asinh", lambda x: operators.op.Mul(x, x))
    with pytest.raises(ConfigError, match=r"encoder.onnx: output .y. differs in ONNX Runtime .* difference.*: 5\.4"):
        export_model(load_model("ild-g4-photon"), tmp_path / "model")
    assert not list(tmp_path.iterdir())
