import dataclasses
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot
import yaml

from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, Flag, ImplausibleWarning
from pflow.event.jagged import columns as columns_of
from pflow.event.jagged import records
from pflow.event.schema import make_hits, make_links, make_particles, make_tracker_hits, make_tracks, make_truth
from pflow.io.flat import FIELDS, Branch, FlatReader, load_layout, write_events
from pflow.io.open import read_events
from pflow.io.root import open_root
from pflow.physics.detector import load_detector


def flat(path, **options) -> FlatReader:
    return FlatReader(open_root(path), path, **options)


HITS = {"energy": "hit_E", "x": "hit_x", "y": "hit_y", "z": "hit_z"}
"""A minimal layout of somebody else's ntuple."""


def jagged(*events: list[float], dtype: Any = np.float32) -> ak.Array:
    return ak.values_astype(ak.Array([*events, [0.0]])[:-1], dtype)


def hits(**more: Any) -> dict[str, Any]:
    """Two events with two and no hits, and whatever else."""
    values = {"E": [1000.0, 250.0], "x": [180.0, 181.0], "y": [1.0, 2.0], "z": [-3.0, 4.0]}
    return {f"hit_{name}": jagged(two, []) for name, two in values.items()} | more


def layout(folder: Path, **content: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"detector": "ild_g4", "hits": HITS} | content))
    return path


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., FlatReader]:
    """Opens a TTree with one branch for each array, [event] or [event, object], in a layout of this content."""

    def open_ntuple(branches: Mapping[str, Any], **content: Any) -> FlatReader:
        with uproot.recreate(tmp_path / "in.root") as file:
            file.mktree("events", dict(branches))
        return flat(tmp_path / "in.root", layout=layout(tmp_path, **content))

    return open_ntuple


@pytest.mark.parametrize("wrong", [1.5, np.nan, 2.0**40])
def test_layers_that_are_not_whole_are_refused(opened, wrong):
    """They were cut off, or became -2147483648."""
    fields = {"hits": HITS | {"layer": "hit_layer"}}
    whole = opened(hits(hit_layer=jagged([3.0, 2.0], [])), **fields)
    assert whole.read(0, 2).hits.layer.to_list() == [[3, 2], []]
    reader = opened({name: of[::-1] for name, of in hits(hit_layer=jagged([3.0, wrong], [])).items()}, **fields)
    said = "entry 1, 'hit_layer': expected whole numbers of type int32 for layer (-1: none), found"
    with pytest.raises(InputError, match=re.escape(f"{said} {wrong}")):
        reader.read(0, 2)


def test_events_of_an_earlier_tree_are_missed(opened, tmp_path):
    assert not opened(hits()).notes
    with uproot.update(tmp_path / "in.root") as file:
        file.mktree("events", hits())
    assert "events;1 with" in flat(tmp_path / "in.root", layout=tmp_path / "mine.yaml").notes["cycles"]
    with pytest.raises(InputError, match=r"'events;1': the last of the trees of one name is read"):
        read_events(f"{tmp_path / 'in.root'}:events;1")


