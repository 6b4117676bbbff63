"""Particles depend neither on the other events of a batch nor on threads; events with next to nothing in them."""

import dataclasses

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.checkpoint.load import load_model
from pflow.errors import InputError
from pflow.event.events import Flag
from pflow.inference.events import reconstruct
from pflow.io.open import read_events


@pytest.fixture(scope="module")
def general():
    return load_model("ild-g4-general")


@pytest.fixture(scope="module")
def three(events):
    """Three events without truth."""
    return events[:3].without_truth()


def check_same(found, expected):
    assert found.flags.tolist() == expected.flags.tolist()
    for name in ("pdg", "charge"):
        assert ak.to_list(found.particles[name]) == ak.to_list(expected.particles[name])
    got, reference = ak.flatten(found.particles), ak.flatten(expected.particles)
    np.testing.assert_allclose(got.energy, reference.energy, rtol=1e-4)
    for axis in ("px", "py", "pz"):
        np.testing.assert_allclose(got.momentum[axis], reference.momentum[axis], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.scores, reference.scores, atol=1e-4)
    for name in ("hit_links", "track_links"):
        links, expected_links = getattr(found, name), getattr(expected, name)
        assert (links is None) == (expected_links is None), name
        if links is not None:
            assert ak.to_list(links[["source", "particle"]]) == ak.to_list(expected_links[["source", "particle"]])
            np.testing.assert_allclose(ak.flatten(links.weight), ak.flatten(expected_links.weight), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "file", "n"),
    [("ild-g4-general", "zqq_test_small.root", 2), ("ild-g4-photon", "gammasep_test_small.root", 6)],
)
def test_particles_are_the_same_in_any_batch_order_and_number_of_threads(name, file, n, sample_dir):
    model, events = load_model(name), read_events(sample_dir / file, entry_stop=n)
    expected = reconstruct(events, model)
    check_same(reconstruct(events, model, batch_size=1), expected)
    for part in (slice(None, n // 2), slice(n // 2, None)):
        order, back = np.arange(n)[part][::-1], np.arange(n // 2)[::-1]
        check_same(reconstruct(events[order], model), expected[part][back])
    # Few steps: on a busy machine threads hold each other up in every step.
    threads, by_threads = torch.get_num_threads(), []
    for number in (threads, 1 if threads > 1 else 2):
        torch.set_num_threads(number)
        by_threads.append(reconstruct(events[:1], model, max_particles=2))
        torch.set_num_threads(threads)
    check_same(*by_threads)


@pytest.mark.parametrize(("hits", "tracks"), [(0, 0), (1, 0), (0, 1), (None, 0), (0, None)])
def test_events_with_few_hits_or_tracks(hits, tracks, general, three):
    cut = dataclasses.replace(three, hits=three.hits[:, :hits], tracks=three.tracks[:, :tracks])
    got = reconstruct(cut, general)
    assert len(got) == len(got.hit_links) == len(got.track_links) == 3
    if (hits, tracks) == (0, 0):
        assert ak.count(got.particles.pdg) == 0


def test_an_event_that_is_cut_is_flagged(general, three):
    assert (reconstruct(three, general, max_particles=2).flags & Flag.MAX_PARTICLES).any()


def test_events_without_tracks_are_refused_where_the_model_reads_them(general, three):
    with pytest.raises(InputError, match=r"reads tracks .*; --truth-tracks makes them"):
        reconstruct(dataclasses.replace(three, tracks=None), general)


def test_a_script_that_names_an_engine_still_works(general, three):
    with pytest.warns(DeprecationWarning, match="engine 'onnxruntime' is not used: torch runs all models"):
        got = reconstruct(three, general, engine="onnxruntime")
    assert len(got) == 3
