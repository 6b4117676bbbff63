import math

import pytest
import torch

from pflow.data.batch import Target
from pflow.model.translation.tokens import BOS, EOS, IGNORE, PAD, SAMPLE, SPECIAL, kind_of_input, kind_of_next

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
    assert special.marks(KINDS).tolist() == marks
    assert special.index(torch.tensor([99, 99, 99, 5]), KINDS).tolist() == index


def test_labels():
    """Two particles in the first event, none in the second; what padding holds must not matter.

    Flags: physical indices + 3, eos (2) after the last, pads ignored. Kind: physical indices + 1 on particles alone,
    and the kind says sample (3) or eos (2).
    """
    mask = torch.tensor([[True, True], [False, False]])
    charge, pdg = torch.tensor([[2, 0], [7, 7]]), torch.tensor([[4, 1], [9, -1]])
    target = Target(charge=charge, pdg=pdg, energy=torch.zeros(2, 2), direction=torch.zeros(2, 2, 3), mask=mask)
    assert kind_of_input(mask).tolist() == [[BOS, SAMPLE, SAMPLE], [BOS, PAD, PAD]]
    assert kind_of_next(mask).tolist() == [[SAMPLE, SAMPLE, EOS], [EOS, PAD, PAD]]
    assert {name: label.tolist() for name, label in FLAGS.labels(target).items()} == {
        "charge": [[5, 3, 2], [2, IGNORE, IGNORE]],
        "pdg": [[7, 4, 2], [2, IGNORE, IGNORE]],
    }
    assert {name: label.tolist() for name, label in KIND.labels(target).items()} == {
        "charge": [[3, 1, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "pdg": [[5, 2, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "kind": [[3, 3, 2], [2, IGNORE, IGNORE]],
    }


def test_flags_ends_where_the_charge_head_says_eos():
    """Event 0: eos is the best. Event 1: charge 1 (class 4), though pad and bos are better still, and the PDG's eos."""
    charge, pdg = [[0, 0, 5, 1, 2, 3], [9, 9, 0, 1, 2, 1]], [[0, 0, 0, 1, 0], [9, 9, 9, 1, 2]]
    choice = choose(FLAGS, charge=charge, pdg=pdg)
    assert choice.ended.tolist() == [True, False]
    assert (choice.charge[1], choice.pdg[1]) == (1, 1)


def test_kind_head_alone_ends_a_sequence():
    """Event 0: eos beats sample, though pad and bos are better. Event 1: sample; special class 0 is never chosen."""
    choice = choose(KIND, kind=[[9, 9, 2, 1], [9, 9, 1, 2]], charge=[[9, 0, 1, 0]] * 2, pdg=[[9, 3, 1]] * 2)
    assert choice.ended.tolist() == [True, False]
    assert (choice.charge[1], choice.pdg[1]) == (1, 0)


@pytest.mark.parametrize("special", [FLAGS, KIND])
@pytest.mark.parametrize(("threshold", "ended"), [(0.1, True), (0.39, True), (0.41, False), (0.9, False), (1, False)])
def test_the_end_needs_the_probability_of_the_threshold(special, threshold, ended):
    """The end has a probability of 0.4; with Flags the charge head ends the sequence, and two charges have 0.3 each."""
    low, charge, particle = -50.0, math.log(0.3 / 0.4), math.log(0.6 / 0.4)
    logits = {"charge": [[low, low, 0, low, charge, charge]], "kind": [[low, low, 0, particle]], "pdg": [[0, 0, 0, 0]]}
    assert choose(special, **logits, eos_threshold=threshold).ended.tolist() == [ended]


@pytest.mark.parametrize("special", [FLAGS, KIND])
def test_score_is_the_probability_of_the_pdg_among_physical_ones(special):
    """Two physical classes with logits 0 and log 3: probability 3/4, whatever the special classes say."""
    pdg = [[9.0] * special.offset + [0.0, math.log(3.0)]]
    token = choose(special, pdg=pdg, charge=[[1.0] * (special.offset + 2)], kind=[[0, 0, 0, 1]])
    torch.testing.assert_close(token.score, torch.tensor([0.75]))
