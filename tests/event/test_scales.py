import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.event.events import Events
from pflow.event.scales import SampleScales, joined
from pflow.event.schema import make_hits
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
