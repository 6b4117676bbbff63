"""Check that events are plausible: their scales alone (`pflow.event.scales`), and against a model's training sample.

Expected values hold for every sampling calorimeter: a trail (`pflow.event.closure`) has a hit in nearly every layer,
minimum ionising particles leave similar energies per radiation length, isolated hadrons leave three quarters of their
momentum. Halves of a detector are alike, and so are the events of a file. The limits hold for all samples that were
tried: simplified ILD and CLD (Geant4), a calorimeter of lead and scintillator tiles, and CLD's full simulation and
reconstruction. A model's training sample narrows some.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, first_line
from pflow.event.closure import HADRON_RESPONSE, MIN_MOMENTUM, N_LAYERS
from pflow.event.scales import WIDE, Estimate, SampleScales, Scales, Table, quantile_of
from pflow.physics.arrays import Floats, Mask
from pflow.physics.detector import Calorimeter, Detector
from pflow.physics.geometry import measures

# Standard deviations beyond the plausible range from which a value, and a block of a file, is reported.
SURE, VERY_SURE = 3.0, 5.0
MIN_TRACKS, MIN_HALF = 8, 20  # fewest tracks in the barrel or the endcaps, and in half of them
MIN_EVENTS, MIN_HITS = 5, 200  # fewest events for ratios that fluctuate with them, and hits of a calorimeter
N_BLOCKS, BLOCK = 25, {"tracks": 20, "events": 5}  # parts of a file that are compared, and their smallest sizes

CELLS = {"ecal": (11.0, 1.4), "hcal": (22.0, 1.6)}
"""Expected lower quantile (`pflow.event.scales.LOWER`) of the hit energies, MeV per radiation length of a layer, and
largest plausible ratio to it. Measured: 9.5 to 12.8 in ECALs of silicon and tungsten and of scintillator and lead, 15
(photons) to 28.5 in HCALs of scintillator and steel."""
HIT_ENERGY = (2e-5, 1.0)  # GeV, plausible medians of hits where the layers are not described
ON_LAYERS = 0.85  # smallest plausible fraction of hits on the layer of their depth, or the next one
CELL_SIZE = 1.5  # largest plausible ratio of cell sizes to the described ones
OUTSIDE, TWICE = 0.05, 0.05  # largest plausible fractions of hits outside their calorimeter, and in another hit's cell
BEYOND_REACH = 0.4  # largest plausible fraction of tracks with a state beyond the reach of their helix
UNITS = 30.0  # energies that differ by more than this factor are in different units
RESPONSE = (0.3, 1.5)  # plausible ratios of the energy in hits to the energy of stable particles that shower
RECONSTRUCTED = (0.6, 1.3)
"""Plausible energy of particles: smallest over the larger of hit energy and track momentum, largest over their sum."""
MIN_TRUE = 20  # fewest stable particles that shower: a single antiproton deposits more than its energy
MIN_LINKED = 20  # fewest hits of a calorimeter whose links are checked
MAX_UNASSIGNED = 0.25  # largest plausible fraction of hit energy without a target, and of tracks without a particle
MOST_WIDE = 0.12  # largest plausible fraction of the energy of hits far from their particle's direction
TRACKLESS, UNEQUAL = 0.45, 0.25
"""Largest plausible fraction of the energy in the HCAL away from all tracks (found: 0.10 to 0.36), and difference of
barrel and endcaps."""
MIN_HCAL, MIN_PER_EVENT, MIN_LOST = 1.0, 3, 10  # GeV and tracks of an event, and events, for this fraction


class Check(NamedTuple):
    """Result of one check."""

    name: str
    good: bool
    text: str


def problems(checks: Iterable[Check]) -> str:
    """Texts of the failed checks; "" if all pass."""
    return "; ".join(check.text for check in checks if not check.good)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What a verb knows of the events that it reads.

    `targets`: options of `pflow.event.truth.select_targets`; None: the verb uses no targets. `sample`: scales of the
    model's training sample; None: there is no model, or its checkpoint has none.
    """

    targets: Mapping[str, Any] | None = None
    sample: SampleScales | None = None


