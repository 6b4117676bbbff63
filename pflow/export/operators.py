"""ONNX operators for functions of torch that it cannot translate, or that CPU runtimes have in single precision."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.onnx import symbolic_helper, symbolic_opset9
from torch.onnx import utils as registration


class _UnitVectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, dim: int) -> torch.Tensor:
        norm: torch.Tensor = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
        return vectors / norm.clamp(min=1e-12)

    @staticmethod
    def symbolic(g: Any, vectors: Any, dim: int) -> Any:
        return g.op("LpNormalization", vectors, axis_i=dim, p_i=2).setType(vectors.type())


def _unit_vectors(vectors: torch.Tensor, *, dim: int = 1) -> torch.Tensor:
    """`torch.nn.functional.normalize` as one operator; torch translates its own to five."""
    return _UnitVectors.apply(vectors, dim)  # type: ignore[no-any-return, no-untyped-call]


@contextlib.contextmanager
def translations(opset: int) -> Iterator[None]:
    """Translate with the functions of this module while the context is open."""
    functions: dict[str, Callable[..., Any]] = {
        "linalg_vector_norm": _vector_norm,
        "hypot": _hypot,
        "atan2": _atan2,
        "asinh": _asinh,
        "log10": _log10,
        "flatten": _flatten,
        "linalg_cross": _cross,
        "index_add": _index_add,
        "index_select": _index_select,
        "scatter_add": _scatter_add,
        "unbind": _unbind,
        "where": _where,
    }
    for name, function in functions.items():
        registration.register_custom_op_symbolic(f"aten::{name}", function, opset)
    normalize, functional.normalize = functional.normalize, _unit_vectors  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.normalize = normalize
        for name in functions:
            registration.unregister_custom_op_symbolic(f"aten::{name}", opset)


def _is_double(value: Any) -> bool:
    return bool(value.type().scalarType() == "Double")


def _constant(g: Any, value: float, like: Any) -> Any:
    dtype = torch.float64 if _is_double(like) else torch.float32
    return g.op("Constant", value_t=torch.tensor(value, dtype=dtype))


@symbolic_helper.parse_args("v", "f", "is", "b", "none")
def _vector_norm(g: Any, x: Any, order: float, dim: list[int] | None, keepdim: bool, dtype: None) -> Any:
    if order != 2.0:
        return symbolic_helper._unimplemented("linalg_vector_norm", f"of order {order}")
    axes = g.op("Constant", value_t=torch.tensor(dim if dim is not None else [], dtype=torch.int64))
    return g.op("ReduceL2", x, axes, keepdims_i=int(keepdim))


def _hypot(g: Any, x: Any, y: Any) -> Any:
    return g.op("Sqrt", g.op("Add", g.op("Mul", x, x), g.op("Mul", y, y)))


def _atan2(g: Any, y: Any, x: Any) -> Any:
    """2 atan(y / (r + x)) for x >= 0, 2 atan((r - x) / y) else; both arguments are in [-1, 1]."""
    zero, one, pi, minus_pi = (_constant(g, value, y) for value in (0.0, 1.0, math.pi, -math.pi))
    r = _hypot(g, x, y)
    ahead = g.op("GreaterOrEqual", x, zero)
    steep = g.op("Add", r, g.op("Abs", x))
    null = g.op("Equal", steep, zero)
    half = g.op("Div", y, g.op("Where", null, one, steep))
    if not _is_double(y):
        angle = g.op("Mul", g.op("Atan", half), _constant(g, 2.0, y))
    else:
        double, single = (symbolic_helper.cast_pytorch_to_onnx[name] for name in ("Double", "Float"))
        rough = g.op("Cast", g.op("Atan", g.op("Cast", half, to_i=single)), to_i=double)
        sine = g.op("Sin", rough)
        cosine = g.op("Sin", g.op("Add", rough, _constant(g, math.pi / 2, y)))
        # Newton's step for tan(a) = half, whose error is of the third order.
        numerator = g.op("Sub", g.op("Mul", half, cosine), sine)
        denominator = g.op("Add", cosine, g.op("Mul", half, sine))
        angle = g.op("Mul", g.op("Add", rough, g.op("Div", numerator, denominator)), _constant(g, 2.0, y))
    above, below = (g.op("Sub", value, angle) for value in (pi, minus_pi))
    return g.op("Where", ahead, angle, g.op("Where", g.op("Less", y, zero), below, above))


def _asinh(g: Any, x: Any) -> Any:
    if not _is_double(x):
        return g.op("Asinh", x)
    size = g.op("Abs", x)
    one = _constant(g, 1.0, x)
    log = g.op("Log", g.op("Add", size, g.op("Sqrt", g.op("Add", g.op("Mul", size, size), one))))
    return g.op("Mul", g.op("Sign", x), log)


def _log10(g: Any, x: Any) -> Any:
    """Torch's own translation divides a double by a constant in single precision."""
    return g.op("Div", g.op("Log", x), _constant(g, math.log(10.0), x))


