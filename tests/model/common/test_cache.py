"""Keys and values kept between steps, and rows that leave."""

import torch

from pflow.model.common.transformer import FIRST_LENGTH, KVCache

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
