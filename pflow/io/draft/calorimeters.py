"""Which calorimeter a collection of hits belongs to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pflow.io.draft.hits import HitSample
from pflow.physics.calorimeter_shape import (
    MIN_ON_LAYERS,
    barrel_shape,
    distance_to_sides,
    fraction_on_layers,
    layer_range,
)

__all__ = ["Place", "place_samples"]

KIND_NAMES = (
    ("lumi", r"lumi|beamcal|(?<![a-z])[bl]cal|lhcal|zdc|far_?forward|(?<![a-z])b0"),
    ("muon", r"muon|yoke|tail"),
    ("hcal", r"hcal|hadr|(?<![a-z])had(?![a-z])"),
    ("ecal", r"e(m|cl)?_?cal|(?<![a-z])(ecl|em)(?![a-z])|electromag"),
)
"""What names of collections say about the kind of calorimeter, in lower case; the first that is found holds."""

REGION_NAMES = (("other", r"ring|plug|other"), ("barrel", r"barrel|brl"), ("endcap", r"end_?cap|forward|backward"))

KIND_CODES = {1: "ecal", 2: "hcal", 3: "muon", 4: "lumi", 5: "lumi", 6: "lumi"}
"""``type // 10 % 10`` of a hit, LCIO's CHT::CaloID, which EDM4hep files carry on."""

REGION_CODES = {1: "barrel", 2: "endcap", 3: "other", 4: "other"}
"""``type // 1000 % 10`` of a hit, LCIO's CHT::Layout: barrel, endcap, plug, ring."""

FORWARD = 0.25
"""Endcap-like calorimeters whose hits all have a smaller r / |z| measure luminosity."""

SAME_DEPTH = 0.02
"""Calorimeters of a region whose fronts differ by less than this fraction lie side by side, not one behind another."""

RING = 0.9
"""A ring begins at least at this fraction of the outer radius of the calorimeter that it surrounds."""

BY_DEPTH = ("ecal", "hcal", "muon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Kind and region of a collection's hits, as in `pflow.physics.detector.Calorimeter`, and how each was found.

    `kind_from` and `region_from` are ``type`` (code of the hits), ``name``, ``link`` (from or to hits whose place is
    known), ``geometry``, or "" if it is not known; `kind` and `region` are then "".
    """

    kind: str = ""
    kind_from: str = ""
    region: str = ""
    region_from: str = ""

    def filled(self, other: Place) -> Place:
        """This place, with what is unknown taken from another one."""
        kind, region = (self if self.kind else other), (self if self.region else other)
        return Place(kind=kind.kind, kind_from=kind.kind_from, region=region.region, region_from=region.region_from)


def place_samples(samples: Sequence[HitSample], linked: Mapping[str, str]) -> dict[str, Place]:
    """Place of each collection; `linked` names the partner of collections whose hits are linked to others.

    The type code of the hits goes first, then the name, the partner, and geometry.
    """
    places = {sample.name: by_code(sample.codes).filled(by_name(sample.name)) for sample in samples}
    for name, partner in linked.items():
        if name in places and partner in places:
            places[name] = places[name].filled(_linked(places[partner]))
    for sample in samples:
        if not places[sample.name].region and len(sample):
            region = region_by_shape(sample)
            places[sample.name] = places[sample.name].filled(
                Place(region=region, region_from="geometry" if region else "")
            )
    return _kinds_by_depth(samples, places)


def by_code(codes: Sequence[int]) -> Place:
    """Place by the member ``type`` of hits; unknown for codes that say nothing, or that disagree on the kind.

    >>> by_code([11010, 21010]).kind, by_code([1032, 2032]).region
    ('ecal', 'other')
    """
    kinds = {KIND_CODES.get(code // 10 % 10, "") for code in codes}
    if len(kinds) != 1 or kinds == {""}:
        return Place()
    regions = {REGION_CODES.get(code // 1000 % 10, "") for code in codes}
    region = regions.pop() if len(regions) == 1 else "other"
    return Place(kind=kinds.pop(), kind_from="type", region=region, region_from="type" if region else "")


def by_name(name: str) -> Place:
    """Place by the collection's name, as far as it tells.

    >>> by_name("EcalEndcapRingCollectionRec")
    Place(kind='ecal', kind_from='name', region='other', region_from='name')
    """
    lower = name.lower()
    kind = next((kind for kind, pattern in KIND_NAMES if re.search(pattern, lower)), "")
    region = next((region for region, pattern in REGION_NAMES if re.search(pattern, lower)), "")
    return Place(kind=kind, kind_from="name" if kind else "", region=region, region_from="name" if region else "")


def region_by_shape(sample: HitSample) -> str:
    """``barrel`` or ``endcap`` by the layers on which the hits lie; "" if they lie on neither's.

    Of both, it is the one of fewer layers: the cells of a layer form a grid, whose rows look like layers too.
    """
    x, y, z = sample.position.T
    barrel, endcap = barrel_shape(x, y, sample.layer), fraction_on_layers(np.abs(z), sample.layer)
    if endcap >= MIN_ON_LAYERS and barrel is not None:
        layers = {
            "barrel": layer_range(distance_to_sides(x, y, barrel.sides, barrel.phase)).count,
            "endcap": layer_range(np.abs(z)).count,
        }
        return min(layers, key=layers.__getitem__)
    if endcap >= MIN_ON_LAYERS:
        return "endcap"
    return "barrel" if barrel is not None else ""


def _linked(place: Place) -> Place:
    return dataclasses.replace(
        place, kind_from="link" if place.kind else "", region_from="link" if place.region else ""
    )


def _kinds_by_depth(samples: Sequence[HitSample], places: Mapping[str, Place]) -> dict[str, Place]:
    """Fill in kinds: the first calorimeter of a region is the ECAL, the next the HCAL, then comes the muon system."""
    filled = dict(places)
    for region in ("barrel", "endcap"):
        mine = [own for own in samples if len(own) and filled[own.name].region == region]
        for sample in mine:
            if region == "endcap" and _is_forward(sample):
                filled[sample.name] = filled[sample.name].filled(Place(kind="lumi", kind_from="geometry"))
        mine = sorted((own for own in mine if filled[own.name].kind != "lumi"), key=lambda own: _front(own, region))
        depth, last = -1, 0.0
        for sample in mine:
            place, front = filled[sample.name], _front(sample, region)
            if region == "endcap" and place.region_from == "geometry" and _surrounds(sample, mine[0]):
                ring = Place(kind=place.kind, kind_from=place.kind_from, region="other", region_from="geometry")
                filled[sample.name] = ring.filled(Place(kind="hcal", kind_from="geometry"))
                continue
            depth += front > last * (1 + SAME_DEPTH)
            last = front
            filled[sample.name] = place.filled(Place(kind=BY_DEPTH[min(depth, 2)], kind_from="geometry"))
    return filled


def _radius(sample: HitSample) -> npt.NDArray[np.float64]:
    return np.asarray(np.hypot(sample.position[:, 0], sample.position[:, 1]))


def _front(sample: HitSample, region: str) -> float:
    return float(np.min(_radius(sample) if region == "barrel" else np.abs(sample.position[:, 2])))


def _is_forward(sample: HitSample) -> bool:
    return bool(np.all(_radius(sample) < FORWARD * np.abs(sample.position[:, 2])))


def _surrounds(sample: HitSample, first: HitSample) -> bool:
    """Whether an endcap-like calorimeter is a ring around the first one."""
    return bool(sample is not first and np.min(_radius(sample)) > RING * np.max(_radius(first)))
