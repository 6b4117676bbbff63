import dataclasses
import itertools

import numpy as np
import pytest

from pflow.io.open import read_events
from pflow.metrics.evaluation import AlgorithmMetrics, Evaluation
from pflow.metrics.event import RECO_MODES, TRUE_MODES
from pflow.metrics.jets import ABS_COS_THETA
from pflow.metrics.match import Matching
from pflow.metrics.report import definitions
from pflow.metrics.stats import Axis, Number, Series
from pflow.plots import rendered
from pflow.plots.evaluation import (
    BINNED,
    DEFINED,
    caption,
    figures,
    plot_binned,
    plot_confusion,
    plot_distribution,
    plot_training,
)


@pytest.fixture(scope="module")
def result(sample_dir, few_resamples):
    """The oracle and the file's reference on two-photon events; numbers of two energies of jets, and of taus, added."""
    evaluation = Evaluation(name="oracle", oracle=True)
    evaluation.update(read_events(sample_dir / "gammasep_test_small.root"), {})
    number, bins = Number(0.04, 0.03, 0.05), len(ABS_COS_THETA)
    of_bins = Series.of([number] * (bins - 1) + [Number(0.2, float("nan"), float("nan"))])
    of_energy = {f"{key}{part}": number for key in ("resolution", "scale") for part in ("", "_barrel", "_endcap")}
    of_energy["binned"] = {"resolution": of_bins, "scale": of_bins}
    taus = {"modes": {"counts": [[3, 1], [0, 2]], "true_modes": ["e", "mu"], "reco_modes": ["e", "other"]}}
    histogram = {"edges": [0.5, 1.5], "counts": [1.0], "below": 0.0, "above": 0.0}
    mass = {"histogram": histogram, "response_median": number, "resolution_68": number}
    added = {"jet_energy": {"200": of_energy, "91": of_energy}, "taus": taus, "hadronic_mass": {"H": mass}}
    result = evaluation.result()
    algorithms = {name: {**tree, **added} for name, tree in result.algorithms.items()}
    of_file = {"sample": "some.root", "detector": "of_mine", "energy": "91 GeV"}
    return dataclasses.replace(result, algorithms=algorithms, **of_file)


@pytest.fixture(scope="module")
def drawn(result):
    return figures(result)


def test_every_metric_with_values_has_a_figure(result, drawn):
    binned = ("response_median", "resolution_68", "q68_deg", "efficiency", "fake_rate")
    assert set(drawn) == {
        *(f"{metric}_vs_{axis}" for metric in binned for axis in ("energy", "theta")),
        *("response", "angle", "count_difference", "visible_energy", "visible_mass", "jets", "jets_angle"),
        *("two_photons_found", "photon_pairs", "photon_pairs_angle", "confusion_budget"),
        *("confusion", "confusion_reference", "tau_modes", "tau_modes_reference", "hadronic_mass_H"),
        *(f"jet_energy_{of}_vs_{axis}" for of in ("resolution", "scale") for axis in ("abs_cos_theta", "sqrt_s")),
        *(f"{metric}_vs_energy_by_class" for metric in binned),
        *(f"{metric}_vs_theta_by_class" for metric in ("response_median", "resolution_68")),
        # No photon has a charged particle beside it, but reconstructed ones have.
        *("fake_rate_vs_distance", "fake_rate_vs_distance_by_class"),
    }
    assert drawn["fake_rate_vs_energy"].axes[0].get_xlabel() == "Reconstructed energy [GeV]"
    assert drawn["efficiency_vs_energy"].axes[0].get_xlabel() == "True energy [GeV]"
    assert rendered(drawn["q68_deg_vs_energy"], "png").startswith(b"\x89PNG")
    counts = drawn["count_difference"].axes[0].patches[0].get_data()
    by_difference = result.algorithms["oracle"]["count"]["difference"]
    expected = [by_difference.get(f"{round(edge + 0.5)}", 0) / result.n_events for edge in counts.edges[:-1]]
    assert counts.values.tolist() == pytest.approx(expected)
    for tree in (AlgorithmMetrics().result(), AlgorithmMetrics().result() | {"jets": {}}):  # without fastjet
        empty = figures(dataclasses.replace(result, algorithms={"oracle": tree}))
        assert set(empty) == {"response", "angle", "count_difference"}
        assert not any(figure.axes[0].patches for figure in empty.values())
    assert rendered(empty["angle"], "png").startswith(b"\x89PNG")


def texts_of(figure) -> str:
    """Titles of the figure's panels and of its legends."""
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    return "\n".join([*titles, *(legend.get_title().get_text() for legend in figure.legends)])


def test_sample_detector_and_energy_stand_on_each_figure(drawn):
    for name, figure in drawn.items():
        assert "some.root, of_mine, 91 GeV\n25 events, truth rule 'stable'" in texts_of(figure), name


def test_a_reference_of_fewer_events_says_so_and_numbers_keep_their_digits(result, monkeypatch):
    monkeypatch.setattr("pflow.plots.evaluation.BINNED", [])
    fewer = {**result.algorithms, "reference": {**result.algorithms["reference"], "n_events": 8}}
    (legend,) = figures(dataclasses.replace(result, algorithms=fewer))["hadronic_mass_H"].legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [f"{name}\nmedian 0.0400, $\\sigma_{{68}}$ 0.0400" for name in ("oracle", "pandora (8 events)")]


