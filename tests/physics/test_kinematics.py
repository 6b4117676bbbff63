import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflow.physics import kinematics
from pflow.physics.detector import load_detector
from pflow.physics.kinematics import length_to_cylinder, length_to_prism, propagate

MOMENTUM = st.floats(-100.0, 100.0).filter(lambda p: abs(p) > 1e-3)
SIGN = st.sampled_from([-1.0, 1.0])


def array(*values: float) -> np.ndarray:
    return np.array(values)


def test_the_radius_of_curvature_at_1_gev_in_1_t():
    px, py, pz = kinematics.momentum_from_track(array(1 / 3335.6409519815204), array(0.0), array(2.0), 1.0)
    assert [*px, *py, *pz] == pytest.approx([1.0, 0.0, 2.0])


@given(MOMENTUM, MOMENTUM, MOMENTUM, SIGN)
def test_track_parameters_are_the_inverse_of_the_momentum(px, py, pz, charge):
    omega, phi, tan_lambda = kinematics.track_from_momentum(array(px), array(py), array(pz), array(charge), 3.5)
    back = kinematics.momentum_from_track(omega, phi, tan_lambda, 3.5)
    np.testing.assert_allclose(np.ravel(back), [px, py, pz], rtol=1e-9, atol=1e-9)
    assert np.sign(omega) == charge


def propagated(position: np.ndarray, momentum: np.ndarray, charge: float, b_field: float, length: float) -> np.ndarray:
    """Position and momentum after a path in the transverse plane, by small steps of dp/dt = q v x B."""
    steps = 2_000
    for _ in range(steps):
        turn = -0.299792458e-3 * charge * b_field / np.hypot(*momentum) * length / steps
        half = np.array([[np.cos(turn / 2), -np.sin(turn / 2)], [np.sin(turn / 2), np.cos(turn / 2)]])
        momentum = half @ momentum
        position = position + momentum / np.hypot(*momentum) * length / steps
        momentum = half @ momentum
    return np.concatenate([position, momentum])


@pytest.mark.parametrize("charge", [-2.0, 1.0])
@pytest.mark.parametrize("impact", [0.0, -15.0])
@pytest.mark.parametrize("b_field", [3.5, -2.0])
@pytest.mark.parametrize("momentum", [(1.0, 0.4), (-0.4, 1.0)])  # the second one's circles pass azimuth pi
def test_a_track_is_followed_back_to_its_perigee(charge, impact, b_field, momentum):
    perigee = impact * np.array([-momentum[1], momentum[0]]) / np.hypot(*momentum)  # across the momentum
    x, y, px, py = propagated(perigee, np.array(momentum), charge, b_field, 800.0)
    helix = (array(value) for value in (x, y, 500.0, px, py, np.hypot(px, py), charge))
    d0, z0, *at_perigee = kinematics.perigee(*helix, b_field=b_field)
    np.testing.assert_allclose(np.ravel(at_perigee), momentum, rtol=1e-6)
    np.testing.assert_allclose([*abs(d0), *z0], [abs(impact), -300.0], atol=1e-2)


@pytest.mark.parametrize(
    ("x", "px", "charge"),
    [(1800.0, 1.0, 0.0), (1800.0, 0.0, 1.0), (np.nan, 1.0, 1.0)],
    ids=["neutral", "no transverse momentum", "unknown position"],
)
def test_a_momentum_without_a_perigee_stays(x, px, charge):
    helix = (array(value) for value in (x, 5.0, 0.0, px, 0.0, 1.0, charge))
    np.testing.assert_array_equal(np.ravel(kinematics.perigee(*helix, b_field=3.5)), [0.0, 0.0, px, 0.0])


