"""Keys and values kept between steps, and rows that leave."""

import pytest
import torch

from pflow.model.common.cache import FIRST_LENGTH, Compaction, KeyValue, KVCache

B, H, D = 5, 2, 3


def token(seed: int, batch: int = B, n: int = 1) -> torch.Tensor:
    return torch.randn(batch, H, n, D, generator=torch.Generator().manual_seed(seed))


def test_update_returns_all_tokens_in_order_also_when_the_storage_grows():
    cache, keys, values = KVCache(), token(0, n=FIRST_LENGTH + 2), token(1, n=FIRST_LENGTH + 2)
    for i in range(FIRST_LENGTH + 2):
        known = cache.update(keys[:, :, i : i + 1], values[:, :, i : i + 1])
        if i == 1:
            first = known.key.data_ptr()
        if i == FIRST_LENGTH - 1:
            assert known.key.data_ptr() == first  # nothing was allocated
    assert torch.equal(known.key, keys)
    assert torch.equal(known.value, values)
    assert len(cache) == FIRST_LENGTH + 2


@pytest.mark.parametrize(
    "stays",
    [[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
    ids=["all", "gaps", "front", "last", "none"],
)
def test_compaction_keeps_the_rows_that_stay_and_moves_no_more_than_leave(stays):
    mask = torch.tensor(stays, dtype=torch.bool)
    compaction = Compaction.of(mask)
    assert sorted(compaction.apply(torch.arange(5)).tolist()) == mask.nonzero().flatten().tolist()
    assert len(compaction.movers) <= min(int(mask.sum()), int((~mask).sum()))


def test_cache_and_memory_are_compacted_alike():
    cache = KVCache()
    written = cache.update(token(0), token(1))
    memory = KeyValue(written.key.clone(), written.value.clone())
    compaction = Compaction.of(torch.tensor([False, True, False, True, True]))
    cache.compact(compaction)
    memory = memory.compact(compaction)
    known = cache.update(token(2, batch=3), token(3, batch=3))
    assert torch.equal(known.key[:, :, :1], memory.key)
    assert torch.equal(known.value[:, :, :1], memory.value)
