import dataclasses
import math

import torch

from pflow.model.pointing import generate
from pflow.model.pointing.generate import BatchDecoder, decode_first_stage

LN10 = math.log(10.0)


def test_an_event_that_does_not_end_is_flagged(model, batch):
    complete = model.decode(batch, max_particles=20)
    n = complete.mask.sum(1)
    assert not complete.truncated.any()
    cut = model.decode(batch, max_particles=int(n.max()) - 1)
    assert cut.truncated.tolist() == (n == n.max()).tolist()
    assert cut.mask.sum(1).tolist() == n.clamp(max=int(n.max()) - 1).tolist()
    assert not model.decode(batch, max_particles=int(n.max())).truncated.any()


def test_particles_below_the_smallest_energy_are_none_and_three_end_an_event(make_model, batch):
    """Its hits stay assigned to it all the same, so that later particles stay as they are. Without that an event whose
    unassigned hits are all soft would be decoded to the maximum.
    """
    complete = make_model().decode(batch, max_particles=8)
    energy = torch.exp(LN10 * (0.8 + 0.5 * complete.energy))
    below, above = energy[complete.mask].sort().values[2:4].tolist()
    smallest = (below + above) / 2
    cut = make_model(min_energy=smallest).decode(batch, max_particles=8)
    remaining = complete.mask & (energy > smallest)
    assert cut.mask.sum(1).tolist() == remaining.sum(1).tolist() != complete.mask.sum(1).tolist()
    for name in ("energy", "pdg", "hit_fraction", "track_fraction"):
        torch.testing.assert_close(getattr(cut, name)[cut.mask], getattr(complete, name)[remaining], msg=name)
    assert not cut.truncated.any()
    model = make_model(min_energy=1e9)
    with torch.no_grad():
        model.network.decoder.pointer.eos[-1].bias.sub_(20.0)
    decoded = model.decode(batch, max_particles=8)
    assert decoded.mask.shape == (4, 0)
    assert not decoded.truncated.any()
    assert model.decode(batch, max_particles=3).truncated.sum() == 0
    assert model.decode(batch, max_particles=2).truncated.all()


def test_three_particles_without_hits_end_an_event(make_model, batch):
    """When all hits are assigned, the same may be decoded over and over, each with an energy above the smallest."""
    model = make_model(min_energy=0.005)  # a particle without hits has more before its correction
    with torch.no_grad():
        model.network.decoder.pointer.eos[-1].bias.sub_(20.0)
        model.network.head.correct.bias[0].fill_(1.0)
        model.network.assignment.pair_logits.out[-1].bias.add_(20.0)
    decoded = model.decode(batch, max_particles=20)
    assert not decoded.truncated.any()
    deposit = (decoded.hit_fraction * batch.readout.energy[:, None]).sum(-1)
    nothing = decoded.mask & (deposit < 0.0025) & (decoded.track_fraction.amax(-1) < 0.5)
    assert nothing.sum(1).min() >= 3
    assert all(flags[mask][-3:].all() for flags, mask in zip(nothing, decoded.mask, strict=True))
    model.set_decoding(min_deposit_fraction=0.0)
    assert model.decode(batch, max_particles=20).truncated.all()


def test_a_track_without_hits_is_no_empty_particle(make_model, by_hand):
    """Else three of the five would end the event; only three empty ones in a row do."""
    momentum = [[5.0 * math.cos(angle), 5.0 * math.sin(angle), 0.0] for angle in range(5)]
    model, batch = make_model(initial=True, eos_threshold=1.0), by_hand(momentum=momentum, charge=[1.0] * 5)
    with torch.no_grad():
        model.network.assignment.pair_logits.out[-1].bias.fill_(20.0)
        model.network.decoder.pointer.offset[1] = -50.0  # no seed twice: then the end is certain
        decoder = BatchDecoder(model.network, model.network.encode(batch), model.decoding)
        decoder.state.empty_steps.fill_(2)
        decoder.advance()
        decoder.particle()
    assert decoder.state.empty_steps.tolist() == [0]
    decoded = model.decode(batch, max_particles=20)
    assert sorted(decoded.track_fraction[0].argmax(1).tolist()) == list(range(5))


