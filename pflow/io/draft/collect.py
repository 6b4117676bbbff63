"""Choose the collections of a podio file for a detector's description, and the calorimeter of each."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.io.edm4hep.collections import Collection, count_objects, link_pairs, list_collections
from pflow.io.edm4hep.podio import PodioFile
from pflow.physics import geometry
from pflow.physics.arrays import Floats
from pflow.physics.detector import KINDS, REGIONS

HIT_KINDS = ("CalorimeterHit", "SimCalorimeterHit")
CELL = np.dtype([("event", np.int64), ("id", np.uint64)])

KIND_NAMES = (
    ("lumi", r"lumi|beam_?cal|(?<![a-z])([bl]|lh)cal|zdc|far_?forward|(?<![a-z])b0"),
    ("muon", r"muon|yoke|tail"),
    ("hcal", r"hcal|hadr|(?<![a-z])had(?![a-z])"),
    ("ecal", r"e(m|cl)?_?cal|(?<![a-z])(ecl|em)(?![a-z])|electro_?mag"),
)
"""Patterns of collection names, in lower case with _ between words, by kind of calorimeter; the first match counts."""

REGION_NAMES = (("other", r"ring|plug|other"), ("barrel", r"barrel|brl"), ("endcap", r"end_?cap|forward|backward"))

KIND_CODES = {1: "ecal", 2: "hcal", 3: "muon", 4: "lumi", 5: "lumi", 6: "lumi"}
"""``type // 10 % 10`` of a hit, LCIO's CHT::CaloID, which EDM4hep files carry on."""

REGION_CODES = {1: "barrel", 2: "endcap", 3: "other", 4: "other"}
"""``type // 1000 % 10`` of a hit, LCIO's CHT::Layout: barrel, endcap, plug, ring."""

FORWARD = 0.25  # endcap-like calorimeters whose hits all have a smaller r / |z| measure luminosity
SAME_DEPTH = 0.02  # calorimeters of a region whose fronts differ by a smaller fraction lie side by side
RING = 0.9  # a ring begins at least at this fraction of the outer radius of the calorimeter that it surrounds
COPY = 0.5  # a collection that shares more than this fraction of its cells with a larger one is a copy
MIN_CELLS = 20  # hits that a collection needs to be recognised as a copy

Place = dict[str, tuple[str, str]]
"""``kind`` and ``region`` of a collection's hits as far as they are known, as in `pflow.physics.detector.Calorimeter`,
each with how it was found: by the ``type`` code of the hits, by ``name``, by a ``link`` from or to hits whose place is
known, or by ``geometry``."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HitSample:
    """Hits of one collection, or of several joined ones, whose position is finite."""

    name: str
    simulated: bool  # edm4hep::SimCalorimeterHit
    cell: npt.NDArray[Any]  # event and cell id, `CELL` [hit]
    position: Floats  # [hit, 3], mm
    energy: Floats  # [hit], GeV
    time: Floats  # [hit], ns; NaN where unknown
    layer: npt.NDArray[np.int32] | None  # [hit]; None if the file does not say how cell ids are made
    codes: tuple[int, ...]  # different values of the member ``type``

    def __len__(self) -> int:
        return len(self.cell)

    @property
    def radius(self) -> Floats:
        """Distance from the z axis, mm."""
        return np.asarray(np.hypot(self.position[:, 0], self.position[:, 1]))


class Group(NamedTuple):
    """Digitised and simulated collections that make one calorimeter, and how the place of each was found."""

    kind: str
    region: str
    samples: list[HitSample]
    places: Mapping[str, Place]

    @property
    def name(self) -> str:
        """Name of the calorimeter."""
        return self.kind if self.kind == "muon" else f"{self.kind}_{self.region}"

    def of(self, *, simulated: bool) -> list[HitSample]:
        """The simulated, or the digitised collections."""
        return [sample for sample in self.samples if sample.simulated == simulated]


class Sources(NamedTuple):
    """Collections that a detector's description names."""

    groups: list[Group]  # ECAL, HCAL, muon system, each from barrel to endcap to others
    named: dict[str, Any]  # by field of `pflow.physics.detector.Detector`, the preferred one first
    sim_tracker_hits: tuple[str, ...]
    left_out: dict[str, str]  # reason for each collection of a kind that pflow reads, but that is not named


