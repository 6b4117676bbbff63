"""Attention in blocks of tokens, as ONNX's operator Scan.

torch's exporter has no translation to Scan, and turns a loop of a script into Loop, whose body has three times as many
operators. So torch traces a placeholder, and Scan takes its place in the ONNX model.

Letters: S tokens, R rows of a block, B blocks, H heads, K width of a key, D width of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["AttentionInBlocks", "expand_attention"]

DOMAIN, PLACEHOLDER = "pflow", "AttentionInBlocks"


class AttentionInBlocks(torch.autograd.Function):
    """Attention of all heads in blocks of rows, float [B, R, H D].

    All heads of a block are computed together, as much as caches hold.

    Parameters
    ----------
    sizes
        K of each head.
    sliced
        Of each head, 1: it sees one slice of the tokens in each block.
    strengths
        Of each head, whose strength (n_i . n_j - 1) is added to the logits; 0: directions are part of its queries and
        keys.
    tensors
        Queries float [B, R, sum of K]; rows double [B, R, 4] and columns double [S, 4], whose products are
        n_i . n_j - 1; for each head that sees slices the first token of each and the one after the last, int64 [B, 1];
        for each head keys float [S, K]; and for each head values float [S, D].
    """

    @staticmethod
    def forward(ctx: Any, sizes: list[int], sliced: list[int], strengths: list[float], *tensors: Tensor) -> Tensor:
        """Attend."""
        parts = _Tensors.of(tensors, sliced)
        blocks = []
        for block in range(parts.queries.shape[0]):
            attended, slices = [], iter(parts.slices)
            of_heads = zip(
                torch.split(parts.queries[block], sizes, dim=1),
                parts.keys,
                parts.values,
                sliced,
                strengths,
                strict=True,
            )
            for query, key, value, is_sliced, strength in of_heads:
                begin, end = (int(next(slices)[block]) for _ in range(2)) if is_sliced else (0, len(key))
                logits = query @ key[begin:end].t()
                if strength:
                    logits += strength * (parts.rows[block] @ parts.columns[begin:end].t()).float()
                attended.append(logits.softmax(-1) @ value[begin:end])
            blocks.append(torch.cat(attended, dim=1))
        return torch.stack(blocks)

    @staticmethod
    def symbolic(g: Any, sizes: list[int], sliced: list[int], strengths: list[float], *tensors: Any) -> Any:
        """The placeholder."""
        placeholder = g.op(f"{DOMAIN}::{PLACEHOLDER}", *tensors, sizes_i=sizes, sliced_i=sliced, strengths_f=strengths)
        return placeholder.setType(tensors[0].type().with_sizes([None, None, None]))


class _Tensors(NamedTuple):
    """The tensors of `AttentionInBlocks`, or their names."""

    queries: Any
    rows: Any
    columns: Any
    slices: Sequence[Any]
    keys: Sequence[Any]
    values: Sequence[Any]

    @classmethod
    def of(cls, tensors: Sequence[Any], sliced: Sequence[int]) -> _Tensors:
        queries, rows, columns, *rest = tensors
        heads, slices = len(sliced), 2 * sum(sliced)
        return cls(queries, rows, columns, rest[:slices], rest[slices : slices + heads], rest[slices + heads :])


def expand_attention(model: Any, onnx: Any) -> None:
    """Put Scan in the place of each placeholder of an ONNX model; `onnx` is the package."""
    nodes = []
    for i, node in enumerate(model.graph.node):
        nodes.append(_scan(node, f"attention_{i}", onnx) if node.domain == DOMAIN else node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    kept = [opset for opset in model.opset_import if opset.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _scan(placeholder: Any, name: str, onnx: Any) -> Any:
    """The node Scan of a placeholder."""
    node, kind = onnx.helper.make_node, onnx.TensorProto
    sizes, sliced, strengths = (
        onnx.helper.get_node_attr_value(placeholder, which) for which in ("sizes", "sliced", "strengths")
    )
    parts, heads = _Tensors.of(placeholder.input, sliced), range(len(sizes))
    axis = onnx.helper.make_tensor(f"{name}_axis", kind.INT64, [1], [0])
    lengths = onnx.helper.make_tensor(f"{name}_sizes", kind.INT64, [len(sizes)], sizes)
    body = [node("Split", ["queries", lengths.name], [f"query_{head}" for head in heads], axis=1)]
    slices = [f"slice_{i}" for i in range(len(parts.slices))]
    bounds = iter(slices)
    for head, strength in enumerate(strengths):
        key, value, columns, near, factor = parts.keys[head], parts.values[head], parts.columns, [], {}
        if sliced[head]:
            names = [f"{of}_{head}" for of in ("key", "value", "columns")][: 3 if strength else 2]
            bound = next(bounds), next(bounds)
            body += [
                node("Slice", [whole, *bound, axis.name], [part])
                for whole, part in zip((key, value, columns), names, strict=False)
            ]
            key, value, columns = (*names, columns)[:3]
        if strength:
            body.append(node("Gemm", ["rows", columns], [f"precise_{head}"], transB=1))
            body.append(node("Cast", [f"precise_{head}"], [f"near_{head}"], to=kind.FLOAT))
            near, factor = [f"near_{head}"], {"beta": strength}
        body.append(node("Gemm", [f"query_{head}", key, *near], [f"logits_{head}"], transB=1, **factor))
        body.append(node("Softmax", [f"logits_{head}"], [f"weight_{head}"], axis=1))
        body.append(node("MatMul", [f"weight_{head}", value], [f"attended_{head}"]))
    body.append(node("Concat", [f"attended_{head}" for head in heads], ["attended"], axis=1))
    values = onnx.helper.make_tensor_value_info
    scanned = [
        values("queries", kind.FLOAT, ["rows", sum(sizes)]),
        values("rows", kind.DOUBLE, ["rows", 4]),
        *(values(bound, kind.INT64, [1]) for bound in slices),
    ]
    result = values("attended", kind.FLOAT, None)
    graph = onnx.helper.make_graph(body, name, scanned, [result], initializer=[axis, lengths])
    inputs = [parts.queries, parts.rows, *parts.slices]
    return node("Scan", inputs, [placeholder.output[0]], body=graph, num_scan_inputs=len(inputs))
