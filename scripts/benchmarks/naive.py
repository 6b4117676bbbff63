"""Decoding without caches: every step encodes the events and decodes their whole sequences again, as the first
paper's code did.

What the cached decoding of a translation network is timed beside, and must agree with.
"""

from __future__ import annotations

import dataclasses

import torch

from pflow.data.batch import Batch, Target
from pflow.model.api import GeneratedParticles
from pflow.model.translation.network import TranslationNetwork


@torch.inference_mode()
def generate_naively(network: TranslationNetwork, batch: Batch, *, max_particles: int) -> GeneratedParticles:
    """Decode the particles of each event of a batch."""
    B, scores, goes_on = len(batch), [], []
    none, ended = torch.zeros(B, 0, dtype=torch.int64), torch.zeros(B, dtype=torch.bool)
    parts = {"charge": none, "pdg": none, "energy": none.float(), "direction": torch.zeros(B, 0, 3)}
    if network.copy is not None and batch.readout is not None:
        parts["hit_fraction"] = torch.zeros(B, 0, batch.readout.mask.shape[1])
        if network.copy.reads_tracks:
            parts["track_fraction"] = torch.zeros(B, 0, batch.readout.track_mask.shape[1])
    for step in range(max_particles + 1):
        everything = torch.ones(B, step, dtype=torch.bool)  # events that have ended are decoded on
        prediction = network(dataclasses.replace(batch, target=Target(**parts, mask=everything)))
        prediction.pop("item_energy", None)  # no prediction, and not of a step
        last = {name: value[:, step] for name, value in prediction.items()}
        pick = network.special.choose(last)
        ended = ended | pick.ended
        if step == max_particles or ended.all():
            break
        new = last | {"charge": pick.charge, "pdg": pick.pdg}
        if batch.readout is not None and "fraction" in last:
            new["hit_fraction"] = last["fraction"].gather(1, batch.readout.token) * batch.readout.mask
            new["track_fraction"] = last["fraction"][:, last["pointer"].shape[1] :]
        parts = {name: torch.cat([part, new[name][:, None]], dim=1) for name, part in parts.items()}
        scores.append(pick.score)
        goes_on.append(~ended)
    mask = torch.stack(goes_on, dim=1) if goes_on else none.bool()
    for name in ("hit_fraction", "track_fraction"):
        parts.pop(name, None)
    parts["score"] = torch.stack(scores, dim=1) if scores else none.float()
    parts = {name: part * mask.view(*mask.shape, *[1] * (part.ndim - 2)) for name, part in parts.items()}
    return GeneratedParticles(**parts, mask=mask, truncated=~ended)
