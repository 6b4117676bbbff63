from __future__ import annotations

import math

import torch

from pflow.model.common.decode import GeneratedParticles
from pflow.model.pointing.generate import generate_pointing
from pflow.model.pointing.residual_energy import give_leftovers


def written(shares: list[list[float]], charge: list[int]) -> GeneratedParticles:
    """One event of particles of energy 1 GeV."""
    share = torch.tensor([shares])
    zeros = torch.zeros(1, len(charge))
    return GeneratedParticles(
        charge=torch.tensor([charge]),
        pdg=torch.zeros(1, len(charge), dtype=torch.int64),
        energy=zeros,
        direction=torch.zeros(1, len(charge), 3),
        score=zeros,
        mask=torch.ones(1, len(charge), dtype=torch.bool),
        truncated=torch.zeros(1, dtype=torch.bool),
        hit_fraction=share,
    )


def test_neutral_particles_get_what_is_left_in_proportion():
    """Of a hit of 2 GeV the charged one has a quarter and the neutral ones 0.3 and 0.2: 0.25 is left, half as much."""
    before = written([[0.25, 1.0, 0.0], [0.3, 0.0, 0.0], [0.2, 0.0, 0.5]], [2, 1, 1])
    found = give_leftovers(before, torch.tensor([[2.0, 1.0, 4.0]]), log10_energy_std=0.5)
    expected = torch.tensor([[[0.25, 1.0, 0.0], [0.45, 0.0, 0.0], [0.3, 0.0, 1.0]]])
    torch.testing.assert_close(found.hit_fraction, expected)
    growth = [1.0, 0.9 / 0.6, (0.6 + 4.0) / (0.4 + 2.0)]
    torch.testing.assert_close(found.energy, torch.tensor([[math.log10(one) / 0.5 for one in growth]]))
    assert torch.equal(found.direction, before.direction)


def test_what_no_neutral_particle_claims_stays():
    before = written([[0.5, 0.0], [0.01, 0.0]], [0, 1])
    found = give_leftovers(before, torch.tensor([[1.0, 1.0]]), log10_energy_std=1.0)
    assert torch.equal(found.hit_fraction, before.hit_fraction)
    assert torch.equal(found.energy, before.energy)


def test_padding_gets_nothing():
    before = written([[0.5], [0.0]], [1, 1])
    before.mask[0, 1] = False
    found = give_leftovers(before, torch.tensor([[1.0]]), log10_energy_std=1.0)
    assert found.hit_fraction[0, :, 0].tolist() == [1.0, 0.0]
    assert found.energy[0, 1] == 0.0


def test_an_event_without_particles_stays():
    nothing = written([], [])
    assert give_leftovers(nothing, torch.tensor([[1.0]]), log10_energy_std=1.0) is nothing


def test_generation_gives_leftovers_where_the_network_says_so(make_network, batch):
    def generated(leftovers: bool) -> GeneratedParticles:
        network = make_network(leftovers=leftovers, charged=[False] * 4)
        return generate_pointing(network, batch, max_particles=6)

    plain, given = generated(False), generated(True)
    expected = give_leftovers(plain, batch.readout.energy * batch.readout.mask, log10_energy_std=0.5)
    torch.testing.assert_close(given.hit_fraction, expected.hit_fraction)
    torch.testing.assert_close(given.energy, expected.energy)
    assert (given.hit_fraction > plain.hit_fraction).any()


def test_an_event_ends_where_the_network_says(make_network, batch):
    """The higher the probability from which it ends, the more is written."""
    counts = [
        int(generate_pointing(make_network(end=end), batch, max_particles=8).mask.sum()) for end in (1e-6, 0.5, 1.0)
    ]
    assert counts[0] == 0
    assert counts[0] < counts[1] < counts[2]
