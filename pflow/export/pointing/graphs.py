"""The three graphs of a pointing network, with examples to trace them, and names and shapes of their tensors."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pflow.checkpoint.load import TrainedModel
from pflow.export.graphs import Graph, TensorSpec
from pflow.export.loop import Loop
from pflow.export.pointing.encoder import EncoderGraph
from pflow.export.pointing.refinement import RefinementGraph
from pflow.export.pointing.step import DecoderStepGraph
from pflow.model.pointing import PointingReconstructor
from pflow.model.pointing.config import PointingDecodingConfig

__all__ = ["pointing_graphs"]

EXAMPLE_HITS, EXAMPLE_TRACKS, EXAMPLE_STEPS = 24, 3, 4  # none is 1: tracing takes sizes of 1 as constants

AXES: dict[str, tuple[str | None, ...]] = {
    "hit_index": ("used_hits",),
    "states": ("tokens",),
    "memory_key": (None, None, "tokens"),
    "memory_value": (None, None, "tokens"),
    "pointer_keys": (None, None, "tokens"),
    "item_direction": (None, None, "items"),
    "past_key": (None, None, "past"),
    "past_value": (None, None, "past"),
    "next_past_key": (None, None, "past_and_this"),
    "next_past_value": (None, None, "past_and_this"),
    "limit": (),
    "unassigned": ("items",),
    "assigned_energy": ("tokens",),
    "hit_fraction": ("decoded", "items"),
    "row_hit_fraction": (None, "items"),
}
"""Names of the axes of any length, where the name of a tensor does not tell."""


@torch.no_grad()
def pointing_graphs(model: TrainedModel, reconstructor: PointingReconstructor) -> dict[str, Graph | Loop]:
    """``encoder``, ``decoder`` and ``refinement`` of a model.

    Parameters
    ----------
    model, reconstructor
        A model and the network in it; not changed.
    """
    decoding = cast(PointingDecodingConfig, reconstructor.decoding)
    network = copy.deepcopy(reconstructor.network).cpu().eval().requires_grad_(False)
    encoder, step = EncoderGraph(model, network, decoding), DecoderStepGraph(network, decoding)
    refinement = RefinementGraph(model, network, decoding)

    source = _example_source(model, encoder)
    first = encoder.values(source)
    values = first | {name.replace("initial_", "last_"): value for name, value in first.items()}
    rows: dict[str, list[Tensor]] = {}
    for _ in range(EXAMPLE_STEPS):
        outputs = dict(zip(step.outputs, step(*(values[name] for name in step.inputs)), strict=True))
        values |= {name.replace("next_", "last_"): value for name, value in outputs.items()}
        for name, value in outputs.items():
            if name.startswith("row_"):
                rows.setdefault(name[4:], []).append(value)
    decoded = {name: torch.cat(parts) for name, parts in rows.items()}
    inputs = {name: (first | decoded)[name] for name in refinement.inputs}
    final = dict(zip(refinement.outputs, refinement(*inputs.values()), strict=True))
    one_step = _graph(step, {name: values[name] for name in step.inputs}, outputs, {})
    return {
        "encoder": _graph(encoder, source, first, dict.fromkeys(encoder.inputs)),
        "decoder": Loop(one_step, "decoded"),
        "refinement": _graph(
            refinement, inputs, final, dict.fromkeys(decoded, "decoded") | dict.fromkeys(final, "particles")
        ),
    }


def _graph(
    module: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], first_axes: Mapping[str, str | None]
) -> Graph:
    def spec(name: str, tensor: Tensor) -> TensorSpec:
        axes = _axes(name, first_axes)
        shape = [*axes, *[None] * (tensor.ndim - len(axes))]
        named = tuple(size if label is None else label for label, size in zip(shape, tensor.shape, strict=True))
        return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), named)

    return Graph(
        module=module,
        example=tuple(inputs.values()),
        inputs=tuple(spec(name, tensor) for name, tensor in inputs.items()),
        outputs=tuple(spec(name, tensor) for name, tensor in outputs.items()),
    )


def _axes(name: str, first_axes: Mapping[str, str | None]) -> Sequence[str | None]:
    part = name.partition("_")[0]
    name = re.sub(r"_\d+$", "", name)  # of a layer
    name = name if name in AXES else name.removeprefix(f"{part}_" if part in ("initial", "last", "next") else "")
    if "_link_" in name:
        return (f"{part}_links",)
    if name in AXES:
        return AXES[name]
    if first_axes.get(name):
        return (first_axes[name],)
    if part in ("token", "item") or name in first_axes:
        return (f"{part}s",)
    return ()


def _example_source(model: TrainedModel, encoder: EncoderGraph) -> dict[str, Tensor]:
    """An event by hand: two groups of hits where the calorimeter begins, and tracks into one of them."""
    detector = model.tokeniser.detector
    generator = torch.Generator().manual_seed(0)
    hit = torch.arange(EXAMPLE_HITS)
    radius = detector.ecal_inner_radius + 10.0 * (hit // 2 % 6)  # mm
    off = 40.0 * torch.rand(EXAMPLE_HITS, 2, generator=generator)
    position = torch.stack([radius, off[:, 0], off[:, 1] + 200.0 * (hit % 2)], dim=1)
    energy = 0.05 + torch.rand(EXAMPLE_HITS, generator=generator)
    energy[0] = 2.0 * max(1.0, model.tokeniser.config.hit_energy_min)
    p = torch.tensor([[5.0, 0.1, 0.0], [2.0, 0.0, 0.3], [1.0, 0.1, 0.1]])
    fields = {
        "hit_energy": energy,
        "hit_position": position,
        "hit_subdetector": torch.zeros(EXAMPLE_HITS, dtype=torch.int32),
        "hit_layer": (hit // 2 % 6).int(),
        "hit_time": torch.ones(EXAMPLE_HITS),
        "track_momentum": p,
        "track_charge": torch.tensor([1.0, -1.0, 1.0]),
        "track_calo_position": p * (detector.ecal_inner_radius / p[:, :1]),
        "track_calo_momentum": p,
        **{
            f"track_{name}": torch.full((EXAMPLE_TRACKS,), math.exp(-i)) for i, name in enumerate(("d0", "z0", "omega"))
        },
    }
    return {name: fields[name].contiguous() for name in encoder.inputs}
