import json
from contextlib import closing

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.io.edm4hep.podio import (
    CollectionInfo,
    DataModel,
    Joined,
    bit_field,
    collection_contents,
    collection_id,
    count_objects,
    edm4hep_types,
    expand,
    layer_from_cell_id,
    link_pairs,
    list_collections,
    open_podio,
)

CLD = "system:0:5,side:5:2,module:7:8,stave:15:4,layer:19:9,submodule:28:4,x:32:-16,y:48:-16"


def test_what_is_not_an_encoding_is_refused():
    for encoding in ("", ":4", "layer", *(f"layer:{bits}" for bits in ("x", "1:2:3", "0", "60:8", "-1:4"))):
        with pytest.raises(ValueError, match="is not name:offset:width or name:width within 64 bits"):
            bit_field(encoding, "layer")


@pytest.mark.parametrize(
    ("encoding", "cells", "layers"),
    [
        (CLD, [layer << 19 | 0xFFFF_FFFF_F007_FFFF for layer in (0, 39, 511)], [0, 39, 511]),
        ("system:5,side:-2,layer:6,module:11", [43 << 7 | 0xFFFF_E07F], [43]),
        ("system:8:4,layer:6", [43 << 12 | 0xFFFC_0FFF], [43]),
        ("layer:0:-4", [0b1111, 0b1000, 0b0111], [-1, -8, 7]),
        ("system:8,x:8", [5], [-1]),
    ],
    ids=["among other fields", "without offsets", "after an offset", "signed", "unknown"],
)
def test_the_layer_is_read_from_the_cell_id(encoding, cells, layers):
    assert layer_from_cell_id(np.array(cells, dtype=np.uint64), encoding).tolist() == layers


def test_without_a_table_ids_are_hashes_of_names(podio, content):
    file = podio(content, ids={})
    assert not file.ids_stored
    assert file.names(np.array([collection_id("A2"), collection_id("Other")])) == ["A2"]
    with pytest.raises(InputError, match="no table of collection ids"):
        file.names(np.array([11, 13]))


@pytest.mark.parametrize(
    ("numbers", "index", "event", "joined", "known"),
    [
        ([11, 4_000_000_000, 4_000_000_000], [1, 2, 0], [0, 0, 1], [1, 4, 0], [True] * 3),
        ([4_000_000_000 - 2**32], [2], [0], [4], [True]),
        ([13, 99], [0, 0], [0, 0], [-1, -1], [False] * 2),
        ([11, 11, 4_000_000_000], [2, -3, 40], [0, 0, 0], [5, -3, 40], [True] * 3),
    ],
    ids=["from where its collection begins", "signed id", "another collection", "outside its collection and the event"],
)
def test_references(podio, content, numbers, index, event, joined, known):
    """In event 0 to A1 with 2 objects and A2 with 3, and in event 1 with 0 and 1."""
    joined_lists, references = Joined(["A1", "A2"], [[2, 0], [3, 1]], 2), map(np.array, (numbers, index, event))
    resolved = joined_lists.resolve(podio(content), *references)
    assert [values.tolist() for values in resolved] == [joined, known]


@pytest.mark.parametrize(
    ("begin", "end", "sizes", "owners", "members"),
    [
        ([[0, 1], [0]], [[1, 3], [2]], [3, 2], [0, 1, 1, 2, 2], [0, 1, 2, 3, 4]),
        ([[1, 2]], [[1, 0]], [3], [], []),
        ([[1], [0]], [[9], [1]], [2, 1], [0, 1], [1, 2]),
    ],
    ids=["over all events", "empty and inverted", "beyond the list"],
)
def test_ranges(begin, end, sizes, owners, members):
    expanded = expand(ak.Array(begin), ak.Array(end), np.array(sizes))
    assert [values.tolist() for values in expanded] == [owners, members]


def test_metadata_without_entries_are_empty(write, content, monkeypatch, ids):
    """As in public files of FCC: uproot reads the events, and gives no entries of parameters that are maps."""
    path = write(content)
    with uproot.update(path) as file:
        file.mktree("metadata", {"GPStringKeys": "var * int64", "GPStringValues": "var * int64"})
    num_entries = uproot.TTree.num_entries.fget
    monkeypatch.setattr(uproot.TTree, "num_entries", property(lambda self: num_entries(self) or 1))
    file = open_podio(path)
    assert (file.encodings, file.parameters) == ({}, {})
    assert file.ids == {number: name for name, number in ids.items()}


@pytest.fixture
def listed(podio):
    return lambda *content, **options: by_name(list_collections(podio(*content, **options)))


def by_name(collections):
    return {collection.name: collection for collection in collections}


