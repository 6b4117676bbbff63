from __future__ import annotations

import json

import pytest

from pflow.io.edm4hep.data_model import EDM4HEP, DataModel
from pflow.io.edm4hep.podio import open_podio

OURS = DataModel(EDM4HEP)


def test_members_of_a_data_type_end_with_its_ranges():
    members = OURS.members("edm4hep::ParticleIDData")
    assert [name for name, _ in members] == [
        *("type", "PDG", "algorithmType", "likelihood"),
        *("parameters_begin", "parameters_end"),
    ]
    assert members[3] == ("likelihood", "float")
    assert members[4] == ("parameters_begin", "std::uint32_t")


def test_units_defaults_and_comments_are_no_part_of_a_member():
    model = DataModel(
        {"components": {"a::B": {"Members": ["int x[mm^2] // a: [b] {c}", "std::array<int, 2> y", "float z{9}"]}}}
    )
    assert model.members("a::B") == (("x", "int"), ("y", "std::array<int, 2>"), ("z", "float"))


def test_a_collection_has_relations_and_vector_members():
    kind = OURS.collection("edm4hep::ReconstructedParticleCollection")
    assert kind.storage == "std::vector<edm4hep::ReconstructedParticleData>"
    assert kind.relations == ("clusters", "tracks", "particles", "decayVertex")
    assert OURS.collection("edm4hep::TrackCollection").vectors[2] == ("trackStates", "edm4hep::TrackState")


def test_links_and_user_data_are_known_without_a_definition():
    link = DataModel().collection("podio::LinkCollection<edm4hep::Cluster,edm4hep::MCParticle>")
    assert (link.storage, link.relations) == ("std::vector<podio::LinkData>", ("from", "to"))
    assert DataModel().collection("podio::UserDataCollection<float>").storage == "std::vector<float>"


def test_an_unknown_type_names_the_nearest():
    with pytest.raises(KeyError, match=r"edm4hep::ClusterCollection"):
        OURS.collection("edm4hep::ClustersCollection")


def test_forms_carry_the_names_of_structs():
    form = OURS.form("edm4hep::ClusterData")
    assert form.parameter("__record__") == "edm4hep::ClusterData"
    assert form.content("position").parameter("__record__") == "edm4hep::Vector3f"
    assert form.content("positionError").content("values").size == 6


def test_the_first_definition_of_a_type_wins():
    old = {"datatypes": {"edm4hep::Cluster": {"Members": ["float phi"]}}}
    assert DataModel(old, EDM4HEP).members("edm4hep::ClusterData") == (("phi", "float"),)


def test_our_types_are_those_of_edm4hep(data_dir):
    """Against the definition that a file of EDM4hep 1.0 carries."""
    file = open_podio(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
    definition = json.loads(file.definitions()["edm4hep"])
    file.close()
    theirs = DataModel(definition)
    assert definition["schema_version"] == EDM4HEP["schema_version"]
    for name in EDM4HEP["components"]:
        assert OURS.members(name) == theirs.members(name)
    for name in EDM4HEP["datatypes"]:
        assert OURS.members(f"{name}Data") == theirs.members(f"{name}Data")
        assert OURS.collection(f"{name}Collection") == theirs.collection(f"{name}Collection")
