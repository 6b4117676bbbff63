import numpy as np
import pytest
import uproot

from pflow.errors import InputError
from pflow.io.edm4hep.data_model import CollectionInfo, DataModel, edm4hep_types
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
        collections = [(MODEL, one) for one in (WEIGHTS, PARTICLES, SUBSET)]
        writer = FrameWriter(file, collections=collections, definitions={"edm4hep": "{}"})
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


@pytest.fixture
def copied(write_podio, content, tmp_path):
    """The small file, and a copy of it made entry by entry."""
    original = write_podio(content)
    file = open_podio(original)
    source = InputCopy(file)
    with uproot.recreate(tmp_path / "copy.root") as out:
        collections = [(source.model, collection) for collection in source.collections.values()]
        writer = FrameWriter(out, collections=collections, definitions=source.definitions)
        for entry in range(2):
            frames = source.read(entry, entry + 1)
            writer.extend(frames, source.parameters(entry, entry + 1))
        writer.finish(source.categories())
    file.close()
    return original, tmp_path / "copy.root"


@pytest.mark.parametrize("tree", ["events", "metadata", "runs", "podio_metadata"])
def test_a_copy_equals_the_original(copied, tree):
    one, other = (uproot.open(path)[tree] for path in copied)
    assert one.num_entries == other.num_entries
    keys = one.keys(recursive=False)
    assert keys == other.keys(recursive=False)
    for key in keys:
        assert one[key].typename == other[key].typename
        if key != "availableCategories":
            assert one[key].array().to_list() == other[key].array().to_list()
        else:
            assert set(one[key].array()[0]) == set(other[key].array()[0])


@pytest.mark.parametrize("podio_1_0", [False, True])
def test_a_file_that_does_not_say_its_types_is_refused(write, content, data_dir, podio_1_0):
    """The table of types of podio 1.0 consists of tuples."""
    path = data_dir / "edm4hep" / "cld_zuds100_sim.edm4hep.root" if podio_1_0 else write(content, "rntuple")
    file = open_podio(path)
    with pytest.raises(InputError, match=r"does not say the types.*later than 1\.0") as error:
        InputCopy(file)
    file.close()
    assert error.value.field == "podio_metadata"
