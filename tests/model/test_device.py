"""Every tensor of the shipped models is made on the device of its batch, and the host waits for it as rarely as it can.

Seen without a GPU: a tensor of `Elsewhere` is a CPU tensor that says it is on another device, ``meta``, which needs no
driver. As on a GPU, an operation on it and on a CPU tensor fails, unless that is a scalar or an index. Where no device
is given a tensor is made on the CPU.
"""

import contextlib
import copy
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

import pflow
from pflow.checkpoint import load_model
from pflow.data.dataset import LabelledBatch, collate
from pflow.io.open import read_events
from pflow.model.pointing import PointingDecodingConfig
from pflow.model.pointing import reconstructor as reconstructor_module
from pflow.model.pointing.generate import generate
from pflow.train.module import ParticleFlow

GPU = torch.device("meta")

INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
"""Operations that take indices from the CPU too."""

WAITING = (
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "multinomial"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
)
"""Operations whose result, or its shape, is known to the host only when the device has computed it."""


class Elsewhere(Tensor):
    """A CPU tensor, `inner`, that says it is on a GPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **layout, device=GPU)
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation, some of whose arguments are elsewhere or are to be."""
    name = func.overloadpacket.__name__
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    on_gpu = [leaf for leaf in leaves if isinstance(leaf, Elsewhere)]
    on_cpu = [leaf for leaf in leaves if not isinstance(leaf, Elsewhere)]
    device = kwargs.get("device")
    copies = name in ("_to_copy", "copy_")
    if on_gpu and not copies:
        scalars = all(leaf.ndim == 0 for leaf in on_cpu)
        assert scalars or name in INDEXING, f"{name} of tensors on the CPU and on the GPU"
    goes = bool(on_gpu) if device is None else torch.device(device).type == GPU.type
    if device is not None:
        kwargs["device"] = torch.device("cpu")
    plain_args, plain_kwargs = tree_map_only(Elsewhere, lambda leaf: leaf.inner, (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    if name == "copy_":
        return args[0]
    if func._schema.is_mutable and on_gpu:
        by_inner = {id(leaf.inner): leaf for leaf in on_gpu}
        if isinstance(result, Tensor) and id(result) in by_inner:
            return by_inner[id(result)]
    return tree_map_only(Tensor, Elsewhere, result) if goes else result


class Device(TorchDispatchMode):
    """Tensors that are made on the GPU are elsewhere, and what the host waits for is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[str, str]] = []
        """Operations that made the host wait, each with the places in pflow that led to it, innermost first."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_waited_for(func, args, kwargs):
            self.waits.append((func.overloadpacket.__name__, _places()))
        return _run(func, args, kwargs)


def _is_waited_for(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for the device in this operation."""
    name = func.overloadpacket.__name__
    leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    if name in ("_to_copy", "copy_"):  # it waits for a copy from the host to the device or back
        sides = {isinstance(leaf, Elsewhere) for leaf in leaves if leaf.numel()}
        if kwargs.get("device") is not None:
            sides.add(torch.device(kwargs["device"]).type == GPU.type)
        return len(sides) > 1 and not kwargs.get("non_blocking", len(args) > 2 and args[2])
    if not any(isinstance(leaf, Elsewhere) for leaf in leaves):
        return False
    if name in INDEXING:
        indices = [index for index in args[1] if index is not None]
        if any(index.ndim and not isinstance(index, Elsewhere) for index in indices):
            return True  # it is copied from the host
        return any(index.dtype in (torch.bool, torch.uint8) for index in indices)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in WAITING


def _places() -> str:
    folder = str(Path(pflow.__file__).parent)
    frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(folder)]
    return ", ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))


SAMPLES = {"general": "cld_multi_test_small.root", "ild-g4-photon": "gammasep_test_small.root"}
"""Of the shipped models whose operations can be followed: translation makes tensors where no operation is seen."""


@pytest.fixture(scope="module", params=SAMPLES)
def shipped(sample_dir, request):
    """A shipped model, not to be changed, and the tokens of two events."""
    model = load_model(request.param)
    return model.reconstructor, model.tokeniser.encode(read_events(sample_dir / SAMPLES[request.param], entry_stop=2))


@pytest.fixture
def prepared(shipped, monkeypatch):
    """The model and a batch, elsewhere."""
    monkeypatch.setattr(reconstructor_module, "generate", generate.__wrapped__)  # no views of a subclass in inference
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # it does not know the device
    monkeypatch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    with Device():
        batch = collate(shipped[1]).to(GPU)
    return copy.deepcopy(shipped[0])._apply(Elsewhere), batch


def on_the_cpu(part):
    return part.inner if isinstance(part, Elsewhere) else part._with(on_the_cpu)


def waits_of(work):
    """Result, and the operations that made the host wait."""
    with Device() as device:
        result = work()
    return result, device.waits


def test_decoding_gives_what_the_cpu_gives_and_waits_once_a_step(prepared, shipped):
    reconstructor, batch = prepared
    assert isinstance(batch.hits.features, Elsewhere)
    with torch.no_grad():
        particles, waits = waits_of(lambda: reconstructor.eval().generate(batch))
    expected = shipped[0].eval().generate(on_the_cpu(batch))
    assert particles.mask.inner.any()
    assert torch.equal(particles.mask.inner, expected.mask)
    torch.testing.assert_close(particles.energy.inner, expected.energy, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(particles.hit_fraction.inner, expected.hit_fraction, rtol=0, atol=1e-2)
    tracks = sum("emit_tracks" in where for _, where in waits)
    assert tracks == (batch.tracks is not None)
    decoding = [where for _, where in waits if "decode.py" in where]
    most_steps = particles.mask.shape[1] + PointingDecodingConfig().max_empty_steps
    assert len(decoding) <= 1 + most_steps
    # Three selections of the refinement, and the length of the result.
    assert len(waits) - len(decoding) - tracks == 4


@pytest.mark.parametrize("shipped", ["general"], indirect=True)
def test_a_training_step(prepared):
    reconstructor, batch = prepared
    reconstructor.train()
    with Device():
        total = reconstructor.training_step(batch)["total"]
        total.backward()
    gradients = [parameter.grad for parameter in reconstructor.parameters() if parameter.grad is not None]
    assert gradients
    assert all(isinstance(gradient, Elsewhere) for gradient in gradients)


@pytest.mark.parametrize("shipped", ["ild-g4-photon"], indirect=True)
@pytest.mark.parametrize("sampling", [False, True])
def test_a_training_step_waits_for_its_pairs_and_copies_its_losses(prepared, sampling):
    """With its own particles as input it makes pairs twice. On a GPU the copy is looked at a batch later."""
    reconstructor, batch = prepared
    reconstructor.train().network.refiner = None
    reconstructor.own_particles = sampling
    module = ParticleFlow()
    module.reconstructor, module._step = reconstructor, reconstructor.training_step
    module._trainer = SimpleNamespace(world_size=1, datamodule=None)
    module.log = lambda *_, **__: None
    number = torch.arange(len(batch))
    labelled = LabelledBatch(batch, number, number, ("",) * len(batch))
    total, waits = waits_of(lambda: module.training_step(labelled, 0))
    assert [name for name, _ in waits] == ["nonzero"] * (1 + int(sampling)) + ["_to_copy"]
    loss, waits = waits_of(module.check_losses)
    assert not waits
    assert loss.device.type == "cpu"
    assert float(loss) == float(total.inner)
    _, waits = waits_of(total.backward)
    assert not waits
