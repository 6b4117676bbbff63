"""The three graphs of a pointing network, with examples to trace them, and how to run them."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, cast

import torch
from torch import Tensor

from pflow.checkpoint.format import EXPORT_FORMAT
from pflow.checkpoint.load import TrainedModel
from pflow.export.graphs import Graph, Loop, TensorSpec
from pflow.export.pointing.encoder import EncoderGraph
from pflow.export.pointing.refinement import RefinementGraph
from pflow.export.pointing.step import DecoderStepGraph
from pflow.model.pointing import PointingReconstructor
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.physics.pdg import CLASSES
from pflow.tokens.features import FEATURES

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
    "before_hit_fraction": ("started", "items"),
}
"""Names of the axes of any length, where the name of a tensor does not tell."""


HOW_TO = (
    "One event a run; no axis counts events. Names are of 'inputs' and 'outputs' of the graphs. 'values' is a map from "
    "names to tensors.",
    "1. An event in which no hit has an energy above 'energy_above' (GeV), and that has no tracks or whose tracks the "
    "model does not read ('tracks'), has no particles: do not run the graphs.",
    "2. Inputs of 'encoder': hit_energy (GeV), hit_position (mm), hit_subdetector (index into 'subdetectors'), "
    "hit_layer (from 0, -1 unknown), track_momentum (GeV, at the vertex), track_charge (e), track_calo_position (mm) "
    "and track_calo_momentum (GeV), both where the track enters the calorimeter; hit_time (ns), track_d0, track_z0 "
    "(mm) and track_omega (1/mm) only for models that have these inputs. Inputs in 'known' must be known: "
    "finite, a layer not negative. Others may be NaN.",
    "3. Run 'encoder'; values = its outputs.",
    "4. Run 'decoder' with its inputs from values, and add its outputs to values. If truncated[0], limit[0] particles "
    "were decoded before the sequence ended; another number may be given as limit.",
    "5. If 'seed' is empty, the event has no particles. Otherwise run 'refinement' with its inputs from values.",
    "6. Its outputs are the particles: pdg, charge (e), energy and mass (GeV), momentum (GeV), covariance of (px, py, "
    "pz, E) as the lower triangle xx xy yy xz yz zz xt yt zt tt (GeV^2), score (probability of |pdg|), "
    "class_probability (columns: 'classes') and pdg_probability (columns: 'pdg'). hit_link_hit, hit_link_particle and "
    "hit_link_weight list which hit of the input has which fraction of its energy in which particle, sorted by "
    "particle, then by hit; track_link_* the same of tracks.",
)
"""How to use the files, step by step."""


def constants(model: TrainedModel, encoder: Graph | Loop) -> dict[str, str]:
    """Constants that a host needs beside the graphs."""
    tokeniser = model.tokeniser
    detector = tokeniser.detector
    sides = 0 if detector.truth_tracks is None else detector.truth_tracks.sides or 0
    return {
        "format": str(EXPORT_FORMAT),
        "architecture": "pointing",
        "detector": detector.name,
        "b_field": repr(detector.b_field),
        "calorimeter_face": f"{detector.ecal_inner_radius!r} {detector.ecal_inner_z!r} {sides}",
        "subdetectors": ",".join(calorimeter.name for calorimeter in detector.calorimeters),
        "energy_above": repr(tokeniser.config.hit_energy_min),
        "tracks": str(int(bool(tokeniser.config.track_features))),
        "known": ",".join(_known(model, [spec.name for spec in encoder.inputs])),
        "classes": ",".join(CLASSES),
        "pdg": ",".join(map(str, tokeniser.pdg.codes)),
    }


def _known(model: TrainedModel, inputs: Sequence[str]) -> list[str]:
    """The inputs whose numbers must be known: what cells and momenta are made of, and what features read."""
    config = model.tokeniser.config
    needed = {"hit_energy", "hit_position", "hit_subdetector", "track_momentum", "track_charge"}
    for part in ("hits", "tracks"):
        fields = [FEATURES[part][name].field.split(".") for name in config.features(part)]
        needed |= {f"{part.removesuffix('s')}_{field}" for _, field, *_ in fields}
    return [name for name in inputs if name in needed]


@torch.no_grad()
def pointing_graphs(model: TrainedModel, reconstructor: PointingReconstructor) -> dict[str, Graph | Loop]:
    """``encoder``, ``decoder`` and ``refinement`` of a model, which is not changed.

    They are run in this order, for one event at a time, and each reads outputs of those before it.
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
    before = {name: [value] for name, value in first.items() if name.startswith("before_")}
    decoded = {name: torch.cat([*before.get(f"before_{name}", ()), *parts]) for name, parts in rows.items()}
    inputs = {name: (first | decoded)[name] for name in refinement.inputs}
    final = dict(zip(refinement.outputs, refinement(*inputs.values()), strict=True))
    one_step = _graph(step, {name: values[name] for name in step.inputs}, outputs, {})
    return {
        "encoder": _graph(encoder, source, first, dict.fromkeys(encoder.inputs) | dict.fromkeys(before, "started")),
        "decoder": Loop(one_step, "decoded", "started" if before else ""),
        "refinement": _graph(
            refinement, inputs, final, dict.fromkeys(decoded, "decoded") | dict.fromkeys(final, "particles")
        ),
    }


def _graph(
    module: Any, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], first_axes: Mapping[str, str | None]
) -> Graph:
    def described(tensors: Mapping[str, Tensor]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                name,
                str(tensor.dtype).removeprefix("torch."),
                tuple(label or size for label, size in zip_longest(_axes(name, first_axes), tensor.shape)),
            )
            for name, tensor in tensors.items()
        )

    return Graph(module=module, example=tuple(inputs.values()), inputs=described(inputs), outputs=described(outputs))


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
    """A synthetic event: two groups of hits where the calorimeter begins, and tracks into one of them."""
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
        "track_calo_momentum": p.roll(1, dims=0),  # other numbers: tensors that are the same become one input
        **{
            f"track_{name}": torch.full((EXAMPLE_TRACKS,), math.exp(-i)) for i, name in enumerate(("d0", "z0", "omega"))
        },
    }
    return {name: fields[name].contiguous() for name in encoder.inputs}
