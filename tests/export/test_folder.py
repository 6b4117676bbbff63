from __future__ import annotations

import dataclasses
import itertools
import json
import os
from pathlib import Path

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.config import to_plain
from pflow.data.batch import Batch, TokenSet
from pflow.errors import ConfigError
from pflow.event.merge_hits import Merge
from pflow.export import folder as folder_module
from pflow.export.folder import export_model
from pflow.inference.events import reconstruct
from pflow.model.api import GeneratedParticles, ModelInputs

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

SPECIALS, DECODERS, SOURCES = ("flags", "kind"), ("vanilla", "multi_projection"), ("hits", "cross", "typed")
VARIANTS = [
    {"special": SPECIALS[i], "source": SOURCES[j], "decoder": DECODERS[(i + j) % 2]}
    for i, j in itertools.product(range(2), range(3))
]
"""Every pair of special tokens and source, of special tokens and decoder, and of source and decoder."""

OPTIONS = {"embedder": "v2", "norm": "pre", "activation": "gelu", "dropout": 0.1, "target_position": True}
LENGTHS = {"hits": (9, 1, 33, 4, 0, 17), "tracks": (2, 0, 7, 1, 3, 0), "tracker_hits": (0, 4, 11, 2, 1, 1)}
"""Of six events; the example that a graph is traced with has three, of 3 to 5 hits."""


