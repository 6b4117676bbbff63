import json
from contextlib import closing, nullcontext

import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.io.edm4hep.data_model import SCHEMA_VERSION, CollectionInfo, DataModel, edm4hep_types
from pflow.io.edm4hep.frames import Filled, FrameWriter, InputCopy
from pflow.io.edm4hep.podio import open_podio

EDM4HEP = edm4hep_types()
MODEL = DataModel(EDM4HEP)
PARTICLES = CollectionInfo(name="P", data_type="edm4hep::ReconstructedParticleCollection")
WEIGHTS = CollectionInfo(name="W", data_type="podio::UserDataCollection<float>", schema_version=1)
SUBSET = CollectionInfo(name="S", data_type="edm4hep::ReconstructedParticleCollection", is_subset=True)


@pytest.fixture
def path(tmp_path):
    """Two chunks of two frames each."""
    particles = Filled(
        counts=np.array([2, 1]),
        columns={"PDG": np.array([22, 11, 13]), "covMatrix.values": np.arange(30.0).reshape(3, 10)},
    )
    frames = {"P": particles, "W": Filled(counts=np.array([0, 2]), columns={"": np.array([0.5, 0.25])})}
    with uproot.recreate(tmp_path / "a.root") as file:
        collections = [(MODEL, info) for info in (WEIGHTS, PARTICLES, SUBSET)]
        definitions = {"edm4hep": ("{}", (1, 0, 99))}
        writer = FrameWriter(file, collections=collections, definitions=definitions)
        for _ in range(2):
            writer.extend(frames, [{"Int": {"n": [1, 2]}, "String": {"who": ["me"]}}, {}])
        writer.finish({"metadata": [{"String": {"P__Names": ["x", "y"]}}]})
    return tmp_path / "a.root"


def test_collections_are_vectors_of_the_structs_of_podio(path):
    events = uproot.open(path)["events"]
    types = {key: events[key].typename for key in events.keys(recursive=False)}
    assert types["P"] == "std::vector<edm4hep::ReconstructedParticleData>"
    assert types["_P_tracks"] == types["_P_decayVertex"] == types["S_objIdx"] == "std::vector<podio::ObjectID>"
    assert types["W"] == "std::vector<float>"
    assert events["P.covMatrix"].typename == "edm4hep::CovMatrix4f"
    assert events["P.covMatrix.values"].typename == "std::array<float,10>"
    assert events["P.momentum"].typename == "edm4hep::Vector3f"


def test_the_metadata_are_those_by_which_podio_opens_a_file(path):
    file = uproot.open(path)
    assert set(file.classnames().values()) == {"ROOT::RNTuple"}
    metadata = file["podio_metadata"]
    types = {key: metadata[key].typename for key in metadata.keys(recursive=False)}
    info = "std::vector<podio::root_utils::CollectionWriteInfo>"
    assert types == {
        "PodioBuildVersion": "std::vector<std::uint16_t>",
        "edm4hep___Version": "std::vector<std::uint16_t>",
        "EDMDefinitions": "std::vector<std::tuple<std::string,std::string>>",
        "availableCategories": "std::vector<std::string>",
        "events___CollectionTypeInfo": info,
        "metadata___CollectionTypeInfo": info,
    }
    assert metadata["PodioBuildVersion"].array().to_list() == [[1, 7, 0]]
    assert metadata["edm4hep___Version"].array().to_list() == [[1, 0, 99]]
    assert metadata["availableCategories"].array().to_list() == [["events", "metadata"]]
    assert metadata["metadata___CollectionTypeInfo"].array().to_list() == [[]]
    (rows,) = metadata["events___CollectionTypeInfo"].array().to_list()
    assert rows[0] == {
        "collectionID": PARTICLES.id,
        "dataType": "edm4hep::ReconstructedParticleCollection",
        "isSubset": False,
        "schemaVersion": 6,
        "name": "P",
        "storageType": "std::vector<edm4hep::ReconstructedParticleData>",
    }
    assert [row["name"] for row in rows] == ["P", "S", "W"]
    assert rows[1]["isSubset"] is True


