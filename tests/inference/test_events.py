import copy
import dataclasses
import os
import signal
import time
import warnings

import awkward as ak
import numpy as np
import pytest
import torch
import uproot

import pflow
from pflow.checkpoint import load_model
from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import BadEntriesWarning, Flag, ImplausibleWarning, LeftOutWarning, keep_hits, leave_out
from pflow.event.truth import select_targets
from pflow.inference.events import HITS_PER_TRACK, batch_limits, pick_device, reconstruct, usable_events, warn_of_tracks
from pflow.inference.files import reconstruct_files
from pflow.io.flat import write_events
from pflow.io.open import read_events
from pflow.io.particles_root import read_reco
from pflow.metrics.evaluation import evaluate, visible_truth
from pflow.model.api import DecodingConfig
from pflow.model.pointing import PointingDecodingConfig, PointingNetworkConfig, PointingReconstructor
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.plots.display import plot_steps
from pflow.tokens.features import columns_of, with_entries
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig

ENTRY = 4
"""Entry that is spoilt: it has hits and tracks."""


def numbers(reconstruction, i: int) -> np.ndarray:
    particles = reconstruction.particles[i]
    columns = [particles.pdg, particles.charge, particles.energy]
    columns += [particles.momentum[key] for key in ("px", "py", "pz")]
    return np.stack([column.to_numpy() for column in columns], axis=1)


