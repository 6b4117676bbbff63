import dataclasses
import json
from itertools import pairwise

import awkward as ak
import numpy as np
import pytest

from pflow.config import from_plain, to_plain
from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.jagged import Links
from pflow.event.merge import Merge
from pflow.event.schema import make_truth
from pflow.event.truth import Targets
from pflow.io.open import read_events
from pflow.physics.detector import KINDS
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import OFFSETS, ORDERS, TokenConfig, Tokens, kept_hits, sort_targets, targets_of


@pytest.fixture(scope="module")
def tokens(events, config) -> Tokens:
    config = TokenConfig(**{**vars(config), "readout": True})
    return Tokeniser.fit([events], config).encode(events)


def one_by_one(tokens: Tokens, name: str) -> list[list[float]]:
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


def test_a_recipe_that_merges_survives_json_and_is_as_yaml_gives_it():
    assert TokenConfig(merge={"ecal_mm": 10, "hcal_mm": 30.0}).merge.ecal_mm == 10.0
    merging = TokenConfig(merge=Merge(ecal_mm=20.0, hcal_mm=60.0, layers=3))
    assert from_plain(TokenConfig, json.loads(json.dumps(to_plain(merging))), where="recipe") == merging


SIZES = Merge(ecal_mm=20.0, hcal_mm=90.0, depth=8.0, ecal_sizes=[5.0, 20.0, 40.0])


def test_a_token_knows_the_size_of_its_cell(sample_dir):
    events = read_events(sample_dir / "multi_test_small.root", entry_stop=3)
    config = TokenConfig(hit_features=("ecal", "token_size"), geometry=True, merge=SIZES)
    tokeniser = Tokeniser.fit([events], config)
    n_tokens = []
    for ecal_mm, sized in ((20.0, tokeniser), *((mm, tokeniser.merging(mm)) for mm in (5.0, 7.5, 40.0))):
        hits = sized.encode(events).arrays["hits"]
        ecal, size = tokeniser.scales["hits"].invert(hits).T
        np.testing.assert_allclose(size, np.where(ecal > 0.5, ecal_mm, 90.0), rtol=1e-5)
        n_tokens.append(len(hits))
    assert n_tokens[1] > n_tokens[2] > n_tokens[0] > n_tokens[3]
    with pytest.raises(ConfigError, match=r"of the ECAL to 2 mm: the model was trained with 5 to 40 mm"):
        tokeniser.merging(2.0)
    one_size = dataclasses.replace(config, merge=Merge(ecal_mm=20.0, hcal_mm=90.0, depth=8.0))
    with pytest.raises(ConfigError, match=r"the model was trained with one size"):
        one_size.merging(20.0)


def test_a_cut_on_hit_energy_does_not_change_the_targets(events, tokeniser):
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


def test_without_truth_there_is_no_target(events, tokeniser):
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
        assigned=np.arange(n),
        added={"n_tracks": jagged.flat(zero if n_tracks is None else ak.Array(n_tracks))},
    )


def test_targets_are_ordered_by_energy_or_tracked_ones_first():
    ordered = sort_targets(targets([[1, 2, 3], [], [4, 5]], [[5.0, 4.0, 9.0], [], [1.0, 2.0]]), "energy")
    assert ordered.particles.pdg.to_list() == [[3, 1, 2], [], [5, 4]]
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


MERGE = Merge(ecal_mm=20.0, hcal_mm=90.0, layers=5)


@pytest.fixture(scope="module")
def readout_config() -> TokenConfig:
    return TokenConfig(track_features=("log_p", "charge"), merge=MERGE, order="tracks_first", readout=True)


@pytest.fixture(scope="module")
def real(sample_dir):
    """Eight events of two to ten particles, with tracks."""
    return read_events(sample_dir / "multi_test_small.root", entry_stop=8)


def encoded(events, readout_config):
    return Tokeniser.fit([events], readout_config).encode(events)


def dense(event, kind: str = "hit") -> np.ndarray:
    """Weights [target, hit or track]."""
    n_sources = len(event.arrays["readout.energy" if kind == "hit" else "readout.track_charge"])
    result = np.zeros((len(event.arrays["charge"]), n_sources))
    places = tuple(event.arrays[f"readout.{kind}_assignment.{name}"] for name in ("particle", "source"))
    result[places] = event.arrays[f"readout.{kind}_assignment.weight"]
    return result


def test_hits_and_tracks_are_those_of_the_events_in_their_order(events, readout_config):
    tokens = encoded(events, readout_config)
    arrays = tokens[1].arrays
    assert arrays["readout.energy"].tolist() == [2.0, 2.5]
    assert arrays["readout.position"].tolist() == [[0.0, 1850.0, -500.0], [1900.0, 0.0, 30.0]]
    assert (arrays["readout.subdetector"].tolist(), arrays["readout.layer"].tolist()) == ([2, 0], [3, 4])
    np.testing.assert_allclose(arrays["readout.track_momentum"], [[0.0, 2.9, -0.75]], rtol=1e-6)
    assert arrays["readout.track_charge"].tolist() == [-1.0]
    assert len(tokens[0].arrays["readout.track_charge"]) == 0


