"""The limit: what perfect pattern recognition would reconstruct in this detector, from the truth links.

Every hit and track is known to belong to the particle that made it, and nothing else is known. A target with a track of
its own is measured by that track, and all its hits (and those of whatever it turned into) are dropped. Any other
target is the sum of what it was when it reached the calorimeter (a photon's conversion electrons, the pions of a
decay): those with a track by the track, the rest by the sum of the energies of their hits, calibrated, at the
log-weighted barycentre of these hits.
"""

from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.build import make_links, make_particles
from pflow.event.events import Events
from pflow.event.links import largest_share
from pflow.event.particles import Reconstruction
from pflow.event.truth import Targets, assigned_ancestors
from pflow.metrics.oracle_calibration import Calibration, CalibrationFit, shower_kind
from pflow.metrics.stats import Floats, Ints
from pflow.physics.barycentre import log_weighted_barycentre

__all__ = ["NAME", "Showers", "add_showers", "measure_showers", "perfect_reconstruction"]

NAME = "limit"
"""Name of the line in the results."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Showers:
    """What each particle that entered the calorimeter left in it, before calibration.

    Parameters
    ----------
    event
        int64 [N]: position of its event.
    particle
        int64 [N]: the particle, as an index into the flat list of all events' truth.
    kind
        int64 [N]: index into `pflow.metrics.oracle_calibration.KINDS`.
    energy
        float64 [N, calorimeters]: energy of its hits in each of the detector's calorimeters, by shares, GeV.
    position
        float64 [N, 3]: log-weighted barycentre of its hits, mm.
    """

    event: Ints
    particle: Ints
    kind: Ints
    energy: Floats
    position: Floats

    @property
    def abs_cos_theta(self) -> Floats:
        """float64 [N]: |cos theta| of the position."""
        length = np.linalg.norm(self.position, axis=1)
        return np.asarray(np.divide(np.abs(self.position[:, 2]), length, out=np.zeros(len(length)), where=length > 0))


def measure_showers(events: Events, *, rule: str = "entering") -> Showers:
    """Showers of the particles that entered the calorimeter, tracked ones included.

    Parameters
    ----------
    events
        With truth particles and links.
    rule
        ``entering``; or ``calo`` for each particle that hits point to, as that truth rule wants it.

    Raises
    ------
    InputError
        The events hold no truth, or no links to it.
    """
    truth, links = _truth(events), events.hit_links
    assigned = assigned_ancestors(events, rule=rule)
    if links is None:
        raise InputError("the limit needs links from hits to particles; there are none", file=events.path or None)
    hit = jagged.global_index(links["source"], jagged.count(events.hits))
    linked = assigned[jagged.global_index(links["particle"], jagged.count(truth))]
    share = jagged.flat(links["weight"]).astype(np.float64) * jagged.flat(events.hits["energy"])[hit]
    used = (linked >= 0) & (share > 0)
    hit, share = hit[used], share[used]
    particle, shower = np.unique(linked[used], return_inverse=True)
    position = np.stack([jagged.flat(events.hits["position", axis])[hit].astype(np.float64) for axis in "xyz"], axis=1)

    n, n_calorimeters = len(particle), len(events.detector.calorimeters)
    cell = shower * n_calorimeters + jagged.flat(events.hits["subdetector"])[hit]
    return Showers(
        event=jagged.event_index(jagged.count(truth))[particle],
        particle=particle,
        kind=shower_kind(jagged.flat(truth["pdg"])[particle]),
        energy=np.bincount(cell, share, n * n_calorimeters).astype(np.float64).reshape(n, n_calorimeters),
        position=log_weighted_barycentre(shower, share, position, n),
    )


def add_showers(fit: CalibrationFit, events: Events) -> None:
    """Add to a fit the showers that the limit would measure by their hits: those of particles without a track.

    Raises
    ------
    InputError
        The events hold no truth.
    """
    truth = _truth(events)
    showers = measure_showers(events)
    used = ~np.isin(showers.particle, _tracks(events)[1])
    fit.update(
        kind=showers.kind[used],
        energy=showers.energy[used],
        abs_cos_theta=showers.abs_cos_theta[used],
        true_energy=jagged.flat(truth["energy"])[showers.particle[used]],
    )


def perfect_reconstruction(
    events: Events, targets: Targets, calibration: Calibration, *, use_tracks: bool = True
) -> Reconstruction:
    """The limit as a reconstruction: one particle for each target that left a track or hits.

    Identity, charge and mass are the true ones. A particle measured by its track has E^2 = p^2 + m^2; a shower counts
    as massless. The links are the true ones of the targets that were found.

    Parameters
    ----------
    events
        With truth particles and links.
    targets
        What `select_targets` made of them.
    calibration
        Of the showers' energies.
    use_tracks
        False for the limit of the calorimeter alone.

    Raises
    ------
    InputError
        The events hold no truth.
    """
    truth = _truth(events)
    if not use_tracks:
        events = dataclasses.replace(events, tracks=None, track_links=None)
    family = _Lines(truth, targets)
    showers = measure_showers(events, rule="calo" if targets.rule == "calo" else "entering")
    track, particle = _tracks(events)
    tracked = np.zeros(family.size, dtype=np.bool_)
    tracked[particle] = True
    first_tracked = family.first_tracked(tracked)

    used_tracks = (first_tracked[particle] == particle) & (family.target[particle] >= 0)
    track, particle = track[used_tracks], particle[used_tracks]
    track_momentum = np.zeros((0, 3))
    if events.tracks is not None:
        columns = [jagged.flat(events.tracks["momentum", axis])[track] for axis in ("px", "py", "pz")]
        track_momentum = np.stack(columns, axis=1).astype(np.float64)
    mass = jagged.flat(truth["mass"])[particle]
    track_energy = np.sqrt(np.sum(track_momentum**2, axis=1) + mass**2)

    by_hits = (first_tracked[showers.particle] < 0) & (family.target[showers.particle] >= 0)
    shower_energy = calibration.energy(
        kind=showers.kind[by_hits], energy=showers.energy[by_hits], abs_cos_theta=showers.abs_cos_theta[by_hits]
    )
    position = showers.position[by_hits]
    length = np.maximum(np.linalg.norm(position, axis=1), np.finfo(np.float64).tiny)
    shower_momentum = position * (shower_energy / length)[:, None]

    at = family.target[np.concatenate([particle, showers.particle[by_hits]])]
    n = family.n_targets
    energy = np.concatenate([track_energy, shower_energy])
    px, py, pz = np.concatenate([track_momentum, shower_momentum]).T
    total, *components = (np.bincount(at, x, n).astype(np.float64) for x in (energy, px, py, pz))
    found = np.bincount(at, minlength=n) > 0
    return Reconstruction(
        particles=_particles(targets, found, total, *components),
        event=events.event,
        flags=events.flags,
        name=NAME,
        hit_links=_links(targets.hit_links, targets, found),
        track_links=None if targets.track_links is None else _links(targets.track_links, targets, found),
    )


class _Lines:
    """The lines of descent from targets, in the flat list of all events' truth."""

    def __init__(self, truth: ak.Array, targets: Targets) -> None:
        counts = jagged.count(truth)
        self.size = int(counts.sum())
        self.parent = np.where(jagged.flat(truth["parent"]) < 0, -1, jagged.global_index(truth["parent"], counts))
        index = jagged.global_index(targets.particles["index"], counts)
        self.n_targets = len(index)
        self.is_target = np.full(self.size, -1, dtype=np.int64)
        self.is_target[index] = np.arange(self.n_targets)
        # int64 [N]: nearest target among a particle and its ancestors (-1 none), as an index into the flat targets
        self.target = self._nearest_target()

    def _nearest_target(self) -> Ints:
        target, at = self.is_target.copy(), self.parent.copy()
        while True:
            moving = (target < 0) & (at >= 0)
            if not moving.any():
                return target
            target[moving] = self.is_target[at[moving]]
            at[moving] = self.parent[at[moving]]

    def first_tracked(self, tracked: npt.NDArray[np.bool_]) -> Ints:
        """int64 [N]: of each particle and its ancestors down from the target, the first with a track; -1 none."""
        first = np.where(tracked, np.arange(self.size), -1)
        at = np.where(self.is_target < 0, self.parent, -1)
        while (at >= 0).any():
            above = at[at >= 0]
            first[at >= 0] = np.where(tracked[above], above, first[at >= 0])
            at[at >= 0] = np.where(self.is_target[above] < 0, self.parent[above], -1)
        return first


