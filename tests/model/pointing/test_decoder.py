"""The decoder of the pointing network."""

from __future__ import annotations

import torch

from pflow.model.pointing.decoder import CoverageDecoder


def test_step_by_step_with_caches_says_what_the_whole_sentence_says():
    torch.manual_seed(0)
    decoder = CoverageDecoder(width=12, heads=3, feedforward=16, layers=2).eval()
    x, memory, covered = torch.randn(2, 4, 12), torch.randn(2, 6, 12), torch.rand(2, 4, 6)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    whole = decoder(x, memory, covered=covered, mask=mask)
    caches = decoder.caches(memory, 4)
    steps = [
        decoder(x[:, t : t + 1], memory, covered=covered[:, t : t + 1], mask=mask, caches=caches) for t in range(4)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
