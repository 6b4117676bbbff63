import dataclasses

import pytest
import torch

from pflow.model.pointing import PointingDecodingConfig, generate
from pflow.model.pointing.generate import particle_limits


def test_fields_have_their_types_and_meaning_and_zeros_in_the_padding(model, batch):
    decoded = model.decode(batch, max_particles=8)
    integers, flags = ("charge", "pdg"), ("mask", "truncated", "by_track")
    dtypes = dict.fromkeys(integers, torch.int64) | dict.fromkeys(flags, torch.bool)
    for field in dataclasses.fields(decoded):
        value = getattr(decoded, field.name)
        if field.name == "existence":  # of a network with a refinement
            assert value is None
            continue
        assert value.dtype == dtypes.get(field.name, torch.float32), field.name
        if field.name not in ("truncated", "mask"):
            assert not value[~decoded.mask].any(), field.name
    charged = model.network.head.charged[decoded.pdg]
    assert torch.equal((decoded.charge != 1)[decoded.mask], charged[decoded.mask])
    torch.testing.assert_close(decoded.pdg_probability.sum(-1)[decoded.mask], torch.ones(int(decoded.mask.sum())))
    torch.testing.assert_close(decoded.score, decoded.pdg_probability.amax(-1))
    with pytest.raises(ValueError, match="training mode"):
        model.train().decode(batch, max_particles=1)


def test_an_event_without_tokens_has_no_particles(model, events, make_event, collate):
    nothing = make_event((), seed=0)
    decoded = model.decode(collate([nothing, events[0], nothing]), max_particles=4)
    assert decoded.mask.any(1).tolist() == [False, True, False]
    assert not decoded.truncated.any()
    assert model.decode(collate([nothing]), max_particles=4).mask.shape == (1, 0)


def test_a_batch_without_events_can_be_decoded(model, batch):
    def none_of(part):
        return part[:0] if isinstance(part, torch.Tensor) else part._with(none_of)

    decoded = model.decode(none_of(batch), max_particles=3)
    assert len(decoded.mask) == len(decoded.truncated) == 0


def test_a_batch_refined_in_parts_gives_the_same(make_model, batch, monkeypatch):
    model = make_model(refine_layers=1)
    with torch.no_grad():  # initially the refinement repeats the first stage
        torch.manual_seed(7)
        model.network.refiner.query_update[-1].weight.normal_(std=0.5)
        model.network.refiner.messages.out.weight.normal_(std=0.5)
    expected, sizes = model.decode(batch), []
    monkeypatch.setattr(generate, "CACHED_FRACTIONS", 1)
    model.network.refiner.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0].mask)))
    decoded = model.decode(batch)
    assert sizes == [1] * len(batch)
    torch.testing.assert_close(vars(decoded), vars(expected), rtol=1e-4, atol=1e-5)


def test_the_largest_number_of_particles_follows_tracks_and_hits():
    decoding = PointingDecodingConfig(max_particles=6, hits_per_particle=4)
    n_hits, n_tracks = torch.tensor([40, 8, 31]), torch.tensor([3, 0, 2])
    assert particle_limits(decoding, n_hits, n_tracks).tolist() == [13, 6, 9]
    assert particle_limits(decoding.limited(5), n_hits, n_tracks).tolist() == [5, 5, 5]
    assert particle_limits(dataclasses.replace(decoding, hits_per_particle=0), n_hits, n_tracks).tolist() == [6, 6, 6]
