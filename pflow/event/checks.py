"""Check that events are plausible: their scales alone, and against a model's training sample.

`compare` checks the `Scales` of events, `problems` gives the texts of the failed checks.

Expected values hold for every sampling calorimeter: a trail has a hit in nearly every layer, minimum ionising particles
leave similar energies per radiation length, isolated hadrons leave three quarters of their momentum. Halves of a
detector are alike, and so are the events of a file. The limits hold for all samples that were tried: simplified ILD and
CLD (Geant4), a calorimeter of lead and scintillator tiles, and CLD's full simulation and reconstruction. A model's
training sample narrows some.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, first_line, warn
from pflow.event.closure import HADRON_RESPONSE, HARD, MIN_MOMENTUM, N_LAYERS
from pflow.event.events import ImplausibleWarning
from pflow.event.scales import BUSY, LARGEST, VERY_HARD, SampleScales, Scales, Table
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import ECAL, FACES, HCAL, KINDS, Calorimeter, Detector, calibration_digest
from pflow.physics.geometry import ECAL_MEASURES, FIELD, barrel_shape, kind_index, layer_pitches, measures

MANY = {"hits of the ECAL": 100, "hits of the HCAL": 100, "tracks": 6}
"""Objects of an event of many particles; smaller events may lack a kind of them."""
COUNTED = {
    "n_hits": "hits",
    "tracks": "tracks",
    "particles": "true particles",
    "n of reference": "particles of the reference",
}
"""Columns of events with numbers of objects, and what these are."""
# Part of the largest number below which events show how often one number occurs by chance, and the smallest that is a
# limit; found: up to four events, of tracks.
NEAR_MOST, MIN_MOST = 0.1, 30

# Standard deviations beyond the plausible range from which a value, and a block of a file, is reported.
SURE, VERY_SURE = 3.0, 5.0
SPREAD = 0.06  # relative spread of a ratio of an event's energies that is assumed beside the measured one
MIN_TRACKS, MIN_HALF = 8, 20  # fewest tracks in the barrel, the endcaps or a sector, and in half of them
MIN_HITS = 200  # fewest hits of a calorimeter
OF_PHOTONS = 0.05  # showers of hadrons in an event with hits in an HCAL; found: of photons 0.001, of single ones 0.1
SCATTER = 0.06  # largest difference of the quartiles of momentum errors of particles from the IP
N_BLOCKS = 25  # parts of a file that are compared,
BLOCK = {"trails": 20, "stubs": 20, "linked": 20, "tracks": 20, "events": 5}  # and their smallest sizes
SECTORS = 16  # parts of azimuth: an octant that has no hits holds one of them as a whole
HALVES = {"at +x": "x", "at +y": "y", "at +z": "z"}  # and the axes that divide them
MIN_BESIDE, MIN_EVENTS_BESIDE = 20, 8  # hits and events of the next layer, from which on a layer without any is dead,
MANY_BESIDE = 100  # or its hits in fewer events
MIN_OTHERS = 10  # fewest events beside a run that lacks hits
CHANCE = 1e-4  # largest probability of what is said of some events
LAYER_SCALE, RANGE_SCALE = 2.2, 1.8  # largest plausible ratio of hits' energies per radiation length in a layer, and in
UNKNOWN_SCALE = 3.0  # a range of them, to others'; and where the lengths are not known: layers may be thicker
GROUP_SCALE = 2.3  # the same for a sector of azimuth, a side, ...; healthy files: up to 2.0
# Events of many tracks have minimum ionising particles everywhere: largest plausible difference of logarithms, and
# standard deviations beyond it; found in 18,000 groups of hits: at most 5.3 of them beyond 0.12.
ALIKE, ALIKE_SURE = 0.15, 6.0
MIN_EVENTS_SCALED = 3  # fewest events of such a group
ODD_SCALE = 2.5  # largest ratio of the smallest energies of an event's hits to other events'; found: 0.72 to 1.80
MIN_EXPECTED, DEAD = 9, 0.1  # fewest events that should have hits in a sector or on a side, and smallest part that has
NEAR_LARGEST, SATURATED = 0.9, 10  # of the largest energy, and hits above it, from which on there is a limit
LATE = 6.0  # ns after light from the IP that the latest hit of hadronic showers has; found: at least 9
DENSE = 4.0, 0.1  # times the energy of the fifth hit, and the share of hits above that showers have; of muons: to 0.07
LIGHT = 299.8  # mm/ns
FLIGHT = 5.0  # ns: median of times that contain the flight of light
OFF_TIME = 10.0  # ns: most of the first quartile behind light; found: 0.25, and a proton of 0.5 GeV takes 7 to the ECAL
RANGES = {"in layers 0 to 4": (0, 5), "in layers 0 to 9": (0, 10), "in layers 10 to 19": (10, 20)}
RANGES["from layer 20 on"] = (20, 1000)

CELLS = {"ecal": (11.0, 1.4), "hcal": (20.3, 1.48)}
"""Expected `LOWER` quantile of the hit energies, MeV per radiation length of a layer, and largest plausible ratio to
it: minimum ionising particles set it, with or without showers. Measured: 9.5 to 12.8 in ECALs of silicon and tungsten
and of scintillator and lead, 20.4 in one of steel, 13 (photons) to 28 in HCALs of scintillator and steel, times
`hadron_scale`: the energy is that of the absorber, whatever the kind."""
HEAVY = 15.0  # radiation lengths per interaction length of a layer: 9 to 11 in steel and copper, 22 to 31 in W and Pb
LOWER = 0.2
HIT_ENERGY = (2e-5, 1.0)  # GeV, plausible medians of hits where the layers are not described
UNNUMBERED = 0.01  # smallest implausible fraction of hits without a layer beside others with one
ON_LAYERS = 0.85  # smallest plausible fraction of hits on the layer of their depth, or the next one
CELL_SIZE = 1.5  # largest plausible ratio of cell sizes to the described ones
FRONT = 0.01  # largest plausible fraction of a calorimeter's energy in front of it; healthy files have none
OUTSIDE, PLACE = 0.05, 60.0  # largest plausible fraction of hits farther than this, mm, outside their calorimeter
MIN_NEAR, TWICE = 10, 0.05  # fewest hits, and their largest plausible fraction in another one's cell
MANY_NEAR = 60  # fewest hits of which two surely lie in neighbouring cells
MIN_ASTRAY, ASTRAY = 3, 0.015  # fewest hard tracks without hits, and the energy that they may have of all; found: 0.002
ASTRAY_IN_ONE = 0.4  # the same in one event, found: 0.26, where a hadron breaks up in the tracker
UNCHECKED = "closure"  # name of the check that says what too few tracks leave unknown


class Check(NamedTuple):
    """Result of one check."""

    name: str
    good: bool
    text: str


def problems(checks: Iterable[Check]) -> str:
    """Texts of the failed checks, each once; "" if all pass."""
    return "; ".join(dict.fromkeys(check.text for check in checks if not check.good))


def warn_of(checks: Iterable[Check], where: str) -> None:
    """Warn of the failed checks of the events of `where`; log what could not be checked, which is no fault."""
    checks = list(checks)
    if said := problems(checks):
        warn(f"{where}: {said}", ImplausibleWarning)
    for check in checks:
        if check.name == UNCHECKED:
            logging.getLogger("pflow").info("%s: %s", where, check.text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What a verb knows of the events that it reads.

    `targets`: options of `pflow.event.truth.select_targets`; None: the verb uses no targets. `sample`: scales of the
    model's training sample; None: there is no model, or its checkpoint has none.
    """

    targets: Mapping[str, Any] | None = None
    sample: SampleScales | None = None


