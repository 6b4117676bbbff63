import json
import re
from contextlib import closing

import pytest

from pflow.io.edm4hep.podio import CHANGED, CollectionInfo, DataModel, collection_id, edm4hep_types, evolved, open_podio

EDM4HEP = edm4hep_types()


@pytest.fixture
def definition(cld_rntuple_path):
    """EDM4hep's own, which a file of EDM4hep 1.0 carries."""
    with closing(open_podio(cld_rntuple_path)) as file:
        return json.loads(file.definitions()["edm4hep"])


def test_our_types_equal_edm4heps(definition):
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


def test_members_of_an_older_schema_become_the_present_ones(definition):
    older = json.loads(json.dumps(definition | {"schema_version": 5}))
    lines = older["datatypes"]["edm4hep::Cluster"]["Members"]
    lines[:] = [re.sub(r"^float +iPhi", "float  phi", line) for line in lines]
    lines = older["components"]["edm4hep::Quantity"]["Members"]
    lines[:] = [re.sub(r"^\S+ type", "int16_t type", line) for line in lines]
    before, after = DataModel(older).structs, DataModel(evolved(older)).structs
    assert {name for name, members in DataModel(definition).structs.items() if before[name] != members} == set(CHANGED)
    assert after == DataModel(definition).structs
    assert evolved(older)["schema_version"] == definition["schema_version"]
