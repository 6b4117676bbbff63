from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.model.api import GeneratedParticles, ModelInputs
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor

N_CHARGE, N_PDG = 3, 6
FEATURES = {"hits": 4, "tracks": 5, "tracker_hits": 3}
VARIANTS = (  # of special tokens, decoder, source and direction: each value of one with each of another, of sources two
    *(("flags", "vanilla", "hits", "copied"), ("flags", "multi_projection", "typed", "angles")),
    *(("kind", "multi_projection", "hits", "vector"), ("kind", "vanilla", "typed", "copied")),
    *(("flags", "multi_projection", "cross", "copied"), ("kind", "vanilla", "cross", "angles")),
)
HITS_OF_TOKEN = 2


@pytest.fixture(params=VARIANTS, ids="-".join)
def variant(request: pytest.FixtureRequest) -> dict[str, str]:
    return dict(zip(("special", "decoder", "source", "direction"), request.param, strict=True))


def _mask(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


def _make_batch(hits: list[int], particles: list[int] | None = None, *, seed: int = 0) -> Batch:
    """Events with so many hits and particles each, and a few tracks; padding holds zeros."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(name: str, lengths: list[int]) -> TokenSet:
        mask = _mask(lengths)
        features = torch.randn(*mask.shape, FEATURES[name], generator=generator)
        return TokenSet(features * mask[..., None], mask)

    B = len(hits)
    readout = _make_readout(hits, generator)

    def shares(particles: Tensor, items: Tensor) -> Tensor:
        """Random fractions of each item, whose sum over the particles is at most 1."""
        parts = torch.rand(*particles.shape, items.shape[1], generator=generator)
        return parts / (parts.sum(1, keepdim=True) + 0.1) * particles[..., None] * items[:, None]

    target = None
    if particles is not None:
        mask = _mask(particles)
        direction = normalize(torch.randn(*mask.shape, 3, generator=generator), dim=-1)
        target = Target(
            charge=torch.randint(0, N_CHARGE, mask.shape, generator=generator) * mask,
            pdg=torch.randint(0, N_PDG, mask.shape, generator=generator) * mask,
            energy=torch.randn(mask.shape, generator=generator) * mask,
            direction=direction * mask[..., None],
            mask=mask,
            hit_fraction=shares(mask, readout.mask),
            track_fraction=shares(mask, readout.track_mask),
        )
    return Batch(
        hits=tokens("hits", hits),
        tracks=tokens("tracks", [i % 4 for i in range(B)]),
        tracker_hits=tokens("tracker_hits", [(i + 2) % 5 for i in range(B)]),
        target=target,
        readout=readout,
    )


def _make_readout(hits: list[int], generator: torch.Generator) -> Readout:
    """Tokens of two hits each, and the tracks of `_make_batch`."""
    mask, track_mask = _mask([HITS_OF_TOKEN * n for n in hits]), _mask([i % 4 for i in range(len(hits))])
    of_tracks = [torch.randn(*track_mask.shape, 3, generator=generator) * track_mask[..., None] for _ in range(3)]
    return Readout(
        energy=torch.rand(mask.shape, generator=generator) * mask,
        position=2000.0 * normalize(torch.randn(*mask.shape, 3, generator=generator), dim=-1) * mask[..., None],
        subdetector=torch.zeros_like(mask, dtype=torch.int64),
        layer=torch.zeros_like(mask, dtype=torch.int64),
        token=torch.arange(mask.shape[1]).div(HITS_OF_TOKEN, rounding_mode="floor") * mask,
        mask=mask,
        **dict(zip(("track_momentum", "track_position", "track_direction"), of_tracks, strict=True)),
        track_charge=track_mask.float(),
        track_mask=track_mask,
    )


def _make_model(*, seed: int = 0, **arguments: Any) -> TranslationReconstructor:
    """A small model that reads what its source and decoder need; arguments are fields of its inputs or network."""
    source = arguments.get("source", "hits")
    inputs: dict[str, Any] = {
        **{"n_charge": N_CHARGE, "n_pdg": N_PDG, "masses": (0.0,) * N_PDG, "charged": (False,) * N_PDG},
        **{"energy_mean": 0.8, "energy_std": 0.5, "hit_features": FEATURES["hits"]},
        "track_features": FEATURES["tracks"] if source != "hits" else 0,
        "tracker_hit_features": FEATURES["tracker_hits"] if source == "typed" else 0,
    }
    sizes: dict[str, Any] = {"width": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "feedforward": 32}
    if arguments.get("decoder") == "multi_projection":
        sizes["n_projections"] = 2
    for name, value in arguments.items():
        (inputs if name in inputs else sizes)[name] = value
    torch.manual_seed(seed)
    return TranslationReconstructor(ModelInputs(**inputs), network=TranslationNetworkConfig(**sizes)).eval()


make_batch = pytest.fixture(lambda: _make_batch, scope="session")
make_model = pytest.fixture(lambda: _make_model, scope="session")


@pytest.fixture(scope="session")
def row_of() -> Callable[..., dict[str, Tensor | None]]:
    """Event i of the particles of a batch, by field, without the padding that those of the event alone do not have."""

    def row(together: GeneratedParticles, i: int, alone: GeneratedParticles) -> dict[str, Tensor | None]:
        sizes = {name: value.shape for name, value in vars(alone).items() if value is not None}
        rows = {name: getattr(together, name)[i : i + 1][tuple(map(slice, size))] for name, size in sizes.items()}
        return vars(alone) | rows

    return row