class TestTheSmallSamples:
    @pytest.mark.parametrize("sample", ["zqq_test", "cld_multi_test"])
    def test_events_hold_the_values_of_the_branches(self, sample_dir, sample):
        path = sample_dir / f"{sample}_small.root"
        events = read_events(path, entry_start=3, entry_stop=6)
        with uproot.open(path) as file:
            raw = file["events"].arrays(entry_start=3, entry_stop=6)
        assert events.event.tolist() == raw["event"].to_list()
        assert events.entry.tolist() == [3, 4, 5]
        for part, prefix, names in (
            (events.hits, "calo_hit", {"energy": "energy", "time": "time", "subdetector": "system", "layer": "layer"}),
            (events.hits.position, "calo_hit", {"x": "x", "y": "y", "z": "z"}),
            (events.tracks.momentum, "track", {"px": "px", "py": "py", "pz": "pz"}),
            (events.tracks.calo_position, "track", {"x": "calo_x", "y": "calo_y", "z": "calo_z"}),
            (events.tracks.calo_momentum, "track", {"px": "calo_px", "py": "calo_py", "pz": "calo_pz"}),
            (events.tracks, "track", {"charge": "charge"}),
            (events.tracker_hits, "tracker_hit", {"energy": "energy", "time": "time", "layer": "layer"}),
            (events.tracker_hits.position, "tracker_hit", {"x": "x", "y": "y", "z": "z"}),
            (events.truth, "particle", {"pdg": "pdg", "charge": "charge", "rest_mass": "mass", "parent": "parent"}),
            (events.truth.momentum, "particle", {"px": "px", "py": "py", "pz": "pz"}),
            (events.truth.vertex, "particle", {"x": "vx", "y": "vy", "z": "vz"}),
            (events.hit_links, "calo_link", {"source": "hit", "particle": "particle"}),
            (events.track_links, "track", {"particle": "particle"}),
            (events.tracker_hit_links, "tracker_hit", {"particle": "particle"}),
        ):
            for field, branch in names.items():
                assert part[field].to_list() == raw[f"{prefix}.{branch}"].to_list(), f"{prefix}.{branch}"

    def test_without_truth_nothing_of_it_is_read(self, opened):
        reader = opened(hits(owner=jagged([0], [], dtype=np.int32)), hits=HITS | {"particle": "owner"})
        # The owners are of the wrong length, which reading them would find.
        assert len(reader.read(0, 2, truth=False)) == 2

    def test_the_codes_follow_the_names_of_another_detector(self, sample_dir):
        names = []
        for reader in (flat(sample_dir / "zqq_test_small.root", detector=name) for name in (None, "ild")):
            of_codes = np.array([calorimeter.name for calorimeter in reader.detector.calorimeters])
            names.append(of_codes[ak.flatten(reader.read(0, 1).hits.subdetector)].tolist())
        assert names[0] == names[1]


class TestSomebodyElsesNtuple:
    def test_four_branches_are_enough_and_units_converted(self, opened):
        events = opened(hits()).read(0, 2).validate()
        assert events.hits.energy.to_list() == [[1000.0, 250.0], []]
        assert [name for name, _ in events.parts()] == ["hits"]
        assert np.isnan(ak.to_numpy(ak.flatten(events.hits.time))).all()
        assert events.event.tolist() == [0, 1]
        fields = HITS | {"energy": {"branch": "hit_E", "scale": 1e-3}, "x": {"branch": "hit_x", "scale": 10}}
        events = opened(hits(), hits=fields).read(0, 2)
        assert events.hits.energy.to_list() == [[1.0, 0.25], []]
        assert events.hits.position.x.to_list() == [[1800.0, 1810.0], []]

    @pytest.mark.parametrize(("values", "n"), [([[1, 0, 0], [4, 0, 0]], [1, 1]), ([[1, 2, 3], [1, 2, 3]], [3, 1])])
    def test_arrays_of_zeros_or_of_equal_entries_are_read(self, opened, values, n):
        arrays = dict.fromkeys(HITS.values(), np.array(values, np.float32)) | {"nhits": np.array(n, np.uint8)}
        assert opened(arrays).read(0, 2).hits.energy.to_list() == values

    @pytest.mark.parametrize(
        ("names", "codes", "subdetectors"),
        [({7: "hcal_barrel", 20: "ecal_endcap"}, [20, 7], [1, 2]), (None, [3, 1], [3, 1])],
        ids=["by name", "codes that count the calorimeters"],
    )
    def test_codes_become_calorimeters(self, opened, names, codes, subdetectors):
        fields = HITS | {"subdetector": {"branch": "id", "names": names} if names else "id"}
        events = opened(hits(id=jagged(codes, [], dtype=np.uint8)), hits=fields).read(0, 2).validate()
        assert events.hits.subdetector.to_list() == [subdetectors, []]

    def test_tracks_by_their_helix(self, opened):
        # pt = 0.299792458e-3 * 3.5 T / (0.299792458e-3 * 3.5 / 2 per mm) = 2 GeV, towards +y, with pz = pt / 2.
        branches = hits(t_o=jagged([-0.299792458e-3 * 1.75], []), t_p=jagged([np.pi / 2], []), t_t=jagged([0.5], []))
        reader = opened(branches, tracks={"omega": "t_o", "phi": "t_p", "tan_lambda": "t_t"})
        track = reader.read(0, 2).tracks[0, 0]
        assert reader.notes["tracks"].startswith("tracks have no place, neither calo_x, calo_y and calo_z nor d0")
        momentum = [track.momentum.px, track.momentum.py, track.momentum.pz]
        np.testing.assert_allclose(momentum, [0.0, 2.0, 1.0], atol=1e-6)
        assert track.charge == -1

    def test_particles_by_code_and_links_from_an_index_a_hit(self, opened):
        branches = hits(**dict.fromkeys(("px", "py", "pz"), jagged([3.0, 3.0], [])))
        branches |= {"pdg": jagged([22, -11], [], dtype=np.int32), "owner": jagged([-1, 1], [], dtype=np.int32)}
        truth = {name: name for name in ("pdg", "px", "py", "pz")}
        events = opened(branches, hits=HITS | {"particle": "owner"}, truth=truth).read(0, 2).validate()
        assert events.hit_links.to_list() == [[{"source": 1, "particle": 1, "weight": 1.0}], []]
        assert events.truth.charge.to_list() == [[0.0, 1.0], []]
        np.testing.assert_allclose(events.truth.mass[0], [0.0, 0.51099895e-3], rtol=1e-6)

    def test_what_is_missing_is_reported(self, opened):
        reader = opened(
            hits(),
            event="number",
            hits=HITS | {"time": "hit_t", "layer": {"branch": "hit_l", "optional": True}},
            tracks={"px": "a", "py": "b", "pz": "c", "charge": "d"},
        )
        assert reader.absent == ("hit_t", "tracks", "number")
        (note,) = reader.notes.values()
        assert note.startswith("layout 'mine' names hit_t, which the file does not have (nearest matches: hit_")
        assert reader.read(0, 2).absent == reader.absent


