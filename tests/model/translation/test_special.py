"""Special tokens, each against sequences decoded by hand."""

from __future__ import annotations

import math

import pytest
import torch

from pflow.data.batch import Target
from pflow.model.translation.special import BOS, EOS, IGNORE, PAD, SAMPLE, Flags, Kind, kind_of_input, kind_of_next

KINDS = torch.tensor([PAD, BOS, EOS, SAMPLE])
FLAGS, KIND = Flags(), Kind()


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


def test_input_is_bos_and_the_particles_and_output_the_particles_and_eos(target):
    assert kind_of_input(target.mask).tolist() == [[BOS, SAMPLE, SAMPLE], [BOS, PAD, PAD]]
    assert kind_of_next(target.mask).tolist() == [[SAMPLE, SAMPLE, EOS], [EOS, PAD, PAD]]


def test_flags_mark_pad_01_bos_11_eos_10_sample_00():
    assert FLAGS.marks(KINDS).tolist() == [[0, 1], [1, 1], [1, 0], [0, 0]]


def test_kind_marks_one_of_four():
    assert KIND.marks(KINDS).tolist() == torch.eye(4).tolist()


@pytest.mark.parametrize(("special", "expected"), [(FLAGS, [0, 1, 2, 8]), (KIND, [0, 0, 0, 6])])
def test_index_in_the_vocabulary(special, expected):
    """Of pad, bos, eos and a sample of physical index 5."""
    assert special.index(torch.tensor([99, 99, 99, 5]), KINDS).tolist() == expected


def test_labels_of_flags(target):
    """Physical indices + 3, eos (2) after the last, pads ignored."""
    labels = FLAGS.labels(target)
    assert {name: label.tolist() for name, label in labels.items()} == {
        "charge": [[5, 3, 2], [2, IGNORE, IGNORE]],
        "pdg": [[7, 4, 2], [2, IGNORE, IGNORE]],
    }


def test_labels_of_kind(target):
    """Physical indices + 1 on particles alone; the kind says sample (3) or eos (2)."""
    labels = KIND.labels(target)
    assert {name: label.tolist() for name, label in labels.items()} == {
        "charge": [[3, 1, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "pdg": [[5, 2, IGNORE], [IGNORE, IGNORE, IGNORE]],
        "kind": [[3, 3, 2], [2, IGNORE, IGNORE]],
    }


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_flags_ends_where_the_charge_head_says_eos():
    """Event 0: eos is the best. Event 1: charge 1 (class 4), though pad and bos are better still, and the PDG's eos."""
    prediction = {
        "charge": logits([0, 0, 5, 1, 2, 3], [9, 9, 0, 1, 2, 1]),
        "pdg": logits([0, 0, 0, 1, 0], [9, 9, 9, 1, 2]),
    }
    choice = FLAGS.choose(prediction, greedy)
    assert choice.ended.tolist() == [True, False]
    assert (choice.charge[1], choice.pdg[1]) == (1, 1)


def test_kind_head_alone_ends_a_sequence():
    """Event 0: eos beats sample, though pad and bos are better. Event 1: sample; special class 0 is never chosen."""
    prediction = {
        "kind": logits([9, 9, 2, 1], [9, 9, 1, 2]),
        "charge": logits([9, 0, 1, 0], [9, 0, 1, 0]),
        "pdg": logits([9, 3, 1], [9, 3, 1]),
    }
    choice = KIND.choose(prediction, greedy)
    assert choice.ended.tolist() == [True, False]
    assert (choice.charge[1], choice.pdg[1]) == (1, 0)


@pytest.mark.parametrize("special", [FLAGS, KIND])
@pytest.mark.parametrize(("threshold", "ended"), [(0.1, True), (0.24, True), (0.26, False), (0.9, False), (1, False)])
def test_the_end_needs_the_probability_of_the_threshold(special, threshold, ended):
    """The end has a probability of 1/4, one other class 3/4."""
    low, best = -50.0, math.log(3)
    prediction = {
        "charge": logits([low, low, 0, low, best, low]),  # of Flags, whose charge head ends the sequence
        "kind": logits([low, low, 0, best]),
        "pdg": logits([0, 0, 0, 0]),
    }
    assert special.choose(prediction, greedy, eos_threshold=threshold).ended.tolist() == [ended]


@pytest.mark.parametrize("special", [FLAGS, KIND])
def test_score_is_the_probability_of_the_pdg_among_physical_ones(special):
    """Two physical classes with logits 0 and log 3: probability 3/4, whatever the special classes say."""
    pdg = logits([9.0] * special.offset + [0.0, math.log(3.0)])
    prediction = {"charge": torch.ones(1, special.offset + 2), "pdg": pdg, "kind": logits([0, 0, 0, 1])}
    torch.testing.assert_close(special.choose(prediction, greedy).score, torch.tensor([0.75]))
