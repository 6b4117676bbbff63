import dataclasses

import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.schema import make_hits
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


def test_events_without_targets_or_of_two_detectors_are_an_error(events):
    renamed = dataclasses.replace(events, detector=dataclasses.replace(events.detector, name="other"))
    for chunks, e_min, message in (
        ([], 0.1, "no training events"),
        ([events], 1000.0, "no target particle in any of 3 training events"),
        ([events, renamed], 0.1, "'ild_g4' and 'other'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Tokeniser.fit(chunks, TokenConfig(e_min=e_min))


def test_events_of_another_detector_are_refused_with_both_names(tokeniser):
    cld = Events(detector=load_detector("cld"), path="cld.root", hits=make_hits(energy=[[]], x=[[]], y=[[]], z=[[]]))
    with pytest.raises(InputError, match=r"cld.root.*'ild_g4'.*'cld'.*b_field.*, calorimeters"):
        tokeniser.check_detector(cld)


def test_decode_of_encode_gives_the_targets_back(events, tokeniser):
    tokens = tokeniser.encode(events)
    columns = {name: tokens.arrays[name] for name in ("charge", "pdg", "energy", "direction")}
    particles = tokeniser.decode(ParticleTokens(counts=np.diff(tokens.offsets["target"]), **columns)).particles
    # Decreasing energy: the 20 GeV photon first; the pion (p^2 = 2.9^2 + 0.75^2) has 2.999 GeV, the kaon 3.0004 GeV.
    assert particles.pdg.to_list() == [[22, 22], [321, -211], []]
    assert particles.charge.to_list() == [[0, 0], [1, -1], []]
    decoded, truth = (jagged.columns(part) for part in (particles, events.truth[[[1, 0], [1, 0], []]]))
    np.testing.assert_allclose(decoded["rest_mass"], truth["rest_mass"], rtol=1e-4)
    for name in ("energy", "px", "py", "pz"):
        np.testing.assert_allclose(decoded[name], truth[name], rtol=1e-5, atol=1e-5)


def test_kinds_not_seen_in_training_are_counted_in_a_warning(events, tokeniser):
    truth = jagged.replaced(events.truth, {"pdg": np.array([22, 2212, -211, 2112])})
    nucleons = dataclasses.replace(events, truth=truth)
    with pytest.warns(UserWarning, match=r"2 particles .* 2112 \(1 times\), 2212 \(1 times\)"):
        tokens = tokeniser.encode(nucleons)
    assert tokens.unknown == {2112: 1, 2212: 1}
    assert tokeniser.encode(nucleons, warn=False).unknown.total() == 2
