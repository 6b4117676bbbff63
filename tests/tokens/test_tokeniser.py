import dataclasses

import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.events import Events
from pflow.event.schema import make_hits, make_links, make_truth
from pflow.physics.detector import load_detector
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import ParticleTokens, TokenConfig


def test_the_fit_does_not_depend_on_the_chunks(events, config, tokeniser):
    in_one_chunk = Tokeniser.fit(iter([events]), config)
    assert in_one_chunk.pdg == tokeniser.pdg
    assert in_one_chunk.n_events == tokeniser.n_events == 3
    for part in ("hits", "tracks", "tracker_hits"):
        np.testing.assert_allclose(in_one_chunk.scales[part].mean, tokeniser.scales[part].mean, rtol=1e-12)
        np.testing.assert_allclose(in_one_chunk.scales[part].std, tokeniser.scales[part].std, rtol=1e-12)


def test_model_inputs_are_what_a_network_needs(tokeniser):
    sizes = tokeniser.model_inputs
    particles = sorted(zip(sizes.pop("masses"), sizes.pop("charged"), strict=True))
    assert [mass for mass, _ in particles] == pytest.approx([0.0, 0.1395704, 0.493677], rel=1e-4)
    assert [charged for _, charged in particles] == [False, True, True]
    assert sizes == {
        "n_charge": 3,
        "n_pdg": 3,
        "hit_features": 6,
        "track_features": 5,
        "tracker_hit_features": 3,
        "n_subdetectors": 4,
        "energy_mean": tokeniser.energy.mean[0],
        "energy_std": tokeniser.energy.std[0],
        "min_energy": tokeniser.config.e_min,
    }


def test_fitting_on_nothing_is_an_error():
    with pytest.raises(ConfigError, match="no training events"):
        Tokeniser.fit([])


def test_fitting_without_targets_is_an_error(events):
    with pytest.raises(ConfigError, match="no target particle in any of 3 training events"):
        Tokeniser.fit([events], TokenConfig(e_min=1000.0))


def test_training_events_of_two_detectors_are_an_error(events):
    renamed = dataclasses.replace(events, detector=dataclasses.replace(events.detector, name="other"))
    with pytest.raises(ConfigError, match="'ild_g4' and 'other'"):
        Tokeniser.fit([events, renamed])


def test_events_of_another_detector_are_refused_with_both_names(tokeniser):
    cld = Events(detector=load_detector("cld"), path="cld.root", hits=make_hits(energy=[[]], x=[[]], y=[[]], z=[[]]))
    with pytest.raises(InputError, match=r"cld.root.*'ild_g4'.*'cld'.*b_field"):
        tokeniser.check_detector(cld)


def test_decode_of_encode_gives_the_targets_back(events, tokeniser):
    tokens = tokeniser.encode(events)
    columns = {name: tokens.arrays[name] for name in ("charge", "pdg", "energy", "direction")}
    particles = tokeniser.decode(ParticleTokens(counts=np.diff(tokens.offsets["target"]), **columns)).particles
    # Decreasing energy: the 20 GeV photon first; the pion (p^2 = 2.9^2 + 0.75^2) has 2.999 GeV, the kaon 3.0004 GeV.
    assert particles.pdg.to_list() == [[22, 22], [321, -211], []]
    assert particles.charge.to_list() == [[0, 0], [1, -1], []]
    truth = [events.truth[0, 1], events.truth[0, 0], events.truth[1, 1], events.truth[1, 0]]
    decoded = [particles[0, 0], particles[0, 1], particles[1, 0], particles[1, 1]]
    for particle, true in zip(decoded, truth, strict=True):
        assert particle.energy == pytest.approx(true.energy, rel=1e-5)
        assert particle.mass == pytest.approx(true.mass, rel=1e-4)
        for key in ("px", "py", "pz"):
            assert particle.momentum[key] == pytest.approx(true.momentum[key], rel=1e-5, abs=1e-5)


def test_kinds_not_seen_in_training_are_counted_in_a_warning(events, tokeniser):
    proton = Events(
        detector=events.detector,
        hits=make_hits(energy=[[9.0], [9.0]], x=[[1.0]] * 2, y=[[1.0]] * 2, z=[[1.0]] * 2, time=[[1.0]] * 2),
        tracks=events.tracks[2:3][[0, 0]],
        tracker_hits=events.tracker_hits[2:3][[0, 0]],
        truth=make_truth(
            pdg=[[22], [2212]],
            charge=[[0.0], [1.0]],
            mass=[[0.0], [0.93827]],
            px=[[9.0]] * 2,
            py=[[0.0]] * 2,
            pz=[[0.0]] * 2,
        ),
        hit_links=make_links(source=[[0], [0]], particle=[[0], [0]]),
    )
    with pytest.warns(UserWarning, match=r"1 particles .* 2212 \(1 times\)"):
        tokens = tokeniser.encode(proton)
    assert tokens.unknown == {2212: 1}
    assert tokeniser.encode(proton, warn=False).unknown.total() == 1
