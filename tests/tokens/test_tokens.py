import dataclasses
import json
from itertools import pairwise

import awkward as ak
import numpy as np
import pytest

from pflow.config import from_plain, to_plain
from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.jagged import Links
from pflow.event.merge_hits import Merge
from pflow.event.schema import make_truth
from pflow.event.truth import Targets
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import OFFSETS, ORDERS, TokenConfig, Tokens, kept_hits, sort_targets


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
        *((1, [1]), (-1, [2]), (slice(1, 3), [1, 2]), (slice(2, 1), []), (slice(None, None, 2), [0, 2])),
        *(([2, 0, 0], [2, 0, 0]), ([], []), (np.array([True, False, True]), [0, 2])),
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


def test_hits_without_energy_are_left_out_and_a_cut_on_it_does_not_change_the_targets(events, tokeniser):
    assert [len(tokeniser.encode(events)[i].arrays["hits"]) for i in range(3)] == [3, 2, 0]
    cut = Tokeniser.fit([events], TokenConfig(hit_energy_min=4.0)).encode(events)
    assert [len(cut[i].arrays["hits"]) for i in range(3)] == [3, 0, 0]
    assert [len(cut[i].arrays["charge"]) for i in range(3)] == [2, 2, 0]


def test_kept_hits_are_those_of_the_readout(events):
    config = TokenConfig(hit_energy_min=0.5, readout=True, merge=Merge(ecal_mm=50, hcal_mm=50, layers=3))
    encoded = Tokeniser.fit([events], config).encode(events)
    for i, kept in enumerate(kept_hits(events, config)):
        expected = ak.to_numpy(events.hits.energy[i][kept])
        np.testing.assert_array_equal(encoded[i].arrays["readout.energy"], expected)


def test_permuting_hits_permutes_tokens_only(events, tokeniser):
    order = ak.Array([[2, 0, 1], [0, 1], []])
    selected = events.hits[events.hits.energy > 0]
    shuffled = tokeniser.encode(dataclasses.replace(events, hits=selected[order], hit_links=None), truth=False)
    plain = tokeniser.encode(events, truth=False)
    assert np.array_equal(shuffled[0].arrays["hits"], plain[0].arrays["hits"][[2, 0, 1]])


def test_without_truth_there_is_no_target_and_asking_for_it_is_an_error(events, tokeniser):
    bare = dataclasses.replace(events, truth=None, hit_links=None, track_links=None)
    assert "charge" not in tokeniser.encode(bare, truth=False).arrays
    with pytest.raises(InputError, match=r"hand.root"):
        tokeniser.encode(bare)


def test_tracks_make_no_targets_where_they_are_no_source(events):
    track_only = dataclasses.replace(events, hits=events.hits[:, :0], hit_links=events.hit_links[:, :0])
    with_tracks = TokenConfig(track_features=("log_p",))
    assert Tokeniser.fit([track_only], with_tracks).encode(track_only)[1].arrays["charge"].size == 1
    without = Tokeniser.fit([events], TokenConfig())
    assert without.encode(track_only)[1].arrays["charge"].size == 0


def test_a_target_without_momentum_is_an_error_that_names_the_entry(events, tokeniser):
    truth = jagged.replaced(events.truth, dict.fromkeys(("px", "py", "pz"), 0 * jagged.flat(events.truth.px)))
    with pytest.raises(InputError, match=r"entry 7, 'truth.momentum'"):
        tokeniser.encode(dataclasses.replace(events, truth=truth))


def targets(pdg, px, *, n_tracks=None, **columns) -> Targets:
    zero = ak.zeros_like(ak.Array(px))
    truth = make_truth(pdg=pdg, px=px, **{**dict.fromkeys(("mass", "charge", "py", "pz"), zero), **columns})
    n = ak.count(truth.pdg)
    return Targets(
        **{"rule": "stable", "counts": jagged.count(truth), "chosen": np.arange(n), "final": np.ones(n, dtype=bool)},
        **{"truth": truth, "list_dropped": lambda: truth, "hits": Links.of(None, len(truth)), "tracks": None},
        added={"n_tracks": jagged.flat(zero if n_tracks is None else ak.Array(n_tracks))},
    )


def test_by_energy_within_each_event():
    ordered = sort_targets(targets([[1, 2, 3], [], [4, 5]], [[5.0, 4.0, 9.0], [], [1.0, 2.0]]), "energy")
    assert ordered.particles.pdg.to_list() == [[3, 1, 2], [], [5, 4]]


def test_tracks_first_is_charged_particles_with_a_track_then_all_others_by_energy():
    charge, n_tracks = [[-1.0, 1.0, 0.0, 1.0, 0.0]], [[1, 2, 0, 0, 1]]
    made = targets([[1, 2, 3, 4, 5]], [[1.0, 2.0, 3.0, 4.0, 5.0]], charge=charge, n_tracks=n_tracks)
    assert sort_targets(made, "tracks_first").particles.pdg.to_list() == [[2, 1, 5, 4, 3]]


@pytest.mark.parametrize("order", ORDERS)
def test_the_result_does_not_depend_on_the_order_of_the_file(order):
    rng = np.random.default_rng(5)
    p = rng.choice([-1.0, 0.0, 1.0], size=(3, 30))
    pdg = rng.choice([11, 22, 211], size=30)
    shuffle = rng.permutation(30)
    in_order, shuffled = (
        sort_targets(targets([pdg[i]], [p[0, i]], py=[p[1, i]], pz=[p[2, i]]), order).particles
        for i in (np.arange(30), shuffle)
    )
    for field in ("pdg", "energy", "px"):
        assert in_order[field].to_list() == shuffled[field].to_list()
