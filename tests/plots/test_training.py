import pytest

from pflow.plots.evaluation import plot_training

HISTORY = {
    "train/loss": {1: 2.0, 2: 1.0},
    "val/loss": {1: 1.5, 2: 0.9},
    "val/energy": {1: 0.5, 2: 0.4},
    "val/wrong_energy": {1: 0.3, 2: 0.2},
}


def test_panels_of_losses_parts_and_wrong_energy():
    losses, parts, wrong = plot_training(HISTORY).axes
    styles = {tuple(line.get_ydata()): line.get_linestyle() for axes in (losses, parts) for line in axes.lines}
    assert (styles[(2.0, 1.0)], styles[(1.5, 0.9)], styles[(0.5, 0.4)]) == ("--", "-", "-")
    assert (list(wrong.lines[0].get_ydata()), wrong.get_ylabel()[-3:]) == ([30.0, 20.0], "[%]")
    assert len(plot_training({"train/loss": {1: 1.0}}).axes) == 1
    with pytest.raises(ValueError, match="no losses"):
        plot_training({})
