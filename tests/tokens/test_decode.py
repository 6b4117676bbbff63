from __future__ import annotations

import numpy as np
import pytest


def one(tokeniser, *, code, charge=1, energy=10.0, direction=(0.0, 0.0, 1.0), **more):
    index, _ = tokeniser.pdg.encode([[code]])
    return tokeniser.decode(
        charge=[[charge + 1]],
        pdg=index,
        energy=tokeniser.energy.apply([[energy]]),
        direction=[[direction]],
        mask=[[True]],
        **more,
    )


def test_energy_momentum_and_mass_belong_together(tokeniser):
    particle = one(tokeniser, code=211, energy=0.5, direction=(1.0, 2.0, 2.0)).particles[0, 0]
    p = np.sqrt(sum(float(particle.momentum[key]) ** 2 for key in ("px", "py", "pz")))
    assert particle.energy == pytest.approx(0.5, rel=1e-5)
    assert particle.energy**2 == pytest.approx(p**2 + particle.mass**2, rel=1e-5)
    assert particle.momentum.py == pytest.approx(2 / 3 * p, rel=1e-5)


def test_an_energy_below_the_mass_is_raised_to_a_particle_nearly_at_rest(tokeniser):
    particle = one(tokeniser, code=321, energy=0.2, direction=(0.0, 3.0, 0.0)).particles[0, 0]
    assert particle.mass == pytest.approx(0.49368, rel=1e-4)
    assert particle.energy == pytest.approx(0.49368, rel=1e-4)
    assert particle.momentum.py == pytest.approx(0.49368e-3, rel=1e-3)


def test_a_null_direction_is_upward(tokeniser):
    particle = one(tokeniser, code=22, charge=0, direction=(0.0, 0.0, 0.0)).particles[0, 0]
    assert particle.momentum.pz == pytest.approx(10.0, rel=1e-5)


def test_padding_is_never_a_particle(tokeniser):
    result = tokeniser.decode(
        charge=[[1, 1, 1], [1, 1, 1]],
        pdg=[[0, 0, 0], [0, 0, 0]],
        energy=np.zeros((2, 3)),
        direction=np.ones((2, 3, 3)),
        mask=[[True, False, True], [False, False, False]],
        score=[[0.9, 0.1, 0.8], [0.0, 0.0, 0.0]],
    )
    assert [len(p) for p in result.particles] == [2, 0]
    assert result.particles.score.to_list()[0] == pytest.approx([0.9, 0.8])


def test_event_numbers_and_flags_are_kept(tokeniser):
    result = one(tokeniser, code=22, charge=0, event=[41], flags=[2], name="other")
    assert (result.event.tolist(), result.flags.tolist(), result.name) == ([41], [2], "other")


def test_without_them_events_are_counted_and_unflagged(tokeniser):
    result = one(tokeniser, code=22, charge=0)
    assert (result.event.tolist(), result.flags.tolist()) == ([0], [0])
    assert np.isnan(result.particles.score[0, 0])
