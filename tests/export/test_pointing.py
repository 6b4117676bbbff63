"""Graphs of pointing networks: onnxruntime gives what torch gives, with covariances, probabilities and links."""

from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

from pflow.checkpoint.load import load_model
from pflow.export.folder import export_model
from pflow.inference.events import reconstruct
from pflow.inference.exported import ExportedModel
from pflow.inference.exported_events import reconstruct_exported
from pflow.io.open import read_events

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


@pytest.mark.parametrize("file", ["zqq_test_small.root", "multi_test_small.root"])
def test_events_have_the_particles_of_torch(file, exported_general, sample_dir):
    events = read_events(sample_dir / file, entry_stop=3)
    expected = reconstruct(events, "ild-g4-general", batch_size=1, device="cpu")
    found = reconstruct_exported(events, ExportedModel(exported_general))
    for name in ("pdg", "charge"):
        assert ak.to_list(found.particles[name]) == ak.to_list(expected.particles[name])
    got, wanted = ak.flatten(found.particles), ak.flatten(expected.particles)
    np.testing.assert_allclose(got.energy, wanted.energy, rtol=1e-3)
    np.testing.assert_allclose(got.mass, wanted.mass, rtol=1e-6)
    for axis in ("px", "py", "pz"):
        np.testing.assert_allclose(got.momentum[axis], wanted.momentum[axis], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got.covariance, wanted.covariance, rtol=2e-3, atol=1e-9)
    np.testing.assert_allclose(got.score, wanted.score, atol=1e-3)
    np.testing.assert_allclose(got.scores, wanted.scores, atol=1e-3)
    for name in ("hit_links", "track_links"):
        got, wanted = getattr(found, name), getattr(expected, name)
        assert ak.to_list(got[["source", "particle"]]) == ak.to_list(wanted[["source", "particle"]])
        np.testing.assert_allclose(ak.flatten(got.weight), ak.flatten(wanted.weight), atol=1e-3)


def test_a_network_without_refinement(sample_dir, tmp_path):
    events = read_events(sample_dir / "gamma1_test_small.root", entry_stop=3)
    model = load_model("ild-g4-photon")
    model.reconstructor.network.refiner = None
    export_model(model, tmp_path / "model")
    expected = reconstruct(events, model, batch_size=1, device="cpu").particles
    found = reconstruct_exported(events, ExportedModel(tmp_path / "model")).particles
    for name in ("pdg", "charge"):
        assert ak.to_list(found[name]) == ak.to_list(expected[name])
    np.testing.assert_allclose(ak.flatten(found.energy), ak.flatten(expected.energy), rtol=1e-4)
    np.testing.assert_allclose(ak.flatten(found.covariance), ak.flatten(expected.covariance), rtol=2e-3, atol=1e-9)