def test_every_event_has_an_entry_in_order_and_one_without_hits_no_particles(model, events):
    got, empty = (reconstruct(some, model) for some in (events, events.emptied(np.arange(len(events)) == 3)))
    assert got.event.tolist() == events.event.tolist()
    assert set(got.particles.fields) == {"pdg", "charge", "energy", "rest_mass", "px", "py", "pz", "score"}
    # The other tests would also pass without any particles.
    assert np.count_nonzero(ak.num(got.particles)) > len(events) / 2
    assert len(empty.particles[3]) == 0
    np.testing.assert_array_equal(numbers(empty, 4), numbers(got, 4))
    assert len(reconstruct(events[:0], model)) == 0


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")  # no track leads to hits that are moved
def test_files_are_read_as_the_detector_of_the_model(model, sample_dir, same_reco, tmp_path):
    path = sample_dir / "multi_test_small.root"
    assert same_reco(model.reconstruct(f"{path}:events"), model.reconstruct(read_events(path)))
    events = read_events(path)
    radii = {f"position.{axis}": 1.5 * jagged.flat(events.hits.position[axis]) for axis in "xyz"}
    write_events(tmp_path / "a.root", dataclasses.replace(events, hits=jagged.replaced(events.hits, radii)))
    with pytest.raises(InputError, match=r"a\.root, 'hits\.position'.*trained on detector 'ild_g4'"):
        model.reconstruct([tmp_path / "a.root"])
    with pytest.raises(TypeError, match=r"events or files of events first, and then a model .*; found TrainedModel"):
        reconstruct(model, path)
    for wrong, found in ((events.hits, "Array"), ([events], "Events"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"expected .*; found {found}"):
            reconstruct(wrong, model)
    for options, message in (
        ({"on_error": "ignore"}, "no on_error 'ignore': expected one of raise, skip"),
        ({"decoding": None, "batch_size": 0}, "batch_size must be a whole number of at least 1, found 0"),
        ({"batch_size": "8"}, "batch_size must be a whole number of at least 1, found '8'"),
        ({"max_particles": 0}, "max_particles"),
    ):
        with pytest.raises(ConfigError, match=message):
            reconstruct(events, model, **options)


def test_what_is_implausible_in_a_file_is_said_once(model, events, tmp_path):
    hits = ak.with_field(events.hits, 3 * events.hits.energy, "energy")
    write_events(tmp_path / "a.root", dataclasses.replace(events, hits=hits))
    with pytest.warns(ImplausibleWarning, match=r"a\.root: ") as caught:
        model.reconstruct(tmp_path / "a.root")
    assert [str(warning.message).partition(": ")[0] for warning in caught] == [str(tmp_path / "a.root")]


def test_permuting_the_hits_changes_nothing(model, events):
    rng, events = np.random.default_rng(1), events[:8].without_truth()
    shuffled = ak.Array([hits[rng.permutation(len(hits))] for hits in events.hits])
    before, after = (reconstruct(some, model) for some in (events, dataclasses.replace(events, hits=shuffled)))
    for i in range(len(events)):
        np.testing.assert_allclose(numbers(before, i), numbers(after, i), rtol=1e-4, atol=1e-4)


def test_truth_is_not_used_nor_checked(model, events, spoil, same_reco):
    spoilt = spoil(events, ENTRY, "truth.energy", np.nan)
    assert same_reco(reconstruct(spoilt, model), reconstruct(events.without_truth(), model))


def test_an_event_that_reaches_the_maximum_is_flagged(model, events):
    full = reconstruct(events, model, max_particles=6)
    counts = ak.to_numpy(ak.num(full.particles))
    longest = int(counts.max())
    assert longest > 1
    cut = reconstruct(events, model, max_particles=longest - 1)
    flagged = (cut.flags & Flag.MAX_PARTICLES) > 0
    assert flagged[counts == longest].all()
    assert not flagged[counts < longest - 1].any()
    assert ak.max(ak.num(cut.particles)) == longest - 1


def test_too_many_hits_are_refused_or_skipped_with_a_count(model, events):
    n_hits = ak.to_numpy(ak.num(events.hits))
    large = n_hits > 600
    first = int(np.flatnonzero(large)[0])
    with pytest.raises(InputError, match=rf"multi_test_small\.root, entry {first}, 'hits': {n_hits[first]} hits"):
        reconstruct(events, model, max_hits=600)
    with pytest.warns(UserWarning, match=f"{large.sum()} of 25 entries cannot be used.*hits, expected at most 600"):
        got = reconstruct(events, model, max_hits=600, on_error="skip")
    assert ((got.flags & Flag.BAD_INPUT) > 0).tolist() == large.tolist()
    assert not ak.num(got.particles)[large].to_numpy().any()


def test_too_many_tracks_are_refused_as_too_many_hits_are(events):
    tracks_alone, n_tracks = keep_hits(events, events.hits.energy < 0), ak.num(events.tracks).to_numpy()
    most, first = n_tracks.max(), n_tracks.argmax()
    allowed = HITS_PER_TRACK * int(most)
    reads_tracks, reads_hits = TokenConfig(track_features=("log_p",)), TokenConfig()
    assert usable_events(tracks_alone, reads_tracks, allowed, "raise") is tracks_alone
    assert usable_events(tracks_alone, reads_hits, allowed - 1, "raise") is tracks_alone
    expected = rf"entry {first}, 'tracks': {most} tracks, expected at most {most - 1} \(max_hits / {HITS_PER_TRACK}\)"
    with pytest.raises(InputError, match=expected):
        usable_events(tracks_alone, reads_tracks, allowed - 1, "raise")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hits.energy", -1.0),
        ("hits.position.z", np.inf),
        ("tracks.momentum.px", np.nan),
        ("tracks.calo_position.x", 1e30),
        ("tracks.charge", 255),
    ],
)
def test_impossible_objects_in_memory_are_left_out_as_those_of_files(model, events, spoil, field, value):
    spoilt = spoil(events[ENTRY - 1 : ENTRY + 2], 1, field, value)
    with pytest.warns(LeftOutWarning, match=rf"entry {ENTRY}, '{field}': expected"):
        got = reconstruct(spoilt, model)
    flag = Flag.UNUSABLE_TRACKS if "tracks" in field else Flag.UNUSABLE_HITS
    assert (got.flags & (flag | Flag.BAD_INPUT)).tolist() == [0, int(flag), 0]


def test_a_hit_at_the_origin_is_left_out_of_its_event(events, spoil):
    """It has no direction: the whole file was refused."""
    event = events[:1]
    for axis in "xyz":
        event = spoil(event, 0, f"hits.position.{axis}", 0.0)
    with pytest.warns(LeftOutWarning, match=r"entry 0, 'hits\.energy': expected no energy at the origin"):
        got = reconstruct(event, "general")
    assert got.flags.tolist() == [Flag.UNUSABLE_HITS]
    assert len(got.particles[0]) == len(reconstruct(events[:1], "general").particles[0]) > 0


