import dataclasses
import math
from random import Random

import pytest
import torch
from torch.nn.functional import normalize

from pflow.data.batch import Target
from pflow.model.pointing.decoder import PairList, candidates
from pflow.model.pointing.head import DIRECTION_LOG_SIGMA, EnergyScale, Particles, make_proxies
from pflow.model.pointing.reconstructor import TeacherForcing, first_stage_losses

PHOTON, PION, NEUTRON = 0, 1, 2


def one_particle(model, batch, seed, pdg=None):
    """The particle of event 0 with a token as its seed and all items near it, and its proxies."""
    network = model.network
    with torch.no_grad():
        source = network.encode(batch)
        tables, seed = source.tables(), torch.tensor([seed])
        pairs = PairList.where(candidates(tables, seed[:, None], torch.ones(1, 1, 1)))
        nothing, memory = torch.zeros_like(tables.tokens.energy), network.decoder.project(source.states)
        states, *_ = network.decoder(network.decoder.bos.view(1, 1, -1), tables, nothing, memory)
        assignment = network.assignment(states[:, 0], seed, tables, torch.ones(len(pairs.item)), pairs)
        everything, known = torch.ones(len(pairs.item)), None if pdg is None else torch.tensor([pdg])
        proxies = make_proxies(everything, pairs, tables.items.sums, source.tokens.unit[0, seed])
        return network.head(assignment.query, seed, everything, pairs, tables, pdg=known), proxies


def shuffled(event, *, seed):
    """The same event with hits, tokens and tracks listed in another order, and the orders of hits and tracks."""
    generator = torch.Generator().manual_seed(seed)
    hits = torch.randperm(len(event.energy), generator=generator)
    tracks = torch.randperm(len(event.charge), generator=generator)
    renamed = torch.randperm(int(event.token.max()) + 1, generator=generator)
    mixed = dataclasses.replace(
        event,
        **{name: getattr(event, name)[hits] for name in ("energy", "position", "subdetector", "layer")},
        **{name: getattr(event, name)[tracks] for name in ("momentum", "charge")},
        token=renamed[event.token][hits],
        hit_fraction=event.hit_fraction[:, hits],
        track_fraction=event.track_fraction[:, tracks],
    )
    return mixed, hits, tracks


def test_the_order_of_hits_tokens_and_tracks_does_not_matter(model, events, collate):
    event = events[2]
    mixed, hits, tracks = shuffled(event, seed=5)
    before, after = model.decode(collate([event])), model.decode(collate([mixed]))
    assert before.mask.sum() > 1
    shares = {"hit_fraction": before.hit_fraction[..., hits], "track_fraction": before.track_fraction[..., tracks]}
    torch.testing.assert_close(vars(after), vars(before) | shares, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"parallel_tracks": True}, {"refine_layers": 2}, {"parallel_tracks": True, "refine_layers": 1}]
)
def test_a_batch_equals_its_events_one_by_one(make_model, events, batch, collate, row_of, options):
    model = make_model(**options)
    together = model.decode(batch)
    assert len(together.mask.sum(1).unique()) > 1
    for i, event in enumerate(events):
        alone = model.decode(collate([event]))
        assert not together.mask[i, alone.mask.shape[1] :].any()
        torch.testing.assert_close(row_of(together, i, alone), vars(alone), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"parallel_tracks": True}, {"refine_layers": 2}])
def test_shares_of_a_hit_or_track_sum_to_at_most_one(make_model, batch, options):
    """Of more particles than there is energy for, and tracks of the same direction, which claim the same hits."""
    position = batch.readout.track_position[:, :1].expand_as(batch.readout.track_position)
    batch = dataclasses.replace(batch, readout=dataclasses.replace(batch.readout, track_position=position))
    model = make_model(**options)
    with torch.no_grad():
        model.network.decoder.pointer.eos[-1].bias.sub_(6.0)
        model.network.assignment.pair_logits.out[-1].bias.add_(5.0)
    written = model.decode(batch)
    for share in (written.hit_fraction, written.track_fraction):
        assert share.min() >= 0.0
        assert 0.9 < share.sum(1).max() <= 1.0 + 1e-5


@pytest.fixture
def event(events, collate):
    """One event, whose first track is the token behind the hits'."""
    return collate(events[:1])


