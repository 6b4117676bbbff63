from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np
import pytest
import torch

import pflow
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, Flag
from pflow.inference.events import pick_device, reconstruct
from pflow.model.api import Sampler


def numbers(reconstruction, i: int) -> np.ndarray:
    particles = reconstruction.particles[i]
    columns = [particles.pdg, particles.charge, particles.energy]
    columns += [particles.momentum[key] for key in ("px", "py", "pz")]
    return np.stack([column.to_numpy() for column in columns], axis=1)


def with_hits(events: Events, hits: ak.Array) -> Events:
    return Events(detector=events.detector, hits=hits, path="made.root")


def test_the_model_finds_particles_in_most_events(model, events):
    # The other tests would also pass without any particles.
    counts = ak.num(reconstruct(events, model).particles)
    assert np.count_nonzero(counts) > len(events) / 2


def test_every_event_has_an_entry_in_order(model, events):
    got = reconstruct(events, model)
    assert len(got) == len(events)
    assert got.event.tolist() == events.event.tolist()
    assert set(got.particles.fields) == {"pdg", "charge", "energy", "mass", "momentum", "score"}


def test_a_batch_of_one_equals_its_place_in_a_batch_of_all(model, events):
    together = reconstruct(events, model, batch_size=64)
    for i in range(len(events)):
        alone = reconstruct(events[i], model, batch_size=1)
        np.testing.assert_allclose(numbers(alone, 0), numbers(together, i), rtol=1e-4, atol=1e-4)


def test_permuting_the_hits_changes_nothing(model, events):
    rng = np.random.default_rng(1)
    shuffled = ak.Array([hits[rng.permutation(len(hits))] for hits in events.hits])
    one = reconstruct(with_hits(events, events.hits), model)
    other = reconstruct(with_hits(events, shuffled), model)
    for i in range(len(events)):
        np.testing.assert_allclose(numbers(one, i), numbers(other, i), rtol=1e-4, atol=1e-4)


def test_truth_is_not_used(model, events):
    bare = dataclasses.replace(events, truth=None, hit_links=None, track_links=None, tracker_hit_links=None)
    one, other = reconstruct(events, model), reconstruct(bare, model)
    assert ak.to_list(one.particles.energy) == ak.to_list(other.particles.energy)


def test_an_event_without_hits_has_no_particles(model, events):
    empty = events.emptied(np.arange(len(events)) == 3)
    got = reconstruct(empty, model)
    assert len(got.particles[3]) == 0
    np.testing.assert_array_equal(numbers(got, 4), numbers(reconstruct(events, model), 4))


def test_no_events_at_all(model, events):
    assert len(reconstruct(events[:0], model)) == 0


def test_an_event_that_reaches_the_maximum_is_flagged(model, events):
    full = reconstruct(events, model, max_particles=6)
    counts = ak.to_numpy(ak.num(full.particles))
    longest = int(counts.max())
    assert longest > 1
    cut = reconstruct(events, model, max_particles=longest - 1)
    flagged = (cut.flags & Flag.MAX_PARTICLES) > 0
    assert flagged[counts == longest].all()
    assert not flagged[counts < longest - 1].any()
    assert ak.max(ak.num(cut.particles)) == longest - 1


def test_too_many_hits_are_refused_with_file_and_entry(model, events):
    n_hits = ak.num(events.hits)
    first = int(np.flatnonzero(n_hits > 600)[0])
    with pytest.raises(InputError, match=rf"multi_test_small\.root, entry {first}, 'hits': {n_hits[first]} hits"):
        reconstruct(events, model, max_hits=600)


def test_too_many_hits_can_be_skipped_with_a_count(model, events):
    large = ak.to_numpy(ak.num(events.hits)) > 600
    with pytest.warns(UserWarning, match=f"{large.sum()} of 25 entries are too large"):
        got = reconstruct(events, model, max_hits=600, on_error="skip")
    assert ((got.flags & Flag.BAD_INPUT) > 0).tolist() == large.tolist()
    assert not ak.num(got.particles)[large].to_numpy().any()


def test_the_same_seed_draws_the_same_particles(model, events):
    samplers = [Sampler(temperature=1.5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    drawn = [reconstruct(events, model, sampler=sampler).particles.energy.tolist() for sampler in samplers]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_events_of_another_detector_are_refused(model, events):
    other = dataclasses.replace(events, detector=pflow.load_detector("cld"))
    with pytest.raises(InputError, match=r"'ild_g4'.*'cld'"):
        reconstruct(other, model)


def test_unknown_device_is_named():
    with pytest.raises(ConfigError, match="'cudda'"):
        pick_device("cudda")


@pytest.mark.parametrize("option", ["batch_size", "max_particles"])
def test_numbers_below_one_are_refused(model, events, option):
    with pytest.raises(ConfigError, match=option):
        reconstruct(events, model, **{option: 0})