def test_particles_outside_of_the_energies_axis_are_counted(result, drawn, monkeypatch):
    monkeypatch.setattr(
        "pflow.plots.evaluation.BINNED", [row for row in BINNED if row[0] in ("efficiency", "fake_rate")]
    )
    more = {name: {**tree, "n_truth": tree["n_truth"] + 26} for name, tree in result.algorithms.items()}
    counted = figures(dataclasses.replace(result, algorithms=more))
    noted = {
        name for name, figure in counted.items() if "up to 26 particles outside of 0.1 to 250 GeV" in texts_of(figure)
    }
    assert noted == {"efficiency_vs_energy", "efficiency_vs_energy_by_class"}
    assert "outside" not in "".join(map(texts_of, drawn.values()))


def test_definitions_and_sources_stand_beside_each_figure(drawn):
    rule = Matching()
    assert {name for name in drawn if ": " not in caption(name, rule)} == set()
    for of in ("resolution", "scale"):
        assert "UdsAnalysis; M. Thomson, NIM A 611" in caption(f"jet_energy_{of}_vs_abs_cos_theta", rule)
    known = definitions(rule)
    assert [key for keys in DEFINED.values() for key in keys if " " not in key and key not in known] == []
    assert "true particles without a match (missed)" in caption("confusion_reference", rule)
    assert "vs angle to the next charged particle of the same list by class: " in caption(
        "fake_rate_vs_distance_by_class", rule
    )
    label = drawn["fake_rate_vs_distance"].axes[0].get_xlabel()
    assert label == "Angle to the next reconstructed charged particle [mrad]"
    assert "ILDConfig's PerfectPhoton" in caption("confusion_budget", rule)
    assert "cost <= 0.5" in caption("efficiency_vs_energy_by_class", rule)
    assert "cost <= 0.2" in caption("efficiency_vs_energy_by_class", Matching(cut=0.2))


