"""Checks whether the events of a file are plausible: energies, the field, hits without a target.

`check_events` runs while a file is read, by every verb, and for `pflow inspect`. A check is a generator in `CHECKS`: it
takes a `Subject`, and yields nothing where the events do not hold what it needs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.jagged import Links
from pflow.event.scales import MIN_TRACKS, MOST_TRACKS, Check, Entries, SampleScales
from pflow.event.schema import MAX_LENGTH
from pflow.event.truth import STABLE_STATUS, Targets, select_targets, unknown_status
from pflow.physics.arrays import Floats, Mask
from pflow.physics.geometry import cell_pitch, distance_to_sides, fraction_on_layers, layers_by_position
from pflow.physics.kinematics import angle_between
from pflow.physics.pdg import is_invisible, masses

ELECTRON, MUON = 11, 13

UNITS = 30.0  # energies that differ by more than this factor are in different units
RESPONSE = (0.3, 1.5)  # plausible ratios of the energy in hits to the energy of stable particles that shower
HIT_ENERGY = (2e-5, 1.0)  # GeV, plausible medians of the energies of hits, calibrated or not
MASS = 1.3  # largest plausible ratio of masses to the PDG's
FIELD = 0.02  # largest plausible relative difference of the transverse momenta of tracks and their particles
ANGLE = 0.05  # rad, largest plausible median angle between tracks and their particles
SHARE, NEAR = 0.67, 60.0  # smallest plausible fraction of tracks that enter the calorimeter within `NEAR` mm of a hit
TURNED = 0.1  # rad, largest plausible median angle between momenta at the calorimeter and the helix there
OPPOSITE = 0.5  # largest plausible fraction of tracks whose charge is not their particle's
UNOWNED = 0.25  # largest plausible fraction of hit energy without a target, and of tracks without a particle
FEW = 2  # events that are searched for duplicated objects and layers at a wrong depth
TWICE = 0.05  # largest plausible fraction of duplicated hits or tracks
ALIKE = 0.02  # relative difference of momenta below which tracks are duplicates
MIN_LAYERED, MAX_LAYERED = 300, 1_000  # hits of a calorimeter needed, and used at most, to compare layers with depth
FOLLOWS = 0.5  # smallest plausible correlation of layer and depth
MIN_ON_DEPTH = 5  # mean number of hits at a depth if the shape of the planes is known
ON_LAYERS = 0.85  # smallest plausible fraction of hits whose layer is their depth's, and whose depth is their layer's
MAX_PLACED, OUTSIDE = 20_000, 0.05  # hits that are compared with the faces, and largest plausible fraction beyond them
CELLS, PITCH = 1.5, 1.2  # largest plausible ratios of cell sizes and of distances of layers to the described ones
MIN_LINKED, MIN_LINKED_TRACKS = 20, 5  # hits of a calorimeter, and tracks, needed to check their links
STRAIGHT = 5.0  # GeV, transverse momentum above which charged particles enter the calorimeter within `FAR`
FAR = 0.3  # rad, largest usual angle between a hit and its particle's direction
MOST_FAR = 0.3  # largest plausible fraction of targets with most of their hits beyond
MIN_TARGETS = 10  # targets needed to check the directions of their hits
MAX_LINKS = 2_000  # links of hits checked at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What a verb knows of the events that it reads.

    `targets`: how it chooses them, options of `pflow.event.truth.select_targets`; None: it has no targets. `sample`: of
    what the events' model was trained on; None: there is no model, or it does not say.
    """

    targets: Mapping[str, Any] | None = None
    sample: SampleScales | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """Events under check, what the verb expects of them, and quantities that several checks need."""

    events: Events
    expected: Expected

    @property
    def stable_status(self) -> Sequence[int]:
        """Status of stable particles."""
        chosen = self.expected.targets or {}
        return tuple(chosen.get("stable_status", STABLE_STATUS))

    @functools.cached_property
    def hit_energy(self) -> Floats:
        """Energy of each hit, GeV, [hit]."""
        return jagged.columns(self.events.hits)["energy"].astype(np.float64)

    @functools.cached_property
    def entries(self) -> Entries:
        """Where tracks enter the calorimeter."""
        return Entries.of(self.events, most=MOST_TRACKS)

    @functools.cached_property
    def scales(self) -> SampleScales:
        """Typical energies and curvatures."""
        return SampleScales.of(self.events, self.entries)

    @functools.cached_property
    def status_problem(self) -> str:
        """Message if no particle is stable; "" if some are, without truth, and under rules that do not ask for it."""
        truth, rule = self.events.truth, (self.expected.targets or {}).get("rule", "stable")
        return (
            ""
            if truth is None or rule != "stable"
            else unknown_status(jagged.columns(truth)["status"], self.stable_status)
        )

    @functools.cached_property
    def showering_energy(self) -> float:
        """Energy of the stable particles, without neutrinos and muons, GeV; 0 without truth."""
        if self.events.truth is None:
            return 0.0
        columns = jagged.columns(self.events.truth)
        pdg = columns["pdg"]
        showers = np.isin(columns["status"], self.stable_status) & ~is_invisible(pdg) & (np.abs(pdg) != MUON)
        return float(columns["energy"][showers].sum())

    @functools.cached_property
    def targets(self) -> Targets | None:
        """All targets of the rule; None if the verb needs no targets or the events have no truth."""
        if self.expected.targets is None or not self.events.has_truth or self.status_problem:
            return None
        by_choice = ("e_min", "invisible")  # the user knows that hits of these belong to no target
        options = {name: value for name, value in self.expected.targets.items() if name not in by_choice}
        return select_targets(self.events, **options)


