import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.config import from_plain, to_plain
from pflow.event.events import Events
from pflow.event.scales import SampleScales, Scales, measure
from pflow.event.schema import make_hits
from pflow.io.open import read_events
from pflow.physics.detector import load_detector


def test_a_sample_and_few_objects(cld_rec):
    sample = measure(cld_rec).sample()
    assert sample.max_energy == pytest.approx(max(np.sum(hits.energy) for hits in cld_rec.hits))
    assert sample.b_field == pytest.approx(2.0, rel=1e-4)
    assert sample.trails["ecal_cell"] == pytest.approx(0.0066, rel=0.1)  # GeV, of layers of 0.55 radiation lengths
    few = dataclasses.replace(cld_rec.without_truth(), tracks=cld_rec.tracks[:, :1], hits=cld_rec.hits[:, :10])
    sample = measure(few).sample()
    assert (sample.b_field, sample.trails) == (None, {})


def test_scales_of_earlier_models_are_read(cld_rec):
    """They have a ratio of energies near tracks, and energies of hits, that nothing reads."""
    sample = measure(cld_rec).sample()
    assert (
        from_plain(SampleScales, to_plain(sample) | {"near_tracks": 0.8, "ecal_hit": 0.01, "hcal_hit": None}, "sample")
        == sample
    )


def test_opening_and_number_of_hits():
    """Two hits of equal energy 60 degrees apart, then one hit alone, then two back to back, which decide the sample."""
    energy = ak.Array([[1.0, 1.0], [5.0], [1.0, 1.0]])
    x = [[2000.0, 1000.0], [0.0], [2000.0, -2000.0]]
    y = [[0.0, 1000.0 * np.sqrt(3)], [2000.0], [0.0, 0.0]]
    sample = measure(Events(detector=load_detector("ild_g4"), hits=make_hits(energy=energy, x=x, y=y, z=0 * energy)))
    assert sample.sample().max_hits == 2
    assert sample.sample().opening == pytest.approx(np.quantile([np.pi / 6, 0, np.pi / 2], 0.98), rel=1e-6)


def test_chunks_of_several_detectors_add_up(sample_dir, cld_rec):
    ild = measure(read_events(sample_dir / "zqq_test_small.root"))
    cld = measure(cld_rec)
    both = ild + cld + Scales()
    assert (both.detector, ild.detector.name, len(both.paths), both.n_events) == (None, "ild_g4", 2, 11)
    assert both.sample().max_energy == max(ild.sample().max_energy, cld.sample().max_energy)
    assert both.sample().max_hits == max(ild.sample().max_hits, cld.sample().max_hits)
    assert both.table("tracks")["file"].tolist() == [0] * len(ild.table("tracks")["file"]) + [1] * len(
        cld.table("tracks")["file"]
    )
