import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch

from pflow.model.pointing.generate import decode_first_stage
from pflow.model.pointing.generate import refine as refined_particles
from pflow.model.pointing.network import (
    EPS_FRACTION,
    FAR_WEIGHT_WIDTH,
    MIN_COSINE,
    DecodedParticles,
    PairwiseMessages,
    _min_probability,
)


def awake(model):
    """As after training: initially the refinement repeats the first stage."""
    torch.manual_seed(7)
    refiner = model.network.refiner
    with torch.no_grad():
        for part in (refiner.query_update, refiner.pair_logits.out, refiner.existence):
            part[-1].weight.add_(0.5 * torch.randn_like(part[-1].weight))
        refiner.unassigned.weight.add_(0.3 * torch.randn_like(refiner.unassigned.weight))
        refiner.existence[-1].bias.fill_(0.5)
    return model


@pytest.fixture
def model(make_model):
    return awake(make_model(refine_layers=1))


def first_stage(model, batch, n=3):
    """The first n particles of each event, and their source."""
    decoding = dataclasses.replace(model.decoding.limited(n), eos_threshold=1.0)
    with torch.no_grad():
        source = model.network.encode(batch)
        columns, mask, _ = decode_first_stage(model.network, source.change(torch.clone), decoding)
    assert mask.all()
    return DecodedParticles.of(columns, mask), source


def refine(model, decoded, source, **options):
    with torch.no_grad():
        return model.network.refiner(decoded, source, **options)


def reordered(decoded, order):
    return DecodedParticles(*(part[:, order] for part in decoded))


def dense(refined):
    return refined.pairs.dense(refined.log_fraction.exp())


def test_initially_fractions_are_those_of_the_first_stage(make_model, batch):
    model = make_model(refine_layers=1)
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
    ordered, mixed = refine(model, decoded, source), refine(model, reordered(decoded, order), source)
    torch.testing.assert_close(ordered.existence_logit[:, order], mixed.existence_logit)
    torch.testing.assert_close(dense(ordered)[:, order], dense(mixed))
    changed = decoded.embedded.clone()
    changed[:, 2] = changed[:, 2].flip(-1)
    third = refine(model, decoded._replace(embedded=changed), source)
    assert (third.existence_logit[:, 0] - ordered.existence_logit[:, 0]).abs().min() > 1e-5


def test_fractions_of_far_items_rise_slowly(model, batch):
    """Of the fraction from which an item is in a pair, rounding must not decide."""
    decoded, source = first_stage(model, batch)
    far = source.items.mask[:, None] & (source.cosines(decoded.seed) < MIN_COSINE)
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
        ([0.9, 0.4], 0.7, 0.7),
        ([0.9, 0.4], 0.0, 0.0),
    ],
)
def test_where_few_particles_are_expected_each_must_be_more_probable(probabilities, keep, smallest):
    probability = torch.tensor([[*probabilities, 0.99]])
    mask = torch.tensor([[True] * len(probabilities) + [False]])
    assert float(_min_probability(probability, mask, keep)) == pytest.approx(smallest, rel=1e-5)


def test_the_output_is_the_refinement(make_model, events, batch, collate):
    """In one batch and one by one; and with a threshold that no particle meets, nothing."""
    model = awake(make_model(refine_layers=2, eos_threshold=0.4, existence_threshold=0.0))
    written = model.decode(batch, max_particles=6)
    assert len(written.mask.sum(1).unique()) > 1
    for i, event in enumerate(events):
        alone = model.decode(collate([event]), max_particles=6)
        n = alone.mask.shape[1]
        assert int(written.mask[i].sum()) == n
        torch.testing.assert_close(written.energy[i, :n], alone.energy[0], rtol=1e-3, atol=1e-3)
        hits = alone.hit_fraction.shape[-1]
        torch.testing.assert_close(written.hit_fraction[i, :n, :hits], alone.hit_fraction[0], rtol=1e-3, atol=1e-4)
    assert written.hit_fraction.sum(1).amax() <= 1.0 + 1e-5
    model.set_decoding(existence_threshold=0.999)
    assert model.decode(batch, max_particles=6).mask.shape == (4, 0)