class Quantity(NamedTuple):
    """A column of tracks with the plausible range of its `quantile` (its mean if None).

    `halves` and `changes`: largest plausible difference between halves of the detector, and between parts of a file;
    of logarithms if `ratio`. `text`: message with the value and the number of tracks; a region is appended.
    """

    name: str
    column: str
    text: str
    quantile: float | None = 0.5
    low: float = -np.inf
    high: float = np.inf
    halves: float = np.inf
    changes: float = np.inf
    ratio: bool = False

    def estimate(self, values: Floats) -> Estimate:
        """The mean or quantile of values."""
        return Estimate.of(values, self.quantile)

    def plausible(self, estimate: Estimate) -> bool:
        """Whether an estimate lies between `low` and `high` within `SURE` standard deviations."""
        return self.low - SURE * estimate.sigma <= estimate.value <= self.high + SURE * estimate.sigma

    def said(self, estimate: Estimate, where: str = "") -> str:
        """The message for an estimate."""
        return self.text.format(estimate.value, n=estimate.n) + (f" in {where}" if where else "")

    def value(self, estimate: Estimate) -> str:
        """The value in the format of the text."""
        start = self.text.index("{:")
        return self.text[start : self.text.index("}", start) + 1].format(estimate.value)


def _share(name: str, column: str, text: str, low: float, halves: float, changes: float) -> Quantity:
    """A mean of numbers from 0 to 1."""
    return Quantity(name, column, text, None, low, halves=halves, changes=changes)


CELL = "a minimum ionising particle leaves {:.3g} GeV in a cell of the "
ENTERS = "hits of the ECAL lie {:.1f} cells beside {n} tracks that enter, in "
BEHIND = "hits of the HCAL lie {:.1f} cells beside {n} tracks, in "
MOMENTA = "momenta of {n} tracks are {:+.1%} off what their hits in the ECAL say"
LEAVE = "{n} isolated hadrons leave {:.2f} of their momentum"
PT_RATIO = "transverse momenta of tracks are {:.3f} times their {n} particles' momenta"
OWN = "{:.0%} of the hits where {n} tracks enter"
LEAST, MOST = HADRON_RESPONSE / 1.3, HADRON_RESPONSE * 1.3
QUANTITIES = (
    _share("entries", "trail", "{:.0%} of {n} tracks have hits of the ECAL where they enter", 0.65, 0.15, 0.3),
    _share("lost hits", "layers", "{n} tracks have hits in {:.0%} of the first layers of the ECAL", 0.9, 0.06, 0.15),
    Quantity("place", "azimuth", f"{ENTERS}azimuth", low=-0.6, high=0.6, changes=1.0),
    Quantity("place", "polar", f"{ENTERS}polar angle", low=-0.6, high=0.6, changes=1.0),
    _share("helix", "helix", "the helix from the IP leads {:.0%} of {n} tracks to their state", 0.6, 0.3, 0.4),
    Quantity("curvature", "momentum", MOMENTA, low=-0.02, high=0.02, changes=0.05),
    _share("HCAL", "behind", "{:.0%} of {n} tracks above 3 GeV have hits of the HCAL behind them", 0.55, 0.25, 0.5),
    Quantity("HCAL place", "hcal_azimuth", f"{BEHIND}azimuth", low=-1.0, high=1.0, changes=2.0),
    Quantity("HCAL place", "hcal_polar", f"{BEHIND}polar angle", low=-1.0, high=1.0, changes=2.0),
    Quantity("response of hadrons", "response", LEAVE, low=LEAST, high=MOST, halves=0.3, changes=0.7, ratio=True),
    Quantity("ECAL cells", "ecal_cell", f"{CELL}ECAL, by {{n}} tracks", halves=0.1, changes=0.4, ratio=True),
    Quantity("HCAL cells", "hcal_cell", f"{CELL}HCAL, by {{n}} tracks", 0.25, halves=0.25, changes=1.0, ratio=True),
    Quantity("tracks twice", "twice", "{:.0%} of {n} tracks enter where another one does", None, 0.0, 0.3),
    _share("links of trails", "own", f"{OWN} are linked to the track's particle", 0.9, np.inf, 0.2),
)
"""Of trails; lengths are in cells."""

OF_PARTICLES = (
    Quantity("field", "pt_ratio", PT_RATIO, low=0.98, high=1.02),
    Quantity("track directions", "angle", "tracks are {:.2g} rad from their {n} particles (median)", high=0.005),
    Quantity("charges", "opposite", "{:.0%} of {n} tracks have the opposite charge of their particles", None, high=0.5),
)
"""Of tracks that are linked to true particles."""

TYPICAL = Quantity("", "typical", "hits of the ECAL have {:.3g} GeV in {n} events", changes=np.log(3.0), ratio=True)

