"""A small detector, and files of podio's layouts written with uproot."""

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import awkward as ak
import numpy as np
import pytest
import uproot
import yaml

from pflow.event.events import Events
from pflow.io.edm4hep.podio import PodioFile, open_podio
from pflow.io.open import read_events
from pflow.physics.detector import Calorimeter, Detector

Content = dict[str, list[list[float]]]

IDS = {"A1": 11, "A2": 4_000_000_000, "B": 13, "Tracks": 14, "MCParticles": 15, "Other": 16}
IDS |= {"SimAContributions": 21, "SimBContributions": 22}
"""Collection ids of the small files; one that does not fit in 31 bits, as hashes do not."""

ids = pytest.fixture(lambda: IDS, scope="session")

DTYPES = {"cellID": np.uint64, "collectionID": np.uint32, "eventNumber": np.int64, "mass": np.float64}
DTYPES |= dict.fromkeys(
    ("index", "quality", "PDG", "type", "generatorStatus", "simulatorStatus", "location", "begin", "end"), np.int32
)
"""Types of members that are not float32."""

SUFFIXES = {"rec": {"_from": "_rec", "_to": "_sim"}, "old": {"_from": "#0", "_to": "#1", "_trackStates": "_1"}}
SUFFIXES["old"] |= dict.fromkeys(("_parents", "_contributions", "_particle"), "#0")
"""How the names of relations end in layouts other than `new`."""


