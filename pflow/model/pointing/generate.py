"""Writing particles with the pointing network, one after the other.

The encoder runs once, keys and values of past tokens are kept, and events that are finished leave the batch. Letters: B
batch, T particles, S source tokens, M items, N hits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pflow.model.batch import Batch
from pflow.model.cache import Compaction, KeyValue, KVCache
from pflow.model.generate import Choice, Generated
from pflow.model.pointing.leftovers import give_leftovers
from pflow.model.pointing.network import LN10, Particles, PointingTransformer, Source, Written
from pflow.model.pointing.scene import gather

__all__ = ["generate_pointing"]


CRUMBS = 3
"""So many things too small to be particles, one after the other, end an event."""


@torch.inference_mode()
def generate_pointing(
    network: PointingTransformer,
    batch: Batch,
    *,
    max_particles: int,
    temperature: float | None = None,
    generator: torch.Generator | None = None,
) -> Generated:
    """Write the particles of each event of `batch`; as `pflow.model.generate.generate`, with incidences.

    An event ends when the end is at least as probable as ``network.end``. What has less energy than any target takes
    its hits and is no particle; `CRUMBS` of these one after the other end an event too, for there is nothing left but
    what no particle was taught to answer for. A temperature draws seeds and identities.

    Raises
    ------
    ValueError
        As there.
    """
    if max_particles < 1:
        raise ValueError(f"max_particles: {max_particles} is not positive")
    if network.training:
        raise ValueError("model: it is in training mode; call model.eval() first")
    size = len(batch)
    device = batch.hits.mask.device
    choice = Choice(temperature=temperature, generator=generator, batch=size)
    source = network.encode(batch)
    whole = source if network.revision is None else _kept(source)
    rows = torch.arange(size, device=device)
    covered = torch.zeros_like(source.scene.item_energy)  # [B, M]
    caches = [_cache(known, max_particles + 1) for known in source.known]
    x = network.begin.expand(size, 1, -1)
    truncated = torch.zeros(size, dtype=torch.bool, device=device)
    least = math.log(max(network.least_energy, 1e-9))
    crumbs = torch.zeros(size, dtype=torch.int64, device=device)  # [B], at the end of the sentence so far
    steps: list[_Step] = []
    for position in range(max_particles + 1):
        states, pointer = network.state(x, source, covered[:, None], caches)
        goes_on = (pointer[:, 0, -1].exp() < network.end) & (crumbs < CRUMBS)
        if position == max_particles:
            truncated[rows] = goes_on
            break
        if not bool(goes_on.any()):
            break
        if not bool(goes_on.all()):
            compaction = Compaction.of(goes_on)
            # On copies: what is kept of the steps before knows its own rows.
            rows, covered, states, pointer, crumbs = (
                compaction.apply(part.clone()) for part in (rows, covered, states, pointer, crumbs)
            )
            source = _compacted(source, compaction)
            for cache in caches:
                cache.compact(compaction)
        seed = choice(pointer[:, 0, :-1], rows)[:, None]
        real = torch.ones_like(seed, dtype=torch.bool)
        query, pairs, logits = network.point(states, seed, source, covered[:, None], real)
        share = network.share(logits, pairs, covered[:, None])
        made = network.particles(query, seed, share, pairs, source)
        pdg = choice(made.pdg[:, 0], rows)[:, None]
        if temperature is not None:
            made = network.particles(query, seed, share, pairs, source, pdg=pdg)
        taken = pairs.dense(share, (len(rows), 1, covered.shape[1]))
        charge = _charge(network, made, pdg, seed, source)
        is_particle = made.log_energy >= least
        crumbs = torch.where(is_particle[:, 0], 0, crumbs + 1)
        if network.use_coverage:
            covered = (covered + taken[:, 0]).clamp(max=1.0)
        written = Written(
            pdg=pdg,
            charge=charge,
            log_energy=made.log_energy,
            direction=made.direction,
            seed=seed,
            deposit=made.proxies.energy,
            pooled=made.pooled,
        )
        x = network.read_back(written, source)
        if network.revision is None:
            columns = {"is_particle": is_particle, **_columns(network, made, pdg, charge, taken, source)}
        else:
            columns = {"read": x, "query": query, "seed": seed, "taken": taken, "written": real}
            columns |= {"log_energy": made.log_energy, "direction": made.direction}
        steps.append(_Step(rows, columns))
    columns = _side_by_side(steps, size)
    if columns and network.revision is not None:
        columns = _second_reading(network, whole, columns, choice, least)
    return _joined(columns, truncated, batch, network)


class _Step(NamedTuple):
    """What is kept of a step: columns [B', 1, ...] of the events `rows` int64 [B']."""

    rows: Tensor
    columns: dict[str, Tensor]


def _cache(known: KeyValue, length: int) -> KVCache:
    size, heads, _, width = known.key.shape
    return KVCache(
        batch=size,
        heads=heads,
        max_length=length,
        head_width=width,
        dtype=known.key.dtype,
        device=known.key.device,
    )


def _kept(source: Source) -> Source:
    """A copy of what the second reading needs, as the storage of events that are finished is used for others."""
    tensors = {name: part.clone() for name, part in source.scene._asdict().items() if name != "n_hits"}
    return source._replace(scene=source.scene._replace(**tensors), states=source.states.clone())


def _compacted(source: Source, compaction: Compaction) -> Source:
    """The events that go on; storage is reused."""
    return Source(
        scene=source.scene.compact(compaction),
        states=compaction.apply(source.states),
        known=[KeyValue(*(part.contiguous() for part in pair)).compact(compaction) for pair in source.known],
        tokens=compaction.apply(source.tokens),
        items=compaction.apply(source.items),
    )


def _charge(network: PointingTransformer, made: Particles, pdg: Tensor, seed: Tensor, source: Source) -> Tensor:
    """Charge index int64 [B, 1] that fits the identity: the track's, 0 for neutral ones, else the most probable."""
    charged = network.get_buffer("charged")[pdg]
    track = 1 + gather(source.scene.token_charge, seed).sign().long()
    most_probable = torch.where(made.charge[..., 2] > made.charge[..., 0], 2, 0)
    return torch.where(charged, torch.where(made.by_track, track, most_probable), 1)


