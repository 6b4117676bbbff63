"""The shipped models give the same answer whatever the batches, threads and neighbours of an event."""

from __future__ import annotations

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.checkpoint.load import load_model
from pflow.event import jagged
from pflow.event.particles import Reconstruction
from pflow.inference.events import reconstruct
from pflow.io.open import read_events
from pflow.physics.kinematics import unit_vector

SAMPLES = {
    "zqq": ("ild-g4-general", "zqq_test_small.root", 2),
    "photons": ("ild-g4-photon", "gammasep_test_small.root", 6),
}


@pytest.fixture(scope="module", params=SAMPLES)
def sample(request, sample_dir):
    """Model, events, and what it finds in batches of 32 with one thread."""
    name, file, n = SAMPLES[request.param]
    model, events = load_model(name), read_events(sample_dir / file, entry_stop=n)
    return model, events, reconstruct(events, model, device="cpu", engine="torch")


def relative(found: ak.Array, wanted: ak.Array) -> np.ndarray:
    """Relative difference of each particle's energy, or that of its direction, rad.

    The momentum follows from the energy, and for a slow particle its relative difference is larger by E^2 / p^2.
    """
    one, other = (unit_vector(jagged.vectors(ak.flatten(particles.momentum))) for particles in (found, wanted))
    energy = ak.to_numpy(ak.flatten(found.energy / wanted.energy)) - 1.0
    return np.maximum(np.abs(energy), np.linalg.norm(one - other, axis=1))


def check_same(found: Reconstruction, wanted: Reconstruction) -> None:
    for key in ("pdg", "charge"):
        assert ak.to_list(found.particles[key]) == ak.to_list(wanted.particles[key]), key
    off = relative(found.particles, wanted.particles)
    covariance, expected = (
        ak.to_numpy(ak.flatten(part.particles.covariance)).astype(np.float64) for part in (found, wanted)
    )
    trace = expected[:, [0, 2, 5, 9]].sum(axis=1)
    for differences in (off, np.abs(covariance - expected).max(axis=1) / trace):
        assert differences.max() < 1e-4
        assert np.quantile(differences, 0.999) < 1e-5
    for name in ("hit_links", "track_links"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert ak.to_list(one[["source", "particle"]]) == ak.to_list(other[["source", "particle"]]), name
            np.testing.assert_allclose(ak.flatten(one.weight), ak.flatten(other.weight), rtol=0, atol=1e-4)


def test_of_any_size_of_batch_in_any_order_and_chunk(sample):
    model, events, wanted = sample
    half = len(events) // 2
    check_same(reconstruct(events, model, batch_size=1, device="cpu", engine="torch"), wanted)
    for part in (slice(None, half), slice(half, None)):
        order, back = np.arange(len(events))[part][::-1], np.arange(half)[::-1]
        check_same(reconstruct(events[order], model, device="cpu", engine="torch"), wanted[part][back])


def test_with_any_number_of_threads(sample):
    model, events, wanted = sample
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        found = reconstruct(events, model, device="cpu", engine="torch")
    finally:
        torch.set_num_threads(threads)
    check_same(found, wanted)
