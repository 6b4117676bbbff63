from __future__ import annotations

import math

import pytest
import torch

from pflow.model.pointing.refiner import PairwiseMessages


@pytest.fixture
def messages():
    torch.manual_seed(3)
    return PairwiseMessages(width=8)


@pytest.fixture
def no_hits(by_hand, source_of):
    return source_of(by_hand()).tables().item_sums


def four_particles():
    """Two 2 mrad apart in polar angle, one 2 mrad away in azimuth, one far off; and padding."""
    theta = torch.tensor([1.0, 1.002, 1.0, 2.0, 0.0])
    phi = torch.tensor([0.3, 0.3, 0.3 + 0.002 / math.sin(1.0), 2.5, 0.0])
    direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)[None]
    mask = torch.tensor([[True, True, True, True, False]])
    share = torch.zeros(1, 5, 0)  # of no hits: what is inclined is tested with the slopes
    return torch.randn(1, 5, 8), torch.tensor([[2.0, 1.0, 1.0, 3.0, 0.0]]), direction, mask, share


def test_messages_depend_on_the_relative_position(messages, no_hits):
    parts = four_particles()
    parts[0][:, 2] = parts[0][:, 1]  # the same but for where they are

    def message(*who):
        return messages(*(part[:, list(who)] for part in parts), no_hits)[0, 0]

    beside, across, alone, far = message(0, 1), message(0, 2), message(0), message(0, 3)
    assert (beside - across).abs().max() > 0.05
    torch.testing.assert_close(alone, messages.out.bias)
    assert (far - alone).abs().max() < 0.1 * (beside - alone).abs().max()


def test_messages_depend_neither_on_order_nor_on_padding(messages, no_hits):
    parts = four_particles()
    one = messages(*parts, no_hits)
    order = torch.tensor([3, 1, 0, 2, 4])
    torch.testing.assert_close(messages(*(part[:, order] for part in parts), no_hits), one[:, order])
    torch.testing.assert_close(messages(*(part[:, :4] for part in parts), no_hits), one[:, :4])
