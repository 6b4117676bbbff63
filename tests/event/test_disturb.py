import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.augment import Disturbance, disturb
from pflow.event.events import Events
from pflow.event.jagged import Links


def disturbed(events: Events, seed: int = 1, **options: object) -> Events:
    return disturb(events, Disturbance(**options), np.random.default_rng(seed)).validate()  # type: ignore[arg-type]


def test_a_fraction_is_disturbed_by_default_none_and_by_the_seed(events, assert_same):
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


def test_energies_are_scaled_by_subdetector_and_event(events):
    ratio = jagged.flat(disturbed(events, energy_scale=0.1).hits.energy) / jagged.flat(events.hits.energy)
    assert np.ptp(ratio[in_one_subdetector(events)]) < 1e-5
    assert np.unique(ratio.round(4)).size > len(events)
    assert np.std(np.log(ratio)) == pytest.approx(0.1, rel=0.5)


def test_lost_hits_and_tracks_take_their_links_with_them(events):
    changed = disturbed(events, dead_cells=0.3)
    before, after = (jagged.count(e.hits).sum() for e in (events, changed))
    assert after / before == pytest.approx(0.7, abs=0.02)
    cells = []  # z of the cell and particle of each link
    for e in (events, changed):
        z = jagged.flat(e.hits.position.z)[Links.of(e.hit_links).flat_source(jagged.count(e.hits))]
        particle = jagged.flat(e.hit_links.particle)
        cells.append(set(zip(z.tolist(), particle.tolist(), strict=True)))
    assert cells[1] < cells[0]
    assert len(ak.flatten(changed.hit_links)) / len(ak.flatten(events.hit_links)) == pytest.approx(0.7, abs=0.02)
    n = jagged.count(events.tracks).sum()
    lost = disturbed(events, lost_tracks=0.5)
    assert jagged.count(lost.tracks).sum() / n == pytest.approx(0.5, abs=0.15)
    assert jagged.count(lost.track_links).sum() == jagged.count(lost.tracks).sum()
    fake = disturbed(events, fake_tracks=0.5)
    assert jagged.count(fake.tracks).sum() / n == pytest.approx(1.5, abs=0.2)
    assert ak.array_equal(fake.track_links.particle, events.track_links.particle)


def test_noise_belongs_to_no_particle_and_is_soft(events):
    noisy = disturbed(events, noise_hits=50.0)
    added = jagged.count(noisy.hits) - jagged.count(events.hits)
    assert added.mean() == pytest.approx(50, rel=0.35)
    for before, after in zip(events, noisy, strict=True):
        n = len(before.hits.energy[0])
        assert ak.array_equal(after.hits.energy[0][:n], before.hits.energy[0])
        assert np.max(after.hit_links.source[0], initial=0) < n
        assert len(np.unique(after.hits.position.z[0][n:])) > 0.8 * (len(after.hits.energy[0]) - n)
        assert np.median(after.hits.energy[0][n:]) < np.quantile(before.hits.energy[0], 0.4)
