from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pflow import kinematics

MOMENTUM = st.floats(-100.0, 100.0).filter(lambda p: abs(p) > 1e-3)
SIGN = st.sampled_from([-1.0, 1.0])


def array(*values: float) -> np.ndarray:
    return np.array(values)


def test_energy_of_a_pythagorean_momentum() -> None:
    assert kinematics.energy(array(1.0), array(2.0), array(2.0), array(4.0)) == 5.0  # 1 + 4 + 4 + 16


def test_transverse_momentum_of_a_known_circle() -> None:
    # 1 GeV in 1 T bends with R = 1 / 0.299792458 m, the textbook's 3.34 m.
    np.testing.assert_allclose(kinematics.transverse_momentum(array(1 / 3335.6409519815204), 1.0), 1.0)


def test_transverse_momentum_grows_with_charge_and_field() -> None:
    once = kinematics.transverse_momentum(array(1e-3), 1.0)
    np.testing.assert_allclose(kinematics.transverse_momentum(array(-1e-3), -3.0, 2.0), 6 * once)


def test_a_straight_track_has_infinite_momentum() -> None:
    assert kinematics.transverse_momentum(array(0.0), 3.5) == np.inf


def test_momentum_of_a_track_along_y() -> None:
    px, py, pz = kinematics.momentum_from_track(array(-0.299792458e-3), array(np.pi / 2), array(0.5), 2.0)
    np.testing.assert_allclose([px, py, pz], [[0.0], [2.0], [1.0]], atol=1e-12)


@given(MOMENTUM, MOMENTUM, MOMENTUM, SIGN)
def test_track_parameters_are_the_inverse_of_the_momentum(px: float, py: float, pz: float, charge: float) -> None:
    omega, phi, tan_lambda = kinematics.track_from_momentum(array(px), array(py), array(pz), array(charge), 3.5)
    back = kinematics.momentum_from_track(omega, phi, tan_lambda, 3.5)
    np.testing.assert_allclose(np.ravel(back), [px, py, pz], rtol=1e-9, atol=1e-9)
    assert np.sign(omega) == charge


def test_a_track_along_the_axis_has_no_curvature_to_speak_of() -> None:
    omega, _, tan_lambda = kinematics.track_from_momentum(array(0.0), array(0.0), array(1.0), array(1.0), 3.5)
    assert np.isinf(omega)
    assert np.isinf(tan_lambda)


def propagated(position: np.ndarray, momentum: np.ndarray, charge: float, b_field: float, length: float) -> np.ndarray:
    """Position and momentum after a path in the transverse plane, by small steps of dp/dt = q v x B."""
    steps = 20_000
    for _ in range(steps):
        turn = -0.299792458e-3 * charge * b_field / np.hypot(*momentum) * length / steps
        half = np.array([[np.cos(turn / 2), -np.sin(turn / 2)], [np.sin(turn / 2), np.cos(turn / 2)]])
        momentum = half @ momentum
        position = position + momentum / np.hypot(*momentum) * length / steps
        momentum = half @ momentum
    return np.concatenate([position, momentum])


@pytest.mark.parametrize("charge", [-2.0, -1.0, 1.0])
@pytest.mark.parametrize("impact", [0.0, 15.0, -15.0])
@pytest.mark.parametrize("b_field", [3.5, -2.0])
def test_a_track_is_followed_back_to_its_perigee(charge: float, impact: float, b_field: float) -> None:
    momentum = np.array([1.0, 0.4])
    perigee = impact * np.array([-0.4, 1.0]) / np.hypot(1.0, 0.4)  # across the momentum
    x, y, px, py = propagated(perigee, momentum, charge, b_field, 800.0)
    found = kinematics.momentum_at_perigee(array(x), array(y), array(px), array(py), array(charge), b_field)
    np.testing.assert_allclose(np.ravel(found), momentum, rtol=1e-6)


@pytest.mark.parametrize(
    ("x", "px", "charge"),
    [(1800.0, 1.0, 0.0), (1800.0, 0.0, 1.0), (np.nan, 1.0, 1.0)],
    ids=["neutral", "no transverse momentum", "unknown position"],
)
def test_a_momentum_that_cannot_be_followed_back_stays(x: float, px: float, charge: float) -> None:
    found = kinematics.momentum_at_perigee(array(x), array(5.0), array(px), array(0.0), array(charge), 3.5)
    np.testing.assert_array_equal(np.ravel(found), [px, 0.0])


def test_angles_worked_out_by_hand() -> None:
    a = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 2.0], [1.0, 1.0, 0.0]])
    b = np.array([[0.0, 3.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 0.0, 5.0], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(kinematics.angle_between(a, b), [np.pi / 2, np.pi, 0.0, np.pi / 4])


@pytest.mark.parametrize("angle", [1e-9, 1e-5, np.pi - 1e-9])
def test_angles_near_0_and_pi_keep_their_digits(angle: float) -> None:
    a, b = np.array([1.0, 0.0, 0.0]), np.array([np.cos(angle), np.sin(angle), 0.0])
    np.testing.assert_allclose(kinematics.angle_between(a, b), angle, rtol=1e-6)


def test_a_null_vector_makes_no_angle() -> None:
    assert kinematics.angle_between(np.zeros(3), np.array([1.0, 0.0, 0.0])) == 0.0
