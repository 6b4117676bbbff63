import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.scales import NARROW, Entries, SampleScales, joined
from pflow.event.schema import make_hits, make_tracks
from pflow.io.open import read_events
from pflow.physics.detector import load_detector


def test_scales_of_a_sample_and_of_few_objects(cld_rec):
    scales = SampleScales.of(cld_rec)
    energy = np.asarray(cld_rec.hits.energy[cld_rec.hits.subdetector <= 1][0])
    assert scales.ecal_hit == pytest.approx(float(np.median(energy)), rel=0.2)
    assert scales.max_energy == pytest.approx(max(np.sum(hits.energy) for hits in cld_rec.hits))
    assert scales.b_field == pytest.approx(2.0, rel=1e-4)
    assert 0.5 < scales.near_tracks < 1.5
    scales = SampleScales.of(dataclasses.replace(cld_rec, tracks=cld_rec.tracks[:, :1], hits=cld_rec.hits[:, :10]))
    assert (scales.ecal_hit, scales.hcal_hit, scales.near_tracks, scales.b_field) == (None,) * 4


def test_opening_and_number_of_hits():
    """Two hits of equal energy 60 degrees apart, then one hit alone, then two back to back."""
    energy = ak.Array([[1.0, 1.0], [5.0], [1.0, 1.0]])
    x = [[2000.0, 1000.0], [0.0], [2000.0, -2000.0]]
    y = [[0.0, 1000.0 * np.sqrt(3)], [2000.0], [0.0, 0.0]]
    hits = make_hits(energy=energy, x=x, y=y, z=0 * energy)
    scales = SampleScales.of(Events(detector=load_detector("ild_g4"), hits=hits))
    assert (scales.max_hits, scales.opening) == (2, pytest.approx(np.pi / 6, rel=1e-6))


def test_samples_are_joined_by_medians_and_largest_values():
    rest = {"hcal_hit": None, "near_tracks": 1.0, "b_field": 2.0}
    pair = [SampleScales(ecal_hit=e, max_energy=10 * e, max_hits=e, opening=0.1 * e, **rest) for e in (1, 3)]
    assert joined(pair) == SampleScales(ecal_hit=2.0, max_energy=30, max_hits=3, opening=3 * 0.1, **rest)


def hadrons(energy, angle, subdetector, p=(10.0,), entry=(0.0,)):
    """Scale that each isolated track along x gives, with hits and entries at `angle` and `entry` in azimuth, rad."""
    detector, angle, entry, p = load_detector("ild_g4"), np.array(angle), np.array(entry), np.array(p)
    x, y = 2000.0 * np.cos(angle), 2000.0 * np.sin(angle)
    place = {"calo_x": [1805.0 * np.cos(entry)], "calo_y": [1805.0 * np.sin(entry)], "calo_z": [0.0 * entry]}
    tracks = make_tracks(b_field=3.5, px=[p], py=[0.0 * p], pz=[0.0 * p], charge=[np.ones(len(p))], **place)
    hits = make_hits(energy=[energy], x=[x], y=[y], z=[0.0 * x], subdetector=[subdetector])
    return Entries.of(Events(detector=detector, hits=hits, tracks=tracks), most=10).hadron_scales().tolist()


def test_isolated_hadrons_give_the_scale_of_the_hcal():
    """With 2 GeV in the ECAL a hadron of 10 GeV lacks 5.3 of its 7.3 GeV; no scale changes what is selected here."""
    ecal, hcal = 0, 2
    assert hadrons([2.0, 3.0, 2.0], [0.0, 0.05, -0.05], [ecal, hcal, hcal]) == [pytest.approx(5.3 / 5.0)]
    assert hadrons([2.0, 5.0, 0.9], [0.0, 0.0, 1.5 * NARROW], [ecal, hcal, ecal]) == [pytest.approx(5.3 / 5.0)]
    assert hadrons([2.0, 5.0, 1.1], [0.0, 0.0, 1.5 * NARROW], [ecal, hcal, ecal]) == [], "a neighbour"
    assert hadrons([2.0, 5.0, 9.9], [0.0, 0.0, 2.5 * NARROW], [ecal, hcal, ecal]) == [pytest.approx(5.3 / 5.0)]
    assert hadrons([10.0, 1.9], [0.0, 0.0], [ecal, hcal]) == [], "an electron, or a muon"
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
        values = Entries.of(dataclasses.replace(events, hits=hits), most=10**5).hadron_scales()
        assert len(values) > 150
        scales.append(factor * np.median(values))
    assert scales[1] == pytest.approx(described, abs=0.06)
    assert scales == pytest.approx([scales[1]] * 3, rel=0.02)