NARROWED = {"response": 1.2, "ecal_cell": 1.2, "hcal_cell": 1.25}
"""Largest plausible ratio to the training sample's value, which is in `SampleScales.trails`."""

LARGEST = {"max_energy": "energy", "max_hits": "n_hits", "opening": ""}
"""Scales that may be smaller than in the training sample; with the event column whose maximum they are."""

COMPARED = (
    ("ecal_hit", 1.6, "a typical hit of the ECAL has {} GeV"),
    ("hcal_hit", 1.6, "a typical hit of the HCAL has {} GeV"),
    ("max_energy", 3.0, "events have up to {} GeV in hits"),
    ("max_hits", 3.0, "events have up to {} hits"),
    ("opening", 5.0, "the energy of a typical event spreads over {} rad around its direction"),
    ("b_field", 1.05, "tracks are curved as in {} T"),
)
"""Scales compared with the training sample's: attribute, largest plausible ratio, text of the message."""

BEYOND = 1.02  # largest plausible ratio of a detector's measures to the range of the training


def compare(scales: Scales, sample: SampleScales | None = None) -> list[Check]:
    """Check the scales of events, by themselves and against the training sample of a model."""
    if scales.detector is None:
        return []
    checks = [*_sums(scales), *_calorimeters(scales), *_closure(scales, sample), *_lost_tracks(scales)]
    checks += [*_reconstructed(scales), *_changes(scales)]
    if sample is not None:
        checks += _sample(scales, sample)
    checks += [Check(name, False, text) for name, text in scales.texts.items()]
    return [check._replace(good=bool(check.good)) for check in checks]  # Python's bool, for JSON


def _sums(scales: Scales) -> Iterator[Check]:
    """Compare energies in hits, tracks, truth and reconstruction; check links to particles."""
    table = scales.table("looked")
    total = {name: float(values.sum(dtype=np.float64)) for name, values in table.items()}
    hits, few_events = total.get("energy", 0.0), len(table["file"]) < MIN_EVENTS if table else True
    energies = {"true": "energy of stable particles that shower", "reference": "particles of the reference"}
    if total.get("n_tracks", 0) >= MIN_TRACKS:  # fewer may be soft conversions
        energies["momentum"] = "momenta of tracks"
    for name, what in energies.items():
        if hits and total.get(name):
            factor = UNITS if name == "true" else UNITS**1.5
            good = 1 / factor < hits / total[name] < factor
            yield Check("units", good, f"{hits:.4g} GeV in hits, {total[name]:.4g} GeV in {what}")
    if "targets" in total and hits and total["n true"] >= MIN_TRUE:
        ratio = _ratio(table["energy"], table["true"])
        low, high = (RESPONSE[0] / 1.5, RESPONSE[1] * 1.5) if few_events else RESPONSE
        good = low < ratio.value + SURE * ratio.sigma and ratio.value - SURE * ratio.sigma < high
        yield Check("response", good, f"hits have {ratio.value:.2f} times the energy of stable particles that shower")
    if "targets" in total and hits:
        share = abs(1 - total["targets"] / hits)
        yield Check("targets", share < MAX_UNASSIGNED, f"{share:.1%} of the hits' energy belongs to no target")
    if total.get("straight") and not few_events:
        ratio = _ratio(table["wide"], table["straight"])
        text = f"{ratio.value:.1%} of the energy of particles is farther than {WIDE:g} rad from their direction"
        yield Check("directions", ratio.value - SURE * ratio.sigma < MOST_WIDE, text)
    if "true" in total and scales.detector is not None:
        shares = {
            f"energy of {part.name}": total[f"linked {part.name}"] / total[f"energy {part.name}"]
            for part in scales.detector.calorimeters
            if total.get(f"energy {part.name}") and np.sum(scales.hits[part.kind, part.name]["energy"]) >= MIN_LINKED
        }
        if total.get("n_tracks", 0) >= MIN_TRACKS:
            shares["tracks"] = total["linked tracks"] / total["n_tracks"]
        lost = [f"{share:.0%} of the {what}" for what, share in shares.items() if share < 1 - MAX_UNASSIGNED]
        good = "hits and tracks are linked to particles"
        yield Check("links", not lost, f"{', '.join(lost)} is linked to particles" if lost else good)
    if total.get("states", 0) >= MIN_TRACKS:
        share = total["beyond"] / total["states"]
        text = f"{share:.0%} of {total['states']:.0f} tracks cannot reach their state at the calorimeter in the field"
        yield Check("reach", share - SURE * np.sqrt(0.25 / total["states"]) < BEYOND_REACH, text)


