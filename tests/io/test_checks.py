"""Content that is not used, and links that lead nowhere, are warned of with numbers; `pflow inspect` lists them."""

import warnings
from dataclasses import replace

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.event.events import ImplausibleWarning
from pflow.io.flat import write_events
from pflow.io.inspect import inspect_file
from pflow.io.open import ReadOptions, open_events, read_events
from pflow.physics.detector import load_detector


@pytest.mark.parametrize("factor", [3.0, 0.0])
def test_wrong_charges_become_the_pdgs_with_one_warning_a_file(write, content, toy, factor):
    content["MCParticles.PDG"] = [[111, 987654321, 11], [22]]
    content["MCParticles.charge"] = [[0, 0.5, -factor], [0]]
    with open_events(write(content), detector=toy) as file:
        with pytest.warns(ImplausibleWarning, match=rf"MCParticles\.charge .* 1 of 4 .*code 11: {-factor:g} e, "):
            truth = file.read().truth
        file.read()  # silent: warnings are errors
    assert truth.charge.to_list() == [[0.0, 0.5, -1.0], [0.0]]  # an unknown code keeps the file's
    checks = inspect_file(write(content), ReadOptions(detector=toy)).checks
    assert "MCParticles.charge" in [check.name for check in checks]


@pytest.mark.parametrize(
    ("branch", "dropped", "said"),
    [
        ("_HitLinks_from", "-", "0 of 6 references of HitLinks lead from A1 or A2 or B to MCParticles: Other is not"),
        ("_TrackLinks_to", "-", "0 of 1 references of TrackLinks lead from Tracks to MCParticles: Other is not in the"),
        ("", "A1.", "3 of 6 references of HitLinks .*: A1, Other is not in the file"),
    ],
)
def test_links_that_lead_nowhere_are_named(write, content, toy, branch, dropped, said):
    content = {key: values for key, values in content.items() if not key.startswith(dropped)}
    if branch:
        content[f"{branch}.collectionID"] = [[16] * len(event) for event in content[f"{branch}.collectionID"]]
    with pytest.warns(ImplausibleWarning, match=said):
        read_events(write(content), detector=toy)


def test_simulated_hits_beside_digitised_ones_of_other_names_are_said(data_dir):
    cld = load_detector("cld")
    other = [replace(part, collections=(f"{part.name}_digi",)) for part in cld.calorimeters]
    with pytest.warns(ImplausibleWarning, match=r"for the digitised hits of ECALBarrel, .*: simulated hits are read"):
        read_events(data_dir / "edm4hep" / "cld_rec.edm4hep.root", detector=replace(cld, calorimeters=tuple(other)))


@pytest.mark.parametrize("layout", ["new", "rntuple"])
def test_particles_of_digitised_hits_follow_from_simulated_ones(write, content, toy, ids, layout):
    """Hit -> simulated hit -> contribution -> particle: hit 0 of A1 is of two simulated hits, hit 1 of one."""
    chain = {key: values for key, values in content.items() if not key.startswith(("HitLinks", "_HitLinks"))}
    chain |= {f"SimA.{member}": [[1.0] * 3, []] for member in ("energy", "position.x", "position.y", "position.z")}
    chain |= {"SimA.cellID": [[0] * 3, []], "SimA.contributions_begin": [[0, 1, 2], []]}
    chain |= {"SimA.contributions_end": [[1, 2, 4], []], "_SimA_contributions.index": [[0, 1, 2, 3], []]}
    chain |= {"_SimA_contributions.collectionID": [[21] * 4, []], "SimAContributions.time": [[0.0] * 4, []]}
    chain |= {"SimAContributions.energy": [[1.0, 3.0, 1.0, 1.0], []]}
    chain |= {"_SimAContributions_particle.index": [[0, 1, 1, 2], []]}
    chain |= {"_SimAContributions_particle.collectionID": [[15] * 4, []]}
    chain |= {"Relations.weight": [[1.0] * 3, []], "_Relations_from.index": [[0, 0, 1], []]}
    chain |= {"_Relations_from.collectionID": [[11] * 3, []], "_Relations_to.index": [[0, 1, 2], []]}
    chain |= {"_Relations_to.collectionID": [[31] * 3, []]}
    links = read_events(write(chain, layout, ids=ids | {"SimA": 31}), detector=toy).hit_links
    assert (links.source.to_list(), links.particle.to_list()) == ([[0, 0, 1, 1], []], [[0, 1, 1, 2], []])
    assert links.weight.to_list() == [[0.25, 0.75, 0.5, 0.5], []]


