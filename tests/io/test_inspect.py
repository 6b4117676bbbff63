import dataclasses

import numpy as np
import pytest
import uproot

from pflow.errors import ConfigError, InputError
from pflow.io.inspect import inspect_file
from pflow.io.open import ReadOptions, open_events, read_events
from pflow.io.root import Columns


def test_means_are_taken_over_the_entries_that_were_read(write, content, toy):
    file = inspect_file(write(content), ReadOptions(detector=toy))
    ecal, hcal, muon = file.parts[:3]
    assert (ecal.name, ecal.kind, ecal.collections, ecal.count) == ("ecal", "ecal", ("A1", "A2"), 4)
    assert (ecal.mean, ecal.mean_energy) == (2.0, 5.5)
    assert (hcal.count, hcal.mean_energy) == (1, 2.0)
    assert (muon.count, muon.collections) == (0, ())
    assert file.calorimeter_hits == 5
    file = inspect_file(write({key: [] for key in content}), ReadOptions(detector=toy))
    assert (file.num_entries, file.calorimeter_hits, file.parts[0].mean, file.has_truth) == (0, 0, 0.0, True)


def test_truth_that_cannot_be_used_is_a_problem(write, content, toy):
    content["_MCParticles_parents.index"] = [[1, 1], []]
    path = write(content)
    file = inspect_file(path, ReadOptions(detector=toy))
    (check,) = (check for check in file.checks if check.name == "truth")
    assert (check.good, check.text) == (False, f"{path}, entry 0, 'truth.parent': a particle is its own ancestor")


def test_a_file_that_no_detector_fits_lists_its_collections(write, content):
    file = inspect_file(write(content))
    assert (file.detector, file.parts, file.calorimeter_hits, file.num_entries) == ("", (), 0, 2)
    counts = {hits.name: hits.count for hits in file.collections if hits.kind == "CalorimeterHit"}
    assert counts == {"A1": 2, "A2": 2, "B": 1}
    assert all(file.detectors.values())
    assert file.has_truth


def test_another_root_file_lists_its_trees(tmp_path):
    with uproot.recreate(tmp_path / "other.root") as file:
        file.mktree("ntuple", {"pt": "var * float32", "run": "int32"}).extend({"pt": [[1.0], []], "run": [7, 8]})
        file.mkrntuple("fields", {"x": [1.0, 2.0, 3.0]})
        file["histogram"] = np.histogram([1.0, 2.0])
    file = inspect_file(tmp_path / "other.root")
    assert {table.name: table.num_entries for table in file.tables} == {"ntuple": 2, "fields": 3}
    assert file.tables[0].columns["pt"] == "float[]"
    (missing,) = file.missing
    assert (missing.name, file.schema) == ("events", "")
    with pytest.raises(InputError):
        inspect_file(tmp_path / "other.root", ReadOptions(schema="flat"))


@pytest.mark.parametrize(("option", "message"), [("layout", "no layout file 'none'"), ("schema", "no schema 'none'")])
def test_an_option_that_is_wrong_is_named(write, content, option, message):
    """Without a detector too: it was the detector that was said to be missing."""
    with pytest.raises(ConfigError, match=message):
        inspect_file(write(content), ReadOptions(**{option: "none"}))


def test_an_entry_with_several_bad_numbers_counts_once(write, content, toy):
    content["A1.energy"][0][0] = content["A1.position.x"][0][0] = float("nan")
    (check,) = (x for x in inspect_file(write(content), ReadOptions(detector=toy)).checks if x.name == "objects")
    assert check.text.startswith("left out in 1 entries")


@pytest.mark.parametrize("function", ["_by_events", "_by_collections"])
def test_a_file_without_a_reader_lists_its_trees(write, content, toy, monkeypatch, function):
    """Also where uproot does not understand a branch, such as a map of parameters in old files of FCC."""

    def fails(*_, **__):
        raise TypeError("a map of parameters")

    monkeypatch.setattr(f"pflow.io.inspect.{function}", fails)
    monkeypatch.setattr("pflow.io.open.builtin_names", lambda _: [toy] if function == "_by_events" else ["cld"])
    path = write(content)
    file = inspect_file(path)
    assert [part.reason for part in file.missing] == ["TypeError: a map of parameters"]
    assert next(table for table in file.tables if table.name == "events").num_entries == 2
    monkeypatch.setattr(uproot.TBranch, "typename", property(fails))
    table = next(table for table in inspect_file(path).tables if table.name == "events")
    assert table.columns["A1.energy"] == "unknown"


