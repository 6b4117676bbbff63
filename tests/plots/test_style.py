import io

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from pflow.plots import rendered, styled


def test_global_state_does_not_change():
    before = dict(mpl.rcParams)
    with styled():
        assert mpl.rcParams["font.size"] != before["font.size"]
    rendered(Figure(), "png")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_same_content_gives_the_same_bytes_of_the_format(format, start):
    figure = Figure(layout="constrained")
    figure.add_subplot().plot([1, 2], label="PFlow")
    first, second = rendered(figure, format), rendered(figure, format)
    assert first.startswith(start)
    assert first == second


def test_a_figure_saved_outside_of_the_style_finds_its_fonts(caplog):
    with styled():
        figure = Figure()
        figure.add_subplot().set(xlabel=r"$E_{reco}$ and $\sigma_{68}$", title="title")
    figure.savefig(io.BytesIO())
    assert not caplog.messages
