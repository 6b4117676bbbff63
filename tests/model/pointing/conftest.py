"""Small events with a readout, showers and tracks of particles far apart, and small networks that read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.model.api import GeneratedParticles, LossConfig, ModelInputs, Sampler
from pflow.model.pointing import (
    PointingDecodingConfig,
    PointingNetworkConfig,
    PointingReconstructor,
    PointingTrainingConfig,
)
from pflow.model.pointing.geometry import EncodedSource, make_tokens_and_items

MASSES = (0.0, 0.1395704, 0.9395654, 0.00051099895)
CHARGED = (False, True, False, True)
PHOTON, PION, NEUTRON, ELECTRON = range(4)
ENERGY_MEAN, ENERGY_STD = 0.8, 0.5
N_SUBDETECTORS = 2
HIT_FEATURES, TRACK_FEATURES = 6, 8
LN10 = 2.302585092994046
CELL = 2
"""Consecutive hits of a shower that make a token."""

SIZES: dict[str, Any] = {
    "n_charge": 3,
    "n_pdg": len(MASSES),
    "hit_features": HIT_FEATURES,
    "track_features": TRACK_FEATURES,
    "n_subdetectors": N_SUBDETECTORS,
    "masses": MASSES,
    "charged": CHARGED,
    "energy_mean": ENERGY_MEAN,
    "energy_std": ENERGY_STD,
}
SMALL: dict[str, Any] = {
    "width": 24,
    "heads": 2,
    "feedforward": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "hidden_width": 16,
}


@dataclasses.dataclass
class Event:
    """One event, unpadded: lists of rows that become tensors."""

    energy: Tensor  # [N], GeV
    position: Tensor  # [N, 3], mm
    token: Tensor  # [N]
    subdetector: Tensor  # [N]
    layer: Tensor  # [N]
    momentum: Tensor  # [K, 3], GeV
    charge: Tensor  # [K]
    particles: list[tuple[int, int, float, Tensor]]  # pdg, charge index, energy in GeV, direction
    hit_fraction: Tensor  # [T, N]
    track_fraction: Tensor  # [T, K]


def _make_event(kinds: Sequence[int], *, seed: int) -> Event:
    """A shower of four to nine hits for each particle of `kinds`, all well apart, and a track for each charged one.

    The tracked ones come first, each group by falling energy.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    kinds = sorted(kinds, key=lambda kind: not CHARGED[kind])
    energies = 1.0 + 20.0 * torch.rand(len(kinds), generator=generator)
    n_tracked = sum(CHARGED[kind] for kind in kinds)
    groups = energies.split([n_tracked, len(kinds) - n_tracked])
    energies = torch.cat([group.sort(descending=True).values for group in groups])
    hits, tokens, owner, momenta, charges, particles = [], [], [], [], [], []
    n_tokens = 0
    for i, kind in enumerate(kinds):
        # Spread over the detector, each with a polar angle and an azimuth of its own.
        theta, phi = 0.6 + 0.35 * i, 2.4 * i + 0.3 * float(normal(1))
        angles = torch.tensor([theta, phi])
        sin, cos = angles.sin(), angles.cos()
        direction = torch.stack([sin[0] * cos[1], sin[0] * sin[1], cos[0]])
        n = 4 + int(torch.randint(0, 6, (1,), generator=generator))
        fraction = torch.rand(n, generator=generator) + 0.2
        energy = energies[i] * fraction / fraction.sum()
        position = direction * (1900.0 + 40.0 * torch.arange(n)[:, None]) + 8.0 * normal(n, 3)
        hits.append(torch.cat([energy[:, None], position], dim=1))
        token = n_tokens + torch.arange(n) // CELL
        tokens.append(token)
        n_tokens = int(token[-1]) + 1
        owner += [i] * n
        charge = 1
        if CHARGED[kind]:
            charge = 2 if i % 2 else 0
            p = (energies[i] ** 2 - MASSES[kind] ** 2).sqrt()
            momenta.append(p * direction)
            charges.append(float(charge - 1))
        particles.append((kind, charge, float(energies[i]), direction))
    flat = torch.cat(hits) if hits else torch.zeros(0, 4)
    n_hits, n_tracks = len(flat), len(momenta)
    hit_fraction = torch.zeros(len(kinds), n_hits)
    hit_fraction[torch.tensor(owner, dtype=torch.int64), torch.arange(n_hits)] = 1.0
    track_fraction = torch.zeros(len(kinds), n_tracks)
    track_fraction[torch.arange(n_tracks), torch.arange(n_tracks)] = 1.0
    return Event(
        energy=flat[:, 0],
        position=flat[:, 1:],
        token=torch.cat(tokens) if tokens else torch.zeros(0, dtype=torch.int64),
        subdetector=torch.randint(0, N_SUBDETECTORS, (n_hits,), generator=generator),
        layer=torch.randint(0, 30, (n_hits,), generator=generator),
        momentum=torch.stack(momenta) if momenta else torch.zeros(0, 3),
        charge=torch.tensor(charges),
        particles=particles,
        hit_fraction=hit_fraction,
        track_fraction=track_fraction,
    )


