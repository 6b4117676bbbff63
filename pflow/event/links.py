"""Links from hits and tracks (sources) to particles, with weights."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array

from pflow.event import jagged

__all__ = ["MIN_HIT_FRACTION", "assigned_particle", "largest_weight", "shared_sources", "sum_by_pair", "sum_neighbours"]

MIN_HIT_FRACTION = 0.01
"""Smaller fractions of a hit or track are not stored as links."""

Index = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def sum_by_pair(source: Index, particle: Index, weight: Floats) -> tuple[Index, Index, Floats]:
    """Sum the weights [L] of links with the same source and particle; sorted by source, then particle."""
    lowest = int(particle.min(initial=0))
    stride = int(particle.max(initial=0)) - lowest + 1
    pairs, at = np.unique(source * stride + particle - lowest, return_inverse=True)
    return pairs // stride, pairs % stride + lowest, np.bincount(at, weight, len(pairs)).astype(np.float64)


def sum_neighbours(source: Index, particle: Index, weight: Floats) -> None:
    """`sum_by_pair` of links in the order of their sources; changes `particle` and `weight` in place.

    Each source's sums overwrite its first links; the remaining links get weight 0. Fast where most sources have one
    link, as in most files.
    """
    is_several = np.zeros(len(source), dtype=np.bool_)
    again = source[1:] == source[:-1]
    is_several[1:] = again
    is_several[:-1] |= again
    several = np.flatnonzero(is_several)
    sources, particles, weights = sum_by_pair(source[several], particle[several], weight[several])
    n_before = np.searchsorted(sources, sources)  # sums of earlier sources
    place = several[np.searchsorted(source[several], sources) + np.arange(len(sources)) - n_before]
    weight[several] = 0.0
    particle[place], weight[place] = particles, weights


def largest_weight(source: Index, particle: Index, weight: npt.NDArray[np.floating[Any]]) -> Index:
    """The link with the largest weight of each source; of equal weights, that to the particle of the lowest index.

    Parameters
    ----------
    source, particle
        int [L]: the hit or track, and the particle, of each link; indices over all events.
    weight
        float [L].

    Returns
    -------
    int64 [number of different sources]
        Indices into the links, by rising source.
    """
    order = np.lexsort((particle, -weight, source))
    _, first = np.unique(source[order], return_index=True)
    return np.asarray(order[first])


def assigned_particle(links: ak.Array, sources: ak.Array) -> ak.Array:
    """Index of the particle with the largest weight of each source (see `largest_weight`), -1 for one without a link.

    Parameters
    ----------
    links
        [event, link] records source, particle, weight (see `pflow.event.events`), each source inside its event's list.
    sources
        [event, source]: the hits or tracks that ``source`` counts.

    Returns
    -------
    ak.Array
        int32 [event, source].
    """
    n_sources = jagged.count(sources)
    source = jagged.global_index(links.source, n_sources)
    particle = jagged.flat(links.particle)
    largest = largest_weight(source, particle, jagged.flat(links.weight))
    assigned = np.full(int(n_sources.sum()), -1, dtype=np.int32)
    assigned[source[largest]] = particle[largest]
    return jagged.unflatten(assigned, n_sources)


def shared_sources(
    ours: tuple[Index, Index, Floats], theirs: tuple[Index, Index, Floats], energy: npt.NDArray[np.floating[Any]]
) -> tuple[Index, Index, Floats]:
    """Energy that each of our particles and each of others have in common, through links from the same sources.

    Parameters
    ----------
    ours, theirs
        Source, particle and weight of each link, [L] each; indices over all events.
    energy
        float [source]: energy of each hit, GeV, or 1 of each track.

    Returns
    -------
    particle, other : int64 [pair]
        Pairs that share a source, sorted by particle.
    shared : float64 [pair]
        Sum over the sources of energy, our weight and their weight.
    """

    def matrix(links: tuple[Index, Index, Floats], scale: Any) -> Any:
        source, particle, weight = links
        shape = (int(particle.max(initial=-1)) + 1, len(energy))
        return coo_array((weight * scale, (particle, source)), shape=shape).tocsr()

    if not len(ours[0]) or not len(theirs[0]):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    product = (matrix(ours, np.asarray(energy, np.float64)[ours[0]]) @ matrix(theirs, 1.0).T).tocoo()
    order = np.lexsort((product.col, product.row))
    return product.row[order].astype(np.int64), product.col[order].astype(np.int64), product.data[order]
