import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.merge_hits import Merge
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig, kept_hits


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


def test_tokens_of_an_event_do_not_depend_on_its_neighbours(events, tokeniser):
    together = tokeniser.encode(events)
    for i in range(len(events)):
        alone = tokeniser.encode(events[i])[0]
        for name, values in together[i].arrays.items():
            assert np.array_equal(values, alone.arrays[name]), name


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
