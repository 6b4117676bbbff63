from __future__ import annotations

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from pflow.plots.display import plot_event
from pflow.plots.scene import COLOUR_BY, make_scene
from pflow.plots.style import rendered


def drawn(figure):
    """The bytes of a figure: drawing is where most mistakes show."""
    return rendered(figure, "png")


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("colour_by", COLOUR_BY)
def test_three_views_for_every_kind_of_colour(event, reconstruction, colour_by):
    figure = plot_event(make_scene(event, reconstruction=reconstruction, colour_by=colour_by))
    assert isinstance(figure, Figure)
    views = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert [axes.name for axes in views] == ["rectilinear", "rectilinear", "3d"]
    assert drawn(figure).startswith(b"\x89PNG")


def test_axes_name_their_units(event):
    across, along = plot_event(make_scene(event)).axes[:2]
    assert (across.get_xlabel(), across.get_ylabel()) == ("x [mm]", "y [mm]")
    assert (along.get_xlabel(), along.get_ylabel()) == ("z [mm]", "r [mm]")


def test_hits_stand_at_their_place_in_both_projections(event):
    scene = make_scene(event, colour_by="subdetector")
    across, along = plot_event(scene).axes[:2]
    hcal = -1  # the last group drawn has the one hit of the HCAL at (240, 2100, 0)
    np.testing.assert_allclose(across.collections[hcal].get_offsets(), [[240, 2100]])
    np.testing.assert_allclose(along.collections[hcal].get_offsets(), [[0, np.hypot(240, 2100)]])


def test_the_legend_names_particles_and_lines(event):
    assert labels(plot_event(make_scene(event))) == [
        "gamma 10 GeV (3 hits)",
        "pi+ 5 GeV (2 hits)",
        "no true particle (1 hits)",
        "tracks (1)",
        "true particles (2)",
    ]


def test_energy_has_a_colour_bar_with_its_unit(event):
    figure = plot_event(make_scene(event, colour_by="energy"))
    assert "Hit energy [GeV]" in [axes.get_xlabel() for axes in figure.axes]


def test_lines_have_the_colours_of_their_particles(event):
    scene = make_scene(event)
    across = plot_event(scene).axes[0]
    arrows = [item for item in across.collections if isinstance(item, LineCollection)][-1]
    expected = [mpl.colors.to_rgb(colour) for colour in scene.lines[1].colours]
    np.testing.assert_allclose(arrows.get_colors()[:, :3], expected)


def test_everything_fits_into_the_views(event):
    across = plot_event(make_scene(event)).axes[0]
    assert across.get_xlim()[1] > 2100
    assert across.get_ylim()[1] > 2100


def test_an_event_without_anything_can_be_drawn(empty_event):
    figure = plot_event(make_scene(empty_event))
    assert drawn(figure)
    assert not figure.legends


@pytest.mark.parametrize("colour_by", ["energy", "subdetector"])
def test_an_event_without_energy_can_be_drawn(event, colour_by):
    scene = make_scene(event, colour_by=colour_by)
    assert drawn(plot_event(dataclasses.replace(scene, energy=np.zeros(6, np.float32))))


def test_dollars_in_a_name_are_no_formula(event):
    odd = dataclasses.replace(event, path="price_$x^{_$.root")
    figure = plot_event(make_scene(odd))
    assert drawn(figure)