def _columns(
    network: PointingTransformer, made: Particles, pdg: Tensor, charge: Tensor, taken: Tensor, source: Source
) -> dict[str, Tensor]:
    """What is known of particles, [B, T, ...]."""
    n_hits = source.scene.n_hits
    probability = made.pdg.softmax(-1)
    return {
        "charge": charge,
        "pdg": pdg,
        "energy": (made.log_energy / LN10 - network.energy_mean) / network.energy_std,
        "direction": made.direction,
        "score": probability.gather(-1, pdg[..., None]).squeeze(-1),
        "pdg_probability": probability,
        "energy_sigma": made.energy_log_width.exp(),
        "direction_sigma": made.direction_log_width.exp(),
        "hit_share": taken[..., :n_hits],
        "track_share": taken[..., n_hits:],
    }


def _side_by_side(steps: list[_Step], size: int) -> dict[str, Tensor]:
    """Columns [B, T, ...] of all steps; zeros where an event has ended."""
    columns = {
        name: value.new_zeros(size, len(steps), *value.shape[2:])
        for name, value in (steps[0].columns if steps else {}).items()
    }
    for position, step in enumerate(steps):
        for name, value in step.columns.items():
            columns[name][step.rows, position] = value[:, 0]
    return columns


def _second_reading(
    network: PointingTransformer, source: Source, columns: dict[str, Tensor], choice: Choice, least: float
) -> dict[str, Tensor]:
    """The particles as the second reading makes them of what was written."""
    assert network.revision is not None
    seed, written = columns["seed"], columns["written"]
    revised = network.revision(
        network.related(columns["read"], columns["log_energy"], columns["direction"], written),
        columns["query"],
        seed,
        columns["taken"],
        written,
        source.scene,
        source.states,
        keep=network.keep,
    )
    share = revised.log_share.exp()
    made = network.particles(revised.query, seed, share, revised.pairs, source)
    rows = torch.arange(len(seed), device=seed.device)
    pdg = torch.stack([choice(made.pdg[:, t], rows) for t in range(seed.shape[1])], dim=1)
    made = network.particles(revised.query, seed, share, revised.pairs, source, pdg=pdg)
    charge = _charge(network, made, pdg, seed, source)
    taken = revised.pairs.dense(share, columns["taken"].shape)
    real = written & (revised.real.sigmoid() >= network.keep) & (made.log_energy >= least)
    return {"is_particle": real, **_columns(network, made, pdg, charge, taken, source)}


def _joined(columns: dict[str, Tensor], truncated: Tensor, batch: Batch, network: PointingTransformer) -> Generated:
    """The particles alone, those of an event one after the other."""
    size, device = len(truncated), truncated.device
    readout = batch.readout
    assert readout is not None
    if not columns:  # nothing was written
        whole: dict[str, tuple[int, ...]] = {
            "direction": (3,),
            "pdg_probability": (network.n_pdg,),
            "hit_share": (readout.mask.shape[1],),
            "track_share": (readout.track_mask.shape[1],),
        }
        numbers = ("charge", "pdg", "energy", "score", "energy_sigma", "direction_sigma", "is_particle", *whole)
        types = {"charge": torch.int64, "pdg": torch.int64, "is_particle": torch.bool}
        columns = {
            name: torch.zeros(size, 0, *whole.get(name, ()), dtype=types.get(name, torch.float32), device=device)
            for name in numbers
        }
    is_particle = columns["is_particle"]
    length = int(is_particle.sum(1).max()) if is_particle.numel() else 0
    order = (~is_particle).to(torch.uint8).argsort(dim=1, stable=True)[:, :length]
    mask = gather(is_particle, order)
    packed = {
        name: torch.where(mask.view(*mask.shape, *[1] * (values.ndim - 2)), gather(values, order), 0)
        for name, values in columns.items()
        if name != "is_particle"
    }
    written = Generated(**packed, mask=mask, truncated=truncated)
    if not network.leftovers:
        return written
    return give_leftovers(written, readout.energy * readout.mask, log10_energy_std=network.energy_std)
