"""Padded tensors: shapes that belong together, masks that say where padding is."""

import pytest
import torch

from pflow.data.batch import Batch, Target, TokenSet


def tokens(*lengths: int, device: str = "cpu") -> TokenSet:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return TokenSet(torch.zeros(*mask.shape, 4, device=device), mask.to(device))


@pytest.fixture
def batch() -> Batch:
    """Two events of three and one hits, two and one particles."""
    mask = torch.tensor([[True, True], [True, False]])
    index, energy = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 2)
    target = Target(charge=index, pdg=index, energy=energy, direction=torch.zeros(2, 2, 3), mask=mask)
    return Batch(tokens(3, 1), tracks=tokens(1, 2), tracker_hits=tokens(0, 2), target=target)


def test_a_token_set_knows_whether_it_has_padding_and_keeps_that_on_another_device():
    assert tokens(3, 3).full
    assert tokens(3, 3).to("meta").full
    assert not tokens(2, 1).full
    assert tokens(3, 3, device="meta").full is False  # first seen there, the mask is not waited for


def test_a_batch_moves_with_the_parts_that_it_has(batch):
    moved = batch.to("meta")
    assert isinstance(moved.target, Target)
    tensors = [moved.hits.features, moved.tracks.mask, moved.tracker_hits.mask, moved.target.direction]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert (moved.readout, Batch(tokens(1)).to("meta").target) == (None, None)
