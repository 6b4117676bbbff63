from __future__ import annotations

import json
import shlex

import pytest

from pflow.checkpoint.load import load_model
from pflow.cli.main import main


@pytest.fixture(scope="module")
def output(sample_dir, tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("provenance") / "reco.root")
    source = str(sample_dir / "gammasep_test_small.root")
    assert main(["reconstruct", source, "--checkpoint=ild-g4-photon", "-o", path, "-q", "--device=cpu"]) == 0
    return path


def test_model_versions_options_inputs_and_command_are_shown(output, sample_dir, capsys):
    assert main(["provenance", output]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["model"] == "ild-g4-photon"
    assert shown["SHA-256"] == load_model("ild-g4-photon").digest
    assert "torch " in shown["made"]
    assert "gammasep_test_small.root: " in shown["input"]
    assert "max_hits 32768" in shown["options"]
    words = shlex.split(shown["again"])
    assert words[:3] == ["with", "pflow", "reconstruct"]
    assert str(sample_dir / "gammasep_test_small.root") in words


def test_all_of_it_as_json(output, capsys):
    assert main(["provenance", output, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["kind"] == "reconstruction"
    assert made["configuration"]["model"]["class_path"]


def test_that_of_a_model(capsys):
    assert main(["provenance", "ild-g4-photon"]) == 0
    shown = capsys.readouterr().out
    assert load_model("ild-g4-photon").digest in shown
    assert "seed" in shown


def test_that_of_an_evaluation(output, sample_dir, tmp_path, capsys):
    truth = str(sample_dir / "gammasep_test_small.root")
    assert main(["evaluate", output, "--truth", truth, "-o", str(tmp_path / "e"), "--no-plots", "-q"]) == 0
    assert main(["provenance", str(tmp_path / "e" / "metrics.json")]) == 0
    shown = capsys.readouterr().out
    assert "truth" in shown
    assert "again with" in shown


@pytest.mark.parametrize(
    ("name", "text"), [("a.root", b"no"), ("a.json", b"{}"), ("a.json", b"["), ("a.ckpt", b"no"), ("none.root", None)]
)
def test_a_file_without_it_is_an_error_that_names_it(name, text, tmp_path, capsys):
    if text is not None:
        (tmp_path / name).write_bytes(text)
    assert main(["provenance", str(tmp_path / name)]) == 1
    assert name in capsys.readouterr().err


def test_a_file_of_events_holds_none(sample_dir, capsys):
    assert main(["provenance", str(sample_dir / "gammasep_test_small.root")]) == 1
    assert "holds no provenance" in capsys.readouterr().err