def copy(original):
    path = original.with_name("copy.root")
    with closing(open_podio(original)) as file, uproot.recreate(path) as out:
        source = InputCopy(file)
        collections = [(source.model, collection) for collection in source.collections.values()]
        writer = FrameWriter(out, collections=collections, definitions=source.definitions)
        for entry in range(file.columns.num_entries):
            writer.extend(source.read(entry, entry + 1), file.frame_parameters("events", entry, entry + 1))
        writer.finish(source.categories())
    return path


def test_a_copy_equals_the_original(write_podio, content):
    path = write_podio(content)
    before, after = uproot.open(path), uproot.open(copy(path))
    for tree in ("events", "metadata", "runs", "podio_metadata"):
        original, copied = before[tree], after[tree]
        assert original.num_entries == copied.num_entries
        keys = original.keys(recursive=False)
        assert keys == copied.keys(recursive=False)
        for key in keys:
            assert original[key].typename == copied[key].typename
            values = [table[key].array().to_list() for table in (original, copied)]
            if key == "availableCategories":
                values = [set(names) for (names,) in values]
            assert values[0] == values[1]


def test_the_version_of_the_inputs_definitions_is_kept_but_podio_1_0_does_not_say_its_types(cld_podio, data_dir):
    assert [version for _, version in InputCopy(cld_podio).definitions.values()] == [(1, 0, 99)]
    file = open_podio(data_dir / "edm4hep" / "cld_zuds100_sim.edm4hep.root")
    with pytest.raises(InputError, match=r"does not say the types.*podio 1\.3 or later") as error:
        InputCopy(file)
    assert error.value.field == "podio_metadata"


@pytest.mark.parametrize(("schema", "member", "version"), [(5, "iPhi", [1, 0, 0]), (7, "phi", [0, 99, 4])])
def test_clusters_of_an_older_schema_become_those_of_the_present_one(tmp_path, schema, member, version):
    """EDM4hep 0.99 has phi, 1.0 iPhi. A schema that is not known is copied as it is."""
    text = json.dumps(EDM4HEP | {"schema_version": schema}).replace("float iPhi[rad]", "float phi [rad]  // or phi")
    infos = [
        CollectionInfo(name=name, data_type=f"edm4hep::{kind}Collection", schema_version=schema)
        for name, kind in (("C", "Cluster"), ("P", "ReconstructedParticle"))
    ]
    with uproot.recreate(tmp_path / "old.root") as file:
        collections = [(DataModel(json.loads(text)), info) for info in infos]
        writer = FrameWriter(file, collections=collections, definitions={"edm4hep": (text, (0, 99, 4))})
        columns = {"phi": np.array([0.25, -2.0]), "iTheta": np.array([1.0, 1.5])}
        writer.extend({"C": Filled(counts=np.array([2]), columns=columns)}, [{}])
        writer.finish({})
    known = schema < SCHEMA_VERSION
    with nullcontext() if known else pytest.warns(UserWarning, match=r"schema 7 .* not known \(2 to 6 are\)"):
        path = copy(tmp_path / "old.root")
    with closing(open_podio(path)) as file:
        assert file.columns.get("C", member, start=0, stop=1).to_list() == [[0.25, -2.0]]
        assert file.columns.get("C", "iTheta", start=0, stop=1).to_list() == [[1.0, 1.5]]
        definition = json.loads(file.definitions()["edm4hep"])
        assert definition["schema_version"] == max(schema, SCHEMA_VERSION)
        assert (member, "float") in DataModel(definition).structs["edm4hep::ClusterData"]
        assert [info.schema_version for info in file.infos()] == [max(schema, SCHEMA_VERSION), schema]
        assert list(file.version("edm4hep")) == version
