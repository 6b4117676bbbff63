"""The graph of one decoder step: `pflow.model.pointing.generate` of one event, from tensors to tensors."""

from __future__ import annotations

from torch import Tensor, nn

from pflow.export.pointing.encoder import EVENT, UNREFINED, rows_of, tables_of
from pflow.model.common.transformer import KeyValue, Past
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import Memory
from pflow.model.pointing.generate import State, step
from pflow.model.pointing.network import PointingNetwork


class DecoderStepGraph(nn.Module):
    """Compute `outputs` from the arrays of `inputs`, both by position."""

    def __init__(self, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        self.network, self.decoding = network, decoding
        self.layers = range(len(network.decoder.stack.layers))
        past = [f"past_{part}_{i}" for i in self.layers for part in ("key", "value")]
        memory = [f"memory_{part}_{i}" for i in self.layers for part in ("key", "value")]
        state = (*State._fields, *past)
        self.inputs = (*EVENT, "pointer_keys", *memory, *(f"last_{name}" for name in state))
        self.outputs = ("stop", *(f"next_{name}" for name in state), *(f"row_{name}" for name in rows_of(network)))

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Decode."""
        values = dict(zip(self.inputs, arrays, strict=True))
        caches = [Past(KeyValue(values[f"last_past_key_{i}"], values[f"last_past_value_{i}"])) for i in self.layers]
        layers = [KeyValue(values[f"memory_key_{i}"], values[f"memory_value_{i}"]) for i in self.layers]
        tables = tables_of(values)
        state = State(*(values[f"last_{name}"] for name in State._fields))
        memory = Memory(layers, values["pointer_keys"].transpose(2, 3))
        state, row, stop = step(self.network, tables, state, caches, memory, self.decoding)
        outputs = {"stop": stop, **{f"next_{name}": value for name, value in state._asdict().items()}}
        for i, cache in enumerate(caches):
            outputs |= {f"next_past_key_{i}": cache.known.key, f"next_past_value_{i}": cache.known.value}
        outputs |= {f"row_{name}": value for name, value in row.items()}
        outputs |= {f"row_{UNREFINED}{name}": value for name, value in row.items()}
        outputs["row_embedded"] = row["embedded"] + 0.0  # another output of the same name is not possible
        return tuple(outputs[name] for name in self.outputs)
