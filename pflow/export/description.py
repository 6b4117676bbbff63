"""The content of ``tokens.json``: how hits become a graph's inputs and its outputs become particles."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pflow.checkpoint.load import Model
from pflow.checkpoint.onnx_folder import FORMAT_OF_TRANSLATION
from pflow.config import to_plain
from pflow.export.graphs import Graph, TensorSpec
from pflow.export.loop import Loop
from pflow.physics.pdg import charges, masses, name_of
from pflow.tokens.config import PARTS
from pflow.tokens.features import FEATURES
from pflow.tokens.particles import REST_MOMENTUM
from pflow.tokens.scale import LOG_FLOOR, Normaliser
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.vocab import CHARGES

__all__ = ["HOW_TO", "describe", "tensors"]

HOW_TO = (
    "Letters: B events of a batch; classes and indices count from 0; masks are true for real tokens.",
    "1. Source. For each part in 'source' (hits, tracks, ...): leave out hits whose energy is not above 'energy_above' "
    "(GeV). A token is the list of 'features' in their order. Each is v, in the unit of its description; where its "
    "transform is log10, v becomes log10(max(v, log10_floor)); then v becomes (v - mean) / std. The order of tokens "
    "means nothing. Features of a direction are those of a unit vector, 0 for a null vector.",
    "2. Batch. Pad the events to one length per part, at least 1: a part that no event has is one token of padding "
    "(some runtimes fail on an axis of length 0 here). The mask says which tokens are real; what padding holds does "
    "not matter. An event without any token is not to be run: it has no particles.",
    "3. Run 'encoder' once. Its outputs are inputs of 'step' under the same names, the same at each step.",
    "4. Start: last_kind = kinds.bos, and 0 for last_charge, last_pdg, last_energy and last_direction of each event; "
    "each past_* has length 0 on its axis 'past'.",
    "5. Run 'step'. An event has ended if, in the output end.output, the largest of the classes from end.first_class "
    "on is end.class. Otherwise its next particle has: charge index = position of the largest of "
    "charge_logits[first_class:], pdg index = position of the largest of pdg_logits[first_class:], both counted from "
    "first_class; score = softmax of pdg_logits[first_class:] at that position; energy and direction as given.",
    "6. Those values are last_charge, last_pdg, last_energy and last_direction of the next step, with last_kind = "
    "kinds.sample; each output present_* is the input past_* of the same name behind the prefix. Go back to 5. Events "
    "that have ended may stay in the batch (what they give means nothing) or be cut out of all inputs. Stop when all "
    "have ended; an event that has not ended after max_particles particles, by one more step, is truncated.",
    "7. Particles. Charge q = charge[charge index], entry p = pdg[pdg index]. If q * p.charge < 0 the code is -p.code "
    "and the charge -p.charge, otherwise they are p.code and p.charge. E = 10^(energy * std + mean) GeV with mean and "
    "std of 'energy'; m = p.mass; |p| = sqrt(E^2 - m^2), or rest_momentum * m where E^2 - m^2 is below the square of "
    "that; then E = sqrt(|p|^2 + m^2). The momentum is |p| along the direction, made a unit vector (+z if it is null).",
)
"""How to use the files, step by step, with the names of ``tokens.json``."""


def describe(
    model: Model,
    *,
    encoder: Graph,
    step: Graph,
    special: Mapping[str, Any],
    files: dict[str, str],
    opset: int,
    version: str,
) -> dict[str, Any]:
    """The content of ``tokens.json``.

    Parameters
    ----------
    model
        The exported model.
    encoder, step, special
        From `pflow.export.graphs.graphs_of`.
    files
        Names of their files, under ``encoder`` and ``step``.
    opset
        Version of the ONNX operators in them.
    version
        Version of pflow.
    """
    tokeniser = model.tokeniser
    return {
        "format": FORMAT_OF_TRANSLATION,
        "pflow_version": version,
        "checkpoint_sha256": model.digest,
        "how_to": list(HOW_TO),
        "encoder": {"file": files["encoder"], "opset": opset, **tensors(encoder)},
        "step": {"file": files["step"], "opset": opset, **tensors(step)},
        "max_particles": model.reconstructor.decoding.max_particles,
        "log10_floor": LOG_FLOOR,
        "source": {part: _source(part, tokeniser) for part in PARTS if tokeniser.config.features(part)},
        **special,
        "charge": list(CHARGES),
        "pdg": _vocabulary(tokeniser.pdg.codes),
        "energy": {"unit": "GeV", **_scale(tokeniser.energy)[0]},
        "rest_momentum": REST_MOMENTUM,
        "target": {
            "rule": tokeniser.config.rule,
            "energy_above": tokeniser.config.e_min,
            "order": tokeniser.config.order,
            "coarse": tokeniser.pdg.coarse,
        },
        "detector": to_plain(tokeniser.detector),
    }


def tensors(graph: Graph | Loop) -> dict[str, Any]:
    """Names, types and shapes of a graph's inputs and outputs."""
    return {"inputs": _plain(graph.inputs), "outputs": _plain(graph.outputs)}


def _plain(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(spec), "shape": list(spec.shape)} for spec in specs]


def _source(part: str, tokeniser: Tokeniser) -> dict[str, Any]:
    features = [
        {"name": scale["name"], "description": FEATURES[part][scale["name"]].description, **scale}
        for scale in _scale(tokeniser.scales[part])
    ]
    cut = {"energy_above": tokeniser.config.hit_energy_min} if part == "hits" else {}
    return {**cut, "features": features}


def _scale(scale: Normaliser) -> list[dict[str, Any]]:
    columns = zip(scale.names, scale.transforms, scale.mean, scale.std, strict=True)
    return [dict(zip(("name", "transform", "mean", "std"), column, strict=True)) for column in columns]


def _vocabulary(codes: Sequence[int]) -> list[dict[str, Any]]:
    columns = zip(codes, map(name_of, codes), charges(codes).tolist(), masses(codes).tolist(), strict=True)
    return [dict(zip(("code", "name", "charge", "mass"), column, strict=True)) for column in columns]
