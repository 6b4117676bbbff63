import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pflow.data.batch import Batch
from pflow.data.collate import Padder, collate
from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.tokens.tokens import OFFSETS, Tokens

Event = dict[str, np.ndarray]
"""Arrays of one event, by their names in `OFFSETS`."""


def event(n_hits: int, n_target: int | None = 1, seed: int = 0, tracks: int | None = None) -> Event:
    rng = np.random.default_rng([seed, n_hits])
    target = {}
    if n_target is not None:
        target = {
            "charge": rng.integers(0, 3, n_target),
            "pdg": rng.integers(0, 5, n_target),
            "energy": rng.normal(size=n_target).astype(np.float32),
            "direction": rng.normal(size=(n_target, 3)).astype(np.float32),
        }
    if tracks is not None:
        target["tracks"] = rng.normal(size=(tracks, 2)).astype(np.float32)
    return {"hits": rng.normal(size=(n_hits, 4)).astype(np.float32), **target}


def read_out(n_hits: int, n_tracks: int, n_target: int | None = 1) -> Event:
    """Hit i has energy i + 1 and is half the first target's (if there is one), track i has charge i + 1."""
    vectors = np.ones((n_tracks, 3), dtype=np.float32)
    readout = {
        "energy": np.arange(1, n_hits + 1, dtype=np.float32),
        "position": np.ones((n_hits, 3), dtype=np.float32),
        "subdetector": np.ones(n_hits, dtype=np.int32),
        "layer": np.ones(n_hits, dtype=np.int32),
        "token": np.arange(n_hits) // 2,
        "track_momentum": vectors,
        "track_charge": np.arange(1, n_tracks + 1, dtype=np.float32),
        "track_position": vectors,
        "track_direction": vectors,
    }
    if n_target is not None:
        for kind, n in (("hit_assignment", n_hits), ("track_assignment", n_tracks)):
            source = np.arange(n if n_target else 0)
            readout[f"{kind}.source"], readout[f"{kind}.particle"] = source.astype(np.int32), 0 * source
            readout[f"{kind}.weight"] = np.full(len(source), 0.5, dtype=np.float32)
    return event(n_hits // 2, n_target) | {f"readout.{name}": values for name, values in readout.items()}


def tokens_of(events: Sequence[Event]) -> Tokens:
    """The same events, joined."""
    return Tokens(
        arrays={name: np.concatenate([one[name] for one in events]) for name in events[0]},
        offsets={OFFSETS[name]: jagged.offsets(np.array([len(one[name]) for one in events])) for name in events[0]},
        event=np.arange(len(events)),
        unknown=Counter(),
    )


def padded(*events: Event) -> Batch:
    return collate(tokens_of(events))


def tensors(part: Any) -> list[Tensor]:
    """All tensors of a batch."""
    if isinstance(part, Tensor):
        return [part]
    return [one for value in vars(part).values() for one in tensors(value)] if dataclasses.is_dataclass(part) else []


def assert_equal(one: Batch, other: Batch) -> None:
    for a, b in zip(tensors(one), tensors(other), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.fixture
def mixed() -> list[Event]:
    """Events of which some arrays are long and others short, some without hits, tracks or targets."""
    return [read_out(*numbers) for numbers in ((600, 2, 3), (0, 0, 0), (40, 1, 1), (900, 0, 4), (6, 3, 0), (300, 5, 2))]


def test_a_batch_is_as_long_as_its_own_longest_event_with_zeros_behind():
    batch = padded(event(3, 1), event(5, 2), event(0, 0))
    assert batch.hits.features.shape == (3, 5, 4)
    assert batch.hits.mask.tolist() == [[True] * 3 + [False] * 2, [True] * 5, [False] * 5]
    assert batch.target.mask.tolist() == [[True, False], [True, True], [False, False]]
    assert not batch.hits.features[~batch.hits.mask].any()
    assert not batch.target.direction[~batch.target.mask].any()
    assert batch.tracks is None


def test_a_batch_of_one_equals_its_place_in_a_batch_of_64():
    events = [event(n, n % 4, seed=n, tracks=n % 3) for n in range(64)]
    together = padded(*events)
    for i in (0, 1, 17, 63):
        alone = padded(events[i])
        for name in ("hits", "tracks"):
            n = getattr(alone, name).mask.shape[1]
            assert torch.equal(getattr(together, name).features[i, :n], getattr(alone, name).features[0])
            assert torch.equal(getattr(together, name).mask[i, :n], getattr(alone, name).mask[0])
            assert not getattr(together, name).mask[i, n:].any()
        n = alone.target.mask.shape[1]
        for name in ("charge", "pdg", "energy", "direction", "mask"):
            assert torch.equal(getattr(together.target, name)[i, :n], getattr(alone.target, name)[0])


@pytest.mark.parametrize("cuts", [(3,), (1, 2, 2, 5)])
@pytest.mark.parametrize("rows", [[4, 0, 2], [5], [0, 1, 2, 3, 4, 5]])
def test_events_may_lie_in_several_parts(mixed, cuts, rows):
    """Also in empty ones."""
    tokens = tokens_of(mixed)
    parts = [tokens[first:last] for first, last in zip((0, *cuts), (*cuts, len(mixed)), strict=True)]
    assert_equal(Padder(parts).batch(rows), collate(tokens, rows))


def test_tensors_hold_the_memory_of_their_batch_alone(mixed):
    tokens = tokens_of(mixed)
    for rows in ([0], [2, 5]):
        for tensor in tensors(collate(tokens, rows)):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
    expected = tokens.arrays["hits"].copy()
    collate(tokens, [0]).hits.features.zero_()
    assert np.array_equal(tokens.arrays["hits"], expected)


def test_a_readout_is_padded_to_its_own_longest_event():
    batch = padded(read_out(6, 1), read_out(4, 3))
    assert batch.readout.energy.tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 0, 0]]
    assert batch.readout.track_charge.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert batch.readout.mask.sum(dim=1).tolist() == [6, 4]
    assert batch.readout.track_mask.sum(dim=1).tolist() == [1, 3]
    assert not batch.readout.position[~batch.readout.mask].any()


