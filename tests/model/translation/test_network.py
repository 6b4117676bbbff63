import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.model.transformer import initialise
from pflow.model.translation.network import Heads

OF_CELLS = {"pointer", "assignment", "fraction", "true", "assigned", "item_energy"}
HITS, PARTICLES = [12, 0, 5, 9], [3, 0, 1, 4]


@pytest.fixture
def batch(make_batch):
    return make_batch(HITS, PARTICLES)


def padded(batch: Batch) -> Batch:
    """The same events with more padding, which holds NaN, infinities and nonsense."""
    nonsense = {"charge": -7, "pdg": 99, "token": 99, "energy": torch.inf}

    def longer(name: str, value: Tensor, *more: int) -> Tensor:
        return pad(value, more, value=nonsense.get(name, torch.nan if value.is_floating_point() else 0))

    of_target = {"direction": (0, 0, 0, 3), "hit_fraction": (0, 5, 0, 3), "track_fraction": (0, 7, 0, 3)}
    of_items = {
        name: longer(name, value, *(0, 0) * (value.ndim - 2), 0, 7 if name.startswith("track_") else 5)
        for name, value in vars(batch.readout).items()
    }
    sources = (
        TokenSet(longer("features", tokens.features, 0, 0, 0, 7), pad(tokens.mask, (0, 7)))
        for tokens in (batch.hits, batch.tracks, batch.tracker_hits)
    )
    target = {name: longer(name, value, *of_target.get(name, (0, 3))) for name, value in vars(batch.target).items()}
    return Batch(*sources, Target(**target), Readout(**of_items))


def test_training_reduces_the_loss_and_trains_every_weight(variant, batch, make_model):
    model = make_model(**variant).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
    totals = []
    for _ in range(6):
        losses = model.training_step(batch)
        assert all(value.isfinite() for value in losses.values())
        optimiser.zero_grad()
        losses["total"].backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
        optimiser.step()
        of_direction = (
            losses["direction"] if variant["direction"] == "copied" else 0.0
        )  # of random ones, far from any cell
        totals.append((losses["total"] - of_direction).item())
    assert totals[-1] < 0.9 * totals[0]


def shuffled(batch: Batch) -> Batch:
    """The same events with their source tokens in another order, padding between them."""
    generator = torch.Generator().manual_seed(5)

    def shuffle(tokens: TokenSet, order: torch.Tensor | None = None) -> TokenSet:
        if order is None:
            order = torch.rand(tokens.mask.shape, generator=generator).argsort(dim=1)
        features = tokens.features.gather(1, order[..., None].expand_as(tokens.features))
        return TokenSet(features, tokens.mask.gather(1, order))

    order, of_tracks = (
        torch.rand(part.mask.shape, generator=generator).argsort(dim=1) for part in (batch.hits, batch.tracks)
    )
    tracks = {"track_mask": batch.readout.track_mask.gather(1, of_tracks)}
    for name in ("track_momentum", "track_position"):
        vectors = getattr(batch.readout, name)
        tracks[name] = vectors.gather(1, of_tracks[..., None].expand_as(vectors))
    token = order.argsort(dim=1).gather(1, batch.readout.token)
    readout = dataclasses.replace(batch.readout, token=token, **tracks)
    fraction = batch.target.track_fraction
    fraction = fraction.gather(2, of_tracks[:, None].expand_as(fraction))
    target = dataclasses.replace(batch.target, track_fraction=fraction)
    others = shuffle(batch.tracks, of_tracks), shuffle(batch.tracker_hits)
    return Batch(shuffle(batch.hits, order), *others, target, readout)


@pytest.mark.parametrize("change", [padded, shuffled])
def test_padding_and_order_of_source_tokens_change_no_prediction(variant, batch, make_model, change):
    model, mask = make_model(**variant), pad(batch.target.mask, (1, 0), value=True)  # bos and the particles
    with torch.no_grad():
        first, second = model.network(batch), model.network(change(batch))
    for name in set(first) - OF_CELLS:
        torch.testing.assert_close(second[name][:, :5][mask], first[name][mask], rtol=1e-5, atol=1e-5, msg=name)


