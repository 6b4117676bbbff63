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


@pytest.mark.parametrize("field", ["energy", "time", "subdetector", "layer"])
def test_hits_are_equal(rntuple, flat, field):
    assert ak.array_equal(rntuple.hits[field], flat.hits[field])


@pytest.mark.parametrize("axis", ["x", "y", "z"])
def test_positions_are_equal(rntuple, flat, axis):
    assert ak.array_equal(rntuple.hits.position[axis], flat.hits.position[axis])


@pytest.mark.parametrize("name", ["hit_links", "track_links"])
def test_links_are_equal(rntuple, flat, name):
    links, expected = getattr(rntuple, name), getattr(flat, name)
    assert ak.array_equal(links.source, expected.source)
    assert ak.array_equal(links.particle, expected.particle)
    assert ak.all(abs(links.weight - expected.weight) < 1e-6)


@pytest.mark.parametrize("field", ["pdg", "charge", "mass", "energy", "status", "parent"])
def test_truth_is_equal(rntuple, flat, field):
    assert rntuple.truth is not None
    assert flat.truth is not None
    assert ak.array_equal(rntuple.truth[field], flat.truth[field])


@pytest.mark.parametrize(("vector", "axes"), [("momentum", ("px", "py", "pz")), ("vertex", ("x", "y", "z"))])
def test_truth_vectors_are_equal(rntuple, flat, vector, axes):
    assert rntuple.truth is not None
    assert flat.truth is not None
    for axis in axes:
        assert ak.array_equal(rntuple.truth[vector][axis], flat.truth[vector][axis])


def test_track_momenta_and_charges_are_equal(rntuple, flat):
    """The one file has momenta, the other helix parameters in float32."""
    assert rntuple.tracks is not None
    assert flat.tracks is not None
    assert ak.array_equal(rntuple.tracks.charge, flat.tracks.charge)
    size = flat.tracks.momentum.mag
    for axis in ("px", "py", "pz"):
        assert ak.all(abs(rntuple.tracks.momentum[axis] - flat.tracks.momentum[axis]) < 1e-5 * size)


def test_tracks_reach_the_calorimeter_at_the_same_place(rntuple, flat):
    assert rntuple.tracks is not None
    assert flat.tracks is not None
    for axis in ("x", "y", "z"):
        difference = abs(rntuple.tracks.calo_position[axis] - flat.tracks.calo_position[axis])
        assert ak.all((difference < 0.01) | np.isnan(flat.tracks.calo_position[axis]))