def check_events(events: Events, expected: Expected | None = None) -> list[Check]:
    """Run all checks on events, given what a verb expects of them.

    Raises what `pflow.event.truth.select_targets` does.
    """
    subject = Subject(events, expected or Expected())
    results = [result for check in CHECKS for result in check(subject)]
    return [result._replace(good=bool(result.good)) for result in results]  # not of NumPy: they become JSON


def check_units(subject: Subject) -> Iterator[Check]:
    """Compare the energy in hits with the energies of tracks, truth and reference."""
    events, hits = subject.events, float(subject.hit_energy.sum())
    energies = {"energy of stable particles that shower": (subject.showering_energy, UNITS)}
    if events.tracks is not None and jagged.count(events.tracks).sum() >= MIN_TRACKS:  # fewer may be soft conversions
        momentum = np.linalg.norm(jagged.vectors(events.tracks, field="momentum"), axis=1)
        energies["momenta of tracks"] = float(momentum.sum()), UNITS**1.5
    if events.reference is not None:
        total = float(jagged.columns(events.reference)["energy"].sum(dtype=np.float64))
        energies[f"particles of {events.reference_name}"] = total, UNITS**1.5
    for what, (energy, factor) in energies.items():
        if hits and energy:
            good = 1 / factor < hits / energy < factor
            yield Check("units", good, f"{hits:.4g} GeV in hits, {energy:.4g} GeV in {what}")


def check_hits(subject: Subject) -> Iterator[Check]:
    """Energies of single hits and masses of true particles, which hardly differ between files."""
    for name, median in (("ECAL", subject.scales.ecal_hit), ("HCAL", subject.scales.hcal_hit)):
        if median is not None:
            good = HIT_ENERGY[0] < median < HIT_ENERGY[1]
            text = f"a typical hit of the {name} has {median:.3g} GeV"
            yield Check("hits", good, text if good else f"{text}: is its unit GeV?")
    truth = subject.events.truth
    if truth is not None:
        columns = jagged.columns(truth)
        known = masses(columns["pdg"])
        heavy = np.isfinite(known) & (known > 0)
        if heavy.any():
            ratio = float(np.median(columns["rest_mass"][heavy] / known[heavy]))
            text = f"masses of true particles are {ratio:.3g} times the PDG's"
            yield Check("masses", 1 / MASS < ratio < MASS, text)


