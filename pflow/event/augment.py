"""Augmentation of training events by the detector's symmetries, by overlay and by disturbance.

A solenoid's field along z is an axial vector: reflection in z leaves it, and the curvature of every track, unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.disturb import Disturbance, disturb
from pflow.event.events import Events
from pflow.event.move import Drawn, Variation, change_cells, move
from pflow.event.overlay import ECAL_TOLERANCE, HCAL_TOLERANCE, overlay
from pflow.event.schema import SCHEMA
from pflow.physics.detector import Detector

Index = npt.NDArray[np.int64]
Values = npt.NDArray[np.floating[Any]]
Angles = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlay:
    """Random overlay: each event of a chunk is the first of one group, the others are drawn from the chunk.

    Parameters
    ----------
    frequencies
        Relative frequencies of groups of 1, 2, 3 ... events: ``[1, 2]`` makes pairs in two of three.
    cone
        Largest angle in rad between the axes (energy-weighted mean directions of the hits) of the first event and of
        the others, which are drawn from events of about its polar angle and rotated towards it by a symmetry of the
        detector; groups are smaller where too few are near. None: rotated at random.
    max_hits
        Events with more hits stay alone. None: join all.
    ecal_tolerance, hcal_tolerance
        Largest distance in mm of hits in the same cell: just below half a cell, see `pflow.event.overlay`.

    Raises
    ------
    ConfigError
        A value out of range.
    """

    frequencies: Sequence[float] = (1.0, 1.0, 1.0)
    cone: float | None = None
    max_hits: int | None = None
    ecal_tolerance: float = ECAL_TOLERANCE
    hcal_tolerance: float = HCAL_TOLERANCE

    def __post_init__(self) -> None:
        frequencies = np.array(self.frequencies, dtype=np.float64)
        if not (np.isfinite(frequencies).all() and (frequencies >= 0).all() and frequencies.sum() > 0):
            raise ConfigError(f"overlay: frequencies must be at least 0 and not all 0, found {self.frequencies}")
        if self.cone is not None and not 0 < self.cone <= np.pi:
            raise ConfigError(f"overlay: cone must be an angle in rad, above 0 and at most pi, found {self.cone}")
        if self.max_hits is not None and self.max_hits < 0:
            raise ConfigError(f"overlay: max_hits must be a number of hits, found {self.max_hits}")
        for name in ("ecal_tolerance", "hcal_tolerance"):
            if not 0 < getattr(self, name) < np.inf:
                raise ConfigError(f"overlay: {name} must be a length in mm above 0, found {getattr(self, name)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Augmentation of training events, drawn anew in every epoch. By default none.

    Events are first joined (`overlay`), then rotated about the z axis by any angle that the detector's symmetry allows,
    then reflected in the plane z = 0 with probability 1/2, then moved into other detectors (`detector`, whose cells are
    read before all of this), and last disturbed as a real detector differs from its simulation.
    """

    rotate: bool = False
    reflect: bool = False
    overlay: Overlay | None = None
    detector: Variation | None = None
    disturb: Disturbance | None = None


def augment(events: Events, options: Augmentation, generator: np.random.Generator) -> Events:
    """Augment a chunk of events at random: the same event numbers in the same order; none is in an overlay twice."""
    groups = None if options.overlay is None else _random_groups(events, options.overlay, generator)
    phi = random_phi(events.detector, len(events), generator) if options.rotate else None
    reflected = generator.random(len(events)) < 0.5 if options.reflect else None
    if options.overlay is not None:
        events = dataclasses.replace(events, reference=None, reference_name="")
    drawn = None if options.detector is None else Drawn.of(options.detector, len(events), generator)
    if options.overlay is None or groups is None:
        events = events if drawn is None else change_cells(events, drawn)
        events = _moved(events, phi, reflected)
    else:
        angle = groups.phi if phi is None else groups.phi + np.repeat(phi, groups.sizes)
        reflected = None if reflected is None else np.repeat(reflected, groups.sizes)
        members = events[groups.members]
        if drawn is not None:  # all of a group are read by the same cells
            members = change_cells(members, drawn[np.repeat(np.arange(len(events)), groups.sizes)])
        events = overlay(
            _moved(members, angle, reflected),
            jagged.unflatten(np.arange(len(groups.members)), groups.sizes),
            ecal_tolerance=options.overlay.ecal_tolerance,
            hcal_tolerance=options.overlay.hcal_tolerance,
        )
    if drawn is not None:
        events = move(events, drawn)
    if options.disturb is not None:
        events = disturb(events, options.disturb, generator)
    return events