def test_a_charged_particle_that_begins_at_a_track_has_its_momentum(model, event):
    made, _ = one_particle(model, event, event.hits.mask.shape[1], pdg=PION)
    momentum = event.readout.track_momentum[0, 0]
    assert made.by_track.all()
    torch.testing.assert_close(made.direction[0].float(), normalize(momentum, dim=0))
    energy = torch.sqrt(momentum.square().sum() + 0.1395704**2)
    torch.testing.assert_close(made.log_energy.exp()[0].float(), energy)


@pytest.mark.parametrize("sign", [0, 2])
def test_the_charge_fits_the_code(model, event, sign):
    """Of a charged particle it is its track's, or the most probable of both signs; else none, whatever is probable."""
    with torch.no_grad():
        model.network.head.identity.bias[model.inputs.n_pdg + sign] += 10.0
    track = event.hits.mask.shape[1]
    made = [one_particle(model, event, *given)[0] for given in ((0, PION), (track, PION), (0, PHOTON))]
    assert [particle.charge.item() for particle in made] == [sign, 1 + event.readout.track_charge[0, 0], 1]
    assert [particle.by_track.item() for particle in made] == [False, True, False]


def towards(proxies, *trust):
    """Mean of the directions of log-weighted and linear barycentre and of the tracks, by trust in the latter two."""
    weights = torch.tensor([0.0, *trust]).softmax(0)
    parts = (proxies.direction, proxies.linear_direction, proxies.track_direction)
    return normalize(sum(weight * part for weight, part in zip(weights, parts, strict=True)), dim=-1)


@pytest.mark.parametrize("given", [None, (1.0, 0.5, 2.0)], ids=["initially", "later"])
def test_energy_and_direction_follow_the_trust_in_tracks(make_model, event, given):
    """A neutral particle that turned into charged ones, as a photon in the tracker; its energy is 10 MeV more."""
    model = make_model(initial=True)
    if given is not None:
        with torch.no_grad():
            model.network.head.correct.bias[[1, 6, 7]] = torch.tensor(given)
    made, proxies = one_particle(model, event, event.hits.mask.shape[1], pdg=PHOTON)
    of_energy, *of_directions = given or (-3.0, -3.0, -3.0)
    trust, tracks = 1.0 / (1.0 + math.exp(-of_energy)), proxies.track_momentum.norm(dim=-1)
    assert tracks > 1.0
    torch.testing.assert_close(made.log_energy.exp(), (1.0 - trust) * proxies.energy[0] + trust * tracks + 0.01)
    torch.testing.assert_close(made.direction, towards(proxies, *of_directions))


def test_energy_direction_and_widths_are_corrected_by_one_number_each(make_model, events, collate):
    """The energy in units of 10%, the direction in units of its width, about the beam axis; widths have bounds."""
    model, batch = make_model(initial=True), collate([events[1]])
    before, _ = one_particle(model, batch, 0)
    assert (before.energy_log_sigma.item(), before.direction_log_sigma.item()) == (-2.0, -4.0)
    with torch.no_grad():
        model.network.head.correct.bias[[0, 3]] = 2.0
    after, _ = one_particle(model, batch, 0)
    torch.testing.assert_close(after.log_energy, before.log_energy + 0.2)
    turn = (after.direction - before.direction)[0]
    assert turn.norm().item() == pytest.approx(2.0 * math.exp(-4.0), rel=1e-2)
    assert abs(turn[2]) < 1e-3
    with torch.no_grad():
        model.network.head.correct.bias[4:6] = torch.tensor([100.0, -100.0])
    after, _ = one_particle(model, batch, 0)
    assert (after.energy_log_sigma.item(), after.direction_log_sigma.item()) == (1.5, -9.5)


def test_equal_hits_have_the_direction_of_their_linear_barycentre(make_model, by_hand):
    """No hit has a log weight above 0: that barycentre is nowhere, and has no part in the direction."""
    generator = torch.Generator().manual_seed(0)
    position = torch.tensor([1900.0, 300.0, 50.0]) + 20.0 * torch.randn(100, 3, generator=generator)
    batch = by_hand(energy=[0.1] * 100, position=position.tolist(), token=[0] * 100)
    made, proxies = one_particle(make_model(initial=True), batch, 0)
    assert not proxies.direction.any()
    torch.testing.assert_close(made.direction[0].float(), normalize(position.mean(0), dim=0))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("options", [{}, {"parallel_tracks": True, "refine_layers": 1, "joint": True}])
