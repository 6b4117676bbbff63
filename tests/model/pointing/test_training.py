import dataclasses
import math
from itertools import pairwise

import pytest
import torch

from pflow.data.batch import Target
from pflow.model.decode import decode
from pflow.model.pointing import reconstructor as module
from pflow.model.pointing.generate import BatchDecoder
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.head import Corrections
from pflow.model.pointing.network import FIRST_STAGE, DecodedParticles
from pflow.model.pointing.reconstructor import (
    behind_tracks,
    decode_and_match,
    first_stage_losses,
    match,
    refinement_losses,
    reordered,
    seed_weights,
    teacher_forcing,
)

PHOTON, PION, NEUTRON = 0, 1, 2
NEGATIVE, NEUTRAL, POSITIVE = 0, 1, 2


def forced(model, batch, target=None, **options):
    with torch.no_grad():
        source, target = model.network.encode(batch), batch.target if target is None else target
        return teacher_forcing(model.network, source, target, model.training_config, **options)


def changed(target, j):
    """Another particle at place j of event 2: what it is, its numbers and its hits."""
    share = target.hit_fraction.clone()
    share[2, j] = share[2, j].flip(0)
    values = {name: getattr(target, name).clone() for name in ("pdg", "charge", "energy", "direction")}
    values["pdg"][2, j], values["charge"][2, j] = NEUTRON, NEUTRAL
    values["energy"][2, j] += 1.0
    values["direction"][2, j] = values["direction"][2, j].flip(0)
    return dataclasses.replace(target, **values, hit_fraction=share)


def test_what_is_measured_trains_neither_fractions_nor_uncertainties(model, batch):
    """Both have losses of their own."""
    bias = model.network.head.correct.bias
    with torch.no_grad():
        bias.fill_(0.1)
        Corrections.of(bias).direction_log_sigma.fill_(-3.0)
    made = teacher_forcing(model.network, model.network.encode(batch), batch.target, model.training_config)
    measured = made.particles.direction.sum() + made.particles.log_energy.sum()
    of_bias, of_fractions = torch.autograd.grad(measured, (bias, made.logits), allow_unused=True)
    assert of_fractions is None
    corrections = Corrections.of(of_bias)
    assert corrections.angles.all()
    assert not corrections.direction_log_sigma.any()


@pytest.mark.parametrize("j", [1, 2])
def test_what_is_said_of_a_particle_does_not_depend_on_later_ones(model, batch, j):
    original, altered = forced(model, batch), forced(model, batch, changed(batch.target, j))
    torch.testing.assert_close(original.pointer[2, : j + 1], altered.pointer[2, : j + 1])
    assert (original.pointer[2, j + 1] - altered.pointer[2, j + 1]).abs().max() > 1e-3
    for name in ("pdg_logits", "charge_logits", "log_energy", "direction", "energy_log_sigma", "pooled"):
        before, after = getattr(original.particles, name)[2], getattr(altered.particles, name)[2]
        torch.testing.assert_close(before[:j], after[:j], msg=name)
    assert (original.particles.log_energy[2, j:] - altered.particles.log_energy[2, j:]).abs().max() > 1e-3
    before, after = (made.pairs.dense(made.logits)[2, :j] for made in (original, altered))
    assert before.any()
    torch.testing.assert_close(before, after)
    torch.testing.assert_close(original.pointer[[0, 1, 3]], altered.pointer[[0, 1, 3]])  # other events


def test_an_assignment_does_not_know_its_own_answer(model, batch):
    """A particle that has half of each of its hits begins where one that has them whole does."""
    half = dataclasses.replace(batch.target, hit_fraction=0.5 * batch.target.hit_fraction)
    of_full, of_half = forced(model, batch), forced(model, batch, half)
    n = batch.target.mask.shape[1]
    first = of_full.pairs.particle % n == 0
    torch.testing.assert_close(of_full.logits[first], of_half.logits[of_half.pairs.particle % n == 0])
    assert first.any()


