"""The oracle: perfect pattern recognition (perfect particle flow) by the truth links.

Every hit and track is assigned to the particle that made it. A target with a track is measured by the track, and all
hits of the target and its descendants are dropped. Any other target is the sum of its descendants at the calorimeter
(a photon's conversion electrons, the pions of a decay): each is measured by its track or, without one, by the
calibrated sum of its hits' energies at the hits' log-weighted barycentre. Charge, mass and identity are the true ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pflow.config import builtin_names, from_plain, load_yaml, resolve
from pflow.errors import ConfigError, warn
from pflow.event import jagged
from pflow.event.events import Events, ImplausibleWarning, Reconstruction
from pflow.event.jagged import Links, largest_weight
from pflow.event.schema import make_particles
from pflow.event.truth import Ancestry, Targets, assigned_ancestors
from pflow.metrics.stats import Floats, Ints
from pflow.physics.detector import Detector
from pflow.physics.geometry import log_weighted_barycentre
from pflow.physics.kinematics import unit_vector

ORACLE = "oracle"
"""Name of the algorithm in the results."""

UNCALIBRATED = "energies as in the file"  # origin of the calibration of a detector without a fit
USUAL_SCALES = 0.79, 1.0  # `hadron_scale` of CLD, whose HCAL gives neutral hadrons their energy, and of ild_g4
MIN_FAR, MAX_FAR = 8, 0.3  # most tracks, and share of them, half their particle's momentum off; found: 1 of 21
KINDS = ("electromagnetic", "hadronic")
"""Kinds of showers, in the order of their index."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowerCalibration:
    """Energy of a shower from the energies in the calorimeters: sum of factor x energy, times an angular correction.

    For each of `KINDS`, `factors` has the factor of each calorimeter by name, in the detector's order, and `angular`
    the correction in each bin of |cos theta| (`cos_edges`), linear between the bins' middles. `origin`: the sample.
    """

    origin: str
    factors: Mapping[str, Mapping[str, float]]
    cos_edges: tuple[float, ...]
    angular: Mapping[str, tuple[float, ...]]

    @classmethod
    def unit(cls, detector: Detector) -> ShowerCalibration:
        """No correction, for detectors without a fit, but for scales that are not an HCAL's or ECAL's usual ones.

        A `hadron_scale` outside of `USUAL_SCALES`, or an `electron_scale`, is of a file with another calibration, which
        would have the oracle measure worse: its energies are brought to the nearest usual scale.
        """
        scales = [(part.name, part.electron_scale, part.hadron_scale or 1.0) for part in detector.calorimeters]
        factors = {of: {name: e * h / float(np.clip(h, *USUAL_SCALES)) for name, e, h in scales} for of in KINDS}
        angular = dict.fromkeys(KINDS, (1.0,))
        return cls(origin=UNCALIBRATED, factors=factors, cos_edges=(0.0, 1.0), angular=angular)

    def energy(self, *, kind: Ints, energy: Floats, abs_cos_theta: Floats) -> Floats:
        """Calibrated energies in GeV, float64 [N], of showers with `energy` float64 [N, calorimeters] in GeV."""
        factors = np.array([list(self.factors[name].values()) for name in KINDS])  # [kinds, calorimeters]
        middles = 0.5 * (np.array(self.cos_edges[:-1]) + np.array(self.cos_edges[1:]))
        corrections = np.stack([np.interp(abs_cos_theta, middles, self.angular[name]) for name in KINDS], axis=1)
        return np.asarray(np.sum(factors[kind] * energy, axis=1) * corrections[np.arange(len(kind)), kind])


