"""Embedders: their shapes, their marks and what they do with special tokens."""

from __future__ import annotations

import pytest
import torch

from pflow.data.batch import TokenSet
from pflow.model.common.initialise import initialise
from pflow.model.translation import TranslationNetworkConfig
from pflow.model.translation.embed import SourceEmbedder, TargetEmbedder, TargetTokens, TokenEmbedder
from pflow.model.translation.special import BOS, EOS, SAMPLE, special_tokens

W = 8


def widths(network):
    linear = [part for part in network if isinstance(part, torch.nn.Linear)]
    return [linear[0].in_features, *(part.out_features for part in linear)]


@pytest.mark.parametrize(("version", "expected"), [("v1", [5, W, W]), ("v2", [5, 2 * W, 2 * W, W])])
def test_versions_of_the_embedder(version, expected):
    config = TranslationNetworkConfig(embedder=version)
    embedder = TokenEmbedder(features=5, width=W, special=special_tokens("learned"), config=config)
    assert widths(embedder.network) == expected


def source(special, framed=True):
    embedder = SourceEmbedder(
        features=4, special=special_tokens(special), config=TranslationNetworkConfig(width=W), framed=framed
    )
    initialise(embedder, torch.Generator().manual_seed(0))
    return embedder


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_bos_and_eos_frame_each_event(special):
    mask = torch.tensor([[True, True, False], [False, False, False]])
    features = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    x, seen = source(special)(TokenSet(features, mask))
    assert x.shape == (2, 5, W)
    assert seen.tolist() == [[True, True, True, True, False], [True, True, False, False, False]]
    torch.testing.assert_close(x[0, :2], x[1, :2])  # the same bos and eos in each event
    assert not torch.allclose(x[0, 0], x[0, 1])


def test_unframed_sentences_have_neither():
    x, seen = source("learned", framed=False)(TokenSet(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)))
    assert x.shape == (2, 3, W)
    assert seen is None


def test_a_full_sentence_needs_no_mask():
    assert source("flags")(TokenSet(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)))[1] is None


def test_learned_vectors_stand_for_bos_and_eos():
    embedder = TokenEmbedder(features=4, width=W, special=special_tokens("learned"), config=TranslationNetworkConfig())
    initialise(embedder, torch.Generator().manual_seed(0))
    x = embedder(torch.ones(1, 3, 4), torch.tensor([[BOS, EOS, SAMPLE]]))
    assert torch.equal(x[0, :2], torch.stack([embedder.bos, embedder.eos]))
    torch.testing.assert_close(x[0, 2], embedder.network(torch.ones(4)))


@pytest.mark.parametrize("special", ["flags", "kind", "learned"])
def test_bos_is_the_same_alone_and_before_particles(special, make_batch):
    embedder = TargetEmbedder(
        n_charge=3,
        n_pdg=6,
        special=special_tokens(special),
        config=TranslationNetworkConfig(width=W, target_position=True),
    )
    initialise(embedder, torch.Generator().manual_seed(0))
    teacher = embedder(TargetTokens.teacher(make_batch([1, 1], [2, 0]).target))
    torch.testing.assert_close(teacher[:, :1], embedder(TargetTokens.bos(2, torch.device("cpu"))))


@pytest.mark.parametrize("width", [7, 8])
def test_position_of_a_token_does_not_depend_on_where_reading_starts(width, make_batch):
    embedder = TargetEmbedder(
        n_charge=3,
        n_pdg=6,
        special=special_tokens("flags"),
        config=TranslationNetworkConfig(width=width, target_position=True),
    )
    tokens = TargetTokens.teacher(make_batch([1], [3]).target)
    last = TargetTokens(*(part[:, 3:] for part in tokens))
    torch.testing.assert_close(embedder(last, first=3), embedder(tokens)[:, 3:])


def test_equal_particles_differ_by_their_index_alone_and_only_where_asked_for():
    one = torch.ones(1, 2)
    tokens = TargetTokens(one.long(), one.long(), one, torch.ones(1, 2, 3), torch.full((1, 2), SAMPLE))
    for position in (False, True):
        embedder = TargetEmbedder(
            n_charge=3,
            n_pdg=6,
            special=special_tokens("flags"),
            config=TranslationNetworkConfig(width=W, target_position=position),
        )
        x = embedder(tokens)
        assert torch.allclose(x[0, 0], x[0, 1]) is not position
