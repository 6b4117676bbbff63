"""Attention in blocks of tokens, as ONNX's operator Scan: `pflow.model.pointing.encoder` in exported graphs.

torch's exporter has no translation to Scan, and turns a loop of a script into Loop, whose body has three times as many
operators. So torch traces a placeholder, and Scan takes its place in the ONNX model.

Letters: S tokens, R rows of a block, B blocks, H heads, K width of a key, D width of a value.
"""

from __future__ import annotations

from typing import Any

import onnx
import torch
from torch import Tensor

from pflow.model.pointing.encoder import BLOCK_TOKENS, MAX_WIDE, Directions, attend_nearby, slices_nearby

DOMAIN, PLACEHOLDER = "pflow", "AttentionInBlocks"

MAX_SINGLE = 1000.0
"""Largest strength of a head whose preference for directions is computed in single precision, which rounds its logits
to 6e-8 of the strength."""


def attend_by_scan(
    query: Tensor, key: Tensor, value: Tensor, directions: Directions, strength: Tensor, *, strengths: list[float]
) -> Tensor:
    """Attend as `pflow.model.pointing.encoder.attend_nearby`; during an export insert the placeholder.

    `strengths` are the values of `strength`, which cannot be read from a traced tensor. The placeholder gives float
    [B, R, H D]: all heads of a block are computed together, as much as caches hold. Its inputs are ``queries``, float
    [B, R, sum of K]; ``rows``, double [B, R, 4], and ``columns``, double [S, 4], whose products are n_i . n_j - 1; of
    each head that sees one slice of the tokens, its first token and the one after its last, int64 [B, 1]; and keys and
    values of each head, float [S, K] and [S, D]. Its attributes are ``widths``, K of each head; ``sliced``, 1 for a
    head that sees a slice; ``strengths`` (0: directions are part of the head's queries and keys).
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
    first = torch.arange(0, unit.shape[0], BLOCK_TOKENS)[:, None]
    row_in_block = torch.minimum(first + torch.arange(BLOCK_TOKENS), length - 1).view(-1)  # the last one is repeated
    ones = torch.ones_like(directions.unit[:, :1])
    rows = torch.cat([directions.unit, ones], dim=1).index_select(0, row_in_block).view(-1, BLOCK_TOKENS, 4)
    columns = torch.cat([directions.unit, -ones], dim=1)
    in_blocks = torch.cat(queries, dim=1).index_select(0, row_in_block).view(-1, BLOCK_TOKENS, sum(widths))
    tensors = in_blocks, rows, columns, *slices, *keys, *values
    width = sum(int(part.shape[1]) for part in values)
    attended = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{PLACEHOLDER}",
        tensors,
        {"widths": widths, "sliced": sliced, "strengths": precise},
        dtype=query.dtype,
        shape=(in_blocks.shape[0], BLOCK_TOKENS, width),
        version=1,
    )
    return attended.view(-1, width)[: unit.shape[0]]


def expand_attention(model: Any) -> None:
    """Put Scan in the place of each placeholder of an ONNX model."""
    for i, node in enumerate(model.graph.node):
        if node.domain == DOMAIN:
            node.CopyFrom(_scan(node, f"attention_{i}"))
    standard = [opset for opset in model.opset_import if opset.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(standard)


def _scan(placeholder: Any, name: str) -> Any:
    """The node Scan of a placeholder."""
    node, kind = onnx.helper.make_node, onnx.TensorProto
    sizes, sliced, strengths = (
        onnx.helper.get_node_attr_value(placeholder, which) for which in ("widths", "sliced", "strengths")
    )
    queries, rows, columns, *rest = placeholder.input
    n_heads, n_bounds = len(sizes), 2 * sum(sliced)
    bounds, keys, values = rest[:n_bounds], rest[n_bounds:-n_heads], rest[-n_heads:]
    axis = onnx.helper.make_tensor(f"{name}_axis", kind.INT64, [1], [0])
    lengths = onnx.helper.make_tensor(f"{name}_sizes", kind.INT64, [n_heads], sizes)
    body = [node("Split", ["queries", lengths.name], [f"query_{head}" for head in range(n_heads)], axis=1)]
    slices = [f"slice_{i}" for i in range(n_bounds)]
    ends = iter(slices)
    for head, (strength, key, value) in enumerate(zip(strengths, keys, values, strict=True)):
        seen = {"key": key, "value": value} | ({"columns": columns} if strength else {})
        if sliced[head]:
            slice_of_head = next(ends), next(ends), axis.name
            for part, whole in seen.items():
                body.append(node("Slice", [whole, *slice_of_head], [f"{part}_{head}"]))
                seen[part] = f"{part}_{head}"
        near, factor = [], {}
        if strength:
            body.append(node("Gemm", ["rows", seen["columns"]], [f"precise_{head}"], transB=1))
            body.append(node("Cast", [f"precise_{head}"], [f"near_{head}"], to=kind.FLOAT))
            near, factor = [f"near_{head}"], {"beta": strength}
        body.append(node("Gemm", [f"query_{head}", seen["key"], *near], [f"logits_{head}"], transB=1, **factor))
        body.append(node("Softmax", [f"logits_{head}"], [f"weight_{head}"], axis=1))
        body.append(node("MatMul", [f"weight_{head}", seen["value"]], [f"attended_{head}"]))
    body.append(node("Concat", [f"attended_{head}" for head in range(n_heads)], ["attended"], axis=1))
    info = onnx.helper.make_tensor_value_info
    scanned = [
        info("queries", kind.FLOAT, ["rows", sum(sizes)]),
        info("rows", kind.DOUBLE, ["rows", 4]),
        *(info(bound, kind.INT64, [1]) for bound in slices),
    ]
    result = info("attended", kind.FLOAT, None)
    graph = onnx.helper.make_graph(body, name, scanned, [result], initializer=[axis, lengths])
    inputs = [queries, rows, *bounds]
    return node("Scan", inputs, [placeholder.output[0]], body=graph, num_scan_inputs=len(inputs))
