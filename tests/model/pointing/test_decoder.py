import math

import pytest
import torch

from pflow.model.common.cache import KVCache
from pflow.model.pointing import PointingNetworkConfig
from pflow.model.pointing.attention import Coverage
from pflow.model.pointing.decoder import CoverageDecoder, SeedPointer


def test_steps_with_caches_equal_the_whole_sequence():
    torch.manual_seed(0)
    decoder = CoverageDecoder(PointingNetworkConfig(width=12, heads=3, feedforward=16), layers=2).eval()
    x, states, assigned = torch.randn(2, 4, 12), torch.randn(2, 6, 12), torch.rand(2, 1, 4, 6)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    memory, caches = decoder.project(states), [KVCache() for _ in decoder.layers]
    whole = decoder(x, memory, Coverage.of(assigned, mask))
    steps = [decoder(x[:, t], memory, Coverage.of(assigned[:, :, t : t + 1], mask), caches=caches) for t in range(4)]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole)


@pytest.fixture
def pointer():
    torch.manual_seed(0)
    pointer = SeedPointer(width=12, hidden_width=4)
    pointer.set_initial_values()
    return pointer


@pytest.fixture
def asked(pointer):
    """States of two positions, keys, and the assigned fraction and unassigned energy of each token."""
    generator = torch.Generator().manual_seed(1)
    assigned = torch.rand(4, 1, 2, 5, generator=generator)
    states, memory = torch.randn(4, 2, 12, generator=generator), torch.randn(4, 5, 12, generator=generator)
    return memory, (states, pointer.project(memory), assigned, (1.0 - assigned) * 3.0)


def test_one_position_gives_the_same_logits(pointer, asked):
    _, (states, keys, *assigned) = asked
    whole = pointer(states, keys, *assigned)
    one = pointer(states[:, 1], keys, *(part[:, :, 1:] for part in assigned))
    torch.testing.assert_close(one, (whole[0][:, 1], whole[1][:, 1]))


def test_the_pointers_logits_by_hand(pointer, asked):
    memory, (states, _, assigned, unassigned_energy) = asked
    b, t, s = 1, 1, 3
    with torch.no_grad():
        logits, eos_logit = pointer(*asked[1])
        queries, keys = pointer.state(states[b, t]).view(3, 4), pointer.token(memory[b, s]).view(3, 4)
        plain, taken, energetic = (
            float(queries[i] @ keys[i]) / 2.0 + offset for i, offset in enumerate((-3.0, -3.0, 0.5))
        )
        left = math.log(float(unassigned_energy[b, 0, t, s]) + 1e-3)
        expected = plain + taken * float(assigned[b, 0, t, s]) + energetic * left
        assert float(logits[b, t, s]) == pytest.approx(expected, abs=1e-4)
        assert float(eos_logit[b, t]) == pytest.approx(float(pointer.eos(states[b, t])), abs=1e-5)


def test_without_tokens_the_end_is_certain(pointer):
    logits, eos_logit = pointer(torch.randn(1, 12), torch.zeros(1, 3, 4, 0), *[torch.zeros(1, 1, 1, 0)] * 2)
    assert torch.cat([logits, eos_logit], dim=-1).softmax(-1).tolist() == [[1.0]]
