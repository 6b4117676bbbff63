import dataclasses
import math

import numpy as np
import pytest

from pflow.errors import ConfigError
from pflow.physics.detector import Layers, load_detector
from pflow.physics.geometry import (
    Geometry,
    barrel_shape,
    cluster_shape,
    distance_to_sides,
    fraction_on_layers,
    layer_range,
    log_weighted_barycentre,
    measures,
)

ILD, CLD = load_detector("ild_g4"), load_detector("cld")


def depths(detector, name, *point):
    geometry = Geometry.of(detector)
    calorimeter = np.array([[calorimeter.name for calorimeter in detector.calorimeters].index(name)])
    depths = geometry.depths(np.array([0]), calorimeter, *(np.array([value], dtype=float) for value in point))
    return {field: float(np.ravel(value)[0]) for field, value in depths._asdict().items()}


def test_depths_by_hand():
    # 110 mm behind 1805 mm: 20 layers of 5 mm and 10 mm of the next, 7.1 mm each.
    depth = depths(ILD, "ecal_barrel", 0.0, 1915.0, 0.0)
    expected = {"length": 110, "radiation": 20 * 0.61 + 1.21 * 10 / 7.1, "per_layer": 1.21}
    expected |= {"cosine": 1, "barrel": 1}
    assert {name: depth[name] for name in expected} == pytest.approx(expected)
    straight, inclined = depths(ILD, "ecal_barrel", 1850.0, 0.0, 0.0), depths(ILD, "ecal_barrel", 1850.0, 0.0, 1850.0)
    for name in ("length", "radiation", "interaction"):
        assert inclined[name] == pytest.approx(math.sqrt(2) * straight[name])
    depth = depths(ILD, "hcal_barrel", 2060.0, 0.0, 0.0)
    assert depth["length"] == pytest.approx(0)
    assert depth["interaction"] == pytest.approx(20 * 0.024 + 10 * 0.046)
    angle = math.pi / 12  # at a corner of the dodecagon
    depth = depths(CLD, "ecal_barrel", 2160.0, 2160.0 * math.tan(angle), 0.0)
    assert depth["cosine"] == pytest.approx(math.cos(angle))
    assert depth["length"] * depth["cosine"] == pytest.approx(10)
    assert Geometry.of(CLD).faces.sides[0, -1] == 12  # where tracks enter
    assert depths(CLD, "muon", 4600.0, 0.0, 0.0)["barrel"] == 1
    endcap = depths(CLD, "muon", 1000.0, 0.0, -4100.0)
    assert endcap["barrel"] == 0
    assert endcap["length"] == pytest.approx((4100 - 3965) * math.hypot(1000, 4100) / 4100)


def test_distance_to_the_nearest_side():
    x, y = np.array([10.0, 0.0]), np.array([0.0, 10.0])
    assert distance_to_sides(x, y, np.array([4, 4]), np.array([0, math.pi / 4])) == pytest.approx(
        [10, 10 * math.cos(math.pi / 4)]
    )
    assert distance_to_sides(x, y, np.array([0, 0]), 0.0).tolist() == [10, 10]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ()}, "layers of ecal_barrel"),
        ({"inner_radius": None}, "inner_radius or inner_z of ecal_barrel"),
        (
            {"layers": (Layers(count=30, pitch=5.0),)},
            r"radiation and interaction lengths of layers of ecal_barrel: .*--absorber",
        ),
    ],
)
def test_a_detector_without_geometry_is_named(change, message):
    first, *rest = ILD.calorimeters
    detector = dataclasses.replace(ILD, calorimeters=(dataclasses.replace(first, **change), *rest))
    with pytest.raises(ConfigError, match=f"'ild_g4' does not say {message}"):
        Geometry.of(detector)


def test_all_that_is_not_known_is_named_at_once():
    parts = [dataclasses.replace(c, hadron_scale=None, cell_size=None) for c in ILD.calorimeters]
    said = "cell_size of ecal_barrel, ecal_endcap, hcal_barrel, hcal_endcap; hadron_scale of hcal_barrel, hcal_endcap: "
    with pytest.raises(ConfigError, match=said):
        Geometry.of(dataclasses.replace(ILD, calorimeters=tuple(parts)))


def test_matter_of_two_calorimeters_behind_each_other_adds_up():
    """Of one kind and region: 30 layers of 0.2 X0, air, 10 of 1 X0 and the HCAL."""
    lengths = {"radiation_lengths": 0.2, "interaction_lengths": 0.01}
    first, second = Layers(count=30, pitch=5.0, **lengths), Layers(count=50, pitch=5.0, **lengths)
    ecal, *_, hcal, _ = ILD.calorimeters
    hcal = next(part for part in ILD.calorimeters if part.name == "hcal_barrel")
    near, far = (
        dataclasses.replace(ecal, name=name, inner_radius=radius, layers=(layers,))
        for name, radius, layers in (("near", 1000.0, first), ("far", 1400.0, second))
    )
    for order in ((near, far, hcal), (far, hcal, near)):
        before = Geometry.of(dataclasses.replace(ILD, ecal_inner_radius=1000.0, calorimeters=order)).before[0, :, 0]
        assert dict(zip([part.name for part in order], before, strict=True)) == pytest.approx(
            {"near": 0.0, "far": 6.0, "hcal_barrel": 16.0}
        )


