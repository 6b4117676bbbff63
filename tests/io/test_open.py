from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.checks import Expected
from pflow.event.events import BadEntriesWarning, Events, Flag, ImplausibleWarning, leave_out
from pflow.event.schema import make_hits
from pflow.io.edm4hep.podio import PodioFile, open_podio
from pflow.io.flat import FlatReader, write_events
from pflow.io.open import (
    ReadOptions,
    best_detector,
    best_layout,
    first_entries,
    fitting_detectors,
    geometry_fits,
    iterate_events,
    matching,
    open_events,
    read_events,
    sniff,
)
from pflow.io.root import open_root
from pflow.physics.detector import load_detector


def layout_of(path, detector=None) -> str:
    with open_root(path) as directory:
        return best_layout(directory, str(path), detector)


def schema_of(path) -> str:
    with open_root(path) as directory:
        return sniff(directory, str(path))


def ecal_hits(**where: list[list[float]]) -> Events:
    """Hits of the CLD ECAL barrel at these x, or of its endcaps at these z."""
    ((axis, values),) = where.items()
    zeros, ones = ([[number] * len(event) for event in values] for number in (0, 1))
    position = dict.fromkeys("xyz", zeros) | {axis: values}
    subdetector = {"x": zeros, "z": ones}[axis]
    return Events(detector=load_detector("cld"), hits=make_hits(energy=ones, subdetector=subdetector, **position))


def shower(front: float, n_events: int = 6) -> list[list[float]]:
    """Hits from `front` on to 120 mm behind it, in several events."""
    return [list(np.linspace(front, front + 120.0, 30)) for _ in range(n_events)]


@pytest.mark.parametrize(("radius", "names"), [(2152.0, {"cld"}), (1502.0, {"clic"}), (1807.0, {"ild", "ild_g4"})])
def test_a_barrel_is_known_by_its_radius(radius, names):
    events = ecal_hits(x=shower(radius))
    fits = {detector for detector in ("cld", "clic", "ild", "ild_g4") if geometry_fits(events, load_detector(detector))}
    assert fits == names


CORNER = 1804.8 / np.cos(np.pi / 8)


@pytest.mark.parametrize(
    ("hits", "detector", "fits"),
    [
        ({"x": shower(CORNER + 2.0)}, "ild", True),  # corner of an octagon
        ({"z": shower(2414.0)}, "ild", True),
        ({"z": shower(2414.0)}, "cld", False),  # endcaps of another
        ({"z": [[-2310.0, 2310.0]] * 6}, "cld", True),  # both endcaps
        ({"z": [[2400.0] * 50]}, "cld", None),  # one late shower
        ({"z": [[2400.0] * 50] * 6}, "cld", False),  # late showers alone
        ({"x": [[], []]}, "cld", None),
        ({"x": [[*event, float("nan")] for event in shower(2152.0)]}, "cld", True),
        ({"x": [*shower(2152.0), [100.0]]}, "cld", True),  # a displaced hit
    ],
)
def test_geometry(hits, detector, fits):
    assert geometry_fits(ecal_hits(**hits), load_detector(detector)) is fits


def test_left_out_hits_do_not_change_the_geometry_match(cld_rec):
    energy = jagged.flat(cld_rec.hits.energy).copy()
    energy[::50] = -1.0
    usable, left_out = leave_out(replace(cld_rec, hits=jagged.replaced(cld_rec.hits, {"energy": energy})))
    assert left_out["hits"].mean() > 0.015
    assert geometry_fits(usable, cld_rec.detector) is True


@pytest.mark.parametrize("sim", [None, True])
def test_only_cld_fits_the_cld_file(cld_path, cld_sim_path, sim, monkeypatch):
    """By the hits of the ECAL: to read others takes most of the time of opening a file."""
    read, get = set[str](), PodioFile.get
    monkeypatch.setattr(PodioFile, "get", lambda file, span, name, *of: read.add(name) or get(file, span, name, *of))
    matches = fitting_detectors(open_podio(cld_sim_path if sim else cld_path), sim=sim)
    assert [match.detector.name for match in matches if not match.reason] == ["cld"]
    assert matches[0].detector.name == "cld"
    assert matches[0].reason == ""
    reasons = {match.detector.name: match.reason for match in matches}
    assert "do not lie where its ECAL is" in reasons["clic"]
    assert "no collection" in reasons["ild"]
    assert any("ECAL" in name.upper() for name in read)
    assert not any("HCAL" in name.upper() for name in read)


