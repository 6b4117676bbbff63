"""Padded tensors: shapes that belong together, masks that say where padding is."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pflow.data.batch import Batch, Target, TokenSet


def test_sentence_knows_that_it_has_no_padding():
    assert TokenSet(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)).full


def test_sentence_knows_that_it_has_padding():
    mask = torch.tensor([[True, True], [True, False]])
    assert not TokenSet(torch.zeros(2, 2, 4), mask).full


def test_sentence_on_another_device_keeps_what_it_knows():
    sentence = TokenSet(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)).to("meta")
    assert sentence.full
    assert sentence.features.device.type == sentence.mask.device.type == "meta"


def test_sentence_first_seen_on_another_device_counts_as_padded():
    assert (
        TokenSet(torch.zeros(2, 3, 4, device="meta"), torch.ones(2, 3, dtype=torch.bool, device="meta")).full is False
    )


def test_sentence_rejects_a_mask_of_another_shape():
    with pytest.raises(ValueError, match="features"):
        TokenSet(torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool))


def test_target_rejects_values_of_another_shape(make_batch):
    target = make_batch([3], [2]).target
    with pytest.raises(ValueError, match="direction"):
        dataclasses.replace(target, direction=target.energy)


def test_target_rejects_padding_in_front_of_a_particle(make_batch):
    target = make_batch([3], [2]).target
    with pytest.raises(ValueError, match="mask"):
        dataclasses.replace(target, mask=torch.tensor([[False, True]]))


def test_batch_moves_with_all_its_parts(make_batch):
    moved = make_batch([3, 1], [2, 1]).to("meta")
    tensors = [moved.hits.features, moved.tracks.mask, moved.tracker_hits.mask, moved.target.direction]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_batch_without_tracks_and_target_moves():
    batch = Batch(TokenSet(torch.zeros(1, 1, 4), torch.ones(1, 1, dtype=torch.bool))).to("meta")
    assert batch.tracks is None
    assert batch.target is None


def test_length_is_the_number_of_events(make_batch):
    assert len(make_batch([3, 1, 0])) == 3


def test_target_is_a_target_after_moving(make_batch):
    assert isinstance(make_batch([3], [2]).to("meta").target, Target)
