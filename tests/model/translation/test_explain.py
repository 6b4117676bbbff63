import pytest
import torch

from pflow.model.api import DecodingConfig
from pflow.model.translation.explain import explain


@pytest.fixture(params=["flags", "kind"])
def explained(request, make_model, make_batch):
    model = make_model(special=request.param).eval()
    batch = make_batch([7])
    particles = model.generate(batch, decoding=DecodingConfig(max_particles=3))
    return model, particles, explain(model.network, batch, particles)


def test_probabilities_sum_to_one_in_each_step(explained):
    model, particles, found = explained
    for name in model.network.heads.classifiers:
        total = found[f"probability.{name}"].sum(-1)
        assert total.shape == (particles.mask.shape[1] + 1,)
        torch.testing.assert_close(total, torch.ones_like(total))


def test_attention_is_of_every_layer_and_looks_back_only(explained):
    _, particles, found = explained
    steps, source = particles.mask.shape[1] + 1, 7 + 2  # bos and eos stand among the hits
    for name, weights in found.items():
        if not name.startswith("attention."):
            continue
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        if ".source." in name:
            assert weights.shape[1:] == (source, source)
        elif name.endswith("memory_attention"):
            assert weights.shape[1:] == (steps, source)
        else:
            assert weights.shape[1:] == (steps, steps)
            assert not weights.triu(1).any()
    assert sum(name.startswith("attention.") for name in found) >= 3


def test_the_network_records_nothing_afterwards(explained):
    model, _, _ = explained
    assert not any(module._forward_pre_hooks for module in model.modules())
