"""Every tensor of the shipped models is made on the device of its batch, and the host waits for it as rarely as it can.

Seen without a GPU, with tensors that say they are on one (`benchmarks.elsewhere`).
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from benchmarks.elsewhere import GPU, Device, Elsewhere, move, without_autocast
from pflow.checkpoint.load import load_model
from pflow.config import shipped_models
from pflow.data.collate import collate
from pflow.data.dataset import LabelledBatch
from pflow.io.open import read_events
from pflow.model.pointing import reconstructor as reconstructor_module
from pflow.model.pointing.generate import generate
from pflow.train.module import ParticleFlow


@pytest.fixture(scope="module")
def events(sample_dir):
    return {
        "cld-general": read_events(sample_dir / "cld_multi_test_small.root", entry_stop=2),
        "ild-g4-general": read_events(sample_dir / "multi_test_small.root", entry_stop=2),
        "ild-g4-photon": read_events(sample_dir / "gammasep_test_small.root", entry_stop=2),
    }


@pytest.fixture
def prepared(events, request, monkeypatch):
    """A shipped model and a batch, elsewhere."""
    monkeypatch.setattr(reconstructor_module, "generate", generate.__wrapped__)  # no views of a subclass in inference
    model = load_model(request.param)
    tokens = model.tokeniser.encode(events[request.param], truth=True)
    with Device():
        batch = collate(tokens).to(GPU)
    with without_autocast():
        yield move(model.reconstructor), batch


def on_the_cpu(part):
    return part.inner if isinstance(part, Elsewhere) else part._with(on_the_cpu)


def waits_of(work):
    """Result, and what was waited for."""
    with Device() as device:
        found = work()
    return found, device.waits


@pytest.mark.parametrize("prepared", shipped_models(), indirect=True)
def test_decoding_gives_what_the_cpu_gives_and_waits_once_a_step(prepared, events, request):
    reconstructor, batch = prepared
    assert isinstance(batch.hits.features, Elsewhere)
    with torch.no_grad():
        found, waits = waits_of(lambda: reconstructor.eval().generate(batch))
    model = load_model(request.node.callspec.params["prepared"])
    expected = model.reconstructor.eval().generate(on_the_cpu(batch))
    assert found.mask.inner.any()
    assert torch.equal(found.mask.inner, expected.mask)
    torch.testing.assert_close(found.energy.inner, expected.energy, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.hit_fraction.inner, expected.hit_fraction, rtol=0, atol=1e-2)
    decoding = [where for _, where in waits if "decode.py" in where]
    most_steps = found.mask.shape[1] + reconstructor.decoding.max_empty_steps
    assert len(decoding) <= 1 + most_steps
    assert len(waits) - len(decoding) == 4  # three selections of the refinement, and the length of the result


@pytest.mark.parametrize("prepared", shipped_models(), indirect=True)
def test_a_training_step(prepared):
    reconstructor, batch = prepared
    reconstructor.train()
    with Device():
        total = reconstructor.training_step(batch).losses["total"]
        total.backward()
    gradients = [parameter.grad for parameter in reconstructor.parameters() if parameter.grad is not None]
    assert gradients
    assert all(isinstance(gradient, Elsewhere) for gradient in gradients)


def test_a_tensor_on_the_cpu_would_be_seen():
    with Device(), pytest.raises(AssertionError, match="add of tensors on the CPU and on the GPU"):
        torch.ones(3, device=GPU) + torch.ones(3)


@pytest.mark.parametrize("prepared", ["ild-g4-photon"], indirect=True)
@pytest.mark.parametrize("sampling", [0.0, 1.0])
def test_a_training_step_waits_for_its_pairs_and_its_loss(prepared, sampling, monkeypatch):
    """With its own particles as input it makes pairs twice."""
    reconstructor, batch = prepared
    reconstructor.train().network.refiner = None
    training = dataclasses.replace(reconstructor.training_config, scheduled_sampling_prob=sampling)
    reconstructor.training_config = training
    module = ParticleFlow()
    module.reconstructor, module._step = reconstructor, reconstructor.training_step
    module._trainer = SimpleNamespace(world_size=1, datamodule=None)
    logged = {}
    module.log = lambda key, value, **_: logged.update({key: value})
    monkeypatch.setattr(ParticleFlow, "data", SimpleNamespace(mark_seen=lambda _: None))
    number = torch.arange(len(batch))
    labelled = LabelledBatch(batch, number, number, ("",) * len(batch), number)
    total, waits = waits_of(lambda: module.training_step(labelled, 0))
    assert [name for name, _ in waits] == ["nonzero"] * (1 + int(sampling)) + ["_local_scalar_dense"]
    assert logged["loss"].device.type == "cpu"
    assert float(logged["loss"]) == float(total.inner)
    _, waits = waits_of(total.backward)
    assert not waits


def test_what_is_waited_for_is_seen():
    with Device() as device:
        values = torch.zeros(3, device=GPU)
        values.cpu().to(GPU)
        values[values > 0] = values[values <= 0].sum()
        bool((values > 0).any())
        torch.repeat_interleave(values.long())
    names = [name for name, _ in device.waits]
    assert names[:2] == ["_to_copy", "_to_copy"]
    assert names[2:] == ["index", "index_put_", "_local_scalar_dense", "repeat_interleave"]
    with Device() as device:
        torch.zeros(3).to(GPU, non_blocking=True).clamp(min=0).argmax()
        torch.repeat_interleave(torch.ones(3, dtype=torch.int64, device=GPU), output_size=3)
    assert not device.waits
