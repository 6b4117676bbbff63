"""ONNX operators for functions of torch that its exporter lacks, or that CPU runtimes have in single precision only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from onnxscript import ir, opset18

op: Any = opset18  # typed for scripts, not for exported values


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The translations by the operator of torch that they replace."""
    aten = torch.ops.aten
    return {
        aten.hypot.default: _hypot,
        aten.cos.default: lambda x: op.Sin(op.Add(x, _constant(math.pi / 2, x))),
        aten.atan2.default: _atan2,
        aten.asinh.default: _asinh,
        aten.gelu.default: _gelu,
        aten.log10.default: lambda x: op.Div(op.Log(x), _constant(math.log(10.0), x)),
        aten.pow.Tensor_Scalar: _pow,
        aten.clamp.default: _clamp,
        aten.clamp.Tensor: _clamp,
        aten.index_select.default: _index_select,
        aten.scalar_tensor.default: _scalar_tensor,
    }


def _constant(value: float, like: Any) -> Any:
    return op.Constant(value=ir.tensor(np.array(value, dtype=like.dtype.numpy())))


def _scalar_tensor(value: Any, dtype: int = ir.DataType.FLOAT, **_: Any) -> Any:
    """Numbers in their own precision: torch's exporter rounds all to single precision."""
    if isinstance(value, ir.Value):
        return op.Cast(value, to=dtype)
    return op.Constant(value=ir.tensor(np.array(value, dtype=ir.DataType(dtype).numpy())))


def _hypot(x: Any, y: Any) -> Any:
    return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))


def _atan2(y: Any, x: Any) -> Any:
    """2 atan(y / (r + x)) for x >= 0, 2 atan((r - x) / y) else; both arguments are in [-1, 1]."""
    zero, one, two = (_constant(value, y) for value in (0.0, 1.0, 2.0))
    ahead = op.GreaterOrEqual(x, zero)
    steep = op.Add(_hypot(x, y), op.Abs(x))
    null = op.Equal(steep, zero)
    half = op.Div(y, op.Where(null, one, steep))
    if y.dtype != ir.DataType.DOUBLE:
        angle = op.Mul(op.Atan(half), two)
    else:
        rough = op.Cast(op.Atan(op.Cast(half, to=ir.DataType.FLOAT)), to=ir.DataType.DOUBLE)
        sine, cosine = op.Sin(rough), op.Sin(op.Add(rough, _constant(math.pi / 2, y)))
        # Newton's step for tan(a) = half, whose error is of the third order.
        off = op.Div(op.Sub(op.Mul(half, cosine), sine), op.Add(cosine, op.Mul(half, sine)))
        angle = op.Mul(op.Add(rough, off), two)
    behind = op.Where(op.Less(y, zero), _constant(-math.pi, y), _constant(math.pi, y))
    return op.Where(ahead, angle, op.Sub(behind, angle))


def _asinh(x: Any) -> Any:
    if x.dtype != ir.DataType.DOUBLE:
        return op.Asinh(x)
    size = op.Abs(x)
    log = op.Log(op.Add(size, op.Sqrt(op.Add(op.Mul(size, size), _constant(1.0, x)))))
    return op.Mul(op.Sign(x), log)


def _gelu(x: Any, approximate: str = "none") -> Any:
    """GELU in the order of operators that ONNX Runtime fuses."""
    error = op.Erf(op.Div(x, _constant(math.sqrt(2.0), x)))
    return op.Mul(op.Mul(x, op.Add(error, _constant(1.0, x))), _constant(0.5, x))


def _pow(x: Any, exponent: float) -> Any:
    return op.Mul(x, x) if exponent == 2 else op.Pow(x, _constant(exponent, x))


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    """Clip with numbers or scalar tensors as bounds; torch's exporter writes Max and Min, which are slower."""
    bounds = [
        bound if bound is None else op.CastLike(bound, x) if isinstance(bound, ir.Value) else _constant(bound, x)
        for bound in (low, high)
    ]
    return op.Clip(x, *bounds)


def _index_select(x: Any, dim: int, index: Any) -> Any:
    """GatherElements for 1-d tensors: Gather copies element by element, which takes ten times as long."""
    return op.GatherElements(x, index) if len(x.shape) == 1 else op.Gather(x, index, axis=dim)