@symbolic_helper.parse_args("v", "v", "i")
def _cross(g: Any, x: Any, y: Any, dim: int = -1) -> Any:
    """Torch's own translation cuts and joins each vector twice."""
    following, preceding = (g.op("Constant", value_t=torch.tensor(order)) for order in ([1, 2, 0], [2, 0, 1]))

    def part(of: Any, order: Any) -> Any:
        return g.op("Gather", of, order, axis_i=dim)

    forward = g.op("Mul", part(x, following), part(y, preceding))
    return g.op("Sub", forward, g.op("Mul", part(x, preceding), part(y, following)))


@symbolic_helper.parse_args("v", "i", "i")
def _flatten(g: Any, x: Any, start: int, stop: int) -> Any:
    """Torch's own translation asks for the lengths where all of them become one."""
    rank = symbolic_helper._get_tensor_rank(x)
    if rank is not None and start == 0 and stop in (-1, rank - 1):
        return g.op("Reshape", x, g.op("Constant", value_t=torch.tensor([-1])))
    return symbolic_opset9.flatten(g, x, start, stop)


@symbolic_helper.parse_args("v", "i", "v", "v", "none")
def _index_add(g: Any, x: Any, dim: int, index: Any, source: Any, alpha: None = None) -> Any:
    if dim != 0:
        return symbolic_helper._unimplemented("index_add", f"along axis {dim}")
    at = g.op("Unsqueeze", index, g.op("Constant", value_t=torch.tensor([1])))
    return g.op("ScatterND", x, at, source, reduction_s="add")


@symbolic_helper.parse_args("v", "i", "v")
def _index_select(g: Any, x: Any, dim: int, index: Any) -> Any:
    """Of one axis by elements: Gather copies them one by one, which takes ten times as long."""
    if symbolic_helper._get_tensor_rank(x) == symbolic_helper._get_tensor_rank(index) == 1:
        return g.op("GatherElements", x, index, axis_i=0)
    return g.op("Gather", x, index, axis_i=dim)


@symbolic_helper.parse_args("v", "i", "v", "v")
def _scatter_add(g: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
    """Torch's own translation cuts the source to the size of the index, which it has everywhere in pflow."""
    return g.op("ScatterElements", x, index, source, axis_i=dim, reduction_s="add")


@symbolic_helper.parse_args("v", "i", "i")
def _unbind(g: Any, x: Any, dim: int = 0, _outputs: int | None = None) -> Any:
    """Torch's own translation loses the type, and goes on in single precision."""
    if _outputs is None:
        return symbolic_helper._unimplemented("unbind", "into an unknown number of tensors")
    return [g.op("Gather", x, g.op("Constant", value_t=torch.tensor(i)), axis_i=dim) for i in range(_outputs)]


def _where(g: Any, condition: Any, x: Any, y: Any) -> Any:
    """Torch's own translation rounds a double to single precision beside a number of Python."""
    x, y = (_like(g, one, other) for one, other in ((x, y), (y, x)))
    return g.op("Where", condition, x, y)


def _like(g: Any, value: Any, other: Any) -> Any:
    """A constant number with the type of the other value."""
    constant = symbolic_helper._maybe_get_const(value, "t")
    if isinstance(constant, torch.Tensor) and constant.dim() == 0 and _is_double(other):
        return g.op("Constant", value_t=constant.double())
    return value
