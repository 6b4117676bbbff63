"""Make the small samples in tests/data from the full ones: the first events of each, every quantity, unchanged.

    python scripts/make_sample.py --data-dir ../shared/data --output tests/data

Five hadronic Z decays of CLD are also written as CLD's reconstruction writes EDM4hep: digitised hits, tracks, links to
Monte Carlo particles, Pandora's particles. podio makes the RNTuple of tests/data of it, by `podio-ttree-to-rntuple`.
Version 0.3 of this script made the other TTrees, simulated hits and the HDF5 file.

LZMA is a quarter smaller here than the full files' ZSTD and still reads in a fraction of a second.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uproot

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import Links
from pflow.io.edm4hep.frames import FrameWriter
from pflow.io.edm4hep.podio import (
    SCHEMA_VERSION,
    CollectionInfo,
    DataModel,
    Filled,
    bit_field,
    collection_id,
    open_podio,
)
from pflow.io.edm4hep.reco import NO_OBJECT, ranges, references, track_frames
from pflow.io.flat import write_events
from pflow.io.open import open_events, read_events
from pflow.physics.detector import Calorimeter

EVENTS = {  # folder, which is also the layout; sample; events
    ("g4", "gamma1_train"): 460,
    ("g4", "gamma1_val"): 50,
    ("g4", "gamma1_test"): 100,
    ("g4", "gammasep_test"): 25,
    ("g4", "multi_test"): 25,
    ("g4", "zqq_test"): 6,
    ("cld_g4", "multi_train"): 80,
    ("cld_g4", "multi_test"): 25,
}
EDM4HEP_EVENTS = [1, 3, 6, 10, 12]  # of cld_g4/zqq_test: the first with fewer than 2,700 hits
COMPRESSION = uproot.LZMA(9)

CALORIMETER_ENCODING = "system:0:5,side:5:2,module:7:8,stave:15:4,layer:19:9,submodule:28:4,x:32:-16,y:48:-16"
TRACKER_ENCODING = "system:0:5,side:5:-2,layer:7:6,module:13:11,sensor:24:8"
SYSTEMS = (20, 29, 10, 11, 12, 13)  # numbers of the calorimeters, in the order of configs/detector/cld.yaml
TYPES = {"ecal": 10, "hcal": 21, "muon": 32}  # iLCSoft's code of a hit's type (CHT), without region and layer
PITCH = {"ecal": 5.1, "hcal": 30.0, "muon": 30.0}  # of the cells, mm
BARREL_Z = {"ecal": 2300.0, "hcal": 2300.0, "muon": 3950.0}  # |z| of the last hits of a barrel, mm
STAVE, ENDCAP_TURN = np.deg2rad(30), np.deg2rad(75)  # staves of a barrel; how far the axes of an endcap's cells turn
TRACKER_LAYERS = (range(6), range(20, 32), range(6, 9), range(32, 46), range(9, 12), range(46, 54))
"""Layers in the flat file of barrel and discs of the vertex detector, the inner and the outer tracker."""

Ints = npt.NDArray[np.integer[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the folders of the full samples")
    parser.add_argument("--output", type=Path, required=True, help="folder for the small ones")
    args = parser.parse_args()
    written = []
    for (folder, name), n_events in EVENTS.items():
        reader = open_events(args.data_dir / folder / f"{name}.root", layout=folder)
        written.append(args.output / f"{'cld_' if folder == 'cld_g4' else ''}{name}_small.root")
        write_events(written[-1], reader.read(0, n_events), compression=COMPRESSION, inputs=[reader.path], force=True)
        reader.close()
    events = read_events(args.data_dir / "cld_g4" / "zqq_test.root", layout="cld_g4", entry_stop=20)[EDM4HEP_EVENTS]
    with closing(open_podio(args.data_dir / "edm4hep" / "cld_zqq_small_rntuple.edm4hep.root")) as file:
        definition = file.definitions()["edm4hep"]  # EDM4hep's own, which every file of podio carries
    written.append(args.output / "cld_zqq_small_ttree.edm4hep.root")
    write_podio(written[-1], reconstructed(events), definition)
    for path in written:
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


class Content:
    """Collections of an EDM4hep file: their types, what their fields hold, and encodings of their cell ids."""

    def __init__(self, events: Events) -> None:
        self.n_events = n = len(events)
        self.collections: list[CollectionInfo] = []
        self.frames: dict[str, Filled] = {}
        self.encodings: dict[str, str] = {}
        header = {"eventNumber": events.event, "weight": np.ones(n)}
        self.add("EventHeader", "EventHeader", np.ones(n, np.int64), header)
        truth, counts = jagged.columns(events.truth), jagged.count(events.truth)
        child = np.flatnonzero(truth["parent"] >= 0)
        parent = truth["parent"][child] + jagged.offsets(counts)[jagged.event_index(counts)[child]]
        order = np.argsort(parent, kind="stable")  # daughters by parent
        event = jagged.event_index(counts)
        columns = {
            "PDG": truth["pdg"],
            "generatorStatus": truth["status"],
            "helicity": np.full(len(event), 9),  # unknown
            "charge": truth["charge"],
            "mass": truth["rest_mass"],
            **{f"momentum.{axis}": truth[f"p{axis}"] for axis in "xyz"},
            **_vector(truth, "vertex"),
            **ranges("parents", (truth["parent"] >= 0).astype(np.int64), counts),
            **ranges("daughters", np.bincount(parent, minlength=len(event)), counts),
        }
        self.add("MCParticles", "MCParticle", counts, columns)
        local, related = jagged.local_index(counts), np.bincount(event[child], minlength=n)
        self.refer("_MCParticles_parents", "MCParticles", truth["parent"][child], related)
        self.refer("_MCParticles_daughters", "MCParticles", local[child[order]], related)

    def add(self, name: str, kind: str, counts: Ints, columns: Mapping[str, Any], encoding: str = "") -> None:
        """Add a collection of objects of EDM4hep's type `kind`, or of links "From,To"; `counts` in each event."""
        ends = [f"edm4hep::{end}" for end in kind.split(",")]
        data_type = f"podio::LinkCollection<{','.join(ends)}>" if len(ends) == 2 else f"{ends[0]}Collection"
        version = 1 if len(ends) == 2 else SCHEMA_VERSION
        self.collections.append(CollectionInfo(name=name, data_type=data_type, schema_version=version))
        self.frames[name] = Filled(counts=counts, columns=columns)
        if encoding:
            self.encodings[name] = encoding

    def refer(self, field: str, name: str, index: Ints, counts: Ints) -> None:
        """Add references to objects of the collection `name`; a negative index refers to nothing."""
        known = index >= 0
        ids = np.where(known, collection_id(name), 0)
        self.frames[field] = references(ids, np.where(known, index, NO_OBJECT), counts)

    def link(self, name: str, kind: str, ids: Any, source: Ints, links: Links) -> None:
        """Add links from objects, their collections' `ids` and indices, to Monte Carlo particles."""
        self.add(name, f"{kind},MCParticle", links.counts, {"weight": links.weight})
        self.frames[f"_{name}_from"] = references(ids, source, links.counts)
        self.refer(f"_{name}_to", "MCParticles", links.particle, links.counts)


