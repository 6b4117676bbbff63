import numpy as np
import pytest

from pflow.io.draft.collect import CELL, HitSample, by_code, by_name, place_samples


def known(source: str, **values: str) -> dict[str, tuple[str, str]]:
    return {what: (value, source) for what, value in values.items() if value}


@pytest.mark.parametrize(
    ("name", "kind", "region"),
    [
        ("ECALBarrel", "ecal", "barrel"),  # CLD, CLIC
        ("ECalEndcapCollection", "ecal", "endcap"),
        ("ECalPlugCollection", "ecal", "other"),
        ("HCALOther", "hcal", "other"),
        ("HCalRingCollection", "hcal", "other"),
        ("MUON", "muon", ""),
        ("YokeBarrelCollection", "muon", "barrel"),
        ("LumiCalCollection", "lumi", ""),
        ("EcalBarrelCollectionRec", "ecal", "barrel"),  # ILD
        ("EcalEndcapRingCollectionRec", "ecal", "other"),
        ("HcalEndcapsCollectionRec", "hcal", "endcap"),
        ("LHCAL", "lumi", ""),
        ("BCAL", "lumi", ""),
        ("EM_BARREL", "ecal", "barrel"),  # SiD
        ("HAD_ENDCAP", "hcal", "endcap"),
        ("ECalBarrelModuleThetaMergedPositioned", "ecal", "barrel"),  # ALLEGRO
        ("MuonTaggerBarrelPhiThetaPositioned", "muon", "barrel"),
        ("EcalBarrelScFiRecHits", "ecal", "barrel"),  # ePIC
        ("LFHCALRecHits", "hcal", ""),
        ("HcalFarForwardZDCRecHits", "lumi", "endcap"),
        ("B0ECalRecHits", "lumi", ""),
        ("EcalLumiSpecRecHits", "lumi", ""),
        ("SomeHits", "", ""),
    ],
)
def test_names_of_collections(name, kind, region):
    assert by_name(name) == known("name", kind=kind, region=region)


@pytest.mark.parametrize(
    ("codes", "kind", "region"),
    [
        ((1010, 11010), "ecal", "barrel"),  # layout 1, ECAL, electromagnetic; layers 0 and 1
        ((2021,), "hcal", "endcap"),
        ((4021,), "hcal", "other"),
        ((3010,), "ecal", "other"),
        ((1032, 2032), "muon", "other"),
        ((2040,), "lumi", "endcap"),
        ((10,), "ecal", ""),
        ((0,), "", ""),
        ((1010, 1021), "", ""),
        ((), "", ""),
    ],
)
def test_type_codes_of_hits(codes, kind, region):
    assert by_code(codes) == known("type", kind=kind, region=region)


def sample(name: str, position: np.ndarray, *, simulated: bool = False, codes: tuple[int, ...] = ()) -> HitSample:
    n = len(position)
    cell = np.zeros(n, CELL)
    cell["id"] = np.arange(n)
    return HitSample(
        name=name,
        simulated=simulated,
        cell=cell,
        position=position,
        energy=np.ones(n),
        time=np.zeros(n),
        layer=None,
        codes=codes,
    )


def endcap(
    front: float, inner: float, outer: float, *, spacing: float = 5.0, n: int = 400, seed: int = 0
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    phi, radius = rng.uniform(-np.pi, np.pi, n), rng.uniform(inner, outer, n)
    z = (front + spacing * rng.integers(0, 20, n)) * rng.choice([-1, 1], n)
    return np.stack([radius * np.cos(phi), radius * np.sin(phi), z], axis=1)


def test_the_type_code_goes_before_the_name():
    places = place_samples([sample("ECALBarrel", endcap(2000, 300, 1500), codes=(2021,))], {})
    assert places["ECALBarrel"] == known("type", kind="hcal", region="endcap")


def test_a_linked_partner_tells_the_place():
    hits = [sample("ECALBarrel", np.zeros((0, 3))), sample("Steps", np.zeros((0, 3)), simulated=True)]
    places = place_samples(hits, {"Steps": "ECALBarrel"})
    assert places["Steps"] == known("link", kind="ecal", region="barrel")


def test_endcaps_follow_each_other_and_a_ring_surrounds_the_first():
    hits = [
        sample("A", endcap(2000, 300, 1500)),
        sample("Wreath", endcap(2060, 1520, 2500, seed=1)),
        sample("B", endcap(2200, 300, 2500, seed=2)),
        sample("C", endcap(3800, 300, 4000, seed=3)),
        sample("Small", endcap(1100, 40, 120, seed=4)),
    ]
    places = {name: (place["kind"][0], place["region"][0]) for name, place in place_samples(hits, {}).items()}
    assert places == {
        "A": ("ecal", "endcap"),
        "Wreath": ("hcal", "other"),
        "B": ("hcal", "endcap"),
        "C": ("muon", "endcap"),
        "Small": ("lumi", "endcap"),
    }
