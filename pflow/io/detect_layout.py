"""Which built-in layout a flat ntuple has: several have the same branches, and where the hits are tells them apart."""

from __future__ import annotations

from os import PathLike

from pflow.config import builtin_names
from pflow.errors import PflowError
from pflow.io.detect_detector import first_events, geometry_fits
from pflow.io.flat import FlatReader
from pflow.io.layout import load_layout
from pflow.physics.detector import Detector

__all__ = ["DEFAULT", "best_layout"]

DEFAULT = "g4"
"""The layout of a file that no layout fits better; reading it says what is missing."""


def best_layout(path: str | PathLike[str], detector: Detector | None = None) -> str:
    """Name of the built-in layout of a flat ntuple.

    Files that pflow wrote have the default one. Of another file the first entries are read: the layout is that of the
    detector whose ECAL lies where the ECAL hits are.

    Parameters
    ----------
    path
        A flat ntuple.
    detector
        What the file is to be read as, if that is known: the layout that belongs to it is taken unread.
    """
    names = sorted(builtin_names("layout"), key=lambda name: name != DEFAULT)
    if detector is not None:
        return next((name for name in names if load_layout(name).detector == detector.name), DEFAULT)
    for name in names:
        try:
            reader = FlatReader(str(path), layout=name)
        except PflowError:
            continue
        try:
            if name == DEFAULT and reader.has_note:
                return name
            events = first_events(reader)
        finally:
            reader.close()
        if events is not None and geometry_fits(events, events.detector):
            return name
    return DEFAULT
