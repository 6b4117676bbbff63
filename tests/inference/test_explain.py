import numpy as np
import pytest

import pflow
from pflow.errors import InputError
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.plots.display import plot_steps
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig


@pytest.fixture(scope="module")
def event(events):
    return events[:1]


def test_steps_of_a_pointing_model_lead_to_its_particles(event):
    model = pflow.load_model("general")
    *steps, end = pflow.explain(model, event)
    assert [step.energy for step in steps] == pytest.approx(
        pflow.reconstruct(event, model, device="cpu").particles.energy[0].to_list(), rel=0.2
    )  # before the refinement
    assert (end.energy, str(end), end.weight.max()) == (None, "end", 0.0)
    assert end.probability["start"]["end"] > 0.9
    assert "start" not in steps[0].probability  # of a track
    given, energy = np.sum([step.weight for step in steps], axis=0), np.asarray(end.hits.energy)
    assert given.max() < 1.001  # each hit goes to the steps once at most
    assert (energy * given).sum() > 0.9 * energy.sum()
    for step in steps:
        assert sum(step.probability["pdg"].values()) == pytest.approx(1.0, abs=1e-5)
        assert str(step).endswith(f"{step.energy:.3g} GeV")
    panels = plot_steps([*steps, end]).axes
    assert [panel.get_title()[:3] for panel in panels[: len(steps) + 1]] == [
        f"{i + 1}: " for i in range(len(steps) + 1)
    ]
    assert panels[-1].get_ylabel() == "weight / the largest"


@pytest.mark.parametrize("options", [{}, {"special": "kind"}, {"decoder": "multi_projection", "n_projections": 2}])
def test_steps_of_a_translation_have_probabilities_and_attention(event, make_model, options):
    network = TranslationNetworkConfig(width=8, heads=2, decoder_layers=2, **options)
    model = make_model(Tokeniser.fit([event], TokenConfig()), TranslationReconstructor, network=network)
    steps = pflow.explain(model, event)
    particles = pflow.reconstruct(event, model, device="cpu").particles[0]
    energies = [step.energy for step in steps if step.energy is not None]
    np.testing.assert_allclose(energies, particles.energy, rtol=1e-4)
    assert ("kind" in steps[0].probability) == (options.get("special") == "kind")
    for number, step in enumerate(steps, 1):
        for probability in step.probability.values():
            assert sum(probability.values()) == pytest.approx(1.0, abs=1e-5)
        for name, weights in step.attention.items():
            assert weights.shape[0] == 2
            assert weights.sum(-1) == pytest.approx(1.0, abs=1e-5)
            assert "memory" in name or weights.shape[1] == number  # no step sees those behind it
    last = [weights for name, weights in step.attention.items() if name.endswith("memory_attention")][-1]
    assert step.weight == pytest.approx(last.mean(0)[2 : 2 + len(step.hits)])


def test_what_cannot_be_explained_is_refused(event, events):
    model = pflow.load_model("general")
    with pytest.raises(InputError, match="expected one event"):
        pflow.explain(model, events[:2])
    with pytest.raises(InputError, match="no hits or tracks"):
        pflow.explain(model, event.emptied(np.array([True])))
