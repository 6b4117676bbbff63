"""Builders of the records of `pflow.event.events.Events` from jagged arrays of plain numbers.

They set names, types and `vector` behaviour, and compute fields that follow from others.
"""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.physics import kinematics
from pflow.physics.pdg import CLASSES

__all__ = ["flat_links", "make_hits", "make_links", "make_particles", "make_tracker_hits", "make_tracks", "make_truth"]


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

    Momenta in GeV, charge in e, lengths in mm, omega in 1/mm, phi in rad, `b_field` in T. Momentum and parameters
    follow from each other by the helix of unit charge in a field along z; all else that is not given is NaN.

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
        helix = jagged.flat(omega), jagged.flat(phi), jagged.flat(tan_lambda)
        px, py, pz = _unflatten(like, *kinematics.momentum_from_track(*helix, b_field))
        (charge,) = _unflatten(like, np.sign(jagged.flat(omega)))
    elif not by_helix:
        flat = jagged.flat(px), jagged.flat(py), jagged.flat(pz), jagged.flat(charge)
        omega, phi, tan_lambda = _unflatten(like, *kinematics.track_from_momentum(*flat, b_field))
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
    flat_energy = kinematics.energy(*(jagged.flat(value, np.float64) for value in (px, py, pz, mass)))
    (energy,) = _unflatten(pdg, flat_energy)
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
    *,
    pdg: Any,
    charge: Any,
    energy: Any,
    px: Any,
    py: Any,
    pz: Any,
    mass: Any = None,
    score: Any = None,
    scores: Any = None,
    covariance: Any = None,
) -> ak.Array:
    """Reconstructed particles from jagged arrays [event, particle]; energy, momentum and mass in GeV, charge in e.

    Without a given mass, it is sqrt(max(0, E^2 - p^2)). The fields ``scores`` and ``covariance`` exist only if given.

    Parameters
    ----------
    pdg, charge, energy, px, py, pz, mass
        [event, particle].
    score
        Probability of the assigned identity (edm4hep's goodnessOfPID).
    scores
        [event, particle, 5]: probability of each class, in the order of `pflow.physics.pdg.CLASSES`.
    covariance
        [event, particle, 10]: lower triangle of the covariance of (px, py, pz, E), GeV^2, in the order of
        `pflow.physics.kinematics.COVARIANCE`.

    Raises
    ------
    ValueError
        `scores` or `covariance` of another length.
    """
    if mass is None:
        squared = jagged.flat(energy, np.float64) ** 2 - sum(jagged.flat(p, np.float64) ** 2 for p in (px, py, pz))
        (mass,) = _unflatten(energy, np.sqrt(np.maximum(squared, 0.0)))
    return _records(
        like=pdg,
        pdg=(pdg, np.int32, 0),
        charge=(charge, np.float32, np.nan),
        energy=(energy, np.float32, np.nan),
        mass=(mass, np.float32, np.nan),
        momentum=_vector("Momentum3D", pdg, np.float32, px=px, py=py, pz=pz),
        score=(score, np.float32, np.nan),
        **{
            name: _fixed(name, values, pdg, width)
            for name, values, width in (
                ("scores", scores, len(CLASSES)),
                ("covariance", covariance, len(kinematics.COVARIANCE)),
            )
            if values is not None
        },
    )


def make_links(*, source: Any, particle: Any, weight: Any = None, normalise: bool = True) -> ak.Array:
    """Links from jagged arrays [event, link] of indices; the weights of each source are normalised to sum to 1.

    Weights in files are not comparable between calorimeters (4e-5 to 3.3 in one event), so only fractions are kept.
    A source whose weights sum to 0 has equal weights. Links that point outside are kept for `Events.validate` to name,
    as are negative weights, which make all weights of their source NaN.
    """
    sources = jagged.flat(source)
    weights = np.ones(len(sources)) if weight is None else jagged.flat(weight, np.float64)
    if normalise and len(sources):
        weights = _fractions(sources, weights, jagged.count(source))
    (weight,) = _unflatten(source, weights)
    return _records(
        like=source,
        source=(source, np.int32, -1),
        particle=(particle, np.int32, -1),
        weight=(weight, np.float32, 1.0),
    )