def reconstructed(events: Events) -> Content:
    """Digitised hits, tracks, links and Pandora's particles."""
    content, detector = Content(events), events.detector
    hits, event, n = jagged.columns(events.hits), jagged.event_index(jagged.count(events.hits)), len(events)
    ids, place = np.zeros((2, len(event)), np.int64)  # of the collection of each hit; index in it
    for number, calorimeter in enumerate(detector.calorimeters):
        chosen, names = hits["subdetector"] == number, calorimeter.collections
        in_endcap = np.abs(hits["position.z"]) > BARREL_Z[calorimeter.kind]
        masks = (chosen,) if len(names) == 1 else (chosen & ~in_endcap, chosen & in_endcap)
        for name, mask in zip(names, masks, strict=True):
            counts = np.bincount(event[mask], minlength=n)
            columns = {key: values[mask] for key, values in hits.items()}
            ids[mask], place[mask] = collection_id(name), jagged.local_index(counts)
            region = np.where(np.abs(columns["position.z"]) < BARREL_Z[calorimeter.kind], 1, 2)
            region = 4 if calorimeter.name == "hcal_other" else region  # the ring
            columns["type"] = TYPES[calorimeter.kind] + 1000 * region + 10000 * columns["layer"]
            columns["cellID"] = _cells(number, calorimeter, columns)
            columns = {key: columns[key] for key in ("cellID", "energy", "time", "type")} | _vector(columns)
            content.add(name, "CalorimeterHit", counts, columns, CALORIMETER_ENCODING)
    hit_links = Links.of(events.hit_links)
    source = hit_links.flat_source(jagged.count(events.hits))
    content.link(detector.hit_links[0], "CalorimeterHit", ids[source], place[source], hit_links)

    hits, event = jagged.columns(events.tracker_hits), jagged.event_index(jagged.count(events.tracker_hits))
    for number, (name, layers) in enumerate(zip(detector.tracker_hits, TRACKER_LAYERS, strict=True)):
        mask, disc = np.isin(hits["layer"], layers), number % 2
        columns = {key: values[mask] for key, values in hits.items()}
        side = np.sign(columns["position.z"]).astype(np.int64) * disc
        layer = (columns["layer"] - layers.start) // (1 + disc)
        columns["cellID"] = _encoded(TRACKER_ENCODING, system=number + 1, side=side, layer=layer)
        columns = {"cellID": columns["cellID"], "eDep": columns["energy"], "time": columns["time"]} | _vector(columns)
        content.add(name, "TrackerHitPlane", np.bincount(event[mask], minlength=n), columns, TRACKER_ENCODING)

    tracks = detector.tracks[0]
    frames = track_frames(events, tracks)
    content.add(tracks, "Track", frames[tracks].counts, frames[tracks].columns)
    content.frames |= frames
    links = Links.of(events.track_links)
    content.link(detector.track_links[0], "Track", collection_id(tracks), links.source, links)

    particles, counts = jagged.columns(events.reference), jagged.count(events.reference)
    columns = {"PDG": particles["pdg"]} | {f"momentum.{axis}": particles[f"p{axis}"] for axis in "xyz"}
    columns |= {"energy": particles["energy"], "charge": particles["charge"], "mass": particles["rest_mass"]}
    content.add(detector.references[0], "ReconstructedParticle", counts, columns)
    content.refer(f"_{detector.references[0]}_decayVertex", "", np.full(counts.sum(), NO_OBJECT), counts)
    return content


