"""Small events with a readout, showers and tracks of particles far apart, and small networks that read them."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad
from torch.nn.utils.rnn import pad_sequence

from pflow.data.batch import Batch, Readout, Target, TokenSet
from pflow.model.api import GeneratedParticles, LossConfig, ModelInputs
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
CELL = 2
"""Consecutive hits of a shower that make a token."""

SMALL: dict[str, Any] = {
    **{"n_charge": 3, "n_pdg": len(MASSES), "masses": MASSES, "charged": CHARGED, "n_subdetectors": N_SUBDETECTORS},
    **{"hit_features": 6, "track_features": 8, "energy_mean": ENERGY_MEAN, "energy_std": ENERGY_STD},
    **{"width": 24, "heads": 2, "feedforward": 32, "encoder_layers": 1, "decoder_layers": 2, "hidden_width": 16},
}


@dataclasses.dataclass
class Event:
    """One event, unpadded."""

    energy: Tensor  # [N], GeV
    position: Tensor  # [N, 3], mm
    token: Tensor  # [N]
    subdetector: Tensor  # [N]
    layer: Tensor  # [N]
    momentum: Tensor  # [K, 3], GeV
    charge: Tensor  # [K]
    true_pdg: Tensor  # [T]
    true_charge: Tensor  # [T]
    true_energy: Tensor  # [T], GeV
    true_direction: Tensor  # [T, 3]
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
    n, n_tracks = len(kinds), sum(CHARGED[kind] for kind in kinds)
    groups = (1.0 + 20.0 * torch.rand(n, generator=generator)).split([n_tracks, n - n_tracks])
    energies = torch.cat([group.sort(descending=True).values for group in groups])
    hits, tokens, owner, directions, n_tokens = [torch.zeros(0, 4)], [torch.zeros(0)], [], [torch.zeros(0, 3)], 0
    for i in range(n):
        # Spread over the detector, each with a polar angle and an azimuth of its own.
        theta, phi = torch.tensor([0.6 + 0.35 * i, 2.4 * i + 0.3 * float(normal(1))])
        direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()])
        n_hits = 4 + int(torch.randint(0, 6, (1,), generator=generator))
        fraction = torch.rand(n_hits, generator=generator) + 0.2
        energy = energies[i] * fraction / fraction.sum()
        position = direction * (1900.0 + 40.0 * torch.arange(n_hits)[:, None]) + 8.0 * normal(n_hits, 3)
        hits.append(torch.cat([energy[:, None], position], dim=1))
        tokens.append(n_tokens + torch.arange(n_hits) // CELL)
        n_tokens = int(tokens[-1][-1]) + 1
        owner += [i] * n_hits
        directions.append(direction[None])
    flat, direction, pdg = torch.cat(hits), torch.cat(directions), torch.tensor(kinds, dtype=torch.int64)
    momentum = (energies.square() - torch.tensor(MASSES)[pdg].square()).sqrt()[:, None] * direction
    charge = torch.where(torch.arange(n) < n_tracks, torch.arange(n) % 2 * 2, 1)
    return Event(
        energy=flat[:, 0],
        position=flat[:, 1:],
        token=torch.cat(tokens).long(),
        subdetector=torch.randint(0, N_SUBDETECTORS, (len(flat),), generator=generator),
        layer=torch.randint(0, 30, (len(flat),), generator=generator),
        momentum=momentum[:n_tracks],
        charge=charge[:n_tracks] - 1.0,
        true_pdg=pdg,
        true_charge=charge,
        true_energy=energies,
        true_direction=direction,
        hit_fraction=(torch.arange(n)[:, None] == torch.tensor(owner)).float(),
        track_fraction=torch.eye(n, n_tracks),
    )


def _collate(events: Sequence[Event], *, extra: int = 0) -> Batch:
    """A batch with `extra` more columns of padding than it needs."""

    def join(parts: Iterable[Tensor]) -> Tensor:  # [N_i, ...] each, to [B, max N_i + extra, ...]
        joined = pad_sequence(list(parts), batch_first=True)
        return pad(joined, (0, 0) * (joined.ndim - 2) + (0, extra))

    def padded(name: str) -> Tensor:
        return join(getattr(event, name) for event in events)

    def mask(lengths: Iterable[int]) -> Tensor:
        return join(torch.ones(n, dtype=torch.bool) for n in lengths)

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
    direction = join(normalize(event.momentum, dim=-1) for event in events)
    readout = Readout(
        **{name: padded(name) for name in ("energy", "position", "subdetector", "layer", "token")},
        mask=mask(len(event.energy) for event in events),
        track_momentum=padded("momentum"),
        track_charge=padded("charge"),
        track_position=1850.0 * direction,
        track_direction=direction,
        track_mask=mask(len(event.charge) for event in events),
    )
    target_mask = mask(len(event.true_pdg) for event in events)
    hit_fraction = torch.zeros(*target_mask.shape, readout.mask.shape[1])
    track_fraction = torch.zeros(*target_mask.shape, readout.track_mask.shape[1])
    for i, event in enumerate(events):
        for whole, part in ((hit_fraction, event.hit_fraction), (track_fraction, event.track_fraction)):
            whole[i, : part.shape[0], : part.shape[1]] = part
    target = Target(
        charge=padded("true_charge"),
        pdg=padded("true_pdg"),
        energy=join((event.true_energy.log10() - ENERGY_MEAN) / ENERGY_STD for event in events),
        direction=padded("true_direction"),
        mask=target_mask,
        hit_fraction=hit_fraction,
        track_fraction=track_fraction,
    )
    hits = TokenSet(join(hit_features), mask(n_tokens))
    return Batch(hits, TokenSet(join(track_features), readout.track_mask), target=target, readout=readout)


EVENTS = ((PHOTON, PION), (NEUTRON,), (PION, ELECTRON, PHOTON, NEUTRON), (PHOTON, PHOTON, PION))


class Model(PointingReconstructor):
    """With shorthands for tests."""

    def decode(self, batch: Batch, *, max_particles: int = 8) -> GeneratedParticles:
        return self.generate(batch, decoding=self.decoding.limited(max_particles))

    def set_decoding(self, **options: Any) -> None:
        self.decoding = dataclasses.replace(self.decoding, **options)


def _make_model(*, seed: int = 27, initial: bool = False, **options: Any) -> Model:
    """A small model with random weights, in evaluation mode; each option goes where it belongs.

    Initially corrections are 0, the refinement repeats the first stage and the end is probable, so that little is
    decoded: unless `initial`, the end is less probable and the others are random.
    """
    kinds = {
        "inputs": ModelInputs,
        "network": PointingNetworkConfig,
        "decoding": PointingDecodingConfig,
        "training": PointingTrainingConfig,
        "loss": LossConfig,
    }
    given = {**SMALL, **options}
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
            if (refiner := model.network.refiner) is not None:
                last = (
                    refiner.query_update[-1],
                    refiner.pair_logits.out[-1],
                    refiner.existence[-1],
                    refiner.unassigned,
                )
                for layer in (*last, refiner.messages.out):
                    layer.weight.add_(0.5 * torch.randn_like(layer.weight))
                refiner.existence[-1].bias.fill_(0.5)
    return model.eval()


def _by_hand(*, particles: Sequence[tuple[int, int, float]] = (), **given: Sequence[Any]) -> Batch:
    """One event, given number by number; particles are (pdg, charge index, energy) and fly along x.

    What is not given is zero, but each hit is then a token of its own.
    """
    n_hits, n_tracks, n = len(given.get("energy", ())), len(given.get("momentum", ())), len(particles)
    given.setdefault("token", range(n_hits))
    shapes = {
        **{"energy": (n_hits,), "position": (n_hits, 3), "hit_fraction": (n, n_hits), "track_fraction": (n, n_tracks)},
        **{"momentum": (n_tracks, 3), "charge": (n_tracks,)},
    }
    dtypes = dict.fromkeys(shapes, torch.float32) | dict.fromkeys(("token", "subdetector", "layer"), torch.int64)
    columns = {
        name: torch.tensor(given.pop(name, 0), dtype=dtype).broadcast_to(shapes.get(name, (n_hits,)))
        for name, dtype in dtypes.items()
    }
    assert not given
    pdg, charge, energy = torch.tensor(particles).view(n, 3).unbind(1)
    direction = torch.tensor([[1.0, 0.0, 0.0]]).expand(n, 3)
    true = {"true_pdg": pdg.long(), "true_charge": charge.long(), "true_energy": energy, "true_direction": direction}
    return _collate([Event(**columns, **true)])


def _source_of(batch: Batch, states: Tensor | None = None) -> EncodedSource:
    """The source of a batch with given states."""
    tokens, items = make_tokens_and_items(batch, n_subdetectors=N_SUBDETECTORS)
    if states is None:
        states = torch.zeros(*tokens.mask.shape, 12)
    return EncodedSource(tokens, items, states, torch.zeros(*items.mask.shape, 1))


by_hand = pytest.fixture(lambda: _by_hand, scope="session")
source_of = pytest.fixture(lambda: _source_of, scope="session")
make_event = pytest.fixture(lambda: _make_event, scope="session")
collate = pytest.fixture(lambda: _collate, scope="session")
make_model = pytest.fixture(lambda: _make_model, scope="session")


@pytest.fixture(scope="session")
def events() -> list[Event]:
    return [_make_event(kinds, seed=i) for i, kinds in enumerate(EVENTS)]


@pytest.fixture(scope="session")
def batch(events) -> Batch:
    """Events of two, one, four and three particles."""
    return _collate(events)


@pytest.fixture
def model() -> Model:
    """With it the events of `batch` get unequal numbers of particles."""
    return _make_model()


@pytest.fixture
def parallel() -> Model:
    """That decodes the charged particles of tracks at the same time; the states of tracks differ."""
    model = _make_model(parallel_tracks=True)
    with torch.no_grad():
        model.network.decoder.embed_track.weight.normal_(std=0.2)
    return model
