import dataclasses
import itertools
import math
from contextlib import suppress

import awkward as ak
import numpy as np
import pytest

from pflow.calibration import (
    PHOTON_EDGES,
    Calibrated,
    CalibrationFit,
    best,
    calibrate,
    decoding_grid,
    fit_curve,
    fit_response,
    fit_widths,
)
from pflow.checkpoint import load_model
from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import Events, Reconstruction
from pflow.event.schema import make_particles
from pflow.event.truth import select_targets
from pflow.io.flat import write_events
from pflow.io.open import ReadOptions, read_events
from pflow.metrics.match import Matching, ParticleTable, match_tables
from pflow.model.api import DecodingConfig
from pflow.model.pointing import PointingDecodingConfig
from pflow.physics.detector import calibration_digest
from pflow.physics.kinematics import four_momentum_covariance, unit_vector
from pflow.physics.pdg import CLASSES
from pflow.tokens.particles import Calibration, Curve
from pflow.tokens.tokens import ParticleTokens, TokenConfig

CONFIG = TokenConfig()
LN_E, ANGLE = 0.02, 0.001


@pytest.fixture(scope="module")
def events(sample_dir) -> Events:
    return read_events(sample_dir / "gamma1_test_small.root")


def reconstructed(events, *, times, covariance=True, pdg=22):
    """The true photons, smeared by `LN_E` and `ANGLE`, with predicted uncertainties `times` as large."""
    random = np.random.default_rng(1)
    particles = select_targets(events, rule=CONFIG.rule, e_min=CONFIG.e_min).particles
    momentum = jagged.vectors(ak.flatten(particles).momentum)
    n = len(momentum)
    unit = unit_vector(unit_vector(momentum) + ANGLE * random.normal(size=momentum.shape))
    energy = np.linalg.norm(momentum, axis=1) * np.exp(LN_E * random.normal(size=n))
    columns = {"pdg": np.full(n, pdg), "charge": np.zeros(n), "energy": energy}
    columns |= dict(zip(("px", "py", "pz"), (energy[:, None] * unit).T, strict=True))
    if covariance:
        sigmas = np.full(n, times * LN_E), np.full(n, times * ANGLE)
        columns["covariance"] = four_momentum_covariance(energy, np.zeros(n), unit, *sigmas)
    records = make_particles(**{key: ak.unflatten(value, ak.num(particles)) for key, value in columns.items()})
    return Reconstruction(particles=records, event=events.event, flags=events.flags, name="PFlow")


def fitted(events, reconstruction, by_track=None, *, times=1):
    truth = ParticleTable.from_records(select_targets(events, rule=CONFIG.rule, e_min=CONFIG.e_min).particles)
    reco = ParticleTable.from_records(reconstruction.particles)
    fit = CalibrationFit()
    for _ in range(times):
        fit.update(truth, reco, reconstruction.particles, match_tables(truth, reco, Matching()), by_track)
    return fit


@pytest.mark.parametrize("times", [0.5, 3.0])
def test_wrong_sigmas_are_corrected(events, times):
    calibration = fitted(events, reconstructed(events, times=times)).result()
    assert set(calibration.energy) == set(calibration.direction) == {"photon"}
    energy, direction = calibration.apply(np.array([times * LN_E]), np.array([times * ANGLE]), np.array([2]))
    assert energy[0] == pytest.approx(LN_E, rel=0.25)
    assert direction[0] == pytest.approx(ANGLE, rel=0.25)


def test_few_pulls_replace_no_curve_of_an_earlier_calibration(events):
    fit, earlier = (
        fitted(events, reconstructed(events, times=3.0)),
        Calibration(energy={"photon": Curve((0.0,), (0.5,))}),
    )
    assert set(fit.result(Calibration()).energy) == {"photon"}
    assert not fit.result(earlier).energy


def test_charged_particles_have_curves_with_and_without_track(events):
    by_track = np.arange(int(ak.sum(ak.num(reconstructed(events, times=1.0).particles)))) % 2 == 0
    reconstruction = reconstructed(events, times=np.where(by_track, 0.25, 3.0), pdg=211)
    calibration = fitted(events, reconstruction, by_track, times=3).result()  # enough for the factor by energy
    assert set(calibration.energy) == {"charged_hadron", "charged_hadron_without_track"}
    sigma = np.array([0.25, 3.0])
    columns = LN_E * sigma, ANGLE * sigma, np.zeros(2, dtype=int), np.array([True, False])
    energy, direction = calibration.apply(*columns, energy=np.full(2, 30.0))
    assert energy == pytest.approx([LN_E] * 2, rel=0.35)
    assert direction == pytest.approx([ANGLE] * 2, rel=0.35)


