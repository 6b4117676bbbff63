"""Graphs of pointing networks: onnxruntime gives what torch gives, at each step and in whole."""

from __future__ import annotations

import numpy as np
import pytest

from pflow.checkpoint.load import load_model
from pflow.event.events import Events
from pflow.export.folder import export_model
from pflow.inference.events import reconstruct
from pflow.inference.exported import ExportedModel
from pflow.io.open import read_events

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

SHIPPED = {
    "ild-g4-general": ("zqq_test_small.root", "multi_test_small.root"),
    "ild-g4-photon": ("gamma1_test_small.root", "gammasep_test_small.root"),
    "cld-general": ("cld_multi_test_small.root",),
}
N_EVENTS = 3


def arrays_of(event: Events, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The inputs of the encoder's graph, of one event."""
    parts = {"hit": event.hits[0], "track": None if event.tracks is None else event.tracks[0]}

    def array(name: str) -> np.ndarray:
        part, _, field = name.partition("_")
        values = parts[part][field]
        if field.endswith("position"):
            values = np.stack([np.asarray(values[axis]) for axis in "xyz"], axis=1)
        elif field.endswith("momentum"):
            values = np.stack([np.asarray(values[axis]) for axis in ("px", "py", "pz")], axis=1)
        return np.ascontiguousarray(values, dtype=np.int32 if field in ("subdetector", "layer") else np.float32)

    return {name: array(name) for name in names}


@pytest.fixture(scope="module", params=["ild-g4-general"])
def exported(request, tmp_path_factory):
    model = load_model(request.param)
    folder = tmp_path_factory.mktemp("export") / request.param
    export_model(model, folder)
    return request.param, model, ExportedModel(folder)


def assert_same_event(found: dict[str, np.ndarray], expected: object, index: int) -> None:
    particles = expected.particles[index]
    np.testing.assert_array_equal(found["pdg"], particles.pdg)
    np.testing.assert_array_equal(found["charge"], particles.charge)
    np.testing.assert_allclose(found["energy"], particles.energy, rtol=1e-3)
    momentum = np.stack([np.asarray(particles.momentum[axis]) for axis in ("px", "py", "pz")], axis=1)
    np.testing.assert_allclose(found["momentum"], momentum, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["covariance"], particles.covariance, rtol=2e-3, atol=1e-9)
    np.testing.assert_allclose(found["score"], particles.score, atol=1e-3)
    np.testing.assert_allclose(found["class_probability"], particles.scores, atol=1e-3)
    for part, links in (("hit", expected.hit_links), ("track", expected.track_links)):
        if links is None:
            assert len(found[f"{part}_link_weight"]) == 0
            continue
        rows = zip(links[index].source.tolist(), links[index].particle.tolist(), links[index].weight, strict=True)
        wanted = {(source, particle): weight for source, particle, weight in rows if weight > 0.0101}
        rows = zip(*(found[f"{part}_link_{name}"] for name in (part, "particle", "weight")), strict=True)
        got = {(source, particle): weight for source, particle, weight in rows}
        assert set(wanted) <= set(got)
        assert max(abs(got[pair] - weight) for pair, weight in wanted.items()) < 1e-3 if wanted else True


def test_events_have_the_particles_of_torch(exported, sample_dir):
    name, model, runtime = exported
    for file in SHIPPED[name]:
        events = read_events(sample_dir / file, entry_stop=N_EVENTS)
        expected = reconstruct(events, model, batch_size=1, device="cpu")
        for index in range(N_EVENTS):
            found = runtime.reconstruct(arrays_of(events[index : index + 1], runtime.inputs), max_particles=150)
            assert not found.truncated
            assert_same_event(found.columns, expected, index)
