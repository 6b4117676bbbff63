import pytest
import torch

from pflow.data.batch import TokenSet
from pflow.model.translation import TranslationNetworkConfig
from pflow.model.translation.network import Heads
from pflow.model.translation.tokens import SPECIAL, SourceEmbedder, TokenEmbedder

W = 8


@pytest.mark.parametrize(
    ("version", "layers", "expected"),
    [("v1", None, [9, W, W]), ("v2", None, [9, 2 * W, 2 * W, W]), ("v2", 2, [9, 2 * W, W]), ("v1", 1, [9, W])],
)
def test_versions_of_the_embedder(version, layers, expected):
    config = TranslationNetworkConfig(embedder=version, embedder_layers=layers)
    embedder = TokenEmbedder(features=5, width=W, special=SPECIAL["kind"], config=config)
    linear = [part for part in embedder.network if isinstance(part, torch.nn.Linear)]
    assert [linear[0].in_features, *(part.out_features for part in linear)] == expected


@pytest.mark.parametrize("special", SPECIAL)
def test_bos_and_eos_frame_each_event(special):
    config = TranslationNetworkConfig(width=W)
    framed, bare = (
        SourceEmbedder(features=4, special=SPECIAL[special], config=config, framed=framed) for framed in (True, False)
    )
    mask = torch.tensor([[True, True, False], [False, False, False]])
    features = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    x, seen = framed(TokenSet(features, mask))
    assert x.shape == (2, 5, W)
    assert seen.tolist() == [[True, True, True, True, False], [True, True, False, False, False]]
    torch.testing.assert_close(x[0, :2], x[1, :2])  # the same bos and eos in each event
    assert not torch.allclose(x[0, 0], x[0, 1])
    x, seen = bare(TokenSet(features, torch.ones_like(mask)))
    assert x.shape == (2, 3, W)
    assert seen is None  # without padding


def test_a_vector_is_made_a_unit_vector_and_turns_without_a_jump():
    heads = Heads(classes={"pdg": 3}, width=2, direction="vector")
    with torch.no_grad():
        heads.continuous[0].weight.copy_(torch.tensor([[0.0, 0], [3, 0], [0, 3], [0, 0]]))
        heads.continuous[0].bias.zero_()
    angle = torch.linspace(3.0, 3.3, 5)  # across the jump of phi
    direction = heads(torch.stack([angle.cos(), angle.sin()], dim=-1)[None])["direction"][0]
    torch.testing.assert_close(direction[:, :2], torch.stack([angle.cos(), angle.sin()], dim=-1))
