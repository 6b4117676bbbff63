"""Augmentation of training events: the detector's symmetries, overlay, and the defects of a real detector.

Reflection in the plane z = 0 leaves a solenoid's field, an axial vector along z, and the curvature of tracks unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import check_options
from pflow.event import jagged
from pflow.event.events import Events, kept_links
from pflow.event.merge import overlay
from pflow.event.move import Variation, change_cells, move
from pflow.event.schema import SCHEMA
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import Detector

NOISE_QUANTILE = 0.25  # noise copies hits of its subdetector with an energy below this quantile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Sizes of disturbances, drawn for each event; the default changes nothing. ConfigError: a value out of range.

    Parameters
    ----------
    probability
        Fraction of the events that are disturbed.
    energy_scale
        Standard deviation of the relative calibration error of each subdetector.
    dead_cells
        Fraction of the hits that are lost.
    noise_hits
        Mean number of hits without a particle (Poisson), copied from soft hits of other events.
    lost_tracks
        Fraction of the tracks that are lost.
    fake_tracks
        Mean number of tracks without a particle, copied from other events, relative to the number of tracks.
    """

    probability: float = 1.0
    energy_scale: float = 0.0
    dead_cells: float = 0.0
    noise_hits: float = 0.0
    lost_tracks: float = 0.0
    fake_tracks: float = 0.0

    def __post_init__(self) -> None:
        fractions = "probability", "dead_cells", "lost_tracks"
        check_options(self, "disturb", "from 0 to 1", lambda fraction: 0 <= fraction <= 1, *fractions)
        sizes = "energy_scale", "noise_hits", "fake_tracks"
        check_options(self, "disturb", "at least 0", lambda size: 0 <= size < np.inf, *sizes)


def disturb(events: Events, options: Disturbance, generator: np.random.Generator) -> Events:
    """Disturb events at random; the truth stays. Noise and fake tracks are copied from other events."""
    chosen = generator.random(len(events)) < options.probability
    counts, columns = jagged.count(events.hits), jagged.columns(events.hits)
    event = jagged.event_index(counts)
    subdetector = columns["subdetector"].astype(np.int64)
    n_subdetectors = len(events.detector.calorimeters)
    # The exponential keeps each factor above 0, however large the error.
    scale = np.exp(options.energy_scale * generator.standard_normal((len(events), n_subdetectors)))
    factor = np.where(chosen[event], scale[event, subdetector], 1.0)
    columns["energy"] = energy = (columns["energy"] * factor).astype(columns["energy"].dtype)
    # random() is below 1, so a fraction of 0 loses no hit and a fraction of 1 all.
    keep = (generator.random(len(event)) >= options.dead_cells) | ~chosen[event]

    by_subdetector = (energy[subdetector == number] for number in range(n_subdetectors))
    # A calorimeter without hits in the chunk has no quantile.
    limits = np.array([np.quantile(values, NOISE_QUANTILE) if len(values) else 0.0 for values in by_subdetector])
    soft = np.flatnonzero(energy < limits[subdetector])
    hits = _with_copies(columns, event, keep, soft, options.noise_hits * chosen, generator)
    events = dataclasses.replace(events, hits=hits, hit_links=kept_links(events.hit_links, counts, keep))
    if events.tracks is None:
        return events

    counts = jagged.count(events.tracks)
    event = jagged.event_index(counts)
    keep = (generator.random(len(event)) >= options.lost_tracks) | ~chosen[event]
    donors, means = np.arange(len(event)), options.fake_tracks * counts * chosen
    tracks = _with_copies(jagged.columns(events.tracks), event, keep, donors, means, generator)
    return dataclasses.replace(events, tracks=tracks, track_links=kept_links(events.track_links, counts, keep))


