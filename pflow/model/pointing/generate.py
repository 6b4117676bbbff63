"""Writing particles with the pointing network: a first reading, and a second where there is one.

Letters: B batch, T particles, M items, N hits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.api import GeneratedParticles
from pflow.model.common.sampler import Sampler
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decode import charge_of, write
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.network import LN10, PointingTransformer, Source

__all__ = ["generate_pointing"]


@torch.inference_mode()
def generate_pointing(
    network: PointingTransformer,
    batch: Batch,
    *,
    decoding: PointingDecodingConfig,
    sampler: Sampler,
) -> GeneratedParticles:
    """Write the particles of each event of `batch`; as `pflow.model.common.decode.generate`, with incidences.

    When an event ends is said at `pflow.model.pointing.decode.write`. A temperature draws seeds and identities. With a
    second reading, an energy that no track measures is the expected one: what the particle has if it is one, times the
    probability that it is one. The loss ``visible`` counts it so, too.

    Raises
    ------
    ValueError
        As there.
    """
    if network.training:
        raise ValueError("model: it is in training mode; call model.eval() first")
    source = network.encode(batch)
    whole = source if network.revision is None else source.kept()
    columns, truncated = write(network, source, decoding=decoding, sampler=sampler)
    if network.revision is not None:
        columns = _second_reading(network, whole, columns, decoding, sampler)
    return _joined(columns, truncated, batch, network)


def _second_reading(
    network: PointingTransformer,
    source: Source,
    columns: dict[str, Tensor],
    decoding: PointingDecodingConfig,
    sampler: Sampler,
) -> dict[str, Tensor]:
    """The particles as the second reading makes them of what was written."""
    seed = columns["seed"]
    revised = network.reread(columns, source, keep=decoding.existence_threshold)
    made = network.remake(revised, seed, source)
    pdg = made.pdg.argmax(-1)
    if sampler.draws:
        pdg = torch.stack([sampler(made.pdg[:, t]) for t in range(seed.shape[1])], dim=1)
        made = network.remake(revised, seed, source, pdg)
    # Or what is written in pieces, each with an energy as if it were all, would count twice.
    doubt = functional.logsigmoid(revised.real).masked_fill(made.by_track, 0.0)
    made = made._replace(log_energy=made.log_energy + doubt)
    charge = charge_of(network, made, pdg, seed, source)
    taken = revised.pairs.dense(revised.log_share.exp(), columns["taken"].shape)
    real = revised.kept & (made.log_energy >= network.min_log_energy)
    return {"is_particle": real, **made.columns(pdg, charge, taken)}


def _joined(
    columns: dict[str, Tensor], truncated: Tensor, batch: Batch, network: PointingTransformer
) -> GeneratedParticles:
    """The particles alone, those of an event one after the other."""
    readout = batch.readout
    assert readout is not None
    n_hits = readout.mask.shape[1]
    is_particle, pdg = columns["is_particle"], columns["pdg"]
    values = {
        "charge": columns["charge"],
        "pdg": pdg,
        "energy": (columns["log_energy"] / LN10 - network.energy_mean) / network.energy_std,
        "direction": columns["direction"],
        "score": columns["probability"].gather(-1, pdg[..., None]).squeeze(-1),
        "pdg_probability": columns["probability"],
        "energy_sigma": columns["energy_sigma"],
        "direction_sigma": columns["direction_sigma"],
        "hit_fraction": columns["taken"][..., :n_hits],
        "track_fraction": columns["taken"][..., n_hits:],
    }
    length = int(is_particle.sum(1).max()) if is_particle.numel() else 0
    order = (~is_particle).to(torch.uint8).argsort(dim=1, stable=True)[:, :length]
    mask = gather(is_particle, order)
    packed = {
        name: torch.where(mask.view(*mask.shape, *[1] * (column.ndim - 2)), gather(column, order), 0)
        for name, column in values.items()
    }
    return GeneratedParticles(**packed, mask=mask, truncated=truncated)
