"""What ONNX Runtime computes beside what torch computes, before an export counts as done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import Tensor

from pflow.errors import ConfigError
from pflow.export.graphs import Graph
from pflow.export.loop import Loop

__all__ = ["check_graphs"]

TOLERANCE = 1e-3
"""Largest difference of a number, relative to the largest of its output: fifty times that of the shipped models."""

MAX_STEPS = 8
"""Most steps of a loop that are compared."""


@torch.no_grad()
def check_graphs(graphs: Mapping[str, Graph | Loop], files: Mapping[str, Path]) -> None:
    """Run each graph in ONNX Runtime and in torch, on its example; a ConfigError names the output that differs."""
    values: dict[str, Tensor] = {}
    for name, graph in graphs.items():
        if isinstance(graph, Loop):
            values |= {"limit": values["limit"].clamp(max=MAX_STEPS)}
            given = {spec.name: values[spec.name] for spec in graph.inputs}
            expected = graph.run(given)
        else:
            given = dict(zip((spec.name for spec in graph.inputs), graph.example, strict=True))
            expected = dict(zip((spec.name for spec in graph.outputs), graph.module(*graph.example), strict=True))
        values |= expected
        session = onnxruntime.InferenceSession(files[name].read_bytes(), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        read = {node.name for node in session.get_inputs()}
        found = session.run(names, {key: value.numpy() for key, value in given.items() if key in read})
        for output, ours in zip(names, found, strict=True):
            _compare(ours, expected[output].numpy(), f"{files[name].name}: output '{output}'")


def _compare(found: npt.NDArray[Any], expected: npt.NDArray[Any], what: str) -> None:
    largest = 0.0  # of what is exact
    if expected.dtype.kind == "f":
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=TOLERANCE)
    try:
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=TOLERANCE * largest)
    except AssertionError as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{what} differs in ONNX Runtime from torch: {text}") from error
