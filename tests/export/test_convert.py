import os
import subprocess
import sys

import pytest

from pflow.checkpoint import load_model
from pflow.errors import ConfigError
from pflow.export import convert
from pflow.export.pointing import export_model


@pytest.mark.usefixtures("tiny_graphs")
def test_a_wrong_translation_is_an_error_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_asinh", lambda x: convert.op.Mul(x, x))
    with pytest.raises(ConfigError, match=r"encoder.onnx: output .y. differs in ONNX Runtime .* difference.*: 5\.4"):
        export_model(load_model("ild-g4-photon"), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_onnxruntime_sends_no_usage_data_of_an_export():
    """The variable is set before it is imported, and one that the user set stays."""
    code = "import os, sys, pflow.export; print(os.environ['ORT_DISABLE_TELEMETRY'], 'onnxruntime' in sys.modules)"
    for given, expected in (({}, "1 False\n"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0 False\n")):
        environment = {**{key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}, **given}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout == expected
