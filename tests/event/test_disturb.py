import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.disturb import Disturbance, disturb
from pflow.event.events import Events
from pflow.physics.pdg import class_index


def disturbed(events: Events, seed: int = 1, **options: object) -> Events:
    return disturb(events, Disturbance(**options), np.random.default_rng(seed)).validate()  # type: ignore[arg-type]


def test_by_default_nothing_changes_or_a_fraction_and_the_same_seed_gives_the_same_events(events, assert_same):
    assert_same(disturbed(events), events)
    unchanged = jagged.count(disturbed(events, probability=0.5, dead_cells=0.5).hits) == jagged.count(events.hits)
    assert 0 < unchanged.sum() < len(events)
    options = {"energy_scale": 0.1, "noise_hits": 5.0, "lost_tracks": 0.2}
    first, again, second = (disturbed(events, seed, **options).hits.energy for seed in (1, 1, 2))
    assert ak.array_equal(first, again)
    assert not ak.array_equal(first, second)


def in_one_subdetector(events: Events) -> np.ndarray:
    """Whether each hit is in the first event and subdetector."""
    return (jagged.event_index(jagged.count(events.hits)) == 0) & (jagged.flat(events.hits.subdetector) == 0)


def test_energies_are_scaled_and_positions_shifted_by_subdetector_and_event(events):
    ratio = jagged.flat(disturbed(events, energy_scale=0.1).hits.energy) / jagged.flat(events.hits.energy)
    assert np.ptp(ratio[in_one_subdetector(events)]) < 1e-5
    assert np.unique(ratio.round(4)).size > len(events)
    assert np.std(np.log(ratio)) == pytest.approx(0.1, rel=0.5)
    shifted = disturbed(events, shift_mm=2.0)
    step = jagged.flat(shifted.hits.position.x) - jagged.flat(events.hits.position.x)
    assert np.ptp(step[in_one_subdetector(events)]) < 1e-3
    assert 0.5 < np.std(step) < 4.0


def test_only_hadrons_in_the_ecal_have_another_response(events, particle_energies):
    kinds = np.array([calorimeter.kind for calorimeter in events.detector.calorimeters])
    ecal = (kinds == "ecal")[jagged.flat(events.hits.subdetector)]
    hadron = class_index(jagged.flat(events.truth.pdg)) < 2
    changed = disturbed(events, hadron_ecal_scale=(1.5, 1.5))
    before, after = (jagged.flat(particle_energies(some, ecal)) for some in (events, changed))
    for kind, factor in ((hadron, 1.5), (~hadron, 1.0)):  # some cells are shared
        seen = (before > 0.01) & kind
        assert after[seen].sum() / before[seen].sum() == pytest.approx(factor, abs=0.02)
    assert np.array_equal(jagged.flat(changed.hits.energy)[~ecal], jagged.flat(events.hits.energy)[~ecal])


def test_lost_hits_take_their_links_with_them(events):
    changed = disturbed(events, dead_cells=0.3)
    before, after = (jagged.count(e.hits).sum() for e in (events, changed))
    assert after / before == pytest.approx(0.7, abs=0.02)
    cells = []  # z of the cell and particle of each link
    for e in (events, changed):
        z = jagged.flat(e.hits.position.z)[jagged.global_index(e.hit_links.source, jagged.count(e.hits))]
        particle = jagged.flat(e.hit_links.particle)
        cells.append(set(zip(z.tolist(), particle.tolist(), strict=True)))
    assert cells[1] < cells[0]
    assert len(ak.flatten(changed.hit_links)) / len(ak.flatten(events.hit_links)) == pytest.approx(0.7, abs=0.02)


def test_thresholds_remove_soft_hits_only(events):
    changed = disturbed(events, ecal_threshold=0.02, hcal_threshold=0.02)
    assert ak.sum(events.hits.energy > 0.02) == ak.sum(changed.hits.energy > 0.02)
    assert ak.sum(changed.hits.energy < 0.02) < ak.sum(events.hits.energy < 0.02)


def test_noise_belongs_to_no_particle_and_is_soft(events):
    noisy = disturbed(events, noise_hits=50.0)
    added = jagged.count(noisy.hits) - jagged.count(events.hits)
    assert added.mean() == pytest.approx(50, rel=0.35)
    for before, after in zip(events, noisy, strict=True):
        n = len(before.hits.energy[0])
        assert ak.array_equal(after.hits.energy[0][:n], before.hits.energy[0])
        assert np.max(after.hit_links.source[0], initial=0) < n
        assert np.median(after.hits.energy[0][n:]) < np.quantile(before.hits.energy[0], 0.4)


def test_tracks_are_lost_split_and_faked(events):
    n = jagged.count(events.tracks).sum()
    lost = disturbed(events, lost_tracks=0.5)
    assert jagged.count(lost.tracks).sum() / n == pytest.approx(0.5, abs=0.15)
    assert jagged.count(lost.track_links).sum() == jagged.count(lost.tracks).sum()

    split = disturbed(events, split_tracks=1.0)
    assert jagged.count(split.tracks).tolist() == (2 * jagged.count(events.tracks)).tolist()
    of_particle = np.unique(jagged.flat(split[0].track_links.particle), return_counts=True)[1]
    assert set(of_particle.tolist()) == {2}
    second = split.tracks.momentum.pt[0][len(events.tracks[0]) :] / events.tracks.momentum.pt[0]
    assert 0.02 < np.std(second) < 0.3

    fake = disturbed(events, fake_tracks=0.5)
    assert jagged.count(fake.tracks).sum() / n == pytest.approx(1.5, abs=0.2)
    assert ak.array_equal(fake.track_links.particle, events.track_links.particle)
