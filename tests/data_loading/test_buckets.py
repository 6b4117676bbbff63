import numpy as np
import pytest

from pflow.data.collate import bucket, cut


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_cut_keeps_the_order_and_only_the_last_batch_is_short():
    assert lists(cut([5] * 7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_cut_keeps_to_the_budget_with_padding():
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
