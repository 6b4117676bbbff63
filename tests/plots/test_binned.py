from __future__ import annotations

import numpy as np
import pytest

from pflow.metrics.stats import Axis, Number, Series
from pflow.plots.binned import plot_binned
from pflow.plots.style import rendered

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


def test_points_are_the_values_with_their_intervals():
    figure = plot_binned(AXIS, {"PFlow": series(0.5, 0.8)}, label="Efficiency")
    ((x, y, bars),) = points(figure.axes[0])
    assert list(y) == [0.5, 0.8]
    assert bars[0] == pytest.approx((0.4, 0.7))
    assert x == pytest.approx(np.sqrt([10.0, 1000.0]))


@pytest.mark.parametrize(
    ("axis", "label", "scale"), [(AXIS, "True energy [GeV]", "log"), (FLAT, "Polar angle", "linear")]
)
def test_labels_have_units(axis, label, scale):
    axes = plot_binned(axis, {"PFlow": series(0.5, 0.8)}, label="Angle [deg]").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == (label, "Angle [deg]", scale)


def test_algorithms_share_a_bin_side_by_side():
    figure = plot_binned(FLAT, {"a": series(0.5, 0.8), "b": series(0.5, 0.8)}, label="Efficiency")
    (first, _, _), (second, _, _) = points(figure.axes[0])
    assert first == pytest.approx([1 / 3, 4 / 3])
    assert second == pytest.approx([2 / 3, 5 / 3])
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["a", "b"]


def test_empty_bins_are_left_out():
    figure = plot_binned(AXIS, {"PFlow": series(float("nan"), 0.8)}, label="Efficiency")
    ((_, y, _),) = points(figure.axes[0])
    assert list(y) == [0.8]
    assert figure.axes[0].get_xlim() == pytest.approx((10, 100))


def test_nothing_at_all_is_an_empty_frame():
    figure = plot_binned(AXIS, {"PFlow": series(float("nan"), float("nan"))}, label="Efficiency", log=True)
    assert figure.axes[0].get_legend() is None
    assert rendered(figure, "png").startswith(b"\x89PNG")


def test_reference_line_and_limits():
    axes = plot_binned(AXIS, {"PFlow": series(1.0, 0.9)}, label="Response", reference=1.0, limits=(0.0, 2.0)).axes[0]
    assert axes.lines[0].get_ydata() == [1.0, 1.0]
    assert axes.get_ylim() == (0, 2)


def test_wrong_number_of_bins_is_refused():
    with pytest.raises(ValueError, match="series 'PFlow' has 1 values for 2 bins"):
        plot_binned(AXIS, {"PFlow": series(0.5)}, label="Efficiency")
