"""Packed events: the same numbers as padded ones, and none of the padding."""

import dataclasses

import pytest
import torch

from pflow.model.common.layers import Packing
from pflow.model.translation import TranslationNetworkConfig
from pflow.model.translation.layers import make_encoder

W, H = 8, 2
CONFIG = TranslationNetworkConfig(width=W, heads=H, feedforward=16, encoder_layers=2)
MASK = torch.tensor([[True, False, True, True], [True, False, False, False], [False, True, True, False]])


@pytest.fixture
def x():
    return torch.randn(3, 4, W, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def unpacked(monkeypatch):
    """Switch packing off, as on a GPU."""

    def switch_off():
        monkeypatch.setattr(Packing, "of", staticmethod(lambda mask: None))

    return switch_off


def test_nothing_is_packed_without_padding_or_off_the_cpu():
    assert Packing.of(None) is None
    assert Packing.of(MASK.to("meta")) is None


@pytest.mark.parametrize("other_mask", [None, torch.tensor([[True, True], [True, False], [False, True]])])
def test_cross_encoder_is_the_same_packed_and_padded(other_mask, x, unpacked):
    encoder = make_encoder(dataclasses.replace(CONFIG, source="cross"))
    memory = torch.randn(3, 2, W, generator=torch.Generator().manual_seed(1))
    packed = encoder(x, mask=MASK, memory=memory, memory_mask=other_mask)
    unpacked()
    torch.testing.assert_close(packed[MASK], encoder(x, mask=MASK, memory=memory, memory_mask=other_mask)[MASK])


def test_encoder_and_its_gradients_are_the_same_packed_and_padded(x, unpacked):
    encoder = make_encoder(CONFIG)
    encoded, gradients = [], []
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        encoded.append(encoder(leaf, mask=MASK)[MASK])
        encoded[-1].square().sum().backward()
        gradients.append(leaf.grad)
        unpacked()
    torch.testing.assert_close(*encoded)
    torch.testing.assert_close(*gradients)


def test_an_event_without_any_token_packs(x):
    mask = torch.tensor([[False] * 4, [True] * 4, [False] * 4])
    encoder = make_encoder(CONFIG)
    encoded = encoder(x, mask=mask)
    assert encoded.isfinite().all()
    torch.testing.assert_close(encoded[1:2], encoder(x[1:2]))