def check_entries(subject: Subject) -> Iterator[Check]:
    """Whether hits lie where tracks enter the calorimeter: directions, frames and the field."""
    entries, field = subject.entries, subject.events.detector.b_field
    ways = {
        f"the helix from the IP in {field:g} T leads them": entries.by_helix,
        "their state at the calorimeter is": entries.by_state[~np.isnan(entries.by_state)],
    }
    for way, distance in ways.items():
        if len(distance) >= MIN_TRACKS:
            near = float(np.mean(distance < NEAR))
            text = f"{near:.0%} of {len(distance)} tracks have a hit within {NEAR:g} mm of where {way}"
            yield Check("entries", near > SHARE, text)
    turned = entries.turned[np.isfinite(entries.turned)]
    if len(turned) >= MIN_TRACKS:
        median = float(np.median(turned))
        text = f"momenta of tracks at the calorimeter are {median:.2g} rad from the helix from the IP"
        yield Check("entries", median < TURNED, text)


def check_tracks(subject: Subject) -> Iterator[Check]:
    """Compare momenta and charges of tracks with the particles they are linked to, except electrons."""
    events = subject.events
    if events.tracks is None or events.truth is None or events.track_links is None:
        return
    links = Links.of(events.track_links)
    truth = jagged.columns(events.truth)
    track, of = links.flat_source(jagged.count(events.tracks)), links.flat_particle(jagged.count(events.truth))
    chosen = (np.abs(truth["pdg"][of]) != ELECTRON) & (truth["energy"][of] > 0)  # particles left out have none
    track, of = track[chosen], of[chosen]
    if len(track) < MIN_TRACKS:
        return
    measured = jagged.vectors(events.tracks, field="momentum")[track]
    true = np.stack([truth[axis][of] for axis in ("px", "py", "pz")], axis=1)
    field = events.detector.b_field
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = float(np.nanmedian(np.hypot(*measured[:, :2].T) / np.hypot(*true[:, :2].T)))
    text = f"transverse momenta of tracks are {ratio:.3f} times those of their particles in {field:g} T"
    good = abs(ratio - 1) < FIELD
    yield Check("field", good, text if good else f"{text}; {field / ratio:.3g} T would fit")
    angle = float(np.median(angle_between(measured, true)))
    yield Check("track directions", angle < ANGLE, f"tracks are {angle:.2g} rad from their particles (median)")
    opposite = float(np.mean(jagged.columns(events.tracks)["charge"][track] * truth["charge"][of] < 0))
    text = f"{opposite:.0%} of the tracks have the opposite charge of their particles"
    yield Check("charges", opposite < OPPOSITE, text)


def check_sample(subject: Subject) -> Iterator[Check]:
    """Compare the scales of the events with the sample that the model was trained on."""
    if subject.expected.sample is not None:
        yield from subject.expected.sample.compared(subject.scales, subject.events.detector)


def check_response(subject: Subject) -> Iterator[Check]:
    """Whether there are stable particles, and compare the energy in hits with those that shower."""
    hits, true = float(subject.hit_energy.sum()), subject.showering_energy
    if subject.expected.targets is not None and subject.status_problem:
        yield Check("status", False, subject.status_problem)
    elif subject.expected.targets is not None and hits and true:
        low, high = RESPONSE
        named = ", ".join(map(str, subject.stable_status))
        text = f"hits have {hits / true:.2f} times the energy of the particles of status {named} that shower"
        yield Check("response", low < hits / true < high, text)


