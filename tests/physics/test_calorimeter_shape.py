import dataclasses

import numpy as np
import pytest

from pflow.physics.geometry import barrel_shape, distance_to_sides, fraction_on_layers, layer_range


def barrel(sides, *, phase=0.0, staves=None):
    """Hits on 20 layers of 5 mm from 1000 mm on, in all or some staves."""
    rng = np.random.default_rng(0)
    layer = rng.integers(0, 20, 600)
    distance = 1002.5 + 5.0 * layer
    normal = phase + 2 * np.pi / sides * rng.choice(np.arange(sides) if staves is None else staves, 600)
    across = rng.uniform(-1, 1, 600) * distance * np.tan(np.pi / sides)
    x, y = np.cos(normal), np.sin(normal)
    return distance * x - across * y, distance * y + across * x, layer


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("turned", [0.0, 0.5])
@pytest.mark.parametrize("sides", [8, 12, 32])
def test_the_sides_of_a_barrel_are_counted(sides, turned, labelled):
    x, y, layer = barrel(sides, phase=turned * 2 * np.pi / sides)
    shape = barrel_shape(x, y, layer if labelled else None)
    assert (shape.sides, shape.as_good, shape.symmetry) == (sides, (sides,), sides)
    assert shape.phase == pytest.approx(turned * 2 * np.pi / sides)
    layers = layer_range(distance_to_sides(x, y, shape.sides, shape.phase), layer if labelled else None)
    assert dataclasses.astuple(layers) == pytest.approx((1000.0, 1100.0, 5.0, 20))


def test_a_cylinder_has_no_sides():
    rng = np.random.default_rng(1)
    phi, layer = rng.uniform(-np.pi, np.pi, 500), rng.integers(0, 20, 500)
    radius = 1002.5 + 5.0 * layer
    shape = barrel_shape(radius * np.cos(phi), radius * np.sin(phi), layer)
    assert (shape.sides, shape.symmetry) == (0, 0)


def test_hits_in_few_staves_fit_several_numbers_of_sides():
    x, y, layer = barrel(12, staves=[0, 3, 6, 9])
    shape = barrel_shape(x, y, layer)
    assert {4, 12} <= set(shape.as_good)
    assert shape.symmetry == 4


def test_hits_without_layers_have_no_shape():
    rng = np.random.default_rng(2)
    phi, radius = rng.uniform(-np.pi, np.pi, 500), rng.uniform(1000, 1100, 500)
    x, y = radius * np.cos(phi), radius * np.sin(phi)
    assert barrel_shape(x, y) is None
    assert barrel_shape(x, y, rng.integers(0, 20, 500)) is None
    assert barrel_shape(x[:0], y[:0]) is None


def test_a_hit_alone_in_its_layer_does_not_count():
    assert fraction_on_layers(np.array([10.0, 10.1, 20.0]), np.array([0, 0, 1])) == pytest.approx(2 / 3)


def test_layers_without_hits_do_not_change_the_spacing():
    distance = np.array([10.0, 10.0, 15.0, 15.0, 30.0, 30.0])
    assert dataclasses.astuple(layer_range(distance, np.array([0, 0, 1, 1, 4, 4]))) == (7.5, 32.5, 5.0, 3)