def random_phi(detector: Detector, n: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Angles of `n` random rotations that are symmetries of the detector, rad in [0, 2 pi)."""
    if detector.phi_symmetry is None:
        return generator.uniform(0.0, 2 * np.pi, n)
    return np.asarray(generator.integers(detector.phi_symmetry, size=n) * (2 * np.pi / detector.phi_symmetry))


def rotate(events: Events, phi: npt.ArrayLike) -> Events:
    """Rotate events about the z axis by `phi` in rad, one angle for all or one for each, in each field's precision."""
    return _moved(events, phi=np.broadcast_to(np.asarray(phi, dtype=np.float64), len(events)))


def reflect(events: Events, which: npt.ArrayLike = True) -> Events:
    """Reflect `which` of the events in z = 0: z, pz, z0 and tan_lambda change sign, charge and curvature do not."""
    return _moved(events, reflected=np.broadcast_to(np.asarray(which, dtype=np.bool_), len(events)))


class _Groups(NamedTuple):
    """Events to join: sizes int64 [group]; members int64 and their rotations, rad, [member of any group]."""

    sizes: Index
    members: Index
    phi: Angles


def _random_groups(events: Events, options: Overlay, generator: np.random.Generator) -> _Groups | None:
    """A group for each event, drawn at random; None where each event is alone."""
    is_small = np.ones(len(events), dtype=np.bool_)
    if options.max_hits is not None:
        is_small = jagged.count(events.hits) <= options.max_hits
    small = np.flatnonzero(is_small)
    if not len(small):
        return None
    frequencies = np.array(options.frequencies, dtype=np.float64)
    sizes = 1 + generator.choice(len(frequencies), size=len(small), p=frequencies / frequencies.sum())
    if options.cone is None:
        members, sizes = _any_others(sizes, generator)
        phi = random_phi(events.detector, members.size, generator).reshape(members.shape)
    else:
        theta, azimuth = _axes(events.hits, is_small)
        n_steps = events.detector.phi_symmetry
        members, sizes, phi = _others_nearby(theta, azimuth, sizes, options.cone, generator, n_steps)
    phi[:, 0] = 0.0
    taken = np.arange(members.shape[1]) < sizes[:, np.newaxis]
    all_sizes = np.ones(len(events), dtype=np.int64)
    all_sizes[small] = sizes
    if (all_sizes == 1).all():
        return None
    picked = np.repeat(np.arange(len(events)), all_sizes)
    angle = np.zeros(len(picked))
    of_small = np.repeat(is_small, all_sizes)
    picked[of_small], angle[of_small] = small[members[taken]], phi[taken]
    return _Groups(all_sizes, picked, angle)


def _any_others(sizes: Index, generator: np.random.Generator) -> tuple[Index, Index]:
    """Members [event, largest size] of each event's group, itself first, and the sizes that the chunk allows.

    Neighbours on a random circle: all different, and each event is equally often in a group.
    """
    n = len(sizes)
    sizes = np.minimum(sizes, n)
    circle = generator.permutation(n)
    steps = np.concatenate([[0], 1 + generator.permutation(n - 1)[: sizes.max() - 1]])
    place = np.argsort(circle)
    return circle[(place[:, np.newaxis] + steps) % n], sizes


def _others_nearby(
    theta: Angles, azimuth: Angles, sizes: Index, cone: float, generator: np.random.Generator, n_steps: int | None
) -> tuple[Index, Index, Angles]:
    """Members and sizes like `_any_others`, and rotations, of `n_steps` or any, that bring them near the first."""
    n = len(sizes)
    near, phi = _rotations(theta, azimuth, cone, generator, n_steps)
    np.fill_diagonal(near, False)
    sizes = np.minimum(sizes, near.sum(axis=1) + 1)
    drawn = np.where(near, generator.random((n, n)), np.inf).argsort(axis=1)[:, : sizes.max() - 1]
    members = np.concatenate([np.arange(n)[:, np.newaxis], drawn], axis=1)
    return members, sizes, np.take_along_axis(phi, members, axis=1)


def _rotations(
    theta: Angles, azimuth: Angles, cone: float, generator: np.random.Generator, n_steps: int | None
) -> tuple[npt.NDArray[np.bool_], Angles]:
    """Which events a rotation brings within `cone` of each one, bool [one, other], and by which angle, at random."""
    along = np.outer(np.cos(theta), np.cos(theta))  # NaN, and near nothing, where an axis is unknown
    across = np.outer(np.sin(theta), np.sin(theta))
    difference = azimuth[:, np.newaxis] - azimuth
    if n_steps is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            cos = (np.cos(cone) - along) / across
        widest = np.arccos(np.clip(np.nan_to_num(cos, nan=-1.0), -1.0, 1.0))
        return along + across > np.cos(cone), difference + widest * generator.uniform(-1.0, 1.0, along.shape)
    steps = np.arange(n_steps) * (2 * np.pi / n_steps)
    turned = np.cos(difference[:, :, np.newaxis] - steps)  # [one, other, step]
    near = along[:, :, np.newaxis] + across[:, :, np.newaxis] * turned > np.cos(cone)
    step = np.where(near, generator.random(near.shape), -1.0).argmax(axis=-1)  # one of those that bring it near
    return near.any(axis=-1), steps[step]


def _axes(hits: ak.Array, which: npt.NDArray[np.bool_]) -> tuple[Angles, Angles]:
    """Axes of `which` of the events, by polar angle and azimuth, rad; NaN without energy."""
    if not which.all():
        hits = jagged.take(hits, np.flatnonzero(which))
    flat, counts = jagged.columns(hits), jagged.count(hits)
    weighted = np.concatenate([flat["energy"] * flat[f"position.{axis}"] for axis in "xyz"])
    sums = ak.sum(jagged.unflatten(weighted, np.tile(counts, 3)), axis=1)
    x, y, z = ak.to_numpy(sums).astype(np.float64).reshape(3, len(counts))
    unknown = (x == 0) & (y == 0) & (z == 0)
    theta, azimuth = np.arctan2(np.hypot(x, y), z), np.arctan2(y, x)
    return np.where(unknown, np.nan, theta), np.where(unknown, np.nan, azimuth)


def _moved(events: Events, phi: Angles | None = None, reflected: npt.NDArray[np.bool_] | None = None) -> Events:
    """The events rotated by an angle each, and some of them reflected, in the precision of each field."""
    if phi is None and reflected is None:
        return events
    values = {}
    for name, part in events.parts():
        flat, counts = jagged.columns(part), jagged.count(part)
        columns: dict[str, Values] = {}
        if phi is not None:
            angle = np.repeat(phi, counts)
            cos, sin = np.repeat(np.cos(phi), counts), np.repeat(np.sin(phi), counts)
        if reflected is not None:
            sign = np.repeat(np.where(reflected, -1, 1).astype(np.int8), counts)
        for field in SCHEMA[name]:
            if field.axes:
                x, y, z = field.quantities.values()
                if phi is not None:
                    columns[x] = (flat[x] * cos - flat[y] * sin).astype(flat[x].dtype)
                    columns[y] = (flat[x] * sin + flat[y] * cos).astype(flat[y].dtype)
                if reflected is not None:
                    columns[z] = flat[z] * sign
            elif field.turns == "azimuth" and phi is not None:
                azimuth = flat[field.name].astype(np.float64) + angle
                columns[field.name] = (np.pi - np.mod(np.pi - azimuth, 2 * np.pi)).astype(field.dtype)  # (-pi, pi]
            elif field.turns == "z" and reflected is not None:
                columns[field.name] = flat[field.name] * sign
        if columns:
            values[name] = jagged.replaced(part, columns)
    return dataclasses.replace(events, **values)
