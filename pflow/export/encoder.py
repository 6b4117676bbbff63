"""The encoder's graph: from hits and tracks to what the decoder and the refinement read.

Letters: N hits, K tracks, S tokens (cells, then tracks), M items (hits, then tracks), W width, H heads, D = W / H.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.checkpoint.load import TrainedModel
from pflow.data.batch import Batch, Readout, TokenSet
from pflow.event.merge_hits import Grid, cells_of, equal_cells, sum_hits
from pflow.event.schema import PXYZ, XYZ
from pflow.export.attention_scan import attend_by_scan
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.generate import State, emit_tracks, particle_limits
from pflow.model.pointing.geometry import EncodedSource, Items, Tables, Tokens, make_tokens_and_items
from pflow.model.pointing.network import PointingNetwork
from pflow.tokens.features import FEATURES, at_hadron_scale, kind_and_depth
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import readout_columns

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


class EncoderGraph(nn.Module):
    """Compute `values` from the arrays of `inputs`, both by position; changes the network."""

    def __init__(self, model: TrainedModel, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.tokeniser, self.network, self.decoding = model.tokeniser, network, decoding
        names = model.tokeniser.config.track_features
        times = ("time",) if "time" in model.tokeniser.config.hit_features else ()
        self.hit_fields = ("energy", "position", "subdetector", "layer", *times)
        self.track_fields = (*TRACK_FIELDS, *(name for name in ("d0", "z0", "omega") if name in names)) if names else ()
        self.inputs = (*(f"hit_{name}" for name in self.hit_fields), *(f"track_{name}" for name in self.track_fields))
        for layer in network.encoder.stack.layers:
            strengths = layer.attention.strength.tolist()
            layer.attention.attend_nearby = functools.partial(attend_by_scan, strengths=strengths)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Encode."""
        return tuple(self.values(dict(zip(self.inputs, arrays, strict=True))).values())

    def values(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name."""
        tokeniser = self.tokeniser
        config, detector = tokeniser.config, tokeniser.detector
        hit_index = (arrays["hit_energy"] > config.hit_energy_min).nonzero().squeeze(1)  # [N]
        hits = _columns({name: arrays[f"hit_{name}"].index_select(0, hit_index) for name in self.hit_fields})
        subdetector, layer = hits["subdetector"], hits["layer"]
        if config.geometry:
            hits["energy"] = at_hadron_scale(hits, detector)
            subdetector, layer = kind_and_depth(hits, detector)
        cells, token = hits, torch.cumsum(torch.ones_like(hit_index), 0) - 1
        if config.merge is not None:
            depth = layer if config.geometry else None
            token, first = equal_cells(*cells_of(hits, Grid.of(detector, config.merge), depth))
            cells = sum_hits(hits, token, first, with_time="time" in hits)
        features, tracks = {"hits": _features("hits", cells, tokeniser)}, None
        if self.track_fields:
            tracks = _columns({name: arrays[f"track_{name}"] for name in self.track_fields})
            features["tracks"] = _features("tracks", tracks, tokeniser)
        readout = {**readout_columns(hits, tracks), "subdetector": subdetector, "layer": layer.float(), "token": token}
        batch = _batch(features, readout)
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
            limit = (limit - items.is_track.long().sum(1)).clamp(min=0)
            row = rows["is_particle"][0].nonzero().squeeze(1)
            for name in rows_of(self.network):
                named[f"before_{name}"] = rows[name.removeprefix(UNREFINED)][0].index_select(0, row)
        for i, (key, value) in enumerate(memory.layers):
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


def _batch(features: Mapping[str, Tensor], readout: Mapping[str, Tensor]) -> Batch:
    """A batch of one event without padding."""
    sets: dict[str, Any] = {
        part: TokenSet(values[None], torch.ones_like(values[None, :, 0], dtype=torch.bool), full=True)
        for part, values in features.items()
    }
    columns = {name: values[None] for name, values in readout.items()}
    mask, track_mask = (torch.ones_like(columns[name], dtype=torch.bool) for name in ("energy", "track_charge"))
    return Batch(**sets, readout=Readout(**columns, mask=mask, track_mask=track_mask))
