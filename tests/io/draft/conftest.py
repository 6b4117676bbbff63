"""Files of detectors that nobody has built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pflow.io.edm4hep.podio import collection_id

Content = dict[str, Any]

ENCODING = "system:0:5,layer:5:8,x:32:-16,y:48:-16"
N_EVENTS, N_HITS = 4, 300

DEPTHS = {"ECAL": (0.0, 20, 6.0), "HCAL": (180.0, 25, 30.0)}
"""Begin behind the ECAL's front, number and spacing of layers, mm."""


@pytest.fixture
def made_up() -> Callable[..., Content]:
    """Content of a file of a detector with a barrel of `sides` sides (0: a cylinder) that begins at `radius`, and
    endcaps from `z` on (mm), in a field (T). Collections are named as in CLD, hits are spread evenly."""

    def make(*, sides=8, radius=1600.0, z=2000.0, b_field=3.0, phase=0.0) -> Content:
        rng = np.random.default_rng([sides, int(radius)])
        content: Content = {}
        for name, (begin, layers, spacing) in DEPTHS.items():
            barrel = [_barrel(rng, sides, phase, radius + begin, layers, spacing, z) for _ in range(N_EVENTS)]
            endcap = [_endcap(rng, radius, z + begin, layers, spacing) for _ in range(N_EVENTS)]
            for region, events in {"Barrel": barrel, "Endcap": endcap}.items():
                _add_hits(content, f"{name}{region}", events, rng)
        return content | _tracks(rng, b_field)

    return make


@pytest.fixture
def write_made_up(write: Callable[..., Path]) -> Callable[..., Path]:
    """Write such content with cell encodings of its collections, or as the keywords say."""

    def write_file(content: Content, layout: str = "new", **options: Any) -> Path:
        hits = [key.removesuffix(".cellID") for key in content if key.endswith(".cellID")]
        return write(content, layout, **({"ids": {}, "encodings": dict.fromkeys(hits, ENCODING)} | options))

    return write_file


def _barrel(rng: Any, sides: int, phase: float, front: float, layers: int, spacing: float, z: float) -> Any:
    layer = rng.integers(0, layers, N_HITS)
    distance = front + (layer + 0.5) * spacing
    if sides:
        normal = phase + 2 * np.pi / sides * rng.integers(0, sides, N_HITS)
        across = rng.uniform(-0.99, 0.99, N_HITS) * distance * np.tan(np.pi / sides)
    else:
        normal, across = rng.uniform(-np.pi, np.pi, N_HITS), 0.0
    x = distance * np.cos(normal) - across * np.sin(normal)
    y = distance * np.sin(normal) + across * np.cos(normal)
    return layer, x, y, np.round(rng.uniform(-0.9 * z, 0.9 * z, N_HITS) / 5) * 5


def _endcap(rng: Any, radius: float, front: float, layers: int, spacing: float) -> Any:
    layer = rng.integers(0, layers, N_HITS)
    x, y = (np.round(rng.uniform(-radius, radius, N_HITS) / 5) * 5 for _ in range(2))
    return layer, x, y, rng.choice([-1, 1], N_HITS) * (front + (layer + 0.5) * spacing)


def _add_hits(content: Content, name: str, events: list[Any], rng: Any) -> None:
    layers, *positions = zip(*events, strict=True)
    content[f"{name}.cellID"] = np.array(layers) << 5
    content[f"{name}.energy"] = rng.exponential(0.01, (N_EVENTS, N_HITS))
    content[f"{name}.time"] = np.full((N_EVENTS, N_HITS), 0.5)
    content |= {f"{name}.position.{axis}": np.array(values) for axis, values in zip("xyz", positions, strict=True)}


def _tracks(rng: Any, b_field: float) -> Content:
    """Twelve pions an event, each with a track that is linked to it."""
    shape = N_EVENTS, 12
    pt, phi, charge = rng.uniform(1, 10, shape), rng.uniform(-3, 3, shape), rng.choice([-1, 1], shape[1])
    slope = rng.normal(0, 1, shape)
    omega = charge * 0.299792458e-3 * b_field / pt * rng.normal(1, 0.003, shape)
    momentum = {"momentum.x": pt * np.cos(phi), "momentum.y": pt * np.sin(phi), "momentum.z": pt * slope}
    state = {"location": 1, "phi": phi, "omega": omega, "tanLambda": slope}
    state |= dict.fromkeys(("D0", "Z0", *(f"referencePoint.{axis}" for axis in "xyz")), 0)
    index = np.arange(shape[1])
    members = {
        "MCParticles": {"PDG": 211 * charge, "generatorStatus": 1, "charge": charge, "mass": 0.13957, **momentum},
        "Tracks": {"trackStates_begin": index, "trackStates_end": index + 1},
        "_Tracks_trackStates": state,
        "TrackLinks": {"weight": 1},
        "_TrackLinks_from": {"index": index, "collectionID": collection_id("Tracks")},
        "_TrackLinks_to": {"index": index, "collectionID": collection_id("MCParticles")},
    }
    return {f"{name}.{key}": np.broadcast_to(x, shape) for name, keys in members.items() for key, x in keys.items()}
