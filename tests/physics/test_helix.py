import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.io.open import read_events
from pflow.physics.helix import length_to_cylinder, length_to_prism, propagate

CYLINDER = {"radius": 1800.0, "half_length": 2400.0}


def path(start, momentum, charge, *, b_field=3.5, n_points=96, max_turns=2.0, **cylinder):
    """Points and directions at equal distances from the start to the surface."""
    cylinder = cylinder or CYLINDER
    length = length_to_cylinder(start, momentum, charge, b_field=b_field, max_turns=max_turns, **cylinder)
    along = length[:, None] * np.linspace(0.0, 1.0, n_points)
    return propagate(start, momentum, charge, along, b_field=b_field)


def points(*arguments, **options):
    return path(*arguments, **options)[0]


def test_a_positive_particle_bends_clockwise_by_the_known_sagitta():
    # pt 10 GeV, B 3.5 T: R = 10 / (0.299792458e-3 * 3.5) = 9530.40 mm; it reaches r = 1800 mm at chord angle
    # arcsin(1800 / (2 R)) = 0.094577 below its initial direction.
    end = points([[0, 0, 0]], [[10.0, 0, 0]], [1])[0, -1]
    assert np.hypot(end[0], end[1]) == pytest.approx(1800.0)
    assert np.arctan2(end[1], end[0]) == pytest.approx(-np.arcsin(1800 / (2 * 9530.40)), abs=1e-6)
    assert end[2] == 0


def test_charge_and_field_mirror_the_path():
    positive, negative = points(np.zeros((2, 3)), [[3.0, 0, 1.0]] * 2, [1, -1])
    np.testing.assert_allclose(negative, positive * [1, -1, 1], atol=1e-9)
    np.testing.assert_allclose(points([[0, 0, 0]], [[3.0, 0, 1.0]], [-1], b_field=-3.5)[0], positive)


@pytest.mark.parametrize(("charge", "b_field"), [(0.0, 3.5), (1.0, 0.0), (np.nan, 3.5)])
def test_without_charge_or_field_the_path_is_straight(charge, b_field):
    straight = points([[100.0, 0, 0]], [[0, 2.0, 0]], [charge], b_field=b_field)[0]
    np.testing.assert_allclose(straight[:, 0], 100.0)
    assert straight[-1, 1] == pytest.approx(np.sqrt(1800**2 - 100**2))


@pytest.mark.parametrize("b_field", [1e-2, 1e-6, 1e-12])
def test_an_almost_straight_helix_meets_the_straight_path(b_field):
    curved = points([[5.0, 3.0, 1.0]], [[1e4, 2e3, 1e3]], [1], b_field=b_field)
    np.testing.assert_allclose(curved, points([[5.0, 3.0, 1.0]], [[1e4, 2e3, 1e3]], [0]), atol=100 * b_field + 1e-6)


def test_a_forward_path_ends_at_the_endcap():
    end = points([[0, 0, 10.0]], [[0.1, 0, -5.0]], [1])[0, -1]
    assert end[2] == pytest.approx(-2400)
    assert np.hypot(end[0], end[1]) < 1800


def test_a_looper_ends_after_max_turns():
    # pt 0.5 GeV at 3.5 T: R = 476.52 mm, two turns are 4 pi R long in the plane.
    length = length_to_cylinder([[0, 0, 0]], [[0.5, 0, 0]], [1], b_field=3.5, max_turns=2.0, **CYLINDER)
    assert length == pytest.approx(4 * np.pi * 476.52, rel=1e-4)


def test_the_path_stays_inside_until_its_end():
    rng = np.random.default_rng(3)
    path = points(rng.uniform(-300, 300, (500, 3)), rng.normal(0, 2.0, (500, 3)), rng.choice([-1, 1], 500))
    radius, z = np.hypot(path[..., 0], path[..., 1]), np.abs(path[..., 2])
    assert (radius <= 1800 + 1e-6).all()
    assert (z <= 2400 + 1e-6).all()
    on_surface = np.isclose(radius[:, -1], 1800) | np.isclose(z[:, -1], 2400)
    assert on_surface.mean() > 0.9  # the rest are loopers


