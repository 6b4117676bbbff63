from __future__ import annotations

import numpy as np
import pytest

from pflow.data.buckets import bucket, cut
from pflow.errors import ConfigError


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_cut_keeps_the_order_and_only_the_last_batch_is_short():
    assert lists(cut([5] * 7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_cut_keeps_to_the_budget_with_padding():
    # By hand: 2 x 4 = 8 fits 9, a third event would make 3 x 4 = 12; then 5 + 5 = 10 does not fit.
    assert lists(cut([1, 4, 2, 5, 5], 10, max_tokens=9)) == [[0, 1], [2], [3], [4]]


def test_an_event_beyond_the_budget_gets_a_batch_of_its_own():
    assert lists(cut([1, 100, 1], 10, max_tokens=9)) == [[0], [1], [2]]


def test_cut_of_nothing_is_nothing():
    assert cut([], 4) == []


@pytest.mark.parametrize(("batch_size", "max_tokens", "name"), [(0, None, "batch size"), (4, 0, "max_tokens")])
def test_limits_below_one_are_errors(batch_size, max_tokens, name):
    with pytest.raises(ConfigError, match=name):
        cut([1, 2], batch_size, max_tokens)


@pytest.fixture
def lengths() -> np.ndarray:
    return np.random.default_rng(1).integers(1, 1000, 256)


@pytest.mark.parametrize("max_tokens", [None, 5000])
def test_every_event_is_in_one_batch(lengths, max_tokens):
    batches = bucket(lengths, 16, max_tokens, np.random.default_rng(2))
    assert sorted(np.concatenate(batches).tolist()) == list(range(256))


def test_buckets_pad_far_less_than_random_batches(lengths):
    def padded(batches):
        return sum(lengths[batch].max() * len(batch) for batch in batches) / lengths.sum() - 1

    generator = np.random.default_rng(2)
    assert padded(bucket(lengths, 16, None, generator)) < 0.1
    assert padded(np.array_split(generator.permutation(256), 16)) > 0.5


def test_the_same_generator_gives_the_same_batches(lengths):
    one, other, third = (lists(bucket(lengths, 16, None, np.random.default_rng(seed))) for seed in (2, 2, 3))
    assert one == other
    assert one != third


def test_the_order_of_the_batches_is_not_that_of_the_lengths(lengths):
    means = [lengths[batch].mean() for batch in bucket(lengths, 16, None, np.random.default_rng(2))]
    assert means != sorted(means)


def test_events_of_equal_length_are_mixed_anew():
    generator = np.random.default_rng(2)
    first = {frozenset(batch.tolist()) for batch in bucket([7] * 64, 8, None, generator)}
    second = {frozenset(batch.tolist()) for batch in bucket([7] * 64, 8, None, generator)}
    assert first != second