def test_the_response_of_photons_becomes_1_at_every_energy():
    """Of a falling spectrum, on which a correction by measured energy alone would be biased."""
    random = np.random.default_rng(3)
    true = 0.1 * (1.0 - 0.995 * random.random(20_000)) ** -1.0
    measured = true * (1.05 + 0.1 / (true + 0.5)) * np.exp(0.2 * random.normal(size=len(true)))
    response = fit_response(true, measured)
    corrected = measured * response.factor(measured, np.ones(len(true), dtype=bool))
    for low, high in itertools.pairwise(PHOTON_EDGES[:14]):
        chosen = (true >= low) & (true < high)
        assert np.median(corrected[chosen] / true[chosen]) == pytest.approx(1.0, abs=0.004), low
    assert fit_response(true[:50], measured[:50]) is None
    falling = fit_response(np.repeat([0.12, 0.17], 60), np.repeat([0.2, 0.18], 60))  # medians of neighbouring bins
    assert math.exp(falling.log_energy[1]) == pytest.approx(0.2)


def test_photons_have_a_response_and_without_sigmas_no_curve(events):
    assert fitted(events, reconstructed(events, times=1.0, covariance=False)).result() == Calibration()
    calibration = fitted(events, reconstructed(events, times=1.0), times=5).result()
    np.testing.assert_allclose(calibration.photon_response.log_factor, 0.0, atol=0.02)


def test_the_factor_depends_on_sigma():
    random = np.random.default_rng(2)
    sigma = np.repeat([0.01, 0.1], 3000) * np.exp(0.01 * random.normal(size=6000))
    values = np.repeat([2.0, 0.5], 3000) * random.normal(size=6000)
    curve = fit_curve(sigma, values[:, None])
    calibrated, _ = Calibration(energy={"photon": curve}).apply(
        np.array([0.01, 0.1]), np.zeros(2), np.full(2, CLASSES.index("photon"))
    )
    np.testing.assert_allclose(calibrated, [0.02, 0.05], rtol=0.1)
    assert len(fit_curve(sigma[::20], values[::20, None]).log_sigma) == 2  # 300 pulls
    assert fit_curve(sigma, 0 * values[:, None]) is None


def test_few_hard_tracks_have_a_factor_that_their_curve_hides():
    """A hundred hard ones among 20,000 of the same stated deviation."""
    random = np.random.default_rng(4)
    energy, width = np.repeat([5.0, 200.0], [20_000, 100]), np.repeat([1.0, 3.0], [20_000, 100])
    around, pulls = np.exp(0.01 * random.normal(size=len(energy))), width * random.normal(size=len(energy))
    factor = fit_widths(energy * around, pulls)
    calibration = Calibration(energy={"muon": Curve((0.0,), (0.0,))}, track_energy=factor)
    muons = np.full(2, CLASSES.index("muon"))
    sigma, _ = calibration.apply(np.ones(2), np.ones(2), muons, energy=np.array([5.0, 200.0]))
    np.testing.assert_allclose(sigma, [1.0, 3.0], rtol=0.2)
    assert fit_widths(energy[:39], pulls[:39]) is None
    assert fit_widths(energy[:40], pulls[:40]) is not None


DECODING = PointingDecodingConfig(max_particles=7, eos_threshold=0.9, existence_threshold=0.3)


def test_the_grid_has_all_pairs_and_refuses_other_thresholds():
    grid = decoding_grid(DECODING, eos_threshold=[0.6, 0.5, 0.6], existence_threshold=[0.1, 0.2])
    pairs = [(decoding.eos_threshold, decoding.existence_threshold) for decoding in grid]
    # Nearest to the model's own, 0.9 and 0.3, first: of equal ones `best` takes the first.
    assert pairs == [(0.6, 0.2), (0.6, 0.1), (0.5, 0.2), (0.5, 0.1)]
    assert all(decoding.max_particles == 7 for decoding in grid)
    grid = decoding_grid(DecodingConfig(eos_threshold=None), eos_threshold=[0.5, 0.3])  # as published
    assert [decoding.eos_threshold for decoding in grid] == [0.3, 0.5]
    with pytest.raises(ConfigError, match="existence_threshold"):
        decoding_grid(DecodingConfig(), existence_threshold=[0.5])
    with pytest.raises(ConfigError, match="existence_threshold"):
        decoding_grid(DECODING, existence_threshold=[1.5])


def trial(efficiency, fakes, number_right=0.5, reference=0.8):
    return Calibrated(
        decoding=DECODING,
        detectors={},
        efficiency=efficiency,
        fakes=fakes,
        number_right=number_right,
        photons_named=1.0,
        reference=reference,
        calibration=Calibration(),
    )


