from __future__ import annotations

import numpy as np
import pytest

from pflow.errors import ConfigError
from pflow.physics.pdg import charge_of
from pflow.tokens.vocab import CHARGES, PdgVocabulary, charge_index, signed_pdg

SEEN = PdgVocabulary.from_counts({211: 50, 321: 7, 22: 90, 130: 4, 2112: 9})


def test_charge_index_counts_from_minus_one():
    assert [CHARGES[i] for i in charge_index([-1.0, 0.0, 1.0, 1.0])] == [-1, 0, 1, 1]


def test_of_a_multiple_charge_the_sign_is_kept():
    assert charge_index([2.0, -3.0]).tolist() == [2, 0]


def test_an_unknown_charge_is_an_error():
    with pytest.raises(ConfigError, match="not a finite number"):
        charge_index([np.nan])


def test_codes_are_sorted_and_antiparticles_are_counted_with_particles():
    vocabulary = PdgVocabulary.from_counts({-211: 2, 211: 3, 22: 1})
    assert vocabulary.codes == (22, 211)
    assert vocabulary.counts == (1, 5)


def test_encode_and_decode_are_inverse_for_seen_codes():
    index, unknown = SEEN.encode([[22, -321], [2112, 211]])
    assert not unknown.any()
    assert SEEN.decode(index).tolist() == [[22, 321], [2112, 211]]


def test_an_unseen_code_becomes_the_most_frequent_of_its_class():
    index, unknown = SEEN.encode([2212, 310, 22])
    assert SEEN.decode(index).tolist() == [211, 2112, 22]
    assert unknown.tolist() == [True, True, False]


def test_of_equally_frequent_codes_the_smallest_stands_in():
    vocabulary = PdgVocabulary.from_counts({321: 4, 211: 4})
    assert vocabulary.decode(vocabulary.encode([2212])[0]).tolist() == [211]


@pytest.mark.parametrize(
    ("codes", "unseen", "stand_in"),
    [
        ((22, 211), 13, 211),
        ((22, 211), 11, 211),
        ((11, 22), 13, 11),
        ((13, 22), 11, 13),
        ((22,), 2112, 22),
        ((11, 130), 22, 130),
        ((22, 130), 211, 130),
    ],
)
def test_a_class_that_training_never_showed_goes_to_the_next_one(codes, unseen, stand_in):
    vocabulary = PdgVocabulary.from_counts(dict.fromkeys(codes, 1))
    assert vocabulary.decode(vocabulary.encode([unseen])[0]).tolist() == [stand_in]


def test_a_coarse_vocabulary_holds_the_five_classes_and_knows_every_code():
    vocabulary = PdgVocabulary.from_counts({22: 3, 321: 1, -2212: 1}, coarse=True)
    assert vocabulary.codes == (11, 13, 22, 130, 211)
    assert vocabulary.counts == (0, 0, 3, 0, 2)
    index, unknown = vocabulary.encode([-11, 13, 22, 2112, 321])
    assert vocabulary.decode(index).tolist() == [11, 13, 22, 130, 211]
    assert not unknown.any()


@pytest.mark.parametrize(
    ("codes", "counts", "message"),
    [
        ((), (), "at least one"),
        ((22, 11), (1, 1), "increasing"),
        ((-22, 1), (1, 1), "increasing"),
        ((22,), (), "count"),
    ],
)
def test_codes_that_make_no_vocabulary_are_an_error(codes, counts, message):
    with pytest.raises(ConfigError, match=message):
        PdgVocabulary(codes=codes, counts=counts)


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_the_vocabulary_is_an_error(index):
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        SEEN.decode([index])


@pytest.mark.parametrize(
    ("absolute", "charge", "expected"),
    [(11, -1, 11), (11, 1, -11), (211, 1, 211), (211, -1, -211), (2212, -1, -2212), (22, 0, 22)],
)
def test_the_sign_of_a_code_follows_the_charge(absolute, charge, expected):
    pdg, own = signed_pdg([absolute], [charge])
    assert pdg.tolist() == [expected]
    assert own.tolist() == [charge]


def test_a_neutral_identity_wins_over_a_predicted_charge():
    pdg, charge = signed_pdg([22, 130], [1, -1])
    assert pdg.tolist() == [22, 130]
    assert charge.tolist() == [0, 0]


def test_a_charged_identity_without_a_charge_is_the_particle():
    pdg, charge = signed_pdg([11, 211], [0, 0])
    assert pdg.tolist() == [11, 211]
    assert charge.tolist() == [-1, 1]


def test_code_and_charge_agree_for_every_combination():
    absolute, predicted = np.meshgrid([11, 13, 22, 130, 211, 321, 2112, 2212], [-1, 0, 1])
    pdg, charge = signed_pdg(absolute, predicted)
    assert np.array_equal(np.vectorize(lambda code: charge_of(int(code)))(pdg), charge)
