import dataclasses
import math

import pytest
import torch

from pflow.model.pointing.generate import decode_first_stage
from pflow.model.pointing.generate import refine as refined_particles
from pflow.model.pointing.geometry import cosines, gather
from pflow.model.pointing.network import EPS_FRACTION, FAR_WEIGHT_WIDTH, MIN_COSINE, DecodedParticles, _min_probability
from pflow.model.pointing.showers import PairwiseMessages


@pytest.fixture
def model(make_model):
    return make_model(refine_layers=1)


def first_stage(model, batch, n=3):
    decoding = dataclasses.replace(model.decoding.limited(n), eos_threshold=1.0)
    with torch.no_grad():
        source = model.network.encode(batch)
        columns, mask, _ = decode_first_stage(model.network, source.change(torch.clone), decoding)
    assert mask.all()
    return DecodedParticles.of(columns, mask), source


def refine(model, decoded, source, **options):
    with torch.no_grad():
        return model.network.refiner(decoded, source, **options)


def dense(refined):
    return refined.pairs.dense(refined.log_fraction.exp())


def test_initially_fractions_are_those_of_the_first_stage(make_model, batch):
    model = make_model(refine_layers=1, initial=True)
    decoded, source = first_stage(model, batch)
    refined = refine(model, decoded, source)
    torch.testing.assert_close(refined.query, decoded.query)
    torch.testing.assert_close(refined.existence_logit, torch.full((4, 3), 3.0))
    pairs, fraction = refined.pairs, decoded.hit_fraction
    e, i = int(pairs.event[0]), int(pairs.item[0])
    mine = pairs.item == i
    i = i - e * fraction.shape[2]
    strength = (fraction[e, pairs.particle[mine] % 3, i] + EPS_FRACTION) / (1.0 + math.exp(-3.0))
    rest = 1.0 - fraction[e, :, i].sum() + EPS_FRACTION
    expected = strength / (strength.sum() + rest)
    torch.testing.assert_close(refined.log_fraction[mine].exp(), expected)
    torch.testing.assert_close(refined.log_unassigned[e, i].exp(), rest / (strength.sum() + rest))


def test_fractions_of_an_item_sum_to_one(model, batch):
    decoded, source = first_stage(model, batch)
    refined = refine(model, decoded, source)
    total = dense(refined).sum(1) + refined.log_unassigned.exp()
    torch.testing.assert_close(total, torch.ones_like(total))


def test_all_particles_are_refined_together_in_no_order(model, batch):
    decoded, source = first_stage(model, batch)
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
    far = source.items.mask[:, None] & (towards < MIN_COSINE)
    fractions = []
    for fraction in (EPS_FRACTION - 1e-6, EPS_FRACTION + 1e-6, EPS_FRACTION + FAR_WEIGHT_WIDTH):
        decoded.hit_fraction[far] = fraction
        fractions.append(dense(refine(model, decoded, source))[far])
    assert far.sum() > 10
    assert (fractions[1] - fractions[0]).abs().max() < 1e-3
    assert fractions[2].max() > 1e-2


def test_improbable_particles_get_nothing(model, batch):
    decoded, source = first_stage(model, batch)
    free = refine(model, decoded, source)
    threshold = float(free.existence_logit.sigmoid().median())
    refined = refine(model, decoded, source, existence_threshold=threshold)
    gone = ~refined.kept
    assert free.kept.all()
    assert gone[free.existence_logit.sigmoid() < threshold].all()
    assert 0 < gone.sum() < gone.numel()
    before, after = dense(free), dense(refined)
    assert before[gone].sum() > 1e-3
    assert after[gone].sum() == 0.0
    assert (after[~gone] >= before[~gone] - 1e-6).all()


@pytest.mark.parametrize(
    ("probabilities", "keep", "smallest"),
    [
        ([0.9, 0.4], 0.1, 0.5 / 1.3),
        ([0.3, 0.1], 0.1, 0.5),
        ([0.9, 0.9, 0.9, 0.3], 0.1, 0.5 / 3.0),
        ([0.9] * 10, 0.1, 0.1),
        ([0.9, 0.4], 0.0, 0.0),
    ],
)
def test_where_few_particles_are_expected_each_must_be_more_probable(probabilities, keep, smallest):
    probability = torch.tensor([[*probabilities, 0.99]])
    mask = torch.tensor([[True] * len(probabilities) + [False]])
    assert float(_min_probability(probability, mask, keep)) == pytest.approx(smallest, rel=1e-5)


def test_initially_there_are_no_messages(model, batch):
    messages = model.network.refiner.messages
    messages.out.set_initial_values()
    silent = model.decode(batch, max_particles=6)
    with torch.no_grad():
        messages.receiver.weight.normal_()
        torch.testing.assert_close(model.decode(batch, max_particles=6).energy, silent.energy)
        messages.out.weight.normal_()
    changed = model.decode(batch, max_particles=6)
    assert changed.energy.shape != silent.energy.shape or (changed.energy - silent.energy).abs().max() > 1e-3


def test_energy_and_existence_are_two_outputs(make_model, batch):
    model = make_model(seed=2, refine_layers=1, existence_threshold=0.0, min_energy=0.5)
    decoded, source = first_stage(model, batch, n=6)
    with torch.no_grad():
        columns, refined = refined_particles(model.network, decoded, source, model.decoding)
        predicted = model.network.predict_refined(refined, decoded.seed, source).log_energy
    torch.testing.assert_close(columns["log_energy"], predicted)
    assert torch.equal(columns["is_particle"], refined.kept & (predicted >= model.network.min_log_energy))
    by_track = columns["by_track"]
    assert (columns["existence"][by_track] == 1.0).all()
    probability = refined.existence_logit.sigmoid()[~by_track]
    torch.testing.assert_close(columns["existence"][~by_track], probability.float())
    assert (probability < 1.0).any()


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
    parts = x, torch.tensor([[2.0, 1.0, 1.0, 3.0]]), direction, mask, torch.zeros(1, 4, 0)
    sums = source_of(by_hand()).tables().items.sums

    def message(*who):
        return messages(*(part[:, list(who)] for part in parts), sums)[0, 0]

    beside, across, alone, far = message(0, 1), message(0, 2), message(0), message(0, 3)
    assert (beside - across).abs().max() > 0.05
    torch.testing.assert_close(alone, messages.out.bias)
    assert (far - alone).abs().max() < 0.1 * (beside - alone).abs().max()
