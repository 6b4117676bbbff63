"""Heads: angles to directions, and the precision of what leaves."""

from __future__ import annotations

import torch

from pflow.model.translation.network import Heads


def test_small_outputs_point_to_the_equator():
    heads = Heads(classes={"pdg": 3}, width=4)
    with torch.no_grad():
        for parameter in heads.continuous.parameters():
            parameter.zero_()
    direction = heads(torch.ones(1, 1, 4))["direction"]
    torch.testing.assert_close(direction[0, 0], torch.tensor([1.0, 0, 0]), atol=1e-6, rtol=0)


def test_heads_stay_in_full_precision_under_autocast():
    heads = Heads(classes={"pdg": 3}, width=4)
    x = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = heads(x)
    for name, value in heads(x).items():
        assert torch.equal(inside[name], value)