def test_all_weights_are_trained(make_model, batch, own, options):
    model = make_model(**options).train()
    model.own_particles = own
    model.training_step(batch)["total"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_network_reads_tracks_or_hits_alone(make_model, batch, model):
    readout = batch.readout
    none = {name: getattr(readout, name)[:, :0] for name in vars(readout) if name.startswith("track_")}
    hits = dataclasses.replace(batch, tracks=None, readout=dataclasses.replace(readout, **none))
    written = make_model(track_features=0).decode(hits)
    assert written.mask.any()
    assert written.track_fraction.shape == (*written.mask.shape, 0)
    with pytest.raises(ValueError, match="tracks: the network reads them and the batch has none"):
        model.generate(dataclasses.replace(batch, tracks=None))
    with pytest.raises(ValueError, match="tracks: the network does not read them and the batch has some"):
        make_model(track_features=0).generate(batch)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"deferred_target_prob": 1.5}, r"deferred_target_prob: 1.5 is not in \[0, 1\]"),
        ({"heads": 5}, "5 heads do not divide"),
        ({"existence_threshold": 1.0}, "existence_threshold: 1.0"),
        ({"eos_threshold": 0.0}, "eos_threshold: 0.0"),
        ({"refine_layers": -1}, "refine_layers: -1"),
        ({"tracker_hit_features": 3}, "tracker_hit_features: the pointing network does not read them"),
        ({"weights": {"energi": 1.0}}, "unknown field 'energi'"),
    ],
)
def test_sizes_that_make_no_sense_are_errors(make_model, option, message):
    with pytest.raises(ValueError, match=message):
        make_model(**option)


def test_all_ranks_go_on_from_the_same_particles(make_model):
    drawn = []
    for rank in range(2):
        torch.manual_seed(rank)
        model = make_model()
        drawn.append([model.draw_shared(Random(step)) or model.own_particles for step in range(20)])
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {False, True}


def test_both_stages_can_be_trained_together(make_model, batch):
    options = {"refine_layers": 1, "dropout": 0.0}
    joint, refinement, first = (
        make_model(**options | changed)
        for changed in ({"joint": True}, {"joint": False}, {"joint": False, "refine_layers": 0})
    )
    refinement.load_state_dict(joint.state_dict())
    first.load_state_dict(joint.state_dict(), strict=False)
    losses, second, teacher = (model.training_step(batch) for model in (joint, refinement, first))
    torch.testing.assert_close(losses["total"], second["total"] + teacher["total"])
    torch.testing.assert_close(losses["first_stage_pdg"], teacher["pdg"])
    torch.testing.assert_close(losses["pdg"], second["pdg"])
    torch.testing.assert_close(losses["pointer"], teacher["pointer"])


