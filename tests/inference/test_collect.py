"""What is generated batch by batch, in the order of the events."""

from __future__ import annotations

import weakref

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.inference.collect import ParticleCollector
from pflow.model.common.decode import GeneratedParticles


def generated(counts, *, n_hits=None, shares=(), **more) -> GeneratedParticles:
    """Particles numbered through by their energy; shares are (event, particle, hit, share) of a readout of `n_hits`."""
    longest = max(counts)
    mask = torch.arange(longest)[None] < torch.tensor(counts)[:, None]
    share = None
    if n_hits is not None:
        share = torch.zeros(len(counts), longest, n_hits)
        for event, particle, hit, value in shares:
            share[event, particle, hit] = value
    return GeneratedParticles(
        charge=torch.ones(mask.shape, dtype=torch.int64),
        pdg=torch.ones(mask.shape, dtype=torch.int64),
        energy=torch.arange(mask.numel(), dtype=torch.float32).view(mask.shape) * mask,
        direction=torch.ones(*mask.shape, 3),
        score=torch.ones(mask.shape),
        mask=mask,
        truncated=torch.tensor([count > 2 for count in counts]),
        hit_fraction=share,
        **more,
    )


@pytest.fixture
def answer() -> ParticleCollector:
    """Of five events, of which number 1 has no hits: events 3 and 0 in one batch, 4 and 2 in another."""
    answer = ParticleCollector(5)
    answer.put(np.array([3, 0]), generated([2, 1], n_hits=3, shares=[(0, 1, 2, 0.5), (0, 0, 2, 0.25), (1, 0, 0, 1.0)]))
    answer.put(np.array([4, 2]), generated([1, 3], n_hits=2, shares=[(1, 2, 1, 0.75), (1, 0, 0, 0.005)]))
    return answer


INDEX = ak.Array([[4, 5], [], [0, 7], [1, 2, 6], [0]])
"""Which of the input's hits those of the readout are."""


def test_links_lead_from_the_inputs_hits_to_the_particles(answer):
    links = answer.links("hit_fraction", INDEX)
    assert links.source.to_list() == [[4], [], [7], [6, 6], []]
    assert links.particle.to_list() == [[0], [], [2], [0, 1], []]
    assert links.weight.to_list() == [[1.0], [], [0.75], [0.25, 0.5], []]


def test_shares_are_let_go_once_links_are_made_of_them():
    part = generated([1], n_hits=3, shares=[(0, 0, 1, 1.0)])
    share = weakref.ref(part.hit_fraction)
    answer = ParticleCollector(1)
    answer.put(np.array([0]), part)
    del part
    assert share() is None
    assert len(answer.links("hit_fraction", ak.Array([[0, 1, 2]]))[0]) == 1


def test_shares_that_say_no_are_no_links(answer):
    """0.5% of a hit of event 2."""
    assert 0 not in answer.links("hit_fraction", INDEX).source[2]


def test_links_may_lead_to_hits_without_links(answer):
    assert answer.links("hit_fraction", ak.Array([[9, 9], [], [9, 9], [9, 9, 9], []])).source.to_list()[3] == [9, 9]


def test_columns_are_in_the_order_of_the_events(answer):
    columns = answer.columns()
    assert columns["mask"].sum(axis=1).tolist() == [1, 0, 3, 2, 1]
    assert columns["energy"][columns["mask"]].tolist() == [2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 0.0]
    assert columns["direction"].shape == (5, 3, 3)
    assert answer.truncated.tolist() == [False, False, True, False, False]


def test_what_a_network_does_not_say_is_not_there(answer):
    assert answer.links("track_fraction", INDEX) is None
    assert set(answer.columns()) == {"charge", "pdg", "energy", "direction", "score", "mask"}


def test_what_it_says_beside_is(answer):
    more = {
        "pdg_probability": torch.rand(2, 1, 4),
        "energy_sigma": torch.rand(2, 1),
        "direction_sigma": torch.rand(2, 1),
    }
    answer = ParticleCollector(3)
    answer.put(np.array([2, 0]), generated([1, 1], **more))
    columns = answer.columns()
    assert columns["pdg_probability"].shape == (3, 1, 4)
    np.testing.assert_array_equal(columns["energy_sigma"][[2, 0]], more["energy_sigma"].numpy())
    assert not columns["direction_sigma"][1].any()


def test_particles_without_links_have_an_empty_list_of_them():
    answer = ParticleCollector(2)
    answer.put(np.array([0, 1]), generated([1, 2], n_hits=2))
    assert answer.links("hit_fraction", ak.Array([[0, 1], [0, 1]])).to_list() == [[], []]


def test_without_any_batch_there_are_no_particles():
    answer = ParticleCollector(3)
    assert answer.columns()["mask"].shape == (3, 0)
    assert answer.columns()["direction"].shape == (3, 0, 3)
    assert answer.links("hit_fraction", INDEX) is None
