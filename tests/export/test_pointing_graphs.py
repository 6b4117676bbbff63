import copy
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import awkward as ak
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import pflow
from pflow.checkpoint import TrainedModel, load_model
from pflow.errors import ConfigError, InputError, PflowError
from pflow.event import jagged
from pflow.event.merge import Merge
from pflow.export import convert
from pflow.export.convert import Graph, TensorSpec, attend_by_scan, to_onnx
from pflow.export.pointing import EncoderGraph, constants, export_model, pointing_graphs
from pflow.inference.events import Engine, reconstruct_valid
from pflow.io.open import read_events
from pflow.model.api import ModelInputs
from pflow.model.pointing import PointingReconstructor
from pflow.model.pointing.config import PointingDecodingConfig, PointingNetworkConfig
from pflow.model.pointing.encoder import DirectionalSelfAttention, Directions
from pflow.physics.arrays import double
from pflow.physics.detector import load_detector
from pflow.tokens.features import FEATURES, Feature
from pflow.tokens.particles import Calibration, Curve, Response
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig

SMALL = {"width": 24, "heads": 2, "feedforward": 16, "encoder_layers": 1, "decoder_layers": 1, "hidden_width": 8}
TRACKS = ("log_p", "nx", "ny", "nz", "charge")
KINDS = {
    "one detector": (
        {
            "hit_features": ("log_energy", "x", "y", "z", "layer", "late"),
            "track_features": (*TRACKS, "far"),
            "merge": Merge(ecal_mm=20.0, hcal_mm=90.0, layers=5),
        },
        {"refine_layers": 1},
        {"max_particles": 20},
    ),
    "without refinement": (
        {"hit_features": ("log_energy", "x", "y", "z", "layer"), "hit_energy_min": 4e-3},
        {"refine_layers": 0},
        {},
    ),
    "any detector, tracks in one step": (
        {
            "hit_features": ("log_energy", "nx", "ny", "nz", "ecal", "radiation", "depth", "face_barrel", "token_size"),
            "track_features": (*TRACKS, "face_endcap", "bend"),
            "merge": Merge(ecal_mm=20.0, hcal_mm=90.0, depth=8.0),
            "geometry": True,
        },
        {"refine_layers": 1, "parallel_tracks": True, "track_prior": True, "front": True},
        {"max_particles": 2},
    ),
}
"""Options of tokens, of the network, and of decoding."""

OWN = {
    "hits": {"late": Feature("hits.time", lambda columns, _: double(columns["time"]) / 1000)},
    "tracks": {
        "far": Feature("tracks.d0", lambda columns, _: double(columns["d0"]) / 1000),
        "turned": Feature("tracks.phi", lambda columns, _: double(columns["phi"])),
    },
}
"""Features of one's own, by part of the events."""


@pytest.fixture
def own_features(monkeypatch):
    for part, features in OWN.items():
        for name, feature in features.items():
            monkeypatch.setitem(FEATURES[part], name, feature)


CALIBRATION = Calibration(
    energy={"photon": Curve((-2.0, -1.0), (0.3, 0.1))}, photon_response=Response((-1.0, 2.0), (0.2, -0.1))
)


@pytest.fixture(scope="module")
def events(sample_dir, spoil):
    """Of a detector whose HCAL has another scale than ild_g4's, with d0; a track enters its calorimeter nowhere."""
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=3)
    tracks = ak.with_field(events.tracks, events.tracks.charge * events.tracks.momentum.px, "d0")
    events = dataclasses.replace(events, tracks=tracks)
    some = int(np.flatnonzero(jagged.count(events.tracks) > 1)[0])
    events = spoil(events, some, "tracks.calo_position.x", np.nan)
    scales = [0.7 if part.kind == "hcal" else 1.0 for part in events.detector.calorimeters]
    parts = zip(events.detector.calorimeters, scales, strict=True)
    calorimeters = tuple(dataclasses.replace(part, hadron_scale=scale) for part, scale in parts)
    return dataclasses.replace(events, detector=dataclasses.replace(events.detector, calorimeters=calorimeters))


