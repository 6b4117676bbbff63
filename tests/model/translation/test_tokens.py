import math

import pytest
import torch

from pflow.data.batch import Target, TokenSet
from pflow.model.translation import TranslationNetworkConfig
from pflow.model.translation.network import Heads
from pflow.model.translation.tokens import (
    BOS,
    EOS,
    IGNORE,
    PAD,
    SAMPLE,
    SPECIAL,
    SourceEmbedder,
    TargetTokens,
    TokenEmbedder,
)

KINDS = torch.tensor([PAD, BOS, EOS, SAMPLE])
FLAGS, KIND = SPECIAL["flags"], SPECIAL["kind"]


def choose(special, *, eos_threshold=0.5, **prediction):
    logits = {name: torch.tensor(rows, dtype=torch.float32) for name, rows in prediction.items()}
    return special.choose(logits, eos_threshold=eos_threshold)


@pytest.mark.parametrize(
    ("special", "marks", "index"),
    [(FLAGS, [[0, 1], [1, 1], [1, 0], [0, 0]], [0, 1, 2, 8]), (KIND, torch.eye(4).tolist(), [0, 0, 0, 6])],
)
def test_marks_and_index_in_the_vocabulary_of_each_kind_of_token(special, marks, index):
    """Of pad, bos, eos and a sample of physical index 5."""
    assert torch.tensor(special.marks_of_kinds)[KINDS].tolist() == marks
    assert special.index(torch.tensor([99, 99, 99, 5]), KINDS).tolist() == index


def test_labels():
    """Two particles in the first event, none in the second; what padding holds must not matter.

    Flags: physical indices + 3, eos (2) after the last, pads ignored. Kind: physical indices + 1 on particles alone,
    and the kind says sample (3) or eos (2).
    """
    mask = torch.tensor([[True, True], [False, False]])
    charge, pdg = torch.tensor([[2, 0], [7, 7]]), torch.tensor([[4, 1], [9, -1]])
    target = Target(charge=charge, pdg=pdg, energy=torch.zeros(2, 2), direction=torch.zeros(2, 2, 3), mask=mask)
    assert TargetTokens.teacher(target).kind.tolist() == [[BOS, SAMPLE, SAMPLE], [BOS, PAD, PAD]]
    assert {name: label.tolist() for name, label in FLAGS.labels(target).items()} == {
        "charge": [[5, 3, 2], [2, IGNORE, IGNORE]],
        "pdg": [[7, 4, 2], [2, IGNORE, IGNORE]],
    }
    assert {name: label.tolist() for name, label in KIND.labels(target).items()} == {
        "charge": [[3, 1, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "pdg": [[5, 2, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "kind": [[3, 3, 2], [2, IGNORE, IGNORE]],
    }


def test_the_head_of_the_charge_or_kind_ends_a_sequence():
    """Event 0: eos is the best. Event 1: charge 1 (class 4), though pad and bos are better still, and the PDG's eos.
    Event 0: eos beats sample, though pad and bos are better. Event 1: sample; special class 0 is never chosen.
    """
    charge, pdg = [[0, 0, 5, 1, 2, 3], [9, 9, 0, 1, 2, 1]], [[0, 0, 0, 1, 0], [9, 9, 9, 1, 2]]
    ended, choice = choose(FLAGS, charge=charge, pdg=pdg)
    assert ended.tolist() == [True, False]
    assert (choice["charge"][1], choice["pdg"][1]) == (1, 1)
    ended, choice = choose(KIND, kind=[[9, 9, 2, 1], [9, 9, 1, 2]], charge=[[9, 0, 1, 0]] * 2, pdg=[[9, 3, 1]] * 2)
    assert ended.tolist() == [True, False]
    assert (choice["charge"][1], choice["pdg"][1]) == (1, 0)


@pytest.mark.parametrize("special", [FLAGS, KIND])
@pytest.mark.parametrize(("threshold", "ended"), [(0.1, True), (0.39, True), (0.41, False), (1, False), (None, True)])
def test_the_end_needs_the_probability_of_the_threshold(special, threshold, ended):
    """The end has a probability of 0.4; with Flags the charge head ends the sequence, and two charges have 0.3 each.

    Without a threshold it ends where it has the largest one.
    """
    low, charge, particle = -50.0, math.log(0.3 / 0.4), math.log(0.6 / 0.4)
    ended = ended and not (threshold is None and special is KIND)  # its only other class has 0.6
    logits = {"charge": [[low, low, 0, low, charge, charge]], "kind": [[low, low, 0, particle]], "pdg": [[0, 0, 0, 0]]}
    assert choose(special, **logits, eos_threshold=threshold)[0].tolist() == [ended]


@pytest.mark.parametrize("special", [FLAGS, KIND])
def test_score_is_the_probability_of_the_pdg_among_physical_ones(special):
    """Two physical classes with logits 0 and log 3: probability 3/4, whatever the special classes say."""
    pdg = [[9.0] * special.offset + [0.0, math.log(3.0)]]
    _, token = choose(special, pdg=pdg, charge=[[1.0] * (special.offset + 2)], kind=[[0, 0, 0, 1]])
    torch.testing.assert_close(token["score"], torch.tensor([0.75]))


W = 8


@pytest.mark.parametrize(
    ("version", "layers", "expected"),
    [("v1", None, [9, W, W]), ("v2", None, [9, 2 * W, 2 * W, W]), ("v2", 2, [9, 2 * W, W]), ("v1", 1, [9, W])],
)
def test_versions_of_the_embedder(version, layers, expected):
    config = TranslationNetworkConfig(special="kind", embedder=version, embedder_layers=layers)
    embedder = TokenEmbedder(features=5, width=W, config=config)
    linear = [part for part in embedder.network if isinstance(part, torch.nn.Linear)]
    assert [linear[0].in_features, *(part.out_features for part in linear)] == expected


@pytest.mark.parametrize("special", SPECIAL)
def test_bos_and_eos_frame_each_event(special):
    config = TranslationNetworkConfig(width=W, special=special)
    framed, bare = (SourceEmbedder(features=4, config=config, framed=framed) for framed in (True, False))
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