def _reconstructed(scales: Scales) -> Iterator[Check]:
    """Compare the particles' energy with hits and tracks, in the sum of all events and in each."""
    table = scales.table("events")
    if "reconstructed" not in table:
        return
    energy, hits = (table[name].astype(np.float64) for name in ("reconstructed", "energy"))
    momentum = table.get("momentum", np.zeros(len(hits))).astype(np.float64)
    least, most = np.maximum(hits, momentum), hits + momentum
    text = f"particles have {energy.sum():.4g} GeV, hits {hits.sum():.4g} GeV, tracks {momentum.sum():.4g} GeV"
    good = RECONSTRUCTED[0] * least.sum() <= energy.sum() <= RECONSTRUCTED[1] * most.sum()
    far = (energy > 1.5 * RECONSTRUCTED[1] * most) & (energy > 10.0)
    if good and far.any():
        entries = _entries(scales, table, far)
        text = f"particles of {entries} have up to {energy[far].max():.4g} GeV, their hits and tracks up to"
        text += f" {most[far].max():.4g} GeV"
    yield Check("reconstructed energy", good and not far.any(), text)


def _ratio(part: Floats, total: Floats) -> Estimate:
    """Ratio of two sums over events; its error from the spread of the events."""
    part, total = part.astype(np.float64), total.astype(np.float64)
    ratio, n = float(part.sum() / total.sum()), len(total)
    return Estimate(ratio, float(np.sqrt(((part - ratio * total) ** 2).sum()) / total.sum()), n)


def _calorimeters(scales: Scales) -> Iterator[Check]:
    """Energies, places and layers of the hits of each calorimeter against its description."""
    assert scales.detector is not None
    good = {
        "cells": "hits of calorimeters have the energy of minimum ionising particles",
        "hits twice": "no two hits are in one cell",
        "cell size": "cells are as large as described",
        "faces": "hits lie within their calorimeters as described",
        "layers": "layers follow the depth of the hits",
    }
    wrong: dict[str, list[str]] = {}  # of what was checked
    for part in scales.detector.calorimeters:
        counts = scales.hits.get((part.kind, part.name), {})
        if np.sum(counts.get("energy", 0)) < MIN_HITS or part.kind not in CELLS:
            continue
        wrong.setdefault("cells", []).extend(_cells(part, counts["energy"]))
        n, twice = counts["twice"]
        text = f"{twice} of {n} hits of {part.name} lie in the cell of another one"
        wrong.setdefault("hits twice", []).extend([text] if twice > TWICE * n else [])
        if part.cell_size and "size" in counts:
            # Where few cells are hit, the nearest hit may not be a neighbour: the hits show an upper limit.
            size, described = counts["size"][1] / counts["size"][0], part.cell_size
            text = f"cells of {part.name} are {size:.3g} mm large (described: {described:g})"
            far = described > CELL_SIZE * size or size > 2 * CELL_SIZE * described
            wrong.setdefault("cell size", []).extend([text] if far else [])
        if n_placed := np.sum(counts.get("outside", 0)):
            share, name = counts["outside"][1] / n_placed, "inner_radius" if part.region == "barrel" else "inner_z"
            depth = sum(layers.count * layers.pitch for layers in part.layers)
            face = f"{name} {getattr(part, name) or 0:g} mm, layers of {depth:.4g} mm"
            text = f"{share:.0%} of the hits of {part.name} lie outside of it: {face}"
            wrong.setdefault("faces", []).extend([text] if share > OUTSIDE else [])
            if share <= OUTSIDE and (n_layered := counts["shift"].sum()) >= MIN_HITS:
                # The first layer may be 0 or 1, so the most frequent difference counts, and its neighbours.
                on = np.convolve(counts["shift"], np.ones(3), "same").max() / n_layered
                text = f"{on:.0%} of the hits of {part.name} have the layer of their depth: encoding or pitch is wrong"
                wrong.setdefault("layers", []).extend([text] if on < ON_LAYERS else [])
    yield from (Check(name, not said, "; ".join(said) or good[name]) for name, said in wrong.items())


