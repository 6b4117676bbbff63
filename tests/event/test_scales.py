import dataclasses

import numpy as np
import pytest

from pflow.event.scales import SampleScales, joined
from pflow.io.open import read_events


@pytest.fixture(scope="module")
def events(cld_path):
    return read_events(cld_path)


def test_scales_of_a_sample(events):
    scales = SampleScales.of(events)
    energy = np.asarray(events.hits.energy[events.hits.subdetector <= 1][0])
    assert scales.ecal_hit == pytest.approx(float(np.median(energy)), rel=0.2)
    assert scales.max_energy == pytest.approx(max(np.sum(hits.energy) for hits in events.hits))
    assert scales.b_field == pytest.approx(2.0, rel=1e-4)
    assert 0.5 < scales.near_tracks < 1.5


def test_what_too_few_objects_show_is_not_known(events):
    scales = SampleScales.of(dataclasses.replace(events, tracks=events.tracks[:, :1], hits=events.hits[:, :10]))
    assert (scales.ecal_hit, scales.hcal_hit, scales.near_tracks, scales.b_field) == (None,) * 4


def test_samples_are_joined_by_medians():
    pair = [SampleScales(ecal_hit=e, hcal_hit=None, max_energy=10 * e, near_tracks=1.0, b_field=2.0) for e in (1, 3)]
    assert joined(pair) == SampleScales(ecal_hit=2.0, hcal_hit=None, max_energy=30, near_tracks=1.0, b_field=2.0)