@pytest.mark.parametrize(
    ("start", "momentum"),
    [([2000.0, 0, 0], [1.0, 0, 0]), ([0, 0, 2500.0], [1.0, 0, 0]), ([1.0, 2.0, 3.0], [0, 0, 0])],
    ids=["outside the barrel", "behind the endcap", "no momentum"],
)
def test_a_path_of_length_zero_stays_at_its_start(start, momentum):
    np.testing.assert_array_equal(points([start], [momentum], [1])[0, -1], start)


def test_the_direction_is_the_tangent_of_the_path():
    rng = np.random.default_rng(5)
    start, momentum, charge = rng.uniform(-9, 9, (50, 3)), rng.normal(0, 9.0, (50, 3)), rng.choice([-1, 0, 1], 50)
    position, direction = path(start, momentum, charge, n_points=2001)
    step = position[:, -1] - position[:, -2]
    np.testing.assert_allclose(direction[:, -1], step / np.linalg.norm(step, axis=1, keepdims=True), atol=5e-3)


def test_tracks_end_at_the_simulated_entry_into_the_calorimeter(sample_dir):
    events = read_events(sample_dir / "zqq_test_small.root")
    tracks = ak.flatten(events.tracks)
    momentum, entry = jagged.vectors(tracks.momentum), jagged.vectors(tracks.calo_position)
    detector = events.detector
    cylinder = {"radius": detector.ecal_inner_radius, "half_length": detector.ecal_inner_z}
    reached = points(
        np.zeros_like(momentum), momentum, ak.to_numpy(tracks.charge), b_field=detector.b_field, **cylinder
    )
    hard = np.isfinite(entry).all(axis=1) & (np.linalg.norm(momentum, axis=1) > 2.0)
    assert hard.sum() > 30
    assert np.median(np.linalg.norm(reached[hard, -1] - entry[hard], axis=1)) < 20.0


PRISM = {"b_field": 2.0, "apothem": 2150.0, "half_length": 2307.0}


def helices(n):
    rng = np.random.default_rng(7)
    start, momentum = rng.normal(0, 10.0, (n, 3)), rng.normal(0, 1.0, (n, 3)) * rng.uniform(0.3, 3, (n, 1))
    return start, momentum, rng.choice([-1.0, 1.0], n)


def depth(position, sides):
    """Largest distance from the axis along the normals, or along z in the same units: 1 on the surface."""
    phi = 2 * np.pi / sides * np.arange(sides)
    across = (position[..., :2] @ np.stack([np.cos(phi), np.sin(phi)])).max(axis=-1)
    return np.maximum(across / PRISM["apothem"], np.abs(position[..., 2]) / PRISM["half_length"])


@pytest.mark.parametrize("sides", [4, 8, 12])
def test_a_path_stays_inside_a_prism_until_it_ends_on_its_surface(sides):
    start, momentum, charge = helices(300)
    length = length_to_prism(start, momentum, charge, sides=sides, **PRISM)
    along = length[:, None] * np.linspace(0.0, 1.0, 400)
    position, _ = propagate(start, momentum, charge, along, b_field=2.0)
    np.testing.assert_allclose(depth(position[:, -1], sides), 1.0)
    assert depth(position[:, :-1], sides).max() < 1.0


def test_a_prism_of_many_sides_is_a_cylinder():
    start, momentum, charge = helices(300)
    cylinder = length_to_cylinder(
        start, momentum, charge, b_field=2.0, radius=2150.0, half_length=2307.0, max_turns=np.inf
    )
    prism = length_to_prism(start, momentum, charge, sides=2000, **PRISM)
    different = np.abs(prism / cylinder - 1) > 1e-3  # paths tangent to the barrel
    assert different.mean() < 0.02


def test_a_looper_across_the_axis_never_leaves_a_prism():
    assert length_to_prism([[0, 0, 0]], [[0.1, 0, 0]], [1], sides=12, **PRISM) == np.inf


@pytest.mark.parametrize(
    ("start", "momentum"), [([2200.0, 0, 0], [1.0, 0, 0]), ([0, 0, 2400.0], [1.0, 0, 0]), ([0, 0, 0], [0, 0, 0])]
)
def test_a_particle_outside_a_prism_or_at_rest_has_no_path(start, momentum):
    assert length_to_prism([start], [momentum], [1], sides=12, **PRISM) == 0.0