def inputs_of(events):
    """Inputs of an event as a host gives them."""
    inputs = {}
    for part in ("hits", "tracks"):
        vectors = {}
        for name, values in jagged.columns(getattr(events, part)).items():
            field = name.partition(".")[0]
            vectors.setdefault(field, []).append(torch.from_numpy(values))
        for field, components in vectors.items():
            joined = torch.stack(components, dim=1) if len(components) > 1 else components[0]
            inputs[f"{part.removesuffix('s')}_{field}"] = joined
    return inputs


@torch.no_grad()
@pytest.mark.usefixtures("own_features")
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_give_the_particles_of_a_reconstruction(kind, events):
    tokens, network, decoding = KINDS[kind]
    tokeniser = Tokeniser.fit([events], TokenConfig(**tokens, coarse=True, readout=True))
    torch.manual_seed(1)
    reconstructor = PointingReconstructor(
        ModelInputs(**tokeniser.model_inputs),
        network=PointingNetworkConfig(**SMALL, **network),
        decoding=PointingDecodingConfig(
            **{"max_particles": 6, "hits_per_particle": 0, "existence_threshold": 0.0, **decoding}
        ),
    ).eval()
    for weights in reconstructor.parameters():  # heads begin without weights, and would not see their inputs
        weights.add_(0.1 * torch.randn(weights.shape))
    model = TrainedModel(
        reconstructor=reconstructor, tokeniser=tokeniser, digest="", path="made", config={}, calibration=CALIBRATION
    )
    reconstructor.train()
    before = copy.deepcopy(reconstructor.state_dict())
    graphs = pointing_graphs(model, reconstructor)
    assert all(module.training for module in reconstructor.modules()), "the model is changed"
    assert all(values.equal(before[name]) for name, values in reconstructor.state_dict().items())
    for name, face in (("ild_g4", "1805.0 2412.0 0 1980.0"), ("cld", "2150.0 2307.0 12 2352.0")):
        of_detector = dataclasses.replace(tokeniser, detector=load_detector(name))
        known = constants(dataclasses.replace(model, tokeniser=of_detector), graphs["encoder"])
        assert f"{known['calorimeter_face']} {known['ecal_outer_radius']}" == face
        assert float(known["energy_above"]) == tokens.get("hit_energy_min", 0.0)
    reco = reconstruct_valid(events, Engine(model, device="cpu", batch_size=1), "raise")[0]
    expected = reco.particles
    for i in range(len(events)):
        values = inputs_of(events[i : i + 1])
        for graph in graphs.values():
            values |= graph.run(values)
        assert values["pdg"].tolist() == expected.pdg[i].tolist() != []
        np.testing.assert_allclose(values["energy"], expected.energy[i], rtol=1e-4)
        assert ("existence" in values) == ("existence" in expected.fields)
        if "existence" in values:
            np.testing.assert_allclose(values["existence"], expected.existence[i], rtol=1e-4)
        np.testing.assert_allclose(values["momentum"][:, 0], expected.px[i], rtol=1e-3, atol=1e-3)
        for part in ("hit", "track"):
            links = getattr(reco, f"{part}_links")
            if links is not None:
                source, particle, weight = (values[f"{part}_link_{name}"] for name in (part, "particle", "weight"))
                pairs = {*zip(source.tolist(), particle.tolist(), strict=True)}
                assert pairs == {*zip(links.source[i], links.particle[i], strict=True)}
                assert float(weight.sum()) == pytest.approx(ak.sum(links.weight[i]), rel=1e-4)


@pytest.mark.usefixtures("own_features")
def test_a_feature_of_what_the_library_does_not_have_has_no_graphs():
    config = TokenConfig(track_features=(*TRACKS, "turned"), coarse=True, readout=True)
    model = types.SimpleNamespace(tokeniser=types.SimpleNamespace(config=config))
    with pytest.raises(ConfigError, match=r"the C\+\+ library has no phi of tracks, which a feature reads"):
        EncoderGraph(model, None, None)


