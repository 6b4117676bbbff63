"""The one particle that most of a hit or track belongs to, for formats that can say no more."""

from __future__ import annotations

import awkward as ak
import numpy as np

__all__ = ["largest_share"]


def largest_share(links: ak.Array, sources: ak.Array) -> ak.Array:
    """Index of the particle with the largest weight for each source, -1 for a source without a link.

    Parameters
    ----------
    links
        [event, link] records source, particle, weight (see `pflow.event.events`), each source inside its event's list.
    sources
        [event, source]: the hits or tracks that ``source`` counts.

    Returns
    -------
    ak.Array
        int32 [event, source]. Of equal weights the first link wins.
    """
    counts = ak.to_numpy(ak.num(sources, axis=1)).astype(np.int64)
    n_links = ak.to_numpy(ak.num(links, axis=1))
    flat = ak.flatten(links, axis=1)
    source = ak.to_numpy(flat.source) + np.repeat(np.cumsum(counts) - counts, n_links)
    weight = ak.to_numpy(flat.weight)
    by_weight = np.lexsort((-np.arange(len(weight)), weight))
    owner = np.full(int(counts.sum()), -1, dtype=np.int32)
    owner[source[by_weight]] = ak.to_numpy(flat.particle)[by_weight]  # the last assignment stays: the largest
    return ak.unflatten(owner, counts)