@pytest.mark.parametrize("unknown", [None, "calo_position.x", "calo_momentum.px"])
def test_tracks_have_their_state_at_the_calorimeter_or_where_unknown_none(real, readout_config, unknown):
    lost = np.arange(ak.count(real.tracks.charge)) % 2 == 0
    values = {} if unknown is None else {unknown: np.where(lost, np.nan, jagged.columns(real.tracks)[unknown])}
    changed = dataclasses.replace(real, tracks=jagged.replaced(real.tracks, values))
    arrays = encoded(changed, readout_config).arrays
    position = jagged.vectors(real.tracks.calo_position, np.float32)
    momentum = jagged.vectors(real.tracks.calo_momentum)
    if unknown is not None:
        position[lost], momentum[lost] = 0.0, jagged.vectors(real.tracks.momentum)[lost]
    assert np.array_equal(arrays["readout.track_position"], position)
    expected = momentum / np.linalg.norm(momentum, axis=1, keepdims=True)
    np.testing.assert_allclose(arrays["readout.track_direction"], expected, atol=1e-6)


def test_no_track_features_no_tracks_and_no_truth_no_assignment(events):
    tokeniser = Tokeniser.fit([events], TokenConfig(readout=True))
    arrays = tokeniser.encode(events)[1].arrays
    assert len(arrays["readout.track_momentum"]) == len(arrays["readout.track_assignment.weight"]) == 0
    arrays = tokeniser.encode(events, truth=False)[0].arrays
    assert len(arrays["readout.energy"]) == 3
    assert not any("assignment" in name for name in arrays)


@pytest.mark.parametrize("merge", [None, MERGE])
def test_a_geometry_model_reads_calorimeters_at_one_scale(events, readout_config, merge):
    config = dataclasses.replace(readout_config, geometry=True, merge=merge, hit_energy_min=1.5)
    scales = {"hcal": {"hadron_scale": 2.0}, "ecal": {"electron_scale": 1.5}}
    doubled = tuple(dataclasses.replace(part, **scales.get(part.kind, {})) for part in events.detector.calorimeters)
    scaled = dataclasses.replace(events, detector=dataclasses.replace(events.detector, calorimeters=doubled))
    tokeniser = Tokeniser.fit([events], config)
    for name, factor in (("hcal", 2.0), ("ecal", 1.5)):
        energies = []
        for some in (events, scaled):
            arrays = tokeniser.encode(some)[1].arrays
            is_kind = arrays["readout.subdetector"] == KINDS.index(name)
            summed = np.bincount(arrays["readout.token"], arrays["readout.energy"])
            np.testing.assert_allclose(tokeniser.scales["hits"].invert(arrays["hits"])[:, 0], summed, rtol=1e-5)
            energies.append(arrays["readout.energy"][is_kind])
        np.testing.assert_allclose(energies[1], factor * energies[0])
    one = Tokeniser.fit([events], readout_config)
    for name, values in one.encode(events).arrays.items():
        np.testing.assert_array_equal(one.encode(scaled).arrays[name], values)


@pytest.mark.parametrize("order", ["energy", "tracks_first"])
def test_hits_and_tracks_are_assigned_to_the_targets_in_their_order(real, readout_config, order):
    readout_config = dataclasses.replace(readout_config, order=order)
    tokens, particles = encoded(real, readout_config), targets_of(real, readout_config).particles
    for i in range(len(real)):
        hit_energy = dense(tokens[i]) @ tokens[i].arrays["readout.energy"]
        np.testing.assert_allclose(hit_energy, ak.to_numpy(particles.hit_energy[i]), rtol=1e-5, atol=1e-6)
        largest = dense(tokens[i], "track") > 0.5
        assert largest.sum(axis=1).tolist() == particles.n_tracks[i].to_list()


def test_an_event_does_not_depend_on_its_neighbours(real, events, readout_config):
    """All arrays of real events with tracks, and of those by hand with tracker hits."""
    by_hand = dataclasses.replace(readout_config, tracker_hit_features=("x", "y", "z"))
    for some, which, chosen in ((real, (0, 3, 7), readout_config), (events, range(3), by_hand)):
        tokeniser = Tokeniser.fit([some], chosen)
        together = tokeniser.encode(some)
        for i in which:
            alone = tokeniser.encode(some[i])[0].arrays
            for name, values in together[i].arrays.items():
                assert np.array_equal(values, alone[name]), name


def test_dropped_hits_are_not_assigned(events, readout_config):
    arrays = encoded(events, dataclasses.replace(readout_config, hit_energy_min=6.0))[0].arrays
    assert arrays["readout.energy"].tolist() == [12.0, 8.0]
    assert arrays["readout.hit_assignment.source"].tolist() == [0, 1]
    assert arrays["readout.hit_assignment.particle"].tolist() == [0, 0]  # the photon of 20 GeV comes first
    arrays = encoded(events, readout_config)[2].arrays
    shapes = [arrays[f"readout.{name}"].shape for name in ("energy", "position", "track_position")]
    assert shapes == [(0,), (0, 3), (0, 3)]
    assert len(arrays["readout.hit_assignment.weight"]) == 0
