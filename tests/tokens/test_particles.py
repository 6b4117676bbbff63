import awkward as ak
import numpy as np
import pytest
import torch

from pflow.errors import ConfigError
from pflow.physics.pdg import CLASSES
from pflow.tokens.particles import (
    CHARGES,
    Calibration,
    Curve,
    PdgVocabulary,
    Response,
    charge_index,
    physical_particles,
)
from pflow.tokens.tokens import ParticleTokens


def one(tokeniser, *, code, charge=1, energy=10.0, direction=(0.0, 0.0, 1.0), options=None, **more):
    """An event of one particle, decoded; `more` are fields of `ParticleTokens`, `options` go to `Tokeniser.decode`."""
    index, _ = tokeniser.pdg.encode([code])
    tokens = ParticleTokens(
        counts=np.array([1]),
        charge=np.array([charge + 1]),
        pdg=index,
        energy=tokeniser.energy.apply(np.array([[energy]]))[0],
        direction=np.array([direction]),
        **{name: np.array(values) for name, values in more.items()},
    )
    return tokeniser.decode(tokens, **(options or {}))


def test_energy_momentum_and_mass_belong_together(tokeniser):
    """An energy below the mass is raised to a particle nearly at rest; a null direction is upward."""
    particle = one(tokeniser, code=211, energy=0.5, direction=(1.0, 2.0, 2.0)).particles[0, 0]
    p = np.sqrt(sum(float(particle.momentum[key]) ** 2 for key in ("px", "py", "pz")))
    assert particle.energy == pytest.approx(0.5, rel=1e-5)
    assert particle.energy**2 == pytest.approx(p**2 + particle.mass**2, rel=1e-5)
    assert particle.momentum.py == pytest.approx(2 / 3 * p, rel=1e-5)
    particle = one(tokeniser, code=321, energy=0.2, direction=(0.0, 3.0, 0.0)).particles[0, 0]
    assert [particle.mass, particle.energy] == pytest.approx([0.49368] * 2, rel=1e-4)
    assert particle.momentum.py == pytest.approx(0.49368e-3, rel=1e-3)
    particle = one(tokeniser, code=22, charge=0, direction=(0.0, 0.0, 0.0)).particles[0, 0]
    assert particle.momentum.pz == pytest.approx(10.0, rel=1e-5)


def test_event_numbers_and_flags_are_kept(tokeniser):
    result = one(tokeniser, code=22, charge=0, options={"event": [41], "flags": [2]})
    assert (result.event.tolist(), result.flags.tolist()) == ([41], [2])
    result = one(tokeniser, code=22, charge=0)
    assert (result.event.tolist(), result.flags.tolist()) == ([0], [0])
    assert np.isnan(result.particles.score[0, 0])
    assert not {"scores", "covariance"} & set(result.particles.fields)


def test_scores_are_probabilities_of_the_code_given_and_of_each_class(tokeniser):
    assert tokeniser.pdg.codes == (22, 211, 321)  # the last two are charged hadrons
    given = [[0.1, 0.7, 0.2]]
    particles = one(tokeniser, code=321, pdg_probability=given).particles
    assert str(particles.scores.type) == "1 * var * 5 * float32"
    assert particles.scores[0, 0].to_list() == pytest.approx([0.9, 0.0, 0.1, 0.0, 0.0])
    assert particles.score[0, 0] == pytest.approx(0.2)
    assert one(tokeniser, code=321, pdg_probability=given, score=[0.5]).particles.score[0, 0] == pytest.approx(0.5)


def test_covariance_of_the_four_momentum(tokeniser):
    # Along z: var(px) = (10 * 0.01)^2, var(pz) = cov(pz, E) = var(E) = (10 * 0.05)^2
    made = one(tokeniser, code=22, charge=0, energy_sigma=[0.05], direction_sigma=[0.01]).particles
    assert str(made.covariance.type) == "1 * var * 10 * float32"
    expected = [0.01, 0.0, 0.01, 0.0, 0.0, 0.25, 0.0, 0.0, 0.25, 0.25]
    assert made.covariance[0, 0].to_list() == pytest.approx(expected, rel=1e-5, abs=1e-9)


