"""The collections of a podio file and their types: from its metadata, the types of its branches, or the members."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import Any

import numpy as np

from pflow.errors import InputError, reading
from pflow.event import jagged
from pflow.io.edm4hep.podio import PodioFile, relation, track_states

SUBSET = "_objIdx"
"""Suffix of the branch of a subset collection, which holds only references to objects of another collection."""

SIGNATURES = (
    ("MCParticle", ("PDG", "generatorStatus", "momentum.x"), ()),
    ("Track", ("trackStates_begin",), ()),
    ("SimCalorimeterHit", ("cellID", "energy", "position.x", "contributions_begin"), ()),
    ("SimCalorimeterHit", ("cellID", "energy", "position.x"), ("time", "energyError")),
    ("CalorimeterHit", ("cellID", "energy", "position.x"), ()),
    ("SimTrackerHit", ("cellID", "position.x", "momentum.x"), ()),
    ("TrackerHit", ("cellID", "position.x", "time"), ()),
    ("ReconstructedParticle", ("energy", "momentum.x", "charge"), ()),
    ("CaloHitContribution", ("energy", "stepPosition.x"), ()),
    ("Cluster", ("energy", "position.x", "hits_begin"), ()),
    ("EventHeader", ("eventNumber",), ()),
)
"""Types of EDM4hep by members that they have and others that they have not; the first that fits holds."""

READ = {
    "CalorimeterHit": ("cellID", "energy", "position.x", "position.y", "position.z"),
    "SimCalorimeterHit": ("cellID", "energy", "position.x", "position.y", "position.z"),
    "MCParticle": ("PDG", "generatorStatus", "charge", "mass", "momentum.x", "momentum.y", "momentum.z"),
    "ReconstructedParticle": ("energy", "charge", "momentum.x", "momentum.y", "momentum.z"),
    "Track": ("trackStates_begin", "trackStates_end"),
    "TrackerHit": ("position.x", "position.y", "position.z", "time"),
    "SimTrackerHit": ("cellID", "position.x", "position.y", "position.z", "momentum.x", "momentum.y", "momentum.z"),
}
"""Members without which objects of a type cannot be read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collection:
    """One collection of a podio file, and its content in the entries that were read."""

    name: str
    type: str  # C++ type of its objects, e.g. ``edm4hep::CalorimeterHit``; ``Link``; "" if unknown
    kind: str = ""  # by the type: without namespace; ``TrackerHit`` for all kinds of reconstructed tracker hits
    subset: bool = False  # whether it only refers to objects of other collections
    unreadable: str = ""  # why pflow cannot read it although it reads objects of this kind; "" if it can
    count: int = 0
    mean: float = 0.0  # objects per entry
    mean_energy: float | None = None  # summed energy per entry, GeV; None for objects without
    cell_encoding: str = ""
    links: tuple[str, ...] = ()  # of links: ``A -> B`` for the collections at their ends, those with most links first

    def __post_init__(self) -> None:
        kind = self.type.rpartition("::")[2]
        kind = "TrackerHit" if kind in ("TrackerHit3D", "TrackerHitPlane") else kind
        object.__setattr__(self, "kind", kind)


def list_collections(file: PodioFile) -> list[Collection]:
    """The collections of a file, sorted by name, without their content."""
    columns, named = file.columns, set(file.ids.values())
    collections = []
    for name in columns.collections:
        if name.endswith(SUBSET) and not _is_auxiliary(name, file):
            subset = name.removesuffix(SUBSET)
            collections.append(Collection(name=subset, type=_declared(file, subset), subset=True))
        elif columns.members(name) and not _is_auxiliary(name, file):
            collection = Collection(name=name, type=_declared(file, name) or _by_members(file, name))
            why = ", ".join(f"no {key}" for key in READ.get(collection.kind, ()) if not columns.has(name, key))
            if not why and collection.kind == "Track" and track_states(columns, name) is None:
                why = "no track states"
            collections.append(dataclasses.replace(collection, unreadable=why))
        elif file.ids_stored and name in named:  # plain numbers, podio::UserDataCollection
            collections.append(Collection(name=name, type=file.types.get(name) or columns.typename(name)))
    return sorted(collections, key=lambda collection: collection.name)