def check_targets(subject: Subject) -> Iterator[Check]:
    """Fraction of the hits' energy that belongs to targets."""
    hits, targets = float(subject.hit_energy.sum()), subject.targets
    if targets is not None and hits:
        share = abs(1 - float(targets.column("hit_energy").sum()) / hits)
        text = f"{share:.1%} of the hits' energy belongs to no target of the rule '{targets.rule}'"
        yield Check("targets", share < UNOWNED, text)


def check_twice(subject: Subject) -> Iterator[Check]:
    """Duplicated hits and tracks, as when two collections hold the same objects."""
    events = subject.events
    event = jagged.event_index(jagged.count(events.hits)[:FEW])
    position = jagged.vectors(events.hits, field="position")[: len(event)]
    place = position @ np.array([1.0, np.pi, np.e]) + event * np.sqrt(2) * MAX_LENGTH
    n_twice = int(np.sum(np.diff(np.sort(place)) == 0))
    if len(place):
        text = f"{n_twice} of {len(place)} hits lie exactly where another one does"
        yield Check("hits twice", n_twice <= TWICE * len(place), text)
    if events.tracks is None or not (bounds := jagged.offsets(jagged.count(events.tracks)[:FEW]))[-1]:
        return
    columns, momenta, n_alike = jagged.columns(events.tracks), jagged.vectors(events.tracks, field="momentum"), 0
    for start, stop in itertools.pairwise(bounds):
        momentum, charge = momenta[start:stop], columns["charge"][start:stop]
        size = np.linalg.norm(momentum, axis=1)
        apart = np.linalg.norm(momentum[:, None] - momentum, axis=2) / np.minimum(size[:, None], size)
        alike = (apart < ALIKE) & (charge[:, None] == charge)
        n_alike += int(np.sum(alike.sum(axis=1) > 1))
    text = f"{n_alike} of {bounds[-1]} tracks have the momentum of another one, to {ALIKE:.0%}"
    yield Check("tracks twice", n_alike <= TWICE * bounds[-1], text)


