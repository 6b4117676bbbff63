"""Which detector a file is from: by the names of its collections, and by where its ECAL hits are."""

from __future__ import annotations

import dataclasses
import math

import awkward as ak
import numpy as np

from pflow.config import builtin_names
from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.events import Events
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.reader import Edm4hepReader, missing_collections
from pflow.io.reader import Reader
from pflow.physics.detector import Detector, load_detector

__all__ = [
    "DetectorMatch",
    "NoDetectorError",
    "best_detector",
    "detector_matches",
    "first_events",
    "fitting_detectors",
    "geometry_fits",
]

MAX_ENTRIES = 10
"""Entries that are read."""

MIN_EVENTS = 5
"""Events with hits from which on the innermost hit must lie near the front face: one neutral hadron may shower late."""

OUTLIERS = 0.01
"""Fraction of hits that may lie elsewhere (displaced, or of a wrongly named subdetector)."""

MARGIN = 10.0
"""How far inside the nominal surface a hit may lie, mm."""

SLACK = 50.0
"""How far outside, mm: support structure between the nominal surface and the first cell."""

CORNER = 1 / math.cos(math.pi / 8)
"""Radius of the corner of an octagonal barrel over that of its flat; barrels with more sides lie below."""


class NoDetectorError(InputError):
    """No built-in detector fits a file, or several fit equally well; `summary` says which in a few words."""

    def __init__(self, summary: str, advice: str, *, file: str) -> None:
        super().__init__(f"{summary}; {advice}", file=file)
        self.summary = summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectorMatch:
    """How well a detector fits a file.

    Parameters
    ----------
    detector
        The detector.
    matched
        Calorimeter, track and tracker-hit collections that the file holds.
    missing
        Alternatives of each required part of which it holds none.
    absent
        Optional collections that it does not hold.
    geometry
        Whether the ECAL hits lie where this detector's ECAL is; None if that cannot be told.
    """

    detector: Detector
    matched: tuple[str, ...]
    missing: tuple[tuple[str, ...], ...]
    absent: tuple[str, ...]
    geometry: bool | None

    @property
    def fits(self) -> bool:
        """Whether nothing required is missing and the geometry does not speak against it."""
        return not self.missing and self.geometry is not False

    @property
    def reason(self) -> str:
        """Why it does not fit, or "" if it does."""
        if self.missing:
            return f"no collection {', no '.join(' or '.join(names) for names in self.missing)}"
        if self.geometry is False:
            return (
                f"the ECAL hits do not lie where its ECAL is (barrel from r = {self.detector.ecal_inner_radius:g} mm,"
                f" endcap from |z| = {self.detector.ecal_inner_z:g} mm)"
            )
        return ""


def geometry_fits(events: Events, detector: Detector) -> bool | None:
    """Whether the ECAL hits of the events lie where the ECAL of a detector is; None if the hits cannot tell.

    All but 1 % of the hits must lie in the volume, and the innermost near its front face (with fewer than five events
    that have hits, a late shower decides nothing). A barrel is a polygon of at least eight sides, so its front lies
    between the inscribed radius and 1.08 times that; an endcap is flat.

    Parameters
    ----------
    events
        Hits sorted into the subdetectors of ``events.detector``, which need not be `detector`.
    detector
        The one in question.
    """
    thickness = detector.ecal_outer_radius - detector.ecal_inner_radius
    barrel = _inside(
        _distances(events, "barrel"),
        detector.ecal_inner_radius - MARGIN,
        detector.ecal_inner_radius * CORNER + SLACK,
        detector.ecal_outer_radius * CORNER + SLACK,
    )
    endcap = _inside(
        _distances(events, "endcap"),
        detector.ecal_inner_z - MARGIN,
        detector.ecal_inner_z + SLACK,
        detector.ecal_inner_z + thickness + 2 * SLACK,
    )
    if barrel is False or endcap is False:
        return False
    return True if barrel or endcap else None


def fitting_detectors(file: PodioFile, *, sim: bool | None = None) -> list[DetectorMatch]:
    """Every built-in detector that can be read, best match first; `sim` as for `pflow.io.edm4hep.reader.Edm4hepReader`.

    Order: those that fit, then those whose geometry is confirmed, then the fewest optional collections absent, then
    the most collections matched.
    """
    detectors = [load_detector(name) for name in builtin_names("detector")]
    if sim:
        detectors = [detector for detector in detectors if any(own.sim_collections for own in detector.calorimeters)]
    return sorted((_match(file, detector, sim) for detector in detectors), key=_rank)


