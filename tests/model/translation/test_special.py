"""Special tokens, each against sequences decoded by hand."""

from __future__ import annotations

import pytest
import torch

from pflow.data.batch import Target
from pflow.model.translation.special import (
    BOS,
    EOS,
    IGNORE,
    PAD,
    SAMPLE,
    kind_of_input,
    kind_of_next,
    special_tokens,
)

NAMES = ("flags", "kind", "learned")
KINDS = torch.tensor([PAD, BOS, EOS, SAMPLE])


def greedy(logits):
    return logits.argmax(-1)


@pytest.fixture
def target():
    """Two particles in the first event, none in the second; what padding holds must not matter."""
    return Target(
        charge=torch.tensor([[2, 0], [7, 7]]),
        pdg=torch.tensor([[4, 1], [9, -1]]),
        energy=torch.zeros(2, 2),
        direction=torch.zeros(2, 2, 3),
        mask=torch.tensor([[True, True], [False, False]]),
    )


def test_input_is_bos_and_the_particles(target):
    assert kind_of_input(target.mask).tolist() == [[BOS, SAMPLE, SAMPLE], [BOS, PAD, PAD]]


def test_output_is_the_particles_and_eos(target):
    assert kind_of_next(target.mask).tolist() == [[SAMPLE, SAMPLE, EOS], [EOS, PAD, PAD]]


def test_flags_mark_sample_00_pad_01_eos_10_bos_11():
    marks = special_tokens("flags").marks(torch.tensor([SAMPLE, PAD, EOS, BOS]))
    assert marks.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_kind_marks_one_of_four():
    marks = special_tokens("kind").marks(torch.tensor([PAD, BOS, EOS, SAMPLE]))
    assert marks.tolist() == torch.eye(4).tolist()


def test_learned_marks_nothing():
    assert special_tokens("learned").marks(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("flags", [0, 1, 2, 8]), ("kind", [0, 0, 0, 6]), ("learned", [0, 0, 0, 5])],
)
def test_index_in_the_vocabulary(name, expected):
    """Of pad, bos, eos and a sample of physical index 5."""
    assert special_tokens(name).index(torch.tensor([99, 99, 99, 5]), KINDS).tolist() == expected


def test_labels_of_flags(target):
    """Physical indices + 3, eos (2) after the last, pads ignored."""
    labels = special_tokens("flags").labels(target)
    assert {name: label.tolist() for name, label in labels.items()} == {
        "charge": [[5, 3, 2], [2, IGNORE, IGNORE]],
        "pdg": [[7, 4, 2], [2, IGNORE, IGNORE]],
    }


def test_labels_of_kind(target):
    """Physical indices + 1 on particles alone; the kind says sample (3) or eos (2)."""
    labels = special_tokens("kind").labels(target)
    assert {name: label.tolist() for name, label in labels.items()} == {
        "charge": [[3, 1, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "pdg": [[5, 2, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "kind": [[3, 3, 2], [2, IGNORE, IGNORE]],
    }


def test_labels_of_learned(target):
    """Physical indices on particles alone; go on (0) or stop (1)."""
    labels = special_tokens("learned").labels(target)
    assert {name: label.tolist() for name, label in labels.items()} == {
        "charge": [[2, 0, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "pdg": [[4, 1, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "stop": [[0, 0, 1], [1, IGNORE, IGNORE]],
    }


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_flags_ends_where_the_charge_head_says_eos():
    """Event 0: eos is the best. Event 1: charge 1 (class 4), though pad and bos are better still."""
    choice = special_tokens("flags").choose(
        {
            "charge": logits([0, 0, 5, 1, 2, 3], [9, 9, 0, 1, 2, 1]),
            "pdg": logits([0, 0, 0, 1, 0], [9, 9, 9, 1, 2]),
        },
        greedy,
    )
    assert choice.ended.tolist() == [True, False]
    assert choice.charge[1] == 1
    assert choice.pdg[1] == 1


def test_flags_pdg_head_does_not_end_a_sentence():
    prediction = {"charge": logits([0, 0, 0, 1, 2, 3]), "pdg": logits([0, 0, 9, 1, 0])}
    choice = special_tokens("flags").choose(prediction, greedy)
    assert choice.ended.tolist() == [False]
    assert choice.charge.tolist() == [2]
    assert choice.pdg.tolist() == [0]


def test_kind_head_alone_ends_a_sentence():
    """Event 0: eos beats sample, though pad and bos are better. Event 1: sample; special class 0 is never chosen."""
    choice = special_tokens("kind").choose(
        {
            "kind": logits([9, 9, 2, 1], [9, 9, 1, 2]),
            "charge": logits([9, 0, 1, 0], [9, 0, 1, 0]),
            "pdg": logits([9, 3, 1], [9, 3, 1]),
        },
        greedy,
    )
    assert choice.ended.tolist() == [True, False]
    assert choice.charge[1] == 1
    assert choice.pdg[1] == 0


def test_stop_head_alone_ends_a_sentence():
    choice = special_tokens("learned").choose(
        {"stop": logits([0, 1], [1, 0]), "charge": logits([0, 1, 0], [0, 1, 0]), "pdg": logits([0, 1], [0, 1])}, greedy
    )
    assert choice.ended.tolist() == [True, False]
    assert choice.charge[1] == 1


@pytest.mark.parametrize("name", NAMES)
def test_score_is_the_probability_of_the_pdg_among_physical_ones(name):
    """Two physical classes with logits 0 and log 3: probability 3/4, whatever the special classes say."""
    special = special_tokens(name)
    pdg = torch.cat([torch.full((1, special.offset), 9.0), torch.zeros(1, 2)], dim=1)
    pdg[0, -1] = torch.log(torch.tensor(3.0))
    prediction = {
        "charge": torch.ones(1, special.offset + 2),
        "pdg": pdg,
        "kind": logits([0, 0, 0, 1]),
        "stop": logits([1, 0]),
    }
    choice = special.choose(prediction, greedy)
    torch.testing.assert_close(choice.score, torch.tensor([0.75]))


def test_unknown_name_is_rejected():
    with pytest.raises(ValueError, match="special: 'paper'"):
        special_tokens("paper")
