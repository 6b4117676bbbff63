from __future__ import annotations

import numpy as np
import pytest

from pflow.metrics.stats import Histogram
from pflow.plots.distributions import plot_count_difference, plot_distribution


def test_distribution_is_in_fractions_of_all_entries_and_counts_those_outside():
    histogram = Histogram(edges=np.array([0.0, 1.0, 2.0]), counts=np.array([3.0, 5.0]), below=1, above=1)
    axes = plot_distribution({"PFlow": histogram}, label="Response", numbers={"PFlow": "median 1.02"}).axes[0]
    assert axes.patches[0].get_data().values.tolist() == [0.3, 0.5]
    assert axes.get_legend().get_texts()[0].get_text() == "PFlow\nmedian 1.02\n20.0% outside"


def test_distribution_of_nothing():
    histogram = Histogram(edges=np.array([0.1, 1.0]), counts=np.zeros(1))
    axes = plot_distribution({"PFlow": histogram}, label="Response", log_x=True).axes[0]
    assert not axes.patches


def test_count_difference_is_in_fractions_of_events():
    axes = plot_count_difference({"PFlow": {-1: 1, 0: 6, 2: 1}}, numbers={"PFlow": "exact: 75%"}).axes[0]
    data = axes.patches[0].get_data()
    fractions = dict(zip((data.edges[:-1] + 0.5).tolist(), data.values.tolist(), strict=True))
    assert fractions == {-2: 0, -1: 0.125, 0: 0.75, 1: 0, 2: 0.125, 3: 0}
    assert axes.get_legend().get_texts()[0].get_text() == "PFlow\nexact: 75%"


@pytest.mark.parametrize("lines", [{}, {"PFlow": {}}])
def test_count_difference_of_nothing(lines):
    assert not plot_count_difference(lines).axes[0].patches
