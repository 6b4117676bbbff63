from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pflow.model.common.decode import decode
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.decoder_steps import BatchDecoder
from pflow.model.pointing.decoder_steps_one_event import decode_event

MAX_OPERATIONS = 270
"""Most operations of torch of a step, views included."""


def both(model, batch, **options):
    """What the batched decoder and that of one event decode."""
    model.set_decoding(max_particles=8, **options)
    with torch.inference_mode():
        source, decoding = model.network.encode(batch), model.decoding
        one = decode_event(model.network, source, decoding)
        batched = BatchDecoder(model.network, source.copy(), decoding, Sampler())
        return one, decode(batched, batch=1, max_particles=decoding.max_particles, device=torch.device("cpu"))


def assert_same(one, other):
    assert torch.equal(one.mask, other.mask)
    assert torch.equal(one.truncated, other.truncated)
    assert one.columns.keys() == other.columns.keys()
    for name, values in one.columns.items():
        torch.testing.assert_close(values, other.columns[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def restless(model):
    """Without an end before the last particle."""
    with torch.no_grad():
        model.network.decoder.pointer.eos[-1].bias.sub_(20.0)
    return model


@pytest.mark.parametrize("option", [{}, {"coverage": False}, {"delta_theta_phi_features": True}])
@pytest.mark.parametrize("i", range(4))
@pytest.mark.parametrize("extra", [0, 2])
def test_one_event_alone_equals_a_batch_of_it(make_model, events, collate, option, i, extra):
    one, other = both(restless(make_model(**option)), collate([events[i]], extra=extra))
    assert one.mask.sum() > 2
    assert_same(one, other)


def test_it_ends_as_a_batch_does(make_model, events, collate):
    model = make_model()
    for event in events:
        assert_same(*both(model, collate([event])))


def test_open_tracks_are_decoded(make_model, events, collate):
    model = make_model(require_all_tracks=True)
    with torch.no_grad():
        model.network.decoder.pointer.eos[-1].bias.add_(40.0)
    for event in events:
        one, other = both(model, collate([event]))
        assert_same(one, other)
        assert (one.mask.sum() > 0) == (len(event.charge) > 0)


def test_a_step_has_few_operations(make_model, events, collate):
    """Thousands of small operations took twenty times as long as their arithmetic."""

    class Count(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.n += 1
            return func(*args, **(kwargs or {}))

    model = restless(make_model(delta_theta_phi_features=True))
    counts = []
    for steps in (2, 7):
        model.set_decoding(max_particles=steps, hits_per_particle=0, max_empty_steps=99)
        with torch.no_grad():
            source = model.network.encode(collate([events[2]]))
            with Count() as count:
                assert decode_event(model.network, source, model.decoding).mask.sum() == steps
        counts.append(count.n)
    assert (counts[1] - counts[0]) / 5 < MAX_OPERATIONS
