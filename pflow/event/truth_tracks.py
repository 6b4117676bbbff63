"""Tracks for files without tracks: smeared helices of charged Monte Carlo particles ("truth-seeded").

They imitate a tracking that finds every charged particle with enough hits, splits no track and makes no fakes: results
do not hold for real tracks. Events with them are flagged `Flag.TRUTH_TRACKS`.
"""

from __future__ import annotations

import awkward as ak
import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.links import Links
from pflow.event.schema import make_tracks
from pflow.physics import kinematics
from pflow.physics.detector import Detector, TruthTracking
from pflow.physics.kinematics import follow_to_calorimeter

Floats = npt.NDArray[np.float64]


def make_truth_tracks(
    truth: ak.Array,
    n_layers: npt.NDArray[np.int64],
    *,
    detector: Detector,
    settings: TruthTracking,
    event: npt.NDArray[np.int64],
    entry: npt.NDArray[np.int64],
) -> tuple[ak.Array, ak.Array]:
    """Tracks of charged particles, and their links, for ``events.tracks`` and ``events.track_links``.

    A particle of `truth` [event, particle] gets a track if its charge is +-1, it was made within `max_vertex_radius`
    and it crossed at least `min_layers` of the tracker; it crossed `n_layers`, int64 [all particles]. The helix through
    its vertex, without energy loss, gives the state closest to the z axis. Its 1/pt, phi, lambda, d0 and z0 are smeared
    by independent Gaussians, and the smeared helix is followed to the calorimeter. The noise depends only on the
    event's number and entry, so that an event has the same tracks whenever it is read.
    """
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
    noise = [
        np.random.default_rng((abs(int(number)), int(row))).standard_normal((int(n), 5))
        for number, row, n in zip(event, entry, n_tracks, strict=True)
    ]
    columns = _smeared(
        vertex[chosen], momentum[chosen], charge[chosen], detector, settings, np.concatenate([np.zeros((0, 5)), *noise])
    )
    tracks = make_tracks(
        b_field=detector.b_field, **{name: jagged.unflatten(values, n_tracks) for name, values in columns.items()}
    )
    source, particle = jagged.local_index(n_tracks), jagged.local_index(counts)[chosen]
    return tracks, Links(counts=n_tracks, source=source, particle=particle, weight=np.ones(len(source))).records()


def _smeared(
    vertex: Floats, momentum: Floats, charge: Floats, detector: Detector, settings: TruthTracking, noise: Floats
) -> dict[str, Floats]:
    """Columns [track] for `make_tracks`: EDM4hep's track parameters with respect to the origin.

    `vertex`, mm, and `momentum`, GeV, [track, 3]; `noise`, standard normal, [track, 5].
    """
    b_field = detector.b_field
    (x, y, z), (px, py, pz) = vertex.T, momentum.T
    px_perigee, py_perigee = kinematics.momentum_at_perigee(x, y, px, py, charge, b_field)
    distance, z0 = kinematics.impact_parameters(x, y, z, px, py, pz, charge, b_field)
    d0 = -np.sign(charge * b_field) * distance  # edm4hep::TrackState: the point is d0 (-sin phi, cos phi)
    pt, p = np.hypot(px, py), np.linalg.norm(momentum, axis=1)
    sin_theta = pt / p

    inverse_pt = 1 / pt + noise[:, 0] * _resolution(settings.inverse_pt, pt)
    phi = np.arctan2(py_perigee, px_perigee) + noise[:, 1] * _resolution(settings.angle, pt)
    tan_lambda = np.tan(np.arctan2(pz, pt) + noise[:, 2] * _resolution(settings.angle, p))
    d0 = d0 + noise[:, 3] * _resolution(settings.impact, p * sin_theta**1.5)
    z0 = z0 + noise[:, 4] * _resolution(settings.impact, p * sin_theta**2.5)

    new_charge = np.where(inverse_pt < 0, -charge, charge)
    new_pt = 1 / np.abs(inverse_pt)
    position, at_face = follow_to_calorimeter(
        np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=-1),
        new_pt[:, None] * np.stack([np.cos(phi), np.sin(phi), tan_lambda], axis=-1),
        new_charge,
        detector,
        settings.sides,
    )
    columns = {
        "omega": new_charge * np.abs(inverse_pt) * kinematics.GEV_PER_TESLA_MM * abs(b_field),
        "phi": np.mod(phi + np.pi, 2 * np.pi) - np.pi,
        "tan_lambda": tan_lambda,
        "d0": d0,
        "z0": z0,
    }
    columns |= {f"calo_{axis}": position[:, i] for i, axis in enumerate("xyz")}
    return columns | {f"calo_p{axis}": at_face[:, i] for i, axis in enumerate("xyz")}


def _resolution(terms: tuple[float, ...], momentum: Floats) -> Floats:
    """Constant term and multiple scattering in quadrature, a (+) b / p."""
    constant, scattering = terms
    return np.hypot(constant, scattering / momentum)
