"""From a batch to particles: encode, decode step by step, refine, and decide which particles are kept.

A decoder step leads from the particles decoded so far to the next particle, or to the end. It is of tensors alone, so
that the same lines decode batches and are traced for the export (`pflow.export.pointing`). What happens at a seed,
`candidates`, `PointingNetwork.step` and `Particles.as_previous`, is also what training does.

Letters: B batch, T particles, N = B * T, S source tokens (hits or cells, then tracks), M items (hits, then tracks), P
pairs of a particle and an item, W width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from pflow.data.batch import Batch
from pflow.model.api import GeneratedParticles
from pflow.model.decode import DecodedSequence, Keep, change_tensors, decode
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import Assignment, Memory, PairList, candidates
from pflow.model.pointing.geometry import EncodedSource, Tables, gather
from pflow.model.pointing.head import Particles
from pflow.model.pointing.network import DecodedParticles, PointingNetwork, RefinedParticles
from pflow.model.transformer import KVCache

# Fractions of items that are refined at a time on a CPU: tensors of 4 MB, which stay in its caches. Larger ones would
# also be new pages of memory at each operation.
CACHED_FRACTIONS = 2**20


class State(NamedTuple):
    """What one step hands to the next, beside the keys and values of the earlier particles."""

    embedded: Tensor  # float [B, W], the newest particle, or the beginning, as input of the decoder
    unassigned: Tensor  # float [B * M], unassigned fraction of each item
    assigned_energy: Tensor  # float [B * S], assigned energy of each token, GeV
    empty_steps: Tensor  # int64 [B], steps in a row with an empty particle

    @classmethod
    def first(cls, network: PointingNetwork, tables: Tables, batch: int) -> State:
        """Before the first step."""
        return cls(
            embedded=torch.zeros_like(tables.states[:batch]) + network.decoder.bos,
            unassigned=torch.ones_like(tables.items.weight),
            assigned_energy=torch.zeros_like(tables.tokens.energy),
            empty_steps=torch.zeros_like(tables.states[:batch, 0], dtype=torch.int64),
        )

    def compact(self, keep: Keep) -> State:
        """Keep the events that are still decoding; in place, except for the copied last particles."""
        batch = len(self.embedded)
        # The newest particles are a column of the decoded sequence, too, which moves in place would overwrite.
        parts = self._replace(embedded=self.embedded.clone())
        return State(*(keep(part.view(batch, -1)).view(-1, *part.shape[1:]) for part in parts))


@dataclasses.dataclass(eq=False)
class Steps:
    """Decoder steps of the events of some tables: where the next particle starts, its possible items, what it is."""

    network: PointingNetwork
    tables: Tables
    state: State
    caches: Sequence[KVCache]
    memory: Memory
    decoding: PointingDecodingConfig
    states: Tensor = dataclasses.field(init=False)  # float [B, W], of the decoder
    seed: Tensor = dataclasses.field(init=False)  # int64 [B], token of the event where the next particle starts

    def advance(self) -> Tensor:
        """Decode the next state of each event, and choose the most probable seed; bool [B], True = one more particle.

        Decoding stops when the probability of the end reaches ``eos_threshold``.
        """
        state = self.state
        self.states, logits, eos_logit = self.network.decoder(
            state.embedded, self.tables, state.assigned_energy, self.memory, self.caches
        )
        self.seed = logits.argmax(-1)
        # The end's entry of the softmax over tokens and end, without a tensor that joins the two.
        eos_probability = 1.0 / (1.0 + (logits - eos_logit).exp().sum(1))
        # NaN reaches no threshold: its particle is decoded, so that the caller sees it.
        stop: Tensor = eos_probability >= self.decoding.eos_threshold
        stop = stop | (state.empty_steps >= self.decoding.max_empty_steps)
        return ~stop

    def candidates(self) -> Tensor:
        """The items that the particle of each event may be assigned, bool [B, 1, M]."""
        seed = self._seed_in_tables()[:, None]
        return candidates(self.tables, seed, self.state.unassigned.view(len(seed), 1, self.tables.n_items))

    def particle(self, pairs: PairList | None = None) -> dict[str, Tensor]:
        """The particle that starts at the seed of each event, as columns [B, ...]; the state is then after it.

        The `pairs` are by default the candidates. A particle with less energy than any target keeps its hits, but
        ``is_particle`` is False.
        """
        network, tables, state, seed = self.network, self.tables, self.state, self._seed_in_tables()
        pairs = PairList.where(self.candidates()) if pairs is None else pairs
        unassigned = state.unassigned.index_select(0, pairs.item)
        particles, assignment = network.step(tables, self.states, seed, unassigned, pairs)
        fraction = assignment.hit_fraction
        token = tables.items.token.index_select(0, pairs.item)
        deposit = fraction * tables.items.weight.index_select(0, pairs.item)
        is_large = particles.log_energy >= network.min_log_energy
        is_big_track = (fraction >= 0.5) & tables.tokens.is_track.index_select(0, token)
        has_track = pairs.sums(is_big_track[None].float())[:, 0] > 0
        min_deposit = self.decoding.min_deposit_fraction * math.exp(network.min_log_energy)  # GeV
        counts = is_large & ((particles.deposit >= min_deposit) | has_track)
        # Nothing has to be added up: with one particle an event, no item is in two pairs.
        fractions = torch.zeros_like(state.unassigned).scatter(0, pairs.item, fraction)
        row = {
            **_columns(network, tables, seed, particles, assignment),
            "is_particle": is_large | particles.log_energy.isnan(),  # the caller must see it
            "seed": self.seed,
            "hit_fraction": fractions.view(len(seed), tables.n_items),
        }
        self.state = State(
            embedded=row["embedded"],
            unassigned=state.unassigned.scatter(0, pairs.item, unassigned - fraction),
            assigned_energy=state.assigned_energy.scatter_add(0, token, deposit),
            empty_steps=torch.where(counts, 0, state.empty_steps + 1),
        )
        return row

    def _seed_in_tables(self) -> Tensor:
        """Indices int64 [B] into B * S."""
        seed, n = self.seed, len(self.seed)
        # An exported graph has one event, and does not know its number of tokens (`Tables.n_tokens` is -1).
        return seed if n == 1 else seed + torch.arange(n, device=seed.device) * self.tables.n_tokens


def _columns(
    network: PointingNetwork, tables: Tables, seed: Tensor, particles: Particles, assignment: Assignment
) -> dict[str, Tensor]:
    embedded = network.decoder.embed(particles.as_previous(seed), tables)
    return {"embedded": embedded, "query": assignment.query, **particles.columns()}


def emit_tracks(
    network: PointingNetwork,
    source: EncodedSource,
    tables: Tables,
    memory: Memory,
    is_track: Tensor,
    decoding: PointingDecodingConfig,
) -> tuple[State, dict[str, Tensor]]:
    """The state before all other particles, and the charged particles of tracks of a network with `parallel_tracks`.

    Columns [B, K, ...] as of `Steps.particle`; `is_track`, bool [B, K]: which of ``source.tokens.track`` are tracks.
    """
    track = source.tokens.track
    states, starts = network.decoder.of_tracks(source, memory, is_track)
    started, seed = is_track & (starts.sigmoid() >= decoding.start_threshold), source.in_tables(track)
    unassigned = torch.ones_like(source.items.weight[:, None].expand(-1, track.shape[1], -1))
    pairs = PairList.where(candidates(tables, seed, unassigned) & started[..., None])
    particles, assignment = network.step(
        tables, states.flatten(0, 1), seed.flatten(), pairs.values(unassigned), pairs, started=started.flatten()
    )
    fraction = pairs.dense(assignment.hit_fraction)
    # `PointingNetwork.step` has limited the sums to 1, up to rounding.
    assigned = fraction.sum(1, keepdim=True).clamp(max=1.0)  # [B, 1, M]
    state = State.first(network, tables, len(track))._replace(
        unassigned=(1.0 - assigned).flatten(), assigned_energy=source.on_tokens(assigned).flatten()
    )
    columns = _columns(network, tables, seed.flatten(), particles, assignment)
    rows = {name: values.view(*track.shape, *values.shape[1:]) for name, values in columns.items()}
    return state, {**rows, "is_particle": started, "seed": track, "hit_fraction": fraction}


def decode_first_stage(
    network: PointingNetwork, source: EncodedSource, decoding: PointingDecodingConfig
) -> DecodedSequence:
    """Decode without refinement and without gradients."""
    decoder = BatchDecoder(network, source, decoding)
    decoded = decode(decoder, batch=len(source.states), max_particles=decoder.limits, device=source.states.device)
    if not decoder.tracks:
        return decoded
    mask = torch.cat([decoder.tracks["is_particle"], decoded.mask], dim=1)
    # Stable, as the particles keep the order in which they were decoded.
    order = (~mask).to(torch.uint8).argsort(dim=1, stable=True)  # tracks that start no particle leave no gaps
    both = {name: torch.cat([rows, decoded.columns[name]], dim=1) for name, rows in decoder.tracks.items()}
    columns = {name: gather(values, order) for name, values in both.items()}
    return decoded._replace(columns=columns, mask=gather(mask, order))


def particle_limits(decoding: PointingDecodingConfig, n_hits: Tensor, n_tracks: Tensor) -> Tensor:
    """Largest number of particles of each event, from its numbers of hits and of tracks; int64 [B] each."""
    if not decoding.hits_per_particle:
        return torch.full_like(n_hits, decoding.max_particles)
    return (n_tracks + n_hits // decoding.hits_per_particle).clamp(min=decoding.max_particles)


class BatchDecoder(Steps):
    """Decoder steps of a batch of events (`pflow.model.decode.Decoder`)."""

    caches: list[KVCache]

    def __init__(self, network: PointingNetwork, source: EncodedSource, decoding: PointingDecodingConfig) -> None:
        is_hit = source.items.mask & ~source.items.is_track
        n_tracks = source.items.mask.sum(1) - is_hit.sum(1)
        self.limits = particle_limits(decoding, is_hit.sum(1), n_tracks)  # [B]
        self.on_cpu = source.states.device.type == "cpu"
        memory, items = network.decoder.project(source.states), source.items
        items = items._replace(direction=items.direction.double(), sums=items.sums.double())  # as each step reads them
        # A copy: `compact` moves rows in place.
        self.source: EncodedSource = change_tensors(torch.clone, source._replace(items=items))
        tables, caches = self._make_tables(), [KVCache() for _ in network.decoder.stack.layers]
        state = State.first(network, tables, len(source.states))
        self.tracks: dict[str, Tensor] = {}  # columns of the particles that tracks start
        if network.decoder.embed_track is not None:
            is_track = gather(source.tokens.is_track, source.tokens.track)
            state, self.tracks = emit_tracks(network, self.source, tables, memory, is_track, decoding)
            # Limits are of all particles, and the tracks' take no steps.
            self.limits = (self.limits - n_tracks).clamp(min=0)
        super().__init__(network, tables, state, caches, memory, decoding)
        self.selected: Tensor | None = None  # [B', 1, M]

    def sizes(self, goes_on: Tensor) -> Tensor:
        """The number of pairs of a particle and an item; empty on a CPU, which has no queue to synchronise."""
        if self.on_cpu:
            return torch.empty(0, dtype=torch.int64)
        # Events that end leave before `emit`: their pairs must not count in its size.
        self.selected = self.candidates() & goes_on[:, None, None]
        return self.selected.sum().view(1)

    def compact(self, keep: Keep) -> None:
        """Drop the events that have ended."""
        parts = self.states, self.seed, self.selected, self.source, self.memory
        self.states, self.seed, self.selected, self.source, self.memory = change_tensors(keep, parts)
        self.state, self.tables = self.state.compact(keep), self._make_tables()
        for cache in self.caches:
            cache.compact(keep)

    def emit(self, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Decode one particle of each event."""
        return self.particle(None if self.selected is None else PairList.where(self.selected, *sizes))

    def _make_tables(self) -> Tables:
        """Tables of the source; on a CPU: skip masks when nothing is padded (a GPU would synchronise)."""
        tables, tokens, items = self.source.tables(), self.source.tokens.mask, self.source.items.mask
        padded = not (self.on_cpu and tokens.all() and items.all())
        return tables._replace(padded=padded)


