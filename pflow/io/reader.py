"""What every reader of one open file looks like, whatever the format behind it."""

from __future__ import annotations

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
        Optional collections that the detector names and the file does not hold.
    """

    schema: str
    path: str
    uuid: str
    num_entries: int
    detector: Detector
    absent: tuple[str, ...]

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Entries ``start`` to ``stop`` (exclusive), unchecked.

        ``truth=False`` leaves out truth, links and reference: what reconstruction does not need. With
        ``start == stop`` the result has no events and the same parts as any other.

        Raises
        ------
        InputError
            The bytes cannot be decoded; ``entry`` is then the first entry of the range, never None.
        """
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        ...