def collect(file: PodioFile, stop: int) -> Sources:
    """Choose the collections by looking at the first `stop` entries."""
    listed = list_collections(file)
    left_out = {info.name: f"{info.type}, {info.unreadable}" for info in listed if info.unreadable}
    usable = [info for info in listed if not info.unreadable and not info.subset]

    def of(kind: str) -> list[str]:
        return [info.name for info in usable if info.kind == kind]

    counted = ("MCParticle", "ReconstructedParticle", "TrackerHit")
    counts = {info.name: count_objects(file, info, stop) for info in usable if info.kind in counted}
    pairs = {name: link_pairs(file, name, stop) for name in of("Link")}
    samples = [_read_sample(file, info, stop) for info in usable if info.kind in HIT_KINDS]
    groups = _groups(samples, _partners(pairs, samples), left_out)
    digitised = [sample.name for group in groups for sample in group.of(simulated=False)]
    hit_links = _choose_links(pairs, digitised, of("MCParticle"))
    track_links = _choose_links(pairs, of("Track"), of("MCParticle"))
    linked = {name for link in (*hit_links, *track_links) for pair in pairs[link] for name in pair}
    particles = [name for name in of("ReconstructedParticle") if counts[name] or _is_flow(name)]
    named = {
        "tracks": _first(of("Track"), lambda name: (name not in linked, "refit" not in name.lower())),
        "tracker_hits": tuple(name for name in of("TrackerHit") if counts[name] or name in file.encodings),
        "truth_particles": _first(of("MCParticle"), lambda name: (name not in linked, -counts[name])),
        "hit_links": hit_links,
        "track_links": track_links,
        "references": _first(particles, lambda name: (not _is_flow(name), -counts[name]))[:1],
    }
    return Sources(groups, named, tuple(of("SimTrackerHit")), left_out)


def _read_sample(file: PodioFile, collection: Collection, stop: int) -> HitSample:
    name = collection.name

    def get(member: str, dtype: type[np.generic] = np.float64) -> npt.NDArray[Any]:
        return jagged.flat(file.columns.get(name, member, start=0, stop=stop), dtype)

    counts = jagged.count(file.columns.get(name, "energy", start=0, stop=stop))
    cell = np.zeros(int(counts.sum()), CELL)
    cell["event"], cell["id"] = jagged.event_index(counts), get("cellID", np.uint64)
    position = np.stack([get(f"position.{axis}") for axis in "xyz"], axis=-1)
    good = np.isfinite(position).all(axis=1)
    layer = None
    if (encoding := file.encodings.get(name)) is not None:
        layer = file.layers(name, cell["id"][good], encoding)
        layer = None if (layer == -1).all() else layer
    elif file.columns.has(name, "layer"):
        layer = get("layer", np.int32)[good]
    return HitSample(
        name=name,
        simulated=collection.kind == "SimCalorimeterHit",
        cell=cell[good],
        position=position[good],
        energy=get("energy")[good],
        time=(get("time") if file.columns.has(name, "time") else np.full(len(cell), np.nan))[good],
        layer=layer,
        codes=tuple(np.unique(get("type", np.int64)).tolist()) if file.columns.has(name, "type") else (),
    )


Pairs = Mapping[str, Mapping[tuple[str, str], int]]
"""How many links of each collection lead from one collection to another."""


def _first(names: Iterable[str], key: Callable[[str], tuple[Any, ...]]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (*key(name), name)))


def _is_flow(name: str) -> bool:
    return re.search(r"pfo|pandora|particleflow", name.lower()) is not None


def _partners(pairs: Pairs, samples: Sequence[HitSample]) -> dict[str, str]:
    """For each collection of hits, digitised or simulated, the one of the other kind with the most links to it."""
    simulated = {sample.name: sample.simulated for sample in samples}
    counts: Counter[tuple[str, str]] = Counter()
    for of_link in pairs.values():
        for (start, end), number in of_link.items():
            if {simulated.get(start), simulated.get(end)} == {True, False}:
                counts[start, end] += number
                counts[end, start] += number
    return {name: partner for (name, partner), _ in reversed(counts.most_common())}  # the last one stays


def _choose_links(pairs: Pairs, sources: Iterable[str], targets: Iterable[str]) -> tuple[str, ...]:
    """Collections of links from the sources to the targets: for each source one, so that no link counts twice.

    Names that begin with MC come last: their weights are fractions of the particle, not of the hit or track.
    """
    sources, targets = set(sources), set(targets)
    chosen: list[str] = []
    covered: set[str] = set()
    for name in _first(pairs, lambda name: (name.startswith("MC"), -sum(pairs[name].values()))):
        starts = {start for start, end in pairs[name] if start in sources and end in targets}
        if starts and not starts & covered:
            chosen.append(name)
            covered |= starts
    return tuple(chosen)


def _groups(samples: list[HitSample], partners: Mapping[str, str], left_out: dict[str, str]) -> list[Group]:
    """Join the collections of one place; says in `left_out` which belong to none."""
    places = place_samples(samples, partners)
    joined: dict[tuple[str, str], list[HitSample]] = {}
    for sample in samples:
        kind, region = (_value(places[sample.name], what) for what in ("kind", "region"))
        if kind == "lumi":
            left_out[sample.name] = "hits of a luminosity or other very forward calorimeter"
        elif not kind or not (region or kind == "muon"):
            left_out[sample.name] = f"{len(sample)} hits, in which part of the detector is not known"
        else:
            joined.setdefault((kind, "other" if kind == "muon" else region), []).append(sample)
    groups = []
    for kind, region in sorted(joined, key=lambda place: (KINDS.index(place[0]), REGIONS.index(place[1]))):
        distinct = _without_copies(joined[kind, region], left_out)
        groups.append(Group(kind, region, distinct, {sample.name: places[sample.name] for sample in distinct}))
    return groups


