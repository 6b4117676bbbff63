import functools
import os
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch

from pflow.checkpoint import load_model
from pflow.errors import ConfigError
from pflow.export import convert
from pflow.export.convert import Graph, TensorSpec, attend_by_scan, to_onnx
from pflow.export.pointing import export_model
from pflow.model.pointing.encoder import DirectionalSelfAttention, Directions


@pytest.mark.usefixtures("tiny_graphs")
def test_a_wrong_translation_is_an_error_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_asinh", lambda x: convert.op.Mul(x, x))
    with pytest.raises(ConfigError, match=r"encoder.onnx: output .y. differs in ONNX Runtime .* difference.*: 5\.4"):
        export_model(load_model("ild-g4-photon"), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_onnxruntime_sends_no_usage_data_of_an_export():
    """The variable is set before it is imported, and one that the user set stays."""
    name = "ORT_DISABLE_TELEMETRY"
    code = f"""
import importlib, os, sys, pflow.export
print(os.environ["{name}"], "onnxruntime" in sys.modules)
os.environ["{name}"] = "0"
print(importlib.reload(pflow.export).os.environ["{name}"])
"""
    environment = {key: value for key, value in os.environ.items() if key != name}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["1", "False", "0"]


WIDTH, HEADS = 32, 4  # strengths of 3 (sees all), 30, 300, 3000 (in double precision)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = DirectionalSelfAttention(width=WIDTH, heads=HEADS).eval().requires_grad_(False)

    def forward(self, *arrays: torch.Tensor) -> tuple[torch.Tensor]:
        x, unit = arrays
        directions, order = Directions.of(unit)
        return (self.attention(x[order], directions=directions),)


def tensors(n_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens in jets all around, so that narrow heads see few of them."""
    random = torch.Generator().manual_seed(n_tokens)
    axis = torch.randn(3, 3, generator=random)[torch.arange(n_tokens) % 3]
    unit = torch.nn.functional.normalize(axis + 0.1 * torch.randn(n_tokens, 3, generator=random), dim=1)
    return 3.0 * torch.randn(n_tokens, WIDTH, generator=random), unit


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "attention.onnx"
    widths = {"x": WIDTH, "u": 3, "a": WIDTH}
    x, unit, attended = (TensorSpec(name, "float32", ("tokens", width)) for name, width in widths.items())
    exported = Attention()
    strengths = exported.attention.strength.tolist()
    exported.attention.attend_nearby = functools.partial(attend_by_scan, strengths=strengths)
    to_onnx(Graph(module=exported, example=tensors(300), inputs=(x, unit), outputs=(attended,)), path, metadata={})
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("n_tokens", [1, 2, 127, 128, 129, 1000])
def test_scan_gives_what_torch_gives(session, n_tokens):
    x, unit = tensors(n_tokens)
    (found,) = session.run(None, {"x": x.numpy(), "u": unit.numpy()})
    np.testing.assert_allclose(found, Attention()(x, unit)[0].numpy(), rtol=1e-4, atol=1e-4)
