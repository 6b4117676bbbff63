import matplotlib as mpl
import pytest

from pflow.plots.style import new_figure, rendered, styled


def test_no_global_state_changes():
    before = dict(mpl.rcParams)
    with styled():
        assert mpl.rcParams["font.size"] != before["font.size"]
    rendered(new_figure()[0], "png")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_same_content_gives_the_same_bytes_of_the_format(format, start):
    figure, axes = new_figure()
    axes.plot([1, 2], label="PFlow")
    first, second = rendered(figure, format), rendered(figure, format)
    assert first.startswith(start)
    assert first == second
