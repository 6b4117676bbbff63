from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from pflow.data.batch import Readout
from pflow.data.collate import collate
from pflow.errors import ConfigError
from pflow.tokens.tokens import Assignment, EventReadout, EventTokens


def event(n_hits: int, n_target: int | None = 1, seed: int = 0, tracks: int | None = None) -> EventTokens:
    rng = np.random.default_rng([seed, n_hits])
    target = {}
    if n_target is not None:
        target = {
            "charge": rng.integers(0, 3, n_target),
            "pdg": rng.integers(0, 5, n_target),
            "energy": rng.normal(size=n_target).astype(np.float32),
            "direction": rng.normal(size=(n_target, 3)).astype(np.float32),
        }
    return EventTokens(
        hits=rng.normal(size=(n_hits, 4)).astype(np.float32),
        tracks=None if tracks is None else rng.normal(size=(tracks, 2)).astype(np.float32),
        **target,
    )


def test_a_batch_is_as_long_as_its_own_longest_event_with_zeros_behind():
    batch = collate([event(3, 1), event(5, 2), event(0, 0)])
    assert batch.hits.features.shape == (3, 5, 4)
    assert batch.hits.mask.tolist() == [[True] * 3 + [False] * 2, [True] * 5, [False] * 5]
    assert batch.target.mask.tolist() == [[True, False], [True, True], [False, False]]
    assert not batch.hits.features[~batch.hits.mask].any()
    assert not batch.target.direction[~batch.target.mask].any()
    assert batch.tracks is None


def test_dtypes_are_those_of_the_model():
    batch = collate([event(2, 1)])
    assert batch.hits.features.dtype == batch.target.energy.dtype == batch.target.direction.dtype == torch.float32
    assert batch.target.charge.dtype == batch.target.pdg.dtype == torch.int64
    assert batch.hits.mask.dtype == torch.bool


def test_a_batch_of_one_equals_its_place_in_a_batch_of_64():
    events = [event(n, n % 4, seed=n, tracks=n % 3) for n in range(64)]
    together = collate(events)
    for i in (0, 1, 17, 63):
        alone = collate([events[i]])
        for name in ("hits", "tracks"):
            n = getattr(alone, name).mask.shape[1]
            assert torch.equal(getattr(together, name).features[i, :n], getattr(alone, name).features[0])
            assert torch.equal(getattr(together, name).mask[i, :n], getattr(alone, name).mask[0])
            assert not getattr(together, name).mask[i, n:].any()
        n = alone.target.mask.shape[1]
        for name in ("charge", "pdg", "energy", "direction", "mask"):
            assert torch.equal(getattr(together.target, name)[i, :n], getattr(alone.target, name)[0])


def test_events_without_any_hits_have_no_tokens():
    batch = collate([event(0, 0), event(0, 0)])
    assert batch.hits.features.shape == (2, 0, 4)
    assert batch.target.mask.shape == (2, 0)


def readout(n_hits: int, n_tracks: int, n_target: int | None = 1) -> EventReadout:
    """Hit i has energy i + 1 and is half the first target's (if there is one), track i has charge i + 1."""

    def half(n: int) -> Assignment | None:
        if n_target is None:
            return None
        source = np.arange(n if n_target else 0)
        return Assignment(source=source, target=0 * source, weight=np.full(len(source), 0.5, dtype=np.float32))

    vectors = np.ones((n_tracks, 3), dtype=np.float32)
    return EventReadout(
        energy=np.arange(1, n_hits + 1, dtype=np.float32),
        position=np.ones((n_hits, 3), dtype=np.float32),
        subdetector=np.ones(n_hits, dtype=np.int64),
        layer=np.ones(n_hits, dtype=np.int64),
        token=np.arange(n_hits) // 2,
        track_momentum=vectors,
        track_charge=np.arange(1, n_tracks + 1, dtype=np.float32),
        track_position=vectors,
        track_direction=vectors,
        hit_assignment=half(n_hits),
        track_assignment=half(n_tracks),
    )


def read_out(n_hits: int, n_tracks: int, n_target: int | None = 1) -> EventTokens:
    return dataclasses.replace(event(n_hits // 2, n_target), readout=readout(n_hits, n_tracks, n_target))


def test_a_readout_is_padded_to_its_own_longest_event():
    batch = collate([read_out(6, 1), read_out(4, 3)])
    assert batch.readout.energy.tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 0, 0]]
    assert batch.readout.track_charge.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert batch.readout.mask.sum(dim=1).tolist() == [6, 4]
    assert batch.readout.track_mask.sum(dim=1).tolist() == [1, 3]
    assert not batch.readout.position[~batch.readout.mask].any()


def test_dtypes_of_the_readout_are_those_of_the_model():
    batch = collate([read_out(4, 1)])
    for field in dataclasses.fields(Readout):
        kind = torch.int64 if field.name in ("subdetector", "layer", "token") else torch.float32
        assert getattr(batch.readout, field.name).dtype == (torch.bool if "mask" in field.name else kind), field.name
    assert batch.target.hit_fraction.dtype == batch.target.track_fraction.dtype == torch.float32


def test_shares_are_dense_and_0_where_padded():
    batch = collate([read_out(6, 1, 2), read_out(4, 3, 1), read_out(2, 0, 0)])
    assert batch.target.hit_fraction.shape == (3, 2, 6)
    assert batch.target.track_fraction.shape == (3, 2, 3)
    assert batch.target.hit_fraction[:, 0].tolist() == [[0.5] * 6, [0.5] * 4 + [0.0] * 2, [0.0] * 6]
    assert batch.target.track_fraction[:, 0].tolist() == [[0.5, 0, 0], [0.5] * 3, [0.0] * 3]
    assert not batch.target.hit_fraction[:, 1].any()


def test_without_truth_there_is_no_target_and_without_a_readout_no_shares():
    batch = collate([read_out(4, 1, None), read_out(2, 1, None)])
    assert batch.readout.mask.shape == (2, 4)
    assert batch.target is None
    batch = collate([event(3, 1), event(2, 1)])
    assert (batch.readout, batch.target.hit_fraction, batch.target.track_fraction) == (None, None, None)


def test_a_readout_without_any_hits_or_tracks_is_empty():
    batch = collate([read_out(0, 0, 1), read_out(0, 0, 0)])
    assert batch.readout.position.shape == (2, 0, 3)
    assert batch.target.hit_fraction.shape == batch.target.track_fraction.shape == (2, 1, 0)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "at least one event"),
        ([event(3, 1), event(3, None)], "1 of the batch's 2 events have a target"),
        ([event(3, 1, tracks=2), event(3, 1)], "1 of the batch's 2 events have tracks"),
        ([event(3, None), read_out(4, 1, None)], "1 of the batch's 2 events have a readout"),
    ],
)
def test_no_events_and_parts_that_only_some_have_are_errors(events, message):
    with pytest.raises(ConfigError, match=message):
        collate(events)