class TestBadInput:
    @pytest.mark.parametrize(
        ("branches", "content", "message"),
        [
            (
                {"hit_z": jagged([1.0, 2.0], [3.0])},
                {},
                r"entry 1, 'hit_z': expected 0 values, the number in 'hit_E', found 1",
            ),
            ({"hit_E": np.array([1.0, 2.0])}, {}, "'hit_E': expected one list of numbers an entry, found float64"),
            ({}, {"event": "hit_E"}, r"'hit_E': expected one number an entry, found var \* float32"),
            (
                {"id": jagged([3, 4], [], dtype=np.uint8)},
                {"hits": HITS | {"subdetector": {"branch": "id", "names": {3: "ecal_endcap"}}}},
                r"entry 0, 'id': 4 is the code of no calorimeter that `names` of the layout lists \(3: ecal_endcap\)",
            ),
            (
                dict.fromkeys(("hit_E", "hit_x", "hit_y", "hit_z"), np.array([[1, 2, 3], [4, 2, 3]], np.float32))
                | {"nhits": np.array([3, 1], np.uint8), "nvtx": np.array([1, 2])},
                {},
                "'hit_E': an array of 3 numbers in every entry, of which 'nhits' seems to count those that are filled",
            ),
        ],
        ids=["different lengths", "a number for a list", "a list for a number", "another code", "arrays of one size"],
    )
    def test_branches_of_another_form(self, opened, branches, content, message):
        reader = opened(hits(**branches), **content)
        with pytest.raises(InputError, match=message):
            reader.read(0, 2)

    def test_a_missing_branch_calorimeter_or_detector_is_named(self, opened, tmp_path):
        with pytest.raises(InputError, match=r"in\.root, 'hit_e': branch is missing.*nearest matches: hit_E"):
            opened(hits(), hits=HITS | {"energy": "hit_e"})
        fields = HITS | {"subdetector": {"branch": "id", "names": {0: "ecal_barel"}}}
        with pytest.raises(ConfigError, match=r"'ecal_barel' \(code 0\) is not one of detector 'ild_g4': ecal_barrel"):
            opened(hits(id=jagged([0, 0], [], dtype=np.int32)), hits=fields)
        with pytest.raises(ConfigError, match="names no detector"):
            opened(hits(), detector=None)
        reader = flat(tmp_path / "in.root", layout=tmp_path / "mine.yaml", detector="cld")
        assert reader.detector.name == "cld"


