import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.augment import Augmentation, Overlay, augment, random_phi, turn
from pflow.event.events import Events
from pflow.event.schema import SCHEMA
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.physics.kinematics import angle_between

ILD = load_detector("ild_g4")
SAMPLES = ("gammasep_test_small", "zqq_test_small")


def joined_at_random(events: Events, **options: object) -> Events:
    return augment(events, Augmentation(overlay=Overlay(**options)), np.random.default_rng(1))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=SAMPLES)
def events(request, sample_dir) -> Events:
    return read_events(sample_dir / f"{request.param}.root", entry_stop=4)


@pytest.fixture(scope="module")
def phi(events) -> np.ndarray:
    return np.random.default_rng(1).uniform(-10.0, 10.0, len(events))


def reflect(events: Events) -> Events:
    return turn(events, reflected=np.ones(len(events), dtype=np.bool_))


def momenta(events: Events) -> np.ndarray:
    return jagged.vectors(events.truth.momentum)


def test_rotation_turns_all_vectors_and_the_azimuth_of_tracks(events, phi):
    turned = turn(events, phi)
    for part in ("hits", "tracks", "truth"):
        before, after = jagged.columns(getattr(events, part)), jagged.columns(getattr(turned, part))
        angle = np.repeat(phi, jagged.count(getattr(events, part)))
        for field in (field for field in SCHEMA[part] if field.axes):
            x, y, z = field.quantities.values()
            expected = (before[x] + 1j * before[y]) * np.exp(1j * angle)
            assert np.all(abs(after[x] + 1j * after[y] - expected) <= 1e-3 * (1 + abs(expected))), field.name
            np.testing.assert_array_equal(after[z], before[z])
    assert ak.all(abs(np.exp(1j * turned.tracks.phi) - np.exp(1j * (events.tracks.phi + phi))) < 1e-5)
    assert ak.all(abs(turned.tracks.phi) <= np.float32(np.pi))


def test_reflection_of_chosen_events_changes_the_sign_of_z_components(events, assert_same):
    which = np.arange(len(events)) % 2 == 0
    changed = turn(events, reflected=which)
    assert_same(changed[~which], events[~which])
    assert_same(reflect(changed[which]), events[which])
    before, after = jagged.columns(events.tracks), jagged.columns(reflect(events).tracks)
    changed = {"momentum.pz", "calo_position.z", "calo_momentum.pz", "z0", "tan_lambda"}
    for field, values in before.items():
        np.testing.assert_array_equal(after[field], -values if field in changed else values, err_msg=field)


def test_random_rotations_are_symmetries_of_the_detector():
    rng = np.random.default_rng(3)
    everywhere = random_phi(ILD, 1000, rng)
    assert len(np.unique(everywhere)) == 1000
    assert 0 <= everywhere.min() < 0.1 < 6.1 < everywhere.max() < 2 * np.pi
    steps = random_phi(load_detector("cld"), 1000, rng) / (2 * np.pi / 12)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-12)
    assert set(np.round(steps).astype(int)) == set(range(12))


EVERYTHING = Augmentation(rotate=True, reflect=True, overlay=Overlay(frequencies=[1, 1, 1]))


@pytest.mark.parametrize(
    "options", [EVERYTHING, dataclasses.replace(EVERYTHING, overlay=Overlay(cone=0.5))], ids=["everything", "cone"]
)
def test_augmented_events_are_valid_and_the_same_for_the_same_seed(events, options, assert_same):
    first, again, second = (augment(events, options, np.random.default_rng(seed)).validate() for seed in (5, 5, 6))
    assert first.event.tolist() == events.event.tolist()
    assert_same(again, first)
    assert second.truth.momentum.tolist() != first.truth.momentum.tolist()


def test_the_number_of_events_joined_follows_the_frequencies(make_photons):
    events = make_photons(600)
    joined = joined_at_random(events, frequencies=[1, 2, 0, 3])
    n_groups = np.bincount(ak.to_numpy(ak.num(joined.truth)), minlength=5)
    assert n_groups[[0, 3]].tolist() == [0, 0]
    np.testing.assert_allclose(n_groups[[1, 2, 4]] / 600, [1 / 6, 1 / 3, 1 / 2], atol=4 * 0.5 / np.sqrt(600))
    energies = ak.to_numpy(joined_at_random(make_photons(50), frequencies=[0, 0, 1]).truth.energy)
    assert all(len(set(row)) == 3 for row in energies.tolist())
    for n in (2, 1, 0):
        joined = joined_at_random(make_photons(2)[:n], frequencies=[0, 0, 0, 0, 1])
        assert ak.num(joined.truth).tolist() == [n] * n


def test_only_events_up_to_max_hits_are_joined(make_photons, assert_same):
    """Event i has i % 7 + 2 hits."""
    events = make_photons(35)
    joined = joined_at_random(events, frequencies=[0, 1], max_hits=5)
    large = ak.to_numpy(ak.num(events.hits)) > 5
    assert joined.event.tolist() == events.event.tolist()
    assert ak.num(joined.truth).to_list() == [1 if alone else 2 for alone in large]
    assert_same(joined[large], events[large])
    first = ak.to_numpy(joined.truth.momentum.px[:, 0])
    np.testing.assert_array_equal(first, ak.to_numpy(events.truth.momentum.px[:, 0]))
    assert set(ak.to_numpy(ak.num(joined.hits))[~large]) <= {*range(4, 11)}


def test_a_cone_limits_the_angle_between_axes(make_photons):
    bare = make_photons(40).emptied(np.arange(40) == 3)
    n_photons = ak.to_numpy(ak.num(joined_at_random(bare, frequencies=[0, 1], cone=np.pi).truth))
    assert n_photons.tolist() == [2] * 3 + [0] + [2] * 36
    joined = joined_at_random(make_photons(300), frequencies=[0, 0, 1], cone=0.15)
    full = joined[ak.to_numpy(ak.num(joined.truth)) == 3]
    assert len(full) > 250
    direction = momenta(full).reshape(-1, 3, 3)
    # The axes are of the hits, which scatter by 5 mm each around the photon's direction at 1850 mm.
    angles = angle_between(direction[:, :1], direction[:, 1:])
    assert angles.max() < 0.15 + 0.02
    assert np.mean(angles > 0.05) > 0.5


def test_in_a_cone_events_turn_by_the_detectors_symmetry(make_photons):
    photons = make_photons(300)
    polygon = dataclasses.replace(photons, detector=dataclasses.replace(ILD, phi_symmetry=12))
    joined = joined_at_random(polygon, frequencies=[0, 1], cone=0.15)
    pairs = joined[ak.to_numpy(ak.num(joined.truth)) == 2]
    assert len(pairs) > 100
    first, second = (pairs.truth.momentum[:, k] for k in (0, 1))
    assert ak.max(first.deltaangle(second)) < 0.15 + 0.02
    # The partner is one of the photons, turned by a multiple of 30 degrees.
    single = ak.flatten(photons.truth.momentum)
    partner = np.abs(ak.to_numpy(second.pz)[:, np.newaxis] - ak.to_numpy(single.pz)).argmin(axis=1)
    turns = (ak.to_numpy(second.phi) - ak.to_numpy(single.phi)[partner]) / (np.pi / 6)
    assert np.abs(turns - np.round(turns)).max() < 1e-4
    assert len(set(np.round(turns).astype(int) % 12)) == 12
    assert len(set(partner.tolist())) > 50
