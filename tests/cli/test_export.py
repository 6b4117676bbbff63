import json
import sys

import pytest

from pflow.checkpoint import load_model
from pflow.errors import ConfigError


@pytest.fixture(scope="module")
def checkpoint(save_model, tmp_path_factory):
    return save_model(load_model("ild-g4-photon"), tmp_path_factory.mktemp("export") / "best.ckpt")


@pytest.mark.usefixtures("tiny_graphs")
def test_a_checkpoint_becomes_a_folder(checkpoint, tmp_path, capsys, call):
    assert call("--checkpoint", checkpoint, "-o", tmp_path / "model") == 0
    written = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert written == ["encoder.onnx", "tokens.json"]
    text = json.loads((tmp_path / "model" / "tokens.json").read_text())
    assert text["run"]["checkpoint_sha256"] == load_model(checkpoint).digest
    output = capsys.readouterr().out
    assert all(str(tmp_path / "model" / name) in output for name in written)


@pytest.mark.usefixtures("tiny_graphs")
def test_a_folder_of_weights_becomes_onnx(checkpoint, tmp_path, call):
    call("--checkpoint", checkpoint, "-o", tmp_path / "weights", "--format", "weights")
    assert call("--checkpoint", tmp_path / "weights", "-o", tmp_path / "model") == 0
    text = json.loads((tmp_path / "model" / "tokens.json").read_text())
    assert text["run"]["checkpoint_sha256"] == load_model(tmp_path / "weights").digest


def test_a_bad_folder_another_detector_and_a_missing_extra_are_errors(checkpoint, tmp_path, monkeypatch, call):
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        call("--checkpoint", tmp_path / "missing.ckpt", "-o", tmp_path / "nowhere" / "model")
    with pytest.raises(ConfigError, match=r"trained on detector 'ild_g4', from which 'cld' differs in b_field, .*calo"):
        call("--checkpoint", checkpoint, "-o", tmp_path / "model", "--detector", "cld")
    monkeypatch.setitem(sys.modules, "pflow.export.pointing", None)  # its import fails
    with pytest.raises(ConfigError, match=r"for graphs for C\+\+, is not installed: pip install 'pflow\[export\]'"):
        call("--checkpoint", checkpoint, "-o", tmp_path / "model")