@pytest.fixture
def merged(write, content, ids):
    """Writes the events of the small file twice, the second time with other ids, and the ids of both files."""

    def write_merged(**others):
        second = ids | others
        new = {number: second[name] for name, number in ids.items()}
        for key, values in content.items():
            again = [[new[number] for number in event] for event in values] if key.endswith("collectionID") else values
            content[key] = [*values, *again]
        path = write(content, ids={})
        numbers = ak.values_astype(ak.Array([list(ids.values()), list(second.values())]), np.uint32)
        table = ak.zip({"name": ak.Array([list(ids), list(second)]), "collectionID": numbers})
        with uproot.update(path) as file:
            file.mkrntuple("podio_metadata", {"events___CollectionTypeInfo": table})
        return path

    return write_merged


def test_ids_of_merged_files_are_joined(merged, toy):
    """The second file numbers its tracks otherwise, and has a collection more."""
    events = read_events(merged(Tracks=24, More=25), detector=toy)
    for links in (events.hit_links, events.track_links):
        assert links[2:].to_list() == links[:2].to_list()
        assert ak.count(links.source) > 0


def test_an_id_with_two_names_in_merged_files_is_named(merged, toy):
    with open_events(merged(A1=13, B=11), detector=toy) as file:
        check, *_ = file.notes()
    assert "entries 0 and 1 of the metadata name the collection with id 13 B and A1" in check.text


def test_collections_that_are_not_read_are_named(write, content, toy):
    """A subset collection of tracks, and a calorimeter without a collection."""
    tracks = {"Tracks_objIdx.index": [[0], []], "Tracks_objIdx.collectionID": [[16], []]}
    less = {key: values for key, values in content.items() if "Track" not in key} | tracks
    path = write(less)
    with open_events(path, detector=toy) as file:
        assert "no collection of muon: its energy is missing from the particles" in {x.text for x in file.notes()}
        with pytest.warns(ImplausibleWarning, match=r"Tracks only refers to objects of other collections \(a subset\)"):
            events = file.read()
    assert events.tracks is None
    names = [check.name for check in inspect_file(path, ReadOptions(detector=toy)).checks if not check.good]
    assert {"Tracks", "calorimeters"} <= set(names)


@pytest.mark.parametrize(
    ("layout", "branch", "values"),
    [
        ("new", "EventHeader.weight", [[0.5], [2.0]]),
        ("rntuple", "EventHeader.weight", [[0.5], [2.0]]),
        ("new", "_EventHeader_weights", [[0.5], [2.0, 1.0]]),
        ("new", "EventWeights", [[0.5], [2.0]]),
    ],
)
def test_unused_event_weights_give_a_warning(write, content, toy, layout, branch, values):
    content["EventHeader.eventNumber"], content[branch] = [[3], [4]], values
    said = rf"{branch} is 0\.5 to 2: weights of events are not used; only outputs of the format edm4hep keep"
    with open_events(write(content, layout), detector=toy) as file:
        file.read(0, 1)  # weights may be the same in each chunk, as of files that were merged
        with pytest.warns(ImplausibleWarning, match=said):
            file.read(1, 2)


@pytest.mark.parametrize(
    ("branch", "make"), [("weight", "mktree"), ("event_weights", "mkrntuple"), ("mcEventWeight", "mktree")]
)
def test_unused_weights_of_flat_files_give_a_warning(make_photons, tmp_path, branch, make):
    path = tmp_path / "flat.root"
    write_events(path, make_photons(4))
    with uproot.open(path) as file:
        columns = file["events"].arrays()
    for weights in (np.array([1.0, -1.0, 1.0, -1.0]), np.ones(4)):
        values = ak.Array(weights[:, None]) if branch.endswith("s") else weights
        with uproot.recreate(path) as file:
            getattr(file, make)("events", {name: columns[name] for name in columns.fields} | {branch: values})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read_events(path, layout="g4")
        said = [str(warning.message) for warning in caught if branch in str(warning.message)]
        text = f"flat.root: {branch} is -1 to 1: weights of events are not used, and no output keeps them"
        assert [warning.endswith(text) for warning in said] == ([True] if weights.min() < 0 else [])
