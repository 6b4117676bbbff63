import numpy as np
import pytest

from pflow.errors import ConfigError
from pflow.io.draft import place_of
from pflow.io.draft_measure import CELL, HitSample


@pytest.mark.parametrize(
    ("kind", "region", "names"),
    [  # of CLD and CLIC, ILD, SiD, ALLEGRO and ePIC
        ("ecal", "barrel", "ECALBarrel ECalBarrelModuleThetaMergedPositioned EcalBarrelScFiRecHits EmCalBarrel"),
        ("ecal", "endcap", "ECalEndcapCollection EcalEndcapNRecHits"),
        ("ecal", "other", "ECalPlugCollection EcalEndcapRingCollectionRec"),
        ("hcal", "endcap", "HcalEndcapsCollectionRec DigitalHCALEndcap"),
        ("hcal", "other", "HCALOther HCalRingCollection"),
        ("muon", "other", "YokeBarrelCollection MuonTaggerBarrelPhiThetaPositioned MUON"),
        ("lumi", "other", "LumiCalCollection BeamCalHits EcalLumiSpecRecHits"),
        ("", "", "SomeHits HAD_PLATES LFHCALRecHits"),
    ],
)
def test_names_tell_the_calorimeter(kind, region, names):
    for name in names.split():
        assert place_of(sample(name), {}) == ((kind, region) if kind else None), name


NOWHERE = np.zeros((0, 3))


def sample(name: str, position: np.ndarray = NOWHERE) -> HitSample:
    n = len(position)
    cell = np.zeros(n, CELL)
    cell["id"] = np.arange(n)
    hits = {"cell": cell, "position": position, "energy": np.ones(n), "time": np.zeros(n), "layer": None}
    return HitSample(name=name, simulated=False, **hits)


def endcap(front: float, inner: float, outer: float, *, seed: int = 0) -> np.ndarray:
    """400 hits in 20 layers, all lengths in mm."""
    rng = np.random.default_rng(seed)
    phi, radius = rng.uniform(-np.pi, np.pi, 400), rng.uniform(inner, outer, 400)
    z = (front + 5.0 * rng.integers(0, 20, 400)) * rng.choice([-1, 1], 400)
    return np.stack([radius * np.cos(phi), radius * np.sin(phi), z], axis=1)


def test_hits_close_to_the_beam_make_a_forward_calorimeter():
    assert place_of(sample("HcalEndcapZDC", endcap(35000, 40, 300)), {}) == ("lumi", "endcap")
    assert place_of(sample("HcalEndcap", endcap(2200, 300, 2500)), {}) == ("hcal", "endcap")


def test_a_given_place_goes_before_all():
    hits = sample("EcalBarrel", endcap(35000, 40, 300))
    assert place_of(hits, {"EcalBarrel": "ecal_endcap"}) == ("ecal", "endcap")
    for wrong in ("ecal", "ecal_middle", "tracker_barrel"):
        with pytest.raises(ConfigError, match=f"--place EcalBarrel={wrong}: expected e.g. EcalBarrel=ecal_barrel"):
            place_of(hits, {"EcalBarrel": wrong})
