"""Move simulated events into other detectors, so that a model learns to reconstruct any of them.

The scale is exact, because transport through matter is unchanged if all lengths and times are multiplied by s, and
densities and the field divided by s. So are coarser cells and fewer layers, sums and subsets of the simulated ones, and
a shorter calorimeter but for backscatter. Polygons and moved faces are approximate: hits and track entries are shifted
along their rays from the origin, showers keep their shape; the material in front and the bending of tracks stay.

A `Variation` draws detectors at random, one for each event, for training; a `Move` is one given detector, for
scans. Both become rows like `AS_SIMULATED`, which `change_cells` and `move` apply.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, check_options, warn
from pflow.event import jagged
from pflow.event.closure import depths
from pflow.event.events import Events, ImplausibleWarning, keep_hits
from pflow.event.merge import equal_rows, sum_cells
from pflow.event.schema import fields_of
from pflow.physics.arrays import Floats
from pflow.physics.detector import ECAL, HCAL, KINDS, Calorimeter, Detector, Layers
from pflow.physics.geometry import (
    CELL,
    DEPTH,
    FACE,
    FIELD,
    LAYER,
    LENGTH,
    NO_FACE,
    RADIUS,
    Faces,
    Geometry,
    distance_to_sides,
    kind_index,
)

BOTH = [ECAL, HCAL]
ON_GRID = 0.9  # least mean cosine of 2 pi times the place in cells, where centres are at multiples of the cell size
MIN_ON_GRID = 200  # hits of a calorimeter from which is said that they do not lie in its cells
Forms = npt.NDArray[np.void]
AS_SIMULATED: Forms = np.array(
    [(1.0, -1.0, 0.0, 1.0, 1, 1, 0.0, 1.0, False, 0, False)],
    dtype=[
        ("scale", "f8"),  # factor on all lengths
        ("sides", "f8"),  # of the barrel; -1: as simulated, 0: a cylinder
        ("phase", "f8"),  # azimuth of a side's normal, rad
        ("endcap", "f8"),  # factor on |z| of the endcaps' faces
        ("coarser", "i8", len(KINDS)),  # factor on the cell size, for each of `pflow.physics.detector.KINDS`
        ("every", "i8", len(KINDS)),  # every n-th layer is read
        ("threshold", "f8", len(KINDS)),  # GeV
        ("hcal", "f8"),  # fraction of the HCAL's layers
        ("missing", "?"),  # whether only required calorimeters exist
        ("digital", "i8"),  # 0: energies of the HCAL are measured, 1: one threshold, 2: three
        ("no_time", "?"),
    ],
)
"""The form of the detector that is simulated; an array of forms has a row for each event."""
POWERS = {"mm": 1, "ns": 1, "1/mm": -1}
"""Power of the scale by which fields of these units change."""
LEVELS = (0.0, 3.0, 10.0)
"""Thresholds of a semi-digital readout, in units of the median energy of the HCAL's hits, of all events together."""
TIME_SEED = 1
"""Seed of the errors of times: all variants of a detector have the same errors, in units of their resolution."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variation:
    """Differences of other detectors from the simulated one, drawn for each event; ConfigError: a value out of range.

    Parameters
    ----------
    probability
        Fraction of the events that are moved.
    scale
        Smallest and largest factor on all lengths; its logarithm is uniform. Exact.
    sides
        Numbers of sides of the barrel to draw from; 0: a cylinder. Hits are shifted along their rays.
    endcap
        Smallest and largest factor on |z| of the endcaps' faces. Hits are shifted along their rays.
    coarser
        Integer factors on the cell size to draw from, for each kind of calorimeter. Exact.
    fewer_layers
        Probability, for each kind, that only every second layer is read, with twice the energy (of an odd number of
        layers: times the ratio of the numbers). Exact.
    ecal_threshold, hcal_threshold
        Largest threshold on the energy of a hit, GeV; drawn uniformly from 0.
    shorter_hcal
        Smallest fraction of the HCAL's layers, from the inside; drawn uniformly up to 1.
    missing
        Probability that calorimeters which are not required (ring, muon system) are missing.
    digital
        Probability of a digital readout of the HCAL, with one or three thresholds at equal probability.
    no_time
        Probability that times are not measured.
    """

    probability: float = 0.8
    scale: Sequence[float] = (0.75, 1.4)
    sides: Sequence[int] = (0, 8, 12, 16)
    endcap: Sequence[float] = (0.72, 1.12)
    coarser: Sequence[int] = (1,)
    fewer_layers: float = 0.0
    ecal_threshold: float = 0.0
    hcal_threshold: float = 0.0
    shorter_hcal: float = 1.0
    missing: float = 0.0
    digital: float = 0.0
    no_time: float = 0.0

    def __post_init__(self) -> None:
        fractions = "probability", "fewer_layers", "shorter_hcal", "missing", "digital", "no_time"
        check_options(self, "detector", "from 0 to 1", lambda fraction: 0 <= fraction <= 1, *fractions)
        thresholds = "ecal_threshold", "hcal_threshold"
        check_options(self, "detector", "an energy of at least 0 GeV", lambda value: 0 <= value < np.inf, *thresholds)
        factors, sides = "two factors above 0", "numbers of at least 3, or 0"
        check_options(self, "detector", factors, lambda v: len(v) == 2 and 0 < v[0] <= v[1] < np.inf, "scale", "endcap")
        check_options(self, "detector", sides, lambda v: len(v) > 0 and all(n == 0 or n >= 3 for n in v), "sides")
        expected = "whole factors of at least 1"
        check_options(self, "detector", expected, lambda factors: min(factors, default=0) >= 1, "coarser")

    def draw(self, n: int, generator: np.random.Generator) -> Forms:
        """Forms for `n` events."""
        forms, kinds = AS_SIMULATED.repeat(n), (n, len(KINDS))
        moved = np.flatnonzero(generator.random(n) < self.probability)
        sides = generator.choice(np.array(self.sides, dtype=np.float64), n)
        (small, large), (near, far) = self.scale, self.endcap
        drawn = {
            "scale": np.exp(generator.uniform(math.log(small), math.log(large), n)),
            "sides": sides,
            "phase": generator.random(n) * 2 * np.pi / np.maximum(sides, 1),
            "endcap": generator.uniform(near, far, n),
            "coarser": generator.choice(np.array(self.coarser), kinds)[:, BOTH],
            "every": 1 + (generator.random(kinds) < self.fewer_layers)[:, BOTH],
            "threshold": generator.random(kinds)[:, BOTH] * [self.ecal_threshold, self.hcal_threshold],
            "hcal": generator.uniform(self.shorter_hcal, 1.0, n),
            "missing": generator.random(n) < self.missing,
            "digital": (generator.random(n) < self.digital) * generator.integers(1, 3, n),
            "no_time": generator.random(n) < self.no_time,
        }
        for name, values in drawn.items():
            forms[name][moved if values.ndim == 1 else (moved[:, np.newaxis], BOTH)] = values[moved]
        return forms

    def widened(self, ranges: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """Ranges of `pflow.physics.geometry.measures` of the detectors that events may be moved into."""
        (small, large), (near, far) = self.scale, self.endcap
        factors = {
            FIELD: (1 / large, 1 / small),
            RADIUS: (small, large),
            FACE: (small * near, large * far),
            DEPTH.format("HCAL", LENGTH["hcal"]): (self.shorter_hcal, 1.0),
        }
        for kind, length in LENGTH.items():
            factors[CELL.format(kind.upper())] = (small, large * max(self.coarser))
            factors[LAYER.format(kind.upper(), length)] = (1.0, 2.0 if self.fewer_layers else 1.0)
        widened = {}
        for name, (low, high) in ranges.items():
            least, most = factors.get(name, (1.0, 1.0))
            widened[name] = low * min(1.0, least), high * max(1.0, most)
        return widened


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """Another form of a simulated detector, the same for all events; the default is the detector as simulated.

    ConfigError: a value out of range.

    Parameters
    ----------
    ecal_cells, hcal_cells
        Whole factors on the cell size: cells of the simulation are summed. Exact, except for single cells that the
        sample's threshold has removed.
    layers
        n: every n-th layer of ECAL and HCAL is read, with n times the energy, or as much more as the layers that it
        stands for are thicker. Exact; the number of layers of barrels and endcaps must be a multiple of n.
    hcal_layers
        Number of layers of the HCAL's barrel and endcaps, from the inside; None: all. Exact, except for backscatter
        from the others, and for calorimeters behind it, which stay.
    ecal_threshold, hcal_threshold
        Smallest energy of a cell, GeV, as calibrated and after the steps above. Exact.
    time
        Resolution that is added to the times of hits, ns, in quadrature to the sample's own; inf: none is measured.
    scale
        Factor on all lengths and times, with densities and field divided by it. Exact, and the physics stays the same,
        so that any change of the results is the algorithm's.
    """

    ecal_cells: int = 1
    hcal_cells: int = 1
    layers: int = 1
    hcal_layers: int | None = None
    ecal_threshold: float = 0.0
    hcal_threshold: float = 0.0
    time: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        def whole(number: object) -> bool:
            return number is None or (isinstance(number, int) and number >= 1)

        cells = "a whole number of at least 1, because cells of the simulation can be summed and not be cut"
        check_options(self, "scan", cells, whole, "ecal_cells", "hcal_cells")
        check_options(self, "scan", "a whole number of at least 1", whole, "layers", "hcal_layers")
        thresholds = "ecal_threshold", "hcal_threshold"
        check_options(self, "scan", "an energy of at least 0 GeV", lambda value: 0 <= value < math.inf, *thresholds)
        check_options(self, "scan", "a resolution of at least 0 ns", lambda value: value >= 0, "time")
        check_options(self, "scan", "a factor above 0", lambda value: 0 < value < math.inf, "scale")

    def detector(self, detector: Detector) -> Detector:
        """The description of the detector after the move; ConfigError says why it cannot be made of this one."""
        most = max((c.n_layers for c in detector.calorimeters if c.kind == "hcal"), default=0)
        if (self.hcal_layers or 0) > most:
            raise ConfigError(f"hcal_layers={self.hcal_layers}: the HCAL of '{detector.name}' has {most} layers")
        in_depth = [c for c in detector.calorimeters if c.kind == "hcal" and c.region != "other"]
        for first, second in itertools.combinations(in_depth if self.hcal_layers else (), 2):
            if first.region == second.region:
                text = f"{first.name} and {second.name} are in one region, and no one number of layers is of both"
                raise ConfigError(f"hcal_layers={self.hcal_layers}: {text}; describe them as one calorimeter")
        cells, calorimeters = {"ecal": self.ecal_cells, "hcal": self.hcal_cells}, []
        for calorimeter in detector.calorimeters:
            layers = self._layers(calorimeter) if calorimeter.kind in cells else calorimeter.layers
            layers = tuple(dataclasses.replace(some, pitch=some.pitch * self.scale) for some in layers)
            sizes = _scaled(calorimeter, self.scale, "inner_radius", "inner_z", "cell_size")
            if "cell_size" in sizes:
                sizes["cell_size"] *= cells.get(calorimeter.kind, 1)
            calorimeters.append(dataclasses.replace(calorimeter, layers=layers, **sizes))
        lengths = "ecal_inner_radius", "ecal_inner_z", "ecal_outer_radius", "hcal_inner_radius", "hcal_inner_z"
        sizes = {"b_field": detector.b_field / self.scale, **_scaled(detector, self.scale, *lengths)}
        return dataclasses.replace(detector, calorimeters=tuple(calorimeters), **sizes)

    def _layers(self, calorimeter: Calorimeter) -> tuple[Layers, ...]:
        """The layers of a calorimeter that are read; each includes the unread ones behind it."""
        names = "pitch", "radiation_lengths", "interaction_lengths"
        each = (some for some in calorimeter.layers for _ in range(some.count))
        single = [[getattr(some, name) for name in names] for some in each]
        if self.hcal_layers is not None and calorimeter.kind == "hcal" and calorimeter.region != "other":
            single = single[: self.hcal_layers]
        if len(single) % self.layers and calorimeter.region != "other":
            raise ConfigError(
                f"layers={self.layers}: '{calorimeter.name}' has {len(single)} layers, which is no multiple of "
                f"{self.layers}, so that no single factor on the energies is exact; of its layers every "
                f"{' or '.join(f'{n}.' for n in range(2, len(single) + 1) if len(single) % n == 0)} can be read"
            )
        starts = range(0, len(single), self.layers)
        groups = (zip(*single[start : start + self.layers], strict=True) for start in starts)
        # Rounded, because sums of equal layers that differ in the last digit would break up a run.
        summed = (tuple(None if None in sizes else round(sum(sizes), 9) for sizes in group) for group in groups)
        runs = ((dict[str, Any](zip(names, sizes, strict=True)), run) for sizes, run in itertools.groupby(summed))
        return tuple(Layers(count=len(list(run)), **sizes) for sizes, run in runs)

    def check(self, events: Events) -> None:
        """ConfigError: the events do not hold what an exact move needs, e.g. numbers of layers."""
        detector, hits = self.detector(events.detector), jagged.columns(events.hits)
        kind, where = kind_index(events.detector)[hits["subdetector"]], f"{events.path or 'these events'}: "
        several = np.array([c.n_layers != 1 for c in events.detector.calorimeters])[hits["subdetector"]]
        unknown = (hits["layer"] < 0) & (hits["energy"] > 0) & several
        for number, name in ((ECAL, "ecal"), (HCAL, "hcal")):
            cells, threshold = getattr(self, f"{name}_cells"), getattr(self, f"{name}_threshold")
            energy = hits["energy"][(kind == number) & (hits["energy"] > 0)]
            least, most = float(energy.min(initial=math.inf)), float(energy.max(initial=-math.inf))
            if 0 < threshold < least:
                text = f"hits of the {name.upper()} have at least {least:.3g} GeV, the threshold of the sample"
                raise ConfigError(f"{where}{name}_threshold={threshold:g} changes nothing: {text}")
            if self.layers == cells == 1 and threshold > most > 0:  # else of sums
                text = f"{name}_threshold={threshold:g} removes all hits of the {name.upper()}"
                raise ConfigError(f"{where}{text}, which have up to {most:.3g} GeV")
            described = all(c.cell_size and c.layers for c in detector.calorimeters if c.kind == name)
            if not described and (cells, self.layers, self.hcal_layers) != (1, 1, None):
                text = f"detector '{detector.name}' does not say cell_size and layers of its {name.upper()}"
                older = f"name it (--detector {detector.name}) if this is what an older model stores"
                raise ConfigError(f"{where}{text}: {older}, or complete its YAML file (pflow detector drafts one)")
            used = self.layers > 1 or cells > 1 or (number == HCAL and self.hcal_layers)
            if used and unknown[kind == number].any():
                text = "so that no layers can be left out, and cells of different layers would be summed"
                raise ConfigError(f"{where}the hits of the {name.upper()} have no layer numbers, {text}")
        for number, part in enumerate(events.detector.calorimeters):
            mine = (hits["subdetector"] == number) & (hits["energy"] > 0)
            if part.kind == "hcal" and part.region != "other" and self.hcal_layers and mine.any():
                layer, pitches = hits["layer"][mine], [run.pitch for run in part.layers for _ in range(run.count)]
                # By the depth of the hits, too: few hits need not reach the first layer.
                by_depth = np.searchsorted(np.cumsum(pitches), depths(events)[mine], side="right")
                if min(layer.min(), np.median(layer - by_depth)) >= 1 or layer.max() >= part.n_layers:
                    text = f"hits of {part.name} are in layers {layer.min()} to {layer.max()}, expected numbers from 0"
                    raise ConfigError(f"{where}hcal_layers: {text} to {part.n_layers - 1}")
            if getattr(self, f"{part.kind}_cells", 1) > 1 and np.count_nonzero(mine) >= MIN_ON_GRID:
                x, y, z = (hits[f"position.{axis}"][mine].astype(np.float64) for axis in "xyz")
                place = z if part.region == "barrel" else x * np.cos(part.phase) + y * np.sin(part.phase)
                size = part.cell_size or math.inf
                # Of centres at multiples of the cell size, shifted by any constant, it is 1; of others near 0.
                if (on_grid := abs(np.exp(2j * np.pi * place / size).mean())) < ON_GRID:
                    axes = "z" if part.region == "barrel" else f"axes turned by the phase of {part.phase:g} rad"
                    text = f"the hits of {part.name} do not lie in cells of {size:g} mm along {axes} ({on_grid:.2f}"
                    text += "; 1: they do): coarser cells are sums of parts of cells"
                    warn(f"{where}{text}", ImplausibleWarning)
        if self.time and not np.isfinite(hits["time"]).any():
            raise ConfigError(f"{where}time: hits have no times in this sample")

    def apply(self, events: Events) -> Events:
        """The events as this form of the detector records them; the reference algorithm's particles are dropped.

        Each event is moved independently. Events must not be rotated before. ConfigError: as of `detector`;
        InputError: as of `change_cells`.
        """
        if self == Move():
            return events
        described = self.detector(events.detector)
        forms = AS_SIMULATED.repeat(len(events))
        forms["scale"], forms["no_time"], forms["every"][:, BOTH] = self.scale, math.isinf(self.time), self.layers
        forms["coarser"][:, BOTH] = self.ecal_cells, self.hcal_cells
        forms["threshold"][:, BOTH] = self.ecal_threshold, self.hcal_threshold
        if self.hcal_layers is not None:
            shorter = np.array([c.kind == "hcal" and c.region != "other" for c in events.detector.calorimeters])
            hits = jagged.columns(events.hits)
            if (shorter[hits["subdetector"]] & (hits["layer"] < 0) & (hits["energy"] > 0)).any():
                raise events.error("no layers of the HCAL can be left out without layer numbers", field="hits.layer")
            # `change_cells` takes the factor on energies from the number of layers that the detector describes.
            cut = Move(hcal_layers=self.hcal_layers).detector(events.detector)
            events = keep_hits(events, ~shorter[hits["subdetector"]] | (hits["layer"] < self.hcal_layers))
            events = dataclasses.replace(events, detector=cut)
        moved = move(change_cells(events, forms), forms)
        if 0 < self.time < math.inf:
            counts = jagged.count(moved.hits)
            rows = zip(events.entry.tolist(), counts.tolist(), strict=True)
            # By entry, so that the errors do not depend on how a file is cut into chunks.
            errors = [np.random.default_rng((TIME_SEED, entry)).standard_normal(count) for entry, count in rows]
            time = jagged.columns(moved.hits)["time"]
            # The empty list is for a chunk without events.
            time = (time + self.time * np.concatenate([[], *errors])).astype(time.dtype)
            moved = dataclasses.replace(moved, hits=jagged.replaced(moved.hits, {"time": time}))
        return dataclasses.replace(moved, detector=described, geometry=None, reference=None, reference_name="")


def _scaled(description: Calorimeter | Detector, scale: float, *names: str) -> dict[str, Any]:
    """The sizes that the description gives, multiplied."""
    return {name: size * scale for name in names if (size := getattr(description, name)) is not None}


def change_cells(events: Events, forms: Forms) -> Events:
    """Read other cells: fewer layers, coarser cells, thresholds, fewer calorimeters.

    Events must not be rotated before, because their cells lie in the grid of the simulation. InputError: hits have no
    layer numbers, and not all layers are to be read, or cells to be summed.
    """
    hits = jagged.columns(events.hits)
    event = jagged.event_index(jagged.count(events.hits))
    calorimeters, kinds = events.detector.calorimeters, kind_index(events.detector)
    kind = kinds[hits["subdetector"]]
    n_layers = np.array([calorimeter.n_layers for calorimeter in calorimeters])
    required = np.array([calorimeter.required for calorimeter in calorimeters])
    every, coarser = (forms[name][event, kind] for name in ("every", "coarser"))
    unknown = (hits["layer"] < 0) & (hits["energy"] > 0)
    for wrong, text in (
        (every > 1, "every second layer cannot be read of hits without layer numbers: set detector.fewer_layers to 0"),
        (
            (coarser > 1) & (n_layers[hits["subdetector"]] > 1),
            "cells of hits without layer numbers cannot be summed layer by layer: set detector.coarser to [1]",
        ),
    ):
        if (unknown & wrong).any():
            raise events.error(text, field="hits.layer")
    keep = hits["layer"] % every == 0
    # Files may count layers from 1: the whole HCAL has no last one.
    shorter = (kind == HCAL) & (forms["hcal"][event] < 1)
    keep &= ~shorter | (hits["layer"] < np.ceil(forms["hcal"][event] * n_layers[hits["subdetector"]]))
    keep &= ~forms["missing"][event] | required[hits["subdetector"]]
    # Calorimeters that do not describe their layers have 0 of them, and their energies stay.
    of_layers = np.maximum(n_layers[hits["subdetector"]], 1)
    energy = hits["energy"] * (of_layers / np.ceil(of_layers / every)).astype(hits["energy"].dtype)
    layer = np.where(hits["layer"] >= 0, hits["layer"] // every, hits["layer"]).astype(hits["layer"].dtype)
    for number, part in enumerate(calorimeters):
        for n in np.unique(forms["every"][:, kinds[number]]):
            if ((factor := _of_unlike_layers(part, int(n))) != 1).any():
                rows = np.flatnonzero((hits["subdetector"] == number) & (every == n) & keep)
                energy[rows] *= factor[np.clip(layer[rows], 0, len(factor) - 1)]
    columns = {"energy": energy, "layer": layer}
    if forms["no_time"].any():
        columns["time"] = np.where(forms["no_time"][event], np.nan, hits["time"]).astype(hits["time"].dtype)
    events = dataclasses.replace(events, hits=jagged.replaced(events.hits, columns))
    events = _coarser(keep_hits(events, keep), forms)

    counts, energy = jagged.count(events.hits), jagged.columns(events.hits)["energy"]
    event, kind = jagged.event_index(counts), kinds[jagged.columns(events.hits)["subdetector"]]
    # After the sums, because a detector applies its threshold to its own cells.
    if forms["threshold"].any():
        keep = energy >= forms["threshold"][event, kind]
        events, event, kind, energy = keep_hits(events, keep), event[keep], kind[keep], energy[keep]
    digital = np.flatnonzero((forms["digital"][event] > 0) & (kind == HCAL))
    if len(digital):
        # What a hit stands for depends on the size of the cells: each detector that was drawn is calibrated for itself.
        readouts = (forms["digital"], forms["coarser"][:, HCAL], forms["every"][:, HCAL])
        detector, first = equal_rows(*(readout[event[digital]] for readout in readouts))
        # The column may be a view of the events that were given.
        energy = energy.copy()
        for k, three in enumerate(forms["digital"][event[digital[first]]] == 2):
            rows = digital[detector == k]
            # Each hit gets the mean energy of those that pass as many thresholds.
            level = np.searchsorted(LEVELS if three else (), energy[rows] / np.median(energy[rows]), side="right")
            energy[rows] = (np.bincount(level, energy[rows]) / np.maximum(np.bincount(level), 1))[level]
        events = dataclasses.replace(events, hits=jagged.replaced(events.hits, {"energy": energy}))
    return events


def _of_unlike_layers(part: Calorimeter, every: int) -> Floats:
    """Mean length of the layers that each n-th one stands for over its own, [layer that is read]; 1 of like ones."""
    name = f"{LENGTH.get(part.kind)}_lengths"  # NaN where they are not described
    length = np.array([getattr(run, name, None) for run in part.layers for _ in range(run.count)], dtype=np.float64)
    starts = np.arange(0, len(length), every)
    if every == 1 or not len(length) or not (length > 0).all():
        return np.ones(1)
    mean: Floats = np.add.reduceat(length, starts) / np.diff([*starts, len(length)])
    return np.round(mean / length[starts], 9)


def _coarser(events: Events, forms: Forms) -> Events:
    """Sum the cells of the simulation's grid into coarser ones.

    The grid lies in the surfaces of the layers. Its coordinates, mm, are along the circle or the side and along z in a
    barrel; in endcaps they are along the axes of the cells, which are turned by the calorimeter's `phase`. Centres of
    cells are at whole multiples of the cell size (DD4hep's grids) or halfway between, as the hits show; a cylinder has
    a whole number of cells around.
    """
    hits = jagged.columns(events.hits)
    event = jagged.event_index(jagged.count(events.hits))
    factor = forms["coarser"][event, kind_index(events.detector)[hits["subdetector"]]]
    chosen = np.flatnonzero(factor > 1)
    if not len(chosen):
        return events
    calorimeter = hits["subdetector"][chosen].astype(np.int64)
    x, y, z = (hits[f"position.{axis}"][chosen].astype(np.float64) for axis in "xyz")
    geometry = Geometry.of(events.detector)
    factor, layer = factor[chosen], hits["layer"][chosen].astype(np.int64)
    size = np.tile(geometry.cell_size[0][calorimeter], (2, 1))
    sides, phase = geometry.faces.sides[0][calorimeter], geometry.faces.phase[0][calorimeter]
    barrel = np.array([c.region == "barrel" for c in events.detector.calorimeters])[calorimeter]
    is_round, width = sides == 0, 2 * np.pi / np.maximum(sides, 1)

    azimuth, distance = np.arctan2(y, x), distance_to_sides(x, y, sides, phase)
    side = np.where(barrel, np.round((azimuth - phase) / width), np.sign(z)).astype(np.int64)
    # A cylinder is one side, which its phase must not cut.
    side[barrel & is_round] = 0
    normal = np.where(is_round, 0.0, phase + width * side)  # of the side, rad
    off, cos, sin = azimuth - normal, np.cos(phase), np.sin(phase)
    # Around a cylinder a layer has a whole number of cells, from -pi on.
    of_layer, _ = equal_rows(event[chosen], calorimeter, layer)
    circle = 2 * np.pi * (np.bincount(of_layer, distance) / np.bincount(of_layer))[of_layer]
    size[0] = np.where(barrel & is_round, 2 * np.pi * distance / np.round(circle / size[0]), size[0])
    # np.where computes both choices, and the tangent diverges at azimuths of a cylinder.
    along = np.where(is_round, off + np.pi, np.tan(np.where(is_round, 0.0, off))) * distance
    place = np.where(barrel, np.stack([along, z]), np.stack([x * cos + y * sin, y * cos - x * sin]))
    # Cells whose centres lie on the edges of coarse ones would be split among these by the rounding of positions.
    n_hits = np.maximum(np.bincount(calorimeter), 1)
    cosine = [np.bincount(calorimeter, row)[calorimeter] for row in np.cos(2 * np.pi * place / size)]
    start = np.where(np.stack(cosine) > ON_GRID * n_hits[calorimeter], 0.0, 0.5)
    number = np.floor(place / size - start + 0.5).astype(np.int64) // factor

    # The coarse cell's centre, and from there back to x, y, z.
    u, v = (number * factor + (factor - 1) / 2 + start) * size
    # Hits of an endcap may lie on the axis; their angle is not used.
    angle = u / np.maximum(distance, 1.0)
    azimuth = normal + np.where(is_round, angle - np.pi, np.arctan(angle))
    radius = np.where(is_round, distance, np.hypot(distance, u))
    on_barrel = np.stack([radius * np.cos(azimuth), radius * np.sin(azimuth), v])
    on_face = np.stack([u * cos - v * sin, u * sin + v * cos, z])
    columns = {f"position.{axis}": hits[f"position.{axis}"].copy() for axis in "xyz"}
    for values, of_cell in zip(columns.values(), np.where(barrel, on_barrel, on_face), strict=True):
        values[chosen] = of_cell
    events = dataclasses.replace(events, hits=jagged.replaced(events.hits, columns))
    group, first = equal_rows(event[chosen], calorimeter, layer, side, *number)
    return sum_cells(events, chosen, chosen[first[group]])


def move(events: Events, forms: Forms) -> Events:
    """Move hits, tracks and truth into detectors of other sizes and shapes, which ``events.geometry`` describes."""
    before = Geometry.of(events.detector)[np.zeros(len(events), dtype=np.int64)]
    kinds = kind_index(events.detector)

    sides, phase, endcap = (forms[name][:, np.newaxis] for name in ("sides", "phase", "endcap"))
    radius, z, *shape = before.faces
    is_new = (sides >= 0) & (radius < NO_FACE)
    sides, phase = (np.where(is_new, new, old) for new, old in zip((sides, phase), shape, strict=True))
    every = np.ones((*before.edge.shape, 3))
    every[..., 0] = forms["every"][:, kinds, np.newaxis]  # fewer layers in the same matter
    after = dataclasses.replace(
        before,
        faces=Faces(radius, z * endcap, sides, phase),
        cell_size=before.cell_size * forms["coarser"][:, kinds],
        density=before.density / every,
    )
    parts: dict[str, Any] = {}
    for name, part in events.parts():
        columns, counts = jagged.columns(part), jagged.count(part)
        event, shifted, changed = jagged.event_index(counts), {}, {}
        if vector := {"hits": "position", "tracks": "calo_position"}.get(name):
            calorimeter = columns["subdetector"] if name == "hits" else None
            faces = (geometry.faces_of(event, calorimeter) for geometry in (before, after))
            position = np.stack([columns[f"{vector}.{axis}"].astype(np.float64) for axis in "xyz"])
            shifted = dict(zip((f"{vector}.{axis}" for axis in "xyz"), _on_faces(position, *faces), strict=True))
        for column, field in fields_of(name).items():
            if (power := POWERS.get(field.unit)) and column in columns:
                values = shifted.get(column, columns[column]) * forms["scale"][event] ** power
                changed[column] = values.astype(columns[column].dtype)
        if changed:
            parts[name] = jagged.replaced(part, changed)
    return dataclasses.replace(events, geometry=after.scaled(forms["scale"]), **parts)


def _on_faces(position: Floats, before: Faces, after: Faces) -> Floats:
    """Points [3, N] shifted along their rays by as much as the faces in front of them."""
    x, y, z = position
    in_barrel, in_endcap = before.distances(x, y, z)
    radius = np.hypot(x, y)
    old, new = (distance_to_sides(x, y, faces.sides, faces.phase) for faces in (before, after))
    # The face is at `faces.radius` times radius / distance along the normal, in units of the radius:
    by_barrel = after.radius / np.maximum(new, 1.0) - before.radius / np.maximum(old, 1.0)
    by_endcap = (after.z - before.z) / np.maximum(np.abs(z), 1.0)
    behind = (in_barrel >= in_endcap) & (radius > 0)
    return np.asarray(position * (1.0 + np.where(behind, by_barrel, by_endcap)))
