import json

import pytest

from pflow.io.edm4hep.data_model import CollectionInfo, DataModel, collection_id, edm4hep_types
from pflow.io.edm4hep.podio import open_podio

EDM4HEP = edm4hep_types()
OURS = DataModel(EDM4HEP)


def fields(data_type: str, model: DataModel = OURS, **options: bool) -> dict[str, str]:
    return model.fields(CollectionInfo(name="X", data_type=data_type, **options))


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