def _cells(part: Calorimeter, counts: npt.NDArray[Any]) -> list[str]:
    """Messages about implausible hit energies of a calorimeter."""
    if sum(layers.count for layers in part.layers) < N_LAYERS:
        median = quantile_of(counts, 0.5)[1]
        good = HIT_ENERGY[0] < median < HIT_ENERGY[1]
        return [] if good else [f"a typical hit of {part.name} has {median:.3g} GeV: is its unit GeV?"]
    (of_length, factor), length = CELLS[part.kind], part.layers[0].radiation_lengths
    if not length:  # not known
        return []
    expected = 1e-3 * of_length * length / part.electron_scale
    low, value, high = quantile_of(counts, sure=SURE)
    if low < expected * factor and high > expected / factor:
        return []
    text = f"the fifth of the hits of {part.name} with the least energy has up to {value:.2g} GeV, expected"
    return [f"{text} {expected:.2g} GeV of layers of {length:g} radiation lengths"]


def _closure(scales: Scales, sample: SampleScales | None) -> Iterator[Check]:
    """Trails and linked tracks within their plausible ranges, by region; halves of the detector alike."""
    assert scales.detector is not None
    tracks, particles = scales.table("tracks"), scales.table("particles")
    n, b_field = len(tracks.get("file", ())), scales.detector.b_field
    if n < MIN_TRACKS:
        text = f"too few tracks above {MIN_MOMENTUM:g} GeV, {n} ({MIN_TRACKS} are needed): no trail could be checked"
        yield Check("closure", True, text)
    for quantity in OF_PARTICLES:
        estimate = quantity.estimate(particles.get(quantity.column, np.zeros(0)))
        if estimate.n >= MIN_TRACKS:
            good, text = quantity.plausible(estimate), quantity.said(estimate)
            if quantity.name == "field":
                text += f" in {b_field:g} T" + ("" if good else f"; {b_field / estimate.value:.3g} T would fit")
            yield Check(quantity.name, good, text)
    if n < MIN_TRACKS:
        return
    endcap = tracks["endcap"] > 0
    halves = {axis: tracks[axis] > 0 for axis in "zxy"}
    for quantity in QUANTITIES:
        values, measured, failed = tracks[quantity.column], [], []
        known = np.isfinite(values)
        regions = {"the barrel": known & ~endcap, "the endcaps": known & endcap}
        regions = {where: inside for where, inside in regions.items() if inside.sum() >= MIN_TRACKS} or {"": known}
        for where, inside in regions.items():
            estimate = quantity.estimate(values[inside])
            if estimate.n < MIN_TRACKS or (quantity.name == "curvature" and not _prompt(values[inside])):
                continue
            measured.append(text := quantity.said(estimate, where))
            expected = None if sample is None or estimate.n < MIN_HALF else sample.trails.get(quantity.column)
            if not quantity.plausible(estimate):
                failed.append(text)
            elif expected and _differ(estimate, expected, np.log(NARROWED[quantity.column]), ratio=True):
                failed.append(f"{text}, and in the training sample of the model {expected:.3g}")
            for axis, positive in halves.items():
                plus, minus = (quantity.estimate(values[inside & half]) for half in (positive, ~positive))
                if min(plus.n, minus.n) >= MIN_HALF and _differ(plus, minus, quantity.halves, ratio=quantity.ratio):
                    failed.append(f"{text}: {quantity.value(plus)} at +{axis} and {quantity.value(minus)} at -{axis}")
        if measured:
            yield Check(quantity.name, not failed, "; ".join(failed or measured))


def _prompt(error: Floats) -> bool:
    """Whether the tracks' momentum errors are nearly equal; they scatter if the particles do not come from the IP."""
    low, high = np.quantile(error, [0.25, 0.75])
    return bool(high - low < 0.06)


def _differ(a: Estimate, b: Estimate | float, tolerance: float, *, ratio: bool, sure: float = SURE) -> bool:
    """Whether two values, or their logarithms, differ by more than `tolerance` and `sure` standard deviations."""
    b = b if isinstance(b, Estimate) else Estimate(b, 0.0, 0)
    if ratio:
        a, b = a.logarithm(), b.logarithm()
    return abs(a.value - b.value) > tolerance + sure * float(np.hypot(a.sigma, b.sigma))


