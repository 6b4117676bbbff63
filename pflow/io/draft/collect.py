"""Choose the collections of a podio file for a detector's description, and the calorimeter of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, nearest
from pflow.event import jagged
from pflow.io.draft.measure import Cells, HitSample, counted, measure_cells
from pflow.io.edm4hep.collections import Collection, count_objects, link_pairs, list_collections
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.reader import COPY, FORWARD
from pflow.physics.detector import KINDS, REGIONS

HIT_KINDS = ("CalorimeterHit", "SimCalorimeterHit")
CELL = np.dtype([("event", np.int64), ("id", np.uint64)])

KIND_NAMES = (("lumi", r"lumi|beamcal"), ("muon", r"muon|yoke"), ("hcal", r"hcal"), ("ecal", r"ecal|emcal"))
REGION_NAMES = (("other", r"ring|plug|other"), ("barrel", r"barrel"), ("endcap", r"endcap"))
"""Patterns of collection names, in lower case, by kind and region of calorimeter; the first match counts."""

KIND_CODES = {1: "ecal", 2: "hcal", 3: "muon", 4: "lumi", 5: "lumi", 6: "lumi"}
"""``type // 10 % 10`` of a hit, LCIO's CHT::CaloID, which EDM4hep files carry on."""

REGION_CODES = {1: "barrel", 2: "endcap", 3: "other", 4: "other"}
"""``type // 1000 % 10`` of a hit, LCIO's CHT::Layout: barrel, endcap, plug, ring."""

MIN_CELLS = 20  # hits that a collection needs to be recognised as a copy

FOUND_BY = {"given": "--place", "type": "type of hits", "link": "links", "name": "name"}
"""Sources of a collection's place, in words, the most certain first; a name may mislead."""


class Place(NamedTuple):
    """Calorimeter of a collection's hits, as of `pflow.physics.detector.Calorimeter`, and how it is known."""

    kind: str
    region: str
    how: str  # as in `FOUND_BY`


class Group(NamedTuple):
    """Digitised and simulated collections that make one calorimeter, and its layers."""

    name: str
    kind: str
    region: str
    samples: list[HitSample]
    known_by: tuple[str, str]  # how its place is known, as in `FOUND_BY`, and in words
    cells: Cells

    def of(self, *, simulated: bool) -> list[HitSample]:
        """The simulated, or the digitised collections."""
        return [sample for sample in self.samples if sample.simulated == simulated]


class Sources(NamedTuple):
    """Collections that a detector's description names."""

    groups: list[Group]  # ECAL, HCAL, muon system, each from barrel to endcap to others, from the inside
    named: dict[str, Any]  # by field of `pflow.physics.detector.Detector`, the preferred one first
    sim_tracker_hits: tuple[str, ...]
    left_out: dict[str, str]  # reason for each collection of a kind that pflow reads, but that is not named


def collect(file: PodioFile, stop: int, given: Mapping[str, str]) -> Sources:
    """Choose the collections by looking at the first `stop` entries; `given`: kind_region of some collections."""
    listed = list_collections(file)
    left_out = {info.name: f"{info.type}, {info.unreadable}" for info in listed if info.unreadable}
    usable = [info for info in listed if not info.unreadable and not info.subset]

    def of(kind: str) -> list[str]:
        return [info.name for info in usable if info.kind == kind]

    hits = [info.name for info in usable if info.kind in HIT_KINDS]
    for name in given:
        if name not in hits:
            raise ConfigError(
                f"--place: no collection of hits '{name}' in {file.path}", suggestions=nearest(name, hits)
            )
    counted_kinds = ("MCParticle", "ReconstructedParticle", "TrackerHit")
    counts = {info.name: count_objects(file, info, stop) for info in usable if info.kind in counted_kinds}
    pairs = {name: link_pairs(file, name, stop) for name in of("Link")}
    samples = [_read_sample(file, info, stop) for info in usable if info.kind in HIT_KINDS]
    groups = _groups(samples, _partners(pairs, samples), given, left_out, stop)
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
        return jagged.flat(file.get(range(stop), name, member), dtype)

    counts = jagged.count(file.get(range(stop), name, "energy"))
    cell = np.zeros(int(counts.sum()), CELL)
    cell["event"], cell["id"] = jagged.event_index(counts), get("cellID", np.uint64)
    position = np.stack([get(f"position.{axis}") for axis in "xyz"], axis=-1)
    layer = file.layers(range(stop), name)
    sample = HitSample(
        name=name,
        simulated=collection.kind == "SimCalorimeterHit",
        cell=cell,
        position=position,
        energy=get("energy"),
        time=get("time") if file.columns.has(name, "time") else np.full(len(cell), np.nan),
        layer=None if layer is None or (layer == -1).all() else layer,
        codes=tuple(np.unique(get("type", np.int64)).tolist()) if file.columns.has(name, "type") else (),
    )
    return sample[np.isfinite(position).all(axis=1)]


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


