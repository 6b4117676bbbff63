"""Reconstruction: the particles that any particle-flow algorithm found in consecutive events."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import LINKED, Events, Flag
from pflow.event.validate import validate_links

__all__ = ["LINKS", "Reconstruction", "concatenate"]

LINKS = ("hit_links", "track_links")
"""Optional parts of a reconstruction."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reconstruction:
    """Reconstructed particles of consecutive events, one list an event, aligned with the input's entries.

    Parameters
    ----------
    particles
        [event, particle] records as `pflow.event.build.make_particles` builds them: pdg, charge [e], energy [GeV],
        mass [GeV], momentum {px, py, pz} [GeV], score; where the algorithm has them, scores (5, one a class) and
        covariance (10) [GeV^2].
    event
        int64 [event]: event number of the input.
    flags
        uint32 [event]: `pflow.event.events.Flag` bits.
    name
        Name of the algorithm, for tables and plots.
    hit_links, track_links
        [event, link] records as `pflow.event.build.make_links` builds them, or None if the algorithm gives none:
        source (int32, hit or track of the input's entry), particle (int32, into the event's particles), weight
        (float32, fraction of the source's energy that the particle has; those of a source sum to at most 1).
    """

    particles: ak.Array
    event: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint32]
    name: str = "PFlow"
    hit_links: ak.Array | None = None
    track_links: ak.Array | None = None

    def __post_init__(self) -> None:
        for field in ("event", "flags", *LINKS):
            part = getattr(self, field)
            if part is not None and len(part) != len(self.particles):
                raise ValueError(f"{field} has {len(part)} events, particles have {len(self.particles)}")

    def __len__(self) -> int:
        return len(self.particles)

    @property
    def optional_parts(self) -> frozenset[str]:
        """Names of the optional parts and fields of particles that are there, e.g. ``hit_links`` and ``scores``."""
        links = {name for name in LINKS if getattr(self, name) is not None}
        return frozenset(links | {"scores", "covariance"} & set(self.particles.fields))

    def finite(self) -> npt.NDArray[np.bool_]:
        """Whether all numbers of each event's particles are finite, bool [event]; a score may be unknown (NaN)."""
        counts = jagged.count(self.particles)
        good = np.ones(int(counts.sum()), dtype=np.bool_)
        for name, column in jagged.columns(self.particles).items():
            if name != "score":
                numbers = np.isfinite(column)
                good &= numbers if numbers.ndim == 1 else numbers.all(axis=1)
        return np.asarray(np.bincount(jagged.event_index(counts)[~good], minlength=len(counts)) == 0)

    def emptied(self, bad: npt.NDArray[np.bool_], flag: Flag) -> Reconstruction:
        """The same events, those where `bad` holds without particles and links, and flagged."""
        if not bad.any():
            return self
        parts = {name: part for name in ("particles", *LINKS) if (part := getattr(self, name)) is not None}
        values = {name: jagged.emptied(part, bad) for name, part in parts.items()}
        flags = self.flags | np.where(bad, np.uint32(flag), np.uint32(0))
        return dataclasses.replace(self, flags=flags.astype(np.uint32), **values)

    def __getitem__(self, where: slice | npt.NDArray[np.bool_]) -> Reconstruction:
        """Some of the events: a range, or those where a mask is True."""
        links = {name: part[where] for name in LINKS if (part := getattr(self, name)) is not None}
        return dataclasses.replace(
            self, particles=self.particles[where], event=self.event[where], flags=self.flags[where], **links
        )

    def check_links(self, name: str, events: Events) -> None:
        """Check that links, ``hit_links`` or ``track_links``, are of these very events.

        Raises
        ------
        InputError
            They point to hits, tracks or particles that are not there, or their weights are impossible.
        """
        violations = validate_links(name, getattr(self, name), getattr(events, LINKED[name]), self.particles)
        if violations:
            raise events.error(
                f"{self.name}: {violations[0].message}; made from another file?",
                index=violations[0].index,
                field=violations[0].field,
            )


def concatenate(chunks: Sequence[Reconstruction]) -> Reconstruction:
    """One reconstruction from consecutive chunks of one; the name is the first one's.

    Links and fields that not all chunks with particles have are dropped.

    Raises
    ------
    ValueError
        Nothing to join.
    """
    if not chunks:
        raise ValueError("no reconstructions to concatenate")
    if len(chunks) == 1:
        return chunks[0]
    # A chunk without particles knows neither optional fields nor links: it has none of those of the others.
    holds = [len(jagged.flat_records(chunk.particles)) > 0 for chunk in chunks]
    if not any(holds):
        holds = [True] * len(chunks)

    def joined(parts: Sequence[ak.Array | None]) -> ak.Array | None:
        known = [part for part, any_here in zip(parts, holds, strict=True) if any_here]
        if any(part is None for part in known):
            return None
        nothing = jagged.flat_records(known[0])[:0]
        return ak.concatenate(
            [
                part if any_here else jagged.unflatten(nothing, np.zeros(len(chunk), dtype=np.int64))
                for part, any_here, chunk in zip(parts, holds, chunks, strict=True)
            ]
        )

    found = [chunk.particles for chunk, any_here in zip(chunks, holds, strict=True) if any_here]
    fields = [field for field in found[0].fields if all(field in one.fields for one in found)]
    particles = joined(
        [chunk.particles[fields] if any_here else None for chunk, any_here in zip(chunks, holds, strict=True)]
    )
    assert particles is not None
    return dataclasses.replace(
        chunks[0],
        particles=particles,
        event=np.concatenate([chunk.event for chunk in chunks]),
        flags=np.concatenate([chunk.flags for chunk in chunks]),
        hit_links=joined([chunk.hit_links for chunk in chunks]),
        track_links=joined([chunk.track_links for chunk in chunks]),
    )
