import dataclasses
import math

import pytest
import torch

from pflow.model.pointing import generate
from pflow.model.pointing.generate import decode_first_stage
from pflow.model.pointing.geometry import cosines, gather
from pflow.model.pointing.network import (
    EPS_FRACTION,
    FAR_WEIGHT_WIDTH,
    REFINED_CONE,
    DecodedParticles,
    PairwiseMessages,
    share_energy,
)


@pytest.fixture
def model(make_model):
    return make_model(refine_layers=1)


def first_stage(model, batch, n=3):
    decoding = dataclasses.replace(model.decoding.limited(n), eos_threshold=1.0)
    with torch.no_grad():
        source = model.network.encode(batch)
        columns, mask, _ = decode_first_stage(model.network, source, decoding)
    assert mask.all()
    return DecodedParticles.of(columns, mask), source


def refine(model, decoded, source):
    with torch.no_grad():
        return model.network.refiner(decoded, source, source.tables())


def dense(refined, listed=None):
    """Fractions [B, T, M] of the `listed` particles, by default all."""
    log_fraction, _ = refined.assign(torch.ones_like(refined.existence_logit) > 0 if listed is None else listed)
    return refined.pairs.dense(log_fraction.exp())


def test_initially_fractions_are_those_of_the_first_stage(make_model, batch):
    model = make_model(refine_layers=1, initial=True)
    decoded, source = first_stage(model, batch)
    refined = refine(model, decoded, source)
    torch.testing.assert_close(refined.query, decoded.query)
    torch.testing.assert_close(refined.existence_logit, torch.full((4, 3), 3.0))
    assert not model.network.refiner.messages(decoded, source.tables().items.sums, torch.float64).any()
    pairs, fraction = refined.pairs, decoded.hit_fraction
    e, i = int(pairs.event[0]), int(pairs.item[0])
    mine = pairs.item == i
    i = i - e * fraction.shape[2]
    strength = (fraction[e, pairs.particle[mine] % 3, i] + EPS_FRACTION) / (1.0 + math.exp(-3.0))
    rest = 1.0 - fraction[e, :, i].sum() + EPS_FRACTION
    expected = strength / (strength.sum() + rest)
    log_fraction, log_unassigned = refined.assign(decoded.mask)
    torch.testing.assert_close(log_fraction[mine].exp(), expected)
    torch.testing.assert_close(log_unassigned[e, i].exp(), rest / (strength.sum() + rest))


def test_particles_are_refined_in_no_order_and_fractions_sum_to_one(model, batch):
    decoded, source = first_stage(model, batch)
    refined = refine(model, decoded, source)
    for listed in (decoded.mask, torch.rand(decoded.mask.shape) < 0.5):
        total = dense(refined, listed).sum(1) + refined.assign(listed)[1].exp()
        torch.testing.assert_close(total, torch.ones_like(total))
    order = torch.tensor([2, 0, 1])
    mixed = refine(model, DecodedParticles(*(part[:, order] for part in decoded)), source)
    ordered = refine(model, decoded, source)
    torch.testing.assert_close(ordered.existence_logit[:, order], mixed.existence_logit)
    torch.testing.assert_close(dense(ordered)[:, order], dense(mixed))
    changed = decoded.embedded.clone()
    changed[:, 2] = changed[:, 2].flip(-1)
    third = refine(model, decoded._replace(embedded=changed), source)
    assert (third.existence_logit[:, 0] - ordered.existence_logit[:, 0]).abs().min() > 1e-5


def test_fractions_of_far_items_rise_slowly(model, batch):
    """Of the fraction from which an item is in a pair, rounding must not decide."""
    decoded, source = first_stage(model, batch)
    towards = cosines(gather(source.tokens.unit, decoded.seed), source.items.direction)
    far = source.items.mask[:, None] & (towards < math.cos(REFINED_CONE))
    fractions = []
    for fraction in (EPS_FRACTION - 1e-6, EPS_FRACTION + 1e-6, EPS_FRACTION + FAR_WEIGHT_WIDTH):
        decoded.hit_fraction[far] = fraction
        fractions.append(dense(refine(model, decoded, source))[far])
    assert far.sum() > 10
    assert (fractions[1] - fractions[0]).abs().max() < 1e-3
    assert fractions[2].max() > 1e-2


