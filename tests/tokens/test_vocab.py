import numpy as np
import pytest

from pflow.errors import ConfigError
from pflow.tokens.particles import CHARGES, PdgVocabulary, charge_index

SEEN = PdgVocabulary.from_counts({211: 50, 321: 7, 22: 90, 130: 4, 2112: 9})


def test_charges_are_indexed_by_their_sign():
    assert [CHARGES[i] for i in charge_index([-1.0, 0.0, 1.0, 2.0, -3.0])] == [-1, 0, 1, 1, -1]
    with pytest.raises(ConfigError, match="not a finite number"):
        charge_index([np.nan])


def test_decode_inverts_encode_and_unseen_codes_get_their_class():
    index, unknown = SEEN.encode([[22, -321], [2112, 211]])
    assert not unknown.any()
    assert SEEN.decode(index).tolist() == [[22, 321], [2112, 211]]
    index, unknown = SEEN.encode([2212, 310, 22])
    assert SEEN.decode(index).tolist() == [211, 2112, 22]
    assert unknown.tolist() == [True, True, False]


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
        ((211, 321), 2212, 211),  # of equally frequent codes the smallest
    ],
)
def test_a_class_that_training_never_showed_goes_to_the_next_one(codes, unseen, stand_in):
    vocabulary = PdgVocabulary.from_counts(dict.fromkeys(codes, 1))
    assert vocabulary.decode(vocabulary.encode([unseen])[0]).tolist() == [stand_in]


def test_codes_are_sorted_and_coarse_vocabularies_know_all():
    vocabulary = PdgVocabulary.from_counts({-211: 2, 211: 3, 22: 1})
    assert (vocabulary.codes, vocabulary.counts) == ((22, 211), (1, 5))
    vocabulary = PdgVocabulary.from_counts({22: 3, 321: 1, -2212: 1}, coarse=True)
    assert vocabulary.codes == (11, 13, 22, 130, 211)
    assert vocabulary.counts == (0, 0, 3, 0, 2)
    index, unknown = vocabulary.encode([-11, 13, 22, 2112, 321])
    assert vocabulary.decode(index).tolist() == [11, 13, 22, 130, 211]
    assert not unknown.any()
