"""Export of a pointing model: a folder of three graphs (`pflow.model.pointing.generate`, traced) with tokens.json.

All arithmetic is in the graphs; who runs them moves tensors by name, for one event at a time, as cpp/README.md says.
The encoder goes from hits and tracks to what the others read, the decoder makes one step, and the refinement goes from
decoded particles to physical ones.

Letters: N hits, K tracks, S tokens (cells, then tracks), M items (hits, then tracks), T decoded, P kept particles, V
codes, W width, H heads, D = W / H.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.checkpoint import EXPORT_FILES, EXPORT_FORMAT, GRAPHS, TOKENS, Header, TrainedModel
from pflow.config import VERSION
from pflow.data.batch import Batch, Readout, TokenSet
from pflow.errors import ConfigError
from pflow.event.jagged import MIN_HIT_FRACTION
from pflow.event.merge import Grid, cells_of, equal_cells, sum_hits
from pflow.event.schema import PXYZ, XYZ
from pflow.export.convert import OPSET, Graph, Loop, TensorSpec, attend_by_scan, check_graphs, to_onnx
from pflow.io.atomic import check_output, replacing
from pflow.model.api import describe
from pflow.model.decode import change_tensors
from pflow.model.pointing import PointingReconstructor
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import Memory, PairList
from pflow.model.pointing.generate import State, Steps, emit_tracks, particle_limits, refine
from pflow.model.pointing.geometry import EncodedSource, Items, Tables, Tokens, make_tokens_and_items
from pflow.model.pointing.network import DecodedParticles, PointingNetwork
from pflow.model.transformer import KeyValue, KVCache
from pflow.physics.arrays import constant
from pflow.physics.detector import Detector, load_detector
from pflow.physics.pdg import CLASSES
from pflow.tokens.features import FEATURES, at_hadron_scale, kind_and_depth, with_entries
from pflow.tokens.particles import physical_particles
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig, readout_columns

SOURCE = (
    "states",
    *(f"token_{name}" for name in Tokens._fields if name not in ("mask", "track")),
    *(f"item_{name}" for name in Items._fields if name != "mask"),
)
"""Outputs that the refinement reads: all of the tokens and the items but masks, as there is no padding."""
EVENT = (*SOURCE, "item_hidden")
"""Outputs that all steps read, beside the memory."""

TRACK_FIELDS = ("momentum", "charge", "calo_position", "calo_momentum")
"""Fields of tracks that the network reads in any case; others where a feature needs them."""

ROWS = ("embedded", "query", "seed", "log_energy", "direction", "hit_fraction")
"""Columns of a particle that the refinement reads."""
UNREFINED_ROWS = ("is_particle", "pdg", "charge", "pdg_logits", "energy_sigma", "direction_sigma", "by_track")
"""Columns that the refinement graph also needs if the network has no refinement, with the prefix `UNREFINED`."""
UNREFINED = "decoded_"


def rows_of(network: PointingNetwork) -> tuple[str, ...]:
    """Columns of a decoded particle that the refinement graph reads."""
    return ROWS if network.refiner is not None else (*ROWS, *(UNREFINED + name for name in UNREFINED_ROWS))


def _fields_of(config: TokenConfig, part: str) -> set[str]:
    """Fields of hits or tracks that features read."""
    return {FEATURES[part][name].field.split(".")[1] for name in config.features(part)}


class EncoderGraph(nn.Module):
    """From the tensors `inputs` of hits and tracks to what the other graphs read, by name; changes the network."""

    def __init__(self, model: TrainedModel, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.tokeniser, self.network, self.decoding = model.tokeniser, network, decoding
        hits, tracks = (_fields_of(model.tokeniser.config, part) for part in ("hits", "tracks"))
        if foreign := tracks & {"phi", "tan_lambda"}:
            raise ConfigError(f"the C++ library has no {', '.join(sorted(foreign))} of tracks, which a feature reads")
        self.hit_fields = ("energy", "position", "subdetector", "layer", *(hits & {"time"}))
        self.track_fields = (*TRACK_FIELDS, *sorted(tracks - {*TRACK_FIELDS})) if tracks else ()
        self.inputs = (*(f"hit_{name}" for name in self.hit_fields), *(f"track_{name}" for name in self.track_fields))
        for layer in network.encoder.stack.layers:
            # As numbers, since the graph of a head depends on its strength, and traced tensors have no values.
            strengths = layer.attention.strength.tolist()
            layer.attention.attend_nearby = functools.partial(attend_by_scan, strengths=strengths)

    def forward(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Encode."""
        tokeniser = self.tokeniser
        config, detector = tokeniser.config, tokeniser.detector
        hit_index = (given["hit_energy"] > config.hit_energy_min).nonzero().squeeze(1)  # [N]
        hits = _columns({name: given[f"hit_{name}"].index_select(0, hit_index) for name in self.hit_fields})
        subdetector, layer = hits["subdetector"], hits["layer"]
        if config.geometry:
            hits["energy"] = at_hadron_scale(hits, detector)
            subdetector, layer = kind_and_depth(hits, detector)
        cells, token = hits, torch.cumsum(torch.ones_like(hit_index), 0) - 1
        if config.merge is not None:
            depth = layer if config.geometry else None
            grid = Grid.of(detector, config.merge)
            token, first = equal_cells(*cells_of(hits, grid, depth))
            cells = sum_hits(hits, token, first)
            cells["merged_size"] = constant(grid.size, like=token)[cells["subdetector"]]
        features, tracks = {"hits": _features("hits", cells, tokeniser)}, None
        if self.track_fields:
            tracks = _columns({name: given[f"track_{name}"] for name in self.track_fields})
            features["tracks"] = _features("tracks", with_entries(tracks, detector), tokeniser)
        readout = {**readout_columns(hits, tracks), "subdetector": subdetector, "layer": layer.float(), "token": token}
        sets: dict[str, Any] = {  # one event, without padding
            part: TokenSet(values[None], torch.ones_like(values[None, :, 0], dtype=torch.bool))
            for part, values in features.items()
        }
        of_event = {name: values[None] for name, values in readout.items()}
        mask, track_mask = (torch.ones_like(of_event[name], dtype=torch.bool) for name in ("energy", "track_charge"))
        batch = Batch(**sets, readout=Readout(**of_event, mask=mask, track_mask=track_mask))
        tokens, items = make_tokens_and_items(batch, n_subdetectors=self.network.n_subdetectors)
        states = self.network.encoder.of_event(features["hits"], features.get("tracks"), tokens.unit[0])[None]
        items = items._replace(direction=items.direction.double(), sums=items.sums.double())  # as the steps want them
        source = EncodedSource(tokens, items, states, self.network.assignment.pair_logits.items(states, items))
        tables, decoder = source.tables(), self.network.decoder
        memory = decoder.project(states)
        # Tokens as rows: a product of one query and such keys takes ONNX Runtime a third of the time.
        named = {"pointer_keys": memory.pointer.transpose(2, 3)}
        for i, (key, value) in enumerate(memory.layers):
            named |= {f"memory_key_{i}": key, f"memory_value_{i}": value}
        is_hit = ~items.is_track
        limit = particle_limits(self.decoding, is_hit.long().sum(1), items.is_track.long().sum(1))
        if decoder.embed_track is None:
            first = State.first(self.network, tables, 1)._asdict()
        else:
            # With a token that is no track: ONNX Runtime has no attention of nothing.
            is_track = functional.pad(torch.ones_like(tokens.track, dtype=torch.bool), (0, 1))
            padded = source._replace(tokens=tokens._replace(track=functional.pad(tokens.track, (0, 1))))
            state, rows = emit_tracks(self.network, padded, tables, memory, is_track, self.decoding)
            first = state._asdict()
            # The particles of the tracks are already made, and count to the limit.
            limit = (limit - items.is_track.long().sum(1)).clamp(min=0)
            row = rows["is_particle"][0].nonzero().squeeze(1)
            for name in rows_of(self.network):
                named[f"before_{name}"] = rows[name.removeprefix(UNREFINED)][0].index_select(0, row)
        for i, (key, value) in enumerate(memory.layers):
            # Empty, but with the heads and widths of the memory, so that the first step can append to it.
            first |= {f"past_key_{i}": key[:, :, :0], f"past_value_{i}": value[:, :, :0]}
        event = {"states": tables.states, "item_hidden": tables.hidden}
        event |= {f"token_{name}": values for name, values in tables.tokens._asdict().items()}
        event |= {f"item_{name}": values for name, values in tables.items._asdict().items()}
        return {
            "hit_index": hit_index,
            **{name: event[name] for name in EVENT},
            **named,
            "limit": limit,
            **{f"initial_{name}": value for name, value in first.items()},
        }