class Estimate(NamedTuple):
    """A mean, quantile or ratio with its standard deviation, of `n` values."""

    value: float
    sigma: float
    n: int

    @classmethod
    def of(cls, values: Floats, quantile: float | None = None) -> Estimate:
        """Mean or quantile of the finite values, NaN for less than two; neighbouring quantiles give its error."""
        values = values[np.isfinite(values)]
        n = len(values)
        if n < 2:
            return cls(np.nan, np.inf, n)
        if quantile is None:  # a share that is 0 or 1 so far has an error, too
            return cls(float(values.mean()), float(np.sqrt((values.var() + 0.25 / n) / n)), n)
        step = np.sqrt(quantile * (1 - quantile) / n)
        low, value, high = np.quantile(values, np.clip([quantile - step, quantile, quantile + step], 0, 1))
        return cls(float(value), float(high - low) / 2, n)

    @classmethod
    def ratio(cls, part: Floats, total: Floats) -> Estimate:
        """Ratio of two sums over events where both are known; its error from the spread of the events."""
        known = np.isfinite(part) & np.isfinite(total) & (total > 0)
        part, total = part[known].astype(np.float64), total[known].astype(np.float64)
        if not (n := len(total)):
            return cls(np.nan, np.inf, 0)
        ratio = float(part.sum() / total.sum())
        # Few events say little of the spread, one nothing.
        spread = float(np.sqrt(((part - ratio * total) ** 2).sum())) / total.sum()
        return cls(ratio, float(np.hypot(spread, SPREAD * ratio / np.sqrt(n))), n)


class Quantity(NamedTuple):
    """A column of a table with the plausible range of its `quantile`, of its mean (None) or its ratio to `over`.

    `text`: message with the value and the number `n` of rows, to which `wrong` is appended where it is not plausible.
    `halves` and `changes`: largest plausible difference of a half or a sector of the detector from the rest, and of a
    part of a file; of logarithms if `relative`. Fewer rows than `least` (or, of the column `counted`, a smaller sum)
    say nothing. `each`: plausible means or ratios of single events, of `of_each` rows (or sum) and more.
    """

    name: str
    column: str
    text: str
    low: float = -np.inf
    high: float = np.inf
    quantile: float | None = None
    over: str = ""
    wrong: str = ""
    halves: float = np.inf
    changes: float = np.inf
    relative: bool = False
    least: int = 8
    counted: str = ""
    each: tuple[float, float] = (-np.inf, np.inf)
    of_each: int = 4

    def estimate(self, table: Table, rows: Any = slice(None)) -> Estimate:
        """The value in some rows of a table."""
        values = table[self.column][rows]
        return Estimate.ratio(values, table[self.over][rows]) if self.over else Estimate.of(values, self.quantile)

    def separation(self, first: Estimate, second: Estimate, tolerance: float = 0.0) -> float:
        """By how many standard deviations two values, or their logarithms, differ by more than `tolerance`."""
        (a, da), (b, db) = (
            (np.log(of.value), of.sigma / of.value) if self.relative and of.value > 0 else of[:2]
            for of in (first, second)
        )
        return float((abs(a - b) - tolerance) / max(np.hypot(da, db), 1e-9))

    def value(self, estimate: Estimate) -> str:
        """The value in the format of the text."""
        return format(estimate.value, self.text.partition("{:")[2].partition("}")[0])


def _share(name: str, column: str, text: str, of: str, **limits: Any) -> Quantity:
    """The share that a column has of the sum `of` things, of which there are at least `least`."""
    return Quantity(name, column, text, over=of, counted=of, **limits)


SOME = (0.01, np.inf)  # plausible of single events where anything but 0 is

QUANTITIES: dict[str, tuple[Quantity, ...]] = {}
"""By table, with the smallest and largest plausible value, and the quantile; their texts stand before them."""

TRACKLESS_HITS = "{:.1%} of the energy of hits is behind places where charged particles enter the ECAL without a track"
TRUE = "hits have {:.2f} times the energy of stable particles that shower"
MASSLESS = "momenta of the particles of the reference are {:.2f} times their energies"
OVER_TRUE = "particles of the reference have {:.2f} times the energy of true ones"
OVER_LEAST = "particles of the reference have {:.2f} times the smaller of true energy and hits"
OVER_SEEN = "particles of the reference have {:.2f} times the energy of hits or tracks"
PARTICLES = "particles have {:.2f} times the energy of hits or tracks"
SHOWERS = "particles but muons have {:.2f} times the energy of hits"
TRACKLESS = "{:.0%} of the charged particles of the reference have no track of their charge and momentum"
LONE = "{{:.1%}} of the {} have no other hit within some 0.07 rad, in {{n}} events"
CODES = "{:.0%} of the true particles have another charge than their PDG code says, or an unknown code"
CODES_OF_REFERENCE = CODES.replace("true particles have", "particles of the reference have")
VERTICES = "the simulation's farthest vertices are at {:.2g} times the distance of the ECAL's face, in {n} events"
PARENTS = "{:.0%} of the simulation's particles have no parent or one of less energy, or are stable as their parent is"
COPIED = "{:.0%} of the stable true particles have the momentum of another one"
COPIED_REFERENCE = COPIED.replace("stable true particles", "particles of the reference")
BEAMWARDS = "{:.0%} of the visible energy of stable true particles goes along the beam"
UNSEEN = ", outside the detector: are beam particles or initial-state photons marked as stable?"
BORN = "{:.0%} of the energy of stable true particles begins behind the ECAL's face"
ENDS = ": do their vertices say where they end, and not where they begin?"
IN_ALL = "{} of the reference have {{:.2f}} times the energy of true ones"
FOUND = IN_ALL.format("photons")
OVERLAID = "{:.0%} of the energy of stable particles that shower is of overlaid background"
NO_SIGNAL = ": its particles are reconstructed, too, but the true visible energy does not include it"
DECAYED = "{:.0%} of the targets of {n} events are taus, pi0 or others that decay at once, or partons"
ENTERING = ": give rule 'entering', or the status of stable particles"
NO_TARGET = "{:.1%} of the hits' energy belongs to no target"
SHARE = f"tracks of {{n}} events with {BUSY} or more in jets have {{:.2f}} of the energy of their hits"
PLAUSIBLE = " (0.45 to 1.05 are plausible: look at the field, {b_field:g} T, units and scales)"
QUANTITIES["events"] = (
    # Found: 0.6 in CLD's jets, 0.7 in the ILD's, 0.9 in taus; it goes with the field.
    Quantity("share of tracks", "jets", SHARE, 0.45, 1.05, over="energy", wrong=PLAUSIBLE, least=3),
    # Found: 0.2% to 2.1%; with a fifth of the tracks lost 5% to 8%, without those above 10 GeV 11% to 31%.
    Quantity(
        "lost tracks", "trackless", TRACKLESS_HITS, high=0.03, over="energy", wrong=": are tracks lost?", changes=0.05
    ),
    # Of few particles, too.
    Quantity("units", "energy", TRUE, 1 / 30, 30.0, over="true", least=1, changes=np.log(3.0), relative=True),
    Quantity("reference", "reference momentum", MASSLESS, 0.7, 1.05, over="reference", least=1),
    Quantity("reference", "reference", OVER_TRUE, high=1.25, over="seen", counted="n visible", least=20),
    Quantity("reference", "reference", OVER_LEAST, low=0.75, over="least seen", counted="n visible", least=20),
    # Found in single events: 0.77 to 1.52.
    Quantity("reference", "reference", OVER_SEEN, 0.6, 2.0, over="most", least=1, each=(0.5, 2.0), of_each=1),
    # Of events of a few GeV, which are not compared one by one.
    Quantity("reference", "reference", OVER_SEEN, 0.4, 2.5, over="all most", counted="all most", least=50),
    # Of a reconstruction, with the detector's scales; found: 0.97 to 1.41 and 0.97 to 1.20, in one event to 1.56.
    *(
        Quantity("reconstructed energy", *of, over=over, counted="energy", each=(0.0, 2.2), of_each=20)
        for over, of in (
            ("most scaled", ("reconstructed", PARTICLES, 0.75, 1.8)),
            ("scaled", ("showering", SHOWERS, 0.0, 1.6)),
        )
    ),
    _share(
        "charged reference", "without track", TRACKLESS, "charged reference", high=0.2, changes=0.5, each=(0.0, 0.5)
    ),
    # Found: up to 0.9% and 4%, with 200 noise hits in an event from 2% and 7%; in one event of a neutron 5.6%.
    *(
        Quantity("noise", f"lone {hits}", LONE.format(hits), high=most, over=hits, wrong=": noise?", least=4)
        for hits, most in (("hits of the ECAL", 0.03), ("hits of the HCAL", 0.12))
    ),
    _share("reference twice", "copies of reference", COPIED_REFERENCE, "n of reference", high=0.01, least=20),
    _share("codes of the reference", "wrong reference", CODES_OF_REFERENCE, "n of reference", high=0.1),
    _share("codes", "wrong charges", CODES, "particles", high=0.1),
    Quantity("vertices", "vertex", VERTICES, 0.15, 5.0, 0.9, wrong=": is their unit mm?", least=20),
    _share("parents", "astray", PARENTS, "n of parents", high=0.05, wrong=": parents or status are wrong"),
    # Found: none, at most 0.02 in an event, none.
    _share("truth twice", "copies", COPIED, "n stable", high=0.01, wrong=": they occur twice", least=20),
    Quantity("beam", "along the beam", BEAMWARDS, high=0.3, over="visible", wrong=UNSEEN),
    Quantity("vertices", "born outside", BORN, high=0.8, over="visible", wrong=ENDS),
    # Found, of 50 true ones: 0.85 to 1.34 and 0.5 to 1.6.
    *(
        Quantity("reference", f"found {of}", IN_ALL.format(of), *limits, over=f"true {of}", counted=f"n {of}", least=50)
        for of, limits in (("photons", (0.65, 1.5)), ("neutral hadrons", (0.35, 2.2)))
    ),
    Quantity("reference", "found photons", FOUND, over="true photons", counted="n photons", least=20, changes=0.3),
    # What showers is counted roughly, and a single antiproton deposits more than its energy.
    Quantity("response", "energy", TRUE, 0.3, 1.5, over="true", counted="n true", least=20),
    Quantity("overlay", "overlay", OVERLAID, high=0.05, over="true", wrong=NO_SIGNAL, least=1),
    _share("targets", "decayed", DECAYED, "n targets", high=0.01, wrong=ENTERING, least=1),
    _share("targets", "no target", NO_TARGET, "energy", low=-0.25, high=0.25, changes=0.5),
)