@pytest.fixture(scope="session")
def cld_podio(data_dir: Path) -> Iterator[PodioFile]:
    """A file that podio wrote, of a fully simulated event of CLD; to open it takes most of a second."""
    file = open_podio(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
    yield file
    file.close()


@pytest.fixture(scope="session")
def full_cld(data_dir: Path) -> tuple[Events, Events]:
    """A fully simulated event of CLD, by its standard software; and before its reconstruction, with true tracks."""
    names = ("cld_rec", "cld_sim")
    return tuple(read_events(data_dir / "edm4hep" / f"{name}.edm4hep.root", truth_tracks=True) for name in names)


@pytest.fixture(scope="session")
def toy() -> Detector:
    """Two calorimeters of one ECAL (two joined collections) and one HCAL, and an optional muon system."""
    return Detector(
        name="toy",
        b_field=2.0,
        ecal_inner_radius=1000.0,
        ecal_outer_radius=1200.0,
        ecal_inner_z=1500.0,
        calorimeters=(
            Calorimeter(
                name="ecal",
                kind="ecal",
                region="barrel",
                collections=("A1", "A2"),
                sim_collections=("SimA",),
                sim_scale=1.0,
            ),
            Calorimeter(
                name="hcal",
                kind="hcal",
                region="barrel",
                collections=("B",),
                sim_collections=("SimB",),
                sim_scale=10.0,
                cell_encoding="layer:8",
            ),
            Calorimeter(name="muon", kind="muon", region="other", collections=("MUON",), required=False),
        ),
        tracks=("Tracks",),
        tracker_hits=("Inner", "Outer"),
        hit_links=("HitLinks",),
        track_links=("TrackLinks",),
        references=("Pandora",),
    )


@pytest.fixture(scope="session")
def whole_content(sample_dir: Path) -> Content:
    return cast(Content, yaml.safe_load((sample_dir / "podio_content.yaml").read_text("utf-8")))


@pytest.fixture
def content(whole_content: Content) -> Content:
    """Members of two events, for the test to change."""
    return copy.deepcopy(whole_content)


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write content as one of podio's layouts: `new` (TTree), `rec` (links called rec and sim), `old`, `rntuple`.

    Each into a folder of its own. `ids`, `encodings` of cells and `types`: by collection; no `encodings`: no metadata.
    """

    def write_file(content, layout="new", *, ids=IDS, encodings=None, types=None, name="events.root", chunks=1):
        path = tmp_path_factory.mktemp("podio") / name
        arrays = {_renamed(key, layout): _array(key, values) for key, values in content.items()}
        with uproot.recreate(path) as file:
            if layout == "rntuple":
                file.mkrntuple("events", _records(arrays))
            else:
                n_events, columns = len(next(iter(arrays.values()))), _joined(arrays)
                form = {key: array.type.content for key, array in columns.items()}
                file.mktree("events", form, field_name=lambda outer, inner: f"{outer}.{inner}" if outer else inner)
                for part in np.array_split(np.arange(n_events), chunks):
                    file["events"].extend({key: array[part] for key, array in columns.items()})
            if ids:
                file.mkrntuple("podio_metadata", _id_table(ids, layout, types or {}))
            if encodings is not None:
                keys = [f"{key}__CellIDEncoding" for key in encodings]
                values = [[value] for value in encodings.values()]
                file.mkrntuple("metadata", {"GPStringKeys": ak.Array([keys]), "GPStringValues": ak.Array([values])})
        return path

    return write_file


@pytest.fixture
def podio(write: Callable[..., Path]) -> Callable[..., PodioFile]:
    return lambda content, layout="new", **options: open_podio(write(content, layout, **options))


@pytest.fixture
def damage() -> Callable[..., None]:
    """Overwrites the bytes of one basket of a branch."""

    def damage_basket(path: Path, branch: str, basket: int = 0) -> None:
        with uproot.open(path) as file:
            tbranch = file["events"][branch]
            seek, size = tbranch.member("fBasketSeek")[basket], tbranch.member("fBasketBytes")[basket]
        content = bytearray(path.read_bytes())
        content[seek : seek + size] = b"\xff" * size
        path.write_bytes(content)

    return damage_basket


def _array(key: str, values: Any) -> ak.Array:
    """Jagged array of the type that EDM4hep gives a member, also where there are no objects."""
    member = key.partition(".")[2].rpartition("_")[2]
    dtype = np.float64 if key.startswith("MCParticles.momentum") else DTYPES.get(member, np.float32)
    flat = np.array([value for event in values for value in event], dtype=dtype)
    return ak.unflatten(flat, np.array([len(event) for event in values], dtype=np.int64))


def _renamed(key: str, layout: str) -> str:
    collection, dot, member = key.partition(".")
    for suffix, new in SUFFIXES.get(layout, {}).items():
        if collection.endswith(suffix):
            collection = collection.removesuffix(suffix) + new
            collection = collection.removeprefix("_") if layout == "old" else collection
    return collection + dot + member


def _joined(arrays: Mapping[str, ak.Array]) -> dict[str, ak.Array]:
    """With the members of a collection, if they have the same lengths, as records: uproot writes one counter for all.

    Its time grows by the number of branches squared.
    """
    collections: dict[str, dict[str, ak.Array]] = {}
    for key, array in arrays.items():
        name, _, member = key.partition(".")
        collections.setdefault(name, {})[member] = array
    joined = {}
    for name, members in collections.items():
        alike = "" not in members and len({str(ak.num(array).tolist()) for array in members.values()}) == 1
        separate = {f"{name}.{member}".rstrip("."): array for member, array in members.items()}
        joined |= {name: ak.zip(members)} if alike else separate
    return joined


def _records(arrays: Mapping[str, ak.Array]) -> dict[str, ak.Array]:
    nested: dict[str, dict[str, ak.Array]] = {}
    for key, array in arrays.items():
        first, _, rest = key.partition(".")
        nested.setdefault(first, {})[rest] = array
    return {name: inner[""] if "" in inner else ak.zip(_records(inner)) for name, inner in nested.items()}


def _id_table(ids: Mapping[str, int], layout: str, types: Mapping[str, str]) -> dict[str, ak.Array]:
    names, numbers = list(ids), np.array(list(ids.values()), dtype=np.uint32)
    if layout == "old":
        columns = {"m_names": ak.Array([names]), "m_collectionIDs": ak.Array([numbers])}
        return {"events___idTable": ak.zip(columns, depth_limit=1)}
    if layout == "rec":
        return {"events_collectionNames": ak.Array([names]), "events___idTable": ak.Array([numbers])}
    info = {"name": names, "collectionID": numbers, "dataType": [types.get(name, "") for name in names]}
    return {"events___CollectionTypeInfo": ak.zip({key: ak.Array([values]) for key, values in info.items()})}
