"""Reconstruction with an exported network: events of any content, what is refused, and whole files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil

import awkward as ak
import numpy as np
import pytest

from pflow.checkpoint.load import load_model
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, Flag
from pflow.event.skipped import BadEntriesWarning
from pflow.inference.events import reconstruct
from pflow.inference.exported import ExportedModel
from pflow.inference.exported_events import event_arrays, reconstruct_exported
from pflow.inference.files import reconstruct_files
from pflow.io.particles_root import read_provenance, read_reco

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.fixture(scope="module")
def exported(exported_general) -> ExportedModel:
    return ExportedModel(exported_general)


@pytest.fixture(scope="module")
def three(events) -> Events:
    """Three events without truth."""
    parts = ("truth", "reference", "hit_links", "track_links", "tracker_hit_links")
    return dataclasses.replace(events[:3], **dict.fromkeys(parts))


def assert_same_particles(found, expected):
    for name in ("pdg", "charge"):
        assert ak.to_list(found.particles[name]) == ak.to_list(expected.particles[name])
    np.testing.assert_allclose(ak.flatten(found.particles.energy), ak.flatten(expected.particles.energy), rtol=1e-3)


@pytest.mark.parametrize(("hits", "tracks"), [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (None, 0), (0, None)])
def test_events_with_few_hits_or_tracks(hits, tracks, exported, three):
    few = dataclasses.replace(three, hits=three.hits[:, :hits], tracks=three.tracks[:, :tracks])
    found = reconstruct_exported(few, exported)
    assert_same_particles(found, reconstruct(few, "ild-g4-general", batch_size=1, device="cpu"))
    assert len(found) == len(found.hit_links) == len(found.track_links) == 3
    if (hits, tracks) == (0, 0):
        assert ak.count(found.particles.pdg) == 0


def test_an_event_that_is_cut_is_flagged(exported, three):
    found = reconstruct_exported(three, exported, max_particles=2)
    expected = reconstruct(three, "ild-g4-general", max_particles=2, device="cpu")
    assert found.flags.tolist() == expected.flags.tolist()
    assert (found.flags & Flag.MAX_PARTICLES).any()
    assert_same_particles(found, expected)


def test_large_events_may_have_more_particles(exported, three):
    arrays = event_arrays(three, 0, exported.inputs)
    repeats = 3000 // len(arrays["hit_energy"]) + 1
    large = {name: np.concatenate([x] * repeats) if name.startswith("hit") else x for name, x in arrays.items()}
    counted = np.count_nonzero(large["hit_energy"] > load_model("ild-g4-general").tokeniser.config.hit_energy_min)
    assert exported.encode(arrays)["limit"].tolist() == [150]
    assert exported.encode(large)["limit"].tolist() == [len(arrays["track_charge"]) + counted // 10]


def test_a_value_that_is_not_known_is_named(exported, three):
    calo = three.tracks.calo_momentum
    assert "track_calo_momentum" in exported.known
    first = np.arange(ak.count(calo.px)) == 0
    px = ak.unflatten(np.where(first, np.nan, ak.to_numpy(ak.flatten(calo.px))), ak.num(calo.px))
    unknown = dataclasses.replace(
        three, tracks=ak.with_field(three.tracks, ak.with_field(calo, px, "px"), "calo_momentum")
    )
    event = int(np.flatnonzero(ak.num(three.tracks))[0])
    with pytest.raises(InputError, match="not finite") as caught:
        reconstruct_exported(unknown, exported)
    assert caught.value.entry == event
    assert caught.value.field == "tracks.calo_momentum"
    with pytest.warns(BadEntriesWarning, match="1 of 3"):
        found = reconstruct_exported(unknown, exported, on_error="skip")
    assert np.flatnonzero(found.flags & Flag.BAD_INPUT).tolist() == [event]
    assert len(found.particles[event]) == 0
    assert len(found.particles[1 - event]) > 0


def test_events_without_tracks_are_refused_where_the_model_reads_them(exported, three):
    with pytest.raises(InputError, match="reads tracks"):
        reconstruct_exported(dataclasses.replace(three, tracks=None), exported)


def test_arrays_have_the_order_and_types_of_the_graph(exported, three):
    arrays = event_arrays(three, 1, exported.inputs)
    n, k = len(three.hits[1]), len(three.tracks[1])
    assert arrays["hit_position"].shape == (n, 3)
    assert arrays["track_momentum"].shape == (k, 3)
    assert arrays["hit_layer"].dtype == np.int32
    np.testing.assert_array_equal(arrays["hit_position"][:, 2], three.hits[1].position.z)
    np.testing.assert_array_equal(arrays["track_calo_momentum"][:, 1], three.tracks[1].calo_momentum.py)


def test_a_file_is_reconstructed_as_by_torch(exported_general, sample_dir, tmp_path):
    sample, output = sample_dir / "zqq_test_small.root", tmp_path / "reco.root"
    reconstruct_files([sample], checkpoint=exported_general, engine="onnxruntime", output=output)
    reconstruct_files([sample], checkpoint="ild-g4-general", output=tmp_path / "torch.root", device="cpu")
    assert_same_particles(read_reco(output), read_reco(tmp_path / "torch.root"))
    made = read_provenance(output)
    assert made["options"]["engine"] == "onnxruntime"
    assert "onnxruntime" in made["versions"]
    assert made["checkpoint"]["sha256"] == load_model("ild-g4-general").digest


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "needs a folder"),
        ({"checkpoint": "FOLDER", "device": "cuda"}, ConfigError, "on the CPU"),
        ({"checkpoint": "nowhere"}, InputError, "not a folder that `pflow export` wrote"),
    ],
)
def test_options_that_do_not_fit_the_engine(options, error, message, exported_general, sample_dir, tmp_path):
    options = {name: str(exported_general) if value == "FOLDER" else value for name, value in options.items()}
    with pytest.raises(error, match=message):
        reconstruct_files(
            [sample_dir / "zqq_test_small.root"], engine="onnxruntime", output=tmp_path / "reco.root", **options
        )
    assert not list(tmp_path.iterdir())


class TestDamagedFolders:
    @pytest.fixture
    def folder(self, exported_general, tmp_path):
        return shutil.copytree(exported_general, tmp_path / "exported")

    @pytest.mark.parametrize("name", ["encoder", "decoder", "refinement"])
    def test_a_graph_with_another_number(self, name, folder):
        path = folder / f"{name}.onnx"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"{name}\.onnx: damaged, or not what tokens\.json was written"):
            ExportedModel(folder)

    def test_a_graph_that_is_not_there(self, folder):
        (folder / "refinement.onnx").unlink()
        with pytest.raises(InputError, match=r"refinement\.onnx: cannot be read: FileNotFoundError"):
            ExportedModel(folder)

    def test_a_graph_that_is_none(self, folder):
        """As its SHA-256 says it should be."""
        shutil.copy(folder / "tokens.json", folder / "encoder.onnx")
        text = json.loads((folder / "tokens.json").read_text("utf-8"))
        text["sha256"]["encoder.onnx"] = hashlib.sha256((folder / "encoder.onnx").read_bytes()).hexdigest()
        (folder / "tokens.json").write_text(json.dumps(text), "utf-8")
        with pytest.raises(InputError, match=r"encoder\.onnx: not a graph that onnxruntime runs"):
            ExportedModel(folder)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("sha256", None, "expected what `pflow export` wrote"),
            ("checkpoint", 3, "tokens.json"),
            ("format", 1, "that of a translation network"),
            ("format", 2, "layout 2, of another version of pflow: export the model again"),
            ("run", {}, "expected what `pflow export` wrote"),
            ("run", {"known": "hit_enrgy"}, "hit_enrgy"),
            ("run", {"energy_above": "nan"}, "energy_above nan GeV"),
        ],
    )
    def test_a_description_that_does_not_fit(self, field, value, message, folder):
        text = json.loads((folder / "tokens.json").read_text("utf-8"))
        text[field] = {**text[field], **value} if isinstance(value, dict) and value else value
        (folder / "tokens.json").write_text(json.dumps(text), "utf-8")
        with pytest.raises(InputError, match=message):
            ExportedModel(folder)
