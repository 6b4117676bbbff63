"""Disturbed events: what changes by how much, and that links follow."""

from pathlib import Path

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.disturb import Disturbance, disturb
from pflow.event.events import Events
from pflow.io.open import read_events
from pflow.physics.pdg import class_index

FILE = Path(__file__).parents[1] / "data" / "zqq_test_small.root"


@pytest.fixture(scope="module")
def events() -> Events:
    return read_events(FILE)


def disturbed(events: Events, seed: int = 1, **options: object) -> Events:
    found = disturb(events, Disturbance(**options), np.random.default_rng(seed))  # type: ignore[arg-type]
    found.validate()
    return found


def ecal(events: Events) -> np.ndarray:
    kinds = np.array([calorimeter.kind for calorimeter in events.detector.calorimeters])
    return (kinds == "ecal")[jagged.flat(events.hits.subdetector)]


def energy_by_particle(events: Events, which: np.ndarray) -> np.ndarray:
    """Energy of some hits that each truth particle of all events left, GeV."""
    hit = jagged.global_index(events.hit_links.source, jagged.count(events.hits))
    particle = jagged.global_index(events.hit_links.particle, jagged.count(events.truth))
    energy = jagged.flat(events.hits.energy) * which
    return np.bincount(particle, jagged.flat(events.hit_links.weight) * energy[hit], int(ak.count(events.truth.pdg)))


def test_by_default_nothing_changes(events):
    found = disturbed(events)
    for name, part in events.parts():
        assert ak.array_equal(part, getattr(found, name), equal_nan=True), name


def test_the_same_seed_gives_the_same_events(events):
    options = {"energy_scale": 0.1, "noise_hits": 5.0, "lost_tracks": 0.2}
    once, again, other = (disturbed(events, seed, **options).hits.energy for seed in (1, 1, 2))
    assert ak.array_equal(once, again)
    assert not ak.array_equal(once, other)


def test_a_scale_is_one_factor_for_a_subdetector_of_an_event(events):
    found = disturbed(events, energy_scale=0.1)
    ratio = jagged.flat(found.hits.energy) / jagged.flat(events.hits.energy)
    event = jagged.event_index(jagged.count(events.hits))
    of_first = (event == 0) & (jagged.flat(events.hits.subdetector) == 0)
    assert np.ptp(ratio[of_first]) < 1e-5
    assert np.unique(ratio.round(4)).size > len(events)
    assert np.std(np.log(ratio)) == pytest.approx(0.1, rel=0.5)


def test_only_hadrons_in_the_ecal_have_another_response(events):
    found = disturbed(events, hadron_ecal_scale=(1.5, 1.5))
    hadron = class_index(jagged.flat(events.truth.pdg)) < 2
    before, after = (energy_by_particle(e, ecal(events)) for e in (events, found))
    seen = before > 0.01
    alone = seen & ~hadron
    assert after[seen & hadron].sum() / before[seen & hadron].sum() == pytest.approx(1.5, abs=0.02)
    assert after[alone].sum() / before[alone].sum() == pytest.approx(1.0, abs=0.02)  # in cells shared with hadrons
    assert np.array_equal(jagged.flat(found.hits.energy)[~ecal(events)], jagged.flat(events.hits.energy)[~ecal(events)])


def test_a_subdetector_moves_as_one(events):
    found = disturbed(events, shift_mm=2.0)
    step = jagged.flat(found.hits.position.x) - jagged.flat(events.hits.position.x)
    event = jagged.event_index(jagged.count(events.hits))
    of_first = (event == 0) & (jagged.flat(events.hits.subdetector) == 0)
    assert np.ptp(step[of_first]) < 1e-3
    assert 0.5 < np.std(step) < 4.0


def test_lost_hits_take_their_links_with_them(events):
    found = disturbed(events, dead_cells=0.3)
    before, after = (jagged.count(e.hits).sum() for e in (events, found))
    assert after / before == pytest.approx(0.7, abs=0.02)
    # Every link joins the particle and the cell that it joined before.
    cells = []
    for e in (events, found):
        z = jagged.flat(e.hits.position.z)[jagged.global_index(e.hit_links.source, jagged.count(e.hits))]
        particle = jagged.flat(e.hit_links.particle)
        cells.append(set(zip(z.tolist(), particle.tolist(), strict=True)))
    assert cells[1] < cells[0]
    assert len(ak.flatten(found.hit_links)) / len(ak.flatten(events.hit_links)) == pytest.approx(0.7, abs=0.02)


def test_thresholds_remove_soft_hits_only(events):
    found = disturbed(events, ecal_threshold=0.02, hcal_threshold=0.02)
    assert ak.sum(events.hits.energy > 0.02) == ak.sum(found.hits.energy > 0.02)
    assert ak.sum(found.hits.energy < 0.02) < ak.sum(events.hits.energy < 0.02)


def test_noise_belongs_to_no_particle_and_is_soft(events):
    found = disturbed(events, noise_hits=50.0)
    added = jagged.count(found.hits) - jagged.count(events.hits)
    assert added.mean() == pytest.approx(50, rel=0.35)
    for before, after in zip(events, found, strict=True):
        n = len(before.hits.energy[0])
        assert ak.array_equal(after.hits.energy[0][:n], before.hits.energy[0])
        assert np.max(after.hit_links.source[0], initial=0) < n
        assert np.median(after.hits.energy[0][n:]) < np.quantile(before.hits.energy[0], 0.4)


def test_tracks_are_lost_split_and_invented(events):
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


def test_only_the_stated_share_of_events(events):
    found = disturbed(events, probability=0.5, dead_cells=0.5)
    whole = jagged.count(found.hits) == jagged.count(events.hits)
    assert 0 < whole.sum() < len(events)