@pytest.fixture
def unreadable(monkeypatch):
    """Makes collections unreadable whose name begins so."""
    original = Columns.get

    def make(prefix):
        def get(self, collection, *members, **entries):
            if collection.startswith(prefix):
                raise TypeError("Cannot cast array data")
            return original(self, collection, *members, **entries)

        monkeypatch.setattr(Columns, "get", get)

    return make


def test_a_branch_that_is_not_understood_hides_no_collection(write, content, toy, unreadable):
    """Parameters of a frame, in files of podio 0.16 to 0.99: a map that is no list of objects."""
    content["PARAMETERS.first"] = [[1.0], [2.0]]
    unreadable("PARAMETERS")
    file = inspect_file(write(content), ReadOptions(detector=toy))
    collections = {collection.name: collection for collection in file.collections}
    assert collections["A1"].count == 2
    assert collections["PARAMETERS"].unreadable.endswith("cannot be read: TypeError: Cannot cast array data")


def test_metadata_that_cannot_be_read_cost_no_events(write, content, toy, unreadable):
    unreadable("GP")
    file = inspect_file(write(content, encodings={"A1": "layer:8"}), ReadOptions(detector=toy))
    assert file.calorimeter_hits == 5
    assert "metadata are left out" in {check.name: check.text for check in file.checks}["metadata"]


ENCODINGS = dict.fromkeys(("A1", "A2"), "layer:8")


def missing(path, **options) -> dict[str, str]:
    return {part.name: part.reason for part in inspect_file(path, ReadOptions(**options), max_entries=1).missing}


def without(content, *names):
    return {key: values for key, values in content.items() if key.split(".")[0].strip("_").split("_")[0] not in names}


def test_a_simulated_file_lacks_tracks_that_can_be_made(cld_sim_path):
    (reason,) = missing(cld_sim_path).values()
    assert reason == "none in the file; --truth-tracks makes them from Monte Carlo particles"
    assert missing(cld_sim_path, truth_tracks=True) == {}


@pytest.mark.parametrize(
    ("gone", "name"),
    [
        (("Tracks", "TrackLinks"), "tracks"),
        (("MCParticles",), "truth"),
        (("HitLinks",), "links from hits to particles"),
    ],
)
def test_missing_parts_are_listed(write, content, toy, gone, name):
    path = write(without(content, *gone), encodings=ENCODINGS)
    assert missing(path, detector=toy) == {name: "none in the file"}
    assert missing(path)[name] == "none in the file"  # without a detector too


def test_hits_of_types_that_are_not_read_are_missing_by_name(write, content):
    path = write(without(content, "A2", "B"), types={"A1": "edm4dr::SimDRCalorimeterHitSimpleCollection"})
    assert missing(path)["calorimeter hits"] == "A1 is of a type that is not read, edm4dr::SimDRCalorimeterHitSimple"


def test_files_without_a_cell_encoding_and_with_unnamed_tracks(write, content, toy):
    assert missing(write(content), detector=toy) == {"layers": "no cell encoding with a layer for ecal"}
    renamed = {key.replace("Tracks", "Others"): values for key, values in without(content, "TrackLinks").items()}
    path = write(renamed, encodings=ENCODINGS)
    assert missing(path, detector=toy) == {"tracks": "none that the detector names"}
    unnamed = dataclasses.replace(toy, truth_particles=("Particles",)), dataclasses.replace(toy, hit_links=())
    for detector, name in zip(unnamed, ("truth", "links from hits to particles"), strict=True):
        assert missing(path, detector=detector)[name] == "none that the detector names"


def test_links_that_cannot_be_followed_leave_the_rest_readable(write, content, toy):
    path = write(content, ids={}, encodings=ENCODINGS)
    file = inspect_file(path, ReadOptions(detector=toy))
    (part,) = file.missing
    assert (part.name, part.needed_for) == ("truth", "training and evaluation")
    assert "no table of collection ids" in part.reason
    assert file.calorimeter_hits == 5
    with open_events(path, detector=toy) as file:
        assert len(file.read(truth=False)) == 2


def test_a_layout_without_layers_is_named(sample_dir, tmp_path):
    hits = read_events(sample_dir / "gamma1_test_small.root", entry_stop=2).hits
    with uproot.recreate(tmp_path / "bare.root") as file:
        file["t"] = {"e": hits.energy, "in": hits.subdetector, **{axis: hits.position[axis] for axis in "xyz"}}
    layout = "{name: bare, tree: t, detector: ild_g4, hits: {energy: e, x: x, y: y, z: z, subdetector: in}}"
    (tmp_path / "bare.yaml").write_text(layout)
    file = inspect_file(tmp_path / "bare.root", ReadOptions(layout=tmp_path / "bare.yaml"))
    reason = next(part.reason for part in file.missing if part.name == "layers")
    assert reason.startswith("layout 'bare' gives no hits.layer for ecal_barrel")