LINKED = "{{:.0%}} of the {} is linked to particles"
PT_RATIO = "transverse momenta of tracks are {:.3f} times their {n} particles' momenta in {b_field:g} T"
OFF_TRACKS = "{:.0%} of {n} tracks have the charge, momentum (to 10%) and direction (to 0.03 rad) of their particles"
ANGLE = "tracks are {:.2g} rad from their {n} particles (median)"
OWN_HELIX = "{:.0%} of {n} tracks have the charge and momentum of their omega, phi and tan_lambda in {b_field:g} T"
QUANTITIES["tracks"] = (
    Quantity("track parameters", "own", OWN_HELIX, 0.75, wrong=": are these in 1/mm and rad, and of the same state?"),
    Quantity("links", "linked", LINKED.format("tracks"), 0.75),
    Quantity("linked tracks", "linked", LINKED.format("tracks"), 0.9, least=100),
    Quantity("field", "pt_ratio", PT_RATIO, 0.98, 1.02, 0.5, wrong="; {fit:.3g} T would fit", changes=0.02),
    Quantity("momenta", "right", OFF_TRACKS, 0.85, halves=0.15, each=(0.5, np.inf)),
    Quantity("momenta", "hard right", OFF_TRACKS.replace("tracks", "tracks above 5 GeV"), 0.85),
    Quantity("track directions", "angle", ANGLE, high=0.005, quantile=0.5, changes=0.005),
)

BESIDE = "a quarter of {n} photons lie more than {:.2g} rad from the hits linked to them"
OF_LINKED = "hits have {{:.2f}} times the energy of the {{n}} {} that they are linked to (median)"
NEUTRAL = "hits have {:.2f} times the energy of the {n} neutral hadrons that they are linked to (mean)"
SCALED = ", with the detector's scales: is hadron_scale wrong, or are they of another class?"
IN_AN_HCAL = "{{:.0%}} of the energy of {{n}} {}, by links, is in an HCAL"
ANOTHER = ": are they of another class?"
QUANTITIES["linked"] = (
    Quantity("photons", "angle", BESIDE, high=0.01, quantile=0.75),
    Quantity("photons", "photon", OF_LINKED.format("photons"), 0.9, 1.2, 0.5, changes=0.15, relative=True),
    # Found: 0.13 to 0.43, 0.42 to 0.81, and 0.
    Quantity("classes", "muon", OF_LINKED.format("muons"), high=0.6, quantile=0.5, wrong=ANOTHER),
    # With the detector's scales; found: 0.68 to 0.81.
    Quantity("hadron scale", "neutral", NEUTRAL, 0.65, 0.88, wrong=SCALED, least=20),
    Quantity(
        "classes", "neutral share", IN_AN_HCAL.format("neutral hadrons"), 0.15, quantile=0.5, wrong=ANOTHER, least=20
    ),
    Quantity("classes", "electron share", IN_AN_HCAL.format("electrons"), high=0.2, wrong=ANOTHER),
)

ENTRIES = "{:.0%} of {n} tracks have hits of the ECAL where they enter"
LAYERS = "{n} tracks have hits in {:.0%} of the first layers of the ECAL"
ENTERS = "hits of the ECAL lie {:.1f} cells beside the entry points of {n} tracks, in "
HELIX = "the helix from the IP leads {:.0%} of {n} tracks to their state at the calorimeter"
MOMENTA = "momenta of {n} tracks differ by {:+.1%} from what their hits in the ECAL imply"
IN_HCAL = "{:.0%} of {n} tracks above 3 GeV have hits of the HCAL behind them"
BEHIND = "hits of the HCAL lie {:.1f} cells beside {n} tracks, in "
LEAVE = "{n} isolated hadrons leave {:.2f} of their momentum"
LEAST, MOST = HADRON_RESPONSE / 1.3, HADRON_RESPONSE * 1.3
OFF = f" ({LEAST:.2f} to {MOST:.2f} are plausible: look at hadron_scale, lengths, units and field)"
CELL = "a minimum ionising particle leaves {{:.3g}} GeV in a cell of the {}, by {{n}} tracks"
OWN = "{:.0%} of the hits where {n} tracks enter are linked to the track's particle"
HALF_OWN = "half of {n} tracks have up to {:.0%} of the hits where they enter linked to their particle"
QUANTITIES["trails"] = (  # lengths in cells
    Quantity("entries", "trail", ENTRIES, 0.65, halves=0.15, changes=0.3, each=(0.3, np.inf)),
    Quantity("lost hits", "layers", LAYERS, 0.93, halves=0.06, changes=0.15),
    Quantity("place", "ecal_azimuth", f"{ENTERS}azimuth", -0.6, 0.6, 0.5, changes=1.0),
    Quantity("place", "ecal_polar", f"{ENTERS}polar angle", -0.6, 0.6, 0.5, changes=1.0),
    Quantity("helix", "helix", HELIX, 0.6, halves=0.3, changes=0.4),
    Quantity("curvature", "momentum", MOMENTA, -0.02, 0.02, 0.5, changes=0.05),
    Quantity("charges", "opposite", "{:.0%} of {n} tracks bend against their charge", high=0.1),
    Quantity("HCAL", "behind", IN_HCAL, 0.55, halves=0.25, changes=0.5, each=SOME),
    # Found: at least 0.85; with half of the hits up to 0.75.
    Quantity("lost hits", "hcal_layers", LAYERS.replace("ECAL", "HCAL"), 0.82, halves=0.1, changes=0.2),
    Quantity("HCAL place", "hcal_azimuth", f"{BEHIND}azimuth", -1.0, 1.0, 0.5, changes=2.0),
    Quantity("HCAL place", "hcal_polar", f"{BEHIND}polar angle", -1.0, 1.0, 0.5, changes=2.0),
    Quantity("response of hadrons", "response", LEAVE, LEAST, MOST, 0.5, "", OFF, 0.3, 0.7, relative=True),
    Quantity("ECAL cells", "ecal_cell", CELL.format("ECAL"), quantile=0.5, halves=0.1, changes=0.2, relative=True),
    Quantity("HCAL cells", "hcal_cell", CELL.format("HCAL"), quantile=0.25, halves=0.25, changes=1.0, relative=True),
    Quantity("tracks twice", "twice", "{:.0%} of {n} tracks enter the calorimeter where another one does", high=0.02),
    Quantity("links of trails", "own", OWN, 0.9, changes=0.2),
    Quantity("links of trails", "hcal_own", OWN.replace("enter", "enter the HCAL"), 0.6, changes=0.3),
    # Sure with fewer tracks than the mean, which one track in the wrong place changes.
    Quantity("links of trails", "own", HALF_OWN, 0.9, quantile=0.5),
)

