import pytest

from pflow.io.edm4hep.podio import collection_contents, count_objects, link_pairs, list_collections, open_podio


@pytest.fixture
def listed(podio):
    return lambda *content, **options: by_name(list_collections(podio(*content, **options)))


def by_name(collections):
    return {collection.name: collection for collection in collections}


@pytest.mark.parametrize("layout", ["new", "rec", "old", "rntuple"])
def test_types_are_known_by_members_where_the_file_names_none(listed, content, layout):
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


@pytest.mark.parametrize("layout", ["new", "rec", "old", "rntuple"])
def test_links_are_counted_by_their_ends(podio, content, layout):
    pairs = link_pairs(podio(content, layout), "HitLinks", 2)
    assert pairs == {(start, "MCParticles"): count for start, count in {"A1": 2, "A2": 2, "B": 1, "Other": 1}.items()}
    assert list(pairs.values()) == [2, 2, 1, 1]


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