def _value(place: Place, what: str) -> str:
    return place.get(what, ("", ""))[0]


def _without_copies(samples: list[HitSample], left_out: dict[str, str]) -> list[HitSample]:
    """The collections of one calorimeter without those whose cells are mostly in a larger one, e.g. merged copies."""
    distinct: list[HitSample] = []
    for sample in sorted(samples, key=len, reverse=True):
        larger = (prior for prior in distinct if prior.simulated == sample.simulated and len(sample) >= MIN_CELLS)
        copied = next((prior for prior in larger if np.isin(sample.cell, prior.cell).mean() > COPY), None)
        if copied is None:
            distinct.append(sample)
        else:
            left_out[sample.name] = f"holds mostly the cells of {copied.name}"
    return sorted(distinct, key=lambda sample: sample.name)


def place_samples(samples: Sequence[HitSample], linked: Mapping[str, str]) -> dict[str, Place]:
    """Place of each collection, by type code, name, partner (`linked`: whose hits lead to which), and geometry."""
    places = {sample.name: by_name(sample.name) | by_code(sample.codes) for sample in samples}
    for name, partner in linked.items():
        if name in places and partner in places:
            places[name] = {what: (value, "link") for what, (value, _) in places[partner].items()} | places[name]
    for sample in samples:
        if "region" not in places[sample.name] and len(sample) and (region := region_by_shape(sample)):
            places[sample.name]["region"] = (region, "geometry")
    _add_kinds_by_depth(samples, places)
    return places


def by_code(codes: Sequence[int]) -> Place:
    """Place by the member ``type`` of hits; unknown for codes that say nothing, or that disagree on the kind."""
    kinds = {KIND_CODES.get(code // 10 % 10, "") for code in codes}
    if len(kinds) != 1 or kinds == {""}:
        return {}
    regions = {REGION_CODES.get(code // 1000 % 10, "") for code in codes}
    return _known("type", kinds.pop(), regions.pop() if len(regions) == 1 else "other")


def by_name(name: str) -> Place:
    """Place by the collection's name, as far as it tells, e.g. ``EcalEndcapRingCollectionRec``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{3})", "_", name).lower()  # EMBarrel: em_barrel
    kind_and_region = (
        next((value for value, pattern in patterns if re.search(pattern, words)), "")
        for patterns in (KIND_NAMES, REGION_NAMES)
    )
    return _known("name", *kind_and_region)


def _known(source: str, kind: str, region: str) -> Place:
    return {what: (value, source) for what, value in (("kind", kind), ("region", region)) if value}


def region_by_shape(sample: HitSample) -> str:
    """``barrel`` or ``endcap`` by the layers on which the hits lie; "" if they lie on neither's.

    Of both, it is the one of fewer layers: the cells of a layer form a grid, whose rows look like layers too.
    """
    (x, y), z = sample.position.T[:2], np.abs(sample.position[:, 2])
    n_layers = {}
    if (shape := geometry.barrel_shape(x, y, sample.layer)) is not None:
        distance = geometry.distance_to_sides(x, y, shape.sides, shape.phase)
        n_layers["barrel"] = geometry.layer_range(distance).count
    if geometry.fraction_on_layers(z, sample.layer) >= geometry.MIN_ON_LAYERS:
        n_layers["endcap"] = geometry.layer_range(z).count
    return min(n_layers, key=n_layers.__getitem__, default="")


def _add_kinds_by_depth(samples: Sequence[HitSample], places: dict[str, Place]) -> None:
    """Fill in kinds: the first calorimeter of a region is the ECAL, the next the HCAL, then comes the muon system."""
    for region in ("barrel", "endcap"):
        mine: list[tuple[float, HitSample]] = []  # with the front of each
        for sample in samples:
            place, length = places[sample.name], np.abs(sample.position[:, 2])
            if not len(sample) or _value(place, "region") != region:
                continue
            if region == "endcap" and np.all(sample.radius < FORWARD * length):
                place.setdefault("kind", ("lumi", "geometry"))
            if _value(place, "kind") != "lumi":
                mine.append((float(np.min(sample.radius if region == "barrel" else length)), sample))
        mine.sort(key=lambda pair: pair[0])
        depth, last = -1, 0.0
        for front, sample in mine:
            place, first = places[sample.name], mine[0][1]
            surrounds = sample is not first and np.min(sample.radius) > RING * np.max(first.radius)
            if surrounds and place["region"] == ("endcap", "geometry"):
                place["region"] = ("other", "geometry")
                place.setdefault("kind", ("hcal", "geometry"))
                continue
            depth += front > last * (1 + SAME_DEPTH)
            last = front
            place.setdefault("kind", (("ecal", "hcal", "muon")[min(depth, 2)], "geometry"))
