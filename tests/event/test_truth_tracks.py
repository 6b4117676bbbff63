import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.event.schema import make_truth
from pflow.event.truth_tracks import make_truth_tracks
from pflow.physics.detector import TruthTracking, load_detector
from pflow.physics.kinematics import momentum_from_track

EXACT = TruthTracking(
    sim_tracker_hits=("Hits",),
    min_layers=4,
    max_vertex_radius=350.0,
    inverse_pt=(0.0, 0.0),
    angle=(0.0, 0.0),
    impact=(0.0, 0.0),
)
CLD = load_detector("cld")


def particles(n=1, **columns):
    """One event of `n` pions of 5 GeV from the origin, with some of their columns replaced."""
    pion = {
        "pdg": 211,
        "mass": 0.1396,
        "charge": 1.0,
        "px": 3.0,
        "pz": 4.0,
        **dict.fromkeys(("py", "vx", "vy", "vz"), 0.0),
    }
    return make_truth(**{name: ak.Array([columns.get(name, [value] * n)]) for name, value in pion.items()})


def tracks_of(truth, layers, settings=EXACT, event=7):
    numbers = np.array([event] + [0] * (len(truth) - 1))
    return make_truth_tracks(
        truth, np.asarray(layers), detector=CLD, settings=settings, event=numbers, entry=np.arange(len(truth))
    )


def test_charged_particles_from_the_beam_region_with_enough_layers_get_tracks():
    truth = particles(5, charge=[1.0, 0.0, 1.0, -1.0, 2.0], vx=[0.0, 0.0, 400.0, 100.0, 0.0])
    tracks, links = tracks_of(truth, [4, 9, 9, 4, 9])
    assert links.particle.to_list() == [[0, 3]]
    assert links.source.to_list() == [[0, 1]]
    assert tracks.charge.to_list() == [[1.0, -1.0]]
    assert tracks_of(truth, [3, 9, 9, 3, 9])[1].particle.to_list() == [[]]


def test_without_smearing_a_track_is_the_particle_s_helix():
    tracks, _ = tracks_of(particles(1, vx=[3.0], vy=[-2.0], vz=[5.0], charge=[-1.0]), [9])
    track = tracks[0, 0]
    assert track.omega < 0
    px, py, pz = momentum_from_track(*(np.array(track[name]) for name in ("omega", "phi", "tan_lambda")), CLD.b_field)
    np.testing.assert_allclose([np.hypot(px, py), pz], [3.0, 4.0], rtol=1e-6)
    # A stiff track's closest point lies on its tangent through the vertex: 2 mm below the axis, and 4 mm back along z.
    np.testing.assert_allclose([track.d0, track.z0], [-2.0, 1.0], atol=0.01)
    end = track.calo_position
    assert end.z == pytest.approx(CLD.ecal_inner_z)
    assert np.hypot(end.x, end.y) == pytest.approx(2302 * 3 / 4, rel=0.02)


def test_track_parameters_have_the_stated_resolutions():
    n = 4000
    settings = dataclasses.replace(EXACT, inverse_pt=(3e-5, 2e-3), angle=(3e-5, 1.5e-3), impact=(2e-3, 1.5e-2))
    tracks, _ = tracks_of(particles(n), np.full(n, 9), settings)
    track = tracks[0]
    sin_theta, p = 0.6, 5.0
    expected = {
        "1/pt": (1 / track.momentum.pt, np.hypot(3e-5, 2e-3 / 3)),
        "phi": (track.phi, np.hypot(3e-5, 1.5e-3 / 3)),
        "lambda": (np.arctan(track.tan_lambda), np.hypot(3e-5, 1.5e-3 / 5)),
        "d0": (track.d0, np.hypot(2e-3, 1.5e-2 / (p * sin_theta**1.5))),
        "z0": (track.z0, np.hypot(2e-3, 1.5e-2 / (p * sin_theta**2.5))),
    }
    for name, (values, sigma) in expected.items():
        assert np.std(ak.to_numpy(values)) == pytest.approx(sigma, rel=0.05), name
    means = [float(ak.mean(values)) for values, _ in expected.values()]
    np.testing.assert_allclose(means, [1 / 3, 0.0, np.arctan(4 / 3), 0.0, 0.0], atol=1e-3)


def test_the_noise_depends_on_the_event_and_not_on_its_neighbours():
    settings = dataclasses.replace(EXACT, angle=(0.01, 0.0))
    alone, with_neighbour = particles(2), ak.concatenate([particles(2), particles(3)])
    tracks, _ = tracks_of(alone, np.full(2, 9), settings)
    with_others, _ = tracks_of(with_neighbour, np.full(5, 9), settings)
    renumbered, _ = tracks_of(alone, np.full(2, 9), settings, event=8)
    assert tracks.phi[0].to_list() == with_others.phi[0].to_list()
    assert tracks.phi[0].to_list() != renumbered.phi[0].to_list()
