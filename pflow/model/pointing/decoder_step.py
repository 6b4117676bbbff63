"""Decoder steps of the pointing model, and its generated particles.

Letters: B batch, B' events that go on, T particles, S source tokens, M items (hits, then tracks), N hits, W width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.api import GeneratedParticles
from pflow.model.common.cache import Compaction
from pflow.model.common.decode import DecodedSequence, decode
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.event_decoder import decode_event
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import Pairs
from pflow.model.pointing.refinement import refine
from pflow.model.pointing.refiner import DecodedParticles
from pflow.model.pointing.seed import MASKED_LOGIT

__all__ = ["PointingDecoder", "decode_first_stage", "generate"]

CACHED_FRACTIONS = 2**20
"""Fractions of items that are refined at a time on a CPU: tensors of 4 MB, which stay in its caches. Larger ones would
also be new pages of memory at each operation."""


class PointingDecoder:
    """Decoder state of a batch (`pflow.model.common.decode.Decoder`).

    Decoding of an event stops when the probability of the end reaches ``eos_threshold``. With ``require_all_tracks`` it
    then goes on with seeds at the tracks that are not assigned. A particle with less energy than any target takes its
    hits and is no particle; after ``max_empty_steps`` steps in a row with such a particle, or with one that has no
    track and next to no hits, decoding stops in any case.

    Parameters
    ----------
    network
        In evaluation mode.
    source
        Encoded source of the batch; changed in place.
    decoding
        When decoding stops.
    sampler
        Chooses seeds and identities.
    """

    def __init__(
        self, network: PointingNetwork, source: EncodedSource, decoding: PointingDecodingConfig, sampler: Sampler
    ) -> None:
        batch = len(source.states)
        self.network = network
        self.source = source
        self.decoding = decoding
        self.draws = sampler.draws
        self.choose = functools.partial(sampler, batch=batch)
        self.min_deposit = decoding.min_deposit_fraction * math.exp(network.min_log_energy)  # GeV
        self.unassigned = torch.ones_like(source.scene.item_energy)  # [B', M]
        self.empty_steps = torch.zeros(batch, dtype=torch.int64, device=source.states.device)  # [B'], in a row
        self.limits = decoding.limits(source.scene.item_mask, source.scene.n_hits)  # [B]
        n_hits = source.scene.n_hits
        longest = decoding.largest(n_hits, source.scene.item_mask.shape[1] - n_hits)
        self.caches = network.decoder.stack.caches(source.states, longest + 1)
        on_cpu = source.states.device.type == "cpu"
        self.projected = network.decoder.project(source.states) if on_cpu else None
        self.x = network.decoder.first(batch)
        self.states = self.pointer = self.open_tracks = self.seed = torch.empty(0)
        self.selected: Tensor | None = None  # [B', 1, M]

    def advance(self, rows: Tensor) -> Tensor:
        """Next decoder state and seed probabilities; bool [B'], True = one more particle."""
        decoding = self.decoding
        self.states, self.pointer = self.network.decoder(
            self.x, self.source, 1.0 - self.unassigned[:, None], self.caches, self.projected
        )
        ended = (self.pointer[:, 0, -1].exp() >= decoding.eos_threshold) | (
            self.empty_steps >= decoding.max_empty_steps
        )
        self.open_tracks = self._unassigned_tracks() & ended[:, None] & decoding.require_all_tracks  # [B', S]
        forced = self.open_tracks.any(1)
        logits = torch.where(forced[:, None] & ~self.open_tracks, MASKED_LOGIT, self.pointer[:, 0, :-1])
        self.seed = self.choose(logits, rows=rows)[:, None]
        return ~ended | forced

    def sizes(self, goes_on: Tensor) -> Tensor:
        """The number of pairs of a particle and an item; none on a CPU, which need not be waited for."""
        if goes_on.device.type == "cpu":
            return torch.empty(0, dtype=torch.int64)
        mask = goes_on[:, None]
        self.selected = self.network.assignment.select(self.seed, self.source, self.unassigned[:, None], mask)
        return self.selected.sum().view(1)

    def compact(self, compaction: Compaction) -> None:
        """Drop the events that have ended."""
        self.states, self.unassigned, self.empty_steps, self.open_tracks, self.seed = (
            compaction.apply(part)
            for part in (self.states, self.unassigned, self.empty_steps, self.open_tracks, self.seed)
        )
        if self.selected is not None:
            self.selected = compaction.apply(self.selected)
        self.source = self.source.compact(compaction)
        self.projected = None if self.projected is None else self.projected.compact(compaction)
        for cache in self.caches:
            cache.compact(compaction)

    def emit(self, rows: Tensor, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Decode one particle of each event."""
        network, source, unassigned, seed = self.network, self.source, self.unassigned[:, None], self.seed
        forced = self.open_tracks.any(1, keepdim=True)
        pairs = None if self.selected is None else Pairs.where(self.selected, *sizes)
        real = torch.ones_like(seed, dtype=torch.bool)
        assignment = network.assignment(self.states, seed, source, unassigned, real, pairs)
        particles = network.predict(assignment, seed, source)
        pdg = self.choose(particles.pdg[:, 0], rows=rows)[:, None]
        if self.draws:
            particles = network.predict(assignment, seed, source, pdg=pdg)
        hit_fraction = assignment.pairs.dense(assignment.hit_fraction, unassigned.shape)
        at_open_track = (forced & (source.scene.item_token == seed))[:, None]
        hit_fraction = torch.where(at_open_track, 1.0, hit_fraction)
        charge = network.head.choose_charge(particles, pdg, seed, source)
        is_particle = ~(particles.log_energy < network.min_log_energy)  # NaN is one: who decodes must see it
        empty = ~(particles.log_energy[:, 0] >= network.min_log_energy) | self._is_empty(hit_fraction[:, 0])
        self.empty_steps = torch.where(empty, self.empty_steps + 1, 0)
        if network.coverage:
            self.unassigned = (self.unassigned - hit_fraction[:, 0]).clamp(min=0.0)
        self.x = network.decoder.embed(particles.as_previous(seed, pdg=pdg, charge=charge), source)
        columns = {"is_particle": is_particle, "seed": seed, "embedded": self.x, "query": assignment.query}
        return {name: values[:, 0] for name, values in (columns | particles.columns(pdg, charge, hit_fraction)).items()}

    def _unassigned_tracks(self) -> Tensor:
        """Which tokens are tracks of which less than half is assigned, bool [B', S]."""
        scene = self.source.scene
        tracks = scene.item_mask[:, scene.n_hits :] & (self.unassigned[:, scene.n_hits :] > 0.5)
        # Tracks are the last of the tokens as of the items.
        return functional.pad(tracks, (scene.token_mask.shape[1] - tracks.shape[1], 0))

    def _is_empty(self, hit_fraction: Tensor) -> Tensor:
        """Whether particles with float [B', M] of the items have no track and next to no hits, bool [B']."""
        scene = self.source.scene
        deposit = (hit_fraction * scene.item_energy).sum(-1)  # GeV; tracks have none
        return (deposit < self.min_deposit) & ~(hit_fraction[:, scene.n_hits :] >= 0.5).any(-1)


def decode_first_stage(
    network: PointingNetwork, source: EncodedSource, decoding: PointingDecodingConfig, sampler: Sampler
) -> DecodedSequence:
    """Decode without refinement; the source is changed in place. Call without gradients."""
    batch, device = len(source.states), source.states.device
    plain = network.head.use_proxies and not (sampler.draws or network.decoder.training)
    if plain and batch == 1 and device.type == "cpu" and bool(source.scene.token_mask.any()):
        return decode_event(network, source, decoding)
    decoder = PointingDecoder(network, source, decoding, sampler)
    return decode(decoder, batch=batch, max_particles=decoder.limits, device=device)


@torch.inference_mode()
def generate(
    network: PointingNetwork, batch: Batch, decoding: PointingDecodingConfig, sampler: Sampler
) -> GeneratedParticles:
    """Decode the particles of each event, and refine them where the network has a refiner.

    Decisions after the refinement: `pflow.model.pointing.refinement`.

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