def _padded(parts: Sequence[Tensor], extra: int) -> Tensor:
    """[N_i, ...] each, to [B, max N_i + extra, ...] with zeros behind."""
    longest = max(len(part) for part in parts) + extra
    rows = [torch.cat([part, part.new_zeros(longest - len(part), *part.shape[1:])]) for part in parts]
    return torch.stack(rows)


def _mask(lengths: Sequence[int], extra: int) -> Tensor:
    return torch.arange(max(lengths) + extra)[None] < torch.tensor(lengths)[:, None]


def _collate(events: Sequence[Event], *, extra: int = 0) -> Batch:
    """A batch with `extra` more columns of padding than it needs."""
    n_tokens = [int(event.token.max()) + 1 if len(event.token) else 0 for event in events]
    hit_features, track_features = [], []
    for event, n in zip(events, n_tokens, strict=True):
        energy = torch.zeros(n).index_add(0, event.token, event.energy)
        centre = torch.zeros(n, 3).index_add(0, event.token, event.energy[:, None] * event.position)
        centre = centre / energy[:, None]
        hit_features.append(torch.cat([energy.log()[:, None], normalize(centre, dim=-1), centre[:, :2] / 2000], dim=1))
        p = event.momentum.norm(dim=1, keepdim=True).clamp(min=1e-6)
        unit = event.momentum / p
        track_features.append(torch.cat([p.log(), unit, event.charge[:, None], 1.9 * unit], dim=1))
    unit = [normalize(event.momentum, dim=-1) for event in events]
    readout = Readout(
        energy=_padded([event.energy for event in events], extra),
        position=_padded([event.position for event in events], extra),
        subdetector=_padded([event.subdetector for event in events], extra),
        layer=_padded([event.layer for event in events], extra),
        token=_padded([event.token for event in events], extra),
        mask=_mask([len(event.energy) for event in events], extra),
        track_momentum=_padded([event.momentum for event in events], extra),
        track_charge=_padded([event.charge for event in events], extra),
        track_position=_padded([1850.0 * part for part in unit], extra),
        track_direction=_padded(unit, extra),
        track_mask=_mask([len(event.charge) for event in events], extra),
    )
    n_particles = [len(event.particles) for event in events]
    target_mask = _mask(n_particles, extra)
    hit_fraction = torch.zeros(*target_mask.shape, readout.mask.shape[1])
    track_fraction = torch.zeros(*target_mask.shape, readout.track_mask.shape[1])
    for i, event in enumerate(events):
        hit_fraction[i, : event.hit_fraction.shape[0], : event.hit_fraction.shape[1]] = event.hit_fraction
        track_fraction[i, : event.track_fraction.shape[0], : event.track_fraction.shape[1]] = event.track_fraction
    pdg, charge, energy, direction = [], [], [], []
    for event in events:
        pdg.append(torch.tensor([p[0] for p in event.particles], dtype=torch.int64))
        charge.append(torch.tensor([p[1] for p in event.particles], dtype=torch.int64))
        energy.append((torch.tensor([p[2] for p in event.particles]).log10() - ENERGY_MEAN) / ENERGY_STD)
        direction.append(torch.stack([p[3] for p in event.particles]) if event.particles else torch.zeros(0, 3))
    target = Target(
        charge=_padded(charge, extra),
        pdg=_padded(pdg, extra),
        energy=_padded(energy, extra),
        direction=_padded(direction, extra),
        mask=target_mask,
        hit_fraction=hit_fraction,
        track_fraction=track_fraction,
    )
    return Batch(
        hits=TokenSet(_padded(hit_features, extra), _mask(n_tokens, extra)),
        tracks=TokenSet(_padded(track_features, extra), readout.track_mask),
        target=target,
        readout=readout,
    )


EVENTS = ((PHOTON, PION), (NEUTRON,), (PION, ELECTRON, PHOTON, NEUTRON), (PHOTON, PHOTON, PION))


