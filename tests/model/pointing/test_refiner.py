from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pflow.model.common.decode import Sampler
from pflow.model.pointing.generate import decode_first_stage
from pflow.model.pointing.refined_particles import refine as refined_particles
from pflow.model.pointing.refiner import EPS_FRACTION, FAR_WEIGHT_WIDTH, MIN_COSINE, DecodedParticles, _min_probability


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
        columns, mask, _ = decode_first_stage(model.network, source.copy(), decoding, Sampler())
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


def test_initially_refined_particles_are_those_of_the_head(make_model, batch):
    model = make_model(refine_layers=1)
    decoded, source = first_stage(model, batch)
    refined = refine(model, decoded, source)
    fraction, query = refined.log_fraction.exp(), refined.query.flatten(0, 1)
    with torch.no_grad():
        seed = source.in_tables(decoded.seed).flatten()
        expected, _ = model.network.head(query, seed, fraction, refined.pairs, source.tables())
        found, _ = model.network.predict_refined(refined, decoded.seed, source)
    for name in ("pdg", "charge", "log_energy"):
        torch.testing.assert_close(getattr(found, name).flatten(0, 1), getattr(expected, name))


def test_fractions_of_an_item_sum_to_one(model, batch):
    decoded, source = first_stage(model, batch)
    refined = refine(model, decoded, source)
    total = dense(refined).sum(1) + refined.log_unassigned.exp()
    torch.testing.assert_close(total, torch.ones_like(total))


def test_all_particles_are_refined_together_in_no_order(model, batch):
    decoded, source = first_stage(model, batch)
    order = torch.tensor([2, 0, 1])
    one, other = refine(model, decoded, source), refine(model, reordered(decoded, order), source)
    torch.testing.assert_close(one.existence_logit[:, order], other.existence_logit)
    torch.testing.assert_close(dense(one)[:, order], dense(other))
    changed = decoded.embedded.clone()
    changed[:, 2] = changed[:, 2].flip(-1)
    third = refine(model, decoded._replace(embedded=changed), source)
    assert (third.existence_logit[:, 0] - one.existence_logit[:, 0]).abs().min() > 1e-5


def test_padding_has_no_effect(model, batch):
    decoded, source = first_stage(model, batch)
    two = refine(model, reordered(decoded, torch.tensor([0, 1])), source)
    decoded.hit_fraction[:, 2] = 0.0
    padded = refine(model, decoded._replace(mask=torch.tensor([[True, True, False]] * 4)), source)
    assert (padded.pairs.particle % 3 < 2).all()
    torch.testing.assert_close(padded.existence_logit[:, :2], two.existence_logit)
    torch.testing.assert_close(padded.log_fraction, two.log_fraction)


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


def test_energies_that_no_track_measures_are_the_expected_ones(make_model, batch):
    model = awake(make_model(seed=0, refine_layers=1, existence_threshold=0.0, eos_threshold=1.0))
    decoded, source = first_stage(model, batch)
    refined = refine(model, decoded, source)
    with torch.no_grad():
        particles, _ = model.network.predict_refined(refined, decoded.seed, source)
    by_track = particles.by_track
    assert by_track.any()
    assert not by_track.all()
    expected = particles.log_energy.exp() * torch.where(by_track, 1.0, refined.existence_logit.sigmoid())
    found = model.decode(batch, max_particles=3)
    torch.testing.assert_close(model.network.energy_scale.log_energy(found.energy).exp(), expected.float())


def test_initially_there_are_no_messages(make_model, batch):
    model = awake(make_model(refine_layers=1))
    messages = model.network.refiner.messages
    messages.initialise()
    one = model.decode(batch, max_particles=6)
    with torch.no_grad():
        messages.receiver.weight.normal_()
        torch.testing.assert_close(model.decode(batch, max_particles=6).energy, one.energy)
        messages.out.weight.normal_()
    changed = model.decode(batch, max_particles=6)
    assert changed.energy.shape != one.energy.shape or (changed.energy - one.energy).abs().max() > 1e-3


def test_a_small_change_of_direction_is_not_made(model, batch):
    decoded, source = first_stage(model, batch)
    with torch.no_grad():
        changed = refined_particles(model.network, decoded, source, model.decoding, Sampler()).particles
        change = (changed.direction - decoded.direction).norm(dim=-1)
        changes = change[~changed.by_track].sort().values
        limit = float(changes[len(changes) // 2 :][:2].mean())  # between two, where rounding decides nothing
        decoding = dataclasses.replace(model.decoding, min_direction_change=limit)
        found = refined_particles(model.network, decoded, source, decoding, Sampler()).particles
    kept = ~changed.by_track & (change < limit)
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(found.direction[kept], decoded.direction[kept], rtol=0, atol=0)
    torch.testing.assert_close(found.direction[~kept], changed.direction[~kept], rtol=0, atol=0)
    torch.testing.assert_close(found.log_energy, changed.log_energy, rtol=0, atol=0)


def test_decoding_says_which_changes_of_direction_are_made(make_model, batch):
    model = awake(make_model(refine_layers=1, existence_threshold=0.0, eos_threshold=1.0))
    changed = model.decode(batch, max_particles=3)
    model.set_decoding(min_direction_change=3.0)
    found = model.decode(batch, max_particles=3)
    assert not torch.equal(found.direction, changed.direction)
    torch.testing.assert_close(found.energy, changed.energy)
