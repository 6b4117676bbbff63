"""Reconstruction: what any particle-flow algorithm answers for consecutive events, ours or another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import awkward as ak
import numpy as np
import numpy.typing as npt

__all__ = ["Reconstruction", "concatenate"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reconstruction:
    """Reconstructed particles of consecutive events, one list an event, aligned with the input's entries.

    Parameters
    ----------
    particles
        [event, particle] records as `pflow.records.make_particles` builds them: pdg, charge [e], energy [GeV],
        mass [GeV], momentum {px, py, pz} [GeV], score.
    event
        int64 [event]: event number of the input.
    flags
        uint32 [event]: `pflow.events.Flag` bits.
    name
        Name of the algorithm, for tables and plots.
    """

    particles: ak.Array
    event: npt.NDArray[np.int64]
    flags: npt.NDArray[np.uint32]
    name: str = "PFlow"

    def __post_init__(self) -> None:
        for field in ("event", "flags"):
            if len(getattr(self, field)) != len(self.particles):
                raise ValueError(
                    f"{field} has {len(getattr(self, field))} events, particles have {len(self.particles)}"
                )

    def __len__(self) -> int:
        return len(self.particles)

    def __getitem__(self, where: slice) -> Reconstruction:
        """A range of the events."""
        return dataclasses.replace(
            self, particles=self.particles[where], event=self.event[where], flags=self.flags[where]
        )


def concatenate(chunks: Sequence[Reconstruction]) -> Reconstruction:
    """One reconstruction from consecutive chunks of one; the name is the first one's.

    Raises
    ------
    ValueError
        Nothing to join.
    """
    if not chunks:
        raise ValueError("no reconstructions to concatenate")
    if len(chunks) == 1:
        return chunks[0]
    return dataclasses.replace(
        chunks[0],
        particles=ak.concatenate([chunk.particles for chunk in chunks]),
        event=np.concatenate([chunk.event for chunk in chunks]),
        flags=np.concatenate([chunk.flags for chunk in chunks]),
    )
