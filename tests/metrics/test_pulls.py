import numpy as np

from pflow.event.build import make_particles
from pflow.metrics.match import Matches
from pflow.metrics.pulls import covariances, pulls
from pflow.physics.kinematics import four_momentum_covariance


def pairs(n: int) -> Matches:
    return Matches(truth=np.arange(n), reco=np.arange(n), cost=np.zeros(n))


def test_pulls_are_errors_in_units_of_what_is_stated(photons):
    # Along x: rising polar angle is towards -z, the azimuth towards +y.
    turned = [np.cos(0.004), np.sin(0.004), 0.0]
    lowered = [np.cos(0.002), 0.0, -np.sin(0.002)]
    truth = photons([10.0, 10.0, 10.0], [[1, 0, 0]] * 3, [3])
    reco = photons([10.0 * np.exp(0.06), 10.0, 10.0], [[1, 0, 0], turned, lowered], [3])
    stored = four_momentum_covariance(
        reco.energy, np.zeros(3), reco.momentum / reco.energy[:, None], np.full(3, 0.03), np.full(3, 0.002)
    )
    records = make_particles(
        pdg=[[22] * 3],
        charge=[[0] * 3],
        energy=[reco.energy.tolist()],
        px=[reco.momentum[:, 0].tolist()],
        py=[reco.momentum[:, 1].tolist()],
        pz=[reco.momentum[:, 2].tolist()],
        covariance=[stored.tolist()],
    )
    found = pulls(truth, reco, covariances(records), pairs(3))
    np.testing.assert_allclose(found, [[2, 0, 0], [0, 0, 2], [0, 1, 0]], atol=2e-3)


def test_particles_without_covariances_have_no_pulls():
    records = make_particles(pdg=[[22]], charge=[[0]], energy=[[1.0]], px=[[1.0]], py=[[0.0]], pz=[[0.0]])
    assert covariances(records) is None


def test_a_pair_without_uncertainty_has_no_finite_pulls(photons):
    one = photons([10.0], [[1, 0, 0]], [1])
    assert not np.isfinite(pulls(one, one, np.zeros((1, 4, 4)), pairs(1))).any()
