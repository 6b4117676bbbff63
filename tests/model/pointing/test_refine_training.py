import pytest
import torch

from pflow.model.pointing import training
from pflow.model.pointing.network import FIRST_STAGE, DecodedParticles
from pflow.model.pointing.training import decode_and_match, match, refine_matched

PHOTON, PION, NEUTRON = 0, 1, 3
MINUS, NEUTRAL, PLUS = 0, 1, 2


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
        particles=[(NEUTRON, NEUTRAL, 10.0), (PHOTON, NEUTRAL, 3.0), (PION, PLUS, 2.0)],
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


def test_pieces_and_false_particles_come_last_and_what_is_not_decoded_is_not_matched(model, three):
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
    source = model.network.encode(batch)
    matches = decode_and_match(model.network, source, batch.target, model.decoding)
    output = refine_matched(model.network, source, batch.target, *matches)
    n_true, n_matched = batch.target.mask.sum(1), output.target.mask.sum(1)
    assert (n_matched <= n_true).all()
    assert n_matched.sum() > 0
    assert (output.target.mask <= output.decoded).all()
    assert (output.decoded & ~output.target.mask).any()
    pairs, target = output.refined.pairs, output.target
    fraction = torch.cat([target.hit_fraction, target.track_fraction], dim=-1)
    torch.testing.assert_close(output.target_fraction, fraction.flatten()[pairs.flat])
    torch.testing.assert_close(output.target_unassigned, (1.0 - fraction.sum(1)).clamp(min=0))
    energy = 10 ** (model.inputs.energy_mean + model.inputs.energy_std * batch.target.energy)
    torch.testing.assert_close(output.visible_energy, (energy * batch.target.mask).sum(1))

    losses = model.loss(output)
    weight = output.item_weight
    expected = -(weight.flatten()[pairs.item] * output.target_fraction * output.refined.log_fraction).sum()
    expected = expected - (weight * output.target_unassigned * output.refined.log_unassigned).sum()
    torch.testing.assert_close(losses["refined_assignment"], expected / weight.sum())
    logit = output.refined.existence_logit
    cost = torch.where(target.mask, -logit.sigmoid().log(), -(-logit).sigmoid().log())[output.decoded]
    torch.testing.assert_close(losses["existence"], cost.mean())
    energy = (output.particles.log_energy.exp() * logit.sigmoid() * output.decoded).sum(1)
    difference = ((energy + 0.1) / (output.visible_energy + 0.1)).log().abs()
    torch.testing.assert_close(losses["visible_energy"], difference.mean())
    names = {"refined_assignment", "existence", "visible_energy", "pdg", "charge", "energy", "direction", "total"}
    assert set(losses) == names


@pytest.mark.parametrize("joint", [False, True])
def test_only_the_refiner_has_losses_and_is_trained_where_the_first_stage_is_frozen(make_model, batch, joint):
    model = make_model(refine_layers=1, eos_threshold=1.0, joint=joint).train()
    assert model.first_stage_modules == tuple(f"network.{name}" for name in FIRST_STAGE)
    for name in model.first_stage_modules:
        model.get_submodule(name).requires_grad_(False).eval()
    losses = model.losses(batch)
    assert "pointer" not in losses
    losses["total"].backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("network.refiner.")}


def test_decoding_in_training_is_that_of_a_reconstruction(make_model, batch):
    model = make_model(refine_layers=1, eos_threshold=1.0, dropout=0.5)
    with torch.no_grad():
        source = model.network.encode(batch)
    expected, _ = decode_and_match(model.network, source, batch.target, model.decoding)
    model.train()
    model.network.encoder.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, _ = decode_and_match(model.network, source, batch.target, model.decoding)
    for name, values in rounded._asdict().items():
        assert torch.equal(values, getattr(expected, name)), name
        assert values.dtype != torch.bfloat16
    assert model.network.decoder.training
    assert not model.network.encoder.stack.training


def test_a_few_steps_find_what_is_false_and_whose_hits_are(make_model, batch, monkeypatch):
    monkeypatch.setattr(training, "EXTRA_PARTICLES", 4)
    model = make_model(refine_layers=1, eos_threshold=1.0, initial=True, weights={"refined_assignment": 4.0}).train()
    for name in model.first_stage_modules:
        model.get_submodule(name).requires_grad_(False).eval()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    torch.manual_seed(0)
    history = []
    for _ in range(40):
        optimiser.zero_grad()
        losses = model.losses(batch)
        losses["total"].backward()
        optimiser.step()
        history.append([losses[name].item() for name in ("refined_assignment", "existence")])
    first, last = torch.tensor(history[:5]).mean(0), torch.tensor(history[-5:]).mean(0)
    assert (last < 0.5 * first).all(), (first, last)
