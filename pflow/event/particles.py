"""Reconstruction: an algorithm's particles in consecutive events."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import EventLists, Events
from pflow.event.jagged import Links
from pflow.event.schema import LINKED, PXYZ, validate_part
from pflow.physics.arrays import Floats, Index, Mask

LINKS = ("hit_links", "track_links")  # optional parts of a reconstruction

TRUTH_OPTIONS = ("rule", "e_min", "stable_status", "invisible")
"""How a model's targets are chosen, of `pflow.event.truth.select_targets`: an evaluation's default."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Reconstruction(EventLists):
    """Reconstructed particles of consecutive events, aligned with the input's entries.

    Parameters
    ----------
    particles
        [event, particle] records from `pflow.event.schema.make_particles`: four-momenta (`vector`), so that
        ``particles.pt``, ``particles.mass`` and ``+`` work, with pdg, charge [e] and score; if the algorithm gives
        them, existence (a probability), scores (5, one a class) and covariance (10) [GeV^2]. Sum, count and cluster
        them without weights: they exist more probably than not, and their energies hold given this list.
    event, flags
        Event number of the input, int64 [event]; `pflow.event.events.Flag` bits, uint32 [event].
    name
        Name of the algorithm, for tables and plots.
    hit_links, track_links
        [event, link] records, or None if the algorithm gives none: source (hit or track of the event), particle,
        weight (the particle's fraction of the source's energy; a source's weights sum to at most 1).
    candidates
        Records like `particles` for less probable ones, with the energy that each has if it exists, and without links;
        None if not requested. Do not sum them.
    trained_with
        Truth rule and its options (`TRUTH_OPTIONS`) of the model's training; None: not known, or there was no training.

    Examples
    --------
    >>> reco = pflow.reconstruct(pflow.read_events("multi_test_small.root", entry_stop=2), "general")
    >>> reco
    <Reconstruction: 2 events by PFlow, 5 particles, 1293 hit_links, 4 track_links>
    >>> ak.sum(reco.particles, axis=-1).mass  # GeV
    <Array [2.32, 13.5] type='2 * float...'>
    """

    part_names = ("particles", *LINKS, "candidates")

    particles: ak.Array
    event: Index
    flags: npt.NDArray[np.uint32]
    name: str = "PFlow"
    hit_links: ak.Array | None = None
    track_links: ak.Array | None = None
    candidates: ak.Array | None = None
    trained_with: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for field in ("event", "flags", *LINKS, "candidates"):
            part = getattr(self, field)
            if part is not None and len(part) != len(self.particles):
                raise ValueError(f"{field} has {len(part)} events, particles have {len(self.particles)}")

    def _summary(self) -> str:
        return f"{super()._summary()} by {self.name}"

    @property
    def optional_parts(self) -> frozenset[str]:
        """Names of the optional parts and particle fields that it has, e.g. ``hit_links`` and ``scores``."""
        parts = {name for name in (*LINKS, "candidates") if getattr(self, name) is not None}
        return frozenset(parts | {"existence", "scores", "covariance"} & set(self.particles.fields))

    def finite(self) -> Mask:
        """Whether all numbers of each event's particles are finite, bool [event]; a score may be unknown (NaN)."""
        columns, counts = jagged.columns(self.particles), jagged.count(self.particles)
        return jagged.finite_events([values for name, values in columns.items() if name != "score"], counts)

    def check_events(self, events: Events) -> None:
        """Raise `InputError` unless `events` have the same length and event numbers."""
        if len(events) != len(self):
            raise events.error(f"{len(events)} events here, reconstruction '{self.name}' has {len(self)}")
        for index in np.flatnonzero(events.event != self.event)[:1]:
            ours = f"in reconstruction '{self.name}' {self.event[index]}: not made from this file, or not in its order"
            raise events.error(f"is event number {events.event[index]}, {ours}", index=index)

    def track_momentum(self, events: Events) -> Floats:
        """Each event's sum of track momenta, GeV, float64 [event, 3]: in total, in neutral particles, in no particle.

        Without links from tracks, the part in no particle is the total minus the momenta of the charged particles, and
        the part in neutral particles is NaN.
        """
        if events.tracks is None:
            return np.zeros((len(self), 3))
        n, n_tracks, n_particles = len(self), jagged.count(events.tracks), jagged.count(self.particles)
        momentum = np.linalg.norm(jagged.vectors(events.tracks.momentum), axis=1)
        total = np.bincount(jagged.event_index(n_tracks), momentum, n)
        columns = jagged.columns(self.particles)
        charged = columns["charge"] != 0
        if self.track_links is None:
            neutral = np.full(n, np.nan)
            of_charged = charged * np.sqrt(sum(columns[axis].astype(np.float64) ** 2 for axis in PXYZ))
            used = np.bincount(jagged.event_index(n_particles), of_charged, n)
        else:
            links = Links.of(self.track_links)
            shares = links.weight * momentum[links.flat_source(n_tracks)]
            neutral = np.bincount(links.event, shares * ~charged[links.flat_particle(n_particles)], n)
            used = np.bincount(links.event, shares, n)
        return np.stack([total, neutral, np.maximum(total - used, 0)], axis=1)

    def check_links(self, name: str, events: Events) -> None:
        """Raise `InputError` if ``hit_links`` or ``track_links`` point outside these events."""
        sources = getattr(events, LINKED[name])
        n_sources = np.zeros(len(events), dtype=np.int64) if sources is None else jagged.count(sources)
        sizes = {LINKED[name]: n_sources, "truth": jagged.count(self.particles)}
        for violation in validate_part(name, getattr(self, name), sizes)[:1]:
            message = f"{self.name}: {violation.message}; made from another file?"
            raise events.error(message, index=violation.index, field=violation.field)


def concatenate(chunks: Sequence[Reconstruction]) -> Reconstruction:
    """Join chunks of a reconstruction; links and fields that a chunk with particles lacks are dropped."""
    if not chunks:
        raise ValueError("no reconstructions to concatenate")
    if len(chunks) == 1:
        return chunks[0]
    # A chunk without particles lacks optional fields and links, but must not drop them from the others.
    filled = [bool(jagged.count(chunk.particles).any()) for chunk in chunks]
    filled = filled if any(filled) else [True] * len(chunks)

    def joined(name: str) -> ak.Array | None:
        given = [getattr(chunk, name) for chunk in chunks]
        some = [part is not None and bool(jagged.count(part).any()) for part in given]  # candidates without particles
        rows = zip(given, chunks, filled, some, strict=True)
        parts = [part if full or has else len(chunk) for part, chunk, full, has in rows]
        return None if any(part is None for part in parts) else jagged.concatenate(parts)

    values: dict[str, Any] = {name: joined(name) for name in Reconstruction.part_names}
    values |= {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("event", "flags")}
    return dataclasses.replace(chunks[0], **values)
