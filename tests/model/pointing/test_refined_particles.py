from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.nn import functional

from pflow.model.common.decode import Sampler
from pflow.model.pointing.generate import decode_first_stage
from pflow.model.pointing.refined_particles import refine
from pflow.model.pointing.refiner import DecodedParticles


@pytest.fixture(scope="module")
def stage(make_model, batch):
    """A model with a refinement, and its first six particles of each event with their source."""
    model = make_model(seed=2, refine_layers=1, existence_threshold=0.0, eos_threshold=1.0, min_energy=0.5)
    torch.manual_seed(7)
    with torch.no_grad():
        for part in (model.network.refiner.existence, model.network.refiner.query_update):
            part[-1].weight.add_(0.5 * torch.randn_like(part[-1].weight))
        model.network.refiner.existence[-1].bias.fill_(0.0)
        source = model.network.encode(batch)
        columns, mask, _ = decode_first_stage(model.network, source.copy(), model.decoding.limited(6), Sampler())
    return model, DecodedParticles.of(columns, mask), source


@pytest.fixture
def run(stage):
    model, decoded, source = stage

    def with_options(**options):
        with torch.no_grad():
            return refine(model.network, decoded, source, dataclasses.replace(model.decoding, **options), Sampler())

    return with_options


def test_energies_are_the_predicted_ones_times_the_existence_probability(run, stage):
    model, decoded, source = stage
    found = run()
    with torch.no_grad():
        predicted, _ = model.network.predict_refined(found.assignment, decoded.seed, source)
    probability = functional.logsigmoid(found.assignment.existence_logit)
    expected = predicted.log_energy + torch.where(predicted.by_track, 0.0, probability)
    torch.testing.assert_close(found.particles.log_energy, expected)
    smallest = model.network.min_log_energy
    assert torch.equal(found.is_particle, found.assignment.kept & (expected >= smallest))


def test_the_predicted_energy_may_decide(run, stage):
    model, decoded, source = stage
    before, found = run(), run(energy_cut="predicted")
    with torch.no_grad():
        predicted = model.network.predict_refined(found.assignment, decoded.seed, source)[0].log_energy
    smallest = model.network.min_log_energy
    assert torch.equal(found.is_particle, found.assignment.kept & (predicted >= smallest))
    assert found.is_particle.sum() > before.is_particle.sum()
    torch.testing.assert_close(found.particles.log_energy, before.particles.log_energy.clamp(min=smallest))


def test_soft_charged_particles_without_a_track_are_dropped(run, stage):
    head = stage[0].network.head
    before = run()
    trackless = head.charged[before.pdg] & ~before.particles.by_track & before.is_particle
    limit = 1.01 * float(before.particles.log_energy[trackless].exp().min())
    found = run(min_trackless_energy=limit)
    dropped = trackless & (before.particles.log_energy < math.log(limit))
    assert dropped.any()
    assert torch.equal(found.is_particle, before.is_particle & ~dropped)


def test_improbable_photons_are_dropped(run, stage):
    head = stage[0].network.head
    before = run()
    photon = head.is_photon(before.pdg) & before.is_particle
    probability = before.assignment.existence_logit.sigmoid()
    limit = float(probability[photon].sort().values[1:3].mean())
    found = run(min_photon_existence=limit)
    dropped = photon & (probability < limit)
    assert 0 < dropped.sum() < photon.sum()
    assert torch.equal(found.is_particle, before.is_particle & ~dropped)


def test_electrons_are_chosen_by_log_odds(run, stage):
    """The identity decides whether a track gives the energy, with which mass, and the charge."""
    electron = 3
    before, found = run(), run(electron_log_odds=50.0)
    assert (before.pdg != electron).any()
    assert (found.pdg == electron).all()
    torch.testing.assert_close(found.particles.pdg, before.particles.pdg)
    at_tracks = stage[2].tokens.is_track.gather(1, stage[1].seed)
    assert torch.equal(found.particles.by_track, at_tracks)
    assert (found.charge != 1).all()


def test_photons_alone_get_directions_of_their_fronts(run, stage):
    model = stage[0]
    before, found = run(), run(photon_depth=12.0)
    moved = (found.particles.direction != before.particles.direction).any(-1)
    assert moved.any()
    assert not (moved & ~model.network.head.is_photon(before.pdg)).any()


def test_drawn_identities_have_the_log_odds_too(stage):
    model, decoded, source = stage
    decoding = dataclasses.replace(model.decoding, electron_log_odds=50.0)
    with torch.no_grad():
        found = refine(model.network, decoded, source, decoding, Sampler(temperature=1.0))
    assert (found.pdg == 3).all()
