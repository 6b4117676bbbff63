from __future__ import annotations

import numpy as np
import pytest

from pflow.io.draft.calorimeters import Place, by_code, by_name, place_samples, region_by_shape
from pflow.io.draft.hits import HitSample


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
    place = by_name(name)
    assert (place.kind, place.region) == (kind, region)
    assert (place.kind_from, place.region_from) == ("name" if kind else "", "name" if region else "")


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
    assert (by_code(codes).kind, by_code(codes).region) == (kind, region)


def sample(name: str, position: np.ndarray, *, simulated: bool = False, codes: tuple[int, ...] = ()) -> HitSample:
    n = len(position)
    return HitSample(
        name=name,
        simulated=simulated,
        event=np.zeros(n, dtype=np.int64),
        position=position,
        energy=np.ones(n),
        time=np.zeros(n),
        cell_id=np.arange(n, dtype=np.uint64),
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
    assert places["ECALBarrel"] == Place(kind="hcal", kind_from="type", region="endcap", region_from="type")


def test_a_linked_partner_tells_the_place():
    hits = [sample("ECALBarrel", np.zeros((0, 3))), sample("Steps", np.zeros((0, 3)), simulated=True)]
    places = place_samples(hits, {"Steps": "ECALBarrel"})
    assert places["Steps"] == Place(kind="ecal", kind_from="link", region="barrel", region_from="link")


def test_hits_that_tell_nothing_have_no_place():
    assert place_samples([sample("Some", np.zeros((0, 3)))], {})["Some"] == Place()


def test_endcaps_follow_each_other_and_a_ring_surrounds_the_first():
    hits = [
        sample("A", endcap(2000, 300, 1500)),
        sample("Wreath", endcap(2060, 1520, 2500, seed=1)),
        sample("B", endcap(2200, 300, 2500, seed=2)),
        sample("C", endcap(3800, 300, 4000, seed=3)),
        sample("Small", endcap(1100, 40, 120, seed=4)),
    ]
    places = {name: (place.kind, place.region) for name, place in place_samples(hits, {}).items()}
    assert places == {
        "A": ("ecal", "endcap"),
        "Wreath": ("hcal", "other"),
        "B": ("hcal", "endcap"),
        "C": ("muon", "endcap"),
        "Small": ("lumi", "endcap"),
    }


def test_hits_without_layers_have_no_region():
    rng = np.random.default_rng(5)
    assert region_by_shape(sample("Some", rng.uniform(-2000, 2000, (300, 3)))) == ""