def refine(
    network: PointingNetwork, decoded: DecodedParticles, source: EncodedSource, decoding: PointingDecodingConfig
) -> tuple[dict[str, Tensor], RefinedParticles]:
    """Decide which decoded particles are listed, share the hits among these, and choose identities.

    Returns columns [B, T, ...] of particles, and the refinement that they come from. Energies hold given the list: its
    plain sum is the event's energy. ``existence`` is the probability to exist, 1 with a track. With a
    `candidate_threshold` below 1, ``is_particle`` is also True for candidates: decoded particles that are not
    ``listed``, without hits, each with the energy that it has if it exists.
    """
    with_candidates = decoding.candidate_threshold < 1.0
    refined = network.refine(
        decoded, source, existence_threshold=decoding.existence_threshold, directions=with_candidates
    )
    listed, existence = refined.listed, refined.existence.float()
    columns = {"is_particle": listed, "existence": existence, **refined.particles.columns()}
    if not with_candidates:
        return columns, refined
    small = refined.candidates.log_energy < network.min_log_energy
    # One above the list's threshold that is not listed has less energy than any target: no candidate either.
    possible = (existence >= decoding.candidate_threshold) & (existence < decoding.existence_threshold)
    columns |= {"is_particle": listed | (decoded.mask & ~small & possible), "listed": listed}
    for name, column in refined.candidates.columns().items():
        chosen = listed.view(*listed.shape, *[1] * (column.ndim - 2))
        columns[name] = torch.where(chosen, columns[name], column)
    return columns, refined