def test_what_padding_holds_changes_no_gradient(variant, batch, make_model):
    gradients = []
    for events in (batch, padded(batch)):
        model = make_model(**variant)
        model.training_step(events)["total"].backward()
        gradients.append([p.grad for p in model.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_a_prediction_sees_the_particles_before_it_and_none_after(variant, batch, make_model):
    model, target = make_model(**variant), batch.target
    later = target.energy + torch.tensor([0.0, 0.0, 1.0, 1.0])
    changes = [("energy", later, 3), *((name, (getattr(target, name) + 1) % 3, 1) for name in ("charge", "pdg"))]
    with torch.no_grad():
        first = model.network(batch)["energy"]
        for name, value, position in changes:
            changed = dataclasses.replace(batch, target=dataclasses.replace(target, **{name: value}))
            second = model.network(changed)["energy"]
            torch.testing.assert_close(first[:, :position], second[:, :position])
            assert not torch.allclose(first[0, position], second[0, position])


@pytest.mark.parametrize(("source", "name"), [("cross", "tracks"), ("typed", "tracks"), ("typed", "tracker_hits")])
def test_tracks_are_read_and_a_batch_without_is_rejected(source, name, batch, make_model):
    model, tokens = make_model(source=source), getattr(batch, name)
    shifted = TokenSet(tokens.features + 1.0, tokens.mask)
    with torch.no_grad():
        changed = model.network(dataclasses.replace(batch, **{name: shifted}))["energy"]
        assert not torch.allclose(changed, model.network(batch)["energy"])
    with pytest.raises(ValueError, match=f"{name}: .*the batch has none"):
        model.training_step(dataclasses.replace(batch, **{name: None}))


def test_events_without_any_target_are_finite(make_batch, make_model):
    batch = make_batch([3, 0], [0, 0])
    losses = make_model().training_step(batch)
    assert all(value.isfinite() for value in losses.values())
    assert losses["energy"] == 0


def test_autocast_trains_and_embeds_and_predicts_in_full_precision(variant, batch, make_model):
    """Rounded to bfloat16, features would agree to 1/256 only; full precision keeps them apart."""
    model = make_model(**variant)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = model.training_step(batch)
    losses["total"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert losses["total"].dtype == torch.float32
    nearby = dataclasses.replace(batch, hits=TokenSet(batch.hits.features * (1 + 1e-4), batch.hits.mask))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        first, second = (model.network.source.hits(events.hits)[0] for events in (batch, nearby))
        direction = model.network(batch)["direction"]
    assert first.dtype == torch.float32
    assert not torch.equal(first, second)
    torch.testing.assert_close(direction.norm(dim=-1), torch.ones(4, 5))


@pytest.mark.parametrize(
    "options", [{"norm": "pre"}, {"embedder": "v2"}, {"activation": "gelu"}, {"target_position": True}], ids=str
)
def test_options_change_the_prediction_and_train(options, batch, make_model):
    model = make_model(**options)
    assert not torch.allclose(model.network(batch)["energy"], make_model().network(batch)["energy"])
    model.training_step(batch)["total"].backward()
    assert all(p.grad is not None for p in model.parameters())


def test_dropout_changes_training_alone(batch, make_model):
    network = make_model(dropout=0.5).network
    assert torch.equal(network(batch)["energy"], make_model().network(batch)["energy"])
    network.train()
    assert not torch.equal(network(batch)["energy"], network(batch)["energy"])


def test_weights_initially_keep_the_variance():
    linear = torch.nn.Linear(400, 300)
    torch.manual_seed(0)
    initialise(linear)
    assert linear.weight.var().item() == pytest.approx(1 / 400, rel=0.02)
    assert not linear.bias.any()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"heads": 3}, "heads"),
        ({"encoder_layers": 0}, "encoder_layers"),
        *(({name: "paper"}, name) for name in ("special", "decoder", "source", "embedder", "direction")),
        *(({name: "paper"}, name) for name in ("norm", "activation")),
        ({"dropout": 1.0}, "dropout"),
        ({"n_projections": 2}, "n_projections"),
        ({"decoder": "multi_projection", "n_projections": None}, "n_projections"),
        ({"track_features": 5}, "track_features"),
        ({"source": "cross", "tracker_hit_features": 3}, "tracker_hit_features"),
        ({"source": "typed", "track_features": 0, "tracker_hit_features": 0}, "track_features"),
    ],
)
def test_arguments_that_make_no_sense(arguments, name, make_model):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        make_model(**arguments)


def test_typed_reads_the_types_it_is_given(batch, make_model):
    network = make_model(source="typed", tracker_hit_features=0).network
    without = dataclasses.replace(batch, tracker_hits=None)
    assert torch.equal(network(without)["energy"], network(batch)["energy"])


@pytest.mark.parametrize(
    ("theta", "phi", "expected"),
    [(0.0, 0.7, [0, 0, 1]), (math.pi / 2, math.pi / 2, [0, 1, 0]), (math.pi / 2, 2 * math.pi, [1, 0, 0])],
)
def test_unit_vectors_of_angles(theta, phi, expected):
    heads = Heads(classes={}, width=1)
    with torch.no_grad():
        heads.continuous[0].bias.copy_(torch.tensor([0.0, theta - math.pi / 2, phi]))
        vector = heads(torch.zeros(1, 1, 1))["direction"][0, 0]
    torch.testing.assert_close(vector, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)