def test_entries_without_hits_are_passed_over_in_few_readings():
    spans = []

    def read(start, stop, *, truth):
        spans.append((start, stop))
        return SimpleNamespace(hits=ak.Array([[1.0] * (entry == 2500) for entry in range(start, stop)]))

    first_entries(SimpleNamespace(num_entries=9000, read=read))
    assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
    assert (spans[0], spans[-1][0] <= 2500 < spans[-1][1], len(spans) < 12) == ((0, 10), True, True)
    assert max(stop - start for start, stop in spans) == 640, "as many as memory has no trouble with"


def as_cld(content: dict[str, Any], *, radius: float) -> dict[str, Any]:
    """The small file with CLD's names and one ECAL hit at a radius."""
    renamed = {f"ECALBarrel.{key.split('.', 1)[1]}": values for key, values in content.items() if key.startswith("A2.")}
    renamed["ECALBarrel.position.x"] = [[radius], [radius]]
    for name in ("ECALEndcap", "HCALBarrel", "HCALEndcap"):
        renamed |= {f"{name}.{key.split('.', 1)[1]}": [[], []] for key in renamed if key.startswith("ECALBarrel.")}
    return renamed


def test_the_geometry_decides_between_detectors_with_the_same_names(podio, content, monkeypatch):
    """Where none or two fit, they are named."""
    assert best_detector(podio(as_cld(content, radius=1505.0))).name == "clic"
    with pytest.raises(InputError, match="no built-in detector fits") as caught:
        best_detector(podio(as_cld(content, radius=500.0)))
    assert all(f"{name}: " in str(caught.value) for name in ("cld", "clic", "ild", "ild_g4"))
    twin = replace(load_detector("cld"), name="twin")
    monkeypatch.setattr("pflow.io.open.builtin_names", lambda kind: ["cld", twin])
    named = podio(as_cld(content, radius=2155.0))
    named.parameters["detectorName"] = ("twin",)
    assert best_detector(named).name == "twin"
    with pytest.raises(InputError, match="fits the detectors cld and twin equally well"):
        best_detector(podio(as_cld(content, radius=2155.0)))


def test_entries_that_cannot_be_decoded_leave_the_geometry_unknown(write, damage, content):
    path = write(as_cld(content, radius=1505.0))
    damage(path, "ECALBarrel.position.x")
    fitting = {match.detector.name for match in fitting_detectors(open_podio(path)) if not match.reason}
    assert fitting == {"cld", "clic", "ild_g4"}  # all that have collections of these names


@pytest.mark.parametrize(("name", "detector"), [("gamma1_val", "ild_g4"), ("cld_multi_test", "cld")])
def test_the_detector_whose_ecal_has_the_hits(sample_dir, tmp_path, name, detector):
    path = tmp_path / "no_note.root"
    with uproot.open(sample_dir / f"{name}_small.root") as file, uproot.recreate(path) as copy:
        branches = file["events"].arrays(entry_stop=20, how=dict)
        copy.mktree("events", {key: values.type.content for key, values in branches.items()})
        # The first ten entries are empty.
        first = {key: values[:10, :0] if values.ndim > 1 else values[:10] for key, values in branches.items()}
        copy["events"].extend({key: ak.concatenate([first[key], values[10:]]) for key, values in branches.items()})
    with open_events(path) as file:
        assert file.detector.name == detector
        assert len(file.read(0, 5)) == 5


def test_a_known_detector_decides_the_layout(sample_dir, tmp_path):
    assert layout_of(sample_dir / "zqq_test_small.root", load_detector("cld")) == "cld_g4"
    assert best_layout(None, "not_read.root", load_detector("clic")) == "g4"
    path = tmp_path / "empty.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {f"calo_hit.{key}": "var * float32" for key in ("energy", "x", "y", "z")})
    assert layout_of(path) == "g4"


@pytest.mark.parametrize(("part", "options"), [("Tracks", {}), ("A1.", {"ids": {}}), ("MCParticles.", {"ids": {}})])
def test_edm4hep_is_known_by_podio_s_metadata_or_its_collections(write, content, part, options):
    some = {key: values for key, values in content.items() if key.startswith(part)}
    assert schema_of(write(some, **options)) == "edm4hep"


def test_a_tree_of_something_else_says_what_was_looked_for(tmp_path):
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {"calohit.energy": "var * float32", "y": "int32"})
    with pytest.raises(InputError, match=r"holds neither EDM4hep .* nor .* flat layout .*nearest matches: calohit"):
        schema_of(path)


