"""An export that ONNX Runtime computes otherwise than torch is an error, and nothing is written."""

import json

import onnx
import pytest
import torch

from pflow.checkpoint.load import load_model
from pflow.errors import ConfigError
from pflow.export import operators
from pflow.export.convert import check_graphs, to_onnx
from pflow.export.folder import export_model
from pflow.export.graphs import Graph, TensorSpec


class Asinh(torch.nn.Module):
    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.asinh(arrays[0]),)


def checked(folder) -> None:
    x, y = (TensorSpec(name, "float64", ("n",)) for name in "xy")
    example = (torch.linspace(-2.0, 2.0, 5, dtype=torch.float64),)
    graph = Graph(module=Asinh(), example=example, inputs=(x,), outputs=(y,))
    to_onnx(graph, folder / "graph.onnx", metadata={})
    check_graphs({"graph": graph}, {"graph": folder / "graph.onnx"})


def test_a_wrong_translation_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(operators, "_asinh", lambda x: operators.op.Mul(x, x))
    with pytest.raises(ConfigError, match=r"graph.onnx: output .y. differs in ONNX Runtime .* difference.*: 5\.4"):
        checked(tmp_path)


@pytest.mark.usefixtures("tiny_graphs")
def test_nothing_is_written_if_the_graphs_disagree(tmp_path, monkeypatch):
    monkeypatch.setattr(operators, "_asinh", lambda x: operators.op.Mul(x, x))
    with pytest.raises(ConfigError, match="differs in ONNX Runtime"):
        export_model(load_model("ild-g4-photon"), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_inputs_that_a_graph_does_not_use_are_not_described(exported_general):
    text = json.loads((exported_general / "tokens.json").read_text())
    for graph in ("encoder", "decoder", "refinement"):
        inputs = onnx.load(str(exported_general / text[graph]["file"])).graph.input
        assert [value["name"] for value in text[graph]["inputs"]] == [value.name for value in inputs]