LOST = "no track leads to {:.0%} of the {n} places where charged particles enter the ECAL"
NO_TRACK = ": tracks are lost, or hits lie elsewhere"
# Found: 0.02 to 0.18, of secondary particles.
QUANTITIES["stubs"] = (
    Quantity("lost tracks", "lost", LOST, high=0.3, wrong=NO_TRACK, halves=0.2, changes=0.3, least=5),
)

PIONS = "photons have some {:.2f} times their energy, by the masses of {n} pairs near the pi0's (median)"
# Found: 0.98 to 1.01; also pairs of any mass are as often below as above.
QUANTITIES["pairs"] = (Quantity("photon energies", "mass", PIONS, 0.96, 1.04, 0.5, least=20),)

TWO_HITS = "{:.0%} of the hits of PART lie in the cell of another one"
OF_ENERGY = LINKED.format("energy of PART")
FIFTH = "a fifth of the hits of PART have less than {:.3g} GeV in {n} events"
OF_PARTS = (  # columns of events, of each calorimeter
    # Found in halves of a file: up to 0.06; of jets of 45 and of 250 GeV, and of taus: 0.08.
    Quantity("hit energies", "fifth PART", FIFTH, quantile=0.5, changes=0.12, relative=True),
    _share("hits twice", "twice PART", TWO_HITS, "cells PART", high=TWICE, least=MIN_NEAR, changes=0.3),
    Quantity("links", "linked PART", OF_ENERGY, 0.75, over="energy PART", least=1, changes=0.5),
    # Noise has no links; of few hits some per cent say nothing.
    Quantity("linked hits", "linked PART", OF_ENERGY, 0.95, over="energy PART", counted="hits PART", least=2000),
    Quantity("linked hits", "linked PART", OF_ENERGY, over="energy PART", counted="hits PART", each=SOME, of_each=100),
)

TOO_FEW = (
    ("trail", f"tracks above {MIN_MOMENTUM:g} GeV", "their hits in the ECAL", "ecal"),
    ("behind", f"tracks above {HARD:g} GeV", "their hits in the HCAL", "hcal"),
    ("response", "isolated hadrons", "their energy over momentum", "hcal"),
)
"""Columns of trails that need `MIN_TRACKS` tracks, which these are, what else is not checked, kind of calorimeter."""

EXACT = ("targets", "links", "linked hits", "linked tracks")  # shares of what is there, which have no error

NARROWED = {"response": 1.2, "ecal_cell": 1.2, "hcal_cell": 1.25}
"""Largest plausible ratio to the training sample's value, which is in `SampleScales.trails`."""

COMPARED = (
    ("max_energy", "energy", 3.0, "events have up to {} GeV in hits"),
    ("opening", "opening", 5.0, "the energy of a typical event spreads over {} rad around its direction"),
    ("b_field", "", 1.05, "tracks are curved as in {} T"),
)
"""Compared with the training sample's scales: attribute, the column of events where it may be smaller than there,
largest plausible ratio, text of the message."""

BEYOND = 1.02  # largest plausible ratio of a detector's measures to the range of the training
FAR = 2.0  # for an ECAL: with 9 instead of 22 radiation lengths and cells of 40 mm `general` finds half of the photons
UNLIKE = 3.0  # ratio from which on a detector cannot be read: `general` gives photons in crystals 1.8 of their energy


def compare(scales: Scales, sample: SampleScales | None = None) -> list[Check]:
    """Check the scales of events, by themselves and against the training sample of a model."""
    if (detector := scales.detector) is None:
        return []
    checks = [*_quantities(scales, detector, sample), *_each_event(scales, detector), *_calorimeters(scales, detector)]
    checks += [*_dead_parts(scales, detector), *_too_few(scales, detector)]
    checks += [*_hard_tracks(scales), *_changes(scales, detector)]
    checks += [] if sample is None else _sample(scales, detector, sample)
    said: dict[str, dict[bool, dict[str, None]]] = {}  # texts by name and result, without repetition
    for name, good, text in checks:
        said.setdefault(name, {True: {}, False: {}})[bool(good)][text] = None
    return [
        Check(name, not of[False], "; ".join(of[False]) or GENERAL.get(name) or "; ".join(of[True]))
        for name, of in said.items()
    ]


def _measured(scales: Scales, detector: Detector, names: Iterable[str]) -> Iterator[tuple[str, Table, Quantity]]:
    """Name and columns of these tables with each quantity that they have; of events, each calorimeter's, too."""
    named = ("column", "text", "over", "counted")
    of_parts = [
        q._replace(**{field: getattr(q, field).replace("PART", part.name) for field in named})
        for part in detector.calorimeters
        for q in OF_PARTS
    ]
    for name in names:
        table = scales.table(name)
        for q in (*QUANTITIES[name], *of_parts):
            if {q.column, q.over or q.column} <= table.keys():
                yield name, table, q


def _quantities(scales: Scales, detector: Detector, sample: SampleScales | None) -> Iterator[Check]:
    """Quantities within their plausible ranges, by region; halves of the detector alike."""
    for _, table, q in _measured(scales, detector, QUANTITIES):
        known, regions = np.isfinite(table[q.column]), {}
        if "endcap" in table:
            endcap = table["endcap"] > 0
            regions = {" in the barrel": known & ~endcap, " in the endcaps": known & endcap}
            regions = {where: inside for where, inside in regions.items() if inside.sum() >= q.least}
        for where, inside in (regions or {"": known}).items():
            estimate = q.estimate(table, inside)
            if (table[q.counted].sum() if q.counted else estimate.n) < q.least or np.isnan(estimate.value):
                continue
            # Momentum errors scatter if the particles do not come from the IP.
            if q.name == "curvature" and np.ptp(np.quantile(table[q.column][inside], [0.25, 0.75])) > SCATTER:
                continue
            text = q.text.format(estimate.value, n=estimate.n, b_field=detector.b_field) + where
            expected = None if sample is None or estimate.n < MIN_HALF else sample.trails.get(q.column)
            step, more = 0.0 if q.name in EXACT else SURE * estimate.sigma, ""
            good = q.low - step <= estimate.value <= q.high + step
            if not good:
                more = q.wrong.format(fit=detector.b_field / (estimate.value or np.inf), b_field=detector.b_field)
            elif expected:
                good = q.separation(estimate, Estimate(expected, 0.0, 0), np.log(NARROWED[q.column])) <= SURE
                more = "" if good else f", and in the training sample of the model {expected:.3g}"
            yield Check(q.name, good, text + more)
            for side, mine in _sides(table).items() if q.halves < np.inf else ():
                part, others = (q.estimate(table, inside & some) for some in (mine, ~mine))
                few = MIN_TRACKS if q.quantile is None and side not in HALVES else MIN_HALF
                sure = SURE if side in HALVES else VERY_SURE  # of 16 sectors one is off by chance
                if min(part.n, others.n) >= few and q.separation(part, others, q.halves) > sure:
                    found = f"{q.value(part)} of {part.n} {side}, {q.value(others)} elsewhere"
                    yield Check(q.name, False, f"{text}: {found}")


def _too_few(scales: Scales, detector: Detector) -> Iterator[Check]:
    """Say in which regions too few tracks were compared with what they leave, and what is not known there."""
    trails = scales.table("trails")
    endcap = trails.get("endcap", np.zeros(0)) > 0
    regions = {"the barrel": ~endcap, "the endcaps": endcap}
    for column, what, unknown, kind in TOO_FEW:
        known = np.isfinite(trails.get(column, np.zeros(0)))
        n_tracks = {where: np.count_nonzero(known & inside) for where, inside in regions.items()}
        few = {where: n for where, n in n_tracks.items() if n < MIN_TRACKS}
        # Where each region has too few, `_quantities` takes both together.
        together = len(few) == 2 and sum(few.values()) >= MIN_TRACKS
        if few and not together and any(part.kind == kind for part in detector.calorimeters):
            found = " and ".join(f"{n} in {where}" for where, n in few.items())
            yield Check(UNCHECKED, True, f"too few {what} to check {unknown}: {found} ({MIN_TRACKS} are needed)")
            regions = {where: inside for where, inside in regions.items() if where not in few}