@pytest.fixture
def four(content: dict[str, Any]) -> dict[str, Any]:
    return {key: [*values, *values] for key, values in content.items()}


def test_a_range_of_entries_is_read_and_anything_else_refused(write, four, toy):
    ranges = [(0, None, [0, 1, 2, 3]), (1, 3, [1, 2]), (2, 99, [2, 3]), (7, 9, []), (3, 1, []), (0, 0, [])]
    with open_events(write(four), detector=toy) as file:
        for start, stop, entries in ranges:
            assert file.read(start, stop).entry.tolist() == entries
        for start, stop in ((-1, None), (0, -1), (0, 2.7)):
            with pytest.raises(ConfigError, match="counted from 0"):
                file.read(start, stop)
        with pytest.raises(ConfigError, match="no on_error 'ignore': expected one of raise, skip"):
            file.read(on_error="ignore")
    with pytest.raises(ConfigError, match="is closed: read it inside of its with block"):
        file.read()


def test_skipped_entries_stay_as_empty_events_with_one_warning(write, four, toy):
    good = read_events(write(four), detector=toy)
    for entry in (1, 3):
        four["A2.energy"][entry] = [float("nan")]
    expected = r"2 of 4 entries .*, entry 1, 'hits.energy': expected a finite number"
    with pytest.warns(BadEntriesWarning, match=expected) as caught:
        events = read_events(write(four, name="bad.root"), detector=toy, on_error="skip")
    assert [warning.filename for warning in caught if warning.category is BadEntriesWarning] == [__file__]
    assert events.flags.tolist() == [0, int(Flag.BAD_INPUT), 0, int(Flag.BAD_INPUT)]
    assert events.entry.tolist() == [0, 1, 2, 3]
    for name, part in events.parts():
        counts = ak.num(getattr(good, name)).to_list()
        assert ak.num(part).to_list() == [counts[0], 0, counts[2], 0]


def test_links_outside_count_with_truth_and_a_missing_member_always(write, four, toy):
    four["_HitLinks_to.index"][1] = [9]
    path = write(four)
    with pytest.raises(InputError, match="points outside"):
        read_events(path, detector=toy)
    assert len(read_events(path, detector=toy, truth=False)) == 4
    del four["A2.position.y"]
    with pytest.raises(InputError, match="has no member"):
        read_events(write(four), detector=toy, on_error="skip")


@pytest.mark.parametrize(("chunks", "flags"), [(2, [0, 0, 1, 1]), (1, [1, 1, 1, 1])])
def test_entries_outside_a_damaged_basket_are_read(write, damage, four, toy, chunks, flags):
    path = write(four, chunks=chunks)
    good = read_events(path, detector=toy)
    damage(path, "B.energy", chunks - 1)
    with pytest.warns(BadEntriesWarning, match=f"{sum(flags)} of 4 entries.*B.energy"):
        events = read_events(path, detector=toy, on_error="skip")
    assert events.flags.tolist() == flags
    n_good = flags.index(1)
    assert events.hits[:n_good].to_list() == good.hits[:n_good].to_list()
    assert ak.num(events.hits).to_list()[n_good:] == [0] * sum(flags)
    assert [name for name, _ in events.parts()] == [name for name, _ in good.parts()]


@pytest.mark.parametrize("layout", ["new", "rntuple"])
def test_an_empty_tree_has_no_events(write, content, toy, layout):
    path = write({key: [] for key in content}, layout)
    events = read_events(path, detector=toy)
    assert len(events) == 0
    assert events.has_truth
    assert list(iterate_events(path, detector=toy)) == []


def test_an_empty_tree_needs_no_detector(write, content):
    members = [key.removeprefix("A1") for key in content if key.startswith("A1.")]
    names = ("ECALBarrel", "ECALEndcap", "HCALBarrel", "HCALEndcap")
    with open_events(write({name + member: [] for name in names for member in members})) as file:
        assert file.num_entries == 0
        assert len(file.read()) == 0


