"""The encoder's graph: from hits and tracks to what the decoder and the refinement read.

Letters: N hits, K tracks, S tokens (cells, then tracks), M items (hits, then tracks), W width, H heads, D = W / H.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pflow.checkpoint.load import TrainedModel
from pflow.data.batch import Batch, Readout, TokenSet
from pflow.export.attention_scan import attend_by_scan
from pflow.export.pointing.cells import Hits, merge_hits
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.geometry import EncodedSource, Items, Tables, Tokens, make_tokens_and_items
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.step import State
from pflow.tokens.features import FEATURES
from pflow.tokens.readout import entry_of_tracks
from pflow.tokens.tokeniser import Tokeniser

EVENT = tuple(name for name in Tables._fields if name not in Tables._field_defaults)
"""Outputs that all steps read beside the memory: `Tables` without masks, as there is no padding."""

SOURCE = tuple(name for name in EVENT if name != "item_hidden")
"""Outputs that the refinement reads."""


TRACK_FIELDS = ("momentum", "charge", "calo_position", "calo_momentum")
"""Fields of tracks that the network reads in any case; others where a feature needs them."""


class EncoderGraph(nn.Module):
    """Compute `outputs` from the arrays of `inputs`, both by position; changes the network."""

    def __init__(self, model: TrainedModel, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        config = model.tokeniser.config
        self.tokeniser = model.tokeniser
        self.network, self.decoding = network, decoding
        times = ("time",) if "time" in config.hit_features else ()
        self.hit_fields = ("energy", "position", "subdetector", "layer", *times)
        names = config.track_features
        self.track_fields = (*TRACK_FIELDS, *(name for name in ("d0", "z0", "omega") if name in names)) if names else ()
        self.inputs = (*(f"hit_{name}" for name in self.hit_fields), *(f"track_{name}" for name in self.track_fields))
        self.outputs: tuple[str, ...] = ()
        for layer in network.encoder.stack.layers:
            strengths = layer.attention.strength.tolist()
            layer.attention.attend_nearby = functools.partial(attend_by_scan, strengths=strengths)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Encode."""
        values = self.values(dict(zip(self.inputs, arrays, strict=True)))
        self.outputs = tuple(values)
        return tuple(values.values())

    def values(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name."""
        tokeniser = self.tokeniser
        hit_index = (arrays["hit_energy"] > tokeniser.config.hit_energy_min).nonzero().squeeze(1)  # [N]
        chosen = {name: arrays[f"hit_{name}"].index_select(0, hit_index) for name in self.hit_fields}
        subdetector, layer = chosen["subdetector"].long(), chosen["layer"].long()
        hits = Hits(chosen["energy"], chosen["position"], chosen.get("time"), subdetector, layer)
        cells = merge_hits(hits, tokeniser.config.merge, tokeniser.detector)
        tracks = {name: arrays[f"track_{name}"] for name in self.track_fields}
        features = {"hits": _features("hits", cells.hits._asdict(), tokeniser)}
        if tracks:
            features["tracks"] = _features("tracks", tracks, tokeniser)
        batch = _batch(features, _readout(hits, cells.cell_of, tracks))
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
        first = State.first(self.network, tables, 1)._asdict()
        for i, (key, value) in enumerate(memory.layers):
            first |= {f"past_key_{i}": key[:, :, :0], f"past_value_{i}": value[:, :, :0]}
        is_hit = ~items.is_track
        return {
            "hit_index": hit_index,
            **{name: getattr(tables, name) for name in EVENT},
            **named,
            "limit": self.decoding.limits(is_hit.long().sum(1), items.is_track.long().sum(1)),
            **{f"initial_{name}": value for name, value in first.items()},
        }


def source_of(values: Mapping[str, Tensor]) -> EncodedSource:
    """The encoded source of one event from the outputs `SOURCE`."""

    def fields(kind: Any, part: str) -> dict[str, Tensor]:
        columns = {name: values[f"{part}_{name}"] for name in kind._fields if f"{part}_{name}" in values}
        return {name: value if name == "direction" else value[None] for name, value in columns.items()}

    tokens, items = fields(Tokens, "token"), fields(Items, "item")
    states = values["states"][None]
    return EncodedSource(
        Tokens(mask=torch.ones_like(tokens["is_track"]), track=tokens["item"][:, :0], **tokens),
        Items(mask=torch.ones_like(items["token"], dtype=torch.bool), **items),
        states,
        states[:, :0],
    )


def _features(part: str, fields: Mapping[str, Tensor | None], tokeniser: Tokeniser) -> Tensor:
    """Normalised features of hits or tracks, float [N, F]."""
    columns: dict[str, Any] = {}
    for name, values in fields.items():
        if values is not None and values.ndim == 2:
            axes = ("px", "py", "pz") if name.endswith("momentum") else "xyz"
            columns |= {f"{name}.{axis}": values[:, i].double() for i, axis in enumerate(axes)}
        else:
            columns[name] = values
    scale = tokeniser.scales[part]
    computed = [FEATURES[part][name].compute(columns, tokeniser.detector) for name in scale.names]
    return torch.stack(list(scale.normalised(computed)), dim=1).float()


def _batch(features: Mapping[str, Tensor], readout: Readout) -> Batch:
    """A batch of one event without padding."""
    sets: dict[str, Any] = {
        part: TokenSet(values[None], torch.ones_like(values[None, :, 0], dtype=torch.bool), full=True)
        for part, values in features.items()
    }
    return Batch(**sets, readout=readout)


def _readout(hits: Hits, token: Tensor, tracks: Mapping[str, Tensor]) -> Readout:
    """The readout of one event, see `pflow.tokens.readout`."""
    null = hits.position[:0]
    momentum, position = tracks.get("momentum", null), tracks.get("calo_position", null)
    at_calorimeter = tracks.get("calo_momentum", null)
    charge = tracks.get("charge", null[:, 0])
    position, direction = entry_of_tracks(momentum, position, at_calorimeter)
    return Readout(
        energy=hits.energy[None],
        position=hits.position[None],
        subdetector=hits.subdetector[None],
        layer=hits.layer[None],
        token=token[None],
        mask=torch.ones_like(hits.energy[None], dtype=torch.bool),
        track_momentum=momentum[None],
        track_charge=charge[None],
        track_position=position[None],
        track_direction=direction.float()[None],
        track_mask=torch.ones_like(charge[None], dtype=torch.bool),
    )