def write_podio(path: Path, content: Content, definition: str) -> None:
    """Write as podio does."""
    model, definitions = DataModel(json.loads(definition)), {"edm4hep": (definition, (1, 0, 0))}
    encodings = {f"{name}__CellIDEncoding": [code] for name, code in content.encodings.items()}
    with uproot.recreate(path, compression=COMPRESSION) as file:
        collections = [(model, collection) for collection in content.collections]
        writer = FrameWriter(file, collections=collections, definitions=definitions)
        writer.extend(content.frames, [{}] * content.n_events)
        writer.finish({"metadata": [{"String": encodings}]})


def _cells(number: int, calorimeter: Calorimeter, hits: Mapping[str, Any]) -> npt.NDArray[np.uint64]:
    """Ids of the cells of hits, from their positions in the axes of a stave (barrel) or of an endcap."""
    x, y, z = (hits[f"position.{axis}"].astype(np.float64) for axis in "xyz")
    barrel = np.abs(z) < BARREL_Z[calorimeter.kind]
    stave = np.where(barrel, np.round(np.arctan2(y, x) / STAVE), ENDCAP_TURN / STAVE)
    cos, sin = np.cos(STAVE * stave), np.sin(STAVE * stave)
    along, across = x * cos + y * sin, y * cos - x * sin
    cell = np.round(np.stack([across, np.where(barrel, z, along)]) / PITCH[calorimeter.kind]).astype(np.int64)
    side, module = np.where(barrel, 0, np.where(z > 0, 1, 2)), np.where(barrel, stave, 0).astype(np.int64) % 12
    fields = {"system": SYSTEMS[number], "side": side, "module": module, "layer": hits["layer"]}
    return _encoded(CALORIMETER_ENCODING, **fields, x=cell[0], y=cell[1])


def _encoded(encoding: str, **values: Any) -> npt.NDArray[np.uint64]:
    """Cell ids with these values of the encoding's fields, each an integer or integers [cell]."""
    cells: Any = np.uint64(0)
    for name, value in values.items():
        offset, width, _ = bit_field(encoding, name) or (0, 0, False)
        cells = cells | ((np.asarray(value, np.int64) & ((1 << width) - 1)).astype(np.uint64) << np.uint64(offset))
    return np.asarray(cells)


def _vector(columns: Mapping[str, Any], name: str = "position") -> dict[str, Any]:
    return {f"{name}.{axis}": columns[f"{name}.{axis}"] for axis in "xyz"}


if __name__ == "__main__":
    main()