def _with_copies(
    columns: Mapping[str, npt.NDArray[Any]],
    event: Index,
    keep: Mask,
    donors: Index,
    means: npt.NDArray[Any],
    generator: np.random.Generator,
) -> ak.Array:
    """Records [event, object] of the objects to keep and, after them, copies of `donors` of other events.

    `columns`, `event` and `keep` are of all objects, [N] each; the numbers of copies are Poisson with `means` [event].
    """
    # A chunk without soft hits or tracks has nothing to copy.
    target = np.repeat(np.arange(len(means)), generator.poisson(means if len(donors) else 0 * means))
    copied = donors[generator.integers(max(1, len(donors)), size=len(target))]
    # A copy from the same event would lie on its original.
    is_other = event[copied] != target
    row_event = np.concatenate([event[keep], target[is_other]])
    # Stable, because links are renumbered for kept objects that stay first and in their order.
    rows = np.concatenate([np.flatnonzero(keep), copied[is_other]])[np.argsort(row_event, kind="stable")]
    counts = np.bincount(row_event, minlength=len(means))
    return jagged.records({name: values[rows] for name, values in columns.items()}, counts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlay:
    """Random overlay: each event of a chunk starts a group, whose other members are drawn from the chunk.

    ConfigError: a value out of range.

    Parameters
    ----------
    frequencies
        Relative frequencies of groups of 1, 2, 3 ... events: with ``[1, 2]`` two of three groups are pairs.
    cone
        Largest angle, rad, between the axis (energy-weighted mean direction of the hits) of the first event and of
        each other member. Members are drawn from events with about the same polar angle and rotated towards the first
        by a symmetry of the detector; a group with too few such events is smaller. pi: any events with energy.
    max_hits
        Events with more hits stay alone. None: join all.
    """

    frequencies: Sequence[float] = (1.0, 1.0, 1.0)
    cone: float = np.pi
    max_hits: int | None = None

    def __post_init__(self) -> None:
        def some(values: Sequence[float]) -> bool:
            return all(0 <= value < np.inf for value in values) and sum(values) > 0

        check_options(self, "overlay", "at least 0 and not all 0", some, "frequencies")
        angle = "an angle in rad, above 0 and at most pi"
        check_options(self, "overlay", angle, lambda cone: 0 < cone <= np.pi, "cone")
        check_options(self, "overlay", "a number of hits", lambda n: n is None or n >= 0, "max_hits")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Augmentation of training events, drawn again in every epoch; the default changes nothing.

    Steps, in order: the cells of other detectors are read (`detector`); events are rotated about the z axis by an angle
    of the detector's symmetry, reflected in the plane z = 0 with probability 1/2, joined (`overlay`), moved into the
    other detectors, and disturbed as a real detector differs from its simulation.
    """

    rotate: bool = False
    reflect: bool = False
    overlay: Overlay | None = None
    detector: Variation | None = None
    disturb: Disturbance | None = None


def augment(events: Events, options: Augmentation, generator: np.random.Generator) -> Events:
    """Augment a chunk of events at random; event numbers and their order stay. No group holds an event twice."""
    n, joining = len(events), options.overlay
    groups = None if joining is None else _random_groups(events, joining, generator)
    # Drawn for groups, not members: these keep their angles to each other.
    phi = random_phi(events.detector, n, generator) if options.rotate else None
    reflected = generator.random(n) < 0.5 if options.reflect else None
    drawn = cells = None if options.detector is None else options.detector.draw(n, generator)
    if groups is not None:
        sizes, members, turns = groups
        group = np.repeat(np.arange(n), sizes)  # of each member
        events = events[members]
        phi = turns if phi is None else turns + phi[group]
        reflected = None if reflected is None else reflected[group]
        cells = None if drawn is None else drawn[group]  # all members of a group have the same cells
    if cells is not None:
        # Before the rotation, after which cells no longer lie in the grid of the simulation.
        events = change_cells(events, cells)
    events = turn(events, phi, reflected)
    if joining is not None:
        events = overlay(events, sizes)
    if options.disturb is not None:
        # Before the move: noise and false tracks are those of other events, which move into other detectors.
        events = disturb(events, options.disturb, generator)
    # After the overlay, whose tolerances in mm are for cells of the simulated sizes.
    return events if drawn is None else move(events, drawn)


def random_phi(detector: Detector, n: int, generator: np.random.Generator) -> Floats:
    """Angles of `n` random symmetry rotations of the detector, rad in [0, 2 pi)."""
    if detector.phi_symmetry is None:
        return generator.uniform(0.0, 2 * np.pi, n)
    return np.asarray(generator.integers(detector.phi_symmetry, size=n) * (2 * np.pi / detector.phi_symmetry))


def _random_groups(events: Events, options: Overlay, generator: np.random.Generator) -> tuple[Index, Index, Floats]:
    """Draw a group for each event: sizes int64 [group], members int64 and their turns, rad, [member]."""
    n = len(events)
    is_small = jagged.count(events.hits) <= (np.inf if options.max_hits is None else options.max_hits)
    small = np.flatnonzero(is_small)
    # `_members_nearby` takes the largest of the wanted sizes, so it needs at least one event.
    if not len(small):
        return np.ones(n, dtype=np.int64), np.arange(n), np.zeros(n)
    frequencies = np.array(options.frequencies, dtype=np.float64)
    largest = 1 + generator.choice(len(frequencies), size=len(small), p=frequencies / frequencies.sum())
    theta, azimuth = (axis[small] for axis in _axes(events.hits))
    n_steps = events.detector.phi_symmetry
    members, allowed, turns = _members_nearby(theta, azimuth, largest, options.cone, generator, n_steps)
    # The others are turned towards the first: a random angle of its own would take it away from them.
    turns[:, 0] = 0.0
    is_member = np.arange(members.shape[1]) < allowed[:, np.newaxis]
    sizes = np.ones(n, dtype=np.int64)
    sizes[small] = allowed
    index = np.repeat(np.arange(n), sizes)
    angle, of_small = np.zeros(len(index)), np.repeat(is_small, sizes)
    index[of_small], angle[of_small] = small[members[is_member]], turns[is_member]
    return sizes, index, angle


def _members_nearby(
    theta: Floats, azimuth: Floats, sizes: Index, cone: float, generator: np.random.Generator, n_steps: int | None
) -> tuple[Index, Index, Floats]:
    """Members [event, largest size] of each event's group, itself first, its size and the members' rotations, rad.

    The others are drawn, up to the wanted `sizes`, from the events that rotations bring to within `cone`, rad, of the
    first, and rotated by a random one of these. `theta` and `azimuth`, rad, [event], are the events' axes; rotations
    are by one of `n_steps` or (None) by any angle.
    """
    n = len(sizes)
    along = np.outer(np.cos(theta), np.cos(theta))  # NaN, hence never near, for an unknown axis
    across = np.outer(np.sin(theta), np.sin(theta))
    difference = azimuth[:, np.newaxis] - azimuth
    if n_steps is None:
        near = along + across > np.cos(cone)
        with np.errstate(divide="ignore", invalid="ignore"):
            cos = (np.cos(cone) - along) / across
        # Below -1, also with an axis along z, every rotation brings the event near.
        widest = np.arccos(np.clip(cos, -1.0, 1.0))
        phi = difference + widest * generator.uniform(-1.0, 1.0, along.shape)
    else:
        steps = np.arange(n_steps) * (2 * np.pi / n_steps)
        turned = np.cos(difference[:, :, np.newaxis] - steps)
        by_step = along[:, :, np.newaxis] + across[:, :, np.newaxis] * turned > np.cos(cone)  # [event, other, step]
        near = by_step.any(axis=-1)
        # The largest of random numbers picks each of the allowed steps with equal probability.
        phi = steps[np.where(by_step, generator.random(by_step.shape), -1.0).argmax(axis=-1)]
    # An event is near itself, but no group holds one twice.
    np.fill_diagonal(near, False)
    sizes = np.minimum(sizes, near.sum(axis=1) + 1)
    # Events that are not near sort last, where `sizes` cuts them off.
    drawn = np.where(near, generator.random((n, n)), np.inf).argsort(axis=1)[:, : sizes.max() - 1]
    members = np.concatenate([np.arange(n)[:, np.newaxis], drawn], axis=1)
    return members, sizes, np.take_along_axis(phi, members, axis=1)


def _axes(hits: ak.Array) -> tuple[Floats, Floats]:
    """Polar angle and azimuth, rad, of the events' axes; NaN without energy."""
    flat, bounds = jagged.columns(hits), jagged.offsets(jagged.count(hits))
    x, y, z = (jagged.total(flat["energy"] * flat[f"position.{axis}"], bounds) for axis in "xyz")
    unknown = (x == 0) & (y == 0) & (z == 0)
    theta, azimuth = np.arctan2(np.hypot(x, y), z), np.arctan2(y, x)
    return np.where(unknown, np.nan, theta), np.where(unknown, np.nan, azimuth)


def turn(events: Events, phi: Floats | None = None, reflected: Mask | None = None) -> Events:
    """Events rotated about the z axis by `phi`, rad [event], and reflected in z = 0 where `reflected`, bool [event].

    Reflection changes the sign of z, pz, z0 and tan_lambda, not of charge and curvature.
    """
    if phi is None and reflected is None:
        return events
    values = {}
    for name, part in events.parts():
        flat, counts = jagged.columns(part), jagged.count(part)
        columns: dict[str, npt.NDArray[Any]] = {}
        vectors = [tuple(field.quantities.values()) for field in SCHEMA[name] if field.axes]
        if phi is not None:
            angle, cos, sin = (np.repeat(column, counts) for column in (phi, np.cos(phi), np.sin(phi)))
            for x, y, _ in vectors:
                columns[x] = (flat[x] * cos - flat[y] * sin).astype(flat[x].dtype)
                columns[y] = (flat[x] * sin + flat[y] * cos).astype(flat[y].dtype)
            for field in (field for field in SCHEMA[name] if field.turns == "azimuth"):
                azimuth = flat[field.name].astype(np.float64) + angle
                # np.mod gives [0, 2 pi): subtracted from pi, it leaves pi in and -pi out.
                columns[field.name] = (np.pi - np.mod(np.pi - azimuth, 2 * np.pi)).astype(field.dtype)  # (-pi, pi]
        if reflected is not None:
            # int8, because float32 times int64 would be float64.
            sign = np.repeat(np.where(reflected, -1, 1).astype(np.int8), counts)
            for column in (*(z for _, _, z in vectors), *(f.name for f in SCHEMA[name] if f.turns == "z")):
                columns[column] = flat[column] * sign
        if columns:
            values[name] = jagged.replaced(part, columns)
    return dataclasses.replace(events, **values)