def detector_matches(reader: Reader) -> list[DetectorMatch]:
    """Every built-in detector for an open file of any schema, best match first.

    In a schema without named collections only the geometry of the first entries decides; among equals the detector that
    the file is read as comes first.
    """
    if isinstance(reader, Edm4hepReader):
        return fitting_detectors(reader.file, sim=reader.sim)
    events = first_events(reader)
    matches = [
        DetectorMatch(
            detector=detector,
            matched=(),
            missing=(),
            absent=(),
            geometry=None if events is None else geometry_fits(events, detector),
        )
        for detector in map(load_detector, builtin_names("detector"))
    ]
    return sorted(matches, key=lambda match: (_rank(match), match.detector != reader.detector))


def best_detector(file: PodioFile, *, sim: bool | None = None) -> Detector:
    """The built-in detector that fits a file best.

    Raises
    ------
    NoDetectorError
        None fits, with the reason for each; or two fit equally well and the file has entries.
    """
    matches = fitting_detectors(file, sim=sim)
    fitting = [match for match in matches if match.fits]
    if not fitting:
        reasons = "; ".join(f"{match.detector.name}: {match.reason}" for match in matches)
        raise NoDetectorError(
            "none of the built-in detectors fits",
            f"name a detector file of your own (pflow detector drafts one). {reasons}",
            file=file.path,
        )
    best = fitting[0]
    equal = [match.detector.name for match in fitting if _rank(match) == _rank(best)]
    if len(equal) > 1 and file.columns.num_entries:
        raise NoDetectorError(
            f"fits the detectors {' and '.join(equal)} equally well", "say which one it is from", file=file.path
        )
    return best.detector


def _rank(match: DetectorMatch) -> tuple[bool, bool, int, int, int]:
    return (
        not match.fits,
        match.geometry is not True,
        len(match.missing),
        len(match.absent),
        -len(match.matched),
    )


def _match(file: PodioFile, detector: Detector, sim: bool | None) -> DetectorMatch:
    missing = tuple(missing_collections(file, detector, sim=sim))
    if missing:
        names = [
            name
            for calorimeter in detector.calorimeters
            for name in (*calorimeter.collections, *calorimeter.sim_collections)
            if file.columns.has(name)
        ]
        return DetectorMatch(detector=detector, matched=tuple(names), missing=missing, absent=(), geometry=None)
    reader = Edm4hepReader(file, detector=detector, sim=sim)
    events = first_events(reader)
    return DetectorMatch(
        detector=detector,
        matched=tuple(name for names in reader.sources.values() for name in names),
        missing=(),
        absent=reader.absent,
        geometry=None if events is None else geometry_fits(events, detector),
    )


def first_events(reader: Reader) -> Events | None:
    """The first entries, None if they cannot be decoded."""
    try:
        return reader.read(0, min(MAX_ENTRIES, reader.num_entries), truth=False)
    except InputError as error:
        if error.entry is None:
            raise
        return None


def _distances(events: Events, region: str) -> ak.Array:
    """[event, hit] radius of the ECAL hits of the barrel, or |z| of those of the endcaps, mm; only finite ones."""
    calorimeters = events.detector.calorimeters
    wanted = [i for i, own in enumerate(calorimeters) if own.kind == "ecal" and own.region == region]
    subdetector = events.hits.subdetector
    chosen = ak.unflatten(np.isin(jagged.flat(subdetector), wanted), jagged.count(subdetector))
    position = events.hits.position[chosen]
    values = position.rho if region == "barrel" else abs(position.z)
    return values[np.isfinite(values)]


def _inside(distances: ak.Array, lowest: float, front: float, highest: float) -> bool | None:
    """Whether hits lie between `lowest` and `highest`, the innermost before `front`; None if they cannot tell."""
    values = jagged.flat(distances)
    if not len(values):
        return None
    if np.mean((values < lowest) | (values > highest)) > OUTLIERS:
        return False
    if np.quantile(values, OUTLIERS) <= front:
        return True
    return False if ak.sum(ak.num(distances) > 0) >= MIN_EVENTS else None
