import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection

from pflow.plots.display import plot_event
from pflow.plots.scene import COLOUR_BY, make_scene
from pflow.plots.style import rendered


@pytest.mark.parametrize("colour_by", COLOUR_BY)
def test_views_and_units_for_every_kind_of_colour(event, reconstruction, colour_by):
    figure = plot_event(make_scene(event, reconstruction=reconstruction, colour_by=colour_by))
    views = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert [axes.name for axes in views] == ["rectilinear", "rectilinear", "3d"]
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in views[:2]]
    assert labels == [("x [mm]", "y [mm]"), ("z [mm]", "r [mm]")]
    assert ("Hit energy [GeV]" in [axes.get_xlabel() for axes in figure.axes]) == (colour_by == "energy")


def test_hits_are_at_their_positions_within_the_axes(event):
    across, along = plot_event(make_scene(event, colour_by="subdetector")).axes[:2]
    hcal = -1  # the last group has the hit of the HCAL at (240, 2100, 0)
    np.testing.assert_allclose(across.collections[hcal].get_offsets(), [[240, 2100]])
    np.testing.assert_allclose(along.collections[hcal].get_offsets(), [[0, np.hypot(240, 2100)]])
    assert min(across.get_xlim()[1], across.get_ylim()[1]) > 2100


def test_the_legend_names_particles_and_lines_in_their_colours(event):
    scene = make_scene(event)
    figure = plot_event(scene)
    assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == [
        "gamma 10 GeV (3 hits)",
        "pi+ 5 GeV (2 hits)",
        "no true particle (1 hits)",
        "tracks (1)",
        "true particles (2)",
    ]
    arrows = [item for item in figure.axes[0].collections if isinstance(item, LineCollection)][-1]
    expected = [mpl.colors.to_rgb(colour) for colour in scene.lines[1].colours]
    np.testing.assert_allclose(arrows.get_colors()[:, :3], expected)


def test_events_without_hits_energy_or_plain_names_can_be_drawn(event, empty_event):
    empty = plot_event(make_scene(empty_event))
    assert not empty.legends
    without_energy = dataclasses.replace(make_scene(event, colour_by="energy"), energy=np.zeros(6, np.float32))
    dollars = make_scene(dataclasses.replace(event, path="price_$x^{_$.root"))
    for figure in (empty, plot_event(without_energy), plot_event(dollars)):
        assert rendered(figure, "png")