# After targets that are what is decoded, all predictions are, too; after others, those whose inputs are decoded: tracks
# are decoded before both passes, and the first of the others in the pass that gives the own particles.
@pytest.mark.parametrize(("tracks", "right", "n_same"), [(False, True, 5), (False, False, 2), (True, False, 1)])
def test_scheduled_sampling_predicts_what_is_decoded(make_model, batch, monkeypatch, tracks, right, n_same):
    """Cached step by step, where events end at different places; in training all steps are one pass."""
    model = make_model(eos_threshold=0.5 if right else 1.0, parallel_tracks=tracks, start_threshold=0.6)
    network, decoding = model.network, model.decoding.limited(5 + tracks * batch.readout.track_mask.shape[1])
    with torch.no_grad():
        if tracks:
            network.decoder.embed_track.weight.normal_(std=0.2)
            network.decoder.starts[-1].weight.normal_()
            network.decoder.starts[-1].bias.zero_()
        source = network.encode(batch)
        decoder = BatchDecoder(network, source, decoding)
        columns, mask, _ = decode(decoder, batch=len(batch), max_particles=5, device=torch.device("cpu"))
    if tracks:
        assert 0 < decoder.tracks["is_particle"].sum() < batch.readout.track_mask.sum()
    values = {name: columns[name].to(torch.get_default_dtype()) for name in ("log_energy", "direction")}
    energy, fraction = network.energy_scale.normalised(values["log_energy"]), columns["hit_fraction"]
    hits, of_tracks = fraction.split([batch.readout.mask.shape[1], batch.readout.track_mask.shape[1]], dim=-1)
    target = Target(columns["charge"], columns["pdg"], energy, values["direction"], mask, hits, of_tracks)
    if not right:
        target = Target(
            *((target.charge + 1) % 3, (target.pdg + 1) % 4, energy + 1.0, target.direction.flip(-1)),
            *(mask, hits.roll(1, dims=1), torch.zeros_like(of_tracks)),
        )
    of_decoded = torch.nn.functional.one_hot(columns["seed"], source.tokens.mask.shape[1]).float()
    padding = fraction.new_zeros(len(batch), decoder.tracks["seed"].shape[1] if tracks else 0, of_decoded.shape[2])
    monkeypatch.setattr(module, "seed_weights", lambda *_: torch.cat([padding, of_decoded], dim=1))
    made, k, steps = forced(model, batch, target, sampling=decoding), padding.shape[1], mask.shape[1]
    same, differ = mask & (torch.arange(steps) < n_same), mask & (torch.arange(steps) >= n_same)
    expected = {name: columns[name] for name in ("pdg_logits", *(("log_energy", "direction") if right else ()))}
    expected |= {f"{of}_log_sigma": columns[f"{of}_sigma"].log() for of in ("energy", "direction")}
    for name, decoded in expected.items():
        predicted = getattr(made.particles, name)[:, k:]
        torch.testing.assert_close(predicted[same], decoded[same].float(), rtol=1e-3, atol=1e-4, msg=name)
        assert right or (predicted[differ] - decoded[differ]).abs().max() > 1e-2
    assert torch.equal(made.pointer[..., :-1].argmax(-1)[:, :steps][same], columns["seed"][same])
    if right:
        assert len(mask.sum(1).unique()) > 1
        continues = (made.pointer[:, :steps, -1].exp() < 0.5).cumprod(1) > 0
        assert torch.equal(continues, mask)


