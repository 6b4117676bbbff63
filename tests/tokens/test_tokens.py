import json
from itertools import pairwise

import numpy as np
import pytest

from pflow.config import from_plain, to_plain
from pflow.event.merge_hits import Merge
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import OFFSETS, TokenConfig, Tokens


@pytest.fixture(scope="module")
def tokens(events, config) -> Tokens:
    config = TokenConfig(**{**vars(config), "readout": True})
    return Tokeniser.fit([events], config).encode(events)


def one_by_one(tokens: Tokens, name: str) -> list[list[float]]:
    """Numbers of an array, event by event."""
    bounds = tokens.offsets[OFFSETS[name]]
    return [tokens.arrays[name][a:b].tolist() for a, b in pairwise(bounds)]


def test_all_arrays_have_offsets(tokens):
    assert tokens.arrays.keys() == OFFSETS.keys()
    for name, values in tokens.arrays.items():
        assert len(values) == tokens.offsets[OFFSETS[name]][-1], name


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (1, [1]),
        (-1, [2]),
        (slice(1, 3), [1, 2]),
        (slice(2, 1), []),
        (slice(None, None, 2), [0, 2]),
        ([2, 0, 0], [2, 0, 0]),
        ([], []),
        (np.array([True, False, True]), [0, 2]),
    ],
)
def test_some_events_keep_their_numbers(tokens, where, expected):
    some = tokens[where]
    assert len(some) == len(expected)
    assert some.event.tolist() == tokens.event[expected].tolist()
    assert some.entry.tolist() == tokens.entry[expected].tolist()
    assert some.n_source.tolist() == tokens.n_source[expected].tolist()
    for name in OFFSETS:
        assert one_by_one(some, name) == [one_by_one(tokens, name)[i] for i in expected], name


def test_cells_as_yaml_gives_them_are_taken():
    assert TokenConfig(merge={"ecal_mm": 10, "hcal_mm": 30.0}).merge.ecal_mm == 10.0


def test_a_recipe_that_merges_survives_json():
    merging = TokenConfig(merge=Merge(ecal_mm=20.0, hcal_mm=60.0, layers=3))
    assert from_plain(TokenConfig, json.loads(json.dumps(to_plain(merging))), where="recipe") == merging