@torch.inference_mode()
def generate(network: PointingNetwork, batch: Batch, decoding: PointingDecodingConfig) -> GeneratedParticles:
    """Decode the particles of each event; refine them if the network has a refiner.

    ValueError: in training mode, or candidates of a network without a refiner.
    """
    if network.training:
        raise ValueError("model: it is in training mode; call model.eval() first")
    if network.refiner is None and decoding.candidate_threshold < 1.0:
        raise ValueError("candidates: a model without a refinement does not say how probably a particle exists")
    source = network.encode(batch)
    columns, mask, truncated = decode_first_stage(network, source, decoding)
    # Without any decoded particle there is nothing to refine; the output has the refinement's column all the same.
    if network.refiner is not None and not mask.shape[1]:
        columns["existence"] = torch.ones_like(columns["log_energy"], dtype=torch.float32)
    elif network.refiner is not None:
        decoded, (size, n_particles, n_items) = DecodedParticles.of(columns, mask), columns["hit_fraction"].shape
        if source.states.device.type == "cpu":  # as many events at a time as its caches hold
            size = max(1, CACHED_FRACTIONS // (n_particles * max(1, n_items)))
        parts = []
        for start in range(0, len(mask), size):
            of_events = itemgetter(slice(start, start + size))
            first_stage = DecodedParticles(*map(of_events, decoded))
            refined_columns, refined = refine(network, first_stage, change_tensors(of_events, source), decoding)
            fraction = refined.refinement.pairs.dense(refined.listed_log_fraction.exp())
            parts.append({**refined_columns, "hit_fraction": fraction})
        columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    n_hits, is_particle = source.items.mask.shape[1] - source.tokens.track.shape[1], columns["is_particle"]
    probability = columns["pdg_logits"].softmax(-1)
    same = ("charge", "pdg", "energy_sigma", "direction_sigma", "by_track", "existence", "listed")
    values = {
        **{name: columns[name] for name in same if name in columns},
        "energy": network.energy_scale.normalised(columns["log_energy"]).float(),
        "direction": columns["direction"].float(),
        "score": probability.gather(-1, columns["pdg"][..., None]).squeeze(-1),
        "pdg_probability": probability,
        "hit_fraction": columns["hit_fraction"][..., :n_hits],
        "track_fraction": columns["hit_fraction"][..., n_hits:],
    }
    # Without gaps between the particles, and candidates behind the list.
    length = int(is_particle.sum(1).max()) if is_particle.numel() else 0
    place = (~is_particle).to(torch.uint8) + ~columns.get("listed", is_particle)
    order = place.argsort(dim=1, stable=True)[:, :length]
    mask = gather(is_particle, order)
    packed = {
        name: gather(column, order).masked_fill(~mask.view(*mask.shape, *[1] * (column.ndim - 2)), 0)
        for name, column in values.items()
    }
    return GeneratedParticles(**packed, mask=mask, truncated=truncated)
