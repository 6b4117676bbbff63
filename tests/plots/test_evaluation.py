import dataclasses

import numpy as np
import pytest

from pflow.event.particles import Reconstruction
from pflow.io.open import read_events
from pflow.metrics.evaluation import AlgorithmMetrics, Evaluation
from pflow.metrics.stats import Axis, Histogram, Number, Series
from pflow.plots.evaluation import figures, plot_binned, plot_confusion, plot_distribution
from pflow.plots.style import rendered


@pytest.fixture(scope="module")
def result(sample_dir):
    """The oracle and the file's reference on two-photon events."""
    evaluation = Evaluation(name="oracle", oracle=True)
    evaluation.update(read_events(sample_dir / "gammasep_test_small.root"), {})
    return evaluation.result()


def test_every_metric_with_values_has_a_figure(result):
    drawn = figures(result)
    binned = ("response_median", "resolution_68", "q68_deg", "efficiency", "fake_rate")
    assert set(drawn) == {
        *(f"{metric}_vs_{axis}" for metric in binned for axis in ("energy", "theta")),
        *("response", "angle", "count_difference", "visible_energy", "visible_mass", "two_photons_found", "jets"),
        *("confusion", "confusion_reference"),
        *(f"{metric}_vs_energy_by_class" for metric in binned),
    }
    assert drawn["fake_rate_vs_energy"].axes[0].get_xlabel() == "Reconstructed energy [GeV]"
    assert drawn["efficiency_vs_energy"].axes[0].get_xlabel() == "True energy [GeV]"
    assert rendered(drawn["q68_deg_vs_energy"], "png").startswith(b"\x89PNG")
    counts = drawn["count_difference"].axes[0].patches[0].get_data()
    by_difference = result.algorithms["oracle"]["count"]["difference"]
    expected = [by_difference.get(f"{round(edge + 0.5)}", 0) / result.n_events for edge in counts.edges[:-1]]
    assert counts.values.tolist() == pytest.approx(expected)
    empty = figures(dataclasses.replace(result, algorithms={"oracle": AlgorithmMetrics().result()}))
    assert set(empty) == {"response", "angle", "count_difference"}
    assert not any(figure.axes[0].patches for figure in empty.values())
    assert rendered(empty["angle"], "png").startswith(b"\x89PNG")
    without_jets = {name: {**tree, "jets": {}} for name, tree in result.algorithms.items()}
    assert set(figures(dataclasses.replace(result, algorithms=without_jets))) == set(drawn) - {"jets"}


def test_the_colour_of_an_algorithm_does_not_depend_on_the_others(sample_dir):
    def colours(*, oracle: bool) -> dict[str, object]:
        events = read_events(sample_dir / "gammasep_test_small.root", entry_stop=5)
        reco = Reconstruction(particles=events.reference, event=events.event, flags=events.flags)
        evaluation = Evaluation(oracle=oracle)
        evaluation.update(events, {"PFlow": reco, "Other": reco})
        figure = figures(evaluation.result())["efficiency_vs_energy"]
        axes = figure.axes[0]
        return {points.get_label(): points.lines[0].get_color() for points in axes.containers}

    without, with_oracle = colours(oracle=False), colours(oracle=True)
    assert without == {name: with_oracle[name] for name in without}
    assert len(set(with_oracle.values())) == len(with_oracle) == 4


def test_panels_of_classes_have_the_same_axes(result):
    panels = figures(result)["resolution_68_vs_energy_by_class"].axes
    assert len({(panel.get_xlim(), panel.get_ylim()) for panel in panels}) == 1
    assert panels[0].get_yscale() == "log"


AXIS = Axis(name="energy", label="True energy", unit="GeV", edges=np.array([1.0, 10.0, 100.0]), log=True)
FLAT = Axis(name="theta", label="Polar angle", unit="", edges=np.array([0.0, 1.0, 2.0]))


def series(*values) -> Series:
    return Series.of(Number(v, v - 0.1, v + 0.2) for v in values)


def points(axes):
    """Horizontal and vertical positions and the ends of the vertical intervals of each line's points."""
    for container in axes.containers:
        data = container.lines[0]
        bars = container.lines[2][1].get_segments()
        yield data.get_xdata(), data.get_ydata(), [tuple(segment[:, 1]) for segment in bars]


def test_points_are_the_values_with_their_intervals_and_empty_bins_are_left_out():
    figure = plot_binned(AXIS, {"": {"PFlow": series(0.5, 0.8)}}, label="Efficiency")
    ((x, y, bars),) = points(figure.axes[0])
    assert list(y) == [0.5, 0.8]
    assert bars[0] == pytest.approx((0.4, 0.7))
    assert x == pytest.approx(np.sqrt([10.0, 1000.0]))
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("True energy [GeV]", "Efficiency", "log")
    figure = plot_binned(AXIS, {"": {"PFlow": series(float("nan"), 0.8)}}, label="Efficiency")
    ((_, y, _),) = points(figure.axes[0])
    assert list(y) == [0.8]
    assert figure.axes[0].get_xlim() == pytest.approx((10, 100))


def test_algorithms_have_different_places_in_a_bin():
    figure = plot_binned(FLAT, {"": {"a": series(0.5, 0.8), "b": series(0.5, 0.8)}}, label="Efficiency")
    (first, _, _), (second, _, _) = points(figure.axes[0])
    assert first == pytest.approx([1 / 3, 4 / 3])
    assert second == pytest.approx([2 / 3, 5 / 3])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_a_distribution_shows_fractions_of_all_entries_and_the_axis_its_middle():
    histogram = Histogram(edges=np.array([0.0, 1.0, 2.0]), counts=np.array([3.0, 5.0]), below=1, above=1)
    figure = plot_distribution({"PFlow": (histogram, "median 1.02")}, label="Response")
    axes = figure.axes[0]
    assert axes.patches[0].get_data().values.tolist() == [0.3, 0.5]
    assert figure.legends[0].get_texts()[0].get_text() == "PFlow\nmedian 1.02\n20.0% outside"
    counts = np.zeros(100)
    counts[49:51], counts[2] = 999.0, 2.0
    histogram = Histogram(edges=np.linspace(0.0, 2.0, 101), counts=counts)
    axes = plot_distribution({"PFlow": (histogram, "")}, label="Response", central=True).axes[0]
    shown = axes.patches[0].get_data()
    assert (shown.edges[0], shown.edges[-1]) == pytest.approx((0.92, 1.08))
    assert shown.values.max() == 999 / 2000
    assert axes.figure.legends[0].get_texts()[0].get_text() == "PFlow\n0.1% outside"


def test_confusion_shows_fractions_and_counts():
    axes = plot_confusion([[3, 1], [0, 0]], ["photon", "fake"], ["photon", "missed"]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["75.0%\n3", "25.0%\n1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["photon", "missed"]
