"""The graphs of a translation network: from the tokens of an event to those of its particles, chosen greedily.

Letters: N source tokens of a part, M memory, P particles before this one, H heads, D width of a head.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pflow.checkpoint.load import TrainedModel
from pflow.config import to_plain
from pflow.data.batch import Batch, TokenSet
from pflow.export.graphs import Export, Graph, Loop, specs
from pflow.model.common.cache import KeyValue, Past
from pflow.model.translation.decoder_steps import next_tokens
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.network import TranslationNetwork
from pflow.model.translation.special import SAMPLE
from pflow.physics.pdg import charges, masses, name_of
from pflow.tokens.config import PARTS
from pflow.tokens.features import FEATURES
from pflow.tokens.particles import REST_MOMENTUM
from pflow.tokens.scale import LOG_FLOOR, Normaliser
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.vocab import CHARGES

HOW_TO = (
    "One event a run; no axis counts events. Classes and indices count from 0. 'values' is a map from names to "
    "tensors.",
    "1. Source. For each part in 'source' (hits, tracks, ...): leave out hits whose energy is not above 'energy_above' "
    "(GeV). A token is the list of 'features' in their order. Each is v, in the unit of its description; where its "
    "transform is log10, v becomes log10(max(v, log10_floor)); then v becomes (v - mean) / std. The order of tokens "
    "within a part is arbitrary. Where 'merge' is not null, tokens of hits are not those of hits but of the cells that "
    "pflow sums them into, which these files do not do: only pflow can run them.",
    "2. Inputs of 'encoder': the tokens of each part, and a mask that is true. A part without tokens is one token of "
    "zeros with the mask false. An event without any token has no particles: do not run the graphs.",
    "3. Run 'encoder'; values = its outputs.",
    "4. Run 'decoder' with its inputs from values. If truncated[0], limit[0] particles were decoded before the "
    "sequence ended; another number may be given as limit.",
    "5. Particles. Charge q = charge[charge index], entry p = pdg[pdg index]. If q * p.charge < 0 the code is -p.code "
    "and the charge -p.charge, otherwise they are p.code and p.charge. E = 10^(energy * std + mean) GeV with mean and "
    "std of 'energy'; m = p.mass; |p| = sqrt(E^2 - m^2), or rest_momentum * m where E^2 - m^2 is below the square of "
    "that; then E = sqrt(|p|^2 + m^2). The momentum is |p| along the direction, made a unit vector (+z if it is null). "
    "score is the probability of the pdg index.",
)
"""How to use the files, step by step, with the names of ``tokens.json``."""

EXAMPLE_LENGTH, EXAMPLE_PAST = 5, 4  # none is 1: tracing takes sizes of 1 as constants

TOKEN = TargetTokens._fields


class _Encoder(nn.Module):
    """From source tokens to keys and values of the encoder's output, and what the decoder begins with."""

    def __init__(self, network: TranslationNetwork, max_particles: int) -> None:
        super().__init__()
        self.source, self.decoder, self.max_particles = network.source, network.decoder, max_particles

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Features float [N, F] and mask bool [N] of each part, in the order of the source's embedders."""
        pairs = zip(self.source.embedders, _pairs(tensors), strict=True)
        parts: dict[str, Any] = {part: TokenSet(x[None], mask[None], full=False) for part, (x, mask) in pairs}
        memory = self.source(Batch(**parts))
        known = list(itertools.chain(*self.decoder.project(memory.states)))
        first = TargetTokens.bos(1, tensors[0].device)
        # Of length 0, but not a constant.
        past = [value[:, :, :0] for value in known]
        limit = torch.tensor([self.max_particles])
        return (memory.mask, *known, *(value[:, 0] for value in first), *past, limit)


