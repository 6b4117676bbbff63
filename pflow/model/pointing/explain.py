"""What a pointing network weighed while it decoded an event, step by step.

Letters: S source tokens (hits or cells, then tracks), T decoded particles, M items (hits, then tracks), V PDG codes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.generate import decode_first_stage, finish
from pflow.model.pointing.network import PointingNetwork


@torch.inference_mode()
def explain(network: PointingNetwork, batch: Batch, decoding: PointingDecodingConfig) -> dict[str, Tensor]:
    """Seeds, probabilities and assignment of each decoder step of a batch of one event without padding.

    ``probability.seed`` [T + 1, S + 1]: that the next particle starts at a token, and in the last column that there is
    none; ``seed`` int64 [T]; ``probability.pdg`` [T, V]; ``assignment`` [T, M], the fraction of each hit and track, and
    with a refiner ``refined_assignment`` [T', M] of the particles that it keeps; ``energy`` [T], log10(E / GeV)
    normalised; ``direction`` [T, 3].
    """
    logits: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        logits.append(torch.cat(output[1:], dim=1))

    source = network.encode(batch)
    handle = network.decoder.register_forward_hook(record)
    try:
        decoded = decode_first_stage(network, source.copy(), decoding)
    finally:
        handle.remove()
    columns = decoded.columns
    found = {
        "probability.seed": torch.cat(logits).softmax(-1),
        "seed": columns["seed"][0],
        "probability.pdg": columns["pdg_logits"][0].softmax(-1),
        "assignment": columns["hit_fraction"][0],
        "energy": network.energy_scale.normalised(columns["log_energy"][0]).float(),
        "direction": columns["direction"][0],
    }
    if network.refiner is not None:
        refined = finish(network, batch, source, decoded, decoding)
        parts = [part[0] for part in (refined.hit_fraction, refined.track_fraction) if part is not None]
        found["refined_assignment"] = torch.cat(parts, dim=-1)
    return found
