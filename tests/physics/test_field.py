import numpy as np
import pytest

from pflow.physics.field import field_from_momenta, field_from_steps
from pflow.physics.kinematics import GEV_PER_TESLA_MM


def test_tracks_against_particles():
    pt = np.array([1.0, 2.0, 5.0, 10.0])
    found = field_from_momenta(pt, pt / 3.5)
    assert found is not None
    assert (found.b_field, found.uncertainty, found.count) == (pytest.approx(3.5), pytest.approx(0.0, abs=1e-12), 4)


def test_outliers_do_not_matter():
    rng = np.random.default_rng(0)
    ratio = 2.0 * rng.normal(1, 0.01, 201)
    ratio[:20] *= 3
    found = field_from_momenta(ratio, np.ones(201))
    assert found is not None
    assert found.b_field == pytest.approx(2.0, rel=0.005)
    assert 0.0005 < found.uncertainty < 0.005


@pytest.mark.parametrize("charge", [-1, 1])
@pytest.mark.parametrize("b_field", [0.5, 2.0, 4.0])
def test_steps_on_circles(b_field, charge):
    pt = np.array([0.5, 1.0, 3.0, 20.0])
    radius = pt / (GEV_PER_TESLA_MM * b_field)
    begin, end = np.array([0.3, -1.0, 2.0, 3.0]), np.array([100.0, 300.0, 50.0, 700.0]) / radius * charge
    angles = (begin, begin + end)
    start, stop = (np.stack([radius * np.sin(a), -radius * np.cos(a)], axis=1) * charge for a in angles)
    momenta = [np.stack([pt * np.cos(a), pt * np.sin(a)], axis=1) for a in angles]
    found = field_from_steps(start, stop, *momenta)
    assert found is not None
    assert found.b_field == pytest.approx(b_field)


def test_too_few_values_tell_nothing():
    assert field_from_momenta(np.ones(2), np.ones(2)) is None
    assert field_from_momenta(np.ones(4), np.zeros(4)) is None
    nowhere = np.zeros((5, 2))
    assert field_from_steps(nowhere, nowhere, nowhere, nowhere) is None