def make_source(model, lengths, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Tokens and masks by the names of the encoder's inputs."""
    random = np.random.default_rng(seed)
    source = {}
    for part, scale in model.tokeniser.scales.items():
        mask = np.arange(max(1, *lengths[part])) < np.array(lengths[part])[:, None]
        features = random.normal(size=(*mask.shape, len(scale.names))).astype(np.float32)
        source |= {part: features * mask[..., None], f"{part}_mask": mask}
    return source


def as_batch(source: dict[str, np.ndarray]) -> Batch:
    parts = [name for name in source if not name.endswith("_mask")]
    tensors = {name: torch.from_numpy(value) for name, value in source.items()}
    return Batch(**{part: TokenSet(tensors[part], tensors[f"{part}_mask"]) for part in parts})


def make_lively_model(make_model, source_of, **arguments):
    """The first of some random models whose events have different numbers of particles, more than one among them."""
    for seed in range(400):
        model = make_model(seed=seed, **arguments)
        counts = model.reconstructor.generate(as_batch(source_of(model))).mask.sum(1)
        if counts.max() > 2 and len(counts.unique()) > 2:
            return model
    raise AssertionError("all models give the same particles for all events")


def assert_same(generated: dict[str, np.ndarray], expected: GeneratedParticles) -> None:
    longest = expected.mask.shape[1]
    mask = expected.mask.numpy()
    assert not generated["mask"][:, longest:].any()
    np.testing.assert_array_equal(generated["mask"][:, :longest], mask)
    np.testing.assert_array_equal(generated["truncated"], expected.truncated)
    for name in ("charge", "pdg"):
        np.testing.assert_array_equal(generated[name][:, :longest][mask], getattr(expected, name)[mask])
    for name in ("energy", "direction", "score"):
        np.testing.assert_allclose(generated[name][:, :longest][mask], getattr(expected, name)[mask], atol=1e-4)


@pytest.fixture(scope="module")
def lively(make_model):
    return make_lively_model(make_model, lambda model: make_source(model, LENGTHS), source="typed", special="kind")


@pytest.fixture(scope="module")
def exported(lively, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "model"
    export_model(lively, folder)
    return folder


@pytest.mark.parametrize("arguments", [*VARIANTS, OPTIONS], ids=[*("-".join(v.values()) for v in VARIANTS), "options"])
def test_the_loop_without_pflow_gives_the_same_particles(arguments, make_model, open_folder, tmp_path):
    model = make_lively_model(make_model, lambda model: make_source(model, LENGTHS), **arguments)
    source = make_source(model, LENGTHS)
    expected = model.reconstructor.generate(as_batch(source))
    export_model(model, tmp_path / "model")
    assert_same(open_folder(tmp_path / "model").generate(source), expected)


@pytest.mark.parametrize("event", range(6))
def test_an_event_alone_gives_its_own_particles(event, lively, exported, open_folder):
    lengths = {part: [values[event]] for part, values in LENGTHS.items()}
    source = make_source(lively, lengths)
    expected = lively.reconstructor.generate(as_batch(source))
    assert_same(open_folder(exported).generate(source), expected)


def test_padding_may_hold_anything(lively, exported, open_folder):
    source = make_source(lively, LENGTHS)
    expected = lively.reconstructor.generate(as_batch(source))
    for part in lively.tokeniser.scales:
        source[part][~source[f"{part}_mask"]] = np.nan
    assert_same(open_folder(exported).generate(source), expected)


def test_from_physical_hits_to_physical_particles(make_model, events, open_folder, tmp_path):
    chosen = events[:5]
    model = make_model(seed=3, special="kind")
    export_model(model, tmp_path / "model")
    folder = open_folder(tmp_path / "model")
    description = folder.text["source"]["hits"]
    assert [feature["name"] for feature in description["features"]] == ["log_energy", "x", "y", "z"]
    every = [np.c_[hits.energy, hits.position.x, hits.position.y, hits.position.z] for hits in chosen.hits]
    kept = [values[values[:, 0] > description["energy_above"]] for values in every]
    assert sum(map(len, kept)) < sum(map(len, every))
    mask = np.arange(max(map(len, kept))) < np.array([len(values) for values in kept])[:, None]
    features = np.zeros((*mask.shape, 4), dtype=np.float32)
    features[mask] = folder.tokens("hits", np.concatenate(kept))
    got = folder.particles(folder.generate({"hits": features, "hits_mask": mask}))
    expected = ak.flatten(reconstruct(chosen, model, device="cpu").particles)
    assert len(expected) > 0
    for name, value in got.items():
        record = expected.momentum if name in ("px", "py", "pz") else expected
        np.testing.assert_allclose(value, record[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", ["encoder", "step"])
def test_tensors_are_as_described(graph, exported):
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


def test_the_encoders_output_has_the_shapes_of_the_description(exported, open_folder, lively):
    folder = open_folder(exported)
    specs = folder.text["encoder"]["outputs"]
    outputs = folder.encoder.run([spec["name"] for spec in specs], make_source(lively, LENGTHS))
    sizes = {"batch": 6, "memory": 2 + sum(max(lengths) for lengths in LENGTHS.values())}  # with bos and eos
    for spec, output in zip(specs, outputs, strict=True):
        assert output.shape == tuple(sizes.get(size, size) for size in spec["shape"])
        assert output.dtype == spec["dtype"]


@pytest.mark.parametrize("graph", ["encoder", "step"])
def test_files_name_their_checkpoint(graph, exported, open_folder, lively):
    model = getattr(open_folder(exported), graph)
    properties = model.get_modelmeta().custom_metadata_map
    assert properties["checkpoint_sha256"] == open_folder(exported).text["checkpoint_sha256"] == lively.digest
    assert properties["graph"] == graph


def test_no_path_of_this_machine_is_in_the_files(exported):
    here = str(Path(folder_module.__file__).parents[2]).encode()
    for path in exported.iterdir():
        content = path.read_bytes()
        assert here not in content
        assert b".py" not in content


def test_the_description_holds_the_tokeniser_and_all_that_the_instructions_name(exported, lively):
    text = json.loads((exported / "tokens.json").read_text())
    assert [entry["code"] for entry in text["pdg"]] == list(lively.tokeniser.pdg.codes)
    assert text["max_particles"] == lively.reconstructor.decoding.max_particles
    assert text["detector"] == to_plain(lively.tokeniser.detector)
    assert list(text["source"]) == ["hits", "tracks", "tracker_hits"]
    assert all(spec in text["step"]["inputs"] for spec in text["encoder"]["outputs"])
    instructions = " ".join(text["how_to"])
    for name in ("source", "encoder", "step", "end", "kinds", "first_class", "max_particles", "rest_momentum", "pdg"):
        assert name in text
        assert name in instructions


def test_the_model_is_not_changed(make_model, tmp_path):
    model = make_model(seed=1)
    before = {name: value.clone() for name, value in model.reconstructor.state_dict().items()}
    model.reconstructor.train()
    export_model(model, tmp_path / "model")
    assert model.reconstructor.training
    after = model.reconstructor.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_three_files_and_nothing_else_are_written(lively, tmp_path):
    paths = export_model(lively, tmp_path / "model")
    assert os.listdir(tmp_path) == ["model"]
    assert sorted(paths) == sorted((tmp_path / "model").iterdir())
    assert [path.name for path in paths] == ["encoder.onnx", "decoder_step.onnx", "tokens.json"]


def test_a_model_without_graphs_is_named(make_model, tmp_path):
    model = make_model()

    class OtherReconstructor(type(model.reconstructor)):
        def decoding_graphs(self):
            return None

    other = OtherReconstructor(ModelInputs(**model.tokeniser.model_inputs))
    with pytest.raises(ConfigError, match="a OtherReconstructor cannot be exported"):
        export_model(dataclasses.replace(model, reconstructor=other), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_model_of_merged_hits_is_refused(make_model, tmp_path):
    model = make_model()
    merge = Merge(ecal_mm=10.0, hcal_mm=60.0)
    recipe = dataclasses.replace(model.tokeniser.config, merge=merge)
    merging = dataclasses.replace(model, tokeniser=dataclasses.replace(model.tokeniser, config=recipe))
    with pytest.raises(ConfigError, match="merged hits"):
        export_model(merging, tmp_path / "out")
    assert not (tmp_path / "out").exists()
