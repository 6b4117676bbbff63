"""Simulated hits: contributions, digitisation, tracker layers of each particle, and tracks made of particles.

The energy of a hit is the sum of its contributions; where some of them are not in the file, the hit's energy counts.
Digitisation follows DDCaloDigi (iLCSoft/DDMarlinPandora) with the settings of key4hep/CLDConfig: contributions within
the time window are summed, cells above the threshold are kept, the sum is scaled to calibrated energy, and the time is
the earliest in the window, t - r / (300 mm/ns) + 0.1 ns. DDCaloDigi also counts the first contribution whatever its
time; left out here, it would add 0.14% to the energy of the ECAL endcaps of CLD's ZH event, elsewhere less than 0.1%.

Tracks for files without any ("truth-seeded") are smeared helices of charged Monte Carlo particles. They imitate a
tracking that finds every charged particle with enough hits, splits no track and makes no fakes: results do not hold for
real tracks. Events with them are flagged `Flag.TRUTH_TRACKS`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.errors import InputError
from pflow.event import jagged
from pflow.event.jagged import Links
from pflow.event.schema import make_tracks
from pflow.io.edm4hep.podio import ID_BITS, Joined, PodioFile, expand, relation
from pflow.physics import kinematics
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import Calorimeter, Detector, TruthTracking
from pflow.physics.kinematics import follow_to_calorimeter

SPEED_OF_LIGHT = 300.0  # mm/ns, rounded as in DDCaloDigi, whose times are reproduced to a picosecond so
PROMPT_TIME = 0.1  # time of a hit by a particle that flew straight from the origin at c, ns, by DDCaloDigi's definition

ROUNDING = 0.01
"""Largest relative difference of a hit's energy from the sum of its contributions that counts as none."""

MOST_CUT = 0.4  # largest plausible fraction of the energy of simulated hits that a time window cuts
DELAYED, MOST_DELAYED = 100.0, 0.01
"""ns after light from the origin, and largest part of the energy that comes later and counts for want of a window: full
simulations follow neutrons for microseconds, and readouts have gates of 10 to 100 ns."""
EARLY = 0.01  # largest plausible fraction of the energy of all hits that comes before light from the origin
LEAST_ENERGY = 5.0  # GeV, needed to check the times
CROSSING_PT, CROSSING_TAN_LAMBDA = 1.0, 3.0  # GeV, particles above and below which should cross the tracker
MIN_CROSSING = 5  # particles needed to check that they get tracks
MIN_WITH_TRACK = 0.8  # fraction of these particles that should get one

