"""Training curves: losses and errors against the epoch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflow.plots.style import COLORS, styled, title

__all__ = ["plot_training"]

ERRORS = {
    "val/energy_error": "Mean |E$_{pred}$/E$_{true}$ $-$ 1|, next particle",
    "val/angle_deg": "Mean angle, next particle [deg]",
}


def plot_training(history: Mapping[str, Mapping[int, float]], *, text: str = "") -> Figure:
    """Losses of the training (dashed) and validation (solid) split, and the validation split's errors.

    `history` has values by name (``train/loss``, ``val/energy`` ...) and epoch, as `train.run_folder.read_history`
    gives; ValueError if it holds no losses. `text` is the title of the first panel.
    """
    names = {name.split("/")[1] for name in history if name not in ERRORS}
    losses = sorted(names, key=lambda name: (name != "loss", name))
    if not losses:
        raise ValueError("the history holds no losses")
    errors = [name for name in ERRORS if name in history]
    with styled():
        figure = Figure(figsize=(6.0 * (1 + len(errors)), 5.0), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, 1 + len(errors)))
        for k, loss in enumerate(losses):
            for split, style in (("val", "-"), ("train", "--")):
                label = ("total" if loss == "loss" else loss) if split == "val" else None
                _curve(panels[0], history.get(f"{split}/{loss}", {}), COLORS[k % len(COLORS)], style, label)
        panels[0].set_ylabel("Loss (solid: validation, dashed: training)")
        panels[0].legend()
        for panel, name in zip(panels[1:], errors, strict=True):
            _curve(panel, history[name], COLORS[0], "-", None)
            panel.set_ylabel(ERRORS[name])
        for panel in panels:
            if all(line.get_ydata().min() > 0 for line in panel.lines if len(line.get_ydata())):
                panel.set_yscale("log")
            panel.set_xlabel("Epoch")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        title(panels[0], text)
        return figure


def _curve(axes: Axes, values: Mapping[int, float], color: str, style: str, label: str | None) -> None:
    epochs = sorted(values)
    marker = "o" if len(epochs) < 30 else ""
    axes.plot(epochs, [values[epoch] for epoch in epochs], style, marker=marker, color=color, label=label)
