import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.merge_hits import Merge
from pflow.io.open import read_events
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig, targets_of

MERGE = Merge(ecal_mm=20.0, hcal_mm=90.0, layers=5)


@pytest.fixture(scope="module")
def config() -> TokenConfig:
    return TokenConfig(track_features=("log_p", "charge"), merge=MERGE, order="tracks_first", readout=True)


@pytest.fixture(scope="module")
def real(sample_dir):
    """Eight events of two to ten particles, with tracks."""
    return read_events(sample_dir / "multi_test_small.root", entry_stop=8)


def encoded(events, config):
    return Tokeniser.fit([events], config).encode(events)


def dense(event, kind: str = "hit") -> np.ndarray:
    """Weights [target, hit or track]."""
    n_sources = len(event.arrays["readout.energy" if kind == "hit" else "readout.track_charge"])
    result = np.zeros((len(event.arrays["charge"]), n_sources))
    places = tuple(event.arrays[f"readout.{kind}_assignment.{name}"] for name in ("particle", "source"))
    result[places] = event.arrays[f"readout.{kind}_assignment.weight"]
    return result


def test_hits_and_tracks_are_those_of_the_events_in_their_order(events, config):
    tokens = encoded(events, config)
    arrays = tokens[1].arrays
    assert arrays["readout.energy"].tolist() == [2.0, 2.5]
    assert arrays["readout.position"].tolist() == [[0.0, 1850.0, -500.0], [1900.0, 0.0, 30.0]]
    assert (arrays["readout.subdetector"].tolist(), arrays["readout.layer"].tolist()) == ([2, 0], [3, 4])
    np.testing.assert_allclose(arrays["readout.track_momentum"], [[0.0, 2.9, -0.75]], rtol=1e-6)
    assert arrays["readout.track_charge"].tolist() == [-1.0]
    assert len(tokens[0].arrays["readout.track_charge"]) == 0


def test_position_and_direction_of_a_track_are_those_at_the_calorimeter(real, config):
    arrays = encoded(real, config).arrays
    assert np.array_equal(arrays["readout.track_position"], jagged.vectors(real.tracks.calo_position, np.float32))
    momentum = jagged.vectors(real.tracks.calo_momentum)
    expected = momentum / np.linalg.norm(momentum, axis=1, keepdims=True)
    np.testing.assert_allclose(arrays["readout.track_direction"], expected, atol=1e-6)


@pytest.mark.parametrize("unknown", ["calo_position.x", "calo_momentum.px"])
def test_a_track_unknown_at_the_calorimeter_has_a_null_position_and_the_direction_at_the_vertex(real, config, unknown):
    nothing = np.full(ak.count(real.tracks.charge), np.nan)
    changed = dataclasses.replace(real, tracks=jagged.replaced(real.tracks, {unknown: nothing}))
    arrays = encoded(changed, config).arrays
    position, momentum, direction = (arrays[f"readout.track_{name}"] for name in ("position", "momentum", "direction"))
    assert len(position) > 0
    assert not position.any()
    unit = momentum / np.linalg.norm(momentum, axis=1, keepdims=True)
    np.testing.assert_allclose(direction, unit, atol=1e-6)


def test_without_track_features_there_are_no_tracks_and_without_truth_no_assignment(events):
    tokeniser = Tokeniser.fit([events], TokenConfig(readout=True))
    arrays = tokeniser.encode(events)[1].arrays
    assert len(arrays["readout.track_momentum"]) == len(arrays["readout.track_assignment.weight"]) == 0
    arrays = tokeniser.encode(events, truth=False)[0].arrays
    assert len(arrays["readout.energy"]) == 3
    assert not any("assignment" in name for name in arrays)


@pytest.mark.parametrize("merge", [None, MERGE])
def test_hits_of_a_token_sum_to_its_energy(real, config, merge):
    tokeniser = Tokeniser.fit([real], dataclasses.replace(config, merge=merge, hit_energy_min=0.005))
    for event in tokeniser.encode(real):
        summed = np.bincount(event.arrays["readout.token"], event.arrays["readout.energy"])
        np.testing.assert_allclose(summed, tokeniser.scales["hits"].invert(event.arrays["hits"])[:, 0], rtol=1e-4)


def test_the_weights_of_a_hit_sum_to_at_most_1(real, config):
    tokens = encoded(real, config)
    sums = np.concatenate([dense(tokens[i]).sum(axis=0) for i in range(len(real))])
    assert sums.max() <= 1 + 1e-6
    assert sums.mean() > 0.9


@pytest.mark.parametrize("order", ["energy", "tracks_first"])
def test_hits_and_tracks_are_assigned_to_the_targets_in_their_order(real, config, order):
    config = dataclasses.replace(config, order=order)
    tokens, particles = encoded(real, config), targets_of(real, config).particles
    for i in range(len(real)):
        hit_energy = dense(tokens[i]) @ tokens[i].arrays["readout.energy"]
        np.testing.assert_allclose(hit_energy, ak.to_numpy(particles.hit_energy[i]), rtol=1e-5, atol=1e-6)
        largest = dense(tokens[i], "track") > 0.5
        assert largest.sum(axis=1).tolist() == particles.n_tracks[i].to_list()


def test_dropped_hits_are_not_assigned(events, config):
    arrays = encoded(events, dataclasses.replace(config, hit_energy_min=6.0))[0].arrays
    assert arrays["readout.energy"].tolist() == [12.0, 8.0]
    assert arrays["readout.hit_assignment.source"].tolist() == [0, 1]
    assert arrays["readout.hit_assignment.particle"].tolist() == [0, 0]  # the photon of 20 GeV comes first


def test_an_event_does_not_depend_on_its_neighbours(real, events, config):
    """All arrays of real events with tracks, and of those by hand with tracker hits."""
    by_hand = dataclasses.replace(config, tracker_hit_features=("x", "y", "z"))
    for some, which, chosen in ((real, (0, 3, 7), config), (events, range(3), by_hand)):
        tokeniser = Tokeniser.fit([some], chosen)
        together = tokeniser.encode(some)
        for i in which:
            alone = tokeniser.encode(some[i])[0].arrays
            for name, values in together[i].arrays.items():
                assert np.array_equal(values, alone[name]), name


def test_an_event_without_hits_has_an_empty_readout(events, config):
    arrays = encoded(events, config)[2].arrays
    shapes = [arrays[f"readout.{name}"].shape for name in ("energy", "position", "track_position")]
    assert shapes == [(0,), (0, 3), (0, 3)]
    assert len(arrays["readout.hit_assignment.weight"]) == 0