def test_a_track_starts_a_particle_from_its_threshold(make_model, batch):
    model = make_model(parallel_tracks=True, eos_threshold=1e-9)  # no other particles
    with torch.inference_mode():
        source = model.network.encode(batch)
        memory, is_track = model.network.decoder.project(source.states), source.tokens.is_track
        of_tracks = torch.gather(is_track, 1, source.tokens.track)
        probability = model.network.decoder.of_tracks(source, memory, of_tracks)[1].sigmoid()[of_tracks]
    for threshold in (0.0, float(probability.sort().values[1]), 1.0):
        model.set_decoding(start_threshold=threshold)
        assert int(model.decode(batch).mask.sum()) == int((probability >= threshold).sum())


def test_each_event_is_cut_at_its_own_largest_number(make_model, events, collate):
    """Events of several sizes, in one batch and one by one: none ends by itself, each has its own limit."""
    model = make_model(eos_threshold=1.0)
    model.set_decoding(max_particles=6, hits_per_particle=2, max_empty_steps=1000)
    for chosen in (events, *([event] for event in events)):
        limits = [max(6, len(event.charge) + len(event.energy) // 2) for event in chosen]
        with torch.inference_mode():
            source = model.network.encode(collate(chosen))
            decoded = decode_first_stage(model.network, source, model.decoding)
        assert decoded.truncated.all()
        assert decoded.mask.sum(1).tolist() == limits


def test_fields_have_their_types_and_meaning_and_zeros_in_the_padding(model, batch):
    decoded = model.decode(batch, max_particles=8)
    integers, flags = ("charge", "pdg"), ("mask", "truncated", "by_track")
    dtypes = dict.fromkeys(integers, torch.int64) | dict.fromkeys(flags, torch.bool)
    for field in dataclasses.fields(decoded):
        value = getattr(decoded, field.name)
        if field.name in ("existence", "listed"):  # of a network with a refinement
            assert value is None
            continue
        assert value.dtype == dtypes.get(field.name, torch.float32), field.name
        if field.name not in ("truncated", "mask"):
            assert not value[~decoded.mask].any(), field.name
    charged = model.network.head.charged[decoded.pdg]
    assert torch.equal((decoded.charge != 1)[decoded.mask], charged[decoded.mask])
    torch.testing.assert_close(decoded.pdg_probability.sum(-1)[decoded.mask], torch.ones(int(decoded.mask.sum())))
    torch.testing.assert_close(decoded.score, decoded.pdg_probability.amax(-1))
    torch.testing.assert_close(decoded.direction.norm(dim=-1), decoded.mask.float())


def test_no_tokens_or_no_events_give_no_particles(model, events, batch, make_event, collate):
    def none_of(part):
        return part[:0] if isinstance(part, torch.Tensor) else part._with(none_of)

    decoded = model.decode(none_of(batch), max_particles=3)
    assert len(decoded.mask) == len(decoded.truncated) == 0
    nothing = make_event((), seed=0)
    decoded = model.decode(collate([nothing, events[0], nothing]), max_particles=4)
    assert decoded.mask.any(1).tolist() == [False, True, False]
    assert not decoded.truncated.any()
    assert model.decode(collate([nothing]), max_particles=4).mask.shape == (1, 0)


def test_a_batch_refined_in_parts_gives_the_same(make_model, batch, monkeypatch):
    model = make_model(refine_layers=1)
    expected, sizes = model.decode(batch), []
    monkeypatch.setattr(generate, "CACHED_FRACTIONS", 1)
    model.network.refiner.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0].mask)))
    decoded = model.decode(batch)
    assert sizes == [1] * len(batch)
    torch.testing.assert_close(vars(decoded), vars(expected), rtol=1e-4, atol=1e-5)


def test_tracks_start_particles(parallel, batch, events):
    decoded = parallel.decode(batch)
    n_tracks = [len(event.charge) for event in events]
    assert max(n_tracks) > 1
    for i, n in enumerate(n_tracks):
        assert (decoded.track_fraction[i, :n].argmax(1) == torch.arange(n)).all()  # the first particles, in order
        torch.testing.assert_close(decoded.track_fraction[i].sum(0)[:n], torch.ones(n))
    assert (decoded.mask.sum(1) > torch.tensor(n_tracks)).any()  # the others are decoded after them
