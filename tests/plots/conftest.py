"""Events made by hand for the displays."""

from __future__ import annotations

import awkward as ak
import numpy as np
import pytest

from pflow.event.build import make_hits, make_links, make_particles, make_tracks, make_truth
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.physics.detector import load_detector


@pytest.fixture
def event() -> Events:
    """One event: a 10 GeV photon along x with three hits, a 5 GeV pi+ along y with two, and one hit of nobody."""
    return Events(
        detector=load_detector("ild_g4"),
        hits=make_hits(
            energy=[[3.0, 2.0, 1.0, 0.5, 0.25, 0.125]],
            x=[[1810.0, 1820.0, 1830.0, 230.0, 240.0, -1900.0]],
            y=[[0.0, 0.0, 10.0, 1810.0, 2100.0, 0.0]],
            z=[[0.0, 5.0, 0.0, 0.0, 0.0, 0.0]],
            time=[[6.0] * 6],
            subdetector=[[0, 0, 0, 0, 2, 0]],
            layer=[[0, 1, 2, 0, 1, 3]],
        ),
        tracks=make_tracks(b_field=3.5, px=[[0.0]], py=[[5.0]], pz=[[0.0]], charge=[[1.0]]),
        truth=make_truth(
            pdg=[[211, 22]],
            mass=[[0.13957, 0.0]],
            px=[[0.0, 10.0]],
            py=[[5.0, 0.0]],
            pz=[[0.0, 0.0]],
            charge=[[1.0, 0.0]],
            vx=[[0.0, 0.0]],
            vy=[[0.0, 0.0]],
            vz=[[0.0, 0.0]],
        ),
        hit_links=make_links(
            source=[[0, 1, 2, 3, 3, 4]], particle=[[1, 1, 1, 0, 1, 0]], weight=[[1.0, 1.0, 1.0, 0.7, 0.3, 1.0]]
        ),
        track_links=make_links(source=[[0]], particle=[[0]], weight=[[1.0]]),
        path="folder/hand.root",
    )


@pytest.fixture
def empty_event() -> Events:
    """One event without any hits, tracks or truth in a file that holds none of the latter."""
    none = ak.values_astype(ak.Array([[0.0]])[:, :0], np.float32)
    return Events(detector=load_detector("cld"), hits=make_hits(energy=none, x=none, y=none, z=none))


@pytest.fixture
def reconstruction() -> Reconstruction:
    """Two particles for `event`: a photon along x and a pi+ along y."""
    particles = make_particles(
        pdg=[[22, 211]],
        charge=[[0.0, 1.0]],
        energy=[[9.0, 5.1]],
        px=[[9.0, 0.0]],
        py=[[0.0, 5.1]],
        pz=[[0.0, 0.0]],
    )
    return Reconstruction(particles=particles, event=np.array([0]), flags=np.array([0], np.uint32))