def test_the_built_in_layout_is_complete_and_hits_alone_make_one(tmp_path):
    built_in, mine = load_layout("g4"), load_layout(layout(tmp_path, detector=None))
    assert {part: {*fields} for part, fields in built_in.parts.items()} == {part: {*FIELDS[part]} for part in FIELDS}
    header = ("name", "tree", "detector", "event", "reference_name")
    assert [getattr(built_in, key) for key in header] == ["g4", "events", "ild_g4", "event", "PandoraPFA"]
    assert mine.parts == {"hits": {name: Branch(branch=branch) for name, branch in HITS.items()}}
    assert [getattr(mine, key) for key in header[:-1]] == ["mine", "events", None, None]


def test_an_unknown_layout_and_half_a_part_name_the_nearest():
    with pytest.raises(ConfigError, match="no layout file 'g5': neither a file nor one of cld_g4, g4"):
        load_layout("g5")
    keys = ["track.px", "track.py", "track.p_z", "track.charge"]
    with pytest.raises(InputError, match=r"f\.root, 'track\.pz': .* needs it for the tracks \(nearest matches: .*p_z"):
        load_layout("g4").available("tracks", keys, file="f.root")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"track": {}}, r"mine\.yaml: unknown field 'track' \(nearest matches: tracks"),
        ({"hits": HITS | {"enrgy": "e"}}, r"hits: unknown field 'enrgy' \(nearest matches: energy"),
        ({"hits": None}, "'hits' is missing"),
        ({"hits": {"energy": "e", "x": "x"}}, "hits: needs at least energy, x, y, z; found energy, x"),
        ({"tracks": {"px": "a"}}, "tracks: needs at least px, py, pz, charge, or omega, phi, tan_lambda"),
        ({"tree": 3}, "'tree' must be text, found 3"),
        ({"hits": {"energy": "e", "x": "x", "y": "x", "z": "z"}}, "hits: x and y are both x: leave out what"),
        ({"hits": HITS | {"time": {"scale": 3}}}, r"hits\.time: field 'branch' is missing"),
        ({"hits": HITS | {"time": {"branch": "t", "scale": "3"}}}, r"hits\.time: 'scale' must be a number, found '3'"),
        ({"hits": HITS | {"time": {"branch": "t", "unit": "ns"}}}, r"hits\.time: unknown field 'unit'"),
        ({"hits": HITS | {"time": {"branch": "t", "names": {0: "a"}}}}, "'names' belongs to hits.subdetector only"),
    ],
)
def test_invalid_layouts_are_refused(tmp_path, content, message):
    with pytest.raises(ConfigError, match=message):
        load_layout(layout(tmp_path, **content))


TOLERANCE = {"weight": 1e-6, "phi": 3e-7}
"""Reading normalises shares; a track's phi may be stored or computed: arctan2 depends on the machine."""


def read_all(path):
    reader = flat(path)
    return reader.read(0, reader.num_entries)


def three(first, last=()):
    """Values of three events, the second without any."""
    return ak.Array([first, [], list(last)])


