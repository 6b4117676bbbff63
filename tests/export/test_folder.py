import json
import shutil
from pathlib import Path

import onnx
import pytest

import pflow
from pflow.checkpoint import load_model
from pflow.errors import ConfigError, InputError
from pflow.export.pointing import export_model

NAME = "ild-g4-photon"
GRAPHS = ("encoder", "decoder", "refinement")


@pytest.fixture
def folder(exported):
    """Of the smallest pointing model, for the only detector that it knows."""
    return exported(NAME, "ild_g4")


@pytest.mark.parametrize("graph", GRAPHS)
def test_tensors_are_as_described_and_files_name_their_checkpoint(graph, folder):
    text = json.loads((folder / "tokens.json").read_text())
    model = onnx.load(str(folder / text[graph]["file"]))
    for which, values in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        tensors = [
            {
                "name": value.name,
                "dtype": str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
                "shape": [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim],
            }
            for value in values
        ]
        assert tensors == text[graph][which]
    assert [opset.version for opset in model.opset_import if not opset.domain] == [text[graph]["opset"]]
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties["checkpoint_sha256"] == text["run"]["checkpoint_sha256"] == load_model(NAME).digest
    assert properties["graph"] == graph


def test_files_hold_no_path_of_this_machine(folder):
    checkout = str(Path(pflow.__file__).parents[1]).encode()
    paths = sorted(folder.iterdir())
    assert [path.name for path in paths] == ["decoder.onnx", "encoder.onnx", "refinement.onnx", "tokens.json"]
    for path in paths:
        content = path.read_bytes()
        assert checkout not in content
        assert b".py" not in content


def test_the_decoder_reads_what_the_encoder_gives(folder):
    text = json.loads((folder / "tokens.json").read_text())
    outputs = str(text["encoder"]["outputs"])
    assert all(tensor["name"] in outputs for tensor in text["decoder"]["inputs"])


def test_a_translation_network_and_an_old_torch_have_no_graphs(model, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="TranslationReconstructor: only pointing networks have graphs"):
        export_model(model, tmp_path / "model")
    monkeypatch.delattr("torch.onnx.ops")
    with pytest.raises(ConfigError, match=r"graphs need torch 2\.13 \(tested\) or near it, and \d"):
        export_model(load_model(NAME), tmp_path / "model")


def test_a_folder_of_graphs_is_no_checkpoint(folder, tmp_path):
    digest = load_model(NAME).digest
    with pytest.raises(InputError, match=rf"holds graphs for C\+\+ and no weights: .*SHA-256 {digest}"):
        load_model(folder)
    (shutil.copytree(folder, tmp_path / "copy") / "tokens.json").write_text("{}")
    with pytest.raises(InputError, match="expected what `pflow export` wrote"):
        load_model(tmp_path / "copy")
