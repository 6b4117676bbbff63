"""The same forty events from an EDM4hep RNTuple and from a flat TTree."""

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


def test_events_and_numbers_are_equal(rntuple, flat):
    assert len(rntuple) == 40
    assert rntuple.detector == flat.detector
    np.testing.assert_array_equal(rntuple.event, flat.event)
    for field in ("energy", "time", "subdetector", "layer", *(("position", axis) for axis in "xyz")):
        assert ak.array_equal(rntuple.hits[field], flat.hits[field]), field
    particle = ("pdg", "charge", "rest_mass", "energy", "px", "py", "pz", "status", "parent")
    for field in (*particle, *(("vertex", axis) for axis in "xyz")):
        assert ak.array_equal(rntuple.truth[field], flat.truth[field]), field
    for links, expected in ((rntuple.hit_links, flat.hit_links), (rntuple.track_links, flat.track_links)):
        assert ak.array_equal(links.source, expected.source)
        assert ak.array_equal(links.particle, expected.particle)
        assert ak.all(abs(links.weight - expected.weight) < 1e-6)


def test_tracks_agree(rntuple, flat):
    """The one file has momenta, the other helix parameters in float32."""
    ours, theirs = rntuple.tracks, flat.tracks
    assert ak.array_equal(ours.charge, theirs.charge)
    for axis in "xyz":
        difference = abs(ours.momentum[f"p{axis}"] - theirs.momentum[f"p{axis}"])
        assert ak.all(difference < 1e-5 * theirs.momentum.mag)
        place = theirs.calo_position[axis]
        assert ak.all((abs(ours.calo_position[axis] - place) < 0.01) | np.isnan(place))