def test_a_track_that_is_there_twice_is_left_out_once(sample_dir):
    """By another fit; a neighbour of another direction or momentum stays."""
    events = read_events(sample_dir / "zqq_test_small.root", entry_stop=2)
    columns, counts = jagged.columns(events.tracks), jagged.count(events.tracks)
    last = np.cumsum(counts) - 1
    rows = last - np.arange(2)  # the last track of the first event, the last but one of the second
    for factor, turned, again in ((1.03, 5e-4, 1), (0.98, 0.0, 1), (1.07, 0.0, 0), (1.0, 2e-3, 0)):
        added = {name: np.insert(values, last + 1, values[rows]) for name, values in columns.items()}
        at = last + 1 + np.arange(2)
        px, py = added["momentum.px"][at], added["momentum.py"][at]
        added["momentum.px"][at], added["momentum.py"][at] = factor * (px - turned * py), factor * (py + turned * px)
        added["momentum.pz"][at] *= factor
        more = dataclasses.replace(events, tracks=jagged.records(added, counts + 1), track_links=None)
        kept, left_out = leave_out(more)
        assert np.flatnonzero(left_out.get("tracks", np.zeros(1))).tolist() == at.tolist() * again
        assert jagged.count(kept.tracks).tolist() == (counts + 1 - again).tolist()


def test_a_track_without_momentum_is_left_out(events, spoil):
    event = events[2:3]
    for axis in ("px", "py", "pz"):
        event = spoil(event, 0, f"tracks.momentum.{axis}", 0.0)
    with pytest.warns(LeftOutWarning, match=r"'tracks\.momentum\.px': expected a track with a momentum"):
        assert reconstruct(event, "general").flags.tolist() == [Flag.UNUSABLE_TRACKS]


def test_a_decoding_of_another_architecture_is_refused(model, events):
    with pytest.raises(
        ConfigError, match=r"expected a DecodingConfig .*, found a PointingDecodingConfig, whose hits_per_"
    ):
        reconstruct(events[:1], model, decoding=PointingDecodingConfig(existence_threshold=0.9))
    with pytest.raises(ConfigError, match=r"expected a PointingDecodingConfig for this model, found a DecodingConfig$"):
        reconstruct(events[:1], "general", decoding=DecodingConfig())


@pytest.fixture(scope="module")
def reads_all(events, make_model):
    """A model that reads layers, and where tracks enter the calorimeter."""
    recipe = TokenConfig(hit_features=("log_energy", "x", "y", "z", "layer"), track_features=("log_p", "calo_x"))
    network = TranslationNetworkConfig(
        width=16, heads=2, encoder_layers=1, decoder_layers=1, feedforward=32, source="typed"
    )
    known = events[ak.to_numpy(ak.all(events.hits.layer >= 0, axis=1))]
    tokeniser, decoding = Tokeniser.fit([known], recipe), DecodingConfig(max_particles=3)
    return make_model(tokeniser, TranslationReconstructor, network=network, decoding=decoding)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hits.subdetector", 9, r"hits\.subdetector': expected"),
        (
            "hits.layer",
            -1,
            r"hits\.layer'.*1 of \d+ values are unknown: they are -1, as without a cell encoding, in ecal",
        ),
    ],
)
def test_an_event_that_the_model_cannot_read_is_refused_or_skipped(reads_all, events, spoil, field, value, message):
    events = events[ENTRY - 1 : ENTRY + 2]
    spoilt = spoil(events, 1, field, value)
    with pytest.raises(InputError, match=rf"entry {ENTRY}, '{message}"):
        reconstruct(spoilt, reads_all)
    with pytest.warns(BadEntriesWarning, match="1 of 3 entries cannot be used"):
        got = reconstruct(spoilt, reads_all, on_error="skip")
    assert np.flatnonzero(got.flags & Flag.BAD_INPUT).tolist() == [1]
    assert ak.num(got.particles)[1] == 0
    np.testing.assert_allclose(numbers(got, 2), numbers(reconstruct(events, reads_all), 2), rtol=1e-4)


