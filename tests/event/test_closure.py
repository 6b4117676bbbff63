"""Tracks and what they leave: trails, momenta, the scale of hadrons."""

import dataclasses

import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.closure import NARROW, TrackDeposits
from pflow.event.events import Events
from pflow.event.schema import make_hits, make_tracks
from pflow.io.open import read_events
from pflow.physics.detector import load_detector


def hadrons(energy, angle, subdetector, p=(10.0,), entry=(0.0,)):
    """Scale that each isolated track along x gives, with hits and entries at `angle` and `entry` in azimuth, rad."""
    detector, angle, entry, p = load_detector("ild_g4"), np.array(angle), np.array(entry), np.array(p)
    x, y = 2000.0 * np.cos(angle), 2000.0 * np.sin(angle)
    place = {"calo_x": [1805.0 * np.cos(entry)], "calo_y": [1805.0 * np.sin(entry)], "calo_z": [0.0 * entry]}
    tracks = make_tracks(b_field=3.5, px=[p], py=[0.0 * p], pz=[0.0 * p], charge=[np.ones(len(p))], **place)
    hits = make_hits(energy=[energy], x=[x], y=[y], z=[0.0 * x], subdetector=[subdetector])
    return TrackDeposits.of(Events(detector=detector, hits=hits, tracks=tracks)).hadron_scales().tolist()


def test_isolated_hadrons_give_the_scale_of_the_hcal():
    """With 2 GeV in the ECAL a hadron of 10 GeV lacks 5.3 of its 7.3 GeV; no scale changes what is selected here."""
    ecal, hcal = 0, 2
    assert hadrons([2.0, 3.0, 2.0], [0.0, 0.05, -0.05], [ecal, hcal, hcal]) == [pytest.approx(5.3 / 5.0)]
    assert hadrons([2.0, 5.0, 0.9], [0.0, 0.0, 1.5 * NARROW], [ecal, hcal, ecal]) == [pytest.approx(5.3 / 5.0)]
    assert hadrons([2.0, 5.0, 1.1], [0.0, 0.0, 1.5 * NARROW], [ecal, hcal, ecal]) == [], "a neighbour"
    assert hadrons([2.0, 5.0, 9.9], [0.0, 0.0, 2.5 * NARROW], [ecal, hcal, ecal]) == [pytest.approx(5.3 / 5.0)]
    assert hadrons([10.0, 1.9], [0.0, 0.0], [ecal, hcal]) == [], "an electron, or a muon"
    assert hadrons([8.9, 2.5], [0.0, 0.0], [ecal, hcal]) == [pytest.approx(-1.6 / 2.5)]
    assert hadrons([9.1, 2.5], [0.0, 0.0], [ecal, hcal]) == [], "a photon beside it"
    for p in (2.9, 51.0):
        assert hadrons([1.0, 0.5 * p], [0.0, 0.0], [ecal, hcal], p=(p,)) == []
    assert hadrons([2.0, 5.0], [0.0, 0.0], [ecal, hcal], p=(10.0, 10.0), entry=(0.0, 1.5 * NARROW)) == []


@pytest.mark.parametrize(("folder", "name"), [("g4", "ild_g4"), ("cld_g4", "cld")])
def test_the_scale_is_measured_whatever_the_calibration_of_the_file(data_dir, folder, name):
    events = read_events(data_dir / folder / "multi_train.root", entry_stop=800)
    (described,) = {part.hadron_scale for part in load_detector(name).calorimeters if part.kind == "hcal"}
    is_hcal = np.array([part.kind == "hcal" for part in events.detector.calorimeters])
    columns = jagged.columns(events.hits)
    scales = []
    for factor in (0.4, 1.0, 2.0):
        energy = columns["energy"] * np.where(is_hcal[columns["subdetector"]], factor, 1.0)
        hits = jagged.replaced(events.hits, {"energy": energy.astype(np.float32)})
        values = TrackDeposits.of(dataclasses.replace(events, hits=hits)).hadron_scales()
        assert len(values) > 150
        scales.append(factor * np.median(values))
    assert scales[1] == pytest.approx(described, abs=0.06)
    assert scales == pytest.approx([scales[1]] * 3, rel=0.02)