def collection_contents(file: PodioFile, stop: int) -> tuple[Collection, ...]:
    """The same with their content in the first `stop` entries; `unreadable` says why one cannot be read."""
    contents = []
    for collection in list_collections(file):
        name, content = collection.name, dict[str, Any]()
        try:
            with reading("cannot be read", file=file.path, field=name):
                count = count_objects(file, collection, stop)
                content |= {"count": count, "mean": count / max(stop, 1)}
                if file.columns.has(name, "energy"):
                    values = jagged.flat(file.get(range(stop), name, "energy"), np.float64)
                    content["mean_energy"] = float(values[np.isfinite(values)].sum()) / max(stop, 1)
                pairs = link_pairs(file, name, stop) if collection.kind == "Link" else {}
                content["links"] = tuple(f"{start or '?'} -> {end or '?'}" for start, end in pairs)
                content["cell_encoding"] = file.encodings.get(name, "")
        except InputError as error:
            content = {"unreadable": str(error)}
        contents.append(dataclasses.replace(collection, **content))
    return tuple(contents)


def count_objects(file: PodioFile, collection: Collection, stop: int) -> int:
    """Objects of a collection in the first `stop` entries."""
    name = f"{collection.name}{SUBSET}" if collection.subset else collection.name
    members = [member for member in file.columns.members(name) if "[" not in member]  # fixed-size arrays are slow
    return int(jagged.count(file.get(range(stop), name, *members[:1] or [""])).sum())


def link_pairs(file: PodioFile, link: str, stop: int) -> dict[tuple[str, str], int]:
    """How many links of a collection lead from each collection to each other one in the first `stop` entries.

    Counts by names of both ends, most links first; an end in a collection that the file does not name is "". None at
    all if the file has no table of ids, and not all are the hashes of its collections' names.
    """
    ends = []
    for end, names in enumerate((("from", "rec"), ("to", "sim"))):
        branch = relation(file.columns, link, end, *names)
        if branch is None:
            return {}
        ends.append(jagged.flat(file.get(range(stop), branch, "collectionID"), np.int64))
    if len(ends[0]) != len(ends[1]):
        message = f"{len(ends[0])} references from and {len(ends[1])} to objects"
        raise InputError(message, file=file.path, entry=0, field=link)
    id_pairs, counts = np.unique(np.stack(ends, axis=1) & 0xFFFFFFFF, axis=0, return_counts=True)
    if not file.ids_stored and not np.isin(id_pairs, list(file.ids)).all():
        return {}
    pairs: Counter[tuple[str, str]] = Counter()
    for (first, second), number in zip(id_pairs.tolist(), counts.tolist(), strict=True):
        pairs[file.ids.get(first, ""), file.ids.get(second, "")] += number
    return dict(pairs.most_common())


def _is_auxiliary(name: str, file: PodioFile) -> bool:
    """Whether a branch holds references, vector members, parameters or (from uproot) counts, not a collection."""
    if name.startswith(("_", "GP")) or "#" in name:
        return True
    if name.startswith("n") and file.columns.members(name[1:]):
        return True
    owner, _, number = name.rpartition("_")
    return number.isdigit() and bool(file.columns.members(owner)) and name not in file.ids.values()


def _declared(file: PodioFile, name: str) -> str:
    """The type in the metadata, or of a branch ``vector<edm4hep::TrackData>``; "" if the file declares none."""
    kind = re.sub(r"^(?:std::)?vector<(.*)>$", r"\1", file.types.get(name) or file.columns.typename(name))
    if kind.startswith(("podio::LinkCollection", "podio::LinkData")):
        return "Link"
    kind = kind.removesuffix("Collection") if name in file.types else kind.removesuffix("Data")
    if "::" not in kind or kind.startswith("std::"):
        return ""
    return "Link" if kind.endswith(("Association", "Link")) else kind


def _by_members(file: PodioFile, name: str) -> str:
    has = file.columns.has
    if has(name, "weight") and relation(file.columns, name, 1, "to", "sim") is not None:
        return "Link"
    for kind, present, not_there in SIGNATURES:
        if has(name, *present) and not any(has(name, member) for member in not_there):
            return f"edm4hep::{kind}"
    return ""
