import math

import pytest
import torch

from pflow.data.batch import Target
from pflow.model.api import LossConfig
from pflow.model.pointing.assignment import PairList
from pflow.model.pointing.head import DIRECTION_LOG_SIGMA, EnergyScale, Particles
from pflow.model.pointing.reconstructor import PointingLoss
from pflow.model.pointing.training import TeacherForcing

LN10 = math.log(10.0)


def one_particle(
    *,
    pointer=((0.5, 0.3, 0.2), (0.1, 0.1, 0.8)),
    seed_weight=(1.0, 0.5),
    logit=0.0,
    wanted=1.0,
    log_energy=LN10 * 0.8,
    direction=(1.0, 0.0, 0.0),
    log_widths=(0.0, 0.0),
) -> TeacherForcing:
    """An event of one photon of mean energy along x, and two tokens."""
    return TeacherForcing(
        target=Target(
            charge=torch.tensor([[1]]),
            pdg=torch.tensor([[0]]),
            energy=torch.tensor([[0.0]]),
            direction=torch.tensor([[[1.0, 0.0, 0.0]]]),
            mask=torch.tensor([[True]]),
        ),
        starts=torch.zeros(1, 0),
        is_track=torch.zeros(1, 0, dtype=torch.bool),
        pointer=torch.tensor([pointer]).log(),
        seed_weight=torch.tensor([[seed_weight]]),
        logits=torch.tensor([logit]),
        target_fraction=torch.tensor([wanted]),
        weight=torch.tensor([2.0]),
        pairs=PairList.where(torch.ones(1, 1, 1, dtype=torch.bool)),
        particles=Particles(
            pdg=torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]),
            identity=torch.tensor([[0]]),
            charge=torch.tensor([[[0.0, 2.0, 0.0]]]),
            log_energy=torch.tensor([[log_energy]]),
            direction=torch.tensor([[direction]]),
            energy_log_sigma=torch.tensor([[log_widths[0]]]),
            direction_log_sigma=torch.tensor([[log_widths[1]]]),
            by_track=torch.tensor([[False]]),
            track_charge=torch.zeros(1, 1),
            deposit=torch.zeros(1, 1),
            pooled=torch.zeros(1, 1, 2),
        ),
    )


def make_loss(**weights) -> PointingLoss:
    return PointingLoss(LossConfig(weights=weights), EnergyScale(0.8, 0.5))


@pytest.fixture
def losses():
    return lambda **values: {k: v.item() for k, v in make_loss()(one_particle(**values)).items()}


def test_the_pointer_costs_a_good_seed_and_the_end_behind_the_last_particle_and_classes_their_entropy(losses):
    by_name = losses()
    assert by_name["pdg"] == pytest.approx(math.log(3.0 + math.e) - 1.0)
    assert by_name["charge"] == pytest.approx(math.log(2.0 + math.e**2) - 2.0)
    assert by_name["pointer"] == pytest.approx(-math.log(0.5 + 0.5 * 0.3))
    assert by_name["eos"] == pytest.approx(-math.log(0.8))
    assert losses(seed_weight=(0.0, 0.0))["pointer"] == 0.0


@pytest.mark.parametrize(
    ("off", "width", "expected"),
    [
        (0.1, 0.2, 0.5 * 0.5**2),
        (-0.1, 0.2, 0.5 * 0.5**2),
        (0.5, 0.1, 9.0 * (0.5 + math.log(5.0 / 3.0))),
        (0.0, 0.1, 0.0),
    ],
)
def test_the_loss_of_the_energy_is_a_likelihood_with_logarithmic_tails(losses, off, width, expected):
    loss = losses(log_energy=LN10 * 0.8 + off, log_widths=(math.log(width), 0.0))["energy"]
    assert loss == pytest.approx(expected + math.log(width), abs=1e-4)


def test_the_loss_of_the_direction_counts_two_angles_and_one_photon_of_fifty_does_not_decide_it(losses):
    """With the smallest sigma that the head predicts, and opposite to the truth."""
    direction = (math.cos(0.02), 0.012 / 0.02 * math.sin(0.02), 0.016 / 0.02 * math.sin(0.02))
    loss = losses(direction=direction, log_widths=(0.0, math.log(0.01)))["direction"]
    assert loss == pytest.approx(0.5 * 2.0**2 + 2.0 * math.log(0.01), rel=1e-3)
    sigma = {"log_widths": (0.0, DIRECTION_LOG_SIGMA[0])}
    right, wrong = (losses(direction=(x, 0.0, 0.0), **sigma)["direction"] for x in (1.0, -1.0))
    assert right == pytest.approx(-19.0, abs=1e-3)
    assert (wrong - right) / 50 < 2.0


def test_the_loss_of_the_incidence_is_relative_to_what_is_wanted(losses):
    cost = -(0.7 * math.log(0.6) + 0.3 * math.log(0.4))
    loss = losses(logit=math.log(0.6 / 0.4), wanted=0.7)["assignment"]
    assert loss == pytest.approx(2.0 * cost / (2.0 * 0.75))


def test_the_total_is_the_weighted_sum():
    output = one_particle(log_energy=3.0, logit=1.0)
    plain, weighted = make_loss()(output), make_loss(energy=0.5, charge=0.0)(output)
    names = ("pointer", "eos", "assignment", "pdg", "charge", "energy", "direction")
    torch.testing.assert_close(plain["total"], sum(plain[name] for name in names))
    torch.testing.assert_close(weighted["total"], plain["total"] - 0.5 * plain["energy"] - plain["charge"])


@torch.no_grad()
def test_losses_are_means_over_particles_of_the_whole_batch(model, events, collate):
    """Two events of four and one particles: the mean over five, not over two events; padding costs nothing."""
    both, longer, four, single = (
        model.losses(collate([events[i] for i in chosen], extra=extra))
        for chosen, extra in (((1, 2), 0), ((1, 2), 3), ((2,), 0), ((1,), 0))
    )
    torch.testing.assert_close(both["pdg"], (4 * four["pdg"] + single["pdg"]) / 5, rtol=1e-3, atol=1e-4)
    for name, value in both.items():
        torch.testing.assert_close(value, longer[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.fixture(params=[[()], [(), (0,)], None], ids=["nothing", "nothing besides a particle", "no token"])
def poor(request, make_event, collate, by_hand):
    if request.param is None:
        return by_hand(particles=[(0, 1, 2.0)])
    return collate([make_event(kinds, seed=1) for kinds in request.param])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", [{}, *({"refine_layers": 1, "eos_threshold": end} for end in (1e-9, 1.0))])
def test_without_tokens_or_particles_losses_are_finite(make_model, poor, training, options):
    model = make_model(**options).train(training)
    model.own_particles = True
    losses = model.losses(poor)
    losses["total"].backward()
    assert all(value.isfinite() for value in losses.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_tokens_without_particles_teach_the_end(model, by_hand):
    losses = model.losses(by_hand(energy=[1.0], position=[[2000, 0, 0]]))
    assert losses["total"] == losses["eos"] > 0
    assert torch.autograd.grad(losses["total"], model.network.decoder.pointer.eos[-1].bias)[0] != 0
