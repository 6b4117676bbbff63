"""The confusion matrix of true and reconstructed particle classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from pflow.plots.style import new_figure, styled, title

__all__ = ["plot_confusion"]


def plot_confusion(
    counts: npt.ArrayLike, *, true_classes: Sequence[str], reco_classes: Sequence[str], text: str = ""
) -> Figure:
    """Counts [true, reconstructed], coloured by the fraction of their row; each cell shows fraction and count.

    Raises
    ------
    ValueError
        The shape of the counts does not fit the names.
    """
    matrix = np.asarray(counts, dtype=np.float64)
    if matrix.shape != (len(true_classes), len(reco_classes)):
        raise ValueError(f"counts have shape {matrix.shape}, names {(len(true_classes), len(reco_classes))}")
    total = matrix.sum(axis=1, keepdims=True)
    fractions = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    with styled():
        figure, axes = new_figure(width=8.0, height=6.4)
        image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (row, column), fraction in np.ndenumerate(fractions):
            if matrix[row, column]:
                text_colour = "white" if fraction > 0.5 else "black"
                cell = f"{fraction:.1%}\n{int(matrix[row, column])}"
                axes.text(column, row, cell, ha="center", va="center", fontsize=9, color=text_colour)
        axes.set_xticks(range(len(reco_classes)), [name.replace("_", "\n") for name in reco_classes], fontsize=10)
        axes.set_yticks(range(len(true_classes)), [name.replace("_", "\n") for name in true_classes], fontsize=10)
        axes.tick_params(which="both", length=0)
        axes.minorticks_off()
        axes.set_xlabel("Reconstructed class")
        axes.set_ylabel("True class")
        figure.colorbar(image, ax=axes, label="Fraction of the true class")
        title(axes, text)
        return figure