def test_figures_of_jet_energies_bosons_and_decay_modes(drawn):
    panels = drawn["jet_energy_resolution_vs_abs_cos_theta"].axes
    assert ["91" in panels[0].get_title(loc="left"), "200" in panels[1].get_title(loc="left")] == [True, True]
    axes = drawn["jet_energy_resolution_vs_sqrt_s"].axes[0]
    ((x, y, bars), _) = points(axes)
    assert (sorted(x), list(y), bars[0]) == ([91, 200], [0.04, 0.04], pytest.approx((0.03, 0.05)))
    assert rendered(drawn["jet_energy_scale_vs_sqrt_s"], "png").startswith(b"\x89PNG")
    axes = drawn["hadronic_mass_H"].axes[0]
    assert axes.get_xlabel() == "Mass of the two jets of H, reconstructed / true"
    assert [patch.get_data().values.tolist() for patch in axes.patches] == [[1.0], [1.0]]
    axes = drawn["tau_modes_reference"].axes[0]
    assert [text.get_text() for text in axes.texts] == ["75.0%\n3", "25.0%\n1", "100.0%\n2"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Reconstructed decay mode", "True decay mode")


def test_the_budget_shows_gains_in_percent_of_the_energy(result, drawn):
    axes = drawn["confusion_budget"].axes[0]
    gains = result.algorithms["reference"]["confusion_budget"]["gain"]
    shown = [number for number in gains.values() if np.isfinite(number.low)]
    _, (_, heights, _) = points(axes)
    assert list(heights) == pytest.approx([100 * number.value for number in shown])
    total = 100 * result.algorithms["reference"]["confusion_budget"]["resolution"]["measured"].value
    assert axes.figure.legends[0].get_texts()[1].get_text() == f"pandora: {total:.2f} in all"


@pytest.fixture
def response_of(result):
    """Draws the responses of algorithms by their names, which are those of the oracle, and no other numbers."""
    tree = AlgorithmMetrics().result() | {"histograms": result.algorithms["oracle"]["histograms"]}

    def draw(*names, **changes):
        return figures(dataclasses.replace(result, algorithms=dict.fromkeys(names, tree), **changes))["response"]

    return draw


def test_the_colour_of_an_algorithm_does_not_depend_on_the_others(response_of):
    def colours(*names) -> dict[str, object]:
        (axes,) = response_of(*names, name="PFlow").axes
        return {patch.get_label().partition("\n")[0]: patch.get_edgecolor() for patch in axes.patches}

    without, with_oracle = colours("PFlow", "Other", "reference"), colours("PFlow", "oracle", "Other", "reference")
    assert without == {name: with_oracle[name] for name in without}
    assert len(set(with_oracle.values())) == len(with_oracle) == 4


def test_panels_of_classes_have_the_same_axes(drawn):
    panels = drawn["resolution_68_vs_energy_by_class"].axes
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
        bars = container.lines[2][-1].get_segments()  # the last ones are vertical
        yield data.get_xdata(), data.get_ydata(), [tuple(segment[:, 1]) for segment in bars]


def test_points_have_intervals_places_and_whole_markers():
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
    few = Series.of([Number(0.5, 0.4, 0.7), Number(0.8, float("nan"), float("nan"))])
    ((_, y, _),) = points(plot_binned(AXIS, {"": {"PFlow": few}}, label="Resolution").axes[0])
    assert list(y) == [0.5]
    axes = plot_binned(AXIS, {"": {"PFlow": series(0.0, 0.8)}}, label="Fake rate", limits=(0.0, None)).axes[0]
    assert axes.get_ylim()[0] == 0.0
    marker = axes.containers[0].lines[0]
    assert not marker.get_clip_on()
    assert marker.get_zorder() > axes.spines["bottom"].get_zorder()
    figure = plot_binned(FLAT, {"": {"a": series(0.5, 0.8), "b": series(0.5, 0.8)}}, label="Efficiency")
    (first, _, _), (second, _, _) = points(figure.axes[0])
    assert first == pytest.approx([1 / 3, 4 / 3])
    assert second == pytest.approx([2 / 3, 5 / 3])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_on_a_logarithmic_axis_intervals_reach_its_end_and_values_of_zero_are_left_out():
    at_zero = Series.of([Number(0.1, -0.1, 0.2), Number(0.0, 0.0, 0.1)])
    figure = plot_binned(AXIS, {"": {"PFlow": at_zero, "b": series(0.3, 0.8)}}, label="Angle", log=True)
    assert rendered(figure, "png")
    axes = figure.axes[0]
    (_, y, _), _ = points(axes)
    assert (axes.get_yscale(), list(y)) == ("log", [0.1])
    bar = axes.containers[0].lines[2][-1].get_segments()[0]
    assert axes.transAxes.inverted().transform(axes.transData.transform(bar))[0, 1] < 0
    assert axes.get_ylim()[0] == 0.05
    axes = plot_binned(AXIS, {"": {"PFlow": series(0.0, 0.0)}}, label="Angle", log=True).axes[0]
    assert axes.get_yscale() == "linear"


def test_a_distribution_shows_fractions_of_all_entries():
    histogram = {"edges": [0.0, 1.0, 2.0], "counts": [3.0, 5.0], "below": 1, "above": 1}
    figure = plot_distribution({"PFlow": (histogram, "median 1.02")}, label="Response")
    axes = figure.axes[0]
    assert axes.patches[0].get_data().values.tolist() == [0.3, 0.5]
    assert figure.legends[0].get_texts()[0].get_text() == "PFlow\nmedian 1.02\n20.0% outside"
    counts = np.zeros(100)
    counts[49:51], counts[2] = 999.0, 2.0
    histogram = {"edges": np.linspace(0.0, 2.0, 101), "counts": counts, "below": 0, "above": 0}
    axes = plot_distribution({"PFlow": (histogram, "")}, label="Response", central=True).axes[0]
    shown = axes.patches[0].get_data()
    assert (shown.edges[0], shown.edges[-1]) == pytest.approx((0.92, 1.08))
    assert shown.values.max() == 999 / 2000
    assert axes.figure.legends[0].get_texts()[0].get_text() == "PFlow\n0.1% outside"


def test_confusion_shows_fractions_and_counts():
    axes = plot_confusion([[3, 1], [0, 0]], ["photon", "fake"], ["photon", "missed"]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["75.0%\n3", "25.0%\n1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["photon", "missed"]
    axes = plot_confusion(np.eye(8), TRUE_MODES, RECO_MODES).axes[0]
    axes.figure.draw_without_rendering()
    ends = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(ends))


HISTORY = {
    "train/loss": {1: 2.0, 2: 1.0},
    "val/loss": {1: 1.5, 2: 0.9},
    "val/energy": {1: 0.5, 2: 0.4},
    "val/wrong_energy": {1: 0.3, 2: 0.2},
}


def test_names_of_files_and_algorithms_are_no_formulas(response_of):
    response = response_of("oracle", sample="a_$x^{_$.root", titles={"oracle": "b_$x^{_$"})
    for figure in (response, plot_training(HISTORY, text="run_$x^{_$")):
        figure.draw_without_rendering()


def test_panels_of_losses_parts_and_wrong_energy():
    losses, parts, wrong = plot_training(HISTORY).axes
    styles = {tuple(line.get_ydata()): line.get_linestyle() for axes in (losses, parts) for line in axes.lines}
    assert (styles[(2.0, 1.0)], styles[(1.5, 0.9)], styles[(0.5, 0.4)]) == ("--", "-", "-")
    assert (list(wrong.lines[0].get_ydata()), wrong.get_ylabel()[-3:]) == ([30.0, 20.0], "[%]")
    (axes,) = plot_training({"train/loss": {0.5: 2.0, 1.0: 1.0}}).axes
    assert axes.get_xlim()[0] == 0
    many = {f"val/part_{k}": dict.fromkeys(range(40), 1.0) for k in range(17)}
    lines = plot_training(many).axes[1].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 17
    with pytest.raises(ValueError, match="no losses"):
        plot_training({})