def test_what_is_not_listed_gives_its_items_to_the_others(model, batch):
    decoded, source = first_stage(model, batch)
    free = refine(model, decoded, source)
    threshold = float(free.existence_logit.sigmoid().median())
    with torch.no_grad():
        refined = model.network.refine(decoded, source, existence_threshold=threshold)
    listed = refined.listed
    assert not listed[free.existence_logit.sigmoid() < threshold].any()
    assert 0 < listed.sum() < listed.numel()
    before, after = dense(free), free.pairs.dense(refined.listed_log_fraction.exp())
    assert before[~listed].sum() > 1e-3
    assert after[~listed].sum() == 0.0
    assert (after[listed] >= before[listed] - 1e-6).all()
    model.network.min_log_energy = math.log(1e9)  # more than any particle has
    with torch.no_grad():
        assert not model.network.refine(decoded, source, existence_threshold=threshold).listed.any()


@pytest.fixture
def three_particles(model, batch):
    """Two photons 10 mrad apart, a neutral hadron beside them, and a charged one: energies 4, 4, 8 and 5 GeV."""
    decoded, source = first_stage(model, batch, n=4)
    with torch.no_grad():
        particles = model.network.refine(decoded, source, existence_threshold=0.5).particles
    theta = torch.tensor([1.0, 1.01, 1.2, 1.1], dtype=torch.float64)
    return particles._replace(
        log_energy=torch.tensor([[4.0, 4.0, 8.0, 5.0]]).double().log(),
        direction=torch.stack([theta.sin(), torch.zeros(4).double(), theta.cos()], dim=-1)[None],
        energy_log_sigma=torch.tensor([[0.1, 0.1, 0.4, 0.001]]).double().log(),
        by_track=torch.tensor([[False, False, False, True]]),
    )


def shared(particles, listed, existence, if_it_exists):
    expected = torch.tensor([existence]).double() * torch.tensor([if_it_exists]).double()
    args = torch.tensor([listed]), expected, torch.tensor([existence]).double()
    return share_energy(type(particles)(*(part[:1] for part in particles)), *args)[0].exp()


def test_the_list_sums_to_the_energy_expected_by_what_is_measured_worst(three_particles):
    """The variance of the hadron is 64 times a photon's; 0.2 rad away it has exp(-4/3) of that weight. Of two photons
    alike, beside the variance of the energy, 1%, a quarter of the energy squared.
    """
    some = shared(three_particles, [True, False, True, True], [0.9, 0.4, 0.95, 1.0], [4.0, 2.0, 8.0, 5.0])
    expected = 0.9 * 4.0 + 0.4 * 2.0 + 0.95 * 8.0 + 5.0
    assert float(some[[0, 2, 3]].sum()) == pytest.approx(expected, rel=0.01)
    assert float(some[3]) == pytest.approx(5.0)  # a track is measured better than any sum
    certain = shared(three_particles, [True] * 4, [1.0] * 4, [4.0, 4.0, 8.0, 5.0])
    torch.testing.assert_close(certain, torch.tensor([4.0, 4.0, 8.0, 5.0]).double())
    energy = shared(three_particles, [True] * 4, [1.0, 1.0, 1.0, 1.0], [5.0, 4.0, 8.0, 5.0])
    weight = 64.0 * math.exp(-0.2 / 0.15) / (64.0 * math.exp(-0.2 / 0.15) + 1.0 + math.exp(-0.01 / 0.15))
    assert float(energy[2]) == pytest.approx(8.0 + weight, rel=1e-3)
    less = shared(three_particles, [True] * 4, [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.5, 5.0])
    assert (less > 0).all()
    energy = shared(three_particles, [True, True, False, False], [1.0, 0.5, 0.0, 0.0], [6.0, 8.0, 1.0, 1.0])
    weight = 0.26 * math.exp(-0.01 / 0.15) / (0.26 * math.exp(-0.01 / 0.15) + 0.01)
    assert energy[:2].tolist() == pytest.approx([6.0 - 2.0 * weight, 4.0 + 2.0 * weight], rel=1e-4)