DOUBLED = Curve((np.log(0.1),), (np.log(2.0),))


def test_a_calibration_rescales_energies_and_covariances_of_photons_alone(tokeniser):
    response = Response((np.log(5.0), np.log(20.0)), (np.log(0.9), np.log(0.7)))
    doubled = {"photon": DOUBLED}
    calibration = Calibration(energy=doubled, direction=doubled, photon_response=response)
    sigmas = {"energy_sigma": [0.05], "direction_sigma": [0.01], "options": {"calibration": calibration}}
    photon, hadron = (one(tokeniser, code=code, charge=0, **sigmas).particles[0, 0] for code in (22, 211))
    middle = 10.0 * np.sqrt(0.9 * 0.7)  # half way between the two points
    assert photon.energy == pytest.approx(middle, rel=1e-6)
    assert photon.momentum.pz == pytest.approx(middle, rel=1e-6)
    assert photon.covariance[[0, 9]].to_list() == pytest.approx([(0.02 * middle) ** 2, (0.1 * middle) ** 2], rel=1e-5)
    assert hadron.energy == pytest.approx(10.0, rel=1e-6)
    assert hadron.covariance[9] == pytest.approx(0.25, rel=1e-5)


def test_particles_belong_to_their_events(tokeniser):
    n, n_codes = 2, len(tokeniser.pdg)
    tokens = ParticleTokens(
        counts=np.array([0, n, 0]),
        charge=np.ones(n, int),
        pdg=np.zeros(n, int),
        energy=np.zeros(n),
        direction=np.ones((n, 3)),
        pdg_probability=np.arange(n * n_codes).reshape(n, n_codes),
        energy_sigma=np.array([0.1, np.nan]),
        direction_sigma=np.full(n, 0.1),
    )
    assert tokens.finite().tolist() == [True, False, True]
    particles = tokeniser.decode(tokens).particles
    assert particles.score.to_list() == [[], [0.0, n_codes], []]
    assert ak.num(particles.scores).to_list() == ak.num(particles.covariance).to_list() == [0, 2, 0]


