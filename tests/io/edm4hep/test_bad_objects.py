from types import SimpleNamespace

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.event.events import BadEntriesWarning, Events, Flag, LeftOutWarning, Reconstruction
from pflow.event.truth import select_targets
from pflow.io.open import open_events, read_events
from pflow.io.particles_root import RecoWriter, read_provenance, read_reco
from pflow.io.root import open_tree


@pytest.fixture(scope="module")
def good(write, whole_content, toy) -> Events:
    return read_events(write(whole_content), detector=toy)


@pytest.mark.parametrize(
    ("member", "value", "left_out", "on_error"),
    [("A1.energy", -1e-4, 0, "raise"), ("A1.energy", np.nan, 0, "skip"), ("A2.position.y", np.inf, 2, "raise")],
)
def test_a_bad_hit_keeps_its_place_without_energy(write, content, toy, good, member, value, left_out, on_error):
    content[member][0] = [value, *content[member][0][1:]]
    with pytest.warns(LeftOutWarning, match=r"1 of 2 entries .* left out; the first: .*entry 0, 'hits\."):
        events = read_events(write(content), detector=toy, on_error=on_error)
    assert events.flags.tolist() == [int(Flag.UNUSABLE_HITS), 0]
    expected = good.hits.energy.to_list()
    expected[0][left_out] = 0.0
    assert events.hits.energy.to_list() == expected
    assert events.hits[0, left_out].position.to_list() == {"x": 0.0, "y": 0.0, "z": 0.0}
    assert events.hit_links.to_list() == good.hit_links.to_list()


@pytest.mark.parametrize(
    ("member", "place", "value"),
    [
        ("MCParticles.momentum.x", 2, np.nan),
        ("MCParticles.mass", 0, np.inf),
        ("_MCParticles_parents.index", 0, 99),
        ("_HitLinks_to.index", 2, 99),
        ("_HitLinks_from.index", 2, 99),
        ("HitLinks.weight", 2, -1.0),
    ],
)
def test_bad_truth_does_not_cost_the_event(write, content, toy, good, member, place, value):
    content[member][0][place] = value
    with pytest.warns(LeftOutWarning, match=r"1 of 2 entries .* left out; the first: .*entry 0, '(truth|hit_links)"):
        events = read_events(write(content), detector=toy)
    assert events.flags.tolist() == [int(Flag.UNUSABLE_TRUTH), 0]
    assert events.hits.energy.to_list() == good.hits.energy.to_list()
    assert ak.num(events.truth).to_list() == [3, 1]
    assert ak.num(select_targets(events, rule="calo").particles).to_list() == [2 - ("momentum" in member), 1]


@pytest.mark.parametrize("member", ["energy", "momentum.x"])
def test_a_bad_particle_of_the_reference_is_left_out(write, content, toy, good, member):
    for name in ("PDG", "charge", "energy", "mass", "momentum.x", "momentum.y", "momentum.z"):
        content[f"Pandora.{name}"] = [[1.0, 1.0], [1.0]]
    content[f"Pandora.{member}"][0][0] = np.nan
    with pytest.warns(LeftOutWarning, match=r"1 of 2 entries .* left out; the first: .*entry 0, 'reference\."):
        events = read_events(write(content), detector=toy)
    assert events.flags.tolist() == [int(Flag.UNUSABLE_REFERENCE), 0]
    assert ak.num(events.reference).to_list() == [1, 1]
    assert events.hits.to_list() == good.hits.to_list()


def test_an_event_of_mostly_bad_hits_is_refused(write, content, toy):
    content["A2.energy"] = [[-1.0], [-1.0]]
    content["B.energy"][0] = [-1.0]
    content["A1.energy"][0] = [-1.0, 2.0]
    with pytest.warns(BadEntriesWarning, match="2 of 2 entries"):
        assert ak.num(read_events(write(content), detector=toy, on_error="skip").hits).to_list() == [0, 0]


