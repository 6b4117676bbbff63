import awkward as ak
import numpy as np
import pytest

from pflow.checkpoint.load import load_model
from pflow.errors import InputError
from pflow.inference.events import reconstruct
from pflow.inference.explain import explain
from pflow.io.open import read_events
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.physics.pdg import CLASSES
from pflow.plots.explain import plot_steps
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig


@pytest.fixture(scope="module")
def event(events):
    return events[:1]


def test_the_steps_of_the_shipped_model_are_its_particles(event):
    model = load_model("general")
    explanation = explain(model, event)
    particles = reconstruct(event, model, device="cpu").particles[0]
    assert len(explanation["refined_assignment"]) == len(particles)
    n_tokens = len(explanation.cells) + len(event.tracks[0])
    assert explanation["probability.seed"].shape == (len(explanation["seed"]) + 1, n_tokens + 1)
    np.testing.assert_allclose(explanation["probability.seed"].sum(axis=1), 1.0, atol=1e-5)
    assert explanation["probability.seed"][-1].argmax() == n_tokens  # no further particle
    # Each hit goes to the steps once at most, and most of the energy does.
    given = explanation["assignment"].sum(axis=0)
    assert given.max() < 1.001
    energy = np.asarray(explanation.hits.energy)
    assert (energy * given[: len(energy)]).sum() > 0.9 * energy.sum()
    text, hits, weight = explanation.steps(1)[0]
    assert len(hits) == len(weight) == len(explanation.hits)
    assert text.endswith("GeV")
    assert sorted(explanation.classes["probability.pdg"]) == sorted(name.replace("_", " ") for name in CLASSES)


def test_cells_and_hits_have_the_energies_that_the_model_reads(sample_dir):
    event = read_events(sample_dir / "cld_multi_test_small.root", entry_stop=1)
    explanation = explain(load_model("general"), event)
    scale = np.array([calorimeter.hadron_scale for calorimeter in event.detector.calorimeters])
    read = np.asarray(event.hits.energy[0]) * scale[np.asarray(event.hits.subdetector[0])]
    assert read.sum() < 0.999 * np.sum(event.hits.energy[0])
    np.testing.assert_allclose(explanation.hits.energy, read, rtol=1e-6)
    assert np.sum(explanation.cells.energy) == pytest.approx(read.sum(), rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*of tracks are in no particle")  # of random weights
@pytest.mark.parametrize("special", ["flags", "kind"])
def test_a_translation_tells_probabilities_and_attention(event, make_model, special):
    network = TranslationNetworkConfig(width=8, heads=2, special=special)
    model = make_model(Tokeniser.fit([event], TokenConfig()), TranslationReconstructor, network=network)
    explanation = explain(model, event)
    particles = reconstruct(event, model, device="cpu").particles[0]
    steps = len(particles) + 1
    np.testing.assert_allclose(explanation["energy"][:-1], particles.energy, rtol=1e-4)
    for name, classes in explanation.classes.items():
        assert explanation[name].shape == (steps, len(classes))
    assert ("probability.kind" in explanation.classes) == (special == "kind")
    on_cells = explanation.on_cells("attention.decoder.layers.0.memory_attention")
    assert on_cells.shape == (2, steps, len(explanation.cells))
    assert ak.all(explanation.cells.energy > 0)
    assert "weight of a hit in the step / the largest" in [
        axes.get_ylabel() for axes in plot_steps(explanation.steps(3)).axes
    ]
    with pytest.raises(KeyError, match=r"nearest: probability\.pdg"):
        explanation["probability.pgd"]


def test_what_cannot_be_explained_is_refused(event, events):
    model = load_model("general")
    with pytest.raises(InputError, match="expected one event"):
        explain(model, events[:2])
    with pytest.raises(InputError, match="no hits or tracks"):
        explain(model, event.emptied(np.array([True])))
