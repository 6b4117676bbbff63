"""Pictures of numbers: functions take numbers and return a Figure. The only place that uses matplotlib.

Here is the style of every figure: fonts, colours, markers. Global state does not change.
"""

from __future__ import annotations

import functools
import io
from typing import Any

import matplotlib as mpl
import mplhep
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

COLORS = ("#3f90da", "#bd1f01", "#94a4a2", "#ffa90e", "#832db6", "#a96b59", "#e76300", "#b9ac70")
"""Colours of algorithms, distinct for any colour vision (M. Petroff, arXiv:2107.02270)."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

STYLE: Any = {
    **mplhep.style.ROOT,
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
    # Names instead of the style's lists, which a figure that is saved outside of the style does not know.
    "font.family": ["TeX Gyre Heros", "sans-serif"],
    "mathtext.fontset": "stixsans",
}


styled = functools.partial(mpl.rc_context, STYLE)
"""Draw in mplhep's ROOT style with sizes for a slide; the style ends with the context."""


def plain(text: str) -> str:
    """A text of the user's, e.g. the name of a file, with escaped dollar signs, which would start a formula."""
    return text.replace("$", r"\$")


MARK = "made by pflow"
"""Creator in the metadata of every picture and page."""


# Under the style, because savefig.dpi counts only when a figure is saved.
@styled()
def rendered(figure: Figure, format: str) -> bytes:
    """A figure as ``png`` or ``pdf``; the same content gives the same bytes."""
    figure.dpi = mpl.rcParams["savefig.dpi"]
    # Laid out once. `savefig` would do it for each format, and draw twice also where nothing is left to lay out.
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    # A PDF would have the date of its making, and so other bytes each time.
    metadata = {"Software": MARK} if format == "png" else {"CreationDate": None, "Creator": MARK}
    canvas: Any = FigureCanvasAgg(figure) if format == "png" else FigureCanvasPdf(figure)
    getattr(canvas, f"print_{format}")(buffer, metadata=metadata)
    return buffer.getvalue()