def test_what_is_wanted_is_the_share_of_what_is_left(model, by_hand):
    """Of a hit two particles have 40% and 60%: the second is to take all that the first leaves."""
    batch = by_hand(
        energy=[2.0, 1.0],
        position=[[2000, 0, 0], [2000, 30, 0]],
        particles=[(PHOTON, NEUTRAL, 2.0), (PHOTON, NEUTRAL, 1.0)],
        hit_fraction=[[0.4, 1.0], [0.6, 0.0]],
    )
    made = forced(model, batch)
    target_fraction = made.pairs.dense(made.target_fraction)[0]
    torch.testing.assert_close(target_fraction, torch.tensor([[0.4, 1.0], [1.0, 0.0]]))
    weight = made.pairs.dense(made.weight)[0]
    torch.testing.assert_close(weight, torch.tensor([[2.0**0.5, 1.0], [0.6 * 2.0**0.5, 0.0]]))


def weights(model, batch):
    share = torch.cat([batch.target.hit_fraction, batch.target.track_fraction], dim=-1)
    with torch.no_grad():
        return seed_weights(share, batch.target, model.network.encode(batch))


def test_suitable_seeds(model, by_hand):
    """Hit tokens of 4, 1 and 2 GeV and two tracks of 3 and 5 GeV; the last token has hits of two particles."""
    mixed = by_hand(
        energy=[4.0, 1.0, 1.5, 0.5],
        position=[[2000, 0, 0], [2000, 60, 0], [2000, 120, 0], [2000, 120, 10]],
        token=[0, 1, 2, 2],
        momentum=[[3.0, 0.0, 0.0], [5.0, 0.0, 0.0]],
        charge=[1.0, -1.0],
        particles=[*((PION, POSITIVE, energy) for energy in (3.0, 1.0)), *[(PHOTON, NEUTRAL, 5.0)] * 3],
        hit_fraction=[[0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
        track_fraction=[[1, 0], [0, 0], [0, 0], [0, 1], [0, 0]],
    )
    assert weights(model, mixed)[0].tolist() == [
        [0, 0, 0, 1, 0],  # charged, with a track: there
        [0, 0, 0.25, 0, 0],  # charged, without a track, with a quarter of a token's energy
        [1, 0.5, 0, 0, 0],  # neutral, with hits of 4 and 1 GeV: the square root of the ratio
        [0, 0, 0, 0, 1],  # without hits: at a track
        [0, 0, 0, 0, 0],  # without anything
    ]


def test_the_seed_is_a_good_one_and_padding_has_none(model, batch):
    assert torch.equal(weights(model, batch).amax(-1) > 0, batch.target.mask)
    for training in (False, True):
        made = forced(model.train(training), batch)
        first = made.pairs.sums(torch.ones(1, len(made.pairs.item)))
        assert (first.view_as(batch.target.mask)[batch.target.mask] > 0).all()
        at_track = made.particles.by_track
        expected = (
            made.target.mask & (made.target.track_fraction > 0.5).any(-1) & model.network.head.charged[made.target.pdg]
        )
        assert torch.equal(at_track & made.target.mask, expected)


def by_fingerprint(target, i):
    """The particles of event i as a sorted list of all that belongs to each."""
    rows = []
    for t in target.mask[i].nonzero().flatten():
        numbers = [target.pdg[i, t], target.charge[i, t], target.energy[i, t], *target.direction[i, t]]
        rows.append([float(x) for x in (*numbers, *target.hit_fraction[i, t], *target.track_fraction[i, t])])
    return sorted(rows)


def test_reordering_keeps_shares_and_without_noise_falls_in_energy(batch, monkeypatch):
    torch.manual_seed(1)
    monkeypatch.setattr(module, "ORDER_NOISE_STD", 10.0)
    mixed = reordered(batch.target, 0.0, energy_std=0.5)
    assert torch.equal(mixed.mask, batch.target.mask)
    assert not torch.equal(mixed.energy, batch.target.energy)
    has_track = (mixed.track_fraction > 0.5).any(-1) & (mixed.charge != NEUTRAL)
    assert not (has_track[:, 1:] & ~has_track[:, :-1]).any()  # those with a track come first
    for i in range(4):
        assert by_fingerprint(mixed, i) == by_fingerprint(batch.target, i)
    monkeypatch.setattr(module, "ORDER_NOISE_STD", 0.0)
    target: Target = batch.target
    order = torch.tensor([[1, 0, 2, 3], [0, 1, 2, 3], [2, 3, 1, 0], [2, 1, 0, 3]])
    mixed = Target(**{f.name: gather(getattr(target, f.name), order) for f in dataclasses.fields(target)})
    ordered = reordered(mixed, 0.0, energy_std=0.5)
    assert torch.equal(ordered.energy[target.mask], target.energy[target.mask])


def test_deferred_targets_come_last_in_the_same_order(batch, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(module, "ORDER_NOISE_STD", 0.0)
    changed = 0
    for _ in range(10):
        deferred = reordered(batch.target, 0.4, energy_std=0.5)
        changed += not torch.equal(deferred.energy, batch.target.energy)
        for i in range(4):
            before = batch.target.energy[i][batch.target.mask[i]].tolist()
            ranks = [before.index(energy) for energy in deferred.energy[i][deferred.mask[i]].tolist()]
            assert sorted(ranks) == list(range(len(before)))
            assert sum(later < earlier for earlier, later in pairwise(ranks)) <= 1
        assert by_fingerprint(deferred, 2) == by_fingerprint(batch.target, 2)
    assert changed > 5


def test_a_target_without_shares_is_an_error(model, batch):
    for name in ("hit_fraction", "track_fraction"):
        with pytest.raises(ValueError, match="target: it has no fractions of hits and tracks"):
            forced(model, batch, dataclasses.replace(batch.target, **{name: None}))


def test_eos_and_pointer_are_the_likelihood_of_the_sequence(model, events, collate):
    """The end counts as much as one seed, however long the sequence is: the event has four particles."""
    output = forced(model, collate([events[2]]))
    losses = first_stage_losses(output, model.network.energy_scale)
    torch.testing.assert_close(losses["eos"], -output.pointer[0, 4, -1] / 4)


def test_training_predicts_what_is_decoded(parallel, batch, events):
    """Of the particles of tracks, which know nothing of the targets; the mass of those is the target's in training."""
    parallel.set_decoding(eos_threshold=0.01)
    decoded, predicted = parallel.decode(batch), forced(parallel, batch)
    for i, event in enumerate(events):
        n = len(event.charge)
        logits = predicted.particles.pdg_logits[i, :n]
        torch.testing.assert_close(logits.softmax(-1), decoded.pdg_probability[i, :n], rtol=1e-4, atol=1e-5)


def test_targets_of_tracks(source_of, by_hand):
    """Of two tracks of a pion the harder one starts it; tracks of a K0S and of no particle start none."""
    batch = by_hand(
        energy=[1.0, 2.0],
        position=[[2000, 0, 0], [2000, 300, 0]],
        momentum=[[1, 0, 0], [3, 0, 0], [2, 0, 0], [5, 0, 0]],
        charge=[1, -1, 1, 1],
        particles=[(NEUTRON, NEUTRAL, 2.0), (PHOTON, NEUTRAL, 2.5), (PION, POSITIVE, 4.0)],
        hit_fraction=[[0, 0], [0, 1], [1, 0]],
        track_fraction=[[0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]],
    )
    target = behind_tracks(batch.target, source_of(batch))
    assert target.mask[0].tolist() == [False, True, False, False, True, True]
    assert target.pdg[0][target.mask[0]].tolist() == [PION, NEUTRON, PHOTON]
    assert target.hit_fraction[0].tolist() == [[0, 0], [1, 0], [0, 0], [0, 0], [0, 0], [0, 1]]


def test_whether_a_track_starts_a_particle_is_learned(parallel, batch):
    """Of the event whose pion becomes a neutron, the track learns to start none."""
    neutral = dataclasses.replace(batch.target, charge=batch.target.charge.clone())
    neutral.charge[0] = NEUTRAL
    batches = batch, dataclasses.replace(batch, target=neutral)
    made = [parallel.training_step(given)["starts"].item() for given in batches]
    assert made[0] == pytest.approx(math.log1p(math.exp(-3.0)), rel=1e-4)  # initially 95%
    n_tracks = int(batch.readout.track_mask.sum())
    assert made[1] - made[0] == pytest.approx(3.0 / n_tracks, rel=1e-3)


@pytest.fixture
def model(make_model):
    """That writes as many particles as it may."""
    return make_model(refine_layers=1, eos_threshold=1.0)


@pytest.fixture
def three(by_hand):
    """A neutron of two hits and a photon of one beside a pion of a track and a hit."""
    return by_hand(
        energy=[6.0, 4.0, 3.0, 1.0],
        position=[[2000, 0, 0], [2000, 50, 0], [2000, 400, 0], [0, 2000, 0]],
        momentum=[[0.0, 2.0, 0.0]],
        charge=[1.0],
        particles=[(NEUTRON, NEUTRAL, 10.0), (PHOTON, NEUTRAL, 3.0), (PION, POSITIVE, 2.0)],
        hit_fraction=[[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
        track_fraction=[[0], [0], [1]],
    )


def matched(model, batch, fraction, seed, *, n=None):
    """Decoded particles with `fraction` [T, M] and these seeds: their order and targets; the first `n` are real."""
    t = len(seed)
    decoded = DecodedParticles(
        embedded=torch.arange(t)[None, :, None],
        query=torch.zeros(1, t, 1),
        seed=torch.tensor([seed]),
        log_energy=torch.zeros(1, t),
        direction=torch.zeros(1, t, 3),
        hit_fraction=torch.tensor([fraction], dtype=torch.float32),
        mask=torch.arange(t)[None] < (t if n is None else n),
    )
    true = torch.cat([batch.target.hit_fraction, batch.target.track_fraction], dim=-1)
    with torch.no_grad():
        decoded, target = match(decoded, true, batch.target, model.network.encode(batch))
    return decoded.embedded[0, :, 0].tolist(), target


def test_pieces_and_false_particles_come_last(model, three):
    number, target = matched(model, three, [[0, 0, 1, 0, 0], [1, 1, 0, 0, 0]], [2, 0], n=1)
    assert number == [0, 1]
    assert target.pdg.tolist() == [[PHOTON, 0]]
    assert target.mask.tolist() == [[True, False]]
    pieces = [[0, 0, 0, 1, 1], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]
    number, target = matched(model, three, pieces, [4, 1, 0, 2, 3])
    assert number == [2, 3, 0, 1, 4]
    assert target.mask.tolist() == [[True, True, True, False, False]]
    assert target.pdg.tolist() == [[NEUTRON, PHOTON, PION, 0, 0]]
    torch.testing.assert_close(target.energy[:, :3], three.target.energy)
    assert torch.equal(target.hit_fraction[:, :3], three.target.hit_fraction)
    assert not target.hit_fraction[:, 3:].any()
    assert not target.track_fraction[:, 3:].any()


def test_what_starts_at_a_track_is_its_particle(model, three):
    """Though it took all hits of the neutron, with five times the pion's energy."""
    number, target = matched(model, three, [[1, 1, 0, 0, 1], [0, 0, 1, 0, 0]], [4, 2])
    assert number == [1, 0]
    assert target.pdg.tolist() == [[PHOTON, PION]]
    number, target = matched(model, three, [[1, 1, 0, 0, 1], [0, 0, 1, 0, 0]], [0, 2])
    assert number == [0, 1]
    assert target.pdg.tolist() == [[NEUTRON, PHOTON]]


@pytest.mark.parametrize(("part", "expected"), [(0.35, False), (0.4, True)])
def test_the_same_particle_has_a_tenth_of_both(model, by_hand, part, expected):
    """Of a photon's 3 GeV, with 9 GeV of no one: 1.05 of 12 or 1.2 of 12 GeV."""
    batch = by_hand(
        energy=[3.0, 9.0],
        position=[[2000, 0, 0], [2000, 50, 0]],
        particles=[(PHOTON, NEUTRAL, 3.0)],
        hit_fraction=[[1, 0]],
    )
    *_, target = matched(model, batch, [[part, 1]], [0])
    assert target.mask.tolist() == [[expected]]


def test_targets_and_losses_of_decoded_particles(model, batch):
    network, scale = model.network, model.network.energy_scale
    source = network.encode(batch)
    decoded, target = decode_and_match(network, source, batch.target, model.decoding)
    refined = network.refine(decoded, source, existence_threshold=0.5, pdg=target.pdg, dtype=torch.float32)
    n_true, n_matched = batch.target.mask.sum(1), target.mask.sum(1)
    assert (n_matched <= n_true).all()
    assert n_matched.sum() > 0
    assert (target.mask <= decoded.mask).all()
    assert (decoded.mask & ~target.mask).any()

    losses = refinement_losses(refined, decoded.mask, target, batch.target, source, scale)
    pairs, weight = refined.refinement.pairs, source.items.weight.sqrt() * source.items.mask
    fraction = torch.cat([target.hit_fraction, target.track_fraction], dim=-1)
    expected = -(weight.flatten()[pairs.item] * fraction.flatten()[pairs.flat] * refined.log_fraction).sum()
    expected = expected - (weight * (1.0 - fraction.sum(1)).clamp(min=0) * refined.log_unassigned).sum()
    both = losses["refined_assignment"], expected / weight.sum()
    torch.testing.assert_close(*both)
    logits = refined.refinement.logits
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in both))
    logit = refined.refinement.existence_logit
    cost = torch.where(target.mask, -logit.sigmoid().log(), -(-logit).sigmoid().log())[decoded.mask]
    torch.testing.assert_close(losses["existence"], cost.mean())
    true_energy = 10 ** (model.inputs.energy_mean + model.inputs.energy_std * batch.target.energy) * batch.target.mask
    energy = (refined.particles.log_energy.exp() * refined.listed).sum(1)  # a plain sum
    difference = ((energy + 0.1) / (true_energy.sum(1) + 0.1)).log().abs()
    torch.testing.assert_close(losses["visible_energy"], difference.mean())
    names = {"refined_assignment", "existence", "listed_energy", "visible_energy", "pdg", "charge", "energy"}
    assert set(losses) == {*names, "direction"}


@pytest.mark.parametrize("joint", [False, True])
def test_behind_a_frozen_first_stage_only_the_refiner_trains(make_model, batch, joint):
    model = make_model(refine_layers=1, eos_threshold=1.0, joint=joint).train()
    assert model.first_stage_modules == tuple(f"network.{name}" for name in FIRST_STAGE)
    for name in model.first_stage_modules:
        model.get_submodule(name).requires_grad_(False).eval()
    losses = model.training_step(batch)
    assert "pointer" not in losses
    losses["total"].backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("network.refiner.")}


def test_decoding_in_training_is_that_of_a_reconstruction(make_model, batch):
    model = make_model(refine_layers=1, eos_threshold=1.0, dropout=0.5)
    with torch.no_grad():
        source = model.network.encode(batch)
    expected, _ = decode_and_match(model.network, source, batch.target, model.decoding)
    # The first stage never stops by itself: 20 more than the longest sequence, so that there are fakes to learn from.
    assert expected.mask.shape[1] == batch.target.mask.shape[1] + 20
    model.train()
    model.network.encoder.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, _ = decode_and_match(model.network, source, batch.target, model.decoding)
    for name, values in rounded._asdict().items():
        assert torch.equal(values, getattr(expected, name)), name
        assert values.dtype != torch.bfloat16
    assert model.network.decoder.training
    assert not model.network.encoder.stack.training
