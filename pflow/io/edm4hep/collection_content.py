"""What the collections of a podio file hold, without any detector."""

from __future__ import annotations

import dataclasses

import numpy as np

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.collections import count_objects, link_pairs, list_collections
from pflow.io.edm4hep.podio import PodioFile

__all__ = ["CollectionContent", "collection_contents"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionContent:
    """What one collection holds.

    Parameters
    ----------
    name, type, kind, subset, unreadable
        As of `pflow.io.edm4hep.collections.Collection`.
    count, mean
        Objects in the entries that were looked at, and per entry.
    mean_energy
        Summed energy per entry, GeV; None for objects without.
    cell_encoding
        Bit field of its cell ids; "" if the file does not say.
    links
        Of links: ``A -> B`` for the collections at their ends, those with most links first.
    """

    name: str
    type: str
    kind: str
    subset: bool
    unreadable: str
    count: int
    mean: float
    mean_energy: float | None
    cell_encoding: str
    links: tuple[str, ...]


def collection_contents(file: PodioFile, stop: int) -> tuple[CollectionContent, ...]:
    """Every collection of a file, sorted by name; counts are over the first `stop` entries.

    Raises
    ------
    InputError
        The bytes cannot be decoded.
    """
    contents = []
    for own in list_collections(file):
        count = count_objects(file, own, 0, stop)
        contents.append(
            CollectionContent(
                name=own.name,
                type=own.type,
                kind=own.kind,
                subset=own.subset,
                unreadable=own.unreadable,
                count=count,
                mean=count / max(stop, 1),
                mean_energy=_mean_energy(file, own.name, stop),
                cell_encoding=file.encodings.get(own.name, ""),
                links=_links(file, own.name, stop) if own.kind == "Link" else (),
            )
        )
    return tuple(contents)


def _mean_energy(file: PodioFile, name: str, stop: int) -> float | None:
    if not file.columns.has(name, "energy"):
        return None
    energy = jagged.flat(file.columns.get(name, "energy", start=0, stop=stop), np.float64)
    return float(energy[np.isfinite(energy)].sum()) / max(stop, 1)


def _links(file: PodioFile, name: str, stop: int) -> tuple[str, ...]:
    """Ends of links; "" where the file does not name a collection, none where its ids cannot be told apart."""
    try:
        pairs = link_pairs(file, name, 0, stop)
    except InputError as error:
        if error.field != "podio_metadata":
            raise
        return ()
    return tuple(f"{start or '?'} -> {end or '?'}" for start, end in pairs)
