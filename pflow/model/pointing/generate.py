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
        taken = pairs.dense(share, (len(rows), 1, covered.shape[1]))[:, 0]
        charge = _charge(network, made, pdg, seed, source)
        is_particle = made.log_energy[:, 0] >= least
        crumbs = torch.where(is_particle, 0, crumbs + 1)
        steps.append(_Step(rows, is_particle, _columns(network, made, pdg, charge, taken, source.scene.n_hits)))
        if network.use_coverage:
            covered = (covered + taken).clamp(max=1.0)
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
    return _joined(steps, truncated, batch, network)


class _Step(NamedTuple):
    """What was written for the events `rows` int64 [B'], where it is a particle, bool [B']; columns [B', ...]."""

    rows: Tensor
    is_particle: Tensor
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
    network: PointingTransformer, made: Particles, pdg: Tensor, charge: Tensor, taken: Tensor, n_hits: int
) -> dict[str, Tensor]:
    """What is kept of a step, [B, ...]."""
    probability = made.pdg[:, 0].softmax(-1)
    return {
        "charge": charge[:, 0],
        "pdg": pdg[:, 0],
        "energy": (made.log_energy[:, 0] / LN10 - network.energy_mean) / network.energy_std,
        "direction": made.direction[:, 0],
        "score": probability.gather(-1, pdg).squeeze(-1),
        "pdg_probability": probability,
        "energy_sigma": made.energy_log_width[:, 0].exp(),
        "direction_sigma": made.direction_log_width[:, 0].exp(),
        "hit_share": taken[:, :n_hits],
        "track_share": taken[:, n_hits:],
    }


def _joined(steps: list[_Step], truncated: Tensor, batch: Batch, network: PointingTransformer) -> Generated:
    size, device = len(truncated), truncated.device
    count = torch.zeros(size, dtype=torch.int64, device=device)
    for step in steps:
        count[step.rows] += step.is_particle
    length = int(count.max()) if steps else 0
    readout = batch.readout
    assert readout is not None
    shapes: dict[str, tuple[int, ...]] = {
        "charge": (),
        "pdg": (),
        "energy": (),
        "direction": (3,),
        "score": (),
        "pdg_probability": (network.n_pdg,),
        "energy_sigma": (),
        "direction_sigma": (),
        "hit_share": (readout.mask.shape[1],),
        "track_share": (readout.track_mask.shape[1],),
    }
    columns = {
        name: torch.zeros(size, length, *shape, dtype=torch.int64 if name in ("charge", "pdg") else torch.float32).to(
            device
        )
        for name, shape in shapes.items()
    }
    mask = torch.zeros(size, length, dtype=torch.bool, device=device)
    count.zero_()
    for step in steps:
        rows = step.rows[step.is_particle]
        position = count[rows]
        mask[rows, position] = True
        for name, value in step.columns.items():
            columns[name][rows, position] = value[step.is_particle].to(columns[name].dtype)
        count[rows] += 1
    written = Generated(**columns, mask=mask, truncated=truncated)
    if not network.leftovers:
        return written
    return give_leftovers(written, readout.energy * readout.mask, log10_energy_std=network.energy_std)