def test_angles_are_precise_near_0_and_pi_too():
    a = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [1.0, 1.0, 0.0]])
    b = np.array([[0.0, 3.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 0.0, 5.0], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(kinematics.angle_between(a, b), [np.pi / 2, np.pi, 0.0, np.pi / 4])
    for angle in (1e-9, 1e-5, np.pi - 1e-9):
        b = np.array([np.cos(angle), np.sin(angle), 0.0])
        np.testing.assert_allclose(kinematics.angle_between(a[0], b), angle, rtol=1e-6)


def test_points_are_at_the_calorimeter_a_little_before_it_to_three_times_as_far():
    detector = load_detector("cld")
    r, z = np.array([[0.97, 0.0], [0.99, 0.0], [0.0, -0.97], [0.0, -0.99], [2.9, 1.0], [3.1, 1.0], [1.0, 3.1]]).T
    points = np.stack([0 * r, -r * detector.ecal_inner_radius, z * detector.ecal_inner_z], axis=1)
    assert kinematics.at_calorimeter(points, detector).tolist() == [False, True, False, True, True, False, False]


def covariance(*particle) -> np.ndarray:
    """Of one particle's energy, mass, direction, and relative errors of energy and direction [10]."""
    return kinematics.four_momentum_covariance(*map(np.asarray, particle))


@pytest.mark.parametrize(
    ("particle", "expected"),
    [
        # E = p = 10 GeV, 5% and 0.01 rad: dE = dpz = 0.5 GeV, dpx = dpy = 0.1 GeV
        ((10.0, 0.0, (0.0, 0.0, 1.0), 0.05, 0.01), {"xx": 0.01, "yy": 0.01, "zz": 0.25, "zt": 0.25, "tt": 0.25}),
        # E = 5, m = 3, p = 4 GeV: dE = 0.5, dp = E / p dE = 0.625 GeV; across: 4 * 0.1 = 0.4 GeV
        ((5.0, 3.0, (1.0, 0.0, 0.0), 0.1, 0.1), {"xx": 0.390625, "yy": 0.16, "zz": 0.16, "xt": 0.3125, "tt": 0.25}),
        # n = (0.6, 0.8, 0), E = 10 GeV, dE = 1 GeV, across 0: cov(px, py) = 0.48, cov(py, E) = 0.8 GeV^2
        ((10.0, 0.0, (0.6, 0.8, 0.0), 0.1, 0.0), {"xx": 0.36, "xy": 0.48, "yy": 0.64, "xt": 0.6, "yt": 0.8, "tt": 1.0}),
        # E = 0.9, m = 1 GeV and 10%: at rest, because one sigma above is still below the mass
        ((0.9, 1.0, (0.0, 0.0, 1.0), 0.1, 0.1), {"tt": 0.0081}),
    ],
    ids=["massless, along z", "massive, along x", "slanted", "energy below the mass"],
)
def test_covariance(particle, expected):
    elements = dict(zip(kinematics.COVARIANCE, covariance(*particle), strict=True))
    assert elements == pytest.approx(dict.fromkeys(kinematics.COVARIANCE, 0.0) | expected)


def test_covariance_agrees_with_random_particles_and_is_finite_near_rest():
    rng = np.random.default_rng(3)
    n = np.array([2.0, -1.0, 2.0]) / 3
    u = np.array([1.0, 2.0, 0.0]) / np.sqrt(5)
    energy = 20.0 * (1 + 0.02 * rng.normal(size=100_000))
    a, b = 0.02 * rng.normal(size=(2, 100_000, 1))
    direction = n + a * u + b * np.cross(n, u)
    p = np.sqrt(energy**2 - 0.93827**2)
    expected = np.cov(np.column_stack([p[:, None] * direction, energy]).T)[np.tril_indices(4)]
    np.testing.assert_allclose(covariance(20.0, 0.93827, n, 0.02, 0.02), expected, atol=0.004)
    # E = m = 1 GeV and 10%: E / p has no limit; one sigma above, p = sqrt(1.1^2 - 1) = sqrt(0.21) GeV
    for energy in (1.0, 1.0 + 1e-12):
        elements = covariance(energy, 1.0, (0.0, 0.0, 1.0), 0.1, 0.1)
        assert elements[[5, 8, 9]] == pytest.approx([0.21, 0.1 * np.sqrt(0.21), 0.01])


@pytest.mark.parametrize("direction", [[0.6, 0.0, 0.8], [-0.48, 0.64, -0.6], [0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])
def test_tangent_basis_is_orthonormal_and_right_handed(direction):
    n = np.array(direction)
    theta, phi = kinematics.tangent_basis(n)
    np.testing.assert_allclose(np.stack([n, theta, phi]) @ np.stack([n, theta, phi]).T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.cross(n, theta), phi, atol=1e-12)


CYLINDER = {"radius": 1800.0, "half_length": 2400.0}


def path(start, momentum, charge, *, b_field=3.5, n_points=96, max_turns=2.0, **cylinder):
    """Points and directions at equal distances from the start to the surface."""
    cylinder = cylinder or CYLINDER
    length = length_to_cylinder(start, momentum, charge, b_field=b_field, max_turns=max_turns, **cylinder)
    along = length[:, None] * np.linspace(0.0, 1.0, n_points)
    return propagate(start, momentum, charge, along, b_field=b_field)


def points(*arguments, **options):
    return path(*arguments, **options)[0]


def test_a_positive_particle_bends_clockwise_and_others_mirror_it():
    # pt 10 GeV, B 3.5 T: R = 10 / (0.299792458e-3 * 3.5) = 9530.40 mm; it reaches r = 1800 mm at chord angle
    # arcsin(1800 / (2 R)) = 0.094577 below its initial direction.
    end = points([[0, 0, 0]], [[10.0, 0, 0]], [1])[0, -1]
    assert np.hypot(end[0], end[1]) == pytest.approx(1800.0)
    assert np.arctan2(end[1], end[0]) == pytest.approx(-np.arcsin(1800 / (2 * 9530.40)), abs=1e-6)
    assert end[2] == 0
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


def test_a_path_stays_inside_until_an_end_or_max_turns():
    end = points([[0, 0, 10.0]], [[0.1, 0, -5.0]], [1])[0, -1]
    assert end[2] == pytest.approx(-2400)
    assert np.hypot(end[0], end[1]) < 1800
    # pt 0.5 GeV at 3.5 T: R = 476.52 mm, two turns are 4 pi R long in the plane.
    length = length_to_cylinder([[0, 0, 0]], [[0.5, 0, 0]], [1], b_field=3.5, max_turns=2.0, **CYLINDER)
    assert length == pytest.approx(4 * np.pi * 476.52, rel=1e-4)
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


PRISM = {"b_field": 2.0, "apothem": 2150.0, "half_length": 2307.0}


def helices():
    rng = np.random.default_rng(7)
    start, momentum = rng.normal(0, 10.0, (300, 3)), rng.normal(0, 1.0, (300, 3)) * rng.uniform(0.3, 3, (300, 1))
    return start, momentum, rng.choice([-1.0, 1.0], 300)


def depth(position, sides):
    """Largest distance from the axis along the normals, or along z in the same units: 1 on the surface."""
    phi = 2 * np.pi / sides * np.arange(sides)
    across = (position[..., :2] @ np.stack([np.cos(phi), np.sin(phi)])).max(axis=-1)
    return np.maximum(across / PRISM["apothem"], np.abs(position[..., 2]) / PRISM["half_length"])


@pytest.mark.parametrize("sides", [4, 8, 12])
def test_a_path_stays_inside_a_prism_until_it_ends_on_its_surface(sides):
    start, momentum, charge = helices()
    length = length_to_prism(start, momentum, charge, sides=sides, **PRISM)
    along = length[:, None] * np.linspace(0.0, 1.0, 400)
    position, _ = propagate(start, momentum, charge, along, b_field=2.0)
    np.testing.assert_allclose(depth(position[:, -1], sides), 1.0)
    assert depth(position[:, :-1], sides).max() < 1.0


@pytest.mark.parametrize(
    ("start", "momentum", "length"),
    [
        ([0, 0, 0], [0.1, 0, 0], np.inf),
        ([0, 0, 5.0], [0.1, 0, -0.0], np.inf),
        ([2200.0, 0, 0], [1.0, 0, 0], 0.0),
        ([0, 0, 2400.0], [1.0, 0, 0], 0.0),
        ([0, 0, 0], [0, 0, 0], 0.0),
    ],
    ids=["a looper across the axis", "with a negative zero", "outside the barrel", "behind the endcap", "at rest"],
)
def test_a_particle_that_never_leaves_a_prism_or_is_outside(start, momentum, length):
    assert length_to_prism([start], [momentum], [1], sides=12, **PRISM) == length