def _sides(place: Table) -> dict[str, Mask]:
    """`HALVES` of a detector and `SECTORS` of azimuth by name, bool [row] of the columns x, y and z."""
    sides = {half: place[axis] > 0 for half, axis in HALVES.items()}
    sector = np.floor(SECTORS / 2 * (np.arctan2(place["y"], place["x"]) / np.pi + 1)) % SECTORS
    edges = [f"{i * 360 / SECTORS - 180:g}" for i in range(SECTORS + 1)]
    names = (f"between {low} and {high} degrees of azimuth" for low, high in itertools.pairwise(edges))
    return sides | {name: sector == i for i, name in enumerate(names)}


def _each_event(scales: Scales, detector: Detector) -> Iterator[Check]:
    """Find events that lack what others have, are on another scale, there twice, or of parts of different events."""
    for name, text, table, odd in _odd_events(scales, detector) if scales.table("events") else ():
        yield Check(name, not odd.any(), f"{_entries(scales, table, odd)}: {text}")
    for _, table, q in _measured(scales, detector, QUANTITIES):
        known = np.isfinite(table[q.column]) & np.isfinite(q.each).any()
        in_endcap = table.get("endcap", np.zeros(len(known)))
        for end in np.unique(in_endcap[known]):
            region = _rows(table, known & (in_endcap == end))
            _, group, n = np.unique(_event(region), return_inverse=True, return_counts=True)
            part, total, count = (
                np.bincount(group, np.nan_to_num(region[column])) if column else n
                for column in (q.column, q.over, q.counted)
            )
            value = np.divide(part, total, where=total > 0, out=np.full(len(total), np.nan))
            odd = (count >= q.of_each) & ((value < q.each[0]) | (value > q.each[1]))
            if q.over == q.counted:
                expected = (part[~odd].sum() + 0.5) / (total[~odd].sum() + 1)
                odd[odd] = _no_chance(value[odd], expected, total[odd], len(n))
            # Where half of all are so, it is said of all.
            if odd.any() and 2 * np.count_nonzero(odd[group]) < len(group):
                text = q.text.format(part[odd].sum() / total[odd].sum(), n=n[odd].sum())
                yield Check(q.name, False, f"{_entries(scales, region, odd[group])}: {text}")


