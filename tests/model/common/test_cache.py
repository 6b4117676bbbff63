"""Keys and values kept between steps, and rows that leave."""

from __future__ import annotations

import pytest
import torch

from pflow.model.common.cache import Compaction, KeyValue, KVCache

B, H, D = 5, 2, 3


def cache(max_length: int = 4) -> KVCache:
    return KVCache.like(torch.zeros(B, H * D), heads=H, max_length=max_length)


def token(seed: int, batch: int = B) -> torch.Tensor:
    return torch.randn(batch, H, 1, D, generator=torch.Generator().manual_seed(seed))


def test_update_returns_all_tokens_in_order_and_allocates_nothing_after_the_start():
    kept = cache()
    first = kept.update(token(0), token(10))
    known = kept.update(token(1), token(11))
    assert torch.equal(known.key, torch.cat([token(0), token(1)], dim=2))
    assert torch.equal(known.value, torch.cat([token(10), token(11)], dim=2))
    assert len(kept) == 2
    assert known.key.data_ptr() == first.key.data_ptr()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (token(0, batch=2), token(0, batch=2), r"\[B, H, S, D\]"),
        (token(0), token(0)[..., :2], "v_val"),
        (token(0).expand(-1, -1, 5, -1), token(0).expand(-1, -1, 5, -1), "holds 4 tokens, 5"),
    ],
)
def test_update_rejects_what_does_not_fit(key, value, message):
    with pytest.raises(ValueError, match=message):
        cache().update(key, value)


@pytest.mark.parametrize(
    "stays",
    [[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]],
    ids=["all", "gaps", "front", "last", "none"],
)
def test_compaction_keeps_the_rows_that_stay(stays):
    mask = torch.tensor(stays, dtype=torch.bool)
    kept = Compaction.of(mask).apply(torch.arange(5))
    assert sorted(kept.tolist()) == mask.nonzero().flatten().tolist()


def test_compaction_moves_no_more_rows_than_leave():
    compaction = Compaction.of(torch.tensor([True, False, True, True, True]))
    assert len(compaction.movers) == 1


def test_cache_and_memory_are_compacted_alike():
    kept = cache()
    written = kept.update(token(0), token(1))
    memory = KeyValue(written.key.clone(), written.value.clone())
    compaction = Compaction.of(torch.tensor([False, True, False, True, True]))
    kept.compact(compaction)
    memory = memory.compact(compaction)
    known = kept.update(token(2, batch=3), token(3, batch=3))
    assert torch.equal(known.key[:, :, :1], memory.key)
    assert torch.equal(known.value[:, :, :1], memory.value)