def _tracks(events: Events) -> tuple[Ints, Ints]:
    """One track a particle: flat indices of tracks and of the particles they belong to by their largest weight."""
    if events.tracks is None or events.track_links is None or events.truth is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    track = jagged.global_index(events.track_links["source"], jagged.count(events.tracks))
    particle = jagged.global_index(events.track_links["particle"], jagged.count(events.truth))
    best = largest_share(track, particle, jagged.flat(events.track_links["weight"]))
    # Of several tracks of one particle (a split track), the first in the file.
    _, only = np.unique(particle[best], return_index=True)
    return track[best][only], particle[best][only]


def _particles(
    targets: Targets, found: npt.NDArray[np.bool_], energy: Floats, px: Floats, py: Floats, pz: Floats
) -> ak.Array:
    """Records of the targets that were found, with the measured energy and momentum."""
    counts = np.bincount(jagged.event_index(jagged.count(targets.particles))[found], minlength=len(targets))
    columns = {
        "pdg": jagged.flat(targets.particles["pdg"]),
        "charge": jagged.flat(targets.particles["charge"]),
        "mass": jagged.flat(targets.particles["mass"]),
        "energy": energy,
        "px": px,
        "py": py,
        "pz": pz,
    }
    return make_particles(**{name: ak.unflatten(column[found], counts) for name, column in columns.items()})


def _links(links: ak.Array, targets: Targets, found: npt.NDArray[np.bool_]) -> ak.Array:
    """Links to the targets that were found, as indices among these."""
    event, target_event = jagged.event_index(jagged.count(links)), jagged.event_index(jagged.count(targets.particles))
    target = jagged.global_index(links["particle"], jagged.count(targets.particles))
    n_found = np.bincount(target_event[found], minlength=len(targets))
    index = np.cumsum(found) - 1 - (np.cumsum(n_found) - n_found)[target_event]
    kept = found[target]
    counts = np.bincount(event[kept], minlength=len(targets))
    columns = {
        "source": jagged.flat(links["source"]),
        "particle": index[target],
        "weight": jagged.flat(links["weight"]),
    }
    return make_links(**{name: ak.unflatten(column[kept], counts) for name, column in columns.items()}, normalise=False)


def _truth(events: Events) -> ak.Array:
    if events.truth is None:
        raise InputError("the limit needs truth particles; the file holds none", file=events.path or None)
    return events.truth