def _lost_tracks(scales: Scales) -> Iterator[Check]:
    """Energy in the HCAL away from all tracks: where it is most of the energy, tracks are lost."""
    table, failed, measured, shares = scales.table("looked"), [], [], []
    for region in ("barrel", "endcap") if "n_tracks" in table else ():
        used = (table["n_tracks"] >= MIN_PER_EVENT) & (table[f"hcal {region}"] > MIN_HCAL)
        if used.sum() < MIN_LOST:
            continue
        shares.append(_ratio(table[f"apart {region}"][used], table[f"hcal {region}"][used]))
        text = f"{shares[-1].value:.0%} of the energy in the HCAL ({region}) of {used.sum()} events is far from tracks"
        measured.append(text)
        if shares[-1].value - SURE * shares[-1].sigma > TRACKLESS:
            failed.append(f"{text}: tracks are lost")
    if not failed and len(shares) == 2 and _differ(shares[0], shares[1], UNEQUAL, ratio=False):
        failed = [f"{'; '.join(measured)}: tracks are lost"]
    if measured:
        yield Check("lost tracks", not failed, "; ".join(failed or measured))


def _changes(scales: Scales) -> Iterator[Check]:
    """Find parts of a file that differ from its rest, with their entries."""
    said, n_compared = [], 0
    for name, quantities in (("tracks", QUANTITIES), ("events", (TYPICAL,))):
        table = scales.table(name)
        for quantity in quantities:
            values = table.get(quantity.column, np.zeros(0))
            known = np.flatnonzero(np.isfinite(values))
            n_blocks = len(known) // max(BLOCK[name], len(known) // N_BLOCKS)
            if n_blocks < 3:
                continue
            n_compared += 1
            of_file = quantity.estimate(values).value
            differing = [
                block
                for block in np.array_split(known, n_blocks)
                if _differ(
                    quantity.estimate(values[block]), of_file, quantity.changes, ratio=quantity.ratio, sure=VERY_SURE
                )
            ]
            if 0 < 2 * len(differing) < n_blocks:
                chosen = np.zeros(len(values), dtype=np.bool_)
                chosen[np.concatenate(differing)] = True
                part, rest = (quantity.estimate(values[rows]) for rows in (chosen, ~chosen))
                text = f"{_entries(scales, table, chosen)}: {quantity.said(part)}; {quantity.value(rest)} in others"
                said.append(text)
    if n_compared:
        yield Check("changes", not said, "; ".join(said) or "all parts of the file are alike")


def _entries(scales: Scales, table: Table, chosen: Mask) -> str:
    """First and last entry of rows, by file if there are several."""
    texts = []
    for file in np.unique(table["file"][chosen]):
        entries = np.unique(table["entry"][chosen & (table["file"] == file)])
        text = f"entry {entries[0]}" if len(entries) == 1 else f"entries {entries[0]} to {entries[-1]}"
        texts.append(f"{text} of {scales.paths[int(file)]}" if len(scales.paths) > 1 else text)
    return ", ".join(texts)


def _sample(scales: Scales, sample: SampleScales) -> Iterator[Check]:
    """Compare events with the training sample of a model."""
    assert scales.detector is not None
    read, table = scales.sample(), scales.table("events")
    for name, factor, what in COMPARED:
        theirs, ours = getattr(sample, name), getattr(read, name)
        if theirs and ours:
            good = (name in LARGEST or 1 / factor < ours / theirs) and ours / theirs < factor
            text = f"{what.format(f'{ours:.3g}')}, and in the training sample of the model {theirs:.3g}"
            if not good and LARGEST.get(name):
                text += f" ({_entries(scales, table, table[LARGEST[name]] > factor * theirs)})"
            yield Check("training sample", good, text)
    if sample.detectors:
        yield check_training_range(scales.detector, sample)


def check_training_range(detector: Detector, sample: SampleScales) -> Check:
    """Whether a detector's geometry lies within the range of a model's training `sample`."""
    outside = []
    try:
        geometry = measures(detector)
    except ConfigError as error:  # the files can be read; a model that needs the geometry refuses them itself
        return Check("detector", False, first_line(error))
    for name, (smallest, largest) in geometry.items():
        low, high = sample.measures.get(name, (-np.inf, np.inf))
        if smallest < low / BEYOND or largest > high * BEYOND:
            value = smallest if smallest < low / BEYOND else largest
            outside.append(f"{name} {value:.3g} (training: {low:.3g} to {high:.3g})")
    trained = f"what the model was trained on, {', '.join(sample.detectors)} and their variations"
    where = f"outside {trained}: {'; '.join(outside)}" if outside else f"within {trained}"
    return Check("detector", not outside, f"detector '{detector.name}' is {where}")