def load_calibration(detector: Detector) -> ShowerCalibration:
    """The built-in calibration with the detector's name (``configs/oracle/*.yaml``), else the unit calibration."""
    if detector.name not in builtin_names("oracle"):
        return ShowerCalibration.unit(detector)
    path = resolve("oracle", detector.name)
    calibration = from_plain(ShowerCalibration, load_yaml(path), str(path))
    names = [calorimeter.name for calorimeter in detector.calorimeters]
    if any(list(factors) != names for factors in calibration.factors.values()):
        raise ConfigError(f"{path}: expected factors for the calorimeters of {detector.name}: {', '.join(names)}")
    return calibration


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Showers:
    """The N showers of particles that entered the calorimeter, before calibration."""

    particle: Ints  # int64 [N], index into the flat list of all events' truth
    kind: Ints  # int64 [N], index into `KINDS`
    energy: Floats  # float64 [N, calorimeters], of the hits by assignment weights, GeV
    position: Floats  # float64 [N, 3], log-weighted barycentre, mm

    @property
    def abs_cos_theta(self) -> Floats:
        """float64 [N]: |cos theta| of the position."""
        return np.asarray(np.abs(unit_vector(self.position)[:, 2]))

    def __getitem__(self, mask: npt.NDArray[np.bool_]) -> Showers:
        return Showers(**{field.name: getattr(self, field.name)[mask] for field in dataclasses.fields(self)})


def measure_showers(events: Events, *, rule: str = "entering") -> Showers:
    """Showers of the particles that entered the calorimeter; `rule` assigns hits to them: ``entering`` or ``calo``."""
    assert events.truth is not None  # checked by `select_targets`
    assert events.hit_links is not None
    columns, flat = jagged.columns(events.hits), Links.of(events.hit_links)
    hit = flat.flat_source(jagged.count(events.hits))
    linked = assigned_ancestors(events, rule=rule)[flat.flat_particle(jagged.count(events.truth))]
    energy = flat.weight.astype(np.float64) * columns["energy"][hit]
    used = (linked >= 0) & (energy > 0)
    hit, energy = hit[used], energy[used]
    particle, shower = np.unique(linked[used], return_inverse=True)
    position = np.stack([columns[f"position.{axis}"][hit] for axis in "xyz"], axis=1, dtype=np.float64)

    n, n_calorimeters = len(particle), len(events.detector.calorimeters)
    cell = shower * n_calorimeters + columns["subdetector"][hit]
    return Showers(
        particle=particle,
        kind=np.where(np.isin(np.abs(jagged.flat(events.truth["pdg"])[particle]), (11, 22)), 0, 1),
        energy=np.bincount(cell, energy, n * n_calorimeters).astype(np.float64).reshape(n, n_calorimeters),
        position=log_weighted_barycentre(shower, energy, position, n),
    )


