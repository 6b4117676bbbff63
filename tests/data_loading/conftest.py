"""Small files of random photons: event i of a file that begins at n has the number n + i and (n + i) % 7 + 2 hits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pflow.event.build import make_hits, make_links, make_truth
from pflow.event.events import Events
from pflow.io.events_root import write_events
from pflow.physics.detector import load_detector

MakeEvents = Callable[..., Events]


def photons(n: int, first: int = 0, *, energy: float = 10.0) -> Events:
    """`n` events with one photon each, whose energy, GeV, is at most `energy`."""
    rng = np.random.default_rng([first, n])
    counts = [(first + i) % 7 + 2 for i in range(n)]
    direction = rng.normal(size=(n, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    energies = energy * rng.uniform(0.5, 1.0, n)
    position = [1850 * direction[i] + rng.normal(0, 5, (counts[i], 3)) for i in range(n)]
    return Events(
        detector=load_detector("ild_g4"),
        event=np.arange(first, first + n),
        hits=make_hits(
            energy=[[energies[i] / counts[i]] * counts[i] for i in range(n)],
            **{axis: [p[:, k].tolist() for p in position] for k, axis in enumerate("xyz")},
        ),
        truth=make_truth(
            pdg=[[22]] * n,
            charge=[[0.0]] * n,
            mass=[[0.0]] * n,
            **{key: (energies * direction[:, k])[:, np.newaxis] for k, key in enumerate(("px", "py", "pz"))},
        ),
        hit_links=make_links(
            source=[list(range(count)) for count in counts], particle=[[0] * count for count in counts]
        ),
    )


@pytest.fixture(scope="session")
def make_photons() -> MakeEvents:
    return photons


@pytest.fixture(scope="session")
def train_files(tmp_path_factory) -> list[str]:
    """Two files: events 0 to 39 and 40 to 69."""
    folder = tmp_path_factory.mktemp("train")
    for name, first, n in (("a", 0, 40), ("b", 40, 30)):
        write_events(folder / f"{name}.root", photons(n, first))
    return [str(folder / "a.root"), str(folder / "b.root")]


@pytest.fixture(scope="session")
def val_file(tmp_path_factory) -> str:
    """Events 1000 to 1009, a hundred times the energy of the training events."""
    path: Path = tmp_path_factory.mktemp("val") / "val.root"
    write_events(path, photons(10, 1000, energy=1000.0))
    return str(path)
