"""Our EDM4hep files as ROOT reads them, with podio's calls and the structs of EDM4hep's own definition.

Needs ROOT: pip install root==0.1a12 (Python 3.11).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
import pytest
import uproot

from pflow.io.edm4hep.data_model import ARRAY, PRIMITIVES, DataModel
from pflow.io.edm4hep.podio import PodioFile, open_podio
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import open_events

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ROOT") is None, reason="ROOT is not installed: pip install root==0.1a12 (Python 3.11)"
    ),
]

SCRIPT = Path(__file__).with_name("read_with_root.py")


class Dump:
    """What ROOT found in a file: the bytes of each member of each field, all objects one after the other."""

    def __init__(self, path: Path, model: DataModel) -> None:
        self.path = path
        file = open_podio(path)
        infos = file.infos()
        file.close()
        self.fields: dict[str, str] = {}
        for info in infos:
            self.fields |= model.fields(info)
        structs = list(_structs(model, self.fields.values()))
        self._types = {
            f"{field}{member}": numbers
            for field, cpp_type in self.fields.items()
            for member, numbers in _leaves(model, cpp_type)
        }
        spec = path.with_suffix(".json")
        spec.write_text(json.dumps({"file": str(path), "structs": structs, "fields": self.fields}))
        output = path.with_suffix(".bin")
        run = subprocess.run(
            [sys.executable, str(SCRIPT), str(spec), str(output)], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr[-3000:]
        self.raw = _parse(output.read_bytes())

    @property
    def members(self) -> list[str]:
        """Members of all fields, e.g. ``PFlow.momentum.x``."""
        return list(self._types)

    def counts(self, field: str) -> npt.NDArray[np.int64]:
        """Number of objects in each event."""
        return np.frombuffer(self.raw[f"counts:{field}"], np.int64)

    def values(self, member: str) -> npt.NDArray[Any]:
        """Numbers of a member, [n] or [n, length]."""
        dtype, length = self._types[member]
        flat = np.frombuffer(self.raw.get(member, b""), dtype)
        return flat if length is None else flat.reshape(-1, length)

    def infos(self, category: str) -> list[list[str]]:
        """Id, type, subset, schema version, name and storage of each collection."""
        lines = self.raw[f"category:{category}"].decode().splitlines()
        return [line.replace(", ", ",").split() for line in lines]


def _structs(model: DataModel, types: Iterable[str]) -> Iterable[tuple[str, Any]]:
    """Structs and their members, each after those that it contains."""
    done: set[str] = set()

    def needed(cpp_type: str) -> Iterable[tuple[str, Any]]:
        found = ARRAY.fullmatch(cpp_type)
        if found:
            yield from needed(found[1])
        elif cpp_type not in PRIMITIVES and cpp_type not in done:
            done.add(cpp_type)
            for _, inner in model.structs[cpp_type]:
                yield from needed(inner)
            yield cpp_type, model.structs[cpp_type]

    for cpp_type in types:
        yield from needed(cpp_type)


def _leaves(model: DataModel, cpp_type: str, path: str = "") -> Iterable[tuple[str, tuple[Any, int | None]]]:
    if cpp_type in PRIMITIVES:
        yield path, (PRIMITIVES[cpp_type], None)
    elif found := ARRAY.fullmatch(cpp_type):
        yield path, (PRIMITIVES[found[1]], int(found[2]))
    else:
        for name, inner in model.structs[cpp_type]:
            yield from _leaves(model, inner, f"{path}.{name}")


def _parse(data: bytes) -> dict[str, bytes]:
    found = {}
    at = 0
    while at < len(data):
        name, size = data[at:].split(b"\n", 2)[:2]
        at += len(name) + len(size) + 2
        found[name.decode()] = data[at : at + int(size)]
        at += int(size)
    return found


def _model(file: PodioFile) -> DataModel:
    """Types as the input's software defines them, not as we do."""
    return DataModel(*(json.loads(text) for text in file.definitions().values()))


@pytest.fixture(scope="module", params=["cld_rec", "cld_sim"])
def cld(data_dir, request) -> Path:
    """Files of key4hep: with digitised hits and tracks, and with simulated hits alone."""
    path: Path = data_dir / "edm4hep" / f"{request.param}.edm4hep.root"
    return path


@pytest.fixture(scope="module")
def made(cld, perfect, tmp_path_factory) -> Any:
    """The event with its collections and perfect particles: what was written, and what ROOT reads."""
    out = tmp_path_factory.mktemp("root") / "out.root"
    with open_events(cld, detector="cld", truth_tracks="sim" in cld.name) as file:
        events = file.read()
        reconstruction = perfect(events)
        with Edm4hepRecoWriter(out, file, provenance={}, mc_links=True) as writer:
            writer.extend(reconstruction)
        model = _model(file.reader.file)
    return reconstruction, events, Dump(out, model)