@pytest.mark.parametrize("as_given", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize(
    ("code", "predicted", "pdg", "charge"),
    [
        *((11, -1, 11, -1), (11, 1, -11, 1), (211, 1, 211, 1), (211, -1, -211, -1), (2212, -1, -2212, -1)),
        *((22, 0, 22, 0), (22, 1, 22, 0), (130, -1, 130, 0)),  # a neutral code stays neutral
        *((11, 0, 11, -1), (211, 0, 211, 1)),  # a charged code without a charge is the particle
    ],
)
def test_code_and_charge_are_made_consistent(as_given, code, predicted, pdg, charge):
    index, energy, direction = (as_given(np.array(values)) for values in ([[0], [predicted + 1]], [1.0], [[0.0, 0, 1]]))
    vocabulary = PdgVocabulary(codes=(code,), counts=(1,))
    columns = physical_particles(
        pdg=index[0], charge=index[1], energy=energy, direction=direction, vocabulary=vocabulary
    )
    assert [columns[name].tolist() for name in ("pdg", "charge")] == [[pdg], [charge]]


def test_a_factor_is_linear_in_the_logarithms_and_constant_beyond():
    curve = Curve((np.log(0.01), np.log(0.1)), (np.log(1.0), np.log(4.0)))
    given = [0.001, 0.01, np.sqrt(0.001), 0.1, 1.0, 0.0]
    sigma, photons = np.array(given), np.full(len(given), CLASSES.index("photon"))
    energy, direction = Calibration(energy={"photon": curve, "muon": DOUBLED}).apply(sigma, sigma, photons)
    np.testing.assert_allclose(energy, [0.001, 0.01, 2.0 * np.sqrt(0.001), 0.4, 4.0, 0.0])
    np.testing.assert_allclose(direction, given)


@pytest.mark.parametrize(
    ("energy", "by_track", "expected"),
    [
        (None, None, [2, 2, 2, 2, 1]),  # all by a track
        (None, [True, False, True, False, True], [2, 4, 2, 2, 1]),  # a muon without a track has the curve of muons
        ([10.0, 100.0, 100.0, 200.0, 200.0], [True, False, True, False, True], [2, 4, 4, 2, 1]),
    ],
)
def test_charged_particles_have_factors_by_track_and_with_one_by_energy_as_well(energy, by_track, expected):
    curves = dict.fromkeys(("charged_hadron", "muon"), DOUBLED)
    calibration = Calibration(
        energy={**curves, "charged_hadron_without_track": Curve((np.log(0.1),), (np.log(4.0),))},
        track_energy=Response((np.log(50.0), np.log(200.0)), (np.log(1.0), np.log(4.0))),
    )
    names = ("charged_hadron", "charged_hadron", "muon", "muon", "photon")
    classes, sigma = np.array([CLASSES.index(name) for name in names]), np.full(5, 0.1)
    calibrated, direction = calibration.apply(
        sigma, sigma, classes, None if by_track is None else np.array(by_track), energy and np.array(energy)
    )
    np.testing.assert_allclose(calibrated, 0.1 * np.array(expected))
    np.testing.assert_allclose(direction, sigma)


SEEN = PdgVocabulary.from_counts({211: 50, 321: 7, 22: 90, 130: 4, 2112: 9})


def test_charges_are_indexed_by_their_sign():
    assert [CHARGES[i] for i in charge_index([-1.0, 0.0, 1.0, 2.0, -3.0])] == [-1, 0, 1, 1, -1]
    with pytest.raises(ConfigError, match="not a finite number"):
        charge_index([np.nan])


def test_decode_inverts_encode_and_unseen_codes_get_their_class():
    index, unknown = SEEN.encode([[22, -321], [2112, 211]])
    assert not unknown.any()
    assert SEEN.decode(index).tolist() == [[22, 321], [2112, 211]]
    index, unknown = SEEN.encode([2212, 310, 22])
    assert SEEN.decode(index).tolist() == [211, 2112, 22]
    assert unknown.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("codes", "unseen", "stand_in"),
    [
        ((22, 211), 13, 211),
        ((22, 211), 11, 211),
        ((11, 22), 13, 11),
        ((13, 22), 11, 13),
        ((22,), 2112, 22),
        ((11, 130), 22, 130),
        ((22, 130), 211, 130),
        ((211, 321), 2212, 211),  # of equally frequent codes the smallest
    ],
)
def test_a_class_that_training_never_showed_goes_to_the_next_one(codes, unseen, stand_in):
    vocabulary = PdgVocabulary.from_counts(dict.fromkeys(codes, 1))
    assert vocabulary.decode(vocabulary.encode([unseen])[0]).tolist() == [stand_in]


def test_codes_are_sorted_and_coarse_vocabularies_know_all():
    vocabulary = PdgVocabulary.from_counts({-211: 2, 211: 3, 22: 1})
    assert (vocabulary.codes, vocabulary.counts) == ((22, 211), (1, 5))
    vocabulary = PdgVocabulary.from_counts({22: 3, 321: 1, -2212: 1}, coarse=True)
    assert vocabulary.codes == (11, 13, 22, 130, 211)
    assert vocabulary.counts == (0, 0, 3, 0, 2)
    index, unknown = vocabulary.encode([-11, 13, 22, 2112, 321])
    assert vocabulary.decode(index).tolist() == [11, 13, 22, 130, 211]
    assert not unknown.any()


def test_a_calibration_keeps_what_only_the_earlier_one_has():
    earlier = Calibration(
        energy={"muon": DOUBLED, "photon": DOUBLED}, photon_response=Response((0.0, 1.0, 3.0), (0.1, 0.2, 0.3))
    )
    fitted = Curve((-1.0,), (0.5,))
    made = Calibration(energy={"photon": fitted}, photon_response=Response((0.5, 1.5), (0.6, 0.7))).over(earlier)
    assert made.energy == {"muon": DOUBLED, "photon": fitted}
    assert made.photon_response == Response((0.0, 0.5, 1.5, 3.0), (0.1, 0.6, 0.7, 0.3))
    assert made.over(None) is made