def test_measures_of_detectors():
    of_cld, both = measures(CLD), measures(CLD, ILD)
    assert of_cld["radius of the ECAL [mm]"] == (2150.0, 2150.0)
    assert of_cld["radiation lengths of the ECAL"] == pytest.approx((22.0, 22.0))
    assert of_cld["interaction lengths of the HCAL"] == pytest.approx((5.4, 5.4), abs=0.1)
    assert both["radius of the ECAL [mm]"] == (1805.0, 2150.0)
    assert both["field [T]"] == (2.0, 3.5)
    # A preshower and the rest of an ECAL are as deep as the ECAL.
    ecal = CLD.calorimeters[0]
    front = dataclasses.replace(ecal, name="preshower", layers=(dataclasses.replace(ecal.layers[0], count=6),))
    rest = dataclasses.replace(ecal, layers=(dataclasses.replace(ecal.layers[0], count=34),))
    parts = dataclasses.replace(CLD, calorimeters=(front, rest, *CLD.calorimeters[1:]))
    assert measures(parts)["radiation lengths of the ECAL"] == pytest.approx(of_cld["radiation lengths of the ECAL"])


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
    assert (shape.sides, shape.as_good) == (sides, (sides,))
    assert shape.phase == pytest.approx(turned * 2 * np.pi / sides)
    layers = layer_range(distance_to_sides(x, y, shape.sides, shape.phase), layer if labelled else None)
    assert layers == pytest.approx((1000.0, 1100.0))


def test_cylinders_few_staves_and_hits_without_layers():
    rng = np.random.default_rng(1)
    phi, layer = rng.uniform(-np.pi, np.pi, 500), rng.integers(0, 20, 500)
    radius = 1002.5 + 5.0 * layer
    shape = barrel_shape(radius * np.cos(phi), radius * np.sin(phi), layer)
    assert (shape.sides, shape.as_good) == (0, (0,))
    x, y, layer = barrel(12, staves=[0, 3, 6, 9])
    shape = barrel_shape(x, y, layer)
    assert {4, 12} <= set(shape.as_good)
    assert math.gcd(*shape.as_good) == 4
    rng = np.random.default_rng(2)
    phi, radius = rng.uniform(-np.pi, np.pi, 500), rng.uniform(1000, 1100, 500)
    x, y = radius * np.cos(phi), radius * np.sin(phi)
    assert barrel_shape(x, y) is None
    assert barrel_shape(x, y, rng.integers(0, 20, 500)) is None
    assert barrel_shape(x[:0], y[:0]) is None


def test_single_hits_and_empty_layers_do_not_change_the_spacing():
    assert fraction_on_layers(np.array([10.0, 10.1, 20.0]), np.array([0, 0, 1])) == pytest.approx(2 / 3)
    distance = np.array([10.0, 10.0, 15.0, 15.0, 30.0, 30.0])
    assert layer_range(distance, np.array([0, 0, 1, 1, 4, 4])) == (7.5, 32.5)
    assert layer_range(distance[:2], np.array([5, 5])) == layer_range(distance[:2]) == (10.0, 10.0)


A, B = 4 + math.log(0.9), 4 + math.log(0.1)
"""Weights of hits with 90% and 10% of a shower's energy."""


@pytest.mark.parametrize(
    ("energy", "x", "mean"),
    [
        ([1.0, 1.0], [0.0, 2.0], 1.0),
        ([9.0, 1.0], [0.0, 1.0], B / (A + B)),
        ([100.0, 1.0], [0.0, 1.0], 0.0),
        ([1.0] * 100, np.arange(100.0), 49.5),
    ],
    ids=["equal hits", "logarithmic weights", "a small share does not count", "small shares only: the plain mean"],
)
def test_one_shower(energy, x, mean):
    position = np.outer(x, [1.0, 2.0, 0.0])
    barycentre = log_weighted_barycentre(np.zeros(len(energy), dtype=int), np.array(energy), position, 1)
    assert barycentre[0] == pytest.approx([mean, 2 * mean, 0.0])


LINE = np.array([[1000.0, 10.0, 0.0], [1100.0, 10.0, 100.0], [1200.0, 10.0, 200.0]])
DIAGONAL = [np.sqrt(0.5), 0.0, np.sqrt(0.5)]
PLACE = [0.0, -1800.0, 2400.0]


@pytest.mark.parametrize(
    ("energy", "position", "mean", "axis"),
    [
        ([1.0, 3.0], [[0.0, 0.0, 100.0], [40.0, 0.0, 100.0]], [30.0, 0.0, 100.0], [1.0, 0.0, 0.0]),
        ([1.0] * 3, LINE, LINE[1], DIAGONAL),
        ([1.0] * 3, LINE[::-1], LINE[1], DIAGONAL),
        ([0.1], [PLACE], PLACE, [0.0, -0.6, 0.8]),
        ([0.1] * 3, [PLACE] * 3, PLACE, [0.0, -0.6, 0.8]),
    ],
    ids=["energy-weighted", "along the spread", "outwards", "a single hit", "no spread"],
)
def test_one_cluster(energy, position, mean, axis):
    means, axes = cluster_shape(np.zeros(len(energy), dtype=int), np.array(energy), np.array(position), 1)
    np.testing.assert_allclose(means[0], mean)
    np.testing.assert_allclose(axes[0], axis, atol=1e-12)


def test_clusters_are_independent_of_each_other_and_may_be_empty():
    position = np.array([[1000.0, 0, 0], [0, 0, 500.0], [1010.0, 0, 0]])
    mean, axis = cluster_shape(np.array([0, 2, 0]), np.array([1.0, 1.0, 1.0]), position, 3)
    np.testing.assert_allclose(mean, [[1005.0, 0, 0], [0, 0, 0], [0, 0, 500.0]])
    np.testing.assert_allclose(axis, [[1.0, 0, 0], [0, 0, 1.0], [0, 0, 1.0]], atol=1e-12)
