"""Fixtures that make particles from a list of (pdg, energy [GeV], theta [deg], phi [deg]) for each event."""

from collections.abc import Callable, Sequence

import awkward as ak
import numpy as np
import pytest

from pflow.event.events import Events, Reconstruction
from pflow.event.schema import make_hits, make_links, make_particles, make_truth
from pflow.metrics.match import ParticleTable
from pflow.physics.detector import load_detector
from pflow.physics.pdg import charge_of

Particle = tuple[int, float, float, float]


def columns(events: Sequence[Sequence[Particle]]) -> dict[str, ak.Array]:
    counts = np.array([len(event) for event in events], dtype=np.int64)
    flat = np.array([particle for event in events for particle in event], dtype=np.float64).reshape(-1, 4)
    pdg = flat[:, 0].astype(np.int64)
    energy = flat[:, 1]
    theta, phi = np.radians(flat[:, 2]), np.radians(flat[:, 3])
    columns = {
        "pdg": pdg,
        "charge": np.array([charge_of(int(code)) for code in pdg]),
        "energy": energy,
        "px": energy * np.sin(theta) * np.cos(phi),
        "py": energy * np.sin(theta) * np.sin(phi),
        "pz": energy * np.cos(theta),
    }
    return {name: ak.unflatten(values, counts) for name, values in columns.items()}


def records(events: Sequence[Sequence[Particle]]) -> ak.Array:
    return make_particles(**columns(events))


make_records = pytest.fixture(lambda: records, scope="session")
make_table = pytest.fixture(lambda: lambda events: ParticleTable.from_records(records(events)), scope="session")


@pytest.fixture(scope="session")
def make_reco() -> Callable[..., Reconstruction]:
    """Makes a reconstruction of particles; keywords are of `Reconstruction`."""

    def make(particles: Sequence[Sequence[Particle]], **options) -> Reconstruction:
        given = {"event": np.arange(len(particles)), "flags": np.zeros(len(particles), np.uint32)} | options
        return Reconstruction(particles=records(particles), **given)

    return make


@pytest.fixture(scope="session")
def make_events() -> Callable[..., Events]:
    """Makes events of true particles, each, or those `seen`, with all its energy in one hit.

    `status` and `parent` are of `make_truth`; other keywords of `Events`.
    """

    def make(particles: Sequence[Sequence[Particle]], *, status=None, parent=None, seen=None, **parts) -> Events:
        truth = columns(particles)
        energy = truth.pop("energy")
        hits = {name: 1900 * truth[f"p{name}"] / energy for name in "xyz"}
        index = ak.local_index(energy)
        particle = index if seen is None else ak.Array(seen)
        made = {} if parent is None else {"parent": parent}
        return Events(
            detector=load_detector("ild_g4"),
            hits=make_hits(energy=energy[particle], **{name: values[particle] for name, values in hits.items()}),
            truth=make_truth(**truth, mass=0 * energy, status=1 + 0 * index if status is None else status, **made),
            hit_links=make_links(source=ak.local_index(particle), particle=particle),
            path="truth.root",
            **parts,
        )

    return make
