import dataclasses
import json
from contextlib import closing

import numpy as np
import pytest
import uproot

from pflow.io.edm4hep.frames import FrameWriter, InputCopy
from pflow.io.edm4hep.podio import SCHEMA_VERSION, CollectionInfo, DataModel, Filled, edm4hep_types, open_podio

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


def test_collections_are_split_vectors_of_podio_structs(path):
    events = uproot.open(path)["events"]
    types = {key: events[key].typename for key in events.keys(recursive=False)}
    assert types["P"] == "vector<edm4hep::ReconstructedParticleData>"
    assert types["_P_tracks"] == types["_P_decayVertex"] == types["S_objIdx"] == "vector<podio::ObjectID>"
    assert types["W"] == "std::vector<float>"
    members = {branch.name: branch.typename for branch in events["P"].branches}
    assert members["P.PDG"] == "int32_t[]"
    assert members["P.momentum.x"] == "float[]"
    assert members["P.covMatrix.values[10]"] == "float[][10]"
    assert events["P/P.PDG"].array().to_list() == [[22, 11], [13]] * 2
    assert events["P/P.covMatrix.values[10]"].array()[1].to_list() == [list(range(20, 30))]
    assert events["P/P.momentum.x"].array().to_list() == [[0, 0], [0]] * 2
    assert events["W"].array().to_list() == [[], [0.5, 0.25]] * 2
    assert events["GPIntValues"].array().to_list() == [[[1, 2]], []] * 2
    assert events["GPStringValues"].array().to_list() == [[["me"]], []] * 2


def test_the_metadata_are_those_by_which_podio_opens_a_file(path):
    file = uproot.open(path)
    assert set(file.classnames().values()) == {"TTree"}
    metadata = file["podio_metadata"]
    types = {key: metadata[key].typename for key in metadata.keys(recursive=False)}
    info, version = "vector<podio::root_utils::CollectionWriteInfo>", "podio::version::Version"
    assert types == {
        "PodioBuildVersion": version,
        "edm4hep___Version": version,
        "EDMDefinitions": "vector<tuple<string,string> >",
        "events___CollectionTypeInfo": info,
        "metadata___CollectionTypeInfo": info,
    }
    with closing(open_podio(path)) as podio:
        assert (podio.version("edm4hep"), podio.definitions()) == ((1, 0, 99), {"edm4hep": "{}"})
        assert podio.frame_parameters("metadata") == [{"String": {"P__Names": ["x", "y"]}, **NONE}]
        assert podio.infos("metadata") == []
        infos = podio.infos()
    assert [dataclasses.astuple(info) for info in infos] == [
        dataclasses.astuple(x) for x in (PARTICLES, SUBSET, WEIGHTS)
    ]
    assert [branch.array().to_list() for branch in metadata["PodioBuildVersion"].branches] == [[1], [7], [0]]
    (storage,) = metadata["events___CollectionTypeInfo/events___CollectionTypeInfo.storageType"].array().to_list()
    assert storage == [*2 * ["std::vector<edm4hep::ReconstructedParticleData>"], "std::vector<float>"]


NONE = {kind: {} for kind in ("Int", "Float", "Double")}


def structs(path):
    """What a file says of the layout of each struct of EDM4hep and podio."""
    with uproot.open(path) as file:
        infos = {key: info for key, infos in file.file.streamers.items() for info in infos.values() if "::" in key}
        fields = ("fName", "fType", "fSize", "fArrayLength", "fTypeName")
        return {
            name: (
                *(info.member(field) for field in ("fCheckSum", "fClassVersion")),
                [tuple(element.member(field) for field in fields) for element in info.elements],
            )
            for name, info in infos.items()
            if name != "ROOT::TIOFeatures"
        }


def branches(path):
    """How a file's branches of events are typed and named, with their leaves."""

    def described(branch):
        fields = ("fClassName", "fParentName", "fClonesName", "fCheckSum", "fClassVersion", "fID", "fType")
        (leaf,) = branch.member("fLeaves")
        numbers = [
            leaf.member(field) for field in ("fName", "fTitle", "fLen", "fLenType", "fIsUnsigned", "fID", "fType")
        ]
        yield branch.name, branch.title, *(str(branch.member(field)) for field in fields), *numbers
        for child in branch.branches:
            yield from described(child)

    with uproot.open(path) as file:
        return {row[0]: row for branch in file["events"].branches for row in described(branch)}


@pytest.mark.slow
def test_branches_and_structs_are_described_as_root_describes_them(data_dir, tmp_path):
    """A file that podio and ROOT wrote, and our copy of it."""
    path = data_dir / "edm4hep" / "cld_rec.edm4hep.root"
    ours, theirs = (structs(one) for one in (copy(path, tmp_path / "copy.root"), path))
    assert len(theirs) > 20
    assert ours == theirs
    ours, theirs = (branches(one) for one in (tmp_path / "copy.root", path))
    assert ours == theirs


def copy(original, path=None):
    path = path or original.with_name("copy.root")
    with closing(open_podio(original)) as file, uproot.recreate(path) as out:
        source = InputCopy(file)
        collections = [(source.model, collection) for collection in source.collections.values()]
        writer = FrameWriter(out, collections=collections, definitions=source.definitions)
        for entry in range(file.num_entries):
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
            leaves = [key] if not original[key].branches else [f"{key}/{one.name}" for one in original[key].branches]
            for leaf in leaves:
                assert original[leaf].array().to_list() == copied[leaf].array().to_list()


def test_a_newer_schema_is_said_and_copied_as_it_is(tmp_path):
    text = json.dumps(EDM4HEP | {"schema_version": SCHEMA_VERSION + 1})
    text = text.replace("float iPhi[rad]", "float psi [rad]  // new")
    info = CollectionInfo(name="C", data_type="edm4hep::ClusterCollection", schema_version=SCHEMA_VERSION + 1)
    with uproot.recreate(tmp_path / "new.root") as file:
        collections = [(DataModel(json.loads(text)), info)]
        writer = FrameWriter(file, collections=collections, definitions={"edm4hep": (text, (2, 0, 0))})
        writer.extend({"C": Filled(counts=np.array([2]), columns={"psi": np.array([0.25, -2.0])})}, [{}])
        writer.finish({})
    with pytest.warns(UserWarning, match="schema 7 of EDM4hep is newer than 6, pflow's"):
        path = copy(tmp_path / "new.root")
    with closing(open_podio(path)) as file:
        assert file.columns.get("C", "psi", start=0, stop=1).to_list() == [[0.25, -2.0]]
