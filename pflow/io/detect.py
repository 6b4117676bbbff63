"""Recognise the detector of a file by collection names and ECAL hits."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from pflow.config import builtin_names
from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.events import Events
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.edm4hep.reader import Edm4hepReader, missing_collections
from pflow.physics.detector import Detector, load_detector

if TYPE_CHECKING:
    from pflow.io.open import Reader

MAX_ENTRIES = 10  # entries that are read
MIN_EVENTS = 5  # in which the innermost hit must lie near the front face: one neutral hadron may shower late
OUTLIERS = 0.01  # fraction of hits that may lie elsewhere (displaced, or of a wrongly named subdetector)
MARGIN = 10.0  # how far inside the nominal surface a hit may lie, mm
SLACK = 50.0  # how far outside, mm: support structure between the nominal surface and the first cell
CORNER = 1 / math.cos(math.pi / 8)  # outer to inner radius of an octagon; smaller for barrels with more sides


class NoDetectorError(InputError):
    """No built-in detector fits a file, or several fit equally well; `summary` says which in a few words."""

    def __init__(self, summary: str, advice: str, *, file: str) -> None:
        super().__init__(f"{summary}; {advice}", file=file)
        self.summary = summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectorMatch:
    """How well a detector fits a file."""

    detector: Detector
    geometry: bool | None = None  # whether the ECAL hits lie where its ECAL is; None if that cannot be told
    matched: int = 0  # number of its collections that the file holds
    absent: int = 0  # number of optional ones that it does not
    missing: tuple[tuple[str, ...], ...] = ()  # alternatives of each required part that it lacks

    @property
    def fits(self) -> bool:
        """Whether the file holds all required parts and the geometry does not contradict."""
        return not self.missing and self.geometry is not False

    @property
    def reason(self) -> str:
        """Why the detector does not fit, or "" if it does."""
        if self.missing:
            return f"no collection {', no '.join(' or '.join(names) for names in self.missing)}"
        if self.geometry is False:
            radius, z = self.detector.ecal_inner_radius, self.detector.ecal_inner_z
            place = f"barrel from r = {radius:g} mm, endcap from |z| = {z:g} mm"
            return f"the ECAL hits do not lie where its ECAL is ({place})"
        return ""


def geometry_fits(events: Events, detector: Detector) -> bool | None:
    """Whether the ECAL hits of events of any detector lie where the ECAL of `detector` is; None if they cannot tell.

    At least 99 % of the hits must lie in the volume, the innermost near its front face (with fewer than five events
    that have hits, a late shower decides nothing). A barrel is a polygon of at least eight sides, so its front lies
    between the inscribed radius and 1.08 times that; an endcap is flat.
    """
    radius, outer, z = detector.ecal_inner_radius, detector.ecal_outer_radius, detector.ecal_inner_z
    barrel = _inside(events, "barrel", radius - MARGIN, radius * CORNER + SLACK, outer * CORNER + SLACK)
    endcap = _inside(events, "endcap", z - MARGIN, z + SLACK, z + outer - radius + 2 * SLACK)
    if barrel is False or endcap is False:
        return False
    return True if barrel or endcap else None


def fitting_detectors(file: PodioFile, *, sim: bool | None = None) -> list[DetectorMatch]:
    """Every built-in detector that can be read, best match first; `sim` as for `pflow.io.edm4hep.reader.Edm4hepReader`.

    First those that fit, then by confirmed geometry, fewest optional collections absent, and most collections matched.
    """
    detectors = [load_detector(name) for name in builtin_names("detector")]
    if sim:
        detectors = [detector for detector in detectors if any(part.sim_collections for part in detector.calorimeters)]
    return sorted((_match(file, detector, sim) for detector in detectors), key=_rank)


def best_detector(file: PodioFile, *, sim: bool | None = None) -> Detector:
    """The built-in detector that fits a file best; if several do, the one that the file names. Else NoDetectorError."""
    matches = fitting_detectors(file, sim=sim)
    fitting = [match for match in matches if match.fits]
    if not fitting:
        reasons = "; ".join(f"{match.detector.name}: {match.reason}" for match in matches)
        advice = f"name a detector file of your own (pflow detector drafts one). {reasons}"
        raise NoDetectorError("no built-in detector fits", advice, file=file.path)
    stated = file.parameters.get("detectorName", ())
    fitting.sort(key=lambda match: (_rank(match), match.detector.name not in stated))
    equal = [match.detector.name for match in fitting if _rank(match) == _rank(fitting[0])]
    if len(equal) > 1 and equal[0] not in stated and file.columns.num_entries:
        summary = f"fits the detectors {' and '.join(equal)} equally well"
        raise NoDetectorError(summary, "say which one it is from", file=file.path)
    return fitting[0].detector


def _rank(match: DetectorMatch) -> tuple[bool, bool, int, int, int]:
    return not match.fits, match.geometry is not True, len(match.missing), match.absent, -match.matched


def _match(file: PodioFile, detector: Detector, sim: bool | None) -> DetectorMatch:
    missing = tuple(missing_collections(file, detector, sim=sim))
    if missing:
        names = (name for system in detector.calorimeters for name in (*system.collections, *system.sim_collections))
        return DetectorMatch(detector=detector, matched=sum(map(file.columns.has, names)), missing=missing)
    reader = Edm4hepReader(file, detector=detector, sim=sim)
    events = first_entries(reader)
    return DetectorMatch(
        detector=detector,
        matched=sum(map(len, reader.sources.values())),
        absent=len(reader.absent),
        geometry=None if events is None else geometry_fits(events, detector),
    )


def first_entries(reader: Reader) -> Events | None:
    """The first entries, None if they cannot be decoded."""
    try:
        return reader.read(0, min(MAX_ENTRIES, reader.num_entries), truth=False)
    except InputError as error:
        if error.entry is None:
            raise
        return None


def _inside(events: Events, region: str, lowest: float, front: float, highest: float) -> bool | None:
    """Whether ECAL hits lie at r or |z|, mm, from `lowest` to `highest`, the first before `front`; None: unknown."""
    calorimeters = events.detector.calorimeters
    ecal = [i for i, part in enumerate(calorimeters) if (part.kind, part.region) == ("ecal", region)]
    hits = jagged.columns(events.hits)
    x, y, z = (hits[f"position.{axis}"] for axis in "xyz")
    values = np.hypot(x, y) if region == "barrel" else np.abs(z)
    usable = np.isin(hits["subdetector"], ecal) & np.isfinite(values) & (hits["energy"] > 0)  # or at the origin
    values = values[usable]
    if not len(values):
        return None
    if np.mean((values < lowest) | (values > highest)) > OUTLIERS:
        return False
    if np.quantile(values, OUTLIERS) <= front:
        return True
    n_events = len(np.unique(jagged.event_index(jagged.count(events.hits))[usable]))
    return False if n_events >= MIN_EVENTS else None