@pytest.mark.parametrize("times", [1, 200], ids=["short", "long"])
def test_shares_are_dense_and_0_where_padded(times):
    batch = padded(read_out(6 * times, 1, 2), read_out(4 * times, 3, 1), read_out(2 * times, 0, 0))
    assert batch.target.hit_fraction.shape == (3, 2, 6 * times)
    assert batch.target.track_fraction.shape == (3, 2, 3)
    expected = [[0.5] * 6 * times, [0.5] * 4 * times + [0.0] * 2 * times, [0.0] * 6 * times]
    assert batch.target.hit_fraction[:, 0].tolist() == expected
    assert batch.target.track_fraction[:, 0].tolist() == [[0.5, 0, 0], [0.5] * 3, [0.0] * 3]
    assert not batch.target.hit_fraction[:, 1].any()


def test_without_truth_there_is_no_target_and_without_a_readout_no_shares():
    batch = padded(read_out(4, 1, None), read_out(2, 1, None))
    assert batch.readout.mask.shape == (2, 4)
    assert batch.target is None
    batch = padded(event(3, 1), event(2, 1))
    assert (batch.readout, batch.target.hit_fraction, batch.target.track_fraction) == (None, None, None)


def test_a_batch_of_no_events_is_an_error():
    with pytest.raises(ConfigError, match="at least one event"):
        collate(tokens_of([event(3)]), [])


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (event(3, 1), event(3, None), "charge"),
        (event(3, 1), event(3, 1, tracks=2), "tracks"),
        (event(3, None), read_out(4, 1, None), "readout.energy"),
    ],
)
def test_arrays_that_only_some_parts_have_are_an_error(one, other, name):
    with pytest.raises(ConfigError, match=f"1 of 2 parts of the events have {name}, expected all or none"):
        Padder([tokens_of([one]), tokens_of([other])])