def check_layers(subject: Subject) -> Iterator[Check]:
    """Compare layers of hits with their depth; a difference shows a wrong cell encoding."""
    events, wrong, n_checked = subject.events, [], 0
    n_hits = int(jagged.count(events.hits)[:FEW].sum())
    columns = {name: values[:n_hits] for name, values in jagged.columns(events.hits).items()}
    for number, calorimeter in enumerate(events.detector.calorimeters):
        # Hits left out have neither place nor energy.
        mine = np.flatnonzero((columns["subdetector"] == number) & (columns["layer"] >= 0) & (columns["energy"] > 0))
        if calorimeter.region == "other" or len(mine) < MIN_LAYERED:
            continue
        n_checked += 1
        mine = mine[:: -(-len(mine) // MAX_LAYERED)]
        layer = columns["layer"][mine]
        x, y, z = (columns[f"position.{axis}"][mine].astype(np.float64) for axis in "xyz")
        # The whole detector may have half the symmetry of its barrel: ILD's endcaps have a square hole.
        symmetry = events.detector.phi_symmetry or 0
        polygons = [(n, phase) for n in (symmetry, 2 * symmetry) if n for phase in (0.0, np.pi / n)]
        barrel = calorimeter.region == "barrel"
        shapes = [distance_to_sides(x, y, *shape) for shape in ((0, 0.0), *polygons)] if barrel else [np.abs(z)]
        follows, depth = max(((_correlation(shape, layer), shape) for shape in shapes), key=lambda pair: pair[0])
        by_depth = layers_by_position(depth)
        text = f"(correlation {follows:.2f}"
        if MIN_ON_DEPTH * (by_depth.max() + 1) > len(layer):  # the shape is not known
            good = follows > FOLLOWS
        else:
            shares = fraction_on_layers(by_depth.astype(np.float64), layer), fraction_on_layers(layer * 1.0, by_depth)
            good = follows > FOLLOWS and min(shares) > ON_LAYERS
            text += f", {min(shares):.0%} of the hits have the layer of their depth"
        if not good:
            wrong.append(f"of {calorimeter.name} {text})")
    if n_checked:
        text = f"layers do not follow the depth of the hits, so the cell encoding is wrong: {'; '.join(wrong)}"
        yield Check("layers", not wrong, text if wrong else "layers follow the depth of the hits")


def check_faces(subject: Subject) -> Iterator[Check]:
    """Whether hits lie between the face and the last layer of their calorimeter, as the detector describes it."""
    wrong, n_checked = [], 0
    columns = {name: values[:MAX_PLACED] for name, values in jagged.columns(subject.events.hits).items()}
    for number, calorimeter in enumerate(subject.events.detector.calorimeters):
        field = {"barrel": "inner_radius", "endcap": "inner_z"}.get(calorimeter.region, "")
        face = getattr(calorimeter, field, None)
        depth = sum(layers.count * layers.pitch for layers in calorimeter.layers)
        mine = np.flatnonzero((columns["subdetector"] == number) & (columns["energy"] > 0))
        if face is None or not depth or len(mine) < MIN_LINKED:
            continue
        n_checked += 1
        x, y, z = (columns[f"position.{axis}"][mine].astype(np.float64) for axis in "xyz")
        place = np.abs(z) if field == "inner_z" else distance_to_sides(x, y, calorimeter.sides, calorimeter.phase)
        if (outside := float(np.mean((place < face - NEAR) | (place > face + depth + NEAR)))) > OUTSIDE:
            text = f"{outside:.0%} of the hits of {calorimeter.name} lie outside of it: {field} {face:g} mm, layers of"
            wrong.append(f"{text} {depth:.4g} mm; hits at {place.min():.4g} to {place.max():.4g} mm")
    if n_checked:
        yield Check("faces", not wrong, "; ".join(wrong) or "hits lie within their calorimeters as described")


def check_cells(subject: Subject) -> Iterator[Check]:
    """Whether cells and layers are as large as the hits show, e.g. not ten times as large."""
    wrong, n_checked = [], 0
    columns = {name: values[:MAX_PLACED] for name, values in jagged.columns(subject.events.hits).items()}
    for number, calorimeter in enumerate(subject.events.detector.calorimeters):
        mine = np.flatnonzero((columns["subdetector"] == number) & (columns["energy"] > 0))
        if calorimeter.region == "other" or len(mine) < MIN_LAYERED:
            continue
        n_checked += 1
        position = np.stack([columns[f"position.{axis}"][mine].astype(np.float64) for axis in "xyz"], axis=1)
        (x, y, z), layer = position.T, columns["layer"][mine]
        barrel = calorimeter.region == "barrel"
        depth = distance_to_sides(x, y, calorimeter.sides, calorimeter.phase) if barrel else np.abs(z)
        size, described = cell_pitch(position, depth), calorimeter.cell_size
        # Where few cells are hit, the nearest hit cell may not be a neighbour: the hits show an upper limit.
        if described and size and (described > CELLS * size or size > 2 * CELLS * described):
            wrong.append(f"cells of {calorimeter.name} are {size:.3g} mm large (described: {described:g})")
        pitch = np.repeat([part.pitch for part in calorimeter.layers], [part.count for part in calorimeter.layers])
        if len(pitch) < 2 or fraction_on_layers(depth, layer) < ON_LAYERS or (layer < 0).any():
            continue
        first, last = int(np.quantile(layer, 0.05)), int(np.quantile(layer, 0.95))
        if last > first:
            apart = float(np.median(depth[layer == last]) - np.median(depth[layer == first])) / (last - first)
            mean = float(np.append(pitch, np.full(last, pitch[-1]))[first:last].mean())
            if not 1 / PITCH < apart / mean < PITCH:
                text = (
                    f"layers {first} to {last} of {calorimeter.name} are {apart:.3g} mm apart (described: {mean:.3g})"
                )
                wrong.append(text)
    if n_checked:
        yield Check("cells", not wrong, "; ".join(wrong) or "cells and layers are as large as described")


def _correlation(depth: Floats, layer: npt.NDArray[Any]) -> float:
    """Correlation of depth and layer; 1 if all depths are equal, 0 if only the layers are."""
    if not np.ptp(depth) or not np.ptp(layer):
        return float(not np.ptp(depth))
    depth, layer = depth - depth.mean(), layer - layer.mean()
    return float(depth @ layer / np.sqrt((depth @ depth) * (layer @ layer)))


def check_links(subject: Subject) -> Iterator[Check]:
    """Fractions of hit energy in each calorimeter, and of tracks, that are linked to particles."""
    events = subject.events
    if events.truth is None:
        return
    lost = []
    if events.hit_links is not None:
        linked = _linked(events.hits, events.hit_links)
        subdetector = jagged.columns(events.hits)["subdetector"]
        for number, calorimeter in enumerate(events.detector.calorimeters):
            energy = subject.hit_energy * (subdetector == number)
            share = float(energy[linked].sum() / energy.sum()) if np.count_nonzero(energy) >= MIN_LINKED else 1.0
            if share < 1 - UNOWNED:
                lost.append(f"{share:.0%} of the energy of {calorimeter.name} is linked to particles")
    if events.tracks is not None and jagged.count(events.tracks).sum() >= MIN_LINKED_TRACKS:
        share = float(_linked(events.tracks, events.track_links).mean())
        if share < 1 - UNOWNED:
            names = "" if events.track_links is not None else f" (no {' or '.join(events.detector.track_links)})"
            lost.append(f"{share:.0%} of the tracks are linked to particles{names}")
    yield Check("links", not lost, "; ".join(lost) or "hits and tracks are linked to particles")


def _linked(sources: Any, links: Any) -> Mask:
    """Which hits or tracks have a link to a particle."""
    counts = jagged.count(sources)
    linked = np.zeros(int(counts.sum()), dtype=np.bool_)
    linked[Links.of(links, len(counts)).flat_source(counts)] = True
    return linked


def check_directions(subject: Subject) -> Iterator[Check]:
    """Compare directions of straight-flying targets and their hits; shifted links lead to other hits."""
    targets, events = subject.targets, subject.events
    if targets is None:
        return
    momentum = np.stack([targets.column(axis) for axis in ("px", "py", "pz")], axis=1)
    straight = (targets.column("charge") == 0) | (np.hypot(momentum[:, 0], momentum[:, 1]) > STRAIGHT)
    links = targets.links_to(targets.hits, np.where(straight, np.arange(len(straight)), -1))
    links = links.take(np.arange(0, len(links), -(-len(links) // MAX_LINKS) or 1))  # a sample, evenly spaced
    links = links.take(links.particle >= 0)
    source = links.flat_source(jagged.count(events.hits))
    energy, along = subject.hit_energy[source], momentum[links.particle]
    position = jagged.vectors(events.hits, field="position")[source]
    cosine = (position * along).sum(axis=1)
    far = cosine < np.cos(FAR) * np.linalg.norm(position, axis=1) * np.linalg.norm(along, axis=1)
    of_target, of_far = (np.bincount(links.particle, energy * part, len(straight)) for part in (far >= 0, far))
    n_targets, n_far = int(np.sum(of_target > 0)), int(np.sum(of_far > 0.5 * of_target))
    if n_targets >= MIN_TARGETS:
        text = f"{n_far} of {n_targets} particles have most of their hits farther than {FAR:g} rad from their direction"
        yield Check("directions", n_far < MOST_FAR * n_targets, text)


CHECKS: tuple[Callable[[Subject], Iterator[Check]], ...] = (
    check_units,
    check_hits,
    check_entries,
    check_tracks,
    check_sample,
    check_response,
    check_targets,
    check_twice,
    check_layers,
    check_faces,
    check_cells,
    check_links,
    check_directions,
)
"""All checks, in the order in which they are listed."""