def _groups(
    samples: Sequence[HitSample],
    partners: Mapping[str, str],
    given: Mapping[str, str],
    left_out: dict[str, str],
    stop: int,
) -> list[Group]:
    """Group collections by place and technology into calorimeters; `left_out` gets the rest, with the reason."""
    places = place_samples(samples, partners, given)
    by_place: dict[tuple[str, str], list[HitSample]] = {}
    for sample in samples:
        place = places.get(sample.name)
        if place is None:
            where = f"in which part of the detector is not known; --place {sample.name}=ecal_barrel or another says it"
            left_out[sample.name] = f"{counted(len(sample), 'hit')}, {where}"
        elif place.kind == "lumi":
            left_out[sample.name] = "hits of a luminosity or other very forward calorimeter"
        else:
            by_place.setdefault(place[:2], []).append(sample)
    groups: list[Group] = []
    simulated = all(sample.simulated for of_place in by_place.values() for sample in of_place)
    for kind, region in sorted(by_place, key=lambda place: (KINDS.index(place[0]), REGIONS.index(place[1]))):
        distinct = _without_copies(by_place[kind, region], left_out)
        name = kind if kind == "muon" else f"{kind}_{region}"
        for number, (mine, cells) in enumerate(_technologies(kind, region, distinct, partners, simulated), start=1):
            names = {sample.name for sample in mine}
            distinct = [sample for sample in distinct if sample.name not in names]
            how = min((places[name].how for name in names), key=list(FOUND_BY).index)
            known_by = f"{FOUND_BY[how]} ({', '.join(sorted(name for name in names if places[name].how == how))})"
            full_name = name if number == 1 else f"{name}_{number}"
            groups.append(Group(full_name, kind, region, mine, (how, known_by), cells))
        for sample in distinct:
            only = f"{counted(len(sample), 'simulated hit')} without digitised ones" if len(sample) else "no hits"
            left_out[sample.name] = f"{only} in {counted(stop, 'event')}"
    return groups


def _technologies(
    kind: str, region: str, samples: Sequence[HitSample], partners: Mapping[str, str], simulated: bool
) -> list[tuple[list[HitSample], Cells]]:
    """Collections of one place by technology, from the inside, with their layers; without those that have no hits.

    Digitised hits decide, or `simulated` ones in a file without any. Collections whose cells or layers differ, or that
    lie behind each other, are calorimeters of their own.
    """
    found: list[tuple[list[HitSample], Cells]] = []
    rest = []
    for sample in sorted(samples, key=len, reverse=True):
        cells = measure_cells([sample], region) if sample.simulated == simulated else None
        if cells is None:
            rest.append(sample)
            continue
        for number, (mine, of) in enumerate(found):
            if kind == "muon" or cells.like(of):
                found[number] = [*mine, sample], measure_cells([*mine, sample], region) or of
                break
        else:
            found.append(([sample], cells))
    for sample in rest:  # simulated hits of the digitised ones, and empty collections
        for mine, _ in found:
            linked = partners.get(sample.name) in {member.name for member in mine}
            if linked or len(found) == 1 or any(np.isin(sample.cell, member.cell).any() for member in mine):
                mine.append(sample)
                break
    for mine, _ in found:
        mine.sort(key=lambda sample: sample.name)
    return sorted(found, key=lambda pair: pair[1].front)


def _without_copies(samples: Sequence[HitSample], left_out: dict[str, str]) -> list[HitSample]:
    """The collections of one place without those whose cells are mostly in a larger one, e.g. merged copies."""
    distinct: list[HitSample] = []
    for sample in sorted(samples, key=len, reverse=True):
        larger = (prior for prior in distinct if prior.simulated == sample.simulated and len(sample) >= MIN_CELLS)
        copied = next((prior for prior in larger if np.isin(sample.cell, prior.cell).mean() > COPY), None)
        if copied is None:
            distinct.append(sample)
        else:
            left_out[sample.name] = f"holds mostly the cells of {copied.name}"
    return distinct


def place_samples(
    samples: Sequence[HitSample], linked: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, Place]:
    """Known places: as given, by type code, by name, or by links (`linked`: collection that the hits link to)."""
    places = {}
    for sample in samples:
        place = next(filter(None, (_given(sample.name, given), by_code(sample.codes), by_name(sample.name))), None)
        near_beam = len(sample) and np.all(sample.radius < FORWARD * np.abs(sample.position[:, 2]))
        if near_beam and sample.name not in given:
            place = Place("lumi", "endcap", "name")
        if place is not None:
            places[sample.name] = place
    by_link = {name: places[to]._replace(how="link") for name, to in linked.items() if to in places}
    return by_link | places


def _given(name: str, given: Mapping[str, str]) -> Place | None:
    if name not in given:
        return None
    kind, _, region = given[name].partition("_")
    if kind not in KINDS or not (region in REGIONS or (kind in ("muon", "lumi") and not region)):
        place = f"{name}={given[name]}"
        raise ConfigError(f"--place {place}: expected e.g. {name}=ecal_barrel, hcal_endcap, hcal_other or muon")
    return Place(kind, region or "other", "given")


def by_code(codes: Sequence[int]) -> Place | None:
    """Place by the member ``type`` of hits; None if codes have no meaning or disagree on the kind."""
    kinds = {KIND_CODES.get(code // 10 % 10, "") for code in codes}
    regions = {REGION_CODES.get(code // 1000 % 10, "") for code in codes}
    region = regions.pop() if len(regions) == 1 else "other"
    return _known(kinds.pop(), region, "type") if len(kinds) == 1 else None


def by_name(name: str) -> Place | None:
    """Place by the collection's name, e.g. ``EcalEndcapRingCollectionRec``; None if it does not tell."""
    kind, region = (
        next((value for value, pattern in patterns if re.search(pattern, name.lower())), "")
        for patterns in (KIND_NAMES, REGION_NAMES)
    )
    return _known(kind, region, "name")


def _known(kind: str, region: str, how: str) -> Place | None:
    region = "other" if kind in ("muon", "lumi") else region  # these are described as one
    return Place(kind, region, how) if kind and region else None
