"""An export that ONNX Runtime computes otherwise than torch is an error, and nothing is written."""

import pytest

from pflow.checkpoint.load import load_model
from pflow.errors import ConfigError
from pflow.export import operators
from pflow.export.convert import check_graphs, to_onnx
from pflow.export.folder import export_model


def test_a_wrong_translation_is_an_error(asinh_graph, tmp_path, monkeypatch):
    monkeypatch.setattr(operators, "_asinh", lambda x: operators.op.Mul(x, x))
    to_onnx(asinh_graph, tmp_path / "graph.onnx", metadata={})
    with pytest.raises(ConfigError, match=r"graph.onnx: output .y. differs in ONNX Runtime .* difference.*: 5\.4"):
        check_graphs({"graph": asinh_graph}, {"graph": tmp_path / "graph.onnx"})


@pytest.mark.usefixtures("tiny_graphs")
def test_nothing_is_written_if_the_graphs_disagree(tmp_path, monkeypatch):
    monkeypatch.setattr(operators, "_asinh", lambda x: operators.op.Mul(x, x))
    with pytest.raises(ConfigError, match="differs in ONNX Runtime"):
        export_model(load_model("ild-g4-photon"), tmp_path / "model")
    assert not list(tmp_path.iterdir())