def by_hand():
    """Three events, the second empty, with every part and every oddity that an `Events` may have."""
    numbers, two = three([1.5, 2.25, 0.125], [8.0]), three([10.0, -20.0])
    position = {axis: numbers * factor for axis, factor in zip("xyz", (2, -1, 3), strict=True)}
    helix = {"omega": 1e-5, "phi": 0.1, "tan_lambda": 0.01, "d0": 1.0, "z0": 3.0, "calo_y": 1.0, "calo_z": 1.5}
    helix |= {"calo_px": 60.0, "calo_py": 1.0, "calo_pz": 0.5}
    particles = {axis: three([0.1 * i, 0.3], [i / 3]) for i, axis in enumerate(("px", "py", "pz"), 1)} | {
        "pdg": three([22, -11], [211]),
        "charge": three([0.0, 1.0], [1.0]),
        "mass": three([0.0, 0.000510998950], [0.13957039]),
    }
    return Events(
        detector=load_detector("cld"),
        hits=make_hits(
            energy=numbers,
            **position,
            time=three([1.0, np.nan, 3.0], [4.0]),
            subdetector=three([5, 0, 3], [4]),
            layer=three([-1, 3, 4], [0]),
        ),
        tracks=make_tracks(
            b_field=2.0, calo_x=three([2150.0, 2160.0]), **{name: two * factor for name, factor in helix.items()}
        ),
        tracker_hits=make_tracker_hits(energy=numbers * 1e-4, layer=numbers > 2, **position),
        truth=make_truth(
            **particles,
            vx=three([0.0, 310.7], [np.nan]),
            status=three([1, 0], [1]),
            parent=three([-1, 0], [-1]),
            overlay=three([False, True], [True]),
        ),
        hit_links=make_links(
            source=three([0, 0, 2], [0]), particle=three([1, 0, 1], [0]), weight=three([1.0, 3.0, 0.5], [1.0])
        ),
        track_links=make_links(source=three([0, 0, 1]), particle=three([0, 1, 0]), weight=three([1.0, 2.0, 1.0])),
        tracker_hit_links=make_links(source=three([2], [0]), particle=three([1], [0])),
        reference=make_particles(
            **particles,
            energy=three([5.0, 6.0], [7.0]),
            score=three([0.75, 0.5], [np.nan]),
            existence=three([0.5, 1.0], [0.875]),
        ),
        reference_name="PandoraPFOs",
        event=np.array([7, 9, 2**40]),
    )


@pytest.mark.parametrize(
    ("n", "cuts"),
    [(3, []), (3, [1, 2]), (3, [0, 3]), (0, [])],
    ids=["at once", "event by event", "with chunks without events", "no events"],
)
def test_all_comes_back(tmp_path, n, cuts, assert_same):
    """Every part, a detector of the user's own by a built-in one's name, and that tracks are of true particles."""
    events = by_hand()[:n]
    mine = dataclasses.replace(events.detector, b_field=1.25)
    events = dataclasses.replace(events, detector=mine, flags=np.full(n, Flag.TRUTH_TRACKS, dtype=np.uint32))
    chunks = [events[start:stop] for start, stop in pairwise([0, *cuts, n])]
    assert write_events(tmp_path / "out.root", iter(chunks) if cuts else events) == n
    read = read_all(tmp_path / "out.root")
    assert_same(read, events, rtol=TOLERANCE)
    assert (read.detector, read.reference_name) == (mine, "PandoraPFOs")
    assert (read.event.tolist(), read.flags.tolist()) == (events.event.tolist(), events.flags.tolist())


def test_hits_name_their_largest_particle_and_the_file_its_detector(tmp_path):
    write_events(tmp_path / "out.root", by_hand())
    assert read_all(tmp_path / "out.root").detector == load_detector("cld")
    with uproot.open(tmp_path / "out.root") as file:
        # Hit 0 is a quarter of particle 1 and three quarters of 0, hit 1 of nobody.
        assert file["events"]["calo_hit.particle"].array().to_list() == [[0, -1, 1], [], [0]]
        assert file["events"]["track.particle"].array().to_list() == [[1, 0], [], []]


def test_a_description_in_a_file_that_is_no_detector_is_the_files_fault(tmp_path):
    with uproot.recreate(tmp_path / "in.root") as file:
        file.mktree("events", hits())
        file["pflow_flat"] = '{"detector": {"name": "mine"}}'
    with pytest.raises(InputError, match=r"in.root, 'pflow_flat': its .* missing; describe it with --detector"):
        flat(tmp_path / "in.root")