def test_initially_there_are_no_messages(make_model, batch):
    model = awake(make_model(refine_layers=1))
    messages = model.network.refiner.messages
    messages.set_initial_values()
    silent = model.decode(batch, max_particles=6)
    with torch.no_grad():
        messages.receiver.weight.normal_()
        torch.testing.assert_close(model.decode(batch, max_particles=6).energy, silent.energy)
        messages.out.weight.normal_()
    changed = model.decode(batch, max_particles=6)
    assert changed.energy.shape != silent.energy.shape or (changed.energy - silent.energy).abs().max() > 1e-3


@pytest.fixture(scope="module")
def stage(make_model, batch):
    """A model with a refinement, and its first six particles of each event with their source."""
    model = make_model(seed=2, refine_layers=1, existence_threshold=0.0, eos_threshold=1.0, min_energy=0.5)
    torch.manual_seed(7)
    with torch.no_grad():
        for part in (model.network.refiner.existence, model.network.refiner.query_update):
            part[-1].weight.add_(0.5 * torch.randn_like(part[-1].weight))
        model.network.refiner.existence[-1].bias.fill_(0.0)
    return model, *first_stage(model, batch, n=6)


@pytest.fixture
def run(stage):
    model, decoded, source = stage

    def with_options(**options):
        with torch.no_grad():
            chosen = dataclasses.replace(model.decoding, **options)
            columns, assignment = refined_particles(model.network, decoded, source, chosen)
        return SimpleNamespace(**columns, assignment=assignment)

    return with_options


def test_energy_and_existence_are_two_outputs(run, stage):
    model, decoded, source = stage
    refined = run()
    with torch.no_grad():
        predicted = model.network.predict_refined(refined.assignment, decoded.seed, source).log_energy
    torch.testing.assert_close(refined.log_energy, predicted)
    smallest = model.network.min_log_energy
    assert torch.equal(refined.is_particle, refined.assignment.kept & (predicted >= smallest))
    assert (refined.existence[refined.by_track] == 1.0).all()
    probability = refined.assignment.existence_logit.sigmoid()[~refined.by_track]
    torch.testing.assert_close(refined.existence[~refined.by_track], probability.float())
    assert (probability < 1.0).any()


def test_the_existence_is_of_the_same_particles(stage, batch):
    model = stage[0]
    decoded = model.decode(batch)
    assert decoded.existence[decoded.mask].min() > 0.0
    assert (decoded.existence[~decoded.mask] == 0.0).all()
    nothing = model.generate(batch, decoding=dataclasses.replace(model.decoding, eos_threshold=1e-9))
    assert nothing.existence.shape == nothing.mask.shape == (len(batch), 0)


@pytest.fixture
def messages():
    torch.manual_seed(3)
    return PairwiseMessages(width=8)


@pytest.fixture
def no_hits(by_hand, source_of):
    return source_of(by_hand()).tables().items.sums


def four_particles():
    """Two 2 mrad apart in polar angle, one 2 mrad away in azimuth, one far off; and padding."""
    theta = torch.tensor([1.0, 1.002, 1.0, 2.0, 0.0])
    phi = torch.tensor([0.3, 0.3, 0.3 + 0.002 / math.sin(1.0), 2.5, 0.0])
    direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)[None]
    mask = torch.tensor([[True, True, True, True, False]])
    share = torch.zeros(1, 5, 0)  # of no hits: inclined showers are tested with the slopes
    return torch.randn(1, 5, 8), torch.tensor([[2.0, 1.0, 1.0, 3.0, 0.0]]), direction, mask, share


def test_messages_depend_on_the_relative_position(messages, no_hits):
    parts = four_particles()
    parts[0][:, 2] = parts[0][:, 1]  # the same but for where they are

    def message(*who):
        return messages(*(part[:, list(who)] for part in parts), no_hits)[0, 0]

    beside, across, alone, far = message(0, 1), message(0, 2), message(0), message(0, 3)
    assert (beside - across).abs().max() > 0.05
    torch.testing.assert_close(alone, messages.out.bias)
    assert (far - alone).abs().max() < 0.1 * (beside - alone).abs().max()


def test_messages_depend_neither_on_order_nor_on_padding(messages, no_hits):
    parts = four_particles()
    ordered = messages(*parts, no_hits)
    order = torch.tensor([3, 1, 0, 2, 4])
    torch.testing.assert_close(messages(*(part[:, order] for part in parts), no_hits), ordered[:, order])
    torch.testing.assert_close(messages(*(part[:, :4] for part in parts), no_hits), ordered[:, :4])