def test_every_member_of_the_inputs_collections_is_unchanged(cld, made):
    """Compared with the TTree that key4hep wrote, bit by bit."""
    _, _, dump = made
    events = uproot.open(cld)["events"]
    theirs = {key.split("/")[-1]: key for key in events.keys(recursive=True)}
    compared = 0
    for member in dump.members:
        dtype, length = dump._types[member]
        key = theirs.get(f"{member}[{length}]" if length else member)
        if key is None:
            assert member.lstrip("_").startswith("PFlow"), member
            continue
        array = events[key].array()
        field = member.partition(".")[0]
        assert dump.counts(field).tolist() == ak.num(array).to_list(), field
        expected = np.asarray(ak.to_numpy(ak.flatten(array)), dtype)
        assert dump.values(member).tobytes() == expected.tobytes(), member
        compared += 1
    leaves = [name for name, key in theirs.items() if not events[key].keys() and not name.startswith("GP")]
    print(f"{compared} of {len(leaves)} members of the input compared")
    assert compared == len(leaves)


def test_the_particles_are_what_was_written(made):
    reconstruction, _, dump = made
    particles = reconstruction.particles[0]
    for member, values in {
        "PDG": particles.pdg,
        "energy": particles.energy,
        "momentum.x": particles.momentum.px,
        "momentum.y": particles.momentum.py,
        "momentum.z": particles.momentum.pz,
        "charge": particles.charge,
        "mass": particles.mass,
        "goodnessOfPID": particles.score,
        "covMatrix.values": particles.covariance,
    }.items():
        assert dump.values(f"PFlow.{member}").tolist() == values.to_list()
    assert dump.values("_PFlowParticleID_parameters").tolist() == ak.flatten(particles.scores).to_list()


def test_every_reference_resolves(made):
    """All references of the file, the input's and ours, lead to an object of a collection of the file."""
    _, _, dump = made
    names = {int(number): (name, subset) for number, _, subset, _, name, _ in dump.infos("events")}
    resolved = 0
    for field, cpp_type in dump.fields.items():
        if cpp_type != "podio::ObjectID":
            continue
        index, number = dump.values(f"{field}.index"), dump.values(f"{field}.collectionID")
        there = index >= 0
        for found in np.unique(number[there]):
            name, subset = names[int(found)]
            size = int(dump.counts(f"{name}_objIdx" if subset == "1" else name)[0])
            mine = there & (number == found)
            assert index[mine].max() < size, field
            resolved += int(mine.sum())
    print(f"{resolved} references resolved")
    assert resolved > 10_000


def test_the_clusters_add_up(made):
    """Through ROOT's references: the energies of the hits, weighted, are the energies of the clusters."""
    _, _, dump = made
    names = {int(number): name for number, _, _, _, name, _ in dump.infos("events")}
    energy = [
        dump.values(f"{names[int(number)]}.energy")[index]
        for number, index in zip(
            dump.values("_PFlowClusters_hits.collectionID"), dump.values("_PFlowClusters_hits.index"), strict=True
        )
    ]
    begin, end = (dump.values(f"PFlowClusters.hits_{side}").astype(int) for side in ("begin", "end"))
    shares = np.array(energy, dtype=np.float64) * dump.values("PFlowHitWeights")
    sums = [shares[i:j].sum() for i, j in zip(begin, end, strict=True)]
    np.testing.assert_allclose(dump.values("PFlowClusters.energy"), sums, rtol=1e-6)


def test_the_metadata_are_read(made, cld):
    _, _, dump = made
    assert np.frombuffer(dump.raw["version"], np.uint16).tolist() == [1, 7, 0]
    file = open_podio(cld)
    infos = file.infos()
    definition = file.definitions()["edm4hep"]
    categories = {f"category:{name}" for name in ("events", *file.categories())}
    file.close()
    assert dump.raw["model:edm4hep"].decode() == definition
    ours = {row[4]: row for row in dump.infos("events")}
    assert infos is not None
    for info in infos:
        number, data_type, subset, version, *_ = ours[info.name]
        assert (int(number), data_type, subset == "1", int(version)) == (
            *(info.id, info.data_type, info.is_subset, info.schema_version),
        )
    assert ours["PFlowClusters"][1:4] == ["edm4hep::ClusterCollection", "0", "6"]
    assert {name for name in dump.raw if name.startswith("category:")} == categories