GRAPHS = ("encoder", "decoder", "refinement")


@pytest.fixture
def folder(exported, no_tracks):
    return exported(no_tracks, "ild_g4")


@pytest.mark.parametrize("graph", GRAPHS)
def test_tensors_are_as_described_and_files_name_their_checkpoint(graph, folder, no_tracks):
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
    assert properties["checkpoint_sha256"] == text["run"]["checkpoint_sha256"] == load_model(no_tracks).digest
    assert properties["graph"] == graph
    assert properties["export"] == text["run"]["export"]


def test_files_hold_no_path_of_this_machine_and_what_the_decoder_reads(folder):
    checkout = str(Path(pflow.__file__).parents[1]).encode()
    paths = sorted(folder.iterdir())
    assert [path.name for path in paths] == ["decoder.onnx", "encoder.onnx", "refinement.onnx", "tokens.json"]
    for path in paths:
        content = path.read_bytes()
        assert checkout not in content
        assert b".py" not in content
    text = json.loads((folder / "tokens.json").read_text())
    outputs = str(text["encoder"]["outputs"])
    assert all(tensor["name"] in outputs for tensor in text["decoder"]["inputs"])


def test_a_translation_network_and_an_old_torch_have_no_graphs(model, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="TranslationReconstructor: only pointing networks have graphs"):
        export_model(model, tmp_path / "model")
    monkeypatch.delattr("torch.onnx.ops")
    with pytest.raises(ConfigError, match=r"graphs need torch 2\.13 \(tested\) or near it, and \d"):
        export_model(load_model("general"), tmp_path / "model")


def test_a_folder_of_graphs_is_no_checkpoint(folder, no_tracks, tmp_path):
    digest = load_model(no_tracks).digest
    with pytest.raises(InputError, match=rf"holds graphs for C\+\+ and no weights: .*SHA-256 {digest}"):
        load_model(folder)
    (shutil.copytree(folder, tmp_path / "copy") / "tokens.json").write_text("{}")
    with pytest.raises(InputError, match="expected what `pflow export` wrote"):
        load_model(tmp_path / "copy")


@pytest.mark.usefixtures("tiny_graphs")
def test_a_wrong_translation_is_an_error_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_asinh", lambda x: convert.op.Mul(x, x))
    with pytest.raises(PflowError, match=r"encoder.onnx: output .y. differs in ONNX Runtime .* diff.*: 5\.4") as told:
        export_model(load_model("ild-g4-photon"), tmp_path / "model")
    assert told.type is PflowError  # no option is wrong
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

    def forward(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        directions, order = Directions.of(values["u"])
        return {"a": self.attention(values["x"][order], directions=directions)}


def tensors(n_tokens: int) -> dict[str, torch.Tensor]:
    """Tokens in jets all around, so that narrow heads see few of them."""
    random = torch.Generator().manual_seed(n_tokens)
    axis = torch.randn(3, 3, generator=random)[torch.arange(n_tokens) % 3]
    unit = torch.nn.functional.normalize(axis + 0.1 * torch.randn(n_tokens, 3, generator=random), dim=1)
    return {"x": 3.0 * torch.randn(n_tokens, WIDTH, generator=random), "u": unit}


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "attention.onnx"
    widths = {"x": WIDTH, "u": 3, "a": WIDTH}
    x, unit, attended = (TensorSpec(name, "float32", ("tokens", width)) for name, width in widths.items())
    exported = Attention()
    strengths = exported.attention.strength.tolist()
    exported.attention.attend_nearby = functools.partial(attend_by_scan, strengths=strengths)
    to_onnx(Graph(exported, tensors(300), inputs=(x, unit), outputs=(attended,)), path, metadata={})
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("n_tokens", [1, 2, 127, 128, 129, 1000])
def test_scan_gives_what_torch_gives(session, n_tokens):
    values = tensors(n_tokens)
    (found,) = session.run(None, {name: value.numpy() for name, value in values.items()})
    np.testing.assert_allclose(found, Attention()(values)["a"].numpy(), rtol=1e-4, atol=1e-4)