BY_SECONDARY = 1 << 30
"""Bit of edm4hep::SimTrackerHit.quality: the hit is of a secondary that is not kept, though linked to its ancestor."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Contributions:
    """Contributions (edm4hep::CaloHitContribution) to the hits of a collection; arrays [contribution] but `counts`."""

    counts: Index  # [event]: hits of the collection
    hit: Index  # counted over all events
    energy: Floats  # energy deposited, GeV
    time: Floats  # ns
    event: Index
    particle_id: Index
    particle: Index  # collection id and index of the Monte Carlo particle, both -1 where the file has none
    absent: tuple[str, ...] = ()  # collections of contributions that the file does not hold


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digitised:
    """The hits of one simulated collection that digitisation keeps, and what became of the energy of all, GeV."""

    columns: dict[str, ak.Array]
    contributions: Contributions | None  # that count to these hits
    total: float  # calibrated, before any is cut
    lost: float  # by which hits differ from the sum of their contributions
    early: float  # cut by the time window: earlier than light
    late: float
    delayed: float  # not cut for want of a window: later than `DELAYED`


def read_contributions(file: PodioFile, collection: str, span: range) -> Contributions | None:
    """Contributions to the hits of a simulated collection in a span of entries; None if the file has none."""
    branch = relation(file.columns, collection, 0, "contributions")
    if branch is None:
        return None
    get = functools.partial(file.get, span)
    begin, end = get(collection, "contributions_begin"), get(collection, "contributions_end")
    n_references, reference_id, reference_index = file.references(branch, span)
    event = jagged.event_index(n_references)
    referenced = file.names(reference_id)
    names = [name for name in referenced if file.columns.has(name, "energy")]
    energies = [get(name, "energy") for name in names]
    joined = Joined(names, [jagged.count(values) for values in energies], len(span))
    position, known = joined.resolve(file, reference_id, reference_index, event)
    known &= (position >= 0) & (position < joined.totals[event])

    hit, member = expand(begin, end, n_references)
    hit, member = hit[known[member]], member[known[member]]
    flat_index = jagged.offsets(joined.totals)[event[member]] + position[member]

    def column(arrays: list[ak.Array], dtype: Any) -> npt.NDArray[Any]:
        return jagged.flat(jagged.join({"": arrays})[""], dtype)[flat_index] if arrays else np.zeros(0, dtype=dtype)

    particles = [relation(file.columns, name, 0, "particle") for name in names]
    particle_id = particle = np.full(len(flat_index), -1, dtype=np.int64)
    if None not in particles:
        particle_id = column([get(str(name), "collectionID") for name in particles], np.int64) & ID_BITS
        particle = column([get(str(name), "index") for name in particles], np.int64)
    return Contributions(
        counts=jagged.count(begin),
        hit=hit,
        energy=column(energies, np.float64),
        time=column([get(name, "time") for name in names], np.float64),
        event=event[member],
        particle_id=particle_id,
        particle=particle,
        absent=tuple(name for name in referenced if name not in names),
    )


def digitise(calorimeter: Calorimeter, columns: dict[str, ak.Array], contributions: Contributions | None) -> Digitised:
    """Digitise the hits of one simulated collection.

    `columns`, [event, hit]: ``energy`` (visible, GeV; calibrated in the result), ``x``, ``y``, ``z`` (mm), ``layer``
    (-1 unknown) and others; ``time`` (ns) is added, NaN without contributions, to which then no time window applies.
    Of a hit some of whose contributions are missing the window cuts the share that it cuts of the others.
    """
    values = {key: jagged.flat(array) for key, array in columns.items()}
    energy = values["energy"].astype(np.float64)
    n_hits, window = len(energy), calorimeter.sim_time_window
    time = np.full(n_hits, np.nan)
    scale = np.full(n_hits, 1.0 if calorimeter.sim_scale is None else calorimeter.sim_scale)
    if calorimeter.sim_deep_scale is not None:
        first_layer, deep_scale = calorimeter.sim_deep_scale
        scale[values["layer"] >= first_layer] = deep_scale
    total, lost, early, late, delayed = float(np.nansum(scale * energy)), 0.0, 0.0, 0.0, 0.0
    if contributions is None:
        lost = 0.0 if window is None else total  # no energy is of an unknown time
    else:
        hit, deposited, times = contributions.hit, contributions.energy, contributions.time
        counted = np.ones(len(times), dtype=bool)
        known = np.bincount(hit, deposited, n_hits)
        differs = (energy > 0) & (np.abs(known - energy) > ROUNDING * energy)
        lost = float(scale[differs] @ np.abs(known - energy)[differs])
        position = np.stack([values[axis] for axis in "xyz"], axis=-1).astype(np.float64)
        flight = np.linalg.norm(position[hit], axis=1) / SPEED_OF_LIGHT  # from the origin, ns
        calibrated = scale[hit] * deposited
        if window is None:
            delayed = float(calibrated[times - flight > DELAYED].sum())
        else:
            times = times - flight + PROMPT_TIME
            counted = (times > window[0]) & (times < window[1])
            early = float(calibrated[times <= window[0]].sum())
            late = float(calibrated[~counted].sum()) - early
            inside = np.bincount(hit[counted], deposited[counted], n_hits).astype(np.float64)
            share = np.divide(inside, known, out=np.ones(n_hits), where=known > 0)
            energy = np.where(differs, energy * share, inside)
        first = np.full(n_hits, np.inf)
        # fmin, not minimum: a time that is NaN must not hide the others.
        np.fmin.at(first, hit[counted], times[counted])
        time = np.where(np.isfinite(first), first, np.nan)
    if not calorimeter.sim_measures_time:
        time = np.zeros(n_hits)
    # Before the energy is scaled: DDCaloDigi's thresholds are for the deposited energy.
    above = np.ones(n_hits, dtype=bool) if calorimeter.sim_threshold is None else energy > calorimeter.sim_threshold
    values |= {"energy": energy * scale, "time": time}
    event = jagged.event_index(jagged.count(columns["energy"]))
    counts = np.bincount(event[above], minlength=len(columns["energy"]))
    columns = {key: jagged.unflatten(array[above], counts) for key, array in values.items()}
    if contributions is not None:
        use = counted & above[hit]
        names = ("energy", "time", "event", "particle_id", "particle")
        used: Any = {name: getattr(contributions, name)[use] for name in names}
        # Hits are numbered again, without the ones below the threshold.
        used |= {"counts": counts, "hit": (np.cumsum(above) - 1)[hit[use]]}
        contributions = dataclasses.replace(contributions, **used)
    sums = {"total": total, "lost": lost, "early": early, "late": late, "delayed": delayed}
    return Digitised(columns=columns, contributions=contributions, **sums)


def energy_notes(digitised: Mapping[str, Digitised]) -> dict[str, str]:
    """Notes, by topic, on hits without all of their contributions, and on energy that a time window cuts or lacks."""
    notes = {}
    everything = sum(made.total for made in digitised.values())
    lost, cut = [], []
    for name, made in digitised.items():
        if made.lost > ROUNDING * made.total:
            absent = made.contributions and made.contributions.absent
            gone = f" ({', '.join(absent)} is not in the file)" if absent else ""
            lost.append(f"{made.lost / made.total:.0%} of {name}{gone}")
        early, outside = made.early, made.early + made.late
        # A collection with little energy counts only if it loses much of the energy of all.
        if early > EARLY * everything or outside > MOST_CUT * max(made.total, everything / 4):
            cut.append(f"{outside / made.total:.0%} of {name} ({early / made.total:.0%} comes earlier than light)")
    if lost:
        text = "contributions do not sum to the energy of their hits, which is used: without contributions are"
        notes["contributions"] = f"{text} {', '.join(lost)}"
    if cut and everything > LEAST_ENERGY:
        notes["times"] = f"time windows cut energy, as if times were not in ns: {', '.join(cut)}"
    delayed = {name: made.delayed for name, made in digitised.items() if made.delayed}
    if everything > LEAST_ENERGY and sum(delayed.values()) > MOST_DELAYED * everything:
        text = f"{sum(delayed.values()) / everything:.1%} of the energy comes more than {DELAYED:g} ns after light, and"
        notes["windows"] = f"{text} counts, as the detector gives no sim_time_window for {', '.join(delayed)}"
    return notes


def particles_of_hits(file: PodioFile, name: str, particles: Joined, span: range) -> tuple[Index, Mask]:
    """The Monte Carlo particle of each tracker hit of a collection, int64 index into all of the entries, and whether
    it is known, bool; an InputError without references to particles."""
    branch = relation(file.columns, name, 0, "particle", "MCParticle")
    if branch is None:
        raise InputError("the tracker hits have no references to particles", file=file.path, field=name)
    counts = jagged.count(file.get(span, name, "cellID"))
    event = jagged.event_index(counts)
    _, collection_id, index = file.references(branch, span, of=counts)
    particle, known = particles.resolve(file, collection_id, index, event)
    known &= (particle >= 0) & (particle < particles.totals[event])
    return jagged.offsets(particles.totals)[event] + particle, known


def count_layers(file: PodioFile, collections: Iterable[str], particles: Joined, span: range) -> Index:
    """Number of tracker layers with a hit of each Monte Carlo particle's own, int64 [all particles of the entries].

    A layer is a pair of collection and layer of the cell id; without an encoding each hit counts as one.
    """
    crossed: list[Index] = [np.zeros((0, 3), dtype=np.int64)]
    for number, name in enumerate(collections):
        particle, known = particles_of_hits(file, name, particles, span)
        known_layer = file.layers(span, name)
        layer = np.arange(len(particle)) if known_layer is None else known_layer.astype(np.int64)
        if file.columns.has(name, "quality"):
            known &= (jagged.flat(file.get(span, name, "quality")) & BY_SECONDARY) == 0
        crossed.append(np.stack([particle, np.full(len(particle), number), layer], axis=1)[known])
    # A particle may leave several hits in a layer, which counts once.
    different = np.unique(np.concatenate(crossed), axis=0)
    return np.bincount(different[:, 0], minlength=int(particles.totals.sum())).astype(np.int64)


def track_notes(file: PodioFile, particles: ak.Array, n_layers: Index, settings: TruthTracking) -> dict[str, str]:
    """Notes on resolutions a (+) b / p whose terms seem exchanged, and on stable charged particles that cross the
    tracker and get no track, as where tracker hits are missing."""
    terms = {name: getattr(settings, name) for name in ("inverse_pt", "angle", "impact")}
    named = ", ".join(f"{name} {[*of]}" for name, of in terms.items() if of and of[0] > of[1] > 0)
    text = f"the constant term of truth_tracks ({named}) is larger than that of multiple scattering, the second"
    notes = {"resolutions": f"{text}: are they exchanged?"} if named else {}
    columns = jagged.columns(particles)
    pt = np.hypot(columns["px"], columns["py"])
    radius = np.hypot(columns["vertex.x"], columns["vertex.y"])
    charged = (np.abs(columns["charge"]) == 1) & (columns["status"] == 1) & (radius < settings.max_vertex_radius)
    crossing = charged & (pt > CROSSING_PT) & (np.abs(columns["pz"]) < CROSSING_TAN_LAMBDA * pt)
    n_tracks, n = int((n_layers[crossing] >= settings.min_layers).sum()), int(crossing.sum())
    if n < MIN_CROSSING or n_tracks >= MIN_WITH_TRACK * n:
        return notes
    absent = [name for name in settings.sim_tracker_hits if not file.columns.has(name)]
    gone = f" ({', '.join(absent)}: not in the file)" if absent else ""
    layers = f"have hits in {settings.min_layers} layers and so a track{gone}"
    return notes | {"truth tracks": f"only {n_tracks} of {n} charged particles that cross the tracker {layers}"}


def make_truth_tracks(
    truth: ak.Array, n_layers: Index, detector: Detector, event: Index, entry: Index
) -> tuple[ak.Array, ak.Array]:
    """Tracks of charged particles, and their links, for ``events.tracks`` and ``events.track_links``.

    A particle of `truth` [event, particle] gets a track if its charge is +-1, it was made within `max_vertex_radius`
    and it crossed at least `min_layers` of the tracker; it crossed `n_layers`, int64 [all particles]. The helix through
    its vertex, without energy loss, gives the state closest to the z axis. Its 1/pt, phi, lambda, d0 and z0 are smeared
    by independent Gaussians, and the smeared helix is followed to the calorimeter. The noise depends only on the
    event's number and entry, so that an event has the same tracks whenever it is read. The detector's `truth_tracks`
    are the settings.
    """
    settings, b_field = detector.truth_tracks, detector.b_field
    assert settings is not None  # and complete: checked when the file was opened
    assert settings.min_layers is not None
    assert settings.max_vertex_radius is not None
    counts = jagged.count(truth)
    charge = jagged.flat(truth.charge, np.float64)
    vertex, momentum = jagged.vectors(truth["vertex"]), jagged.vectors(truth[["px", "py", "pz"]])  # [P, 3]
    chosen = (
        (np.abs(charge) == 1)
        & (n_layers >= settings.min_layers)
        & (np.hypot(vertex[:, 0], vertex[:, 1]) < settings.max_vertex_radius)
        & (np.hypot(momentum[:, 0], momentum[:, 1]) > 0)
    )
    n_tracks = np.bincount(jagged.event_index(counts)[chosen], minlength=len(counts))
    # Seeds must not be negative, event numbers may be.
    numbers = [
        np.random.default_rng((abs(int(number)), int(row))).standard_normal((int(n), 5))
        for number, row, n in zip(event, entry, n_tracks, strict=True)
    ]
    noise, charge = np.concatenate([np.zeros((0, 5)), *numbers]), charge[chosen]  # 5 standard normal numbers a track
    (x, y, z), (px, py, pz) = vertex[chosen].T, momentum[chosen].T
    distance, z0, px_perigee, py_perigee = kinematics.perigee(x, y, z, px, py, pz, charge, b_field=b_field)
    d0 = -np.sign(charge * b_field) * distance  # edm4hep::TrackState: the point is d0 (-sin phi, cos phi)
    pt, p = np.hypot(px, py), np.linalg.norm(momentum[chosen], axis=1)
    sin_theta = pt / p

    inverse_pt = 1 / pt + noise[:, 0] * _resolution(settings.inverse_pt, pt)
    phi = np.arctan2(py_perigee, px_perigee) + noise[:, 1] * _resolution(settings.angle, pt)
    tan_lambda = np.tan(np.arctan2(pz, pt) + noise[:, 2] * _resolution(settings.angle, p))
    d0 = d0 + noise[:, 3] * _resolution(settings.impact, p * sin_theta**1.5)
    z0 = z0 + noise[:, 4] * _resolution(settings.impact, p * sin_theta**2.5)

    # Noise may take the 1/pt of a stiff track below 0: its charge is then measured wrong.
    new_charge = np.where(inverse_pt < 0, -charge, charge)
    new_pt = 1 / np.abs(inverse_pt)
    reached = follow_to_calorimeter(
        np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=-1),
        new_pt[:, None] * np.stack([np.cos(phi), np.sin(phi), tan_lambda], axis=-1),
        new_charge,
        detector,
    )
    omega = new_charge * np.abs(inverse_pt) * kinematics.GEV_PER_TESLA_MM * abs(b_field)
    # Noise may take the angle beyond pi.
    phi = np.mod(phi + np.pi, 2 * np.pi) - np.pi
    columns = {"omega": omega, "phi": phi, "tan_lambda": tan_lambda, "d0": d0, "z0": z0}
    faces = zip(("x", "y", "z", "px", "py", "pz"), np.concatenate(reached, axis=1).T, strict=True)
    columns |= {f"calo_{name}": values for name, values in faces}
    tracks = make_tracks(
        b_field=b_field, **{key: jagged.unflatten(values, n_tracks) for key, values in columns.items()}
    )
    source, particle = jagged.local_index(n_tracks), jagged.local_index(counts)[chosen]
    return tracks, Links(counts=n_tracks, source=source, particle=particle, weight=np.ones(len(source))).records()


def _resolution(terms: tuple[float, ...] | None, momentum: Floats) -> Floats:
    """Constant term and multiple scattering in quadrature, a (+) b / p."""
    assert terms is not None
    constant, scattering = terms
    return np.hypot(constant, scattering / momentum)
