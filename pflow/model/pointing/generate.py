"""From a batch to particles: encode, decode, refine, and decide what they are and which of them are kept.

Letters: B batch, T particles, S source tokens (hits or cells, then tracks), M items (hits, then tracks), V PDG codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.api import GeneratedParticles
from pflow.model.common.attention import KVCache
from pflow.model.common.decode import Compaction, DecodedSequence, decode
from pflow.model.pointing.assignment import PairList, Pairs, PairsOfOne
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.geometry import EncodedSource, Tables, gather
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.refiner import DecodedParticles, RefinedAssignment
from pflow.model.pointing.step import Pointed, State, TrackParticles, candidates, emit, emit_tracks, point

CACHED_FRACTIONS = 2**20
"""Fractions of items that are refined at a time on a CPU: tensors of 4 MB, which stay in its caches. Larger ones would
also be new pages of memory at each operation."""


@torch.inference_mode()
def generate(network: PointingNetwork, batch: Batch, decoding: PointingDecodingConfig) -> GeneratedParticles:
    """Decode the particles of each event, and refine them where there is a refiner; ValueError in training mode."""
    if network.training:
        raise ValueError("model: it is in training mode; call model.eval() first")
    source = network.encode(batch)
    # Decoding changes its source in place, and the refinement reads it again.
    decoded = decode_first_stage(network, source if network.refiner is None else source.change(torch.clone), decoding)
    return finish(network, batch, source, decoded, decoding)


def decode_first_stage(
    network: PointingNetwork, source: EncodedSource, decoding: PointingDecodingConfig
) -> DecodedSequence:
    """Decode without refinement. The source is changed in place. Call without gradients."""
    decoder = BatchDecoder(network, source, decoding)
    decoded = decode(decoder, batch=len(source.states), max_particles=decoder.limits, device=source.states.device)
    if decoder.tracks is None:
        return decoded
    mask = torch.cat([decoder.tracks.mask, decoded.mask], dim=1)
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)  # tracks that start no particle leave no gaps
    rows = decoder.tracks.rows
    columns = {name: gather(torch.cat([rows[name], decoded.columns[name]], dim=1), order) for name in rows}
    return decoded._replace(columns=columns, mask=gather(mask, order))


def finish(
    network: PointingNetwork,
    batch: Batch,
    source: EncodedSource,
    decoded: DecodedSequence,
    decoding: PointingDecodingConfig,
) -> GeneratedParticles:
    """Particles of what was decoded, refined where there is a refiner, which reads the source."""
    columns, mask, truncated = decoded
    if network.refiner is not None and mask.shape[1]:
        columns = _refined_in_parts(network, source, DecodedParticles.of(columns, mask), decoding)
    elif network.refiner is not None:
        columns = {**columns, "existence": torch.ones_like(columns["log_energy"], dtype=torch.float32)}
    return _without_gaps(columns, truncated, batch, network)


class BatchDecoder:
    """Decoder steps of a batch of events (`pflow.model.common.decode.Decoder`); changes its source in place."""

    def __init__(self, network: PointingNetwork, source: EncodedSource, decoding: PointingDecodingConfig) -> None:
        self.network, self.decoding = network, decoding
        is_hit = source.items.mask & ~source.items.is_track
        n_tracks = source.items.mask.sum(1) - is_hit.sum(1)
        self.limits = decoding.limits(is_hit.sum(1), n_tracks)  # [B]
        self.caches = [KVCache() for _ in network.decoder.stack.layers]
        self.on_cpu = source.states.device.type == "cpu"
        self.memory = network.decoder.project(source.states)
        items = source.items  # in the precision in which each step reads them
        items = items._replace(direction=items.direction.double(), sums=items.sums.double())
        self.source = source._replace(items=items)
        self.tables = self._make_tables()
        self.state = State.first(network, self.tables, len(source.states))
        self.tracks: TrackParticles | None = None
        if network.decoder.embed_track is not None:
            is_track = gather(self.source.tokens.is_track, self.source.tokens.track)
            self.tracks = emit_tracks(network, self.source, self.tables, self.memory, is_track)
            self.state, self.limits = self.tracks.state, (self.limits - n_tracks).clamp(min=0)
        self.pointed: Pointed
        self.selected: Tensor | None = None  # [B', 1, M]

    def advance(self) -> Tensor:
        """Next decoder state and seed; bool [B'], True = one more particle."""
        self.pointed = point(self.network, self.tables, self.state, self.caches, self.memory, self.decoding)
        return ~self.pointed.stop

    def sizes(self, goes_on: Tensor) -> Tensor:
        """The number of pairs of a particle and an item; empty on a CPU, which has no queue to synchronise."""
        if self.on_cpu:
            return torch.empty(0, dtype=torch.int64)
        self.selected = self._candidates() & goes_on[:, None, None]
        return self.selected.sum().view(1)

    def compact(self, compaction: Compaction) -> None:
        """Drop the events that have ended."""
        self.pointed = Pointed(*map(compaction.apply, self.pointed))
        if self.selected is not None:
            self.selected = compaction.apply(self.selected)
        self.source, self.state = self.source.change(compaction.apply), self.state.compact(compaction)
        self.tables = self._make_tables()
        self.memory = self.memory.compact(compaction)
        for cache in self.caches:
            cache.compact(compaction)

    def emit(self, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Decode one particle of each event."""
        chosen = self._candidates() if self.selected is None else self.selected
        pairs: Pairs
        if self.on_cpu and len(chosen) == 1:
            pairs = PairsOfOne(chosen.flatten().nonzero().squeeze(1))
        else:
            pairs = PairList.where(chosen, *sizes)
        self.state, row = emit(self.network, self.tables, self.state, self.pointed, pairs)
        return row

    def _make_tables(self) -> Tables:
        """Tables of the source; on a CPU, which is not waited for, without masks where there is no padding."""
        tables, tokens, items = self.source.tables(), self.source.tokens.mask, self.source.items.mask
        if self.on_cpu and tokens.all() and items.all():
            return tables._replace(padded=False)
        return tables

    def _candidates(self) -> Tensor:
        return candidates(self.tables, self.state, self.pointed).view(len(self.pointed.seed), 1, self.tables.n_items)


def refine(
    network: PointingNetwork, decoded: DecodedParticles, source: EncodedSource, decoding: PointingDecodingConfig
) -> tuple[dict[str, Tensor], RefinedAssignment]:
    """Reassign the hits of decoded particles, choose identities, and decide which particles are kept (``is_particle``).

    Returns columns [B, T, ...] of particles, and the assignment. An energy is the particle's if it exists, and its
    ``existence`` (1 with a track) the probability that it does: sums over particles weigh by it, since a shower that is
    decoded in pieces, each with the energy of the whole, would count twice. Particles with less energy than any target
    are not kept.
    """
    assert network.refiner is not None
    head = network.head
    refined = network.refiner(decoded, source, existence_threshold=decoding.existence_threshold)
    particles = network.predict_refined(refined, decoded.seed, source)
    is_small = particles.log_energy < network.min_log_energy  # NaN is kept: the caller must see it
    columns = {"is_particle": refined.kept & ~is_small, **particles.columns(head.choose_charge(particles))}
    columns["existence"] = refined.existence_logit.sigmoid().masked_fill(particles.by_track, 1.0).float()
    return columns, refined


def _refined_in_parts(
    network: PointingNetwork, source: EncodedSource, decoded: DecodedParticles, decoding: PointingDecodingConfig
) -> dict[str, Tensor]:
    """Columns of the refined particles, on a CPU of as many events at a time as its caches hold."""
    batch, n_particles, n_items = decoded.hit_fraction.shape
    on_cpu = source.states.device.type == "cpu"
    size = max(1, CACHED_FRACTIONS // (n_particles * max(1, n_items))) if on_cpu else batch
    parts = []
    for start in range(0, batch, size):
        of_events = itemgetter(slice(start, start + size))
        first_stage = DecodedParticles(*map(of_events, decoded))
        columns, assignment = refine(network, first_stage, source.change(of_events), decoding)
        parts.append({**columns, "hit_fraction": assignment.pairs.dense(assignment.log_fraction.exp())})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _without_gaps(
    columns: dict[str, Tensor], truncated: Tensor, batch: Batch, network: PointingNetwork
) -> GeneratedParticles:
    """The particles alone, without gaps between the particles of an event."""
    assert batch.readout is not None
    n_hits = batch.readout.mask.shape[1]
    is_particle, pdg = columns["is_particle"], columns["pdg"]
    probability = columns["pdg_logits"].softmax(-1)
    values = {
        "charge": columns["charge"],
        "pdg": pdg,
        "energy": network.energy_scale.normalised(columns["log_energy"]).float(),
        "direction": columns["direction"].float(),
        "score": probability.gather(-1, pdg[..., None]).squeeze(-1),
        "pdg_probability": probability,
        "energy_sigma": columns["energy_sigma"],
        "direction_sigma": columns["direction_sigma"],
        "by_track": columns["by_track"],
        "hit_fraction": columns["hit_fraction"][..., :n_hits],
        "track_fraction": columns["hit_fraction"][..., n_hits:],
    }
    if "existence" in columns:
        values["existence"] = columns["existence"]
    length = int(is_particle.sum(1).max()) if is_particle.numel() else 0
    order = (~is_particle).to(torch.uint8).argsort(dim=1, stable=True)[:, :length]
    mask = gather(is_particle, order)
    packed = {
        name: gather(column, order).masked_fill(~mask.view(*mask.shape, *[1] * (column.ndim - 2)), 0)
        for name, column in values.items()
    }
    return GeneratedParticles(**packed, mask=mask, truncated=truncated)


@torch.inference_mode()
def explain(network: PointingNetwork, batch: Batch, decoding: PointingDecodingConfig) -> dict[str, Tensor]:
    """Seeds, probabilities and assignment of each particle of a batch of one event without padding.

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
        decoded = decode_first_stage(network, source.change(torch.clone), decoding)
    finally:
        handle.remove()
    n_particles, probability = int(decoded.mask.sum()), torch.cat(logits).softmax(-1)
    columns = {name: values[:, :n_particles] for name, values in decoded.columns.items()}
    known = columns["seed"][0, : n_particles + 1 - len(probability)]  # the tracks that start one
    explanation = {
        "probability.seed": torch.cat([functional.one_hot(known, probability.shape[1]).float(), probability]),
        "seed": columns["seed"][0],
        "probability.pdg": columns["pdg_logits"][0].softmax(-1),
        "assignment": columns["hit_fraction"][0],
        "energy": network.energy_scale.normalised(columns["log_energy"][0]).float(),
        "direction": columns["direction"][0],
    }
    if network.refiner is not None:
        refined = finish(network, batch, source, decoded, decoding)
        parts = [part[0] for part in (refined.hit_fraction, refined.track_fraction) if part is not None]
        explanation["refined_assignment"] = torch.cat(parts, dim=-1)
    return explanation
