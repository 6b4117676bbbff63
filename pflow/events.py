"""Events: the one contract between the readers and everything else.

An `Events` holds consecutive entries of one file. Each part is an Awkward array ``[event, object]`` of records with
`vector` behaviour, so that ``events.tracks.momentum.pt`` or ``events.hits.position.theta`` work:

===================== ======================================================================================
part                  fields of a record
===================== ======================================================================================
``hits``              energy [GeV], position {x, y, z} [mm], time [ns], subdetector (index into
                      ``detector.calorimeters``), layer (-1 unknown)
``tracks``            momentum {px, py, pz} [GeV] and charge [e] at the vertex, d0 [mm], phi [rad],
                      omega [1/mm], z0 [mm], tan_lambda, calo_position {x, y, z} [mm] and
                      calo_momentum {px, py, pz} [GeV] where the track enters the calorimeter
``tracker_hits``      position {x, y, z} [mm], energy [GeV], time [ns], layer (-1 unknown)
``truth``             pdg, charge [e], mass [GeV], energy [GeV], momentum {px, py, pz} [GeV],
                      vertex {x, y, z} [mm], status (1 stable in the generator), parent (index, -1 none)
``hit_links`` etc.    source (index of the hit, track or tracker hit), particle (index into ``truth``), weight;
                      the weights of one source sum to 1
``reference``         another algorithm's particles: pdg, charge [e], energy [GeV], mass [GeV],
                      momentum {px, py, pz} [GeV], score
===================== ======================================================================================

Hits, tracks and references are float32, truth is float64, integers are int32. A number that a file does not hold is
NaN (an unknown time, d0 or position at the calorimeter). A part that a file does not hold is None; a part that is
there but empty in an event has no records in it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
from vector.backends.awkward import behavior as vector_behavior

from pflow import kinematics
from pflow.detector import Detector
from pflow.errors import InputError

__all__ = [
    "Events",
    "Flag",
    "Problem",
    "concatenate",
    "make_hits",
    "make_links",
    "make_particles",
    "make_tracker_hits",
    "make_tracks",
    "make_truth",
]

PARTS = ("hits", "tracks", "tracker_hits", "truth", "hit_links", "track_links", "tracker_hit_links", "reference")
"""Names of the parts of `Events`, in the order in which they are checked."""

LINKED = {"hit_links": "hits", "track_links": "tracks", "tracker_hit_links": "tracker_hits"}
"""Which part the ``source`` of each kind of link points into."""


class Flag(enum.IntFlag):
    """What is special about an event, bit by bit; written to the output as ``flags``."""

    NONE = 0
    BAD_INPUT = 1
    """The entry could not be used and was emptied (``on_error="skip"``)."""
    MAX_PARTICLES = 2
    """Generation stopped at `max_particles`, not at the end of the sentence."""
    UNKNOWN_PDG = 4
    """A particle's code was not in the vocabulary and was mapped to its class."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one event."""

    index: int
    """Position of the event in the `Events`, from 0."""
    field: str
    """Part and field, e.g. ``hits.energy``."""
    message: str
    """What was found and what was expected."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Events:
    """Consecutive entries of one file; see the module's table for the parts.

    Parameters
    ----------
    detector
        The detector whose calorimeters the hits' ``subdetector`` counts.
    path
        File they come from ("" for events made by hand).
    entry
        int64 [event]: entry of that file's tree, from 0.
    event
        int64 [event]: event number, as the file gives it.
    flags
        uint32 [event]: `Flag` bits.
    absent
        Optional collections that the detector names and the file does not hold.
    reference_name
        Name of the algorithm or collection in ``reference``.
    """

    detector: Detector
    hits: ak.Array
    tracks: ak.Array | None = None
    tracker_hits: ak.Array | None = None
    truth: ak.Array | None = None
    hit_links: ak.Array | None = None
    track_links: ak.Array | None = None
    tracker_hit_links: ak.Array | None = None
    reference: ak.Array | None = None
    reference_name: str = ""
    path: str = ""
    entry: npt.NDArray[np.int64] = None  # type: ignore[assignment]
    event: npt.NDArray[np.int64] = None  # type: ignore[assignment]
    flags: npt.NDArray[np.uint32] = None  # type: ignore[assignment]
    absent: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.hits)
        defaults: dict[str, npt.NDArray[Any]] = {
            "entry": np.arange(n, dtype=np.int64),
            "event": np.arange(n, dtype=np.int64),
            "flags": np.zeros(n, dtype=np.uint32),
        }
        for name, default in defaults.items():
            value = getattr(self, name)
            value = default if value is None else np.asarray(value, dtype=default.dtype)
            if value.shape != (n,):
                raise ValueError(f"{name} has shape {value.shape}, expected ({n},), one for each event")
            object.__setattr__(self, name, value)
        for name, part in self.parts():
            if len(part) != n:
                raise ValueError(f"{name} has {len(part)} events, hits have {n}")
        if self.truth is None and any(getattr(self, name) is not None for name in LINKED):
            raise ValueError("links need the truth particles they point to")

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, where: int | slice | npt.NDArray[Any] | Sequence[int]) -> Events:
        """Some of the events, as `Events`: an index, a slice, a mask or a list of indices."""
        if isinstance(where, int | np.integer):
            index = int(where)
            if not -len(self) <= index < len(self):
                raise IndexError(f"event {index} of {len(self)}")
            index %= len(self)
            where = slice(index, index + 1)
        elif not isinstance(where, slice):
            where = np.asarray(where)
            if where.size == 0:
                where = where.astype(np.int64)
        values = {name: part[where] for name, part in self.parts()}
        return dataclasses.replace(
            self, entry=self.entry[where], event=self.event[where], flags=self.flags[where], **values
        )

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(ak.flatten(part, axis=1))} {name}" for name, part in self.parts())
        return f"<Events: {len(self)} events of {self.detector.name}, {counts}>"

    def parts(self) -> Iterator[tuple[str, ak.Array]]:
        """Name and array of each part that is there."""
        for name in PARTS:
            part = getattr(self, name)
            if part is not None:
                yield name, part

    @property
    def has_truth(self) -> bool:
        """Whether truth particles and links from hits to them are there."""
        return self.truth is not None and self.hit_links is not None

    def problems(self) -> list[Problem]:
        """Everything that is wrong, in the order of the events; an empty list if nothing is."""
        found: list[Problem] = []
        for name, part in self.parts():
            if name in LINKED:
                found += _link_problems(name, part, getattr(self, LINKED[name]), self.truth)
            else:
                found += _part_problems(name, part, self.detector)
        return sorted(found, key=lambda problem: problem.index)

    def check(self) -> Events:
        """Return self if nothing is wrong.

        Raises
        ------
        InputError
            Naming file, entry and field of the first problem, and how many there are.
        """
        found = self.problems()
        if found:
            first = found[0]
            more = "" if len(found) == 1 else f" (and {len(found) - 1} more problems)"
            raise InputError(
                first.message + more,
                file=self.path or None,
                entry=int(self.entry[first.index]),
                field=first.field,
            )
        return self

    def emptied(self, bad: npt.NDArray[np.bool_]) -> Events:
        """The same events with those where `bad` is True left without content and flagged ``BAD_INPUT``."""
        if not bad.any():
            return self
        keep = ~np.asarray(bad)
        values = {}
        for name, part in self.parts():
            kept = np.repeat(keep, ak.to_numpy(ak.num(part, axis=1)))
            counts = np.where(keep, ak.to_numpy(ak.num(part, axis=1)), 0)
            flat = ak.flatten(part, axis=1)[kept]
            values[name] = ak.unflatten(flat, counts)
        flags = self.flags | np.where(bad, np.uint32(Flag.BAD_INPUT), np.uint32(0))
        return dataclasses.replace(self, flags=flags.astype(np.uint32), **values)


def concatenate(chunks: Sequence[Events]) -> Events:
    """One `Events` from several of the same detector. Parts that not all of them have are dropped.

    Raises
    ------
    ValueError
        Nothing to join, or different detectors.
    """
    if not chunks:
        raise ValueError("no events to concatenate")
    first = chunks[0]
    if any(chunk.detector != first.detector for chunk in chunks):
        raise ValueError("cannot concatenate events of different detectors")
    values: dict[str, Any] = {}
    for name in PARTS:
        parts = [getattr(chunk, name) for chunk in chunks]
        complete = all(part is not None for part in parts)
        values[name] = ak.concatenate(parts) if complete else None
    for name in ("entry", "event", "flags"):
        values[name] = np.concatenate([getattr(chunk, name) for chunk in chunks])
    path = first.path if all(chunk.path == first.path for chunk in chunks) else ""
    return dataclasses.replace(first, path=path, **values)


def make_hits(
    *,
    energy: Any,
    x: Any,
    y: Any,
    z: Any,
    time: Any = None,
    subdetector: Any = None,
    layer: Any = None,
) -> ak.Array:
    """Calorimeter hits from jagged arrays [event, hit]; energy in GeV, positions in mm, time in ns."""
    return _records(
        like=energy,
        energy=(energy, np.float32, np.nan),
        position=_vector("Vector3D", energy, np.float32, x=x, y=y, z=z),
        time=(time, np.float32, np.nan),
        subdetector=(subdetector, np.int32, 0),
        layer=(layer, np.int32, -1),
    )


def make_tracks(
    *,
    b_field: float,
    px: Any = None,
    py: Any = None,
    pz: Any = None,
    charge: Any = None,
    omega: Any = None,
    phi: Any = None,
    tan_lambda: Any = None,
    d0: Any = None,
    z0: Any = None,
    calo_x: Any = None,
    calo_y: Any = None,
    calo_z: Any = None,
    calo_px: Any = None,
    calo_py: Any = None,
    calo_pz: Any = None,
) -> ak.Array:
    """Tracks from jagged arrays [event, track], given either as momentum and charge or as track parameters.

    Momenta in GeV, charge in e, lengths in mm, omega in 1/mm, phi in rad, `b_field` in T. What is not given is
    computed from what is (helix of unit charge in a field along z) or, if it cannot be, NaN.

    Raises
    ------
    ValueError
        Neither (px, py, pz, charge) nor (omega, phi, tan_lambda) complete.
    """
    by_momentum = all(value is not None for value in (px, py, pz, charge))
    by_helix = all(value is not None for value in (omega, phi, tan_lambda))
    if not by_momentum and not by_helix:
        raise ValueError("tracks need px, py, pz and charge, or omega, phi and tan_lambda")
    like = px if by_momentum else omega
    if not by_momentum:
        px, py, pz = _jagged(like, kinematics.momentum_from_track(_flat(omega), _flat(phi), _flat(tan_lambda), b_field))
        (charge,) = _jagged(like, (np.sign(_flat(omega)),))
    elif not by_helix:
        omega, phi, tan_lambda = _jagged(
            like,
            kinematics.track_from_momentum(_flat(px), _flat(py), _flat(pz), _flat(charge), b_field),
        )
    return _records(
        like=like,
        momentum=_vector("Momentum3D", like, np.float32, px=px, py=py, pz=pz),
        charge=(charge, np.float32, np.nan),
        d0=(d0, np.float32, np.nan),
        phi=(phi, np.float32, np.nan),
        omega=(omega, np.float32, np.nan),
        z0=(z0, np.float32, np.nan),
        tan_lambda=(tan_lambda, np.float32, np.nan),
        calo_position=_vector("Vector3D", like, np.float32, x=calo_x, y=calo_y, z=calo_z),
        calo_momentum=_vector("Momentum3D", like, np.float32, px=calo_px, py=calo_py, pz=calo_pz),
    )


def make_tracker_hits(*, x: Any, y: Any, z: Any, energy: Any = None, time: Any = None, layer: Any = None) -> ak.Array:
    """Tracker hits from jagged arrays [event, hit]; positions in mm, deposited energy in GeV, time in ns."""
    return _records(
        like=x,
        position=_vector("Vector3D", x, np.float32, x=x, y=y, z=z),
        energy=(energy, np.float32, np.nan),
        time=(time, np.float32, np.nan),
        layer=(layer, np.int32, -1),
    )


def make_truth(
    *,
    pdg: Any,
    mass: Any,
    px: Any,
    py: Any,
    pz: Any,
    charge: Any,
    vx: Any = None,
    vy: Any = None,
    vz: Any = None,
    status: Any = None,
    parent: Any = None,
) -> ak.Array:
    """Truth particles from jagged arrays [event, particle]; GeV, mm, e. Energy follows from E^2 = m^2 + p^2."""
    flat_energy = kinematics.energy(*(np.asarray(_flat(value), dtype=np.float64) for value in (px, py, pz, mass)))
    (energy,) = _jagged(pdg, (flat_energy,))
    return _records(
        like=pdg,
        pdg=(pdg, np.int32, 0),
        charge=(charge, np.float64, np.nan),
        mass=(mass, np.float64, np.nan),
        energy=(energy, np.float64, np.nan),
        momentum=_vector("Momentum3D", pdg, np.float64, px=px, py=py, pz=pz),
        vertex=_vector("Vector3D", pdg, np.float64, x=vx, y=vy, z=vz),
        status=(status, np.int32, 1),
        parent=(parent, np.int32, -1),
    )


def make_particles(
    *, pdg: Any, charge: Any, energy: Any, px: Any, py: Any, pz: Any, mass: Any = None, score: Any = None
) -> ak.Array:
    """Reconstructed particles from jagged arrays [event, particle]; energy, momentum and mass in GeV, charge in e.

    `score` is the algorithm's probability of the identity it gave (edm4hep's goodnessOfPID). A mass that is not
    given is sqrt(max(0, E^2 - p^2)).
    """
    if mass is None:
        squared = _flat(energy).astype(np.float64) ** 2 - sum(_flat(p).astype(np.float64) ** 2 for p in (px, py, pz))
        (mass,) = _jagged(energy, (np.sqrt(np.maximum(squared, 0.0)),))
    return _records(
        like=pdg,
        pdg=(pdg, np.int32, 0),
        charge=(charge, np.float32, np.nan),
        energy=(energy, np.float32, np.nan),
        mass=(mass, np.float32, np.nan),
        momentum=_vector("Momentum3D", pdg, np.float32, px=px, py=py, pz=pz),
        score=(score, np.float32, np.nan),
    )


def make_links(*, source: Any, particle: Any, weight: Any = None, normalise: bool = True) -> ak.Array:
    """Links from jagged arrays [event, link] of indices; the weights of each source are made to sum to 1.

    Weights in files are not comparable between calorimeters (PHYSICS: from 4e-5 to 3.3 in one event), so only
    their shares are kept. A source whose weights sum to 0 shares equally. Links that point outside are kept for
    `Events.problems` to name, as are negative weights, which make all shares of their source NaN.
    """
    counts = ak.to_numpy(ak.num(source, axis=1))
    sources = np.asarray(_flat(source), dtype=np.int64)
    if weight is None:
        weights = np.ones(len(sources))
    else:
        weights = np.asarray(_flat(weight), dtype=np.float64)
    if normalise and len(sources):
        event = np.repeat(np.arange(len(counts)), counts)
        first = sources.min()
        stride = sources.max() - first + 1
        _, group = np.unique(event * stride + (sources - first), return_inverse=True)
        weights = np.where(weights < 0, np.nan, weights)
        total = np.bincount(group, weights)
        size = np.bincount(group)
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.where(total[group] == 0, 1.0 / size[group], weights / total[group])
    (weight,) = _jagged(source, (weights,))
    return _records(
        like=source,
        source=(source, np.int32, -1),
        particle=(particle, np.int32, -1),
        weight=(weight, np.float32, 1.0),
    )


def _flat(jagged: Any) -> npt.NDArray[Any]:
    return np.asarray(ak.to_numpy(ak.flatten(ak.Array(jagged), axis=1), allow_missing=False))


def _jagged(like: Any, flat: Sequence[npt.NDArray[Any]]) -> tuple[ak.Array, ...]:
    counts = ak.num(ak.Array(like), axis=1)
    return tuple(ak.unflatten(values, counts) for values in flat)


def _column(like: Any, value: Any, dtype: Any, default: Any) -> npt.NDArray[Any]:
    """Flat column of the wanted dtype; a value that is not given becomes the default everywhere."""
    if value is None:
        return np.full(int(ak.sum(ak.num(ak.Array(like), axis=1))), default, dtype=dtype)
    return _flat(value).astype(dtype)


def _vector(name: str, like: Any, dtype: Any, **components: Any) -> ak.Array:
    flat = {key: _column(like, value, dtype, np.nan) for key, value in components.items()}
    return ak.zip(flat, with_name=name, behavior=vector_behavior)


def _records(*, like: Any, **fields: Any) -> ak.Array:
    columns = {name: value if isinstance(value, ak.Array) else _column(like, *value) for name, value in fields.items()}
    flat = ak.zip(columns, depth_limit=1, behavior=vector_behavior)
    return ak.unflatten(flat, ak.to_numpy(ak.num(ak.Array(like), axis=1)))


def _part_problems(name: str, part: ak.Array, detector: Detector) -> list[Problem]:
    found: list[Problem] = []
    required = {
        "hits": ("energy", "position.x", "position.y", "position.z"),
        "tracks": ("momentum.px", "momentum.py", "momentum.pz", "charge"),
        "tracker_hits": ("position.x", "position.y", "position.z"),
        "truth": ("mass", "charge", "energy", "momentum.px", "momentum.py", "momentum.pz"),
        "reference": ("energy", "charge", "momentum.px", "momentum.py", "momentum.pz"),
    }[name]
    for field in required:
        found += _violations(part, name, field, lambda x: ~np.isfinite(x), "expected a finite number")
    if name in ("hits", "reference"):
        found += _violations(part, name, "energy", lambda x: x < 0, "expected at least 0 GeV")
    if name == "hits":
        n = len(detector.calorimeters)
        found += _violations(
            part, name, "subdetector", lambda x: (x < 0) | (x >= n), f"expected 0 to {n - 1} ({detector.name})"
        )
    if name == "truth":
        counts = ak.to_numpy(ak.num(part, axis=1))
        limit = np.repeat(counts, counts)
        found += _violations(
            part, name, "parent", lambda x: (x < -1) | (x >= limit), "expected -1 or the index of a particle"
        )
    return found


def _link_problems(name: str, links: ak.Array, sources: ak.Array | None, truth: ak.Array | None) -> list[Problem]:
    found: list[Problem] = []
    counts = ak.to_numpy(ak.num(links, axis=1))
    for field, target in (("source", sources), ("particle", truth)):
        sizes = np.zeros(len(links), dtype=np.int64) if target is None else ak.to_numpy(ak.num(target, axis=1))
        limit = np.repeat(sizes, counts)
        found += _violations(
            links,
            name,
            field,
            lambda x, limit=limit: (x < 0) | (x >= limit),
            "points outside the event's list",
        )
    found += _violations(
        links, name, "weight", lambda x: ~np.isfinite(x) | (x < 0), "expected a finite share of at least 0"
    )
    return found


def _violations(part: ak.Array, name: str, field: str, is_bad: Any, expected: str) -> list[Problem]:
    """One problem for each event in which `is_bad` holds for a value of the field, naming the first such object."""
    values = part
    for key in field.split("."):
        values = values[key]
    flat = ak.to_numpy(ak.flatten(values, axis=1))
    bad = np.flatnonzero(is_bad(flat))
    if not len(bad):
        return []
    offsets = np.concatenate([[0], np.cumsum(ak.to_numpy(ak.num(part, axis=1)))])
    event = np.searchsorted(offsets, bad, side="right") - 1
    events, first, counts = np.unique(event, return_index=True, return_counts=True)
    return [
        Problem(
            int(index),
            f"{name}.{field}",
            f"{expected}, found {flat[bad[at]]} at index {bad[at] - offsets[index]}"
            + (f" and {count - 1} more like it" if count > 1 else ""),
        )
        for index, at, count in zip(events, first, counts, strict=True)
    ]