@pytest.mark.parametrize("axis", ["x", "z"])
def test_a_track_that_enters_nowhere_goes_straight_on(reads_all, events, spoil, axis):
    """Most tracks of an event must enter; of the rest none costs its event, nor another track."""
    event = int(np.flatnonzero(ak.num(events.tracks) > 2)[0])
    some = events[event : event + 1]
    lost = spoil(some, 0, f"tracks.calo_position.{axis}", np.nan)
    straight = with_entries(columns_of(lost, "tracks"), lost.detector)
    position = np.stack([straight[f"calo_position.{name}"] for name in "xyz"], axis=1)
    momentum = jagged.vectors(lost.tracks, field="momentum")
    np.testing.assert_allclose(np.cross(position[0], momentum[0]), 0.0, atol=1e-2)
    barrel, endcap = np.hypot(*position[0, :2]), abs(position[0, 2])
    detector = lost.detector
    assert max(barrel / detector.ecal_inner_radius, endcap / detector.ecal_inner_z) == pytest.approx(1.0)
    np.testing.assert_array_equal(position[1:], jagged.vectors(some.tracks, field="calo_position")[1:])
    for model in (reads_all, "general"):
        got = reconstruct(lost, model)
        assert not got.flags[0] & Flag.BAD_INPUT
        assert len(got.particles[0]) > 0
    with pytest.raises(InputError, match=r"tracks\.calo_position\.x'.*: the model needs .* (\d+) of \1 values are"):
        reconstruct(spoil(some, 0, "tracks.calo_position.x", np.nan, of_all=True), reads_all)


def test_an_impossible_energy_is_said_with_what_else_is_wrong(sample_dir):
    """Hits of the HCAL's barrel are taken for its endcaps' and these for the barrel's."""
    events = read_events(sample_dir / "cld_zqq_small.edm4hep.root", truth=False)
    names = [part.name for part in events.detector.calorimeters]
    swapped = np.arange(len(names))
    swapped[[names.index("hcal_barrel"), names.index("hcal_endcap")]] = swapped[
        [names.index("hcal_endcap"), names.index("hcal_barrel")]
    ]
    number = swapped[jagged.columns(events.hits)["subdetector"]]
    wrong = dataclasses.replace(events, hits=jagged.replaced(events.hits, {"subdetector": number}))
    with pytest.raises(InputError, match=r"not finite, or above .*; .*hits of hcal_endcap lie outside of it: inner_z"):
        reconstruct(wrong, "general")


@pytest.mark.parametrize("kind", ["translation", "pointing"])
def test_numbers_that_are_not_finite_are_refused_or_flagged(model, events, make_model, kind):
    spoilt = dataclasses.replace(model, reconstructor=copy.deepcopy(model.reconstructor))
    if kind == "pointing":
        recipe = dataclasses.replace(model.tokeniser.config, readout=True)
        network = PointingNetworkConfig(width=16, heads=2, encoder_layers=1, decoder_layers=1, feedforward=32)
        decoding = PointingDecodingConfig(max_particles=4)
        tokeniser = dataclasses.replace(model.tokeniser, config=recipe)
        spoilt = make_model(tokeniser, PointingReconstructor, network=network, decoding=decoding)
    with torch.no_grad():
        network = spoilt.reconstructor.network
        for parameter in (network.encoder if kind == "pointing" else network).parameters():
            parameter.mul_(1e25)
    some = events[:4]
    with pytest.raises(InputError, match=r"entry \d: the model '.*' gives numbers that are not finite"):
        reconstruct(some, spoilt)
    with pytest.warns(BadEntriesWarning, match="of 4 entries cannot be used"):
        got = reconstruct(some, spoilt, on_error="skip")
    flagged = (got.flags & Flag.NOT_FINITE) != 0
    assert flagged.any()
    assert not ak.num(got.particles).to_numpy()[flagged].any()
    assert got.finite().all()


def test_an_energy_that_overflows_is_flagged(model, events):
    scale = dataclasses.replace(model.tokeniser.energy, mean=(400.0,))
    overflowing = dataclasses.replace(model, tokeniser=dataclasses.replace(model.tokeniser, energy=scale))
    with pytest.warns(BadEntriesWarning, match="not finite"):
        got = reconstruct(events, overflowing, on_error="skip")
    with_particles = ak.to_numpy(ak.num(reconstruct(events, model).particles)) > 0
    assert ((got.flags & Flag.NOT_FINITE) != 0).tolist() == with_particles.tolist()
    assert ak.sum(ak.num(got.particles)) == 0


@pytest.mark.parametrize("device", ["cudda", "meta", "cuda:99"])
def test_an_unusable_device_is_refused(device):
    with pytest.raises(ConfigError, match=f"'{device}'"):
        pick_device(device)