def perfect_reconstruction(
    events: Events, targets: Targets, calibration: ShowerCalibration, *, use_tracks: bool = True
) -> Reconstruction:
    """One particle for each target with a track or hits; without `use_tracks`, only hits are used.

    A particle measured by its track has E^2 = p^2 + m^2; a shower is massless. The links are the targets' true links.
    """
    truth = events.truth
    assert truth is not None  # it has the targets
    if not use_tracks:
        events = dataclasses.replace(events, tracks=None, track_links=None)
    track, particle = tracks_of_particles(events)
    target, first_tracked = _ancestry(events, targets, particle)

    # A track of a particle whose ancestor, up to the target, has a track is dropped.
    used = (first_tracked[particle] == particle) & (target[particle] >= 0)
    track, particle = track[used], particle[used]
    track_momentum = np.zeros((0, 3)) if events.tracks is None else jagged.vectors(events.tracks["momentum"])[track]
    track_energy = np.sqrt(np.sum(track_momentum**2, axis=1) + jagged.flat(truth["rest_mass"])[particle] ** 2)

    showers = measure_showers(events, rule="calo" if targets.rule == "calo" else "entering")
    # The energy of hits below a track is in the track and would count twice.
    showers = showers[(first_tracked[showers.particle] < 0) & (target[showers.particle] >= 0)]
    shower_energy = calibration.energy(kind=showers.kind, energy=showers.energy, abs_cos_theta=showers.abs_cos_theta)
    # A barycentre at the origin has no direction: it gets no momentum, and not NaN.
    length = np.maximum(np.linalg.norm(showers.position, axis=1), np.finfo(np.float64).tiny)
    shower_momentum = showers.position * (shower_energy / length)[:, None]

    measured_target, n = target[np.concatenate([particle, showers.particle])], int(targets.counts.sum())
    columns = [np.concatenate([track_energy, shower_energy]), *np.concatenate([track_momentum, shower_momentum]).T]
    energy, px, py, pz = (np.bincount(measured_target, column, n).astype(np.float64) for column in columns)
    # A target that left neither track nor hits is missed even with perfect pattern recognition.
    is_measured = np.bincount(measured_target, minlength=n) > 0
    counts = np.bincount(jagged.event_index(targets.counts)[is_measured], minlength=len(targets))
    columns_by_name = {"pdg": "pdg", "charge": "charge", "mass": "rest_mass"}
    quantities = {name: jagged.flat(targets.particles[column]) for name, column in columns_by_name.items()}
    quantities |= {"energy": energy, "px": px, "py": py, "pz": pz}
    particles = {name: jagged.unflatten(values[is_measured], counts) for name, values in quantities.items()}
    index = np.full(n, -1, dtype=np.int64)  # of the target among the event's particles
    index[is_measured] = jagged.local_index(counts)
    return Reconstruction(
        particles=make_particles(**particles),
        event=events.event,
        flags=events.flags,
        name=ORACLE if calibration.origin != UNCALIBRATED else f"{ORACLE} ({UNCALIBRATED})",
        hit_links=targets.links_to(targets.hits, index).records(),
        track_links=None if targets.tracks is None else targets.links_to(targets.tracks, index).records(),
    )


def _ancestry(events: Events, targets: Targets, tracked_particles: Ints) -> tuple[Ints, Ints]:
    """Each particle's target, the nearest of itself and its ancestors, index into the targets, int64 [N]; -1 for none.

    And the first particle with a track on the path from the target down to the particle, int64 [N]; -1 for none.
    """
    ancestry = Ancestry(events, targets.truth)
    number, has_track = np.full(ancestry.size, -1), np.zeros(ancestry.size, dtype=np.bool_)
    number[targets.chosen] = np.arange(len(targets.chosen))
    has_track[tracked_particles] = True
    nearest = ancestry.nearest(number >= 0)
    ancestry.parent = np.where(number >= 0, -1, ancestry.parent)  # paths end at the target
    return np.where(nearest < 0, -1, number[nearest]), ancestry.topmost(has_track)


def tracks_of_particles(events: Events) -> tuple[Ints, Ints]:
    """Flat indices of each particle's track (if several, the one closest to its momentum), and of the particle.

    A looper, a decay in flight or a hit that is used twice gives a particle further tracks, with other momenta.
    """
    if events.tracks is None or events.track_links is None or events.truth is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    links = Links.of(events.track_links)
    track = links.flat_source(jagged.count(events.tracks))
    particle = links.flat_particle(jagged.count(events.truth))
    best = largest_weight(track, particle, links.weight)
    track, particle = track[best], particle[best]
    true = jagged.vectors(events.truth[["px", "py", "pz"]])[particle]
    off = np.linalg.norm(jagged.vectors(events.tracks["momentum"])[track] - true, axis=1)
    # By particle and then by difference, so that the first of each particle is its best track.
    order = np.lexsort((off, particle))
    best = order[np.unique(particle[order], return_index=True)[1]]
    far = off[best] > 0.5 * np.linalg.norm(true[best], axis=1)
    if np.count_nonzero(far) > max(MIN_FAR, MAX_FAR * len(far)):
        text = f"over {MAX_FAR:.0%} of the tracks have another momentum than the particles that they are linked to"
        warn(f"{events.path or 'events'}: {text}: tracks that are cut or sorted need new links", ImplausibleWarning)
    return track[best], particle[best]