def test_threads_share_an_open_file(sample_dir):
    """Reading at once they moved each other's position: of 80 reads 25 were right, and five silently wrong."""
    with open_events(sample_dir / "multi_test_small.root") as file:
        alone = [file.read(entry, entry + 1) for entry in range(8)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda entry: file.read(entry % 8, entry % 8 + 1), range(40)))
    for n, events in enumerate(together):
        for (name, part), (_, expected) in zip(events.parts(), alone[n % 8].parts(), strict=True):
            for column, values in jagged.columns(part).items():
                np.testing.assert_array_equal(values, jagged.columns(expected)[column], err_msg=f"{n} {name}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schema": "edm4hap"}, r"no schema 'edm4hap'.*nearest matches: edm4hep"),
        ({"schema": "edm4hep", "layout": "g4"}, "a layout is for flat ntuples"),
        ({"schema": "flat", "truth_tracks": True}, "not of schema 'flat'"),
    ],
)
def test_options_that_do_not_fit_are_refused(sample_dir, options, message):
    with pytest.raises(ConfigError, match=message):
        open_events(sample_dir / "gamma1_test_small.root", **options)


def raising(error):
    def fails(*_, **__):
        raise error

    return fails


def test_damage_in_a_file_without_entries_is_never_skipped(make_photons, tmp_path, monkeypatch):
    write_events(tmp_path / "a.root", make_photons(4)[:0])
    with open_events(tmp_path / "a.root") as file:
        assert file.num_entries == 0
        monkeypatch.setattr(file.reader, "read", raising(InputError("truncated", file="a.root", entry=0)))
        for on_error in ("raise", "skip"):
            with pytest.raises(InputError, match="truncated"):
                file.read(on_error=on_error)


def test_a_bug_in_pflow_is_not_reported_as_damage(write, content, toy, monkeypatch):
    monkeypatch.setattr("pflow.io.edm4hep.reader.make_hits", raising(TypeError("mistaken")))
    with open_events(write(content), detector=toy) as file, pytest.raises(TypeError, match="mistaken"):
        file.read(on_error="skip")


@pytest.mark.parametrize("name", ["cld_multi_test_small.root", "cld_zqq_small_rntuple.edm4hep.root"])
def test_a_file_is_opened_once(sample_dir, monkeypatch, name):
    opened: list[str] = []
    uproot_open = uproot.open
    monkeypatch.setattr(uproot, "open", lambda path, **options: opened.extend(path) or uproot_open(path, **options))
    read_events(sample_dir / name, entry_stop=3)
    assert opened == [str(sample_dir / name)]


def test_small_chunks_read_each_basket_once(make_photons, tmp_path, monkeypatch):
    path = tmp_path / "a.root"
    events = make_photons(10)
    write_events(path, [events[:5], events[5:]])
    read: list[tuple[int, int]] = []
    read_flat = FlatReader.read

    def noted(self, *entries, **more):
        read.append(entries)
        return read_flat(self, *entries, **more)

    monkeypatch.setattr(FlatReader, "read", noted)
    chunks = list(iterate_events(path, detector="ild_g4", layout="g4", chunk_size=2))
    assert [chunk.entry.tolist() for chunk in chunks] == [[0, 1], [2, 3], [4], [5, 6], [7, 8], [9]]
    assert read == [(0, 5), (5, 10)]


def test_patterns_and_paths_may_name_a_file_twice_and_must_name_one(tmp_path):
    with pytest.raises(ConfigError, match="no files"):
        read_events([])
    with pytest.raises(InputError, match=r"none\*\.root: no file matches"):
        matching([tmp_path / "none*.root"])
    for name in ("b.root", "a.root", "c[1].root"):
        (tmp_path / name).touch()
    paths = [tmp_path / "b.root", tmp_path / "?.root", tmp_path / "c[1].root", "root://server/x*.root"]
    expected = ["b.root", "a.root", "b.root", "c[1].root"]
    assert matching(paths) == [*(str(tmp_path / name) for name in expected), "root://server/x*.root"]


