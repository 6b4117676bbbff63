from __future__ import annotations

import dataclasses

import pytest

from pflow.io.open import read_events
from pflow.metrics.evaluation import AlgorithmMetrics, Evaluation
from pflow.plots.evaluation import figures
from pflow.plots.style import rendered


@pytest.fixture(scope="module")
def result(sample_dir):
    """The oracle, and the classical algorithm of the file, on two-photon events."""
    evaluation = Evaluation(name="oracle", oracle=True)
    evaluation.update(read_events(sample_dir / "gammasep_test_small.root"), {})
    return evaluation.result()


def test_every_metric_with_values_has_a_figure(result):
    drawn = figures(result)
    binned = ("response_median", "resolution_68", "q68_deg", "efficiency", "fake_rate")
    assert set(drawn) == {
        *(f"{metric}_vs_{axis}" for metric in binned for axis in ("energy", "theta")),
        *("response", "angle", "count_difference", "visible_energy", "visible_mass", "two_photons_found"),
        *("confusion", "confusion_reference"),
    }
    assert all(rendered(figure, "png") for figure in drawn.values())


def test_classes_have_binned_figures_of_their_own(result):
    drawn = figures(result, ["photon", "muon"])
    assert drawn["efficiency_vs_energy_photon"].axes[0].get_title(loc="left").startswith("photon, ")
    assert not [name for name in drawn if name.endswith("_muon")]


def test_the_fake_rate_is_against_reconstructed_quantities(result):
    drawn = figures(result)
    assert drawn["fake_rate_vs_energy"].axes[0].get_xlabel() == "Reconstructed energy [GeV]"
    assert drawn["efficiency_vs_energy"].axes[0].get_xlabel() == "True energy [GeV]"


def test_without_values_only_empty_frames_are_left(result):
    empty = dataclasses.replace(result, algorithms={"oracle": AlgorithmMetrics().result()})
    assert set(figures(empty)) == {"response", "angle", "count_difference"}