def test_memorised_particles_are_decoded_and_no_more(make_model, events, collate):
    torch.manual_seed(0)
    two = collate([events[0], events[2]])
    model = make_model(seed=0, initial=True).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=50)
    for _ in range(50):
        optimiser.zero_grad()
        model.training_step(two)["total"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    decoded, target = model.eval().decode(two, max_particles=8), two.target
    assert decoded.mask.sum(1).tolist() == target.mask.sum(1).tolist() == [2, 4]
    assert not decoded.truncated.any()
    for i in range(2):
        ours, true = (part.energy[i][part.mask[i]].argsort() for part in (decoded, target))
        names = ("energy", "direction", "pdg", "charge", "hit_fraction", "track_fraction")
        off = {name: (getattr(decoded, name)[i, ours] - getattr(target, name)[i, true]).abs() for name in names}
        assert math.log(10.0) * model.inputs.energy_std * off["energy"].max() < 0.05
        assert off["direction"].norm(dim=-1).max() < 0.02
        assert not off["pdg"].any()
        assert not off["charge"].any()
        assert all((off[name] < 0.5).float().mean() > 0.97 for name in ("hit_fraction", "track_fraction"))


def test_the_prior_makes_particles_at_tracks_charged_and_leaves_others(make_model, batch):
    model = make_model(track_prior=True, parallel_tracks=True, initial=True)
    particles = model.decode(batch)
    charged = model.network.head.charged
    assert particles.by_track.sum() >= batch.readout.track_mask.sum()  # some tracks are a seed twice
    probability = particles.pdg_probability[particles.by_track][:, charged].sum(1)
    torch.testing.assert_close(probability, torch.full_like(probability, 0.9526), atol=1e-3, rtol=0)
    plain, model = make_model(), make_model(track_prior=True)
    missing = model.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert all("track_identity" in name for name in missing)
    tables = plain.network.encode(batch).tables()
    seed = (~tables.tokens.is_track & tables.tokens.mask).nonzero()[:4, 0]
    pairs = PairList.where(torch.ones(1, 4, len(tables.items.weight), dtype=torch.bool))
    fraction = torch.rand(pairs.item.shape, generator=torch.Generator().manual_seed(1))
    made = [some.network.head(torch.zeros(4, 24), seed, fraction, pairs, tables).pdg_logits for some in (plain, model)]
    torch.testing.assert_close(*made)


LN10 = math.log(10.0)


def output_of_one(
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
            pdg_logits=torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]),
            pdg=torch.tensor([[0]]),
            charge_logits=torch.tensor([[[0.0, 2.0, 0.0]]]),
            charge=torch.tensor([[1]]),
            log_energy=torch.tensor([[log_energy]]),
            direction=torch.tensor([[direction]]),
            energy_log_sigma=torch.tensor([[log_widths[0]]]),
            direction_log_sigma=torch.tensor([[log_widths[1]]]),
            by_track=torch.tensor([[False]]),
            deposit=torch.zeros(1, 1),
            pooled=torch.zeros(1, 1, 2),
        ),
    )


@pytest.fixture
def losses():
    return lambda **values: {
        name: loss.item() for name, loss in first_stage_losses(output_of_one(**values), EnergyScale(0.8, 0.5)).items()
    }


def test_losses_of_pointer_end_and_classes(losses):
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


def test_losses_of_direction_and_incidence(losses):
    """With the smallest sigma that the head predicts, and opposite to the truth."""
    direction = (math.cos(0.02), 0.012 / 0.02 * math.sin(0.02), 0.016 / 0.02 * math.sin(0.02))
    loss = losses(direction=direction, log_widths=(0.0, math.log(0.01)))["direction"]
    assert loss == pytest.approx(0.5 * 2.0**2 + 2.0 * math.log(0.01), rel=1e-3)
    sigma = {"log_widths": (0.0, DIRECTION_LOG_SIGMA[0])}
    right, wrong = (losses(direction=(x, 0.0, 0.0), **sigma)["direction"] for x in (1.0, -1.0))
    assert right == pytest.approx(-19.0, abs=1e-3)
    assert (wrong - right) / 50 < 2.0
    cost = -(0.7 * math.log(0.6) + 0.3 * math.log(0.4))
    loss = losses(logit=math.log(0.6 / 0.4), wanted=0.7)["assignment"]
    assert loss == pytest.approx(2.0 * cost / (2.0 * 0.75))


@torch.no_grad()
def test_losses_are_means_over_particles_of_the_whole_batch(model, events, collate):
    """Two events of four and one particles: the mean over five, not over two events; padding costs nothing."""
    both, longer, four, single = (
        model.training_step(collate([events[i] for i in chosen], extra=extra))
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
@pytest.mark.parametrize(
    "options", [{}, {"parallel_tracks": True}, *({"refine_layers": 1, "eos_threshold": end} for end in (1e-9, 1.0))]
)
def test_without_tokens_or_particles_losses_are_finite(make_model, poor, training, options):
    model = make_model(**options).train(training)
    model.own_particles = True
    losses = model.training_step(poor)
    losses["total"].backward()
    assert all(value.isfinite() for value in losses.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_tokens_without_particles_teach_the_end(model, by_hand):
    losses = model.training_step(by_hand(energy=[1.0], position=[[2000, 0, 0]]))
    assert losses["total"] == losses["eos"] > 0
    assert torch.autograd.grad(losses["total"], model.network.decoder.pointer.eos[-1].bias)[0] != 0
