"""Every tensor of the shipped models is made on the device of its batch, seen without a GPU.

A tensor of `Elsewhere` is a CPU tensor that says it is on another device, ``meta``, which needs no driver. As on a GPU,
an operation on it and on a CPU tensor fails, unless that is a scalar or an index. Where no device is given a tensor is
made on the CPU.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from pflow.checkpoint.load import load_model
from pflow.data.collate import collate
from pflow.io.open import read_events
from pflow.model.pointing import reconstructor as reconstructor_module
from pflow.model.pointing.decoder_step import generate
from pflow.resources import shipped_models

GPU = torch.device("meta")

INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
"""Operations that take indices from the CPU too."""


class Elsewhere(Tensor):
    """A CPU tensor, `inner`, that says it is on a GPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=GPU,
        )
        tensor.inner = inner
        return tensor

    def __repr__(self):
        return f"Elsewhere({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """An operation, some of whose arguments are elsewhere or are to be."""
    name = func.overloadpacket.__name__
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    there = [leaf for leaf in leaves if isinstance(leaf, Elsewhere)]
    here = [leaf for leaf in leaves if not isinstance(leaf, Elsewhere)]
    device = kwargs.get("device")
    copies = name in ("_to_copy", "copy_")
    if there and not copies:
        assert all(leaf.ndim == 0 for leaf in here) or name in INDEXING, f"{name} of tensors on the CPU and on the GPU"
    goes = bool(there) if device is None else torch.device(device).type == GPU.type
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map_only(Elsewhere, lambda leaf: leaf.inner, (args, kwargs))
    found = func(*plain_args, **plain_kwargs)
    if copies and name == "copy_":
        return args[0]
    if func._schema.is_mutable and there:
        by_inner = {id(leaf.inner): leaf for leaf in there}
        if isinstance(found, Tensor) and id(found) in by_inner:
            return by_inner[id(found)]
    return tree_map_only(Tensor, Elsewhere, found) if goes else found


class Factories(TorchDispatchMode):
    """Tensors that are made on the GPU are elsewhere."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


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
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # knows no such device
    monkeypatch.setattr(reconstructor_module, "generate", generate.__wrapped__)  # no views of a subclass in inference
    model = load_model(request.param)
    tokens = model.tokeniser.encode(events[request.param], truth=True)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        reconstructor = model.reconstructor._apply(Elsewhere)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    with Factories():
        batch = collate([tokens[i] for i in range(len(tokens))]).to(GPU)
    return reconstructor, batch


@pytest.mark.parametrize("prepared", shipped_models(), indirect=True)
def test_decoding(prepared):
    reconstructor, batch = prepared
    assert isinstance(batch.hits.features, Elsewhere)
    with Factories(), torch.no_grad():
        generated = reconstructor.eval().generate(batch)
    assert isinstance(generated.energy, Elsewhere)
    assert generated.mask.inner.any()


@pytest.mark.parametrize("prepared", shipped_models(), indirect=True)
def test_a_training_step(prepared):
    reconstructor, batch = prepared
    reconstructor.train()
    with Factories():
        total = reconstructor.training_step(batch).losses["total"]
        total.backward()
    gradients = [parameter.grad for parameter in reconstructor.parameters() if parameter.grad is not None]
    assert gradients
    assert all(isinstance(gradient, Elsewhere) for gradient in gradients)


def test_a_tensor_on_the_cpu_would_be_seen():
    with Factories(), pytest.raises(AssertionError, match="add of tensors on the CPU and on the GPU"):
        torch.ones(3, device=GPU) + torch.ones(3)
