import json
import sys

import pytest

from pflow.checkpoint.load import load_model
from pflow.cli.main import run_parsed
from pflow.errors import ConfigError


def run(*words: object) -> int:
    return run_parsed("export", [str(word) for word in words])


@pytest.fixture(scope="module")
def checkpoint(save_model, tmp_path_factory):
    return save_model(load_model("ild-g4-photon"), tmp_path_factory.mktemp("export") / "best.ckpt")


@pytest.mark.usefixtures("tiny_graphs")
def test_a_checkpoint_becomes_a_folder(checkpoint, tmp_path, capsys):
    assert run("--checkpoint", checkpoint, "-o", tmp_path / "model") == 0
    written = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert written == ["encoder.onnx", "tokens.json"]
    text = json.loads((tmp_path / "model" / "tokens.json").read_text())
    assert text["run"]["checkpoint_sha256"] == load_model(checkpoint).digest
    output = capsys.readouterr().out
    assert all(str(tmp_path / "model" / name) in output for name in written)


@pytest.mark.usefixtures("tiny_graphs")
def test_a_folder_of_weights_becomes_onnx(checkpoint, tmp_path):
    run("--checkpoint", checkpoint, "-o", tmp_path / "weights", "--format", "weights")
    assert run("--checkpoint", tmp_path / "weights", "-o", tmp_path / "model") == 0
    text = json.loads((tmp_path / "model" / "tokens.json").read_text())
    assert text["run"]["checkpoint_sha256"] == load_model(tmp_path / "weights").digest


def test_a_bad_folder_is_refused_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        run("--checkpoint", tmp_path / "missing.ckpt", "-o", tmp_path / "nowhere" / "model")


def test_another_detector_than_the_models_is_refused(checkpoint, tmp_path):
    with pytest.raises(ConfigError, match="trained on detector 'ild_g4', from which 'cld' differs in b_field, calor"):
        run("--checkpoint", checkpoint, "-o", tmp_path / "model", "--detector", "cld")


def test_without_onnx_the_extra_is_named(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pflow.export.folder", None)  # its import fails
    with pytest.raises(ConfigError, match=r"for graphs for C\+\+, is not installed: pip install 'pflow\[export\]'"):
        run("--checkpoint", checkpoint, "-o", tmp_path / "model")