@pytest.mark.parametrize(
    ("member", "states"),
    [
        ("Tracks.trackStates_end", [2, 2]),
        ("_Tracks_trackStates.omega", [-4e-4, -3e-4, np.nan]),
        ("_Tracks_trackStates.omega", [-4e-4, -3e-4, 0.0]),
        ("_Tracks_trackStates.omega", [0.0, 0.0, 2e-4]),
    ],
    ids=["without states", "nan", "straight", "the first is straight"],
)
def test_a_bad_track_is_left_out_with_its_links(write, content, toy, good, member, states):
    content[member][0] = states
    content["TrackLinks.weight"], content["_TrackLinks_to.index"] = [[1.0, 1.0], []], [[1, 2], []]
    content["_TrackLinks_from.index"], content["_TrackLinks_to.collectionID"] = [[0, 1], []], [[15, 15], []]
    content["_TrackLinks_from.collectionID"] = [[14, 14], []]
    with pytest.warns(LeftOutWarning, match=r"'tracks\."):
        events = read_events(write(content), detector=toy)
    assert events.flags.tolist() == [int(Flag.UNUSABLE_TRACKS), 0]
    good_track = 0 if states[-1] != 2e-4 else 1
    assert events.tracks.omega.to_list() == [[good.tracks.omega[0, good_track]], []]
    assert events.track_links.to_list() == [[{"source": 0, "particle": good_track + 1, "weight": 1.0}], []]


def test_a_track_without_a_state_at_the_calorimeter_is_followed_there(write, content, toy):
    content["_Tracks_trackStates.location"][0][0] = 3  # neither at the calorimeter any more
    track = read_events(write(content), detector=toy).tracks[0, 0]
    assert track.calo_position.rho == pytest.approx(toy.ecal_inner_radius)
    assert track.calo_momentum.pt == pytest.approx(track.momentum.pt, rel=1e-6)


def test_outputs_refer_to_the_tracks_of_the_file(write_podio, content, toy, reconstruct):
    content["_Tracks_trackStates.omega"][0] = [0.0, 0.0, 2e-4]  # of two tracks, the first is straight
    with pytest.warns(LeftOutWarning):
        out, made, _ = reconstruct(write_podio(content))
    assert made.track_links.source.to_list() == [[0], []]
    assert read_reco(out).track_links.to_list() == made.track_links.to_list()
    with open_events(out, detector=toy) as file:
        references = file.reader.file.columns.get("_PFlow_tracks", "index", start=0, stop=2)
    assert references.to_list() == [[1], []]


@pytest.mark.parametrize("member", ["A1.energy", "HitLinks.weight", "_HitLinks_to.collectionID"])
def test_columns_of_unequal_length_make_a_bad_entry(write, content, toy, member):
    values = list(content[member][0])
    content[member] = [[*values, values[-1]] if "_" in member else values[:-1], content[member][1]]
    path = write(content)
    with pytest.raises(InputError, match=r"events\.root, entry 0, '") as caught:
        read_events(path, detector=toy)
    assert caught.value.entry == 0
    with pytest.warns(BadEntriesWarning, match="1 of 2 entries cannot be used"):
        events = read_events(path, detector=toy, on_error="skip")
    assert ((events.flags & Flag.BAD_INPUT) > 0).tolist() == [True, False]
    assert events.hits.energy.tolist() == [[], [5.0]]


def test_an_rntuple_of_before_version_1_is_named():
    kind = "ROOT::Experimental::RNTuple"
    old = SimpleNamespace(classnames=lambda recursive: {"events;1": kind}, classname_of=lambda name: kind)
    with pytest.raises(InputError, match=r"old\.root, 'events': 'events' is an RNTuple from before version 1.0"):
        open_tree(old, "events", "old.root")


@pytest.fixture(scope="module")
def reco(tmp_path_factory, sample_dir) -> bytes:
    """An RNTuple of reconstructed particles, copied from the sample."""
    events = read_events(sample_dir / "multi_test_small.root")
    path = tmp_path_factory.mktemp("reco") / "reco.root"
    with RecoWriter(path, provenance={"x": 1}, format="rntuple") as writer:
        writer.extend(Reconstruction(particles=events.reference, event=events.event, flags=events.flags))
    return path.read_bytes()


@pytest.mark.parametrize("part", ["Header", "Footer", "anywhere"])
def test_a_damaged_rntuple_is_an_input_error_or_reads(reco, tmp_path, part):
    path = tmp_path / "reco.root"
    path.write_bytes(reco)
    with uproot.open(path) as file:
        anchor = file["events"]._members
    begin, size = anchor.get(f"fSeek{part}", 0), anchor.get(f"fNBytes{part}", len(reco))
    generator = np.random.default_rng(4)
    refused = 0
    for _ in range(20):
        damaged = bytearray(reco)
        for place in begin + generator.integers(size, size=int(generator.integers(1, 4))):
            damaged[place] = int(generator.integers(256))
        path.write_bytes(damaged)
        for read in (read_reco, read_provenance, read_events):
            try:
                read(path)
            except InputError:
                refused += 1
    assert refused > 5
