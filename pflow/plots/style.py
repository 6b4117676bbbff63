"""How every picture looks: fonts, colours, the order of lines. Nothing global is changed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib as mpl
import mplhep
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["COLORS", "MARKERS", "new_figure", "rendered", "save", "styled", "title"]

COLORS = ("#3f90da", "#bd1f01", "#94a4a2", "#ffa90e", "#832db6", "#a96b59", "#e76300", "#b9ac70")
"""Lines in their order, told apart by people with any colour vision (M. Petroff, arXiv:2107.02270)."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_OWN = {
    "figure.figsize": (7.0, 5.2),
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "font.size": 14,
    "axes.labelsize": 15,
    "axes.titlesize": 12,
    "legend.fontsize": 11,
    "legend.title_fontsize": 11,
    "xtick.labelsize": 13,
    "ytick.labelsize": 13,
    "lines.markersize": 5,
    "figure.constrained_layout.use": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in mplhep's ROOT style at sizes for a slide; everything is as before afterwards."""
    style: Any = {**mplhep.style.ROOT, **_OWN}
    with mpl.rc_context(style):
        yield


def new_figure(*, width: float = 7.0, height: float = 5.2) -> tuple[Figure, Axes]:
    """A figure of this size in inches with one pair of axes; call inside `styled`. Belongs to no pyplot state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def title(axes: Axes, text: str) -> None:
    """What the picture was made of, small above the axes."""
    axes.set_title(text, loc="left")


def save(figure: Figure, path: Path | BinaryIO, *, format: str) -> None:
    """Write a figure as ``png`` or ``pdf``, the same bytes for the same content."""
    metadata = {"Software": None} if format == "png" else {"CreationDate": None}
    with styled():
        figure.savefig(path, format=format, metadata=metadata)


def rendered(figure: Figure, format: str) -> bytes:
    """What `save` would write."""
    buffer = io.BytesIO()
    save(figure, buffer, format=format)
    return buffer.getvalue()
