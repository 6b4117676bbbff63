import json

import pytest

from pflow.io.edm4hep.data_model import EDM4HEP, CollectionInfo, DataModel, collection_id
from pflow.io.edm4hep.podio import open_podio

OURS = DataModel(EDM4HEP)


def test_units_defaults_and_comments_are_no_part_of_a_member():
    model = DataModel(
        {"components": {"a::B": {"Members": ["int x[mm^2] // a: [b] {c}", "std::array<int, 2> y", "float z{9}"]}}}
    )
    assert model.structs["a::B"] == (("x", "int"), ("y", "std::array<int, 2>"), ("z", "float"))


def fields(data_type: str, model: DataModel = OURS, **options: bool) -> dict[str, str]:
    return model.fields(CollectionInfo(name="X", data_type=data_type, **options))


def test_a_collection_has_relations_and_vector_members():
    found = fields("edm4hep::ReconstructedParticleCollection")
    names = ("clusters", "tracks", "particles", "decayVertex")
    references = dict.fromkeys((f"_X_{name}" for name in names), "podio::ObjectID")
    assert found == {"X": "edm4hep::ReconstructedParticleData"} | references
    assert fields("edm4hep::TrackCollection")["_X_trackStates"] == "edm4hep::TrackState"
    assert fields("edm4hep::TrackCollection", is_subset=True) == {"X_objIdx": "podio::ObjectID"}


def test_links_and_user_data_are_known_without_a_definition():
    link = fields("podio::LinkCollection<edm4hep::Cluster,edm4hep::MCParticle>", DataModel())
    assert link == {"X": "podio::LinkData", "_X_from": "podio::ObjectID", "_X_to": "podio::ObjectID"}
    assert fields("podio::UserDataCollection<float>", DataModel()) == {"X": "float"}


def test_the_first_definition_of_a_type_wins():
    old = {"datatypes": {"edm4hep::Cluster": {"Members": ["float phi"]}}}
    assert DataModel(old, EDM4HEP).structs["edm4hep::ClusterData"] == (("phi", "float"),)


def test_our_types_are_those_of_edm4hep(data_dir):
    """Against the definition that a file of EDM4hep 1.0 carries."""
    file = open_podio(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
    definition = json.loads(file.definitions()["edm4hep"])
    file.close()
    theirs = DataModel(definition)
    assert definition["schema_version"] == EDM4HEP["schema_version"]
    for name in (*EDM4HEP["components"], *(f"{name}Data" for name in EDM4HEP["datatypes"])):
        assert OURS.structs[name] == theirs.structs[name]
    for name in EDM4HEP["datatypes"]:
        assert fields(f"{name}Collection") == fields(f"{name}Collection", theirs)


@pytest.mark.parametrize("name", ["cld_rec", "cld_sim"])
def test_ids_are_hashes_of_names_as_podio_makes_them(data_dir, name):
    file = open_podio(data_dir / "edm4hep" / f"{name}.edm4hep.root")
    assert file.ids_stored
    assert all(collection_id(own) == number for number, own in file.ids.items())
    file.close()