class Model(PointingReconstructor):
    """With shorthands for tests."""

    def decode(self, batch: Batch, *, max_particles: int = 8, **sampling: Any) -> GeneratedParticles:
        decoding = self.decoding.limited(max_particles)
        return self.generate(batch, decoding=decoding, sampler=Sampler(**sampling))

    def set_decoding(self, **options: Any) -> None:
        self.decoding = dataclasses.replace(self.decoding, **options)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return self.training_step(batch).losses


def _make_model(*, seed: int = 27, initial: bool = False, **options: Any) -> Model:
    """A small model with random weights, in evaluation mode; each option goes where it belongs.

    Initially corrections are none and the end is probable, so that little is decoded: unless `initial`, corrections are
    random and the end is less probable.
    """
    kinds = {
        "inputs": ModelInputs,
        "network": PointingNetworkConfig,
        "decoding": PointingDecodingConfig,
        "training": PointingTrainingConfig,
        "loss": LossConfig,
    }
    given = {**SIZES, **SMALL, **options}
    parts: dict[str, Any] = {}
    for part, kind in kinds.items():
        names = [field.name for field in dataclasses.fields(kind)]
        parts[part] = kind(**{name: given.pop(name) for name in names if name in given})
    assert not given
    torch.manual_seed(seed)
    model = Model(parts.pop("inputs"), **parts)
    if not initial:
        with torch.no_grad():
            correct = model.network.head.correct
            correct.weight.add_(0.3 * torch.randn_like(correct.weight))
            model.network.decoder.pointer.eos[-1].bias.sub_(2.0)
    return model.eval()


def _by_hand(
    *,
    energy: Sequence[float] = (),
    position: Sequence[Sequence[float]] = (),
    token: Sequence[int] = (),
    momentum: Sequence[Sequence[float]] = (),
    charge: Sequence[float] = (),
    particles: Sequence[tuple[int, int, float]] = (),
    hit_fraction: Sequence[Sequence[float]] = (),
    track_fraction: Sequence[Sequence[float]] = (),
) -> Batch:
    """One event, given number by number; particles are (pdg, charge index, energy) and fly along x."""
    n_hits, n_tracks, n_particles = len(energy), len(momentum), len(particles)
    along_x = torch.tensor([1.0, 0.0, 0.0])
    event = Event(
        energy=torch.tensor(energy, dtype=torch.float32),
        position=torch.tensor(position, dtype=torch.float32).view(n_hits, 3),
        token=torch.tensor(token, dtype=torch.int64),
        subdetector=torch.zeros(n_hits, dtype=torch.int64),
        layer=torch.zeros(n_hits, dtype=torch.int64),
        momentum=torch.tensor(momentum, dtype=torch.float32).view(n_tracks, 3),
        charge=torch.tensor(charge, dtype=torch.float32),
        particles=[(*particle, along_x) for particle in particles],
        hit_fraction=torch.tensor(hit_fraction, dtype=torch.float32).view(n_particles, n_hits),
        track_fraction=torch.tensor(track_fraction, dtype=torch.float32).view(n_particles, n_tracks),
    )
    return _collate([event])


@pytest.fixture(scope="session")
def by_hand() -> Callable[..., Batch]:
    return _by_hand


def _source_of(batch: Batch, states: Tensor | None = None) -> EncodedSource:
    tokens, items = make_tokens_and_items(batch, n_subdetectors=N_SUBDETECTORS)
    if states is None:
        states = torch.zeros(*tokens.mask.shape, 12)
    return EncodedSource(tokens, items, states, torch.zeros(*items.mask.shape, 1))


@pytest.fixture(scope="session")
def source_of() -> Callable[..., EncodedSource]:
    """The source of a batch with given states."""
    return _source_of


@pytest.fixture(scope="session")
def make_event() -> Callable[..., Event]:
    return _make_event


@pytest.fixture(scope="session")
def collate() -> Callable[..., Batch]:
    return _collate


@pytest.fixture(scope="session")
def events() -> list[Event]:
    return [_make_event(kinds, seed=i) for i, kinds in enumerate(EVENTS)]


@pytest.fixture(scope="session")
def batch(events) -> Batch:
    """Events of two, one, four and three particles."""
    return _collate(events)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Model]:
    return _make_model


@pytest.fixture
def model() -> Model:
    """With it the events of `batch` get unequal numbers of particles."""
    return _make_model()


@pytest.fixture(scope="session")
def first_events() -> Callable[[Batch, int], Batch]:
    """Makes a batch of the first n events of another, with its padding."""

    def part(values: Any, n: int) -> Any:
        columns = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
        return type(values)(**{name: column[:n] for name, column in columns.items() if isinstance(column, Tensor)})

    names = ("hits", "tracks", "target", "readout")
    return lambda batch, n: Batch(**{name: part(getattr(batch, name), n) for name in names})