def tables_of(values: Mapping[str, Tensor]) -> Tables:
    """The tables of one event from the outputs `EVENT`, or `SOURCE`."""

    def fields(kind: Any, part: str) -> dict[str, Tensor]:
        return {name: values[f"{part}_{name}"] for name in kind._fields if f"{part}_{name}" in EVENT}

    tokens, items, states = fields(Tokens, "token"), fields(Items, "item"), values["states"]
    return Tables(
        Tokens(mask=torch.ones_like(tokens["is_track"]), track=tokens["item"][:0], **tokens),
        Items(mask=torch.ones_like(items["token"], dtype=torch.bool), **items),
        states,
        values.get("item_hidden", states[:, :0]),
        padded=False,
    )


def _columns(fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Columns as of `pflow.event.jagged.columns`; whole numbers as int64."""
    columns: dict[str, Tensor] = {}
    for name, values in fields.items():
        values = values if values.is_floating_point() else values.long()
        axes = () if values.ndim == 1 else PXYZ if name.endswith("momentum") else XYZ
        columns |= {f"{name}.{axis}": values[:, i] for i, axis in enumerate(axes)} or {name: values}
    return columns


def _features(part: str, columns: dict[str, Tensor], tokeniser: Tokeniser) -> Tensor:
    """Normalised features of hits or tracks, float [N, F]."""
    scale = tokeniser.scales[part]
    computed = [FEATURES[part][name].compute(columns, tokeniser.detector) for name in scale.names]
    return torch.stack(list(scale.normalised(computed)), dim=1).float()


PARTICLES = (
    *("pdg", "charge", "energy", "mass", "momentum", "covariance"),
    *("score", "class_probability", "pdg_probability"),
)
"""Outputs that describe the particles."""
LINK_OUTPUTS = tuple(f"{part}_link_{name}" for part in ("hit", "track") for name in (part, "particle", "weight"))


class DecoderStepGraph(nn.Module):
    """One step of the decoder, from the tensors `inputs` to the outputs, by name."""

    def __init__(self, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.layers = range(len(network.decoder.stack.layers))
        memory, past = (
            [f"{of}_{part}_{i}" for i in self.layers for part in ("key", "value")] for of in ("memory", "past")
        )
        self.inputs = (*EVENT, "pointer_keys", *memory, *(f"last_{name}" for name in (*State._fields, *past)))

    def forward(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Decode."""
        caches = [KVCache(KeyValue(given[f"last_past_key_{i}"], given[f"last_past_value_{i}"])) for i in self.layers]
        layers = [KeyValue(given[f"memory_key_{i}"], given[f"memory_value_{i}"]) for i in self.layers]
        state = State(*(given[f"last_{name}"] for name in State._fields))
        memory = Memory(layers, given["pointer_keys"].transpose(2, 3))
        steps = Steps(self.network, tables_of(given), state, caches, memory, self.decoding)
        outputs, row = {"stop": ~steps.advance()}, steps.particle()
        outputs |= {f"next_{name}": value for name, value in steps.state._asdict().items()}
        for i, cache in enumerate(caches):
            assert cache.known is not None
            outputs |= {f"next_past_key_{i}": cache.known.key, f"next_past_value_{i}": cache.known.value}
        row["embedded"] = row["embedded"] + 0.0  # a tensor cannot be two outputs, and this is in the state, too
        return outputs | {f"row_{name}": row[name.removeprefix(UNREFINED)] for name in rows_of(self.network)}


class RefinementGraph(nn.Module):
    """From the tensors `inputs` of decoded particles to physical ones, by name."""

    def __init__(self, model: TrainedModel, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.vocabulary, self.calibration = model.tokeniser.pdg, model.calibration
        refined = network.refiner is not None
        self.inputs = ("hit_index", *(SOURCE if refined else ()), *rows_of(network))

    def forward(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Refine."""
        if self.network.refiner is None:
            columns = {name.removeprefix(UNREFINED): column for name, column in given.items()}
            pairs = PairList.where(given["hit_fraction"][None] >= MIN_HIT_FRACTION)
            fraction = pairs.values(given["hit_fraction"][None])
        else:
            tables, rows = tables_of(given), {name: given[name][None] for name in ROWS}
            items = tables.items._replace(direction=tables.items.direction[0])
            parts = change_tensors(lambda part: part[None], [tables.tokens, items, tables.states, tables.hidden])
            source = EncodedSource(*parts)
            decoded = DecodedParticles.of(rows, torch.ones_like(rows["seed"], dtype=torch.bool))
            refined_columns, refined = refine(self.network, decoded, source, self.decoding)
            columns = {name: column[0] for name, column in refined_columns.items()}
            pairs, fraction = refined.refinement.pairs, refined.listed_log_fraction.exp()
        is_particle, hit_index = columns["is_particle"], given["hit_index"]
        row = is_particle.nonzero().squeeze(1)  # [P]
        names = ("pdg", "charge", "direction", "energy_sigma", "direction_sigma", "by_track")
        probability = columns["pdg_logits"].index_select(0, row).softmax(-1)
        particles = physical_particles(
            **{name: columns[name].index_select(0, row) for name in names},
            energy=columns["log_energy"].index_select(0, row).double().exp(),
            pdg_probability=probability,
            vocabulary=self.vocabulary,
            calibration=self.calibration,
        )
        scores = {"score": particles["score"].float(), "class_probability": particles["scores"].float()}
        particles |= {**scores, "pdg_probability": probability}
        is_link = (fraction >= MIN_HIT_FRACTION) & is_particle.index_select(0, pairs.particle)
        # Links count only the particles that are kept.
        of_hits, order = pairs.item < hit_index.shape[0], torch.cumsum(is_particle.long(), 0) - 1

        def links(selected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Item, particle and fraction."""
            index = selected.nonzero().squeeze(1)
            particle = order.index_select(0, pairs.particle.index_select(0, index))
            return pairs.item.index_select(0, index), particle, fraction.index_select(0, index)

        hit, track = links(is_link & of_hits), links(is_link & ~of_hits)
        # Items count tracks after the hits, a host counts them from 0.
        tracks = track[0] - hit_index.shape[0], *track[1:]
        outputs = {name: particles[name] for name in PARTICLES}
        if "existence" in columns:
            outputs["existence"] = columns["existence"].index_select(0, row)
        # A host counts all of its hits, also those whose energy was too low to be used.
        hits = hit_index.index_select(0, hit[0]), *hit[1:]
        return outputs | dict(zip(LINK_OUTPUTS, (*hits, *tracks), strict=True))


EXAMPLE_HITS, EXAMPLE_TRACKS, EXAMPLE_STEPS = 24, 3, 4  # none is 1: tracing takes sizes of 1 as constants

AXIS_NAMES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
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
        known |= {f"{part.removesuffix('s')}_{field}" for field in _fields_of(config, part)}
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
    # A copy, since EncoderGraph replaces the attention of its layers.
    network = copy.deepcopy(reconstructor.network).cpu().eval().requires_grad_(False)
    encoder, step = EncoderGraph(model, network, decoding), DecoderStepGraph(network, decoding)
    refinement = RefinementGraph(model, network, decoding)

    source = _example_source(model, encoder)
    first = encoder(source)
    values = first | {name.replace("initial_", "last_"): value for name, value in first.items()}
    steps: list[dict[str, Tensor]] = []
    # Some steps first: the step is traced with a past whose length is neither 0 nor 1, which would become constants.
    for _ in range(EXAMPLE_STEPS):
        steps.append(step(values))
        values |= {name.replace("next_", "last_"): value for name, value in steps[-1].items()}
    started = "started" if network.decoder.embed_track is not None else ""
    for name in rows_of(network):
        before = [first[f"before_{name}"]] if started else []
        values[name] = torch.cat([*before, *(outputs[f"row_{name}"] for outputs in steps)])
    return {
        "encoder": _graph(encoder, source),
        "decoder": Loop(_graph(step, values), "decoded", started),
        "refinement": _graph(refinement, values),
    }


def _graph(module: Any, values: Mapping[str, Tensor]) -> Graph:
    """A graph with its inputs among `values` as example."""
    inputs = {name: values[name] for name in module.inputs}

    def described(tensors: Mapping[str, Tensor]) -> tuple[TensorSpec, ...]:
        specs = []
        for name, tensor in tensors.items():
            axes = next((axes for pattern, axes in AXIS_NAMES if re.fullmatch(pattern, name)), ())
            shape = tuple(axis or size for axis, size in zip_longest(axes, tensor.shape))
            specs.append(TensorSpec(name, str(tensor.dtype).removeprefix("torch."), shape))
        return tuple(specs)

    return Graph(module, inputs, inputs=described(inputs), outputs=described(module(inputs)))


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
    # However high the model's threshold is, there is a hit above it.
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


def export_model(
    model: TrainedModel, folder: str | Path, *, detector: str | Path | Detector | None = None, force: bool = False
) -> tuple[Path, ...]:
    """Write a model as ``encoder.onnx``, ``decoder.onnx``, for some ``refinement.onnx``, and ``tokens.json``.

    Returns the paths. The folder appears only when it is complete; one that exists must be empty, or with `force` hold
    nothing but an earlier export. `detector`, by default the training's, is what the graphs of a model for any detector
    are for. ConfigError: there are no graphs of this architecture, the folder cannot be made there, or the model is for
    another detector. PflowError: ONNX Runtime computes something else than torch.
    """
    if detector is not None:
        detector = load_detector(detector)
        if differing := model.tokeniser.other_geometry(detector):
            raise ConfigError(
                f"{model.path} was trained on detector '{model.tokeniser.detector.name}', from which '{detector.name}' "
                f"differs in {', '.join(differing)}"
            )
        model = dataclasses.replace(model, tokeniser=dataclasses.replace(model.tokeniser, detector=detector))
    folder = check_output(folder, force=force, holds=EXPORT_FILES)
    if not hasattr(torch.onnx, "ops"):
        raise ConfigError(f"graphs need torch 2.13 (tested) or near it, and {torch.__version__} is installed")
    network = model.reconstructor
    if not isinstance(network, PointingReconstructor):
        raise ConfigError(f"{model.path} is a {type(network).__name__}: only pointing networks have graphs")
    graphs = pointing_graphs(model, network)
    header = Header(version=VERSION, tokeniser=model.tokeniser, model=describe(network), calibration=model.calibration)
    metadata = {**constants(model, graphs["encoder"]), "pflow_version": VERSION, "checkpoint_sha256": model.digest}
    # The graphs of one export are alike in it: the same weights may have another calibration, detector or decoding.
    made = json.dumps([header.to_dict(), model.digest]).encode()
    metadata["export"] = hashlib.sha256(made).hexdigest()
    with replacing(folder, force=force, holds=EXPORT_FILES) as partial:
        files = {name: partial / GRAPHS[name] for name in graphs}
        description: dict[str, Any] = {"format": EXPORT_FORMAT, "run": metadata, "checkpoint": header.to_dict()}
        for name, graph in graphs.items():
            read = to_onnx(graph, files[name], metadata={**metadata, "graph": name})
            # A host must not give inputs that the file does not have.
            tensors = {"inputs": [spec for spec in graph.inputs if spec.name in read], "outputs": graph.outputs}
            described = {which: [dataclasses.asdict(spec) for spec in specs] for which, specs in tensors.items()}
            description[name] = {"file": GRAPHS[name], "opset": OPSET, **described}
        check_graphs(graphs, files)
        description["sha256"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files.values()}
        text = json.dumps(description, indent=2, ensure_ascii=False, allow_nan=False)
        (partial / TOKENS).write_text(text + "\n", encoding="utf-8")
    return tuple(folder / name for name in (*(GRAPHS[graph] for graph in graphs), TOKENS))
