"""What a particle copies from cells and tracks, and its losses, by hand."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import normalize

from pflow.model.translation.network import DIRECTION_UNIT, MIN_UNASSIGNED, Items, before, copy_losses, true_fractions

MEAN, STD = 0.8, 0.5  # of log10 E in `make_model`


@pytest.fixture
def batch(make_batch):
    return make_batch([3, 5], [2, 1])


@pytest.fixture
def copy(make_model):
    """Untrained, without corrections, of a network that reads tracks."""
    return make_model(source="typed", direction="copied").network.copy


def items_at(copy, energy, position, n_cells):
    """Items of one event, whose states are random: cells of these energies [GeV] and positions [mm], then tracks."""
    energy, position = torch.tensor([energy]), torch.tensor([position])
    states = torch.randn(1, energy.shape[1], 16, generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(energy, dtype=torch.bool)
    return Items(n_cells, mask, energy, position, position, states, copy.key(states[:, :n_cells]), copy.of_item(states))


def measure(copy, items, fraction):
    x, fraction = torch.zeros(1, 1, 16), torch.tensor([[fraction]])
    with torch.no_grad():
        energy, direction = copy._measure(x, items, fraction, items.position[:, :1])
    return 10 ** (MEAN + STD * energy.item()), direction[0, 0]


def test_energy_and_direction_are_of_the_cells_and_tracks_assigned(copy):
    """Cells of 3 and 1 GeV, 20 mrad apart: log-weights 4 + ln 0.75 and 4 + ln 0.25; the mean counts 1 / (1 + e^3).
    Tracks of 2 and 6 GeV, 40 mrad apart, beside a cell elsewhere: the direction of the sum is 30 mrad.
    """
    items = items_at(copy, [3.0, 1.0, 5.0], [[2000.0, 0, 0], [2000.0, 40.0, 0], [0, 2000.0, 0]], 3)
    energy, direction = measure(copy, items, [1.0, 1.0, 0.0])
    assert energy == pytest.approx(4.0, rel=1e-5)
    weights = [4 + math.log(0.75), 4 + math.log(0.25)]
    log_weighted, mean = 0.02 * weights[1] / sum(weights), 0.02 * 0.25
    expected = log_weighted + (mean - log_weighted) / (1 + math.e**3)
    assert math.atan2(direction[1], direction[0]) == pytest.approx(expected, rel=1e-3)
    position = [[2000.0, 0, 0], [2000.0, 0, 0], [2000.0 * math.cos(0.04), 2000.0 * math.sin(0.04), 0]]
    items = items_at(copy, [8.0, 2.0, 6.0], position, 1)
    copy.first_weights.copy_(torch.tensor([0.0, 0.0, 30.0]))
    for fraction, expected in (([1.0, 1.0, 1.0], 0.03), ([1.0, 0.0, 0.0], 0.0)):
        energy, direction = measure(copy, items, fraction)
        assert energy == pytest.approx(8.0, rel=1e-5)
        assert math.atan2(direction[1], direction[0]) == pytest.approx(expected, abs=1e-4)
    items = items_at(copy, [3.0, 1.0], [[0, 0, 2000.0], [0, 2000.0, 0]], 2)
    _, direction = measure(copy, items, [0.0, 0.0])
    torch.testing.assert_close(direction, torch.tensor([0.0, 0.0, 1.0]))


def test_what_earlier_particles_have_is_not_chosen_again(copy):
    """Two cells: once the first is assigned, the odds against it rise by 1 / `MIN_UNASSIGNED`."""
    items = items_at(copy, [1.0, 1.0], [[2000.0, 0, 0], [0, 2000.0, 0]], 2)
    x = torch.ones(1, 1, 16)
    with torch.no_grad():
        free, taken = (copy(x, items, torch.tensor([[[part, 0.0]]])) for part in (0.0, 1.0))
    odds = [float(copied.pointer[0, 0, 1] - copied.pointer[0, 0, 0]) for copied in (free, taken)]
    assert odds[1] - odds[0] == pytest.approx(-math.log(MIN_UNASSIGNED), rel=1e-5)
    assert taken.fraction[0, 0, 0] == 0


def test_fractions_of_cells_are_of_their_energy(batch, copy):
    """The first event's first cell is its first two hits."""
    memory = torch.zeros(2, 2 + 5 + 1, 16)
    items = copy.items(memory, batch)
    true = true_fractions(batch, items)
    energy, fraction = batch.readout.energy[0, :2], batch.target.hit_fraction[0, :, :2]
    torch.testing.assert_close(items.energy[0, 0], energy.sum())
    torch.testing.assert_close(true[0, :2, 0], (fraction * energy).sum(1) / energy.sum())
    torch.testing.assert_close(true[:, :2, -1], batch.target.track_fraction[..., 0])
    assert not true[:, -1].any()  # the end
    torch.testing.assert_close(before(true)[0, 2], true[0, :2].sum(0))
    assert not before(true)[:, 0].any()


