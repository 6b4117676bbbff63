"""Keys and values kept between steps, and rows that leave."""

from __future__ import annotations

import pytest
import torch

from pflow.model.common.cache import FIRST_LENGTH, Compaction, KeyValue, KVCache

B, H, D = 5, 2, 3


def cache(max_length: int = 4) -> KVCache:
    return KVCache(batch=B, heads=H, max_length=max_length, head_width=D, dtype=torch.float32, device="cpu")


def token(seed: int, batch: int = B) -> torch.Tensor:
    return torch.randn(batch, H, 1, D, generator=torch.Generator().manual_seed(seed))


def test_update_returns_all_that_was_written_in_order():
    kept = cache()
    kept.update(token(0), token(10))
    known = kept.update(token(1), token(11))
    assert torch.equal(known.key, torch.cat([token(0), token(1)], dim=2))
    assert torch.equal(known.value, torch.cat([token(10), token(11)], dim=2))
    assert len(kept) == 2


def test_update_allocates_nothing_while_there_is_room():
    kept = cache()
    before = kept.update(token(0), token(0)).key.data_ptr()
    assert kept.update(token(1), token(1)).key.data_ptr() == before


def test_memory_follows_what_was_decoded_and_not_what_may_be():
    kept = cache(max_length=10**12)
    tokens = [token(seed) for seed in range(FIRST_LENGTH + 2)]
    for one in tokens:
        known = kept.update(one, -one)
    assert torch.equal(known.key, torch.cat(tokens, dim=2))
    assert torch.equal(known.value, -known.key)
    assert kept.max_length == 10**12
    assert known.key.untyped_storage().nbytes() == 4 * B * H * D * 2 * FIRST_LENGTH


def test_update_rejects_another_batch_size():
    with pytest.raises(ValueError, match=r"\[B, H, S, D\]"):
        cache().update(token(0, batch=2), token(0, batch=2))


def test_update_rejects_values_of_another_shape_than_the_keys():
    with pytest.raises(ValueError, match="v_val"):
        cache().update(token(0), token(0)[..., :2])


def test_update_rejects_more_tokens_than_fit():
    kept = cache(max_length=1)
    kept.update(token(0), token(0))
    with pytest.raises(ValueError, match="holds 1 tokens, 2"):
        kept.update(token(1), token(1))


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
