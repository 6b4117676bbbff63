from __future__ import annotations

import pytest

from pflow.plots.confusion import plot_confusion


def test_confusion_shows_fractions_and_counts():
    axes = plot_confusion([[3, 1], [0, 0]], true_classes=["photon", "fake"], reco_classes=["photon", "missed"]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["75.0%\n3", "25.0%\n1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["photon", "missed"]


def test_confusion_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="shape"):
        plot_confusion([[3, 1]], true_classes=["a", "b"], reco_classes=["a", "b"])
