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

INTEGERS = ("index", "quality", "PDG", "type", "generatorStatus", "location", "begin", "end")
DOUBLES = ("mass",)


@pytest.fixture(scope="session")
def cld_podio(data_dir: Path) -> Iterator[PodioFile]:
    """A file that podio wrote, of a fully simulated event of CLD; to open it takes most of a second."""
    file = open_podio(data_dir / "edm4hep" / "cld_rec.edm4hep.root")
    yield file
    file.close()


@pytest.fixture(scope="session")
def cld_rec(cld_path: Path) -> Events:
    return read_events(cld_path)


@pytest.fixture(scope="session")
def cld_sim(cld_sim_path: Path) -> Events:
    """The first three before their reconstruction, with tracks made from Monte Carlo particles."""
    return read_events(cld_sim_path, truth_tracks=True)


@pytest.fixture(scope="session")
def full_cld(data_dir: Path) -> tuple[Events, Events]:
    """A fully simulated event of CLD, by its standard software; and before its reconstruction, with true tracks."""
    names = ("cld_rec", "cld_sim")
    return tuple(read_events(data_dir / "edm4hep" / f"{name}.edm4hep.root", truth_tracks=True) for name in names)


@pytest.fixture
def toy() -> Detector:
    """Two calorimeters of one ECAL (two joined collections) and one HCAL, and an optional muon system."""
    return Detector(
        name="toy",
        b_field=2.0,
        ecal_inner_radius=1000.0,
        ecal_outer_radius=1200.0,
        ecal_inner_z=1500.0,
        calorimeters=(
            Calorimeter(name="ecal", kind="ecal", region="barrel", collections=("A1", "A2"), sim_collections=("SimA",)),
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


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write content as one of podio's layouts: `new` (TTree), `rec` (links called rec and sim), `old`, `rntuple`."""

    def write_file(
        content: Mapping[str, Any],
        layout: str = "new",
        *,
        ids: Mapping[str, int] | None = None,
        encodings: Mapping[str, str] | None = None,
        types: Mapping[str, str] | None = None,
        name: str = "events.root",
        chunks: int = 1,
    ) -> Path:
        path = tmp_path / name
        arrays = {_renamed(key, layout): _array(key, values) for key, values in content.items()}
        with uproot.recreate(path) as file:
            if layout == "rntuple":
                file.mkrntuple("events", _records(arrays))
            else:
                file.mktree("events", {key: array.type.content for key, array in arrays.items()})
                n_events = len(next(iter(arrays.values())))
                for part in np.array_split(np.arange(n_events), chunks):
                    file["events"].extend({key: array[part] for key, array in arrays.items()})
            table = IDS if ids is None else ids
            if table:
                file.mkrntuple("podio_metadata", _id_table(table, layout, types or {}))
            if encodings is not None:
                keys = [f"{key}__CellIDEncoding" for key in encodings]
                values = [[value] for value in encodings.values()]
                file.mkrntuple("metadata", {"GPStringKeys": ak.Array([keys]), "GPStringValues": ak.Array([values])})
        return path

    return write_file


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
    member = key.partition(".")[2]
    if member == "cellID":
        dtype: Any = np.uint64
    elif member == "collectionID":
        dtype = np.uint32
    elif member.endswith(INTEGERS):
        dtype = np.int32
    elif member in DOUBLES or key.startswith("MCParticles.momentum"):
        dtype = np.float64
    elif member == "eventNumber":
        dtype = np.int64
    else:
        dtype = np.float32
    counts = np.array([len(event) for event in values], dtype=np.int64)
    flat = np.array([value for event in values for value in event], dtype=dtype)
    return ak.unflatten(flat, counts)


def _renamed(key: str, layout: str) -> str:
    collection, _, member = key.partition(".")
    if layout == "rec":
        collection = collection.replace("_from", "_rec") if collection.endswith("_from") else collection
        collection = collection.replace("_to", "_sim") if collection.endswith("_to") else collection
    if layout == "old":
        old = {
            "_from": "#0",
            "_to": "#1",
            "_parents": "#0",
            "_contributions": "#0",
            "_particle": "#0",
            "_trackStates": "_1",
        }
        for suffix, number in old.items():
            if collection.startswith("_") and collection.endswith(suffix):
                collection = collection.removeprefix("_").removesuffix(suffix) + number
    return f"{collection}.{member}" if member else key


def _records(arrays: Mapping[str, ak.Array]) -> dict[str, ak.Array]:
    """Collections as lists of nested records."""
    nested: dict[str, Any] = {}
    for key, array in arrays.items():
        *parts, member = key.split(".")
        target = nested
        for part in parts:
            target = target.setdefault(part, {})
        target[member] = array

    def zipped(fields: Mapping[str, Any]) -> ak.Array:
        return ak.zip({name: zipped(value) if isinstance(value, dict) else value for name, value in fields.items()})

    return {name: zipped(fields) if isinstance(fields, dict) else fields for name, fields in nested.items()}


def _id_table(ids: Mapping[str, int], layout: str, types: Mapping[str, str]) -> dict[str, ak.Array]:
    names, numbers = list(ids), np.array(list(ids.values()), dtype=np.uint32)
    if layout == "old":
        return {
            "events___idTable": ak.Array(
                ak.zip({"m_names": ak.Array([names]), "m_collectionIDs": ak.Array([numbers])}, depth_limit=1)
            )
        }
    if layout == "rec":
        return {"events_collectionNames": ak.Array([names]), "events___idTable": ak.Array([numbers])}
    columns = {"name": names, "collectionID": numbers, "dataType": [types.get(name, "") for name in names]}
    return {"events___CollectionTypeInfo": ak.zip({key: ak.Array([values]) for key, values in columns.items()})}
