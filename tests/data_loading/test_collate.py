import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pflow.data.dataset import Padder, bucket, collate, cut
from pflow.errors import ConfigError
from pflow.event.events import Events
from pflow.event.merge import Merge
from pflow.io.open import read_events
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig, Tokens

CONFIG = TokenConfig(
    track_features=("log_p", "charge"), merge=Merge(ecal_mm=20.0, hcal_mm=90.0, layers=5), readout=True
)


@pytest.fixture(scope="module")
def events(sample_dir) -> Events:
    """Six events, one of them with nothing."""
    return read_events(sample_dir / "multi_test_small.root", entry_stop=6).emptied(np.arange(6) == 1)


@pytest.fixture(scope="module")
def tokens(events) -> Tokens:
    return Tokeniser.fit([events], CONFIG).encode(events)


def tensors(part: Any) -> list[Tensor]:
    if not dataclasses.is_dataclass(part):
        return [part] if isinstance(part, Tensor) else []
    return [tensor for value in vars(part).values() for tensor in tensors(value)]


def test_a_batch_is_as_long_as_its_own_longest_event(tokens):
    batch = collate(tokens)
    masks = {"hits": batch.hits.mask, "tracks": batch.tracks.mask, "target": batch.target.mask}
    masks |= {"readout_hits": batch.readout.mask, "readout_tracks": batch.readout.track_mask}
    for kind, mask in masks.items():
        counts = np.diff(tokens.offsets[kind])
        assert mask.sum(1).tolist() == counts.tolist()
        assert mask.shape[1] == max(counts) > min(counts) == 0


def test_a_batch_of_one_equals_its_place_in_another_with_zeros_behind(tokens):
    together = tensors(collate(tokens))
    for i in range(len(tokens)):
        for whole, alone in zip(together, tensors(collate(tokens, [i])), strict=True):
            unpadded = tuple(slice(size) for size in alone.shape[1:])
            assert torch.equal(whole[i][unpadded], alone[0])
            behind = whole[i].clone()
            behind[unpadded] = 0
            assert not behind.any()


def test_values_are_those_of_the_event_and_pairs_are_dense(tokens):
    for i in range(len(tokens)):
        arrays, batch = tokens[i].arrays, collate(tokens, [i])
        assert np.array_equal(batch.hits.features[0], arrays["hits"])
        assert np.array_equal(batch.target.direction[0], arrays["direction"])
        assert np.array_equal(batch.readout.energy[0], arrays["readout.energy"])
        particle, hit, weight = (arrays[f"readout.hit_assignment.{name}"] for name in ("particle", "source", "weight"))
        dense = np.zeros((len(arrays["charge"]), len(arrays["readout.energy"])), np.float32)
        dense[particle, hit] = weight
        assert np.array_equal(batch.target.hit_fraction[0], dense)


@pytest.mark.parametrize("cuts", [(3,), (1, 2, 2, 5)])
@pytest.mark.parametrize("rows", [[4, 0, 2], [5], [0, 1, 2, 3, 4, 5]])
def test_events_may_lie_in_several_parts(tokens, cuts, rows):
    parts = [tokens[first:last] for first, last in zip((0, *cuts), (*cuts, len(tokens)), strict=True)]
    for found, expected in zip(tensors(Padder(parts).batch(rows)), tensors(collate(tokens, rows)), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_tensors_hold_the_memory_of_their_batch_alone(tokens):
    for rows in ([0], [2, 5]):
        for tensor in tensors(collate(tokens, rows)):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
    expected = tokens.arrays["hits"].copy()
    collate(tokens, [0]).hits.features.zero_()
    assert np.array_equal(tokens.arrays["hits"], expected)


def test_batches_without_truth_readout_or_events(events, tokens):
    with pytest.raises(ConfigError, match="at least one event"):
        collate(tokens, [])
    tokeniser = Tokeniser.fit([events], TokenConfig())
    assert collate(tokeniser.encode(events, truth=False)).target is None
    batch = collate(tokeniser.encode(events))
    assert (batch.readout, batch.target.hit_fraction, batch.target.track_fraction) == (None, None, None)
    with pytest.raises(ConfigError, match=r"1 of 2 parts of the events have tracks, expected all or none"):
        Padder([tokens, tokeniser.encode(events)])


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_cut_keeps_the_order_and_to_the_budget_with_padding():
    assert lists(cut([5] * 7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    # 2 x 4 = 8 fits 9, a third event would make 3 x 4 = 12; then 5 + 5 = 10 does not fit.
    assert lists(cut([1, 4, 2, 5, 5], 10, max_tokens=9)) == [[0, 1], [2], [3], [4]]


@pytest.fixture
def lengths() -> np.ndarray:
    return np.random.default_rng(1).integers(1, 1000, 256)


def test_buckets_pad_far_less_than_random_batches(lengths):
    def padded(batches):
        return sum(lengths[batch].max() * len(batch) for batch in batches) / lengths.sum() - 1

    generator = np.random.default_rng(2)
    assert padded(bucket(lengths, 16, None, generator)) < 0.1
    assert padded(np.array_split(generator.permutation(256), 16)) > 0.5


@pytest.mark.parametrize("max_tokens", [None, 5000])
def test_every_event_is_in_one_batch_within_the_limits(lengths, max_tokens):
    sizes = np.array([*lengths, 0, 7000])
    batches = bucket(sizes, 16, max_tokens, np.random.default_rng(2))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(sizes)))
    assert max(map(len, batches)) <= 16
    assert all(len(b) == 1 or max_tokens is None or len(b) * sizes[b].max() <= max_tokens for b in batches)
