"""An exported translation network, run as its folder says, without pflow; what stands in the folder."""

import dataclasses
import json
import os
from pathlib import Path

import awkward as ak
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from pflow.data.batch import Batch, TokenSet
from pflow.event.merge_hits import Merge
from pflow.export import folder as folder_module
from pflow.export.folder import export_model
from pflow.inference.events import reconstruct
from pflow.model.api import GeneratedParticles

OPTIONS = {"embedder": "v2", "norm": "pre", "activation": "gelu", "dropout": 0.1, "target_position": True}
VARIANTS = {
    "hits": {"special": "flags", "source": "hits", "decoder": "vanilla"},
    "cross": {"special": "kind", "source": "cross", "decoder": "multi_projection"},
    "typed": {"special": "flags", "source": "typed", "decoder": "multi_projection"},
    "options": {"special": "kind", "source": "hits", "decoder": "vanilla", **OPTIONS},
}
LENGTHS = {"hits": (9, 1, 33, 4, 0, 17), "tracks": (2, 0, 7, 1, 3, 0), "tracker_hits": (0, 4, 11, 2, 1, 1)}
"""Of six events; the example that a graph is traced with has 5 hits, 6 tracks and 7 tracker hits."""


class Exported:
    """The exported folder, used as its `how_to` says."""

    def __init__(self, folder: Path) -> None:
        self.text = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(folder / self.text[graph]["file"]), providers=["CPUExecutionProvider"])
            for graph in ("encoder", "decoder")
        )

    def tokens(self, part: str, values: np.ndarray) -> np.ndarray:
        """Step 1: physical values [N, F] to tokens."""
        columns = []
        for feature, column in zip(self.text["source"][part]["features"], values.T, strict=True):
            if feature["transform"] == "log10":
                column = np.log10(np.maximum(column, self.text["log10_floor"]))
            columns.append((column - feature["mean"]) / feature["std"])
        return np.stack(columns, axis=1).astype(np.float32)

    def generate(self, tokens: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Steps 2 to 4: tokens [N, F] by part, to the particles of an event."""
        source = {}
        for part, x in tokens.items():
            source |= {part: x if len(x) else np.zeros((1, x.shape[1]), x.dtype), f"{part}_mask": np.ones(len(x), bool)}
            source[f"{part}_mask"] = source[f"{part}_mask"] if len(x) else np.zeros(1, bool)
        return _run(self.decoder, _run(self.encoder, source))

    def particles(self, generated: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Step 5: generated particles to physical ones."""
        entries = [self.text["pdg"][i] for i in generated["pdg"]]
        code, own, mass = (np.array([entry[key] for entry in entries]) for key in ("code", "charge", "mass"))
        sign = np.where(np.array(self.text["charge"])[generated["charge"]] * own < 0, -1, 1)
        scale = self.text["energy"]
        energy = 10.0 ** (generated["energy"].astype(np.float64) * scale["std"] + scale["mean"])
        least = self.text["rest_momentum"] * mass
        squared = energy**2 - mass**2
        momentum = np.where(squared < least**2, least, np.sqrt(np.maximum(squared, 0)))
        unit = generated["direction"] / np.linalg.norm(generated["direction"], axis=1, keepdims=True)
        return {
            "pdg": sign * code,
            "charge": sign * own,
            "mass": mass,
            "energy": np.sqrt(momentum**2 + mass**2),
            **{key: momentum * unit[:, axis] for axis, key in enumerate(("px", "py", "pz"))},
        }


def _run(session, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    inputs = {one.name: values[one.name] for one in session.get_inputs()}
    return values | dict(zip(names, session.run(names, inputs), strict=True))


def make_events(model) -> list[dict[str, np.ndarray]]:
    """Tokens by part, of six events."""
    random = np.random.default_rng(0)
    sizes = {part: len(scale.names) for part, scale in model.tokeniser.scales.items()}
    return [
        {part: random.normal(size=(LENGTHS[part][i], size)).astype(np.float32) for part, size in sizes.items()}
        for i in range(6)
    ]


def by_torch(model, event) -> GeneratedParticles:
    parts = {part: torch.from_numpy(x)[None] for part, x in event.items()}
    return model.reconstructor.generate(
        Batch(**{part: TokenSet(x, torch.ones(x.shape[:2], dtype=torch.bool)) for part, x in parts.items()})
    )


def lively_model(make_model, **arguments):
    """The first of some random models whose events have different numbers of particles."""
    for seed in range(400):
        model = make_model(seed=seed, **arguments)
        counts = {int(by_torch(model, event).mask.sum()) for event in make_events(model)}
        if len(counts) > 2:
            return model
    raise AssertionError("all models give the same particles for all events")


@pytest.fixture(scope="module")
def lively(make_model):
    return lively_model(make_model, source="typed", special="kind")


@pytest.fixture(scope="module")
def exported(lively, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "model"
    export_model(lively, folder)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_graphs_give_the_particles_of_torch(variant, make_model, tmp_path):
    model = lively_model(make_model, **VARIANTS[variant])
    export_model(model, tmp_path / "model")
    folder = Exported(tmp_path / "model")
    for event in make_events(model):
        found, expected = folder.generate(event), by_torch(model, event)
        assert found["truncated"].tolist() == expected.truncated.tolist()
        for name in ("charge", "pdg"):
            np.testing.assert_array_equal(found[name], getattr(expected, name)[0])
        for name in ("energy", "direction", "score"):
            np.testing.assert_allclose(found[name], getattr(expected, name)[0], atol=1e-4)


def test_from_physical_hits_to_physical_particles(make_model, events, tmp_path):
    model = make_model(seed=3, special="kind")
    export_model(model, tmp_path / "model")
    folder, expected = Exported(tmp_path / "model"), reconstruct(events[:5], model, engine="torch").particles
    description = folder.text["source"]["hits"]
    assert [feature["name"] for feature in description["features"]] == ["log_energy", "x", "y", "z"]
    assert description["merge"] is None
    assert ak.count(expected.pdg) > 0
    for hits, wanted in zip(events.hits[:5], expected, strict=True):
        values = np.c_[hits.energy, hits.position.x, hits.position.y, hits.position.z]
        kept = values[values[:, 0] > description["energy_above"]]
        got = folder.particles(folder.generate({"hits": folder.tokens("hits", kept)}))
        for name, value in got.items():
            record = wanted.momentum if name in ("px", "py", "pz") else wanted
            np.testing.assert_allclose(value, record[name.replace("mass", "rest_mass")], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_tensors_are_as_described_and_files_name_their_checkpoint(graph, exported, lively):
    text = json.loads((exported / "tokens.json").read_text())
    model = onnx.load(str(exported / text[graph]["file"]))
    types = {onnx.TensorProto.FLOAT: "float32", onnx.TensorProto.INT64: "int64", onnx.TensorProto.BOOL: "bool"}
    for which, values in (("inputs", model.graph.input), ("outputs", model.graph.output)):
        found = [
            {
                "name": value.name,
                "dtype": types[value.type.tensor_type.elem_type],
                "shape": [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim],
            }
            for value in values
        ]
        assert found == text[graph][which]
    assert [opset.version for opset in model.opset_import if not opset.domain] == [text[graph]["opset"]]
    properties = {one.key: one.value for one in model.metadata_props}
    assert properties["checkpoint_sha256"] == text["run"]["checkpoint_sha256"] == lively.digest
    assert properties["graph"] == graph


def test_no_path_of_this_machine_is_in_the_files(exported):
    here = str(Path(folder_module.__file__).parents[2]).encode()
    for path in exported.iterdir():
        content = path.read_bytes()
        assert here not in content
        assert b".py" not in content


def test_the_description_holds_all_that_the_instructions_name(exported, lively):
    text = json.loads((exported / "tokens.json").read_text())
    assert [entry["code"] for entry in text["pdg"]] == list(lively.tokeniser.pdg.codes)
    assert list(text["source"]) == ["hits", "tracks", "tracker_hits"]
    assert all(spec["name"] in str(text["encoder"]["outputs"]) for spec in text["decoder"]["inputs"])
    instructions = " ".join(text["how_to"])
    for name in ("source", "encoder", "decoder", "rest_momentum", "pdg", "charge", "energy", "log10_floor"):
        assert name in text
        assert name in instructions


def test_the_description_says_that_cells_are_made_by_pflow(make_model, tmp_path):
    model = make_model()
    config = dataclasses.replace(model.tokeniser.config, merge=Merge(ecal_mm=10.0, hcal_mm=60.0))
    merging = dataclasses.replace(model, tokeniser=dataclasses.replace(model.tokeniser, config=config))
    export_model(merging, tmp_path / "model")
    text = json.loads((tmp_path / "model" / "tokens.json").read_text())
    assert text["source"]["hits"]["merge"]["ecal_mm"] == 10.0
    assert "'merge'" in " ".join(text["how_to"])


def test_the_model_is_not_changed_and_the_files_and_nothing_else_are_written(make_model, tmp_path):
    model = make_model(seed=1)
    before = {name: value.clone() for name, value in model.reconstructor.state_dict().items()}
    model.reconstructor.train()
    paths = export_model(model, tmp_path / "model")
    assert os.listdir(tmp_path) == ["model"]
    assert sorted(paths) == sorted((tmp_path / "model").iterdir())
    assert [path.name for path in paths] == ["encoder.onnx", "decoder.onnx", "tokens.json"]
    assert model.reconstructor.training
    after = model.reconstructor.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