def test_candidates_are_behind_the_list_and_change_nothing_of_it(make_model, batch):
    model = make_model(seed=2, refine_layers=1, min_energy=0.5)
    decoded, source = first_stage(model, batch, n=6)
    threshold = float(refine(model, decoded, source).existence_logit.sigmoid().median())
    model.set_decoding(max_particles=6, eos_threshold=1.0, existence_threshold=threshold)
    alone = model.decode(batch)
    assert alone.listed is None
    model.set_decoding(candidate_threshold=0.0)
    both = model.decode(batch)
    assert (both.listed <= both.mask).all()
    assert (both.mask & ~both.listed).any()
    assert (both.listed.long().diff(dim=1) <= 0).all()  # first the list
    n = both.listed.sum(1)
    for event, count in enumerate(n.tolist()):
        assert count == int(alone.mask[event].sum())
        torch.testing.assert_close(both.energy[event, :count], alone.energy[event, :count])
        assert (both.hit_fraction[event, count:] == 0).all()
    existence = both.existence[both.mask & ~both.listed]
    assert (existence < threshold).all()
    with torch.no_grad():
        refined = model.network.refine(decoded, source, existence_threshold=threshold)
        model.network.refine = lambda *_, **__: refined._replace(listed=refined.listed & False)  # for its low energy
        columns, _ = generate.refine(model.network, decoded, source, model.decoding)
        del model.network.refine
    assert (columns["existence"][columns["is_particle"]] < threshold).all()
    assert (existence[both.by_track[both.mask & ~both.listed]] < threshold).all()
    assert (both.existence[both.listed & both.by_track] == 1.0).all()
    energy = 10 ** (model.inputs.energy_mean + model.inputs.energy_std * both.energy)
    smallest = float(energy[both.mask & ~both.listed].median())
    model.network.min_log_energy = math.log(smallest)  # no candidate has less than any target
    model.set_decoding(max_empty_steps=100)
    larger = model.decode(batch)
    energy = 10 ** (model.inputs.energy_mean + model.inputs.energy_std * larger.energy)[larger.mask & ~larger.listed]
    assert len(energy) > 0
    assert energy.min() >= smallest * (1 - 1e-5)


def test_a_network_without_a_refinement_has_no_candidates(make_model, batch):
    model = make_model(candidate_threshold=0.1)
    with pytest.raises(ValueError, match="without a refinement"):
        model.decode(batch)


@pytest.mark.parametrize("stops", [{"eos_threshold": 1e-9}, {"existence_threshold": 0.999}])
def test_the_existence_is_of_the_same_particles(make_model, batch, stops):
    model = make_model(refine_layers=1, existence_threshold=0.0)
    decoded = model.decode(batch)
    assert decoded.existence[decoded.mask].min() > 0.0
    assert (decoded.existence[~decoded.mask] == 0.0).all()
    model.set_decoding(**stops)
    nothing = model.decode(batch)
    assert nothing.existence.shape == nothing.mask.shape == (len(batch), 0)


def test_messages_depend_on_the_relative_position(by_hand, source_of):
    """Of two particles 2 mrad apart in polar angle, one 2 mrad away in azimuth and one far off, without hits."""
    torch.manual_seed(3)
    messages = PairwiseMessages(width=8)
    theta = torch.tensor([1.0, 1.002, 1.0, 2.0])
    phi = torch.tensor([0.3, 0.3, 0.3 + 0.002 / math.sin(1.0), 2.5])
    direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)[None]
    x, mask = torch.randn(1, 4, 8), torch.ones(1, 4, dtype=torch.bool)
    x[:, 2] = x[:, 1]  # the same but for where they are
    parts = x, x, mask.long(), torch.tensor([[2.0, 1.0, 1.0, 3.0]]), direction, torch.zeros(1, 4, 0), mask
    sums = source_of(by_hand()).tables().items.sums

    def message(*who):
        return messages(DecodedParticles(*(part[:, list(who)] for part in parts)), sums, torch.float64)[0, 0]

    beside, across, alone, far = message(0, 1), message(0, 2), message(0), message(0, 3)
    assert (beside - across).abs().max() > 0.05
    torch.testing.assert_close(alone, messages.out.bias)
    assert (far - alone).abs().max() < 0.1 * (beside - alone).abs().max()
