from __future__ import annotations

import torch

from pflow.model.pointing import PointingNetworkConfig
from pflow.model.pointing.attention import CoverageMemory
from pflow.model.pointing.decoder import CoverageDecoder


def test_steps_with_caches_equal_the_whole_sequence():
    torch.manual_seed(0)
    decoder = CoverageDecoder(PointingNetworkConfig(width=12, heads=3, feedforward=16), layers=2).eval()
    x, states, assigned = torch.randn(2, 4, 12), torch.randn(2, 6, 12), torch.rand(2, 4, 6)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    whole = decoder(x, CoverageMemory.of(states, assigned, mask))
    caches = decoder.caches(states, 4)
    steps = [
        decoder(x[:, t : t + 1], CoverageMemory.of(states, assigned[:, t : t + 1], mask), caches=caches)
        for t in range(4)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


def test_keys_and_values_that_are_at_hand_change_nothing():
    torch.manual_seed(0)
    decoder = CoverageDecoder(PointingNetworkConfig(width=12, heads=3, feedforward=16), layers=2).eval()
    x, states, assigned = torch.randn(2, 4, 12), torch.randn(2, 6, 12), torch.rand(2, 4, 6)
    memory = CoverageMemory.of(states, assigned, torch.ones(2, 6, dtype=torch.bool))
    projected = [layer.memory_attention.attention.project(states) for layer in decoder.layers]
    torch.testing.assert_close(decoder(x, memory, projected=projected), decoder(x, memory))