@pytest.mark.parametrize(("free", "n_tokens"), [(2**30, 65536), (2**36, 2**21)])
def test_batches_of_a_gpu_grow_with_its_memory(monkeypatch, free, n_tokens):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, 2**40))
    assert batch_limits(torch.device("cuda")) == (256, n_tokens)
    assert batch_limits(torch.device("cpu")) == (32, 65536)


def test_a_large_event_is_not_cut_at_the_number_that_small_ones_have(data_dir):
    event = read_events(data_dir / "g4" / "zh_test.root", entry_start=58, entry_stop=59, truth=False)
    cut, complete = (reconstruct(event, "general", max_particles=n, device="cpu") for n in (140, None))
    assert cut.flags.tolist() == [Flag.MAX_PARTICLES]
    assert complete.flags.tolist() == [0]


@pytest.mark.filterwarnings("ignore:.*no event has hits, and their tracks")
@pytest.mark.filterwarnings("ignore::pflow.event.events.BadEntriesWarning")
def test_tracks_without_their_hits_are_counted_as_lost(cld_rec, spoil):
    """Not those of an event that cannot be used: the third one has tracks that all enter the calorimeter nowhere."""
    three = cld_rec[:3].without_truth()
    bare = dataclasses.replace(three, hits=three.hits[:, :0])
    bare = spoil(bare, 2, "tracks.calo_position.x", np.nan, of_all=True)
    with pytest.warns(ImplausibleWarning, match=r"more than 10% of the momentum .* in no particle in 2 of 3"):
        got = reconstruct(bare, "general", on_error="skip")
    assert got.flags.tolist() == [Flag.LOST_TRACKS, Flag.LOST_TRACKS, Flag.BAD_INPUT]
    total, _, lost = got.track_momentum(bare)[:2].sum(axis=0)
    assert lost > 0.5 * total
    assert reconstruct(three[:2], "general").flags.tolist() == [Flag.NONE] * 2


@pytest.mark.parametrize(("n_events", "n_flagged", "said"), [(1, 1, 0), (2, 2, 1), (5, 2, 0)])
def test_tracks_in_neutral_particles_of_one_event_are_not_warned_of(n_events, n_flagged, said):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_tracks({"NEUTRAL_TRACKS": n_flagged}, n_events, "here")
    assert len(caught) == said


@pytest.fixture(scope="module")
def general():
    return load_model("general")


@pytest.fixture(scope="module")
def three(events):
    return events[:3].without_truth()


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")  # it was not made for such events
def test_general_reads_an_unseen_detector_without_layer_numbers(general, three):
    stronger = dataclasses.replace(three, detector=dataclasses.replace(three.detector, name="new", b_field=4.0))
    assert ak.all(ak.num(reconstruct(stronger, general).particles))
    unknown = jagged.replaced(three.hits, {"layer": np.full(int(ak.count(three.hits.layer)), -1, np.int32)})
    got, without = (reconstruct(some, general) for some in (three, dataclasses.replace(three, hits=unknown)))
    assert ak.array_equal(got.particles.energy, without.particles.energy)