@pytest.mark.parametrize(("by", "chosen"), [("energy", 0), ("number", 2), ("reference", 1)])
def test_the_first_best_configuration_is_chosen(by, chosen):
    trials = [trial(0.79, 0.01), trial(0.81, 0.04), trial(0.9, 0.2, 0.7), trial(0.79, 0.01), trial(0.9, 0.2, 0.7)]
    assert best(trials, by) is trials[chosen]


def test_the_most_efficient_is_chosen_where_none_reaches_the_reference():
    trials = [trial(0.7, 0.01), trial(0.75, 0.1), trial(0.6, 0.0)]
    assert best(trials, "reference") is trials[1]
    with pytest.raises(ConfigError, match="not all files have reconstructed particles of another algorithm"):
        best([trial(0.9, 0.1, reference=math.nan)], "reference")


def test_general_is_calibrated_in_the_geometry_of_the_files(sample_dir, tmp_path, monkeypatch):
    """Not in the one of the detector that it was first trained on."""
    events = read_events(sample_dir / "cld_multi_test_small.root", entry_stop=3)
    write_events(tmp_path / "cld.root", events)
    first, *others = events.detector.calorimeters
    other = dataclasses.replace(events.detector, calorimeters=(dataclasses.replace(first, cell_size=5.2), *others))
    write_events(tmp_path / "other.root", dataclasses.replace(events, detector=other))
    monkeypatch.setattr("pflow.calibration.with_detector", None)
    model = load_model("general")
    named, known = (
        calibrate(
            model, [tmp_path / "cld.root"], [model.reconstructor.decoding], ReadOptions(detector=detector), device="cpu"
        )
        for detector in ("cld", None)
    )
    assert named == known
    assert known[0].detectors == {"cld": calibration_digest(events.detector)}
    # Of two descriptions of one name neither is noted: the last one would contradict the first.
    files, decodings = [tmp_path / "cld.root", tmp_path / "other.root"], [model.reconstructor.decoding]
    assert calibrate(model, files, decodings, device="cpu")[0].detectors == {"cld": None}


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")
@pytest.mark.filterwarnings("ignore::pflow.event.events.BadEntriesWarning")
def test_events_that_are_left_out_count_nowhere(sample_dir, tmp_path):
    """One has a particle that is its own ancestor, one hits in no calorimeter."""
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=4)
    parent = jagged.flat(events.truth.parent).copy()
    parent[:2] = [1, 0]
    truth = jagged.replaced(events.truth, {"parent": parent})
    part = np.where(jagged.event_index(jagged.count(events.hits)) == 1, 9, jagged.flat(events.hits.subdetector))
    hits = jagged.replaced(events.hits, {"subdetector": part})
    write_events(tmp_path / "bad.root", dataclasses.replace(events, truth=truth, hits=hits))
    write_events(tmp_path / "good.root", events[2:])
    model = load_model("general")
    left, alone = (
        calibrate(model, [tmp_path / name], [model.reconstructor.decoding], ReadOptions(on_error="skip"), device="cpu")
        for name in ("bad.root", "good.root")
    )
    assert left == alone


@pytest.mark.filterwarnings("ignore::pflow.event.events.BadEntriesWarning")
def test_particles_that_are_not_finite_shift_no_others(sample_dir, monkeypatch):
    """Whether a particle has a track, by its place among all particles, chooses the curve of its uncertainties."""
    sizes = []
    monkeypatch.setattr(ParticleTokens, "finite", lambda tokens: np.arange(len(tokens.counts)) > 0)
    monkeypatch.setattr(CalibrationFit, "update", lambda _, truth, reco, *of: sizes.append((len(reco), len(of[-1]))))
    model, path = load_model("general"), sample_dir / "multi_test_small.root"
    with suppress(ConfigError, InputError):  # nothing is fitted
        calibrate(
            model, [path], [model.reconstructor.decoding], ReadOptions(on_error="skip"), device="cpu", chunk_size=8
        )
    assert sizes[0][0] > 0
    assert all(n == n_flags for n, n_flags in sizes), sizes


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")
def test_a_file_without_targets_is_refused_and_one_without_particles_has_no_fakes(events, tmp_path):
    """Else the efficiency, or the fraction of fakes, would be NaN, and the first configuration the best of all."""
    truth = jagged.replaced(events.truth, {"pdg": np.full(len(ak.flatten(events.truth.pdg)), 12)})
    write_events(tmp_path / "neutrinos.root", dataclasses.replace(events, truth=truth)[:2])
    write_events(tmp_path / "photons.root", events[:2])
    files, model = [tmp_path / "photons.root", tmp_path / "neutrinos.root"], load_model("general")
    nothing = dataclasses.replace(model.reconstructor.decoding, eos_threshold=1e-9)
    with pytest.raises(InputError, match=r"neutrinos\.root: no true particle is a target"):
        calibrate(model, files, [nothing], device="cpu")
    assert calibrate(model, files[:1], [nothing], device="cpu")[0].score == 0
