"""Random events and plain networks for the benchmarks: sizes are all that matters to them."""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.functional import normalize

from pflow.data.batch import Batch, Target, TokenSet
from pflow.model.api import ModelInputs
from pflow.model.translation import TranslationNetworkConfig
from pflow.model.translation.network import ParticleTransformer

N_CHARGE, N_PDG, HIT_FEATURES = 3, 12, 5


def random_batch(*, events: int, hits: int, particles: int = 0, fill: float = 0.5, device: str = "cpu") -> Batch:
    """Events with `fill` * `hits` to `hits` hits, uniform, and exactly so many particles."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(int(fill * hits), hits + 1, (events,), generator=generator)
    lengths[0] = hits
    shape = (events, particles)
    target = Target(
        charge=torch.randint(0, N_CHARGE, shape, generator=generator),
        pdg=torch.randint(0, N_PDG, shape, generator=generator),
        energy=torch.randn(shape, generator=generator),
        direction=normalize(torch.randn(*shape, 3, generator=generator), dim=-1),
        mask=torch.ones(shape, dtype=torch.bool),
    )
    features = torch.randn(events, hits, HIT_FEATURES, generator=generator)
    return Batch(hits=TokenSet(features, torch.arange(hits)[None] < lengths[:, None]), target=target).to(device)


def network(decoder: str, *, device: str = "cpu") -> ParticleTransformer:
    """The default network with `decoder`; the target of ``multi_projection`` is twice as wide."""
    torch.manual_seed(0)
    inputs = ModelInputs(
        n_charge=N_CHARGE,
        n_pdg=N_PDG,
        hit_features=HIT_FEATURES,
        masses=(0.0,) * N_PDG,
        charged=(False,) * N_PDG,
        energy_mean=0.0,
        energy_std=1.0,
    )
    n_projections = 2 if decoder == "multi_projection" else None
    config = TranslationNetworkConfig(decoder=decoder, n_projections=n_projections)
    return ParticleTransformer(inputs, config).to(device)


def now(device: str) -> float:
    """Seconds, with all work on `device` done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options of both benchmarks."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes: a minute instead of several")
