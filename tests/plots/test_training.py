from __future__ import annotations

import pytest

from pflow.plots.training import plot_training

HISTORY = {
    "train/loss": {1: 2.0, 2: 1.0},
    "val/loss": {1: 1.5, 2: 0.9},
    "val/energy": {1: 0.5, 2: 0.4},
    "val/energy_error": {1: 0.3, 2: 0.2},
    "val/angle_deg": {1: 10.0, 2: 5.0},
}


def curves(axes):
    return {tuple(zip(line.get_xdata(), line.get_ydata(), strict=True)): line.get_linestyle() for line in axes.lines}


def test_each_loss_is_drawn_for_each_split_it_was_logged_for():
    losses = plot_training(HISTORY).axes[0]
    assert curves(losses)[(1, 2.0), (2, 1.0)] == "--"
    assert curves(losses)[(1, 1.5), (2, 0.9)] == "-"
    assert curves(losses)[(1, 0.5), (2, 0.4)] == "-"


def test_errors_have_panels_of_their_own_with_units():
    figure = plot_training(HISTORY)
    assert len(figure.axes) == 3
    assert ((1, 10.0), (2, 5.0)) in curves(figure.axes[2])
    assert "[deg]" in figure.axes[2].get_ylabel()


def test_without_errors_there_is_one_panel():
    assert len(plot_training({"train/loss": {1: 1.0}}).axes) == 1


def test_an_empty_history_is_an_error():
    with pytest.raises(ValueError, match="no losses"):
        plot_training({})
