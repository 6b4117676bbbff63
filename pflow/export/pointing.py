"""The three graphs of a pointing network, with examples to trace them.

All arithmetic is in the graphs; who runs them moves tensors by name, for one event at a time, as cpp/README.md says.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, cast

import torch
from torch import Tensor

from pflow.checkpoint.format import EXPORT_FORMAT
from pflow.checkpoint.load import TrainedModel
from pflow.export.decoder import PARTICLES, DecoderStepGraph, RefinementGraph
from pflow.export.encoder import ROWS, UNREFINED, EncoderGraph, rows_of
from pflow.export.graphs import Graph, Loop, TensorSpec
from pflow.model.pointing import PointingReconstructor
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.physics.pdg import CLASSES
from pflow.tokens.features import FEATURES

EXAMPLE_HITS, EXAMPLE_TRACKS, EXAMPLE_STEPS = 24, 3, 4  # none is 1: tracing takes sizes of 1 as constants

AXES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("hit_index", ("used_hits",)),
    ("hit_link_.*", ("hit_links",)),
    ("track_link_.*", ("track_links",)),
    ("hit_fraction", ("decoded", "items")),
    (f"{'|'.join(ROWS)}|{UNREFINED}.*", ("decoded",)),
    ("row_hit_fraction", (None, "items")),
    ("before_hit_fraction", ("started", "items")),
    ("before_.*", ("started",)),
    ("hit_.*", ("hits",)),
    ("track_.*", ("tracks",)),
    ("item_direction", (None, None, "items")),
    ("item_.*|.*_unassigned", ("items",)),
    ("states|token_.*|.*_assigned_energy", ("tokens",)),
    ("pointer_keys|memory_.*", (None, None, "tokens")),
    ("next_past_.*", (None, None, "past_and_this")),
    (".*_past_.*", (None, None, "past")),
    (f"existence|{'|'.join(PARTICLES)}", ("particles",)),
)
"""Patterns of the names of tensors, and names of their axes of any length; the first that fits counts."""


def constants(model: TrainedModel, encoder: Graph | Loop) -> dict[str, str]:
    """Constants that a host needs beside the graphs."""
    detector, config = model.tokeniser.detector, model.tokeniser.config
    sides = 0 if detector.truth_tracks is None else detector.truth_tracks.sides or 0
    # Numbers must be known that cells and momenta are made of, and that features read.
    known = {"hit_energy", "hit_position", "hit_subdetector", "track_momentum", "track_charge"}
    for part in ("hits", "tracks"):
        fields = [FEATURES[part][name].field.split(".") for name in config.features(part)]
        known |= {f"{part.removesuffix('s')}_{field}" for _, field, *_ in fields}
    return {
        "format": str(EXPORT_FORMAT),
        "architecture": "pointing",
        "detector": detector.name,
        "b_field": repr(detector.b_field),
        "calorimeter_face": f"{detector.ecal_inner_radius!r} {detector.ecal_inner_z!r} {sides}",
        "ecal_outer_radius": repr(detector.ecal_outer_radius),
        "subdetectors": ",".join(calorimeter.name for calorimeter in detector.calorimeters),
        "energy_above": repr(config.hit_energy_min),
        "tracks": str(int(bool(config.track_features))),
        "known": ",".join(spec.name for spec in encoder.inputs if spec.name in known),
        "classes": ",".join(CLASSES),
        "pdg": ",".join(map(str, model.tokeniser.pdg.codes)),
    }


@torch.no_grad()
def pointing_graphs(model: TrainedModel, reconstructor: PointingReconstructor) -> dict[str, Graph | Loop]:
    """``encoder``, ``decoder`` and ``refinement`` of a model, which is not changed."""
    decoding = cast(PointingDecodingConfig, reconstructor.decoding)
    network = copy.deepcopy(reconstructor.network).cpu().eval().requires_grad_(False)
    encoder, step = EncoderGraph(model, network, decoding), DecoderStepGraph(network, decoding)
    refinement = RefinementGraph(model, network, decoding)

    source = _example_source(model, encoder)
    first = encoder.values(source)
    values = first | {name.replace("initial_", "last_"): value for name, value in first.items()}
    steps: list[dict[str, Tensor]] = []
    for _ in range(EXAMPLE_STEPS):
        steps.append(dict(zip(step.outputs, step(*(values[name] for name in step.inputs)), strict=True)))
        values |= {name.replace("next_", "last_"): value for name, value in steps[-1].items()}
    started = "started" if network.decoder.embed_track is not None else ""
    for name in rows_of(network):
        before = [first[f"before_{name}"]] if started else []
        values[name] = torch.cat([*before, *(outputs[f"row_{name}"] for outputs in steps)])
    inputs = {name: values[name] for name in refinement.inputs}
    final = dict(zip(refinement.outputs, refinement(*inputs.values()), strict=True))
    return {
        "encoder": _graph(encoder, source, first),
        "decoder": Loop(_graph(step, {name: values[name] for name in step.inputs}, steps[-1]), "decoded", started),
        "refinement": _graph(refinement, inputs, final),
    }


def _graph(module: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Graph:
    def described(tensors: Mapping[str, Tensor]) -> tuple[TensorSpec, ...]:
        specs = []
        for name, tensor in tensors.items():
            axes = next((axes for pattern, axes in AXES if re.fullmatch(pattern, name)), ())
            shape = tuple(axis or size for axis, size in zip_longest(axes, tensor.shape))
            specs.append(TensorSpec(name, str(tensor.dtype).removeprefix("torch."), shape))
        return tuple(specs)

    return Graph(module=module, example=tuple(inputs.values()), inputs=described(inputs), outputs=described(outputs))


def _example_source(model: TrainedModel, encoder: EncoderGraph) -> dict[str, Tensor]:
    """A synthetic event: two groups of hits where the calorimeter begins, some in the HCAL, and tracks into one."""
    detector = model.tokeniser.detector
    hcal = next((i for i, part in enumerate(detector.calorimeters) if part.kind == "hcal"), 0)
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
        "hit_subdetector": torch.where(hit % 3 == 0, hcal, 0).int(),
        "hit_layer": (hit // 2 % 6).int(),
        "hit_time": torch.ones(EXAMPLE_HITS),
        "track_momentum": p,
        "track_charge": torch.tensor([1.0, -1.0, 1.0]),
        "track_calo_position": p * (detector.ecal_inner_radius / p[:, :1]),
        "track_calo_momentum": p.roll(1, dims=0),  # other numbers: tensors that are the same become one input
        "track_d0": torch.full((EXAMPLE_TRACKS,), 1.0),
        "track_z0": torch.full((EXAMPLE_TRACKS,), 0.5),
        "track_omega": torch.full((EXAMPLE_TRACKS,), 0.1),
    }
    return {name: fields[name].contiguous() for name in encoder.inputs}
