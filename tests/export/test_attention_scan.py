"""Attention in blocks gives the same in torch and as the Scan of an ONNX model."""

import numpy as np
import pytest
import torch

from pflow.export.attention_scan import AttentionInBlocks
from pflow.export.convert import to_onnx
from pflow.export.graphs import Graph, TensorSpec

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

ROWS, SIZES, VALUE = 4, [3, 2, 2], 5
SLICED, STRENGTHS = [0, 1, 1], [0.0, 0.0, 200.0]
INPUTS = (
    "queries",
    "rows",
    "columns",
    "begin_1",
    "end_1",
    "begin_2",
    "end_2",
    *(f"{p}_{h}" for p in "kv" for h in "012"),
)


class Attention(torch.nn.Module):
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return AttentionInBlocks.apply(SIZES, SLICED, STRENGTHS, *tensors)


def tensors(n_blocks: int, n_tokens: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Inputs by `INPUTS`, with slices of at least one token."""
    random = torch.Generator().manual_seed(seed)
    queries = torch.randn(n_blocks, ROWS, sum(SIZES), generator=random)
    unit = torch.nn.functional.normalize(torch.randn(n_tokens, 3, generator=random, dtype=torch.float64), dim=1)
    one = torch.ones(n_tokens, 1, dtype=torch.float64)
    at = torch.randint(0, n_tokens, (n_blocks, ROWS), generator=random)
    rows, columns = torch.cat([unit, one], dim=1)[at], torch.cat([unit, -one], dim=1)
    bounds = [
        torch.randint(0, n_tokens, (n_blocks, 2), generator=random).sort(1)[0] + torch.tensor([0, 1]) for _ in "12"
    ]
    slices = [part.contiguous() for both in bounds for part in both.split(1, dim=1)]
    keys = [torch.randn(n_tokens, size, generator=random) for size in SIZES]
    values = [torch.randn(n_tokens, VALUE, generator=random) for _ in SIZES]
    return queries, rows, columns, *slices, *keys, *values


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "attention.onnx"
    example = tensors(3, 7, seed=0)
    axes = {3: "blocks", 7: "tokens", 4: ROWS}
    specs = tuple(
        TensorSpec(
            name,
            str(x.dtype).removeprefix("torch."),
            tuple(axes.get(size, size) for size in x.shape[:1]) + tuple(x.shape[1:]),
        )
        for name, x in zip(INPUTS, example, strict=True)
    )
    result = TensorSpec("attended", "float32", ("blocks", ROWS, len(SIZES) * VALUE))
    to_onnx(Graph(module=Attention(), example=example, inputs=specs, outputs=(result,)), path, metadata={})
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("n_blocks", "n_tokens"), [(1, 1), (1, 4), (2, 5), (5, 40)])
def test_scan_gives_what_torch_gives(session, n_blocks, n_tokens):
    inputs = tensors(n_blocks, n_tokens, seed=n_tokens)
    (found,) = session.run(None, {name: x.numpy() for name, x in zip(INPUTS, inputs, strict=True)})
    np.testing.assert_allclose(found, Attention()(*inputs).numpy(), rtol=1e-5, atol=1e-6)


def test_a_head_sees_only_its_slice(session):
    inputs = {name: x.numpy().copy() for name, x in zip(INPUTS, tensors(2, 9, seed=1), strict=True)}
    inputs["begin_1"][:], inputs["end_1"][:] = 3, 4
    (found,) = session.run(None, inputs)
    np.testing.assert_allclose(
        found[..., VALUE : 2 * VALUE], np.broadcast_to(inputs["v_1"][3], (2, ROWS, VALUE)), rtol=1e-5
    )
