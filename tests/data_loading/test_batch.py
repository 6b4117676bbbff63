"""Padded tensors: shapes that belong together, masks that say where padding is."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pflow.data.batch import Batch, Target, TokenSet


def tokens(*lengths: int) -> TokenSet:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return TokenSet(torch.zeros(*mask.shape, 4), mask)


@pytest.fixture
def batch() -> Batch:
    """Two events of three and one hits, two and one particles."""
    mask = torch.tensor([[True, True], [True, False]])
    index, energy = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 2)
    target = Target(charge=index, pdg=index, energy=energy, direction=torch.zeros(2, 2, 3), mask=mask)
    return Batch(tokens(3, 1), tracks=tokens(1, 2), tracker_hits=tokens(0, 2), target=target)


def test_a_token_set_knows_that_it_has_no_padding():
    assert TokenSet(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)).full


def test_a_token_set_knows_that_it_has_padding():
    mask = torch.tensor([[True, True], [True, False]])
    assert not TokenSet(torch.zeros(2, 2, 4), mask).full


def test_a_token_set_on_another_device_keeps_what_it_knows():
    tokens_there = TokenSet(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)).to("meta")
    assert tokens_there.full
    assert tokens_there.features.device.type == tokens_there.mask.device.type == "meta"


def test_a_token_set_first_seen_on_another_device_counts_as_padded():
    assert (
        TokenSet(torch.zeros(2, 3, 4, device="meta"), torch.ones(2, 3, dtype=torch.bool, device="meta")).full is False
    )


def test_a_token_set_rejects_a_mask_of_another_shape():
    with pytest.raises(ValueError, match="features"):
        TokenSet(torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool))


def test_target_rejects_values_of_another_shape(batch):
    target = batch.target
    with pytest.raises(ValueError, match="direction"):
        dataclasses.replace(target, direction=target.energy)


def test_target_rejects_padding_in_front_of_a_particle(batch):
    target = batch.target
    with pytest.raises(ValueError, match="mask"):
        dataclasses.replace(target, mask=torch.tensor([[False, True], [True, False]]))


def test_batch_moves_with_all_its_parts(batch):
    moved = batch.to("meta")
    tensors = [moved.hits.features, moved.tracks.mask, moved.tracker_hits.mask, moved.target.direction]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_batch_without_tracks_and_target_moves():
    batch = Batch(TokenSet(torch.zeros(1, 1, 4), torch.ones(1, 1, dtype=torch.bool))).to("meta")
    assert batch.tracks is None
    assert batch.target is None


def test_length_is_the_number_of_events(batch):
    assert len(batch) == 2


def test_target_is_a_target_after_moving(batch):
    assert isinstance(batch.to("meta").target, Target)
