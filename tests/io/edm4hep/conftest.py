import functools
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.event import jagged
from pflow.event.events import Events, Reconstruction
from pflow.event.schema import make_links, make_particles
from pflow.io.edm4hep.frames import FrameWriter
from pflow.io.edm4hep.podio import CollectionInfo, DataModel, Filled, PodioFile, open_podio
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import open_events
from pflow.physics.detector import Detector

TYPES = {
    "A1": ("edm4hep::CalorimeterHitCollection", 11),
    "A2": ("edm4hep::CalorimeterHitCollection", 4_000_000_000),
    "B": ("edm4hep::CalorimeterHitCollection", 13),
    "Tracks": ("edm4hep::TrackCollection", 14),
    "MCParticles": ("edm4hep::MCParticleCollection", 15),
    "HitLinks": ("podio::LinkCollection<edm4hep::CalorimeterHit,edm4hep::MCParticle>", 17),
    "TrackLinks": ("podio::LinkCollection<edm4hep::Track,edm4hep::MCParticle>", 18),
    "EventHeader": ("edm4hep::EventHeaderCollection", 3616779153),
}
"""Type and id of each collection of the small file; ids need not be hashes."""


@pytest.fixture
def read(podio: Callable[..., PodioFile], toy: Detector) -> Callable[..., Events]:
    """Write content in a layout and read entries `start` to `stop` of it back."""

    def read_content(content, layout="new", *, start=0, stop=2, truth=True, detector=toy, **options):
        return Edm4hepReader(podio(content, layout, **options), detector=detector).read(start, stop, truth=truth)

    return read_content


@pytest.fixture(scope="session")
def edm4hep(cld_rntuple_path: Path) -> str:
    """EDM4hep's own definition, which a file of EDM4hep 1.0 carries."""
    with closing(open_podio(cld_rntuple_path)) as file:
        return file.definitions()["edm4hep"]


@pytest.fixture(scope="session")
def write_podio(tmp_path_factory: pytest.TempPathFactory, edm4hep: str) -> Callable[..., Path]:
    """Writes content (`tests/data/podio_content.yaml`) as podio does, with types and an encoding of cell ids."""

    def write(content: dict[str, Any], *, dropped: tuple[str, ...] = (), namespace: str = "edm4hep") -> Path:
        """`dropped`: collections of the metadata that are not in the tree; `namespace`: of hits and tracks."""
        columns: dict[str, dict[str, Any]] = {}
        counts: dict[str, Any] = {}
        for key, values in content.items():
            field, _, member = key.partition(".")
            columns.setdefault(field, {})[member] = np.array([value for event in values for value in event])
            counts[field] = np.array([len(event) for event in values])
        fields = {field: Filled(counts=counts[field], columns=inner) for field, inner in columns.items()}
        renamed = functools.partial(re.sub, r'edm4hep::(?=(CalorimeterHit|Track)(":|Collection))', f"{namespace}::")
        path, definition = tmp_path_factory.mktemp("podio") / "podio.root", renamed(edm4hep)
        model = DataModel(json.loads(definition))
        types = {name: (renamed(kind), id) for name, (kind, id) in TYPES.items()}
        collections = [(model, CollectionInfo(name=name, data_type=kind, id=id)) for name, (kind, id) in types.items()]
        with uproot.recreate(path) as file:
            definitions = {"edm4hep": (definition, (1, 2, 3))}
            writer = FrameWriter(file, collections=collections, definitions=definitions)
            writer.extend(fields, [{"Float": {"weight": [0.5]}, "String": {"name": ["one", "two"]}}, {}])
            kind = "edm4hep::TrackCollection"
            writer._collections += [(model, CollectionInfo(name=name, data_type=kind)) for name in dropped]
            writer.finish(
                {"metadata": [{"String": {"A1__CellIDEncoding": ["layer:8"]}}], "runs": [{"Int": {"run": [7]}}] * 2}
            )
        return path

    return write


def shares_of_truth(events: Events) -> Reconstruction:
    """Particles made of the links to the true ones, with numbers that differ from each other elsewhere."""
    truth, counts = events.truth, jagged.count(events.truth)
    n, rng = int(counts.sum()), np.random.default_rng(5)
    numbers = {"score": rng.uniform(size=n), "existence": rng.uniform(size=n), "scores": rng.uniform(size=(n, 5))}
    numbers["covariance"] = rng.normal(size=(n, 10))
    return Reconstruction(
        particles=make_particles(
            **{name: getattr(truth, name) for name in ("pdg", "charge", "energy", "mass")},
            **{axis: truth.momentum[axis] for axis in ("px", "py", "pz")},
            **{name: ak.unflatten(values, counts) for name, values in numbers.items()},
        ),
        event=events.event,
        flags=(events.flags | 2 * np.arange(len(events), dtype=np.uint32)).astype(np.uint32),
        hit_links=_links(events.hit_links),
        track_links=None if events.track_links is None else _links(events.track_links),
    )


perfect = pytest.fixture(lambda: shares_of_truth, scope="session")


def _links(links: ak.Array) -> ak.Array:
    """The same links, with weights below 1 and sorted by particle, as a file keeps them."""
    order = ak.argsort(links.particle, axis=1, stable=True)
    links = links[order]
    return make_links(source=links.source, particle=links.particle, weight=0.75 * links.weight, normalise=False)


@pytest.fixture(scope="session")
def reconstruct(
    toy: Detector, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, Reconstruction, Events]]:
    """Writes perfect particles of a file in chunks, with the writer's options; also gives them and the events."""

    def run(path, *, detector=toy, stop=None, chunk=1, change=lambda made: made, **options):
        out = tmp_path_factory.mktemp("reco") / "out.root"
        with open_events(path, detector=detector) as file:
            events = file.read(0, stop)
            made = change(shares_of_truth(events))
            with Edm4hepRecoWriter(out, file, provenance={"who": "me"}, **options) as writer:
                for start in range(0, len(events), chunk):
                    writer.extend(made[start : start + chunk])
        return out, made, events

    return run


@pytest.fixture(scope="session")
def links() -> Callable[[ak.Array], list[list[tuple[int, int, float]]]]:
    """Makes [event, link] tuples of source, particle and weight of links."""
    return lambda array: [
        [(link["source"], link["particle"], round(link["weight"], 6)) for link in event] for event in array.to_list()
    ]
