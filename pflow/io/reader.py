"""The interface of the readers, one of each schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from pflow.event.events import Events
from pflow.physics.detector import Detector

__all__ = ["Reader"]


@runtime_checkable
class Reader(Protocol):
    """One open file of one schema.

    Parameters
    ----------
    schema
        ``edm4hep``, ``edm4hep-rntuple``, ``flat`` or ``legacy-hdf5``.
    path
        The file.
    uuid
        The file's UUID, "" if it has none.
    num_entries
        Entries of its tree.
    detector
        Detector that its hits are sorted into.
    absent
        Optional collections of the detector that the file does not hold.
    sources
        Collections that are read, by part and calorimeter; empty for schemas without named collections.
    truth_tracks
        Whether its tracks are made from Monte Carlo particles.
    """

    schema: str
    path: str
    uuid: str
    num_entries: int
    detector: Detector
    absent: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    truth_tracks: bool

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Read the entries `start` to `stop` (exclusive) without validating them.

        ``truth=False`` leaves out truth, links and reference. A range without entries has the same parts as any other.

        Raises
        ------
        InputError
            The bytes cannot be decoded; ``entry`` is then the first entry of the range, never None.
        """
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        ...
