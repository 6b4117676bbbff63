import weakref

import awkward as ak
import numpy as np
import pytest
import torch

from pflow.inference.collect import ParticleCollector
from pflow.model.api import GeneratedParticles


def generated(counts, *, n_hits=None, fractions=(), **more) -> GeneratedParticles:
    """Particles numbered by their energy; fractions are (event, particle, hit, fraction) of `n_hits` hits."""
    longest = max(counts)
    mask = torch.arange(longest)[None] < torch.tensor(counts)[:, None]
    hit_fraction = None
    if n_hits is not None:
        hit_fraction = torch.zeros(len(counts), longest, n_hits)
        for event, particle, hit, value in fractions:
            hit_fraction[event, particle, hit] = value
    return GeneratedParticles(
        charge=torch.ones(mask.shape, dtype=torch.int64),
        pdg=torch.ones(mask.shape, dtype=torch.int64),
        energy=torch.arange(mask.numel(), dtype=torch.float32).view(mask.shape) * mask,
        direction=torch.ones(*mask.shape, 3),
        score=torch.ones(mask.shape),
        mask=mask,
        truncated=torch.tensor([count > 2 for count in counts]),
        hit_fraction=hit_fraction,
        **more,
    )


@pytest.fixture
def collector() -> ParticleCollector:
    """Of five events, of which number 1 has no hits: events 3 and 0 in one batch, 4 and 2 in another."""
    collector = ParticleCollector(5)
    collector.add(
        np.array([3, 0]), generated([2, 1], n_hits=3, fractions=[(0, 1, 2, 0.5), (0, 0, 2, 0.25), (1, 0, 0, 1.0)])
    )
    collector.add(np.array([4, 2]), generated([1, 3], n_hits=2, fractions=[(1, 2, 1, 0.75), (1, 0, 0, 0.005)]))
    return collector


INDEX = ak.Array([[4, 5], [], [0, 7], [1, 2, 6], [0]])
"""Which of the input's hits those of the readout are."""


def test_links_lead_from_the_inputs_hits_to_the_particles(collector):
    """But for 0.5% of a hit of event 2."""
    links = collector.links("hit_fraction", INDEX)
    assert links.source.to_list() == [[4], [], [7], [6, 6], []]
    assert links.particle.to_list() == [[0], [], [2], [0, 1], []]
    assert links.weight.to_list() == [[1.0], [], [0.75], [0.25, 0.5], []]


def test_dense_fractions_are_freed():
    part = generated([1], n_hits=3, fractions=[(0, 0, 1, 1.0)])
    fraction = weakref.ref(part.hit_fraction)
    collector = ParticleCollector(1)
    collector.add(np.array([0]), part)
    del part
    assert fraction() is None
    assert len(collector.links("hit_fraction", ak.Array([[0, 1, 2]]))[0]) == 1


def test_columns_are_in_the_order_of_the_events(collector):
    tokens = collector.tokens()
    assert tokens.counts.tolist() == [1, 0, 3, 2, 1]
    assert tokens.energy.tolist() == [2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 0.0]
    assert tokens.direction.shape == (7, 3)
    assert collector.truncated.tolist() == [False, False, True, False, False]


def test_without_fractions_or_any_batch_there_are_no_links():
    collector = ParticleCollector(2)
    collector.add(np.array([0, 1]), generated([1, 2], n_hits=2))
    assert collector.links("hit_fraction", ak.Array([[0, 1], [0, 1]])).to_list() == [[], []]
    collector = ParticleCollector(3)
    assert collector.tokens().counts.tolist() == [0, 0, 0]
    assert collector.tokens().direction.shape == (0, 3)
    assert collector.links("hit_fraction", INDEX) is None
