"""Attention in blocks of tokens, as ONNX's operator Scan: `pflow.model.pointing.attention` in exported graphs.

torch's exporter has no translation to Scan, and turns a loop of a script into Loop, whose body has three times as many
operators. So torch traces a placeholder, and Scan takes its place in the ONNX model.

Letters: S tokens, R rows of a block, B blocks, H heads, K width of a key, D width of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflow.model.pointing.attention import MAX_WIDE, ROWS, Directions, attend_nearby, slices_nearby

DOMAIN, PLACEHOLDER = "pflow", "AttentionInBlocks"

MAX_SINGLE = 1000.0
"""Largest strength of a head whose preference for directions is computed in single precision, which rounds its logits
to 6e-8 of the strength."""


def attend_by_scan(
    query: Tensor, key: Tensor, value: Tensor, directions: Directions, strength: Tensor, *, strengths: list[float]
) -> Tensor:
    """Attend as `pflow.model.pointing.attention.attend_nearby`; during an export insert the placeholder.

    `strengths` are the values of `strength`, which cannot be read from a traced tensor.
    """
    if not torch.compiler.is_compiling():
        return attend_nearby(query, key, value, directions, strength)
    queries, keys, values = list(query.unbind(1)), list(key.unbind(1)), list(value.unbind(1))
    starts, stops = slices_nearby(query, key, directions, strength)[0].unbind()  # [H, B] each
    slices, widths = [], []
    sliced = [int(of_head > MAX_WIDE) for of_head in strengths]
    precise = [of_head if of_head > MAX_SINGLE else 0.0 for of_head in strengths]
    unit = directions.unit.float()
    for head, of_head in enumerate(strengths):
        if sliced[head]:
            slices += [starts[head][:, None], stops[head][:, None]]
        if not precise[head]:
            queries[head] = torch.cat([queries[head], of_head * unit], dim=1)
            keys[head] = torch.cat([keys[head], unit], dim=1)
        widths.append(int(queries[head].shape[1]))
    length = torch.ones_like(directions.angle, dtype=torch.int64).sum()
    first = torch.arange(0, unit.shape[0], ROWS)[:, None]
    row_in_block = torch.minimum(first + torch.arange(ROWS), length - 1).view(-1)  # the last one is repeated
    ones = torch.ones_like(directions.unit[:, :1])
    rows = torch.cat([directions.unit, ones], dim=1).index_select(0, row_in_block).view(-1, ROWS, 4)
    columns = torch.cat([directions.unit, -ones], dim=1)
    in_blocks = torch.cat(queries, dim=1).index_select(0, row_in_block).view(-1, ROWS, sum(widths))
    tensors = in_blocks, rows, columns, *slices, *keys, *values
    width = sum(int(part.shape[1]) for part in values)
    attended = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{PLACEHOLDER}",
        tensors,
        {"widths": widths, "sliced": sliced, "strengths": precise},
        dtype=query.dtype,
        shape=(in_blocks.shape[0], ROWS, width),
        version=1,
    )
    return attended.view(-1, width)[: unit.shape[0]]


class _Tensors(NamedTuple):
    """Names of the inputs of the placeholder for the attention of all heads in blocks of rows, float [B, R, H D].

    All heads of a block are computed together, as much as caches hold. Attributes are ``widths``, K of each head;
    ``sliced``, 1 for a head that sees one slice of the tokens in each block; and ``strengths`` of the heads for which
    strength (n_i . n_j - 1) is added to the logits (0: directions are part of its queries and keys).
    """

    queries: Any  # float [B, R, sum of K]
    rows: Any  # double [B, R, 4]; n_i . n_j - 1 = -|n_i - n_j|^2 / 2 is the product of a row and a column
    columns: Any  # double [S, 4]
    slices: Sequence[Any]  # of each head that sees a slice, its first tokens and those after its last, int64 [B, 1]
    keys: Sequence[Any]  # of each head, float [S, K]
    values: Sequence[Any]  # of each head, float [S, D]

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
    standard = [opset for opset in model.opset_import if opset.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(standard)


def _scan(placeholder: Any, name: str, onnx: Any) -> Any:
    """The node Scan of a placeholder."""
    node, kind = onnx.helper.make_node, onnx.TensorProto
    sizes, sliced, strengths = (
        onnx.helper.get_node_attr_value(placeholder, which) for which in ("widths", "sliced", "strengths")
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
