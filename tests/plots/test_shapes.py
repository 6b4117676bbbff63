from __future__ import annotations

import numpy as np
import pytest

from pflow.physics.detector import load_detector
from pflow.plots.shapes import arrow_points, hit_size, outline_points


@pytest.mark.parametrize(
    ("energy", "units"), [(1.0, 1.0), (10.0, 1.5), (0.1, 0.5), (100.0, 2.0), (1e5, 2.5), (1e-3, 0.2), (0.0, 0.2)]
)
def test_an_arrow_grows_by_half_a_unit_a_decade(energy, units):
    arrow = arrow_points([[1.0, 2.0, 3.0]], [[0.0, 0.6, 0.8]], [energy], 100.0)[0]
    np.testing.assert_allclose(arrow[0], [1, 2, 3])
    np.testing.assert_allclose(arrow[1] - arrow[0], np.array([0.0, 0.6, 0.8]) * units * 100.0, atol=1e-9)


def test_barbs_lie_behind_the_tip_on_all_sides():
    direction = np.array([[1.0, 2.0, -2.0]]) / 3.0
    arrow = arrow_points([[0, 0, 0]], direction, [1.0], 100.0)[0]
    barbs = arrow[2::2] - arrow[1]
    np.testing.assert_allclose(barbs @ direction[0], -15.0)
    np.testing.assert_allclose(barbs.sum(axis=0), 4 * -15.0 * direction[0], atol=1e-9)


def test_two_barbs_lie_in_the_plane_of_the_beam():
    arrow = arrow_points([[0, 0, 0]], [[0.6, 0.0, 0.8]], [1.0], 100.0)[0]
    assert (np.isclose(arrow[2::2, 1], 0.0)).sum() == 2


def test_no_particles_have_no_arrows():
    assert arrow_points(np.zeros((0, 3)), np.zeros((0, 3)), [], 1.0).shape == (0, 10, 3)


def test_the_outline_lies_on_the_inner_surface():
    detector = load_detector("ild_g4")
    circles, bars = outline_points(detector)
    for points in (circles, bars):
        np.testing.assert_allclose(np.hypot(points[..., 0], points[..., 1]), 1805.0)
        assert np.abs(points[..., 2]).max() == 2412.0
    np.testing.assert_allclose(circles[:, 0], circles[:, -1], atol=1e-9)


@pytest.mark.parametrize(("energy", "size"), [(1.0, 1.0), (5.0, 1.0), (0.1, 0.75), (1e-4, 0.0), (0.0, 0.0)])
def test_hit_size(energy, size):
    assert hit_size(energy) == pytest.approx(size)
