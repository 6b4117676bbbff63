import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pflow.data.collate import Padder, collate
from pflow.errors import ConfigError
from pflow.event.events import Events
from pflow.event.merge_hits import Merge
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
    """All tensors of a batch."""
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
    """Also in empty ones."""
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


def test_without_truth_there_is_no_target_and_without_a_readout_no_shares(events, tokens):
    tokeniser = Tokeniser.fit([events], TokenConfig())
    assert collate(tokeniser.encode(events, truth=False)).target is None
    batch = collate(tokeniser.encode(events))
    assert (batch.readout, batch.target.hit_fraction, batch.target.track_fraction) == (None, None, None)
    with pytest.raises(ConfigError, match=r"1 of 2 parts of the events have tracks, expected all or none"):
        Padder([tokens, tokeniser.encode(events)])


def test_a_batch_of_no_events_is_an_error(tokens):
    with pytest.raises(ConfigError, match="at least one event"):
        collate(tokens, [])