def _no_chance(share: Floats, expected: float, n: Floats, n_events: int) -> Mask:
    """Which of events are off in a share of `n` by more than chance, which brings some of `n_events` about."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pairs = (share, expected), (1 - share, 1 - expected)
        # Logarithm of the inverse probability, at least.
        surprise = n * sum(np.where(ours > 0, ours * np.log(ours / theirs), 0.0) for ours, theirs in pairs)
    order, number = np.argsort(-surprise), 1 + np.arange(len(n))
    # The most surprising of them are so together; so many events can be chosen in as many ways.
    together = np.cumsum(surprise[order]) - number * (1 + np.log(n_events / number))
    return np.isin(number - 1, order[: number[together > -np.log(CHANCE)].max(initial=0)])


def _odd_events(scales: Scales, detector: Detector) -> Iterator[tuple[str, str, Table, Mask]]:
    """Name of a check, its text, a table, and its rows of events to which it applies."""
    table = scales.table("events")

    counts = {name: table[name] for name in MANY if name in table and np.count_nonzero(table[name]) >= 3}
    least = {name: np.quantile(count[count > 0], 0.1) for name, count in counts.items()}
    large = {name: counts[name] >= least[name] for name in counts if least[name] >= MANY[name]}
    for name in large:
        # Hits are expected of many tracks, tracks of many hits in both: two photons leave none in the HCAL.
        others = [other for other in MANY if (other == "tracks") != (name == "tracks")]
        if large.keys() >= {*others}:
            without = (counts[name] == 0) & np.all([large[other] for other in others], axis=0)
            yield "empty events", f"no {name}, and most other events have at least {least[name]:.0f}", table, without
    momentum = table.get("momentum", np.zeros(1)).sum()
    no_hits = np.full(len(table["n_hits"]), momentum > HARD and not table["n_hits"].any())
    yield "empty events", f"no event has hits, and their tracks have {momentum:.4g} GeV", table, no_hits
    for part in (part for part in detector.calorimeters if part.kind in CELLS):
        text = f"no hits of {part.name}, which other events have"
        yield "empty events", text, table, _run_without(table, f"hits {part.name}")
        known = np.isfinite(fifth := table[f"fifth {part.name}"])
        # A crystal sees whole showers, of any energy.
        if part.n_layers >= N_LAYERS and known.any():
            odd = np.abs(np.log(fifth / np.median(fifth[known]))) > np.log(ODD_SCALE)
            text = f"energies of hits of {part.name} are on another scale than in other events"
            yield "scales of events", text, table, odd
    stable = table.get("n stable", np.zeros(1))
    is_gun = stable[0] > 0 and np.ptp(stable) == 0  # the same number of particles, and of tracks, in each event
    counted = {f"hits {part.name}": f"hits of {part.name}" for part in detector.calorimeters}
    for column, what in (counted | ({"n_hits": "hits"} if is_gun else COUNTED)).items():
        if column in table and (most := (count := table[column]).max()) >= MIN_MOST:
            near = (count >= (1 - NEAR_MOST) * most) & (count < most)
            # Without truth: a gun of 40 muons has 39 tracks in about as many events as 40.
            by_chance = max(np.count_nonzero(near) / (NEAR_MOST * most), np.count_nonzero(count == most - 1))
            n_most = np.count_nonzero(at_most := count == most)
            text = f"{n_most} events have {most:.0f} {what}, and none has more: are lists cut off there?"
            yield "limits", text, table, at_most & (n_most >= 5 + 2 * by_chance)

    absurd = table["absurd"] > 0
    absurd &= 2 * np.count_nonzero(absurd) < max(len(absurd), 3)  # else all are so: in another unit
    text = f"single hits have more than {LARGEST:g} GeV (up to {table['absurd'].max():.3g})"
    yield "scales of events", text, table, absurd

    begins = _rows(table, np.isfinite(table["start"]))
    _, group, n = np.unique(begins["start"] + 1j * begins["place"], return_inverse=True, return_counts=True)
    text = f"{n[n > 1].sum()} events begin with the hits of another one: they are there twice, or lists of hits"
    yield "events twice", f"{text} were not emptied between events", begins, n[group] > 1


def _rows(table: Table, rows: Any) -> dict[str, npt.NDArray[Any]]:
    """Some rows of a table."""
    return {name: values[rows] for name, values in table.items()}


def _event(table: Table) -> npt.NDArray[np.complex128]:
    """One number for the event of each row, which rises by file, then by entry."""
    return table["file"] + 1j * table["entry"]


def _run_without(table: Table, column: str) -> Mask:
    """Events of many particles, one after the other, of which none has what nearly all others have."""
    names = [name for name in ("hits of the ECAL", "tracks") if name in table]
    busy = np.flatnonzero(np.all([table[name] >= MANY[name] for name in names], axis=0))
    busy = busy[np.lexsort((table["entry"][busy], table["file"][busy]))]
    edges = np.flatnonzero(np.diff(table[column][busy] == 0, prepend=False, append=False))
    begin, end = max(edges.reshape(-1, 2).tolist(), key=lambda run: run[1] - run[0], default=(0, 0))
    others = np.delete(table[column][busy], slice(begin, end)) == 0
    # There are as many places for a run as events; where one or none of the others is so, two might be.
    by_chance = len(busy) * (max(others.sum(), 2) / max(len(others), 1)) ** (end - begin)
    said = by_chance < CHANCE and len(others) >= MIN_OTHERS
    return np.isin(np.arange(len(table[column])), busy[begin:end]) & said


GENERAL = {
    "limits": "numbers of hits, tracks and particles are not cut off",
    "empty events": "no event lacks what others have",
    "scales of events": "hits of all events are on the same scale",
    "events twice": "no two events begin with the same hits",
    "changes": "all parts of the file are alike",
    "cells": "hits of calorimeters have the energy of minimum ionising particles",
    "hits twice": "no two hits are in one cell",
    "cell size": "cells are as large as described",
    "faces": "hits lie within their calorimeters as described",
    "layers": "layers follow the depth of the hits",
    "times": "hits come with light from the IP, and the latest are those of hadronic showers",
    "dead parts": "ECAL and HCAL have hits at all azimuths and on both sides",
    "links": "hits and tracks are linked to particles",
}
"""Texts of what holds for all events, calorimeters or parts of a file."""


def _calorimeters(scales: Scales, detector: Detector) -> Iterator[Check]:
    """Energies, times, places and layers of the hits of each calorimeter against its description."""
    for i, part in enumerate(detector.calorimeters):
        hits = scales.table("hits")
        rows = np.flatnonzero(hits.get("part", np.zeros(0)) == i)
        if part.kind in CELLS and len(rows) >= MIN_HITS:
            mine = _rows(hits, rows[np.argsort(hits["energy"][rows])])
            mine["event"] = np.unique(_event(mine), return_inverse=True)[1]
            mine["shower"] = scales.table("events")[f"hits {part.name}"] >= MANY["hits of the HCAL"]
            yield from _energies(scales, part, mine)
            yield from _places(scales, part, mine)


def _energies(scales: Scales, part: Calorimeter, hits: Table) -> Iterator[Check]:
    """Energies of a calorimeter's hits, which rise: their scale, that of groups of them, and their ends; and times."""
    energy, layer, event = (hits[name] for name in ("energy", "layer", "event"))
    typical = np.median(energy)
    # The scale of an HCAL is not known in a draft, nor where the readout is digital: there all energies are the same.
    no_scale = part.hadron_scale is None or energy[int(LOWER * len(energy))] == typical
    if part.n_layers < N_LAYERS or (part.kind == "hcal" and no_scale):
        text = f"a typical hit of {part.name} has {typical:.3g} GeV: is its unit GeV?"
        yield Check("cells", HIT_ENERGY[0] < typical < HIT_ENERGY[1], text)
    elif length := part.layers[0].radiation_lengths:  # else it is not known
        scale, (of_length, factor) = part.electron_scale * (part.hadron_scale or 1.0), CELLS[part.kind]
        if nuclear := part.layers[0].interaction_lengths:
            of_length = CELLS["ecal" if length > HEAVY * nuclear else "hcal"][0]
        expected, n_events = 1e-3 * of_length * length / scale, event.max() + 1
        # A part of the events may be of another production.
        n_parts = min(N_BLOCKS, n_events // BLOCK["events"], len(energy) // MIN_HITS)
        odd, everything = [], np.ones(len(energy), dtype=bool)
        only_photons = part.kind == "hcal" and np.count_nonzero(hits["shower"]) < OF_PHOTONS * n_events
        for chosen in (everything, *(event * n_parts // n_events == i for i in range(n_parts))):
            low = Estimate.of(energy[chosen], LOWER)
            step = SURE * low.sigma
            # A single shower may lie in thicker layers, and one of a part may have most of its hits; what photons leave
            # in an HCAL has less energy.
            single = low.n < len(energy) and 2 * np.bincount(event[chosen]).max(initial=0) > low.n
            single |= only_photons or n_events == 1
            most = factor * 1.6 if single else factor
            if low.n >= MIN_HITS and not expected / most - step < low.value < expected * most + step:
                odd.append(chosen)
        chosen = np.any(odd, axis=0) if odd else everything
        where, low = "" if chosen.all() else f"{_entries(scales, hits, chosen)}: ", Estimate.of(energy[chosen], LOWER)
        text = f"{where}a fifth of the hits of {part.name} have less than {low.value:.2g} GeV, expected"
        text += f" {expected:.2g} GeV in layers of {length:g} radiation lengths"
        text += "" if scale == 1 else f" with {'electron' if part.kind == 'ecal' else 'hadron'}_scale {scale:g}"
        yield Check("cells", not odd, text)

    # Groups of hits that are alike; layers are so by radiation lengths, if these are described. A readout of some bits
    # has few values, of which a fifth of the hits may be one or the next.
    fine = 2 * len(np.unique(energy)) > len(energy)
    busy = (hits["busy"] > 0) & fine
    # Of two crystals the first sees where all showers begin, the second most of them.
    layered = part.n_layers == 0 or part.n_layers >= N_LAYERS
    groups = _sides(hits) | ({"in layers of even number": layer % 2 == 0} if layered else {})
    ratios = {where: _ratio(energy, inside, event, GROUP_SCALE, busy=busy) for where, inside in groups.items()}
    edges, lengths = _edges(part)
    # A scan may read every second layer, of which the last one then has less behind it, and no less energy.
    lengths[-1:] = lengths[-2:].max(initial=0.0)
    by_length = bool(len(lengths) and np.isfinite(lengths).all() and np.isfinite(hits["depth"]).all())
    number = np.clip(np.searchsorted(edges, hits["depth"]) - 1, 0, len(lengths) - 1)
    each = energy / lengths[number] if by_length else energy
    order = np.argsort(each)
    each, layer_of, event_of, busy_of = each[order], layer[order], event[order], busy[order] & by_length
    for ranges, most, least in (
        (RANGES, RANGE_SCALE, MIN_EVENTS_SCALED),
        ({f"in layer {n:g}": (n, n + 1) for n in np.unique(layer) if layered}, LAYER_SCALE, 1),
    ):
        for where, (begin, end) in ranges.items():
            # The last layers of an HCAL are as those before.
            unknown = GROUP_SCALE if part.kind == "hcal" and end > part.n_layers else UNKNOWN_SCALE
            inside, limit = (layer_of >= begin) & (layer_of < end), most if by_length else unknown
            ratios[where] = _ratio(each, inside, event_of, limit, least, busy=busy_of)
    said = ", ".join(f"{ratio:.2g} times the energy of others {where}" for where, ratio in ratios.items() if ratio)
    lengths_too = " (per radiation length as described)" if by_length else ""
    yield Check("cells", not said, f"hits of {part.name} have {said}{lengths_too}")

    # Hadronic showers have late hits, which begin in the ECAL; muons and photons have not.
    time = hits["time"]
    dense = (energy > DENSE[0] * np.quantile(energy, LOWER)).mean() > DENSE[1]
    n_showers = np.count_nonzero(hits["shower"]) if part.kind == "hcal" else len(np.unique(event[hits["busy"] > 0]))
    if np.isfinite(time).all() and np.ptp(time) > 0:
        flight = np.linalg.norm([hits[axis] for axis in "xyz"], axis=0) / LIGHT
        after_light = time - flight if np.median(time) > FLIGHT else time
        first, last = np.quantile(after_light, 0.25), after_light.max()
        text = f"hits of {part.name} come {abs(first):.2g} ns {'before' if first < 0 else 'after'} light from the IP"
        text += " (first quartile): is their unit ns, and their origin the collision?"
        yield Check("times", bool(abs(first) < OFF_TIME), text)
        text = f"the latest hit of {part.name} is {last:.2g} ns after light from the IP: are hits cut in time, or is"
        text += " their unit not ns?"
        yield Check("times", bool(not dense or n_showers < MIN_EVENTS_SCALED or last > LATE), text)

    # A readout of some bits has its largest value more often; crystals see whole showers.
    n = np.count_nonzero(energy > NEAR_LARGEST * energy[-1])
    if n > SATURATED and part.n_layers >= N_LAYERS and fine:
        text = f"{n} of {len(energy)} hits of {part.name} have nearly the largest energy, {energy[-1]:.3g} GeV"
        yield Check("cells", False, f"{text}: they are cut off, or saturated")


def _ratio(
    energy: Floats, inside: Mask, event: Index, most: float, least: int = MIN_EVENTS_SCALED, *, busy: Mask
) -> float:
    """Energy of the hits inside over others', where it is more than `most` times larger or smaller, or hits of `busy`
    events are not `ALIKE`.

    By the `LOWER` quantiles of `energy`, which rises; 0 where either are few or of fewer events than `least`: a single
    shower may lie in thicker layers.
    """
    if event.max(initial=0) + 1 < least:
        return 0.0
    for among, narrow in ((busy, True), (np.full(len(busy), True), False)):
        groups = np.flatnonzero(inside & among), np.flatnonzero(~inside & among)
        n_hits = [np.bincount(event[group]) for group in groups]  # of each event
        few = min(map(len, groups)) < MANY_NEAR or min(map(np.count_nonzero, n_hits)) < least
        # Hits of one shower are no independent ones.
        if few or (narrow and any(2 * of_events.max() > of_events.sum() for of_events in n_hits)):
            continue
        logs = []  # of the quantile, and of its neighbours, which give its error
        for group in groups:
            step = np.sqrt(LOWER * (1 - LOWER) / len(group))
            logs.append(np.log(energy[group[(len(group) * np.array([LOWER - step, LOWER, LOWER + step])).astype(int)]]))
        (low, value, high), (low_of_others, of_others, high_of_others) = logs
        sigma = np.hypot(high - low, high_of_others - low_of_others) / 2
        if abs(value - of_others) > (ALIKE + ALIKE_SURE * sigma if narrow else np.log(most)):
            return float(np.exp(value - of_others))
    return 0.0


def _edges(part: Calorimeter) -> tuple[Floats, Floats]:
    """Depths at which the described layers begin and the last one ends, mm, and their radiation lengths, or NaN."""
    each = [layers for layers in part.layers for _ in range(layers.count)]
    edges = np.cumsum([0.0, *(layers.pitch for layers in each)])
    return edges, np.array([layers.radiation_lengths or np.nan for layers in each])


def _places(scales: Scales, part: Calorimeter, hits: Table) -> Iterator[Check]:
    """Distances of a calorimeter's hits from each other and from its face, and their layers."""
    neighbour = hits["neighbour"][hits["neighbour"] > min(1.0, (part.cell_size or 4.0) / 4)]  # not in the same cell
    if (described := part.cell_size) and len(neighbour) >= MIN_NEAR:
        # Many hits have no neighbour where few cells are hit: the smallest distance is the upper limit, and of few hits
        # it says nothing (healthy events had 28 with one of 2.2 cells, 20 with one of 4.1).
        size, sparse = float(np.quantile(neighbour, 0.2)), len(neighbour) < MANY_NEAR
        good = described <= (1 + sparse) * CELL_SIZE * size and (sparse or neighbour.min() <= CELL_SIZE * described)
        text = f"cells of {part.name} are {size:.3g} mm large (described: {described:g})"
        yield Check("cell size", good, text if good else f"{text}: of another detector?")

    unnumbered = (hits["layer"] < 0).mean()  # all of them are where there is no cell encoding
    text = f"{unnumbered:.0%} of the hits of {part.name} have no layer (-1), and the others have one"
    yield Check("layers", unnumbered < UNNUMBERED or unnumbered == 1, text)
    (edges, _), depth, energy = _edges(part), hits["depth"], hits["energy"]
    if len(edges) == 1 or part.region == "other" or not np.isfinite(depth).all():
        return
    outside, face = ((depth < -PLACE) | (depth > edges[-1] + PLACE)).mean(), FACES[part.region]
    text = f"{outside:.0%} of the hits of {part.name} lie outside of it: {face} {getattr(part, face) or 0:g} mm"
    sides = f", {part.sides} sides" if part.sides and part.region == "barrel" else ""
    # A flat file of another detector with branches of a built-in layout is read as that layout's.
    another = f"is the file of another detector than {scales.detectors[0].name} (--detector)?"
    yield Check("faces", outside <= OUTSIDE, f"{text}{sides}, layers of {edges[-1]:.4g} mm: {another}")
    front = energy[depth < -PLACE].sum() / energy.sum()
    text = f"{front:.0%} of the energy of {part.name} lies more than {PLACE:g} mm in front of it"
    yield Check("faces", front <= FRONT, f"{text}: is it another detector's?")
    numbered = np.flatnonzero(hits["layer"] >= 0)
    layer, depth = hits["layer"][numbered].astype(np.int64), depth[numbered]
    if outside > OUTSIDE or len(layer) < MIN_HITS:
        return
    # The first layer may be 0 or 1, so the most frequent difference counts, and its neighbours.
    shift = layer - (np.searchsorted(edges, depth, side="right") - 1)
    frequency = np.bincount(shift - shift.min())
    first, on = int(frequency.argmax() + shift.min()), np.convolve(frequency, np.ones(3)).max() / len(shift)
    words = "encoding or pitch is wrong"
    words += f" (measured: {layer_pitches(depth, layer)[0][1]:.3g} mm, described: {part.layers[0].pitch:g} mm)"
    of_barrel = on < ON_LAYERS and part.region == "barrel"
    shape = barrel_shape(hits["x"][numbered], hits["y"][numbered], layer) if of_barrel else None
    if shape and (shape.sides, shape.phase) != (part.sides, part.phase):
        words = f"{shape.sides} sides (0: a cylinder) and phase {shape.phase:.3g} fit"
        words += f" (described: {part.sides}, {part.phase:.3g})"
    text = f"{on:.0%} of the hits of {part.name} have the layer of their depth: {words}"
    yield Check("layers", on >= ON_LAYERS, text)
    # Numbers are at least 0, and the hits' smallest is of a described layer.
    offset, n_layers = first - int(np.clip(first, 0, layer.min())), len(edges) - 1
    text = f"hits of {part.name} have layer numbers up to {layer.max()}, described: {n_layers} layers"
    yield Check("layers", layer.max() - max(first, 0) < n_layers, text)
    if on < ON_LAYERS:
        return
    lie = f"begin {abs(offset)} {'before' if offset > 0 else 'behind'} the described ones"
    # One layer off may be how they are counted, but not where hits lie behind the last one.
    good = abs(offset) <= 1 and (first >= 0 or layer.max() - first < n_layers)
    yield Check("layers", good, f"layers of {part.name} {lie}: {face} is wrong")
    event = hits["event"][numbered]
    third = event * 3 // (event.max() + 1)
    for rows in [np.ones(len(layer), dtype=bool), *(third == i for i in range(3))] if abs(offset) <= 1 else ():
        dead = [*_dead_layers(layer[rows] - first, event[rows], n_layers)]
        for begin, end, beside in dead:
            text = "" if rows.all() else f"{_entries(scales, hits, np.isin(hits['event'], event[rows]))}: "
            text += f"no hits of {part.name} are in layers {begin + first} to {end + first}"
            yield Check("dead parts", False, f"{text}, and {beside} in one beside these: dead, or not in the file")
        if dead and rows.all():
            break


def _dead_layers(layer: Index, event: Index, n_layers: int) -> Iterator[tuple[int, int, int]]:
    """First and last of layers without hits beside one with many, and its number of them.

    Not the first or the last layer alone, as it is guessed whether layers are counted from 0.
    """
    inside = (layer >= 0) & (layer < n_layers)
    n = np.bincount(layer[inside], minlength=n_layers)
    # The end of one shower has many hits, but those of many showers do not end together.
    n_events = np.bincount(np.unique(np.stack([layer, event])[:, inside], axis=1)[0], minlength=n_layers)
    empty = np.flatnonzero(n == 0)
    for run in np.split(empty, np.flatnonzero(np.diff(empty) > 1) + 1) if len(empty) else ():
        low, high = int(run[0]), int(run[-1])
        beside = max(max(low - 1, 0), min(high + 1, n_layers - 1), key=lambda i: n[i])
        enough = n[beside] >= (MIN_BESIDE if n_events[beside] >= MIN_EVENTS_BESIDE else MANY_BESIDE)
        if enough and (low < high or 0 < low < n_layers - 1):
            yield low, high, int(n[beside])


def _dead_parts(scales: Scales, detector: Detector) -> Iterator[Check]:
    """Find sectors of azimuth and sides in z where the ECAL or the HCAL has no hits, and the other one has."""
    if not (hits := scales.table("hits")):
        return
    sides = {side: mine for side, mine in _sides(hits).items() if side not in HALVES}
    sides |= {"at -z": hits["z"] <= 0, "at +z": hits["z"] > 0}
    number, event = hits["part"].astype(np.int64), np.unique(_event(hits), return_inverse=True)[1]
    kind = kind_index(detector)[number]
    for region in ("barrel", "endcap"):
        inside = np.array([part.region == region for part in detector.calorimeters])[number]
        # Events with hits in each sector and on each side.
        n_events = np.array(
            [
                [np.count_nonzero(np.bincount(event[inside & (kind == of) & mine])) for mine in sides.values()]
                for of in (ECAL, HCAL)
            ]
        )
        for own in (ECAL, HCAL):
            expected = n_events[1 - own] * n_events[own].sum() / max(n_events[1 - own].sum(), 1.0)
            enough = np.minimum(expected, n_events[1 - own]) > MIN_EXPECTED
            dead = np.flatnonzero(enough & (n_events[own] < DEAD * expected))
            text = ", ".join(f"{[*sides][i]} ({expected[i]:.0f} events are expected to have some)" for i in dead)
            text = f"no hits of the {KINDS[own].upper()}'s {region} lie {text}: dead, or not in the file"
            yield Check("dead parts", not len(dead), text)


def _hard_tracks(scales: Scales) -> Iterator[Check]:
    """Find hard tracks that hits do not confirm, where these have much of the energy of all events or of one."""
    table = scales.table("events")
    if "without hits" not in table or not (busy := table["tracks"] >= BUSY).any():
        return
    table = _rows(table, busy)
    momentum, number, energy = table["without hits"], table["n without hits"], table["all most"]
    many = number.sum() >= MIN_ASTRAY and momentum.sum() > ASTRAY * energy.sum()
    odd = number > 0 if many else momentum > ASTRAY_IN_ONE * energy
    chosen = odd if odd.any() else np.full(len(odd), True)
    text = f"{number[chosen].sum():.0f} tracks above {VERY_HARD:g} GeV enter the ECAL where there are no hits, or not"
    text += f" where their helix leads, with {momentum[chosen].sum() / energy[chosen].sum():.1%} of the energy"
    if odd.any():
        text = f"{_entries(scales, table, odd)}: {text}: are they badly fitted, fakes, or are cells dead?"
    yield Check("hard tracks", not odd.any(), text)


def _changes(scales: Scales, detector: Detector) -> Iterator[Check]:
    """Find parts of a file that differ from its rest, with their entries."""
    for name, table, q in _measured(scales, detector, BLOCK):
        known = np.flatnonzero(np.isfinite(table[q.column]))
        n_blocks = len(known) // max(BLOCK[name], len(known) // N_BLOCKS)
        if q.counted:  # few in a part say nothing: of single particles, 26 are photons in 300 events
            n_blocks = min(n_blocks, int(np.nansum(table[q.counted]) // q.least))
        if n_blocks < 2 or q.changes == np.inf:
            continue
        blocks = np.array_split(known, n_blocks)
        estimates = [q.estimate(table, block) for block in blocks]
        # A part in other units would rule a ratio of sums.
        values = np.array([estimate.value for estimate in estimates])
        # Of what is wrong in most parts, a part is not different for it; two files of equal size may be joined.
        if 4 * np.count_nonzero((values < q.low) | (values > q.high)) > 3 * n_blocks:
            continue
        typical = (Estimate.of(values, 0.5) if q.over else q.estimate(table))._replace(sigma=0.0)
        if q.over:  # few events, of which none has much, say little of its spread: neighbouring parts do
            steps = np.sort(np.abs(np.diff(values)))
            typical = typical._replace(sigma=float(steps[(n_blocks - 2) // 2]))
        pairs = zip(blocks, estimates, strict=True)
        differing = [block for block, of in pairs if q.separation(of, typical, q.changes) > VERY_SURE]
        # Where half of the parts differ, there is no rest that they differ from: then the file may change within.
        if not 0 < 2 * len(differing) < n_blocks:
            halves = np.array_split(known, 2)
            first, second = (q.estimate(table, half) for half in halves)
            differing = halves[1:] if q.separation(first, second, q.changes) > VERY_SURE else []
        if differing:
            # Or all before or behind one place, of which few parts differ from a value between both halves'.
            splits = [blocks[:i] if 2 * i < n_blocks else blocks[i:] for i in range(1, n_blocks)]
            parts = [np.isin(np.arange(len(table["file"])), np.concatenate(some)) for some in (differing, *splits)]
            apart = [q.separation(q.estimate(table, part), q.estimate(table, ~part)) for part in parts]
            best = int(np.nanargmax(apart))
            chosen = parts[best if apart[best] > 1.3 * apart[0] else 0]
            part, others = q.estimate(table, chosen), q.estimate(table, ~chosen)
            text = f"{q.text.format(part.value, n=part.n, b_field=detector.b_field)}; {q.value(others)} in others"
            yield Check("changes", False, f"{_entries(scales, table, chosen)}: {text}")
        yield Check("changes", True, "")


def _entries(scales: Scales, table: Table, chosen: Mask) -> str:
    """First and last entry of rows, by file if there are several; and their number, where others lie between."""
    texts = []
    for file in np.unique(table["file"][chosen]):
        of_file = np.unique(table["entry"][table["file"] == file])
        entries = np.unique(table["entry"][chosen & (table["file"] == file)])
        text = f"entry {entries[0]}" if len(entries) == 1 else f"entries {entries[0]} to {entries[-1]}"
        if np.count_nonzero((of_file >= entries[0]) & (of_file <= entries[-1])) > len(entries):
            text = f"{len(entries)} of {text}"
        texts.append(f"{text} of {scales.paths[int(file)]}" if len(scales.paths) > 1 else text)
    return ", ".join(texts)


def _sample(scales: Scales, detector: Detector, sample: SampleScales) -> Iterator[Check]:
    """Compare events with the training sample of a model."""
    # The typical opening angle is compared with the training's widest.
    read, table = scales.sample(opening=0.5), scales.table("events")
    for name, column, factor, what in COMPARED:
        theirs, ours = getattr(sample, name), getattr(read, name)
        if theirs and ours:
            good = (column or 1 / factor < ours / theirs) and ours / theirs < factor
            text = f"{what.format(f'{ours:.3g}')}, and in the training sample of the model {theirs:.3g}"
            if not good and column in table:
                text += f" ({_entries(scales, table, table[column] > factor * theirs)})"
            yield Check("training sample", good, text)
    if sample.detectors:
        yield check_training_range(detector, sample)


def check_training_range(detector: Detector, sample: SampleScales) -> Check:
    """Whether a detector's geometry lies within the range of a model's training `sample`."""
    try:
        outside, far, unlike = (outside_training(detector, sample, factor) for factor in (BEYOND, FAR, UNLIKE))
    except ConfigError as error:  # the files can be read; a model that needs the geometry refuses them itself
        return Check("detector", False, first_line(error))
    trained = f"what the model was trained on, {', '.join(sample.detectors)} and their variations"
    shift = "energies may be off by some percent, which pflow calibrate measures with truth"
    if not ECAL_MEASURES.isdisjoint(far):
        shift = "energies may be off by 10% and more and photons be lost, which pflow evaluate measures with truth"
    shift = "it is unlike these, and energies will be wrong" if unlike else shift
    text = f"outside {trained}: {'; '.join(outside.values())}; {shift}" if outside else f"within {trained}"
    # A calibration on all detectors of the training holds for others as far as the training does.
    done, names = sample.calibrated_for, ", ".join(sample.calibrated_for)
    other = names if done and detector.name not in done and not set(sample.detectors) <= set(done) else ""
    if done.get(detector.name) not in (None, calibration_digest(detector)):
        other = f"another description of '{detector.name}'"
    if other:
        text += f"; photon energies were calibrated for {other}: calibrate them for this one"
    return Check("detector", not (outside or other), f"detector '{detector.name}' is {text}")


def outside_training(detector: Detector, sample: SampleScales, factor: float) -> dict[str, str]:
    """Measures of a detector that are more than a `factor` outside of the range of a training `sample`: name and text.

    ConfigError: the detector's description is incomplete.
    """
    outside = {}
    for name, (smallest, largest) in measures(detector).items():
        low, high = sample.measures.get(name, (-np.inf, np.inf))
        if smallest < low / factor or largest > high * factor:
            value = smallest if smallest < low / factor else largest
            text = f"training: {low:.4g} to {high:.4g}"
            if name == FIELD and value * low < 0:
                text += "; its direction is reversed: turn events by 180 degrees about x, y to -y and z to -z, and "
                text += f"b_field is {-value:g}"
            outside[name] = f"{name} {value:.4g} ({text})"
    return outside
