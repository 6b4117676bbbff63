import numpy as np
import pytest

from pflow.errors import ConfigError
from pflow.io.draft.collect import CELL, Place, by_code, by_name, place_samples
from pflow.io.draft.measure import HitSample


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
def test_names_of_collections(kind, region, names):
    for name in names.split():
        assert by_name(name) == (Place(kind, region, "name") if kind else None), name


@pytest.mark.parametrize(
    ("codes", "kind", "region"),
    [
        ((1010, 11010), "ecal", "barrel"),  # layout 1, ECAL, electromagnetic; layers 0 and 1
        ((2021,), "hcal", "endcap"),
        ((4021,), "hcal", "other"),
        ((3010,), "ecal", "other"),
        ((1032, 2032), "muon", "other"),
        ((2040,), "lumi", "other"),
        ((10,), "", ""),
        ((0,), "", ""),
        ((1010, 1021), "", ""),
        ((), "", ""),
    ],
)
def test_type_codes_of_hits(codes, kind, region):
    assert by_code(codes) == (Place(kind, region, "type") if kind else None)


def sample(name: str, position: np.ndarray, *, simulated: bool = False, codes: tuple[int, ...] = ()) -> HitSample:
    n = len(position)
    cell = np.zeros(n, CELL)
    cell["id"] = np.arange(n)
    hits = {"cell": cell, "position": position, "energy": np.ones(n), "time": np.zeros(n), "layer": None}
    return HitSample(name=name, simulated=simulated, codes=codes, **hits)


def endcap(front: float, inner: float, outer: float, *, seed: int = 0) -> np.ndarray:
    """400 hits in 20 layers, all lengths in mm."""
    rng = np.random.default_rng(seed)
    phi, radius = rng.uniform(-np.pi, np.pi, 400), rng.uniform(inner, outer, 400)
    z = (front + 5.0 * rng.integers(0, 20, 400)) * rng.choice([-1, 1], 400)
    return np.stack([radius * np.cos(phi), radius * np.sin(phi), z], axis=1)


def test_the_type_code_goes_before_the_name_and_a_linked_partner_tells_the_place():
    hits = [sample("ECALBarrel", endcap(2000, 300, 1500), codes=(2021,))]
    assert place_samples(hits, {}, {}) == {"ECALBarrel": Place("hcal", "endcap", "type")}
    hits = [sample("ECALBarrel", np.zeros((0, 3))), sample("Steps", np.zeros((0, 3)), simulated=True)]
    assert place_samples(hits, {"Steps": "ECALBarrel"}, {})["Steps"] == Place("ecal", "barrel", "link")


def test_hits_close_to_the_beam_are_of_a_forward_calorimeter_whatever_its_name():
    hits = [sample("HcalEndcapZDC", endcap(35000, 40, 300)), sample("HcalEndcap", endcap(2200, 300, 2500))]
    places = place_samples(hits, {}, {})
    assert [places[hit.name].kind for hit in hits] == ["lumi", "hcal"]


def test_a_given_place_goes_before_all():
    hits = [sample("EcalBarrel", endcap(2000, 300, 1500), codes=(2021,))]
    assert place_samples(hits, {}, {"EcalBarrel": "ecal_endcap"})["EcalBarrel"] == Place("ecal", "endcap", "given")
    for wrong in ("ecal", "ecal_middle", "tracker_barrel"):
        with pytest.raises(ConfigError, match=f"--place EcalBarrel={wrong}: expected e.g. EcalBarrel=ecal_barrel"):
            place_samples(hits, {}, {"EcalBarrel": wrong})
