"""Decoder steps of a batch of events, on any device.

`pflow.model.pointing.decoder_steps_one_event` decodes one event on a CPU; `pflow.model.pointing.generate` chooses.

Letters: B batch, B' events that go on, T particles, S source tokens, M items (hits, then tracks), N hits, W width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pflow.model.common.cache import Compaction
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.network import PointingNetwork
from pflow.model.pointing.pairs import Pairs
from pflow.model.pointing.seed import MASKED_LOGIT

__all__ = ["BatchDecoder"]


class BatchDecoder:
    """Decoder state of a batch (`pflow.model.common.decode.Decoder`).

    Decoding of an event stops when the probability of the end reaches ``eos_threshold``. With ``require_all_tracks`` it
    then goes on with seeds at the tracks that are not assigned. A particle with less energy than any target keeps the
    hits that are assigned to it, but is not in the result; after ``max_empty_steps`` steps in a row with such a
    particle, or with one that has no track and next to no hits, decoding stops in any case.

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
        is_particle = ~(particles.log_energy < network.min_log_energy)  # NaN is kept: the caller must see it
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
