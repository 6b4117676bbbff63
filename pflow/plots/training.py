"""Training curves: losses and wrong energy against the epoch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pflow.plots.style import COLORS, styled

WRONG_ENERGY = "val/wrong_energy"
"""The metric that is no loss: it has a separate panel."""


@styled()
def plot_training(history: Mapping[str, Mapping[int, float]], *, text: str = "") -> Figure:
    """Training (dashed) and validation (solid) loss, parts and wrong energy, from `history` [name][epoch].

    ValueError: no losses.
    """
    names = {name.split("/")[1] for name in history if name != WRONG_ENERGY}
    if not names:
        raise ValueError("the history holds no losses")
    parts = sorted(names - {"loss"})
    n_panels = 1 + bool(parts) + (WRONG_ENERGY in history)
    figure = Figure(figsize=(4.6 * n_panels + 1.5 * bool(parts), 4.2), layout="constrained")
    panels = list(np.atleast_1d(figure.subplots(1, n_panels)))
    for split, style, label in (("val", "-", "validation"), ("train", "--", "training")):
        _curve(panels[0], history.get(f"{split}/loss", {}), COLORS[0], style, label)
        for k, part in enumerate(parts):
            named = part.replace("_", " ") if split == "val" else None
            _curve(panels[1], history.get(f"{split}/{part}", {}), COLORS[k % len(COLORS)], style, named)
    panels[0].set_ylabel("Loss")
    panels[0].legend()
    if parts:
        panels[1].set_ylabel("Parts of the loss")
        panels[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    if WRONG_ENERGY in history:
        percent = {epoch: 100.0 * value for epoch, value in history[WRONG_ENERGY].items()}
        _curve(panels[-1], percent, COLORS[0], "-", None)
        panels[-1].set(ylabel="Wrong energy [%]", ylim=(0, 1.15 * panels[-1].get_ylim()[1]))
    for panel in panels:
        panel.set_xlabel("Epoch")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.tick_params(labelsize=11)
    panels[0].set_title(text, loc="left")
    return figure


def _curve(axes: Axes, values: Mapping[int, float], color: str, style: str, label: str | None) -> None:
    epochs = sorted(values)
    marker = "o" if len(epochs) < 30 else ""
    axes.plot(epochs, [values[epoch] for epoch in epochs], style, marker=marker, color=color, label=label)