def test_chunks_that_make_no_file(tmp_path):
    events = by_hand()
    hits = Events(detector=events.detector, hits=events.hits)
    truth = columns_of(events.truth)
    del truth["overlay"]
    without_overlay = dataclasses.replace(events, truth=records(truth, ak.num(events.truth)))
    of_clic = dataclasses.replace(hits, detector=load_detector("clic"))
    for chunks, message in (
        ([], "no events were given"),
        ([events, hits], r"chunks with hits, tracks, .* and with hits"),
        ([events, without_overlay], r"chunks with .* truth, overlay, .* and with .* truth, hit_links"),
        ([hits, of_clic], "of detector 'cld', and with hits of 'clic'"),
    ):
        with pytest.raises(ConfigError, match=message):
            write_events(tmp_path / "out.root", chunks)
        assert list(tmp_path.iterdir()) == []


def test_a_flat_file_of_no_built_in_detector_is_refused_unless_one_is_named(sample_dir, tmp_path):
    with uproot.open(sample_dir / "zqq_test_small.root") as file, uproot.recreate(tmp_path / "far.root") as copy:
        table = file["events"].arrays()
        far = {
            name: 1.4 * table[name] if name in {f"calo_hit.{k}" for k in "xyz"} else table[name]
            for name in table.fields
        }
        copy.mkrntuple("events", far)
    with pytest.raises(InputError, match=r"the hits lie where neither ild_g4 nor cld has its ECAL: .*--detector"):
        read_events(tmp_path / "far.root")
    with pytest.warns(ImplausibleWarning, match=r"lie outside of it: .*another detector than ild_g4 \(--detector\)\?"):
        assert len(read_events(tmp_path / "far.root", detector="ild_g4")) == len(table)


def test_tracks_without_a_place_at_the_calorimeter_are_followed_there(sample_dir, tmp_path):
    events = read_events(sample_dir / "zqq_test_small.root")
    with uproot.open(sample_dir / "zqq_test_small.root") as file, uproot.recreate(tmp_path / "in.root") as copy:
        table = file["events"].arrays()
        copy.mkrntuple("events", {name: table[name] for name in table.fields if not name.startswith("track.calo")})
    tracks = read_events(tmp_path / "in.root", layout="g4").tracks
    distance = (tracks.calo_position - events.tracks.calo_position).mag
    assert np.isfinite(ak.to_numpy(ak.flatten(tracks.calo_position.x))).all()
    hard = ak.flatten(distance[events.tracks.momentum.mag > 3.0])
    assert np.median(hard) < 20.0, "the field of the simulation is the detector's; tracks scatter and lose energy"

    # From beside the axis, on the side that d0 says.
    with uproot.recreate(tmp_path / "beside.root") as copy:
        beside = {name: table[name] for name in table.fields if not name.startswith("track.calo")}
        place = {f"track.{name}": ak.full_like(table["track.px"], value) for name, value in (("d0", 2.0), ("z0", 2.0))}
        copy.mkrntuple("events", beside | place)
    off = read_events(tmp_path / "beside.root", layout="g4").tracks.calo_position - tracks.calo_position
    side = ak.flatten((off.y * np.cos(tracks.phi) - off.x * np.sin(tracks.phi))[tracks.momentum.mag > 3.0])
    assert np.median(side) == pytest.approx(2.0, rel=0.1)
    assert np.median(ak.flatten(off.z)) > 1.0  # most enter the barrel, of 2 mm and what they bend

    # So are single ones whose state is not set.
    with uproot.recreate(tmp_path / "some.root") as copy:
        for n, name in enumerate(name for name in table.fields if name.startswith("track.calo")):
            of_file, values = ak.num(table[name]), ak.flatten(table[name]) * 1.0
            value = np.where(np.arange(len(values)) % 2, (0.0, np.nan)[n < 3], -999.0)
            table[name] = ak.unflatten(ak.where(np.arange(len(values)) % 3 == 0, value, values), of_file)
        copy.mkrntuple("events", {name: table[name] for name in table.fields})
    with pytest.warns(ImplausibleWarning, match="23 of 111 tracks have a place .* that is not at the calorimeter"):
        some = read_events(tmp_path / "some.root", layout="g4").tracks
    for name in ("calo_position.x", "calo_momentum.pz"):
        given, along, found = (columns_of(of)[name] for of in (events.tracks, tracks, some))
        np.testing.assert_array_equal(found, np.where(np.arange(len(given)) % 3 == 0, along, given))
