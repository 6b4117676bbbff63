"""The whole way from a batch to its particles: encode, decode the first stage, refine.

Letters: B batch, T particles, M items (hits, then tracks).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pflow.data.batch import Batch
from pflow.model.api import GeneratedParticles
from pflow.model.common.decode import DecodedSequence, decode
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder_steps import BatchDecoder
from pflow.model.pointing.decoder_steps_one_event import decode_event
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.refined_particles import refine
from pflow.model.pointing.refiner import DecodedParticles

__all__ = ["decode_first_stage", "generate"]

CACHED_FRACTIONS = 2**20
"""Fractions of items that are refined at a time on a CPU: tensors of 4 MB, which stay in its caches. Larger ones would
also be new pages of memory at each operation."""


@torch.inference_mode()
def generate(
    network: PointingNetwork, batch: Batch, decoding: PointingDecodingConfig, sampler: Sampler
) -> GeneratedParticles:
    """Decode the particles of each event, and refine them where the network has a refiner.

    The refiner reassigns hits and tracks (`pflow.model.pointing.refiner`). What the particles then are, and which of
    them are kept, is decided in `pflow.model.pointing.refined_particles`.

    Raises
    ------
    ValueError
        The network is in training mode, or the batch lacks a source that it reads.
    """
    if network.training:
        raise ValueError("model: it is in training mode; call model.eval() first")
    source = network.encode(batch)
    if network.refiner is None:
        columns, _, truncated = decode_first_stage(network, source, decoding, sampler)
    else:
        columns, mask, truncated = decode_first_stage(network, source.copy(), decoding, sampler)
        if mask.shape[1]:
            columns = _refined_in_parts(network, source, DecodedParticles.of(columns, mask), decoding, sampler)
    return _without_gaps(columns, truncated, batch, network)


def decode_first_stage(
    network: PointingNetwork, source: EncodedSource, decoding: PointingDecodingConfig, sampler: Sampler
) -> DecodedSequence:
    """Decode without refinement: one event on a CPU by `decode_event`, all else by `BatchDecoder`.

    The source is changed in place. Call without gradients.
    """
    batch, device = len(source.states), source.states.device
    plain = network.head.use_proxies and not (sampler.draws or network.decoder.training)
    if plain and batch == 1 and device.type == "cpu" and bool(source.scene.token_mask.any()):
        return decode_event(network, source, decoding)
    decoder = BatchDecoder(network, source, decoding, sampler)
    return decode(decoder, batch=batch, max_particles=decoder.limits, device=device)


def _refined_in_parts(
    network: PointingNetwork,
    source: EncodedSource,
    decoded: DecodedParticles,
    decoding: PointingDecodingConfig,
    sampler: Sampler,
) -> dict[str, Tensor]:
    """Columns of the refined particles, on a CPU of as many events at a time as its caches hold."""
    batch, n_particles, n_items = decoded.hit_fraction.shape
    whole = sampler.draws or source.states.device.type != "cpu"  # draws are made for a whole batch
    size = batch if whole else max(1, CACHED_FRACTIONS // (n_particles * max(1, n_items)))
    rows = [slice(start, start + size) for start in range(0, batch, size)]
    parts = [_refined(network, source.events(at), decoded.events(at), decoding, sampler) for at in rows]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _refined(
    network: PointingNetwork,
    source: EncodedSource,
    decoded: DecodedParticles,
    decoding: PointingDecodingConfig,
    sampler: Sampler,
) -> dict[str, Tensor]:
    """Columns of the refined particles."""
    particles, pdg, charge, assignment, is_particle = refine(network, decoded, source, decoding, sampler)
    hit_fraction = assignment.pairs.dense(assignment.log_fraction.exp(), decoded.hit_fraction.shape)
    return {"is_particle": is_particle, **particles.columns(pdg, charge, hit_fraction)}


def _without_gaps(
    columns: dict[str, Tensor], truncated: Tensor, batch: Batch, network: PointingNetwork
) -> GeneratedParticles:
    """The particles alone, those of an event one after the other."""
    assert batch.readout is not None
    n_hits = batch.readout.mask.shape[1]
    is_particle, pdg = columns["is_particle"], columns["pdg"]
    values = {
        "charge": columns["charge"],
        "pdg": pdg,
        "energy": network.energy_scale.normalised(columns["log_energy"]).float(),
        "direction": columns["direction"].float(),
        "score": columns["probability"].gather(-1, pdg[..., None]).squeeze(-1),
        "pdg_probability": columns["probability"],
        "energy_sigma": columns["energy_sigma"],
        "direction_sigma": columns["direction_sigma"],
        "by_track": columns["by_track"],
        "hit_fraction": columns["hit_fraction"][..., :n_hits],
        "track_fraction": columns["hit_fraction"][..., n_hits:],
    }
    length = int(is_particle.sum(1).max()) if is_particle.numel() else 0
    order = (~is_particle).to(torch.uint8).argsort(dim=1, stable=True)[:, :length]
    mask = gather(is_particle, order)
    packed = {
        name: gather(column, order).masked_fill(~mask.view(*mask.shape, *[1] * (column.ndim - 2)), 0)
        for name, column in values.items()
    }
    return GeneratedParticles(**packed, mask=mask, truncated=truncated)