def prediction(pointer, assignment, true, assigned, direction):
    """Of one particle and the end, in an event of two cells of 1 and 4 GeV."""

    def steps(values):
        return torch.tensor([[values, [0.0] * len(values)]])

    return {
        **{"pointer": steps(pointer), "assignment": steps(assignment), "true": steps(true)},
        **{"assigned": steps(assigned), "direction": steps(direction), "item_energy": torch.tensor([[1.0, 4.0]])},
        "energy": torch.tensor([[0.5, 0.0]]),
    }


def test_losses_by_hand(batch):
    """All of the first cell and half of the second are the particle's: shares of 1/3 and 2/3 of its energy."""
    off = 0.3 * DIRECTION_UNIT
    made = prediction([math.log(0.2), math.log(0.8)], [0.0, 0.0], [1.0, 0.5], [0.0, 0.5], [1.0, off, 0.0])
    target = dataclasses.replace(
        batch.target._with(lambda values: values[:1, :1]),
        energy=torch.tensor([[0.1]]),
        direction=torch.tensor([[[1.0, 0, 0]]]),
    )
    losses = {name: value.item() for name, value in copy_losses(made, target).items()}
    assert losses["pointer"] == pytest.approx(-(math.log(0.2) + 2 * math.log(0.8)) / 3)
    # Half of the second is unassigned, and all of that is the particle's; a logit of 0 costs ln 2.
    assert losses["assignment"] == pytest.approx(math.log(2) / 1.05, rel=1e-5)
    assert losses["energy"] == pytest.approx(0.16)
    assert losses["direction"] == pytest.approx(0.5 * 0.3**2, rel=1e-4)


def test_a_particle_without_cells_has_no_loss(batch):
    made = prediction([-1.0, -1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0, 0.0])
    assert not any(copy_losses(made, batch.target._with(lambda values: values[:1, :1])).values())


def test_what_a_batch_lacks_is_named(batch, make_model):
    model = make_model(direction="copied")
    assert model.needs_readout
    assert not make_model().needs_readout
    with pytest.raises(ValueError, match="readout: "):
        model.training_step(dataclasses.replace(batch, readout=None))
    with pytest.raises(ValueError, match=r"target: .*fractions of hits"):
        model.training_step(dataclasses.replace(batch, target=dataclasses.replace(batch.target, hit_fraction=None)))


def test_an_event_without_hits_has_unit_directions(make_batch, make_model):
    batch = make_batch([0])
    model = make_model(direction="copied")
    with torch.no_grad():
        model.network.heads.classifiers["charge"][-1].bias[2] = -1e4
    decoded = model.generate(batch, decoding=dataclasses.replace(model.decoding, max_particles=2))
    torch.testing.assert_close(decoded.direction, normalize(torch.tensor([[[0.0, 0, 1], [0.0, 0, 1]]]), dim=-1))