def check_same(found, expected):
    assert found.flags.tolist() == expected.flags.tolist()
    for part in ("particles", "hit_links", "track_links"):
        ours, theirs = getattr(found, part), getattr(expected, part)
        assert (ours is None) == (theirs is None), part
        if ours is not None:
            assert jagged.count(ours).tolist() == jagged.count(theirs).tolist(), part
            for name, values in jagged.columns(ours).items():
                expected_values = jagged.columns(theirs)[name]
                np.testing.assert_allclose(values, expected_values, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("name", "file", "n"),
    [("general", "multi_test_small.root", 4), ("ild-g4-photon", "gammasep_test_small.root", 6)],
)
def test_particles_depend_on_no_batch_order_and_threads(name, file, n, sample_dir):
    model, events = load_model(name), read_events(sample_dir / file, entry_stop=n)
    expected = reconstruct(events, model)
    check_same(reconstruct(events, model, batch_size=1), expected)
    for part in (slice(None, n // 2), slice(n // 2, None)):
        order, back = np.arange(n)[part][::-1], np.arange(n // 2)[::-1]
        check_same(reconstruct(events[order], model), expected[part][back])
    # Few steps: on a busy machine threads hold each other up in every step.
    threads, by_threads = torch.get_num_threads(), []
    for number in (threads, 1 if threads > 1 else 2):
        torch.set_num_threads(number)
        by_threads.append(reconstruct(events[:1], model, max_particles=2))
        torch.set_num_threads(threads)
    check_same(*by_threads)


@pytest.mark.filterwarnings("ignore:.*no event has hits, and their tracks")
@pytest.mark.filterwarnings("ignore:.*momentum of tracks is in no particle.* these tracks have no hits")
@pytest.mark.parametrize(("hits", "tracks"), [(0, 0), (1, 0), (0, 1), (None, 0), (0, None)])
def test_events_with_few_hits_or_tracks(hits, tracks, general, three):
    cut = dataclasses.replace(three, hits=three.hits[:, :hits], tracks=three.tracks[:, :tracks])
    got = reconstruct(cut, general)
    assert len(got) == len(got.hit_links) == len(got.track_links) == 3
    if (hits, tracks) == (0, 0):
        assert ak.count(got.particles.pdg) == 0


def test_events_without_tracks_are_refused_where_the_model_reads_them(general, three):
    with pytest.raises(InputError, match=r"reads tracks, .* does not describe how to make them \(truth_tracks\)"):
        reconstruct(dataclasses.replace(three, tracks=None), general)


def test_candidates_are_less_probable_than_the_particles(sample_dir, model):
    events = read_events(sample_dir / "zqq_test_small.root", entry_stop=2)
    general = load_model("general")
    alone, both = reconstruct(events, general), reconstruct(events, general, candidates=0.05)
    assert alone.candidates is None
    assert both.particles.energy.to_list() == alone.particles.energy.to_list()
    assert ak.min(both.particles.existence) >= 0.5
    assert ak.count(both.candidates.energy) > 0
    assert 0.05 <= ak.min(both.candidates.existence) <= ak.max(both.candidates.existence) < 0.5
    assert ak.max(both.hit_links.particle, axis=1).to_list() < ak.num(both.particles).to_list()
    with pytest.raises(ConfigError, match="does not say how probably a particle exists"):
        reconstruct(events, model, candidates=0.05)
    with pytest.raises(ConfigError, match=r"^candidates: 2 is not in \[0, 1\]"):
        reconstruct(events, general, candidates=2)


def test_cells_are_merged_to_the_size_that_is_asked_for(sample_dir, tmp_path, sized, model):
    path = sample_dir / "multi_test_small.root"
    events = read_events(path, entry_stop=3)
    by_default, as_default, fine = (reconstruct(events, sized, merge_mm=size) for size in (None, 20.0, 5.0))
    assert by_default.particles.energy.to_list() == as_default.particles.energy.to_list()
    assert fine.particles.energy.to_list() != by_default.particles.energy.to_list()
    reconstruct_files([path], checkpoint=sized, output=tmp_path / "out.root", merge_mm=5.0)
    written = read_reco(tmp_path / "out.root").particles.energy[:3]
    np.testing.assert_allclose(ak.flatten(written), ak.flatten(fine.particles.energy), rtol=1e-4)
    with pytest.raises(ConfigError, match="to 50 mm: the model was trained with 5 to 40 mm"):
        reconstruct(events, sized, merge_mm=50.0)
    with pytest.raises(ConfigError, match="to 5 mm: the model was trained with one size"):
        reconstruct(events, model, merge_mm=5.0)


@pytest.mark.usefixtures("few_resamples")
def test_the_sum_of_the_list_is_one_in_memory_files_and_evaluation_and_candidates_are_apart(cld_rec, tmp_path):
    events = cld_rec[:2]
    write_events(tmp_path / "two.root", events)
    made = reconstruct(events, "general", candidates=0.05)
    sums = ak.to_numpy(ak.sum(made.particles, axis=-1).energy)
    response = sums / visible_truth(events, select_targets(events)).sums[:, 3]
    numbers = evaluate(made, events, oracle=False).algorithms["PFlow"]["event"]["visible_energy"]
    assert numbers["response_median"].value == pytest.approx(np.median(response), rel=1e-5)
    for format in ("ttree", "edm4hep"):
        out = tmp_path / f"{format}.root"
        reconstruct_files([tmp_path / "two.root"], output=out, format=format, candidates=0.05)
        written = uproot.open(out)["events"]["PFlow.energy"].array()
        np.testing.assert_allclose(ak.sum(written, axis=1), sums, rtol=1e-5)
        for name in ("particles", "candidates"):
            ours, theirs = (getattr(reco, name).energy for reco in (read_reco(out), made))
            assert ak.num(ours).to_list() == ak.num(theirs).to_list()
            np.testing.assert_allclose(ak.flatten(ours), ak.flatten(theirs), rtol=1e-5)


@pytest.fixture(scope="module")
def event(events):
    return events[:1]


def test_steps_of_a_pointing_model_lead_to_its_particles(event):
    model = pflow.load_model("general")
    *steps, end = pflow.explain(model, event)
    # Before the refinement, which may make candidates of some.
    reco = pflow.reconstruct(event, model, device="cpu", candidates=0.001)
    listed = [*reco.particles.energy[0], *reco.candidates.energy[0]]
    assert [step.energy for step in steps] == pytest.approx(listed, rel=0.2)
    assert (end.energy, str(end), end.weight.max()) == (None, "end", 0.0)
    assert end.probability["start"]["end"] > 0.9
    assert "start" not in steps[0].probability  # of a track
    given, energy = np.sum([step.weight for step in steps], axis=0), np.asarray(end.hits.energy)
    assert given.max() < 1.001  # each hit goes to the steps once at most
    assert (energy * given).sum() > 0.9 * energy.sum()
    for step in steps:
        assert sum(step.probability["pdg"].values()) == pytest.approx(1.0, abs=1e-5)
        assert str(step).endswith(f"{step.energy:.3g} GeV")
    panels = plot_steps([*steps, end]).axes
    assert [panel.get_title()[:3] for panel in panels[: len(steps) + 1]] == [
        f"{i + 1}: " for i in range(len(steps) + 1)
    ]
    assert panels[-1].get_ylabel() == "weight / the largest"


@pytest.mark.parametrize("options", [{}, {"special": "kind"}, {"decoder": "multi_projection", "n_projections": 2}])
def test_steps_of_a_translation_have_probabilities_and_attention(event, make_model, options):
    network = TranslationNetworkConfig(width=8, heads=2, decoder_layers=2, **options)
    model = make_model(Tokeniser.fit([event], TokenConfig()), TranslationReconstructor, network=network)
    steps = pflow.explain(model, event)
    particles = pflow.reconstruct(event, model, device="cpu").particles[0]
    energies = [step.energy for step in steps if step.energy is not None]
    np.testing.assert_allclose(energies, particles.energy, rtol=1e-4)
    assert ("kind" in steps[0].probability) == (options.get("special") == "kind")
    for number, step in enumerate(steps, 1):
        for probability in step.probability.values():
            assert sum(probability.values()) == pytest.approx(1.0, abs=1e-5)
        for name, weights in step.attention.items():
            assert weights.shape[0] == 2
            assert weights.sum(-1) == pytest.approx(1.0, abs=1e-5)
            assert "memory" in name or weights.shape[1] == number  # no step sees those behind it
    last = [weights for name, weights in step.attention.items() if name.endswith("memory_attention")][-1]
    assert step.weight == pytest.approx(last.mean(0)[2 : 2 + len(step.hits)])


def test_what_cannot_be_explained_is_refused(event, events):
    model = pflow.load_model("general")
    with pytest.raises(InputError, match="expected one event"):
        pflow.explain(model, events[:2])
    with pytest.raises(TypeError, match=r"a model of pflow\.load_model first, and then an event; found Events"):
        pflow.explain(event, model)
    with pytest.raises(InputError, match="no hits or tracks"):
        pflow.explain(model, event.emptied(np.array([True])))


def test_a_forked_process_computes_like_its_parent():
    """As of a pool of processes; without the parent's threads it would wait for ever."""
    n_threads, numbers = torch.get_num_threads(), torch.ones(1_000_000)
    torch.set_num_threads(2)
    torch.exp(numbers)
    if not (child := os.fork()):
        torch.exp(numbers)
        os._exit(0)
    torch.set_num_threads(n_threads)
    end = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.02)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
    assert ended == (child, 0)
