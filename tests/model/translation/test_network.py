"""Every network: shapes, what padding and order must not change, training, saving, options."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pflow.data.batch import Batch, Target, TokenSet
from pflow.model.api import DecodingConfig, Sampler
from pflow.model.common.cache import KeyValue
from pflow.model.common.initialise import initialise
from pflow.model.translation import TranslationLossConfig
from pflow.model.translation.decoder_step import generate as generate_particles
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.loss import TranslationLoss

HITS, PARTICLES = [12, 0, 5, 9], [3, 0, 1, 4]


def make_loss(*, special="flags", **options):
    return TranslationLoss(special=special, config=TranslationLossConfig(**options))


def generate(model, batch, *, max_particles, **sampling):
    return generate_particles(model, batch, DecodingConfig(max_particles=max_particles), Sampler(**sampling))


@pytest.fixture
def batch(make_batch):
    return make_batch(HITS, PARTICLES)


def garbage(batch: Batch) -> Batch:
    """The same events with NaN, infinities and nonsense where there is padding."""

    def spoil(tokens: TokenSet) -> TokenSet:
        return TokenSet(tokens.features.masked_fill(~tokens.mask[..., None], torch.nan), tokens.mask)

    target, blank = batch.target, ~batch.target.mask
    return Batch(
        hits=spoil(batch.hits),
        tracks=spoil(batch.tracks),
        tracker_hits=spoil(batch.tracker_hits),
        target=Target(
            charge=target.charge.masked_fill(blank, -7),
            pdg=target.pdg.masked_fill(blank, 99),
            energy=target.energy.masked_fill(blank, torch.inf),
            direction=target.direction.masked_fill(blank[..., None], torch.nan),
            mask=target.mask,
        ),
    )


def padded(batch: Batch, source: int, target: int) -> Batch:
    """The same events with more padding."""

    def pad(tokens: TokenSet) -> TokenSet:
        return TokenSet(
            torch.nn.functional.pad(tokens.features, (0, 0, 0, source)),
            torch.nn.functional.pad(tokens.mask, (0, source)),
        )

    values = {name: getattr(batch.target, name) for name in ("charge", "pdg", "energy", "direction", "mask")}
    longer = {
        name: torch.nn.functional.pad(value, (0, target) if value.ndim == 2 else (0, 0, 0, target))
        for name, value in values.items()
    }
    return Batch(pad(batch.hits), pad(batch.tracks), pad(batch.tracker_hits), Target(**longer))


def real(prediction, batch):
    """Predictions where something follows: after bos and after each particle."""
    mask = torch.nn.functional.pad(batch.target.mask, (1, 0), value=True)
    return {name: value[:, : mask.shape[1]][mask] for name, value in prediction.items()}


def assert_equal_where_real(model, a: Batch, b: Batch) -> None:
    with torch.no_grad():
        first, second = real(model(a), a), real(model(b), a)
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-5, atol=1e-5)


def test_shapes_and_dtypes(variant, batch, make_model):
    prediction = make_model(**variant)(batch)
    extra = {"flags": {}, "kind": {"kind": 4}, "learned": {"stop": 2}}[variant["special"]]
    offset = {"flags": 3, "kind": 1, "learned": 0}[variant["special"]]
    last = {"charge": (3 + offset,), "pdg": (6 + offset,), "energy": (), "direction": (3,)}
    last.update({name: (n,) for name, n in extra.items()})
    assert {name: value.shape for name, value in prediction.items()} == {
        name: (4, 5, *shape) for name, shape in last.items()
    }
    assert {value.dtype for value in prediction.values()} == {torch.float32}


def test_directions_are_unit_vectors(variant, batch, make_model):
    direction = make_model(**variant)(batch)["direction"]
    torch.testing.assert_close(direction.norm(dim=-1), torch.ones(4, 5))


def test_training_reduces_the_loss(variant, batch, make_model):
    model, loss = make_model(**variant).train(), make_loss(special=variant["special"])
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    totals = []
    for _ in range(12):
        losses = loss(model(batch), batch)
        assert all(value.isfinite() for value in losses.values())
        optimiser.zero_grad()
        losses["total"].backward()
        optimiser.step()
        totals.append(losses["total"].item())
    assert totals[-1] < 0.9 * totals[0]


def test_every_weight_is_trained(variant, batch, make_model):
    model = make_model(**variant)
    make_loss(special=variant["special"])(model(batch), batch)["total"].backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


def test_saved_and_loaded_it_is_the_same(variant, batch, make_model, tmp_path):
    model, other = make_model(seed=1, **variant), make_model(seed=2, **variant)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    first, second = (generate(m, batch, max_particles=4) for m in (model, other))
    assert torch.equal(first.pdg, second.pdg)
    assert torch.equal(first.energy, second.energy)


def test_what_padding_holds_changes_nothing(variant, batch, make_model):
    assert_equal_where_real(make_model(**variant), batch, garbage(batch))


def test_what_padding_holds_changes_no_gradient(variant, batch, make_model):
    gradients = []
    for events in (batch, garbage(batch)):
        model = make_model(**variant)
        make_loss(special=variant["special"], direction="angle")(model(events), events)["total"].backward()
        gradients.append([p.grad for p in model.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


def test_more_padding_changes_nothing(variant, batch, make_model):
    assert_equal_where_real(make_model(**variant), batch, padded(batch, 7, 3))


def test_the_order_of_source_tokens_changes_nothing(variant, batch, make_model):
    generator = torch.Generator().manual_seed(5)

    def shuffle(tokens: TokenSet) -> TokenSet:
        order = torch.rand(tokens.mask.shape, generator=generator).argsort(dim=1)  # padding moves too
        return TokenSet(
            tokens.features.gather(1, order[..., None].expand_as(tokens.features)), tokens.mask.gather(1, order)
        )

    shuffled = Batch(shuffle(batch.hits), shuffle(batch.tracks), shuffle(batch.tracker_hits), batch.target)
    assert_equal_where_real(make_model(**variant), batch, shuffled)


def test_a_prediction_sees_no_later_particle(variant, batch, make_model):
    model, target = make_model(**variant), batch.target
    later = dataclasses.replace(target, energy=target.energy + torch.tensor([0.0, 0.0, 1.0, 1.0]))
    with torch.no_grad():
        first, second = model(batch), model(dataclasses.replace(batch, target=later))
    torch.testing.assert_close(first["energy"][:, :3], second["energy"][:, :3])
    assert not torch.allclose(first["energy"][0, 3], second["energy"][0, 3])


def test_a_prediction_sees_the_particles_before(variant, batch, make_model):
    model, target = make_model(**variant), batch.target
    for name in ("charge", "pdg"):
        changed = dataclasses.replace(target, **{name: (getattr(target, name) + 1) % 3})
        with torch.no_grad():
            first, second = model(batch), model(dataclasses.replace(batch, target=changed))
        torch.testing.assert_close(first["energy"][:, 0], second["energy"][:, 0])
        assert not torch.allclose(first["energy"][0, 1], second["energy"][0, 1])


@pytest.mark.parametrize(("source", "read"), [("cross", ["tracks"]), ("typed", ["tracks", "tracker_hits"])])
def test_tracks_are_read(source, read, batch, make_model):
    model = make_model(source=source)
    for name in read:
        tokens = getattr(batch, name)
        other = TokenSet(tokens.features + 1.0, tokens.mask)
        with torch.no_grad():
            changed = model(dataclasses.replace(batch, **{name: other}))["energy"]
            assert not torch.allclose(changed, model(batch)["energy"])


def test_a_batch_of_one_equals_its_place_in_a_batch_of_64(variant, make_batch, make_model):
    batch = make_batch([(7 * i) % 33 for i in range(64)], [i % 6 for i in range(64)])
    model = make_model(**variant)

    def cut(part):
        n = int(part.mask[41].sum())
        fields = (getattr(part, f.name) for f in dataclasses.fields(part) if f.name != "full")
        return type(part)(*(None if value is None else value[41:42, :n] for value in fields))

    alone = Batch(cut(batch.hits), cut(batch.tracks), cut(batch.tracker_hits), cut(batch.target))
    with torch.no_grad():
        together, single = model(batch), model(alone)
    for name, value in single.items():
        torch.testing.assert_close(together[name][41:42, : value.shape[1]], value, rtol=1e-5, atol=1e-5)


def test_events_without_any_target_are_finite(make_batch, make_model):
    batch = make_batch([3, 0], [0, 0])
    losses = make_loss()(make_model()(batch), batch)
    assert all(value.isfinite() for value in losses.values())
    assert losses["energy"] == 0


def test_bfloat16_autocast_trains(variant, batch, make_model):
    model, loss = make_model(**variant), make_loss(special=variant["special"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = loss(model(batch), batch)
    losses["total"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert losses["total"].dtype == torch.float32


def test_autocast_embeds_and_predicts_in_full_precision(batch, make_model):
    """Rounded to bfloat16, features would agree to 1/256 only; what is not rounded keeps them apart."""
    model = make_model()
    nearby = dataclasses.replace(batch, hits=TokenSet(batch.hits.features * (1 + 1e-4), batch.hits.mask))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        first, second = (model.source.hits(events.hits)[0] for events in (batch, nearby))
        prediction = model(batch)
    assert first.dtype == torch.float32
    assert not torch.equal(first, second)
    torch.testing.assert_close(prediction["direction"].norm(dim=-1), torch.ones(4, 5))


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "pre"},
        {"embedder": "v2"},
        {"activation": "gelu"},
        {"head_feedforward": 8},
        {"target_position": True},
        {"energy_sigma": True},
        {"target_width": 24},
        {"bias": False},
    ],
    ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()),
)
def test_options_change_the_prediction_and_train(options, batch, make_model):
    plain, model = make_model(), make_model(**options)
    before = model(batch)
    assert not torch.allclose(before["energy"], plain(batch)["energy"])
    make_loss()(before, batch)["total"].backward()
    unused = {"continuous.0.weight", "continuous.0.bias"} if options.get("energy_sigma") else set()
    assert {n for n, p in model.named_parameters() if p.grad is None} <= unused


def test_no_bias_means_no_bias(make_model):
    assert [name for name, _ in make_model(bias=False).named_parameters() if name.endswith("bias")] == []


def test_dropout_changes_training_alone(batch, make_model):
    model = make_model(dropout=0.5)
    assert torch.equal(model(batch)["energy"], make_model()(batch)["energy"])
    model.train()
    assert not torch.equal(model(batch)["energy"], model(batch)["energy"])


def test_the_same_seed_gives_the_same_weights(make_model):
    first, second, third = (make_model(seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["source.hits.embed.network.0.weight"], third["source.hits.embed.network.0.weight"])


@pytest.mark.parametrize("special", ["flags", "learned"])
def test_a_generator_of_ones_own_gives_the_weights(special, make_model):
    first, second = make_model(seed=1, special=special), make_model(seed=2, special=special)
    for model in (first, second):
        model.initialise(torch.Generator().manual_seed(7))
    states = first.state_dict(), second.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_weights_initially_keep_the_variance():
    linear = torch.nn.Linear(400, 300)
    initialise(linear, torch.Generator().manual_seed(0))
    assert linear.weight.var().item() == pytest.approx(1 / 400, rel=0.02)
    assert not linear.bias.any()


@pytest.mark.parametrize(
    ("special", "decoder", "source", "hits"),
    [
        ("flags", "vanilla", "hits", [4, 4]),
        ("kind", "multi_projection", "cross", [4, 2]),
        ("learned", "vanilla", "typed", [4, 2]),
    ],
)
def test_compiles_as_one_graph(special, decoder, source, hits, make_batch, make_model):
    batch = make_batch(hits, [2, 1])
    torch.compiler.reset()
    model = make_model(special=special, decoder=decoder, source=source)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for name, value in compiled(batch).items():
        torch.testing.assert_close(value, model(batch)[name])


class Past:
    """A cache without storage of its own, as an exported decoding step has."""

    def __init__(self, key, value):
        self.known = KeyValue(key, value)

    def update(self, k_val, v_val):
        joined = (torch.cat(pair, dim=2) for pair in zip(self.known, (k_val, v_val), strict=True))
        self.known = KeyValue(*joined)
        return self.known


class Encode(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features, mask):
        memory = self.model.encode(Batch(hits=TokenSet(features, mask, full=False)))
        return [part for pair in self.model.decoder.project(memory.states) for part in pair]


class Decode(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, memory, past):
        known = [KeyValue(*pair) for pair in zip(memory[::2], memory[1::2], strict=True)]
        caches = [Past(*pair) for pair in zip(past[::2], past[1::2], strict=True)]
        x = self.model.decoder(self.model.target(TargetTokens(*tokens)), known, caches=caches)
        return self.model.heads(x), [part for cache in caches for part in cache.known]


@torch.no_grad()
def test_encoder_exports_with_any_number_of_events_and_hits(make_batch, make_model):
    encode, hits = Encode(make_model()), make_batch([5, 3, 0]).hits
    free = {0: torch.export.Dim("B", max=512), 1: torch.export.Dim("S", max=100_000)}
    exported = torch.export.export(encode, (hits.features, hits.mask), dynamic_shapes=(free, free)).module()
    other = make_batch([9, 2], seed=1).hits
    for got, expected in zip(exported(other.features, other.mask), encode(other.features, other.mask), strict=True):
        torch.testing.assert_close(got[0], expected[0])  # padding, in the second event, is encoded where not packed


@torch.no_grad()
def test_decoding_step_exports_with_any_past(make_batch, make_model):
    model = make_model()
    decode, hits = Decode(model), make_batch([5, 3]).hits
    memory, tokens = Encode(model)(hits.features, hits.mask), TargetTokens.bos(2, torch.device("cpu"))
    B, S, T = (torch.export.Dim(name, min=least, max=1000) for name, least in (("B", 1), ("S", 2), ("T", 0)))
    shapes = (tuple({0: B} for _ in tokens), [{0: B, 2: S} for _ in memory], [{0: B, 2: T} for _ in memory])
    past = [torch.randn(2, 2, 3, 8, generator=torch.Generator().manual_seed(0)) for _ in memory]
    exported = torch.export.export(decode, (tuple(tokens), memory, past), dynamic_shapes=shapes).module()
    cut = [part[:1, :, :4] for part in memory], [part[:1, :, :1] for part in past]
    one = tuple(TargetTokens.bos(1, torch.device("cpu")))
    torch.testing.assert_close(exported(one, *cut), decode(one, *cut))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"n_charge": 0}, "n_charge"),
        ({"n_pdg": -1}, "n_pdg"),
        ({"hit_features": 0}, "hit_features"),
        ({"width": 0}, "width"),
        ({"heads": 0}, "heads"),
        ({"heads": 3}, "heads"),
        ({"encoder_layers": 0}, "encoder_layers"),
        ({"decoder_layers": 0}, "decoder_layers"),
        ({"feedforward": 0}, "feedforward"),
        ({"head_feedforward": 0}, "head_feedforward"),
        ({"special": "paper"}, "special"),
        ({"decoder": "paper"}, "decoder"),
        ({"source": "paper"}, "source"),
        ({"embedder": "v3"}, "embedder"),
        ({"norm": "middle"}, "norm"),
        ({"activation": "tanh"}, "activation"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"target_width": 0}, "target_width"),
        ({"target_width": 15}, "heads"),
        ({"n_projections": 2}, "n_projections"),
        ({"decoder": "multi_projection", "n_projections": None}, "n_projections"),
        ({"decoder": "multi_projection", "n_projections": 0}, "n_projections"),
        ({"decoder": "multi_projection", "n_projections": 2, "target_width": 16}, "target_width"),
        ({"track_features": 5}, "track_features"),
        ({"track_features": -5}, "track_features"),
        ({"tracker_hit_features": 3}, "tracker_hit_features"),
        ({"source": "cross", "track_features": 0}, "track_features"),
        ({"source": "cross", "tracker_hit_features": 3}, "tracker_hit_features"),
        ({"source": "typed", "track_features": 0, "tracker_hit_features": 0}, "track_features"),
    ],
)
def test_arguments_that_make_no_sense(arguments, name, make_model):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        make_model(**arguments)


def test_typed_reads_the_types_it_is_given(batch, make_model):
    model = make_model(source="typed", tracker_hit_features=0)
    without = dataclasses.replace(batch, tracker_hits=None)
    assert torch.equal(model(without)["energy"], model(batch)["energy"])


@pytest.mark.parametrize(("source", "name"), [("cross", "tracks"), ("typed", "tracks"), ("typed", "tracker_hits")])
def test_a_batch_without_what_the_source_reads_is_rejected(source, name, batch, make_model):
    with pytest.raises(ValueError, match=f"{name}: .*the batch has none"):
        make_model(source=source)(dataclasses.replace(batch, **{name: None}))


def test_a_batch_without_target_is_rejected(batch, make_model):
    with pytest.raises(ValueError, match="target"):
        make_model()(dataclasses.replace(batch, target=None))


def test_another_number_of_features_is_rejected(batch, make_model):
    with pytest.raises(ValueError, match="a source token has 4, the network expects 7"):
        make_model(hit_features=7)(batch)
