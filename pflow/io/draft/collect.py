"""Which collections of a file a detector's description names: calorimeters, tracks, truth, links, particles."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pflow.errors import InputError
from pflow.io.draft.calorimeters import Place, place_samples
from pflow.io.draft.hits import HitSample, read_sample
from pflow.io.edm4hep.collections import count_objects, link_pairs, list_collections
from pflow.io.edm4hep.podio import PodioFile
from pflow.physics.detector import KINDS, REGIONS

__all__ = ["Group", "Sources", "collect"]

COPY = 0.5
"""Fraction of a collection's cells that another one also has, from which on it is a copy of it."""

MIN_CELLS = 20
"""Hits that a collection needs to be recognised as a copy."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Collections that make one calorimeter of a detector's description.

    Parameters
    ----------
    name, kind, region
        As of `pflow.physics.detector.Calorimeter`.
    samples
        Hits of its digitised and simulated collections.
    places
        How kind and region of each were found.
    """

    name: str
    kind: str
    region: str
    samples: tuple[HitSample, ...]
    places: Mapping[str, Place]

    def of(self, *, simulated: bool) -> list[HitSample]:
        """Its simulated, or its digitised collections."""
        return [sample for sample in self.samples if sample.simulated == simulated]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sources:
    """Collections that a detector's description names, and what was left out and why.

    Parameters
    ----------
    groups
        Calorimeters, in the order ECAL, HCAL, muon system, from barrel to endcap to others.
    tracks, tracker_hits, sim_tracker_hits, truth_particles, hit_links, track_links, references
        Names, the preferred one first.
    left_out
        Reason for each collection of a kind that pflow reads, but that is not named.
    """

    groups: tuple[Group, ...]
    tracks: tuple[str, ...]
    tracker_hits: tuple[str, ...]
    sim_tracker_hits: tuple[str, ...]
    truth_particles: tuple[str, ...]
    hit_links: tuple[str, ...]
    track_links: tuple[str, ...]
    references: tuple[str, ...]
    left_out: Mapping[str, str]


def collect(file: PodioFile, stop: int) -> Sources:
    """Choose the collections by looking at the first `stop` entries.

    Raises
    ------
    InputError
        The bytes cannot be decoded, or a cell encoding cannot be understood.
    """
    listed = list_collections(file)
    left_out = {own.name: f"{own.type}, {own.unreadable}" for own in listed if own.unreadable}
    usable = [own for own in listed if not own.unreadable and not own.subset]
    counts = {own.name: count_objects(file, own, 0, stop) for own in usable if own.kind in _COUNTED}

    def of(*kinds: str) -> list[str]:
        return [own.name for own in usable if own.kind in kinds]

    pairs = _pairs(file, of("Link"), stop)
    samples = [read_sample(file, own, stop) for own in usable if own.kind in ("CalorimeterHit", "SimCalorimeterHit")]
    groups = _groups(samples, _partners(pairs, samples), left_out)
    digitised = [sample.name for group in groups for sample in group.of(simulated=False)]
    hit_links = _choose_links(pairs, digitised, of("MCParticle"))
    track_links = _choose_links(pairs, of("Track"), of("MCParticle"))
    linked = {name for link in (*hit_links, *track_links) for pair in pairs[link] for name in pair}
    return Sources(
        groups=groups,
        tracks=_first(of("Track"), lambda name: (name not in linked, "refit" not in name.lower())),
        tracker_hits=tuple(name for name in of("TrackerHit") if counts[name] or name in file.encodings),
        sim_tracker_hits=tuple(of("SimTrackerHit")),
        truth_particles=_first(of("MCParticle"), lambda name: (name not in linked, -counts[name])),
        hit_links=hit_links,
        track_links=track_links,
        references=_first(
            [name for name in of("ReconstructedParticle") if counts[name] or _is_flow(name)],
            lambda name: (not _is_flow(name), -counts[name]),
        )[:1],
        left_out=left_out,
    )


_COUNTED = ("MCParticle", "ReconstructedParticle", "TrackerHit")

Pairs = Mapping[str, Mapping[tuple[str, str], int]]
"""How many links of each collection lead from one collection to another."""


def _first(names: Iterable[str], key: Callable[[str], tuple[Any, ...]]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (*key(name), name)))


def _is_flow(name: str) -> bool:
    return re.search(r"pfo|pandora|particleflow", name.lower()) is not None


def _pairs(file: PodioFile, links: Iterable[str], stop: int) -> Pairs:
    """Ends of each collection of links; of none where the file has no table of ids."""
    try:
        return {name: link_pairs(file, name, 0, stop) for name in links}
    except InputError as error:
        if error.field != "podio_metadata":
            raise
        return {}


def _partners(pairs: Pairs, samples: Sequence[HitSample]) -> dict[str, str]:
    """For each collection of hits that one with the other kind of hits, digitised or simulated, to which most links
    lead from it or to it."""
    simulated = {sample.name: sample.simulated for sample in samples}
    counts: Counter[tuple[str, str]] = Counter()
    for own in pairs.values():
        for (start, end), number in own.items():
            if start in simulated and end in simulated and simulated[start] != simulated[end]:
                counts[start, end] += number
                counts[end, start] += number
    partners: dict[str, str] = {}
    for (name, partner), _ in counts.most_common():
        partners.setdefault(name, partner)
    return partners


def _choose_links(pairs: Pairs, sources: Iterable[str], targets: Iterable[str]) -> tuple[str, ...]:
    """Collections of links from the sources to the targets: for each source one, so that no link counts twice.

    Those whose name begins with MC come last: their weights are fractions of the particle (e.g. of all its hits),
    not of the hit or track.
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


def _groups(samples: list[HitSample], partners: Mapping[str, str], left_out: dict[str, str]) -> tuple[Group, ...]:
    """Join the collections of one place; says in `left_out` which belong to none."""
    places = place_samples(samples, partners)
    joined: dict[tuple[str, str], list[HitSample]] = {}
    for sample in samples:
        place = places[sample.name]
        if place.kind == "lumi":
            left_out[sample.name] = "hits of a luminosity or other very forward calorimeter"
        elif not place.kind or not (place.region or place.kind == "muon"):
            left_out[sample.name] = f"{len(sample)} hits, in which part of the detector is not known"
        else:
            region = "other" if place.kind == "muon" else place.region
            joined.setdefault((place.kind, region), []).append(sample)
    groups = []
    for kind, region in sorted(joined, key=lambda own: (KINDS.index(own[0]), REGIONS.index(own[1]))):
        own = _without_copies(joined[kind, region], left_out)
        groups.append(
            Group(
                name=kind if kind == "muon" else f"{kind}_{region}",
                kind=kind,
                region=region,
                samples=tuple(own),
                places={sample.name: places[sample.name] for sample in own},
            )
        )
    return tuple(groups)


def _without_copies(samples: list[HitSample], left_out: dict[str, str]) -> list[HitSample]:
    """The collections of one calorimeter without those whose cells are mostly in a larger one, e.g. merged copies."""
    kept: list[HitSample] = []
    for sample in sorted(samples, key=len, reverse=True):
        for larger in kept:
            if larger.simulated != sample.simulated or len(sample) < MIN_CELLS:
                continue
            if np.isin(sample.cells(), larger.cells()).mean() > COPY:
                left_out[sample.name] = f"holds mostly the cells of {larger.name}"
                break
        else:
            kept.append(sample)
    return sorted(kept, key=lambda sample: sample.name)
