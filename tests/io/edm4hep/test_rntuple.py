"""The same forty events from an EDM4hep RNTuple and from a flat TTree."""

from __future__ import annotations

from pathlib import Path

import awkward as ak
import numpy as np
import pytest

from pflow.event.events import Events
from pflow.io.open import read_events


@pytest.fixture(scope="module")
def rntuple(data_dir: Path) -> Events:
    return read_events(data_dir / "edm4hep" / "ild_g4_zqq_rntuple.root")


@pytest.fixture(scope="module")
def flat(data_dir: Path) -> Events:
    return read_events(data_dir / "g4" / "zqq_test.root", entry_stop=40)


def test_both_have_the_same_events_of_the_same_detector(rntuple, flat):
    assert len(rntuple) == 40
    assert rntuple.detector == flat.detector
    np.testing.assert_array_equal(rntuple.event, flat.event)


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("hits", ["energy", "time", "subdetector", "layer", ("position", "x"), ("position", "y"), ("position", "z")]),
        ("truth", ["pdg", "charge", "mass", "energy", "px", "py", "pz", "status", "parent"]),
        ("truth", [("vertex", "x"), ("vertex", "y"), ("vertex", "z")]),
        ("tracks", ["charge"]),
    ],
)
def test_numbers_are_equal(rntuple, flat, part, fields):
    for field in fields:
        assert ak.array_equal(getattr(rntuple, part)[field], getattr(flat, part)[field]), field


@pytest.mark.parametrize("name", ["hit_links", "track_links"])
def test_links_are_equal(rntuple, flat, name):
    links, expected = getattr(rntuple, name), getattr(flat, name)
    assert ak.array_equal(links.source, expected.source)
    assert ak.array_equal(links.particle, expected.particle)
    assert ak.all(abs(links.weight - expected.weight) < 1e-6)


def test_track_momenta_are_equal(rntuple, flat):
    """The one file has momenta, the other helix parameters in float32."""
    size = flat.tracks.momentum.mag
    for axis in ("px", "py", "pz"):
        assert ak.all(abs(rntuple.tracks.momentum[axis] - flat.tracks.momentum[axis]) < 1e-5 * size)


def test_tracks_reach_the_calorimeter_at_the_same_place(rntuple, flat):
    for axis in ("x", "y", "z"):
        difference = abs(rntuple.tracks.calo_position[axis] - flat.tracks.calo_position[axis])
        assert ak.all((difference < 0.01) | np.isnan(flat.tracks.calo_position[axis]))