@pytest.mark.parametrize("layout", ["new", "rec", "old", "rntuple"])
def test_types_and_ends_of_links_are_known_where_the_file_names_none(listed, content, layout, podio):
    assert {name: collection.type for name, collection in listed(content, layout).items()} == {
        "A1": "edm4hep::CalorimeterHit",
        "A2": "edm4hep::CalorimeterHit",
        "B": "edm4hep::CalorimeterHit",
        "EventHeader": "edm4hep::EventHeader",
        "HitLinks": "Link",
        "MCParticles": "edm4hep::MCParticle",
        "TrackLinks": "Link",
        "Tracks": "edm4hep::Track",
    }
    pairs = link_pairs(podio(content, layout), "HitLinks", 2)
    assert pairs == {(start, "MCParticles"): count for start, count in {"A1": 2, "A2": 2, "B": 1, "Other": 1}.items()}
    assert list(pairs.values()) == [2, 2, 1, 1]


def test_contributions_make_simulated_hits_and_the_id_table_types(listed, content):
    types = {"A1": "edm4eic::CalorimeterHitCollection", "Tracks": "edm4eic::TrackCollection"}
    collections = listed(content, types=types)
    assert (collections["A1"].type, collections["A1"].kind) == ("edm4eic::CalorimeterHit", "CalorimeterHit")
    assert collections["Tracks"].type == "edm4eic::Track"
    less = {key: values for key, values in content.items() if key != "B.time"}
    more = content | {"B.contributions_begin": [[0], []]}
    assert listed(less)["B"].kind == "SimCalorimeterHit"
    assert listed(more)["B"].kind == "SimCalorimeterHit"


def test_unreadable_collections_give_the_reason(listed, content):
    del content["A1.position.y"]
    stateless = {key: values for key, values in content.items() if not key.startswith("_Tracks")}
    collections = listed(stateless)
    assert collections["A1"].unreadable == "no position.y"
    assert collections["Tracks"].unreadable == "no track states"
    assert collections["A2"].unreadable == ""


def test_plain_numbers_are_a_collection_too(write):
    energy = [[1.0], []]
    path = write({"Weights": [[1.0, 2.0], [3.0]], "A1.energy": energy, "Loose": energy}, ids={"Weights": 77, "A1": 11})
    file = open_podio(path)
    collections = by_name(list_collections(file))
    assert set(collections) == {"A1", "Weights"}
    assert count_objects(file, collections["Weights"], 2) == 3


def test_every_collection_of_a_real_file_has_a_type(cld_podio):
    collections = by_name(list_collections(cld_podio))
    assert set(collections) == set(cld_podio.ids.values())
    assert all(collection.type for collection in collections.values())
    assert collections["SelectedPandoraPFOs"].subset
    assert collections["ITrackerHits"].kind == "TrackerHit"
    assert count_objects(cld_podio, collections["SelectedPandoraPFOs"], 1) == 55


def test_objects_energies_encodings_and_links(podio, content):
    collections = by_name(collection_contents(podio(content, encodings={"A1": "layer:8"}), 2))
    a1, a2, links = collections["A1"], collections["A2"], collections["HitLinks"]
    assert (a1.count, a1.mean, a1.mean_energy, a1.cell_encoding) == (2, 1.0, 1.5, "layer:8")
    assert (a2.mean_energy, a2.cell_encoding, a2.links) == (4.0, "", ())
    assert (links.type, links.mean_energy) == ("Link", None)
    assert set(links.links) == {f"{name} -> MCParticles" for name in ("A1", "A2", "B", "Other")}


EDM4HEP = edm4hep_types()


def test_our_types_equal_edm4heps(edm4hep):
    definition = json.loads(edm4hep)
    ours, theirs = DataModel(EDM4HEP), DataModel(definition)
    assert definition["schema_version"] == EDM4HEP["schema_version"]
    for name in (*EDM4HEP["components"], *(f"{name}Data" for name in EDM4HEP["datatypes"])):
        assert ours.structs[name] == theirs.structs[name]
    for name in EDM4HEP["datatypes"]:
        collection = CollectionInfo(name="X", data_type=f"{name}Collection")
        assert ours.fields(collection) == theirs.fields(collection)


def test_ids_are_hashes_of_names_as_podio_makes_them(cld_podio):
    assert cld_podio.ids_stored
    assert all(collection_id(name) == number for number, name in cld_podio.ids.items())


def test_an_earlier_tree_of_events_is_said(write, content):
    path = write(content)
    with uproot.open(path) as file:
        arrays = file["events"].arrays()
    with uproot.update(path) as file:
        file.mktree("events", {name: arrays[name].type.content for name in arrays.fields})
        file["events"].extend({name: arrays[name] for name in arrays.fields})
    with closing(open_podio(path)) as podio:
        assert "events;1 with" in podio.notes["cycles"]
