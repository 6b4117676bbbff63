import numpy as np

from pflow.physics.pdg import CLASSES
from pflow.tokens.uncertainty import Curve, UncertaintyCalibration

PHOTON = CLASSES.index("photon")
DOUBLED = Curve((np.log(0.1),), (np.log(2.0),))


def test_a_factor_is_linear_in_the_logarithms_and_constant_beyond():
    curve = Curve((np.log(0.01), np.log(0.1)), (np.log(1.0), np.log(4.0)))
    sigma = np.array([0.001, 0.01, np.sqrt(0.001), 0.1, 1.0, 0.0])
    calibration = UncertaintyCalibration(energy={"photon": curve, "muon": DOUBLED})
    calibrated, _ = calibration.apply(sigma, sigma, np.full(len(sigma), PHOTON))
    np.testing.assert_allclose(calibrated, [0.001, 0.01, 2.0 * np.sqrt(0.001), 0.4, 4.0, 0.0])


def test_each_class_and_quantity_has_its_own_curve():
    calibration = UncertaintyCalibration(energy={"photon": DOUBLED})
    sigma, classes = np.array([0.1, 0.1]), np.array([PHOTON, PHOTON + 1])
    energy, direction = calibration.apply(sigma, sigma, classes)
    np.testing.assert_allclose(energy, [0.2, 0.1])
    np.testing.assert_allclose(direction, sigma)
    np.testing.assert_allclose(sigma, 0.1)


def test_charged_particles_without_a_track_have_curves_of_their_own():
    quadrupled = Curve((np.log(0.1),), (np.log(4.0),))
    calibration = UncertaintyCalibration(
        energy={"charged_hadron": DOUBLED, "charged_hadron_without_track": quadrupled, "electron": DOUBLED}
    )
    names = ("charged_hadron", "charged_hadron", "electron", "photon")
    classes, by_track = np.array([CLASSES.index(name) for name in names]), np.array([True, False, False, False])
    sigma = np.full(4, 0.1)
    energy, _ = calibration.apply(sigma, sigma, classes, by_track)
    np.testing.assert_allclose(energy, [0.2, 0.4, 0.2, 0.1])  # without a curve of its own: the class's
    energy, _ = calibration.apply(sigma, sigma, classes)
    np.testing.assert_allclose(energy, [0.2, 0.2, 0.2, 0.1])