class _Step(nn.Module):
    """From the last token, the encoder's output and the past to the next token: the step of torch's decoder."""

    def __init__(self, network: TranslationNetwork, eos_threshold: float) -> None:
        super().__init__()
        self.network, self.eos_threshold = network, eos_threshold

    def forward(self, mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The memory's mask bool [1, M], keys and values of the memory [1, H, M, D], the last token (`TargetTokens`,
        [1] each), keys and values of the past [1, H, P, D]; gives stop, the next token and past, and the particle."""
        n = (len(tensors) - len(TOKEN)) // 2
        memory = [KeyValue(*pair) for pair in _pairs(tensors[:n])]
        past = [Past(KeyValue(*pair)) for pair in _pairs(tensors[-n:])]
        last = TargetTokens(*(value[:, None] for value in tensors[n:-n]))
        first = past[0].known.key.shape[2]
        stop, row = next_tokens(self.network, last, memory, mask, past, first=first, eos_threshold=self.eos_threshold)
        following = (*(row[name] for name in TOKEN[:-1]), torch.full_like(row["pdg"], SAMPLE))
        # Outputs of the graph must be tensors of their own.
        rows = (value + 0 for value in row.values())
        return (stop, *following, *itertools.chain(*(cache.known for cache in past)), *rows)


@torch.no_grad()
def translation_export(model: TrainedModel) -> Export:
    """``encoder`` and ``decoder`` of a model with a translation network, and their description."""
    tokeniser = model.tokeniser
    trained: Any = model.reconstructor.network
    network = copy.deepcopy(trained).cpu().eval().requires_grad_(False)
    decoding = model.reconstructor.decoding
    encoder, step = _Encoder(network, decoding.max_particles), _Step(network, decoding.eos_threshold)
    source: dict[str, Tensor] = {}
    for length, (part, embedder) in enumerate(network.source.embedders.items(), EXAMPLE_LENGTH):
        source |= {part: torch.ones(length, embedder.features), f"{part}_mask": torch.ones(length, dtype=torch.bool)}
    outputs = encoder(*source.values())
    n = (len(outputs) - len(TOKEN) - 2) // 2
    kv = [f"{what}_{i}" for i in range(n // 2) for what in ("key", "value")]
    state = (*TOKEN, *(f"past_{name}" for name in kv))
    memory = ("memory_mask", *(f"memory_{name}" for name in kv))
    encoded = dict(zip((*memory, *(f"initial_{name}" for name in state), "limit"), outputs, strict=True))
    example = {name: encoded[name] for name in memory}
    for name in state:
        value = encoded[f"initial_{name}"]
        past = value.ndim == 4
        example[f"last_{name}"] = value.new_ones(*value.shape[:2], EXAMPLE_PAST, value.shape[3]) if past else value
    row = ("charge", "pdg", "energy", "direction", "score")
    names = ("stop", *(f"next_{name}" for name in state), *(f"row_{name}" for name in row))
    stepped = dict(zip(names, step(*example.values()), strict=True))
    axes: dict[str, dict[int, str]] = {name: {2: "memory"} for name in memory[1:]} | {"memory_mask": {1: "memory"}}
    for when, dim in (("initial", "past"), ("last", "past"), ("next", "past_and_this")):
        axes |= {f"{when}_past_{name}": {2: dim} for name in kv}
    axes |= {name: {0: name.removesuffix("_mask")} for name in source}
    return Export(
        graphs={
            "encoder": Graph(
                module=encoder, example=tuple(source.values()), inputs=specs(source, axes), outputs=specs(encoded, axes)
            ),
            "decoder": Loop(
                Graph(
                    module=step,
                    example=tuple(example.values()),
                    inputs=specs(example, axes),
                    outputs=specs(stepped, axes),
                ),
                "particles",
            ),
        },
        how_to=HOW_TO,
        run={"architecture": "translation", "detector": tokeniser.detector.name},
        description={
            "max_particles": decoding.max_particles,
            "log10_floor": LOG_FLOOR,
            "source": {part: _source(part, tokeniser) for part in PARTS if tokeniser.config.features(part)},
            "charge": list(CHARGES),
            "pdg": _vocabulary(tokeniser.pdg.codes),
            "energy": {"unit": "GeV", **_scale(tokeniser.energy)[0]},
            "rest_momentum": REST_MOMENTUM,
        },
    )


def _source(part: str, tokeniser: Tokeniser) -> dict[str, Any]:
    features = [
        {"name": scale["name"], "description": FEATURES[part][scale["name"]].description, **scale}
        for scale in _scale(tokeniser.scales[part])
    ]
    if part != "hits":
        return {"features": features}
    merge = tokeniser.config.merge
    return {
        "energy_above": tokeniser.config.hit_energy_min,
        "merge": None if merge is None else to_plain(merge),
        "features": features,
    }


def _scale(scale: Normaliser) -> list[dict[str, Any]]:
    columns = zip(scale.names, scale.transforms, scale.mean, scale.std, strict=True)
    return [dict(zip(("name", "transform", "mean", "std"), column, strict=True)) for column in columns]


def _vocabulary(codes: Sequence[int]) -> list[dict[str, Any]]:
    columns = zip(codes, map(name_of, codes), charges(codes).tolist(), masses(codes).tolist(), strict=True)
    return [dict(zip(("code", "name", "charge", "mass"), column, strict=True)) for column in columns]


def _pairs(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """(a, b, c, d) -> [(a, b), (c, d)]."""
    return list(zip(values[::2], values[1::2], strict=True))
