"""Files of detectors that nobody has built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Content = dict[str, Any]

ENCODING = "system:0:5,layer:5:8,x:32:-16,y:48:-16"
N_EVENTS, N_HITS = 4, 300

DEPTHS = {"ECAL": (0.0, 20, 6.0), "HCAL": (180.0, 25, 30.0)}
"""Begin behind the ECAL's front, number and spacing of layers, mm."""


@pytest.fixture
def made_up() -> Callable[..., Content]:
    """Content of a file of a detector with a barrel of `sides` sides (0: a cylinder) that begins at `radius`, and
    endcaps from `z` on (mm), in a field (T). Collections are named as in CLD, hits are spread evenly."""

    def make(
        *, sides: int = 8, radius: float = 1600.0, z: float = 2000.0, b_field: float = 3.0, phase: float = 0.0
    ) -> Content:
        rng = np.random.default_rng([sides, int(radius)])
        content: Content = {}
        for name, (begin, layers, spacing) in DEPTHS.items():
            barrel = [_barrel(rng, sides, phase, radius + begin, layers, spacing, z) for _ in range(N_EVENTS)]
            endcap = [_endcap(rng, radius, z + begin, layers, spacing) for _ in range(N_EVENTS)]
            for region, events in {"Barrel": barrel, "Endcap": endcap}.items():
                _add_hits(content, f"{name}{region}", events, rng)
        _add_tracks(content, rng, b_field)
        return content

    return make


@pytest.fixture
def write_made_up(write: Callable[..., Path]) -> Callable[..., Path]:
    """Write such content with ids and cell encodings of its collections, or as the keywords say."""

    def write_file(content: Content, layout: str = "new", **options: Any) -> Path:
        names = sorted({key.split(".")[0] for key in content if not key.startswith("_")})
        hits = [name for name in names if f"{name}.cellID" in content]
        defaults = {"ids": _ids(names), "encodings": dict.fromkeys(hits, ENCODING)}
        return write(content, layout, **(defaults | options))

    return write_file


def _ids(names: list[str]) -> dict[str, int]:
    return dict(IDS) | {name: 100 + number for number, name in enumerate(names) if name not in IDS}


IDS = {"Tracks": 14, "MCParticles": 15}


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
    content[f"{name}.cellID"] = [(event[0] << 5).tolist() for event in events]
    content[f"{name}.energy"] = [rng.exponential(0.01, N_HITS).tolist() for _ in events]
    content[f"{name}.time"] = [[0.5] * N_HITS for _ in events]
    for number, axis in enumerate("xyz"):
        content[f"{name}.position.{axis}"] = [event[number + 1].tolist() for event in events]


def _add_tracks(content: Content, rng: Any, b_field: float) -> None:
    """Twelve pions an event, each with a track that is linked to it."""
    n = 12
    pt, phi, charge = (rng.uniform(1, 10, (N_EVENTS, n)), rng.uniform(-3, 3, (N_EVENTS, n)), rng.choice([-1, 1], n))
    slope = rng.normal(0, 1, (N_EVENTS, n))
    omega = charge * 0.299792458e-3 * b_field / pt * rng.normal(1, 0.003, (N_EVENTS, n))
    index = [list(range(n))] * N_EVENTS
    zeros, ones = [[0.0] * n] * N_EVENTS, [[1] * n] * N_EVENTS
    content |= {
        "MCParticles.PDG": (211 * charge * np.ones((N_EVENTS, 1), int)).tolist(),
        "MCParticles.generatorStatus": ones,
        "MCParticles.charge": (charge * np.ones((N_EVENTS, 1))).tolist(),
        "MCParticles.mass": [[0.13957] * n] * N_EVENTS,
        "MCParticles.momentum.x": (pt * np.cos(phi)).tolist(),
        "MCParticles.momentum.y": (pt * np.sin(phi)).tolist(),
        "MCParticles.momentum.z": (pt * slope).tolist(),
        "Tracks.trackStates_begin": index,
        "Tracks.trackStates_end": [[number + 1 for number in range(n)]] * N_EVENTS,
        "_Tracks_trackStates.location": ones,
        "_Tracks_trackStates.D0": zeros,
        "_Tracks_trackStates.Z0": zeros,
        "_Tracks_trackStates.phi": phi.tolist(),
        "_Tracks_trackStates.omega": omega.tolist(),
        "_Tracks_trackStates.tanLambda": slope.tolist(),
        "TrackLinks.weight": ones,
        "_TrackLinks_from.index": index,
        "_TrackLinks_from.collectionID": [[IDS["Tracks"]] * n] * N_EVENTS,
        "_TrackLinks_to.index": index,
        "_TrackLinks_to.collectionID": [[IDS["MCParticles"]] * n] * N_EVENTS,
    }
    content |= {f"_Tracks_trackStates.referencePoint.{axis}": zeros for axis in "xyz"}