def flat_links(
    counts: npt.NDArray[np.int64], *, source: Any, particle: Any, weight: Any = None, normalise: bool = False
) -> ak.Array:
    """As `make_links`, from flat lists of the links of all events, one after the other: `counts` of each event."""
    given = {"source": source, "particle": particle, **({} if weight is None else {"weight": weight})}
    columns = {name: jagged.unflatten(values, counts) for name, values in given.items()}
    return make_links(**columns, normalise=normalise)


def _fractions(sources: npt.NDArray[Any], weights: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> Any:
    """Weights of links divided by the sum over all links of their source, float64 [L]; see `make_links`."""
    again, falls = sources[1:] == sources[:-1], sources[1:] < sources[:-1]
    begins = jagged.offsets(counts)[1:-1]
    begins = begins[(begins > 0) & (begins < len(sources))] - 1
    again[begins] = falls[begins] = False  # the next event counts its own sources
    event = jagged.event_index(counts)
    if falls.any():
        return _fractions_of_any(sources, weights, event)
    # In the order of the sources, as in most files: most of them have one link, whose fraction is 1.
    several = np.zeros(len(weights), dtype=np.bool_)
    several[:-1] = again
    several[1:] |= again
    fractions = np.ones(len(weights))
    fractions[~(weights >= 0) | np.isinf(weights)] = np.nan
    fractions[several] = _fractions_of_any(sources[several], weights[several], event[several])
    return fractions


def _fractions_of_any(
    sources: npt.NDArray[Any], weights: npt.NDArray[np.float64], event: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The same in any order of the sources; `event` of each link, rising, int64 [L]."""
    if not len(sources):
        return weights
    first = int(sources.min())
    stride = int(sources.max()) - first + 1
    group = event * stride + (sources.astype(np.int64) - first)
    if event[-1] * stride > 16 * len(sources) + 1024:  # far fewer sources than numbers of sources
        _, group = np.unique(group, return_inverse=True)
    negative = weights < 0
    if negative.any():
        weights = np.where(negative, np.nan, weights)
    total = np.bincount(group, weights)[group]
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = weights / total
    empty = total == 0
    if empty.any():
        weights[empty] = 1.0 / np.bincount(group)[group[empty]]
    return weights


def _unflatten(like: Any, *flat: npt.NDArray[Any]) -> tuple[ak.Array, ...]:
    return tuple(jagged.unflatten(values, jagged.count(like)) for values in flat)


def _fixed(name: str, values: Any, like: Any, width: int) -> ak.Array:
    """Flat float32 column [N, width] of values [event, object, width]."""
    flat = jagged.flat(values).astype(np.float32)
    shape = (int(jagged.count(like).sum()), width)
    if flat.shape != shape and flat.size + shape[0] > 0:
        raise ValueError(f"{name} of all particles has shape {flat.shape}, expected {shape}")
    return ak.Array(flat.reshape(shape))


def _column(like: Any, value: Any, dtype: Any, default: Any) -> npt.NDArray[Any]:
    """Flat column of the wanted dtype; the default everywhere if no value is given."""
    if value is None:
        return np.full(int(jagged.count(like).sum()), default, dtype=dtype)
    return jagged.flat(value, dtype)


def _vector(name: str, like: Any, dtype: Any, **components: Any) -> ak.Array:
    flat = {key: _column(like, value, dtype, np.nan) for key, value in components.items()}
    return jagged.records(flat, name=name)


def _records(*, like: Any, **fields: Any) -> ak.Array:
    columns = {name: value if isinstance(value, ak.Array) else _column(like, *value) for name, value in fields.items()}
    return jagged.records(columns, jagged.count(like))
