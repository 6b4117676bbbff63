import json

from pflow.io.edm4hep.data_model import CollectionInfo, DataModel, collection_id, edm4hep_types

EDM4HEP = edm4hep_types()


def test_our_types_are_those_of_edm4hep(cld_podio):
    """Against the definition that a file of EDM4hep 1.0 carries."""
    definition = json.loads(cld_podio.definitions()["edm4hep"])
    ours, theirs = DataModel(EDM4HEP), DataModel(definition)
    assert definition["schema_version"] == EDM4HEP["schema_version"]
    for name in (*EDM4HEP["components"], *(f"{name}Data" for name in EDM4HEP["datatypes"])):
        assert ours.structs[name] == theirs.structs[name]
    for name in EDM4HEP["datatypes"]:
        collection = CollectionInfo(name="X", data_type=f"{name}Collection")
        assert ours.fields(collection) == theirs.fields(collection)


def test_ids_are_hashes_of_names_as_podio_makes_them(cld_podio):
    assert cld_podio.ids_stored
    assert all(collection_id(own) == number for number, own in cld_podio.ids.items())
