"""The graphs of one decoder step, and from decoded particles to physical ones: `pflow.model.pointing.generate`, traced.

Letters: T decoded, P kept particles, M items, V codes, W width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pflow.checkpoint.load import TrainedModel
from pflow.event.jagged import MIN_HIT_FRACTION
from pflow.export.encoder import EVENT, ROWS, SOURCE, UNREFINED, rows_of, tables_of
from pflow.model.common.transformer import KeyValue, KVCache
from pflow.model.pointing.assignment import PairList
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import Memory
from pflow.model.pointing.generate import State, Steps, refine
from pflow.model.pointing.geometry import EncodedSource
from pflow.model.pointing.network import DecodedParticles, PointingNetwork
from pflow.tokens.particles import physical_particles

PARTICLES = (
    *("pdg", "charge", "energy", "mass", "momentum", "covariance"),
    *("score", "class_probability", "pdg_probability"),
)
"""Outputs that describe the particles."""
LINKS = tuple(f"{part}_link_{name}" for part in ("hit", "track") for name in (part, "particle", "weight"))


class DecoderStepGraph(nn.Module):
    """Compute `outputs` from the arrays of `inputs`, both by position."""

    def __init__(self, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.layers = range(len(network.decoder.stack.layers))
        memory, past = (
            [f"{of}_{part}_{i}" for i in self.layers for part in ("key", "value")] for of in ("memory", "past")
        )
        state = (*State._fields, *past)
        self.inputs = (*EVENT, "pointer_keys", *memory, *(f"last_{name}" for name in state))
        self.outputs = ("stop", *(f"next_{name}" for name in state), *(f"row_{name}" for name in rows_of(network)))

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Decode."""
        values = dict(zip(self.inputs, arrays, strict=True))
        caches = [KVCache(KeyValue(values[f"last_past_key_{i}"], values[f"last_past_value_{i}"])) for i in self.layers]
        layers = [KeyValue(values[f"memory_key_{i}"], values[f"memory_value_{i}"]) for i in self.layers]
        state = State(*(values[f"last_{name}"] for name in State._fields))
        memory = Memory(layers, values["pointer_keys"].transpose(2, 3))
        steps = Steps(self.network, tables_of(values), state, caches, memory, self.decoding)
        outputs, row = {"stop": steps.point()}, steps.particle()
        outputs |= {f"next_{name}": value for name, value in steps.state._asdict().items()}
        for i, cache in enumerate(caches):
            assert cache.known is not None
            outputs |= {f"next_past_key_{i}": cache.known.key, f"next_past_value_{i}": cache.known.value}
        for name, value in row.items():
            outputs |= {f"row_{name}": value, f"row_{UNREFINED}{name}": value}
        outputs["row_embedded"] = row["embedded"] + 0.0  # another output of the same name is not possible
        return tuple(outputs[name] for name in self.outputs)


class RefinementGraph(nn.Module):
    """Compute `outputs` from the arrays of `inputs`, both by position; changes the network."""

    def __init__(self, model: TrainedModel, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.vocabulary, self.calibration = model.tokeniser.pdg, model.calibration
        refined = network.refiner is not None
        self.inputs = ("hit_index", *(SOURCE if refined else ()), *rows_of(network))
        self.outputs = (*PARTICLES, *(("existence",) if refined else ()), *LINKS)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Refine."""
        values = dict(zip(self.inputs, arrays, strict=True))
        if self.network.refiner is None:
            columns = {name.removeprefix(UNREFINED): column for name, column in values.items()}
            pairs = PairList.where(values["hit_fraction"][None] >= MIN_HIT_FRACTION)
            fraction = pairs.values(values["hit_fraction"][None])
        else:
            columns, pairs, fraction = self._refined(values)
        is_particle, hit_index = columns["is_particle"], values["hit_index"]
        row = is_particle.nonzero().squeeze(1)  # [P]
        particles = self._physical(columns, row)
        is_link = (fraction >= MIN_HIT_FRACTION) & is_particle.index_select(0, pairs.particle)
        of_hits, order = pairs.item < hit_index.shape[0], torch.cumsum(is_particle.long(), 0) - 1

        def links(selected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Item, particle and fraction."""
            index = selected.nonzero().squeeze(1)
            particle = order.index_select(0, pairs.particle.index_select(0, index))
            return pairs.item.index_select(0, index), particle, fraction.index_select(0, index)

        hit, track = links(is_link & of_hits), links(is_link & ~of_hits)
        tracks = track[0] - hit_index.shape[0], *track[1:]
        if "existence" in self.outputs:
            particles["existence"] = columns["existence"].index_select(0, row)
        described = (particles[name] for name in self.outputs if name not in LINKS)
        return (*described, hit_index.index_select(0, hit[0]), *hit[1:], *tracks)

    def _refined(self, values: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], PairList, Tensor]:
        """Columns [T, ...] of the refined particles, their pairs with items, and the fraction of the item of each pair;
        see `pflow.model.pointing.generate`."""
        network = self.network
        assert network.refiner is not None
        tables = tables_of(values)
        items = tables.items._replace(direction=tables.items.direction[0])
        source = EncodedSource(tables.tokens, items, tables.states, tables.hidden).change(lambda part: part[None])
        rows = {name: values[name][None] for name in ROWS}
        decoded = DecodedParticles.of(rows, torch.ones_like(rows["seed"], dtype=torch.bool))
        columns, refined = refine(network, decoded, source, self.decoding)
        fraction = refined.listed_log_fraction.exp()
        return {name: column[0] for name, column in columns.items()}, refined.refinement.pairs, fraction

    def _physical(self, columns: Mapping[str, Tensor], row: Tensor) -> dict[str, Tensor]:
        """The outputs `PARTICLES` [P, ...] of the particles at `row`, int64 [P], of the columns [T, ...]."""
        names = ("pdg", "charge", "direction", "energy_sigma", "direction_sigma", "by_track")
        probability = columns["pdg_logits"].index_select(0, row).softmax(-1)
        particles = physical_particles(
            **{name: columns[name].index_select(0, row) for name in names},
            energy=columns["log_energy"].index_select(0, row).double().exp(),
            pdg_probability=probability,
            vocabulary=self.vocabulary,
            calibration=self.calibration,
        )
        of_classes = {"score": particles["score"].float(), "class_probability": particles["scores"].float()}
        return {**particles, **of_classes, "pdg_probability": probability}