class TestSeveralFiles:
    """`train_files` hold the events 0 to 39 and 40 to 69."""

    @pytest.mark.parametrize("given", ["list", "pattern", "trees", "pattern of trees"])
    def test_are_read_one_after_the_other(self, train_files, given):
        pattern = train_files[0].replace("a.root", "*.root")
        trees = [f"{path}:events" for path in train_files]
        paths = {"list": train_files, "pattern": pattern, "trees": trees, "pattern of trees": f"{pattern}:events"}
        events = read_events(paths[given])
        assert events.event.tolist() == list(range(70))
        assert [chunk.path for chunk in iterate_events(paths[given])] == train_files

    @pytest.mark.filterwarnings("ignore:.*a typical hit of the ECAL")  # of the few that are read
    @pytest.mark.parametrize(
        ("start", "stop", "expected"),
        [(38, 42, range(38, 42)), (0, 10, range(10)), (50, None, range(50, 70)), (5, 5, ())],
    )
    def test_entries_are_counted_through_all(self, train_files, start, stop, expected):
        assert read_events(train_files, entry_start=start, entry_stop=stop).event.tolist() == list(expected)

    def test_entries_behind_the_last_are_said(self, train_files):
        with pytest.warns(UserWarning, match="no events are read: entry_start is 70, and there are 70 entries"):
            assert len(read_events(train_files, entry_start=70)) == 0
        with pytest.warns(UserWarning, match="no events are read: entry_stop 2 is before entry_start 5"):
            assert len(read_events(train_files, entry_start=5, entry_stop=2)) == 0

    def test_whether_truth_is_read_is_true_or_false(self, train_files):
        with pytest.raises(TypeError, match="expected truth, True or False; found str"):
            read_events(train_files[0], truth="no")

    def test_with_different_detectors_are_refused(self, train_files, sample_dir):
        cld = sample_dir / "cld_multi_test_small.root"
        with pytest.raises(InputError, match=r"cld_multi_test_small\.root: is of detector 'cld', .* of 'ild_g4'"):
            read_events([train_files[0], cld])

    def test_with_truth_and_without_are_joined_without_and_that_is_said(self, sample_dir, tmp_path):
        full = sample_dir / "multi_test_small.root"
        write_events(tmp_path / "bare.root", read_events(full, entry_stop=3).without_truth())
        text = r"bare\.root' has no truth, hit_links, .*reference, unlike '.*multi_test_small\.root': all events joined"
        for paths in ([full, tmp_path / "bare.root"], [tmp_path / "bare.root", full]):
            with pytest.warns(ImplausibleWarning, match=text):
                events = read_events(paths)
            assert (len(events), events.truth, events.tracks is None) == (28, None, False)


def test_what_explains_an_error_is_said_before_it(write, content, toy):
    """E.g. that files were merged whose collection ids differ, so that references lead elsewhere."""
    content["HitLinks.weight"] = [[0.2], [0.7]]
    with open_events(write(content), detector=toy) as file:
        file.reader.notes["ids"] = "files were merged whose ids differ"
        with (
            pytest.warns(ImplausibleWarning, match="whose ids differ"),
            pytest.raises(InputError, match="5 references"),
        ):
            file.read()


class TestNames:
    @pytest.mark.parametrize("name", ["a.root:b.root", "run:7/a.root", "run:7/a:b.root"])
    def test_a_colon_is_a_part_of_a_name_where_the_file_exists(self, train_files, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        Path(name).parent.mkdir(exist_ok=True)
        for filename in ("a.root", name):  # `a.root:b.root` may also be a tree of the former
            Path(filename).write_bytes(Path(train_files[filename == name]).read_bytes())
        assert len(read_events(name)) == len(read_events(f"{name}:events")) == 30

    def test_a_tree_in_the_path_overrides_the_layouts(self, train_files, tmp_path):
        with uproot.open(train_files[1]) as source, uproot.recreate(tmp_path / "a.root") as file:
            branches = {name: branch.array() for name, branch in source["events"].items() if name[:2] != "n_"}
            file["mine"] = branches
            file["events"] = {name: values[:3] for name, values in branches.items()}
        path = f"{tmp_path}/a.root:mine"
        assert len(read_events(path, layout="g4")) == 30
        with open_events(path, layout="g4") as file, open_events(file.path, layout="g4") as same:
            assert (len(file), file.uuid) == (len(same), same.uuid)

    @pytest.mark.parametrize(
        ("tree", "options", "message"),
        [("event", {}, "needs a layout"), ("event", {"layout": "g4"}, r"no tree 'event'.*nearest matches: events")],
    )
    def test_a_tree_that_is_not_there(self, train_files, tree, options, message):
        with pytest.raises(InputError, match=message):
            read_events(f"{train_files[0]}:{tree}", **options)


def test_unusable_truth_of_one_event_leaves_hits_checked(sample_dir, tmp_path, spoil):
    """A particle is its own ancestor, which ends a training, and energies are in MeV."""
    events = spoil(read_events(sample_dir / "multi_test_small.root", entry_stop=6), 0, "truth.parent", 0)
    hits = jagged.replaced(events.hits, {"energy": 1000 * jagged.flat(events.hits.energy)})
    write_events(tmp_path / "mev.root", replace(events, hits=hits))
    options, text = ReadOptions(expected=Expected(targets={})), "times the energy of stable particles that shower"
    with options.open(tmp_path / "mev.root") as file, pytest.warns(ImplausibleWarning, match=text):
        file.read()
