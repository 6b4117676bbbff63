"""From seed and assignment to a particle. Letters: B batch, T particles, N = B * T, P pairs, V classes, W width."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.api import ModelInputs
from pflow.model.common.transformer import FullyConnected, gelu
from pflow.model.common.vectors import normalise, tangent_basis
from pflow.model.pointing.assignment import Pairs
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.decoder import N_CHARGE, PreviousParticles
from pflow.model.pointing.geometry import Columns, Tables, TokenFrames, TokenTracks
from pflow.model.pointing.showers import (
    PROXY_FEATURES,
    ConversionDirectionCorrection,
    Proxies,
    front_direction,
    make_proxies,
    n_proxy_features,
)

LN10 = math.log(10.0)
CORRECTION_UNIT = 0.1  # correction of ln E for an output of 1
ENERGY_LOG_SIGMA = (-6.0, 1.5)  # range of the logarithm of the standard deviation of ln E
DIRECTION_LOG_SIGMA = (-9.5, 0.0)  # range of the logarithm of the standard deviation of an angle, rad
TRACK_FEATURES = ("log_track_energy", "log_ratio", "n_tracks", "charge", "track_off")  # proxies of `TrackIdentity`
TRACK_PRIOR = 3.0  # initial logit of a particle with a track as seed being charged: 95%
RESOLUTION = 0.6  # of the deposit of a hadron of 1 GeV, relative to the square root of the momentum
FRONT_DEPTH = 12.0  # over which the weights in the front of a shower of 1 GeV fall by e, mm


class EnergyScale(NamedTuple):
    """Conversion between ln(E / GeV) and normalised log10(E / GeV), by mean and standard deviation of the latter."""

    mean: float
    std: float

    def log_energy(self, normalised: Tensor) -> Tensor:
        """ln(E / GeV)."""
        return LN10 * (self.mean + self.std * normalised)

    def normalised(self, log_energy: Tensor) -> Tensor:
        """Normalised log10(E / GeV)."""
        return (log_energy / LN10 - self.mean) / self.std


class Particles(NamedTuple):
    """Predicted particles; energies and directions are in the precision of the fractions of items, see the head."""

    pdg: Tensor  # float [N, V], logits
    identity: Tensor  # int64 [N], the known or the most probable code, whose charge and mass it has
    charge: Tensor  # float [N, 3], logits
    log_energy: Tensor  # float [N], ln(E / GeV)
    direction: Tensor  # float [N, 3], unit vector
    energy_log_sigma: Tensor  # float [N], logarithm of the standard deviation of ln E
    direction_log_sigma: Tensor  # float [N], log standard deviation of each tangent-plane angle, rad
    by_track: Tensor  # bool [N], charged and with a track as seed, whose momentum they have
    track_charge: Tensor  # float [N], charge sign of the seed track; 0 for a hit
    deposit: Tensor  # float [N], energy of the assigned hits, GeV
    pooled: Tensor  # float [N, W], mean memory of the assigned items, weighted by energy

    def view(self, *shape: int) -> Particles:
        """The same as [B, T, ...]."""
        return Particles(*(values.view(*shape, *values.shape[1:]) for values in self))

    def as_previous(self, seed: Tensor, *, charge: Tensor | None = None) -> PreviousParticles:
        """As input of the decoder, with energies and directions detached; without a charge, of the most probable."""
        return PreviousParticles(
            pdg=self.pdg.argmax(-1) if charge is None else self.identity,
            charge=self.charge.argmax(-1) if charge is None else charge,
            log_energy=self.log_energy.detach().to(self.pooled.dtype),
            direction=self.direction.detach().to(self.pooled.dtype),
            seed=seed,
            deposit=self.deposit.to(self.pooled.dtype),
            pooled=self.pooled,
        )

    def columns(self, charge: Tensor) -> dict[str, Tensor]:
        """Columns of the decoded particles by name; `charge`, int64 [N], is the chosen class."""
        return {
            "charge": charge,
            "pdg": self.identity,
            "log_energy": self.log_energy,
            "direction": self.direction,
            "pdg_logits": self.pdg,
            "energy_sigma": self.energy_log_sigma.exp().float(),
            "direction_sigma": self.direction_log_sigma.exp().float(),
            "by_track": self.by_track,
        }


@dataclasses.dataclass
class Corrections(Columns):
    """Corrections of the proxies."""

    energy: Annotated[Tensor, 1]  # of ln E, / `CORRECTION_UNIT`
    trust: Annotated[Tensor, 1]  # logit of the weight of the tracks in the energy
    angles: Annotated[Tensor, 2]  # in polar angle and azimuth, in units of their sigma
    energy_log_sigma: Annotated[Tensor, 1]
    direction_log_sigma: Annotated[Tensor, 1]
    direction_trust: Annotated[Tensor, 2]  # logits of the linear and of the tracks' direction in the mean


class TrackIdentity(nn.Module):
    """Whether particles whose seed is a track are charged: one logit for all charged codes together.

    It sees what means the same in every detector: momentum, number and charge of the tracks, the deposit against the
    momentum as a ratio and in units of a calorimeter's resolution, and the angle between tracks and shower.
    """

    def __init__(self, charged: Tensor) -> None:
        super().__init__()
        self.register_buffer("charged", charged, persistent=False)
        columns = torch.tensor([PROXY_FEATURES.index(name) for name in TRACK_FEATURES])
        self.register_buffer("columns", columns, persistent=False)
        self.logit = FullyConnected((len(TRACK_FEATURES) + 1, 16, 1), initial=TRACK_PRIOR)

    def forward(self, logits: Tensor, proxies: Proxies, is_track: Tensor) -> Tensor:
        """Logits [N, V] of the codes, as the logarithms of probabilities where a seed is a track, float [N, 1]."""
        momentum = torch.linalg.vector_norm(proxies.track_momentum, dim=1, keepdim=True)
        pull = (proxies.energy - momentum) / (RESOLUTION * (momentum + 0.01).sqrt())
        columns = proxies.features.index_select(1, self.get_buffer("columns"))
        x = self.logit(torch.cat([columns, pull.asinh()], dim=1).to(logits.dtype))
        charged = self.get_buffer("charged")
        of_charged, of_others = (
            logits - logits.masked_fill(others, -torch.inf).logsumexp(1, keepdim=True) for others in (~charged, charged)
        )
        shares = torch.where(charged, functional.logsigmoid(x), functional.logsigmoid(-x))
        known = torch.where(charged, of_charged, of_others) + shares
        return torch.where(is_track > 0.5, known, logits)


class ParticleHead(nn.Module):
    """Predict particles: charged ones whose seed is a track have its momentum, others have corrected proxies."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width = config.width
        self.n_pdg = inputs.n_pdg
        self.register_buffer("masses", torch.tensor(inputs.masses, dtype=torch.float32), persistent=False)
        self.register_buffer("charged", torch.tensor(inputs.charged, dtype=torch.bool), persistent=False)
        self.describe = FullyConnected((2 * width + n_proxy_features(inputs.n_subdetectors), width, width))
        self.identity = nn.Linear(width, inputs.n_pdg + inputs.n_charge)
        self.correct = nn.Linear(width, sum(Corrections.widths()))
        self.track_identity = None
        if config.track_prior and len(set(inputs.charged)) == 2:  # both charged codes and others
            self.track_identity = TrackIdentity(self.get_buffer("charged"))

    def set_initial_values(self) -> None:
        """Set the initial corrections to none."""
        for parameter in self.correct.parameters():
            parameter.zero_()
        initial = Corrections.of(self.correct.bias)
        for part in (initial.trust, initial.direction_trust):
            part.fill_(-3.0)
        initial.energy_log_sigma.fill_(-2.0)
        initial.direction_log_sigma.fill_(-4.0)

    def forward(
        self,
        query: Tensor,
        seed: Tensor,
        hit_fraction: Tensor,
        pairs: Pairs,
        tables: Tables,
        *,
        pdg: Tensor | None = None,
        refined_describe: nn.Module | None = None,
        direction_correction: ConversionDirectionCorrection | None = None,
        front_trust: nn.Module | None = None,
    ) -> Particles:
        """Predict particles.

        `query`, float [N, W], is from the assignment; `seed`, int64 [N], are indices into B * S; `hit_fraction`, float
        [P], is the particle's fraction of the pair's item, and in its precision energies and directions are computed;
        `pdg`, int64 [N], are identities if they are known (training), else the most probable. Of a refinement:
        `refined_describe`, added to the description, from the same features, `direction_correction`, and `front_trust`,
        the logit of the direction to the shower's front in the mean of directions, from the description.
        """
        seed_unit = TokenFrames.of(tables.tokens.frames.index_select(0, seed)).unit
        proxies = make_proxies(hit_fraction, pairs, tables.items.sums, seed_unit)
        weight = hit_fraction.to(query.dtype) * pairs.of_items(tables.items.weight)
        pooled = pairs.mean_state(weight, pairs.of_items(tables.items.token), tables.states)
        features = torch.cat([query, pooled, proxies.features.to(query.dtype)], dim=1)
        described = self.describe(features)
        if refined_describe is not None:
            described = described + refined_describe(features)
        described = gelu(described)
        pdg_logits, charge_logits = self.identity(described).split_with_sizes([self.n_pdg, N_CHARGE], dim=1)
        corrections = Corrections.of(self.correct(described).to(hit_fraction.dtype))
        track = TokenTracks.of(tables.tokens.tracks.index_select(0, seed))
        if self.track_identity is not None:
            pdg_logits = self.track_identity(pdg_logits, proxies, track.is_track)
        if pdg is None:
            pdg = pdg_logits.argmax(-1)

        charged = self.get_buffer("charged").index_select(0, pdg)[:, None]
        by_track = charged & (track.momentum > 0)
        direction_log_sigma = corrections.direction_log_sigma.clamp(*DIRECTION_LOG_SIGMA)
        # Energy of hits, or of the tracks of a neutral particle that turned into charged ones.
        by_tracks = torch.linalg.vector_norm(proxies.track_momentum, dim=1, keepdim=True)
        energy = proxies.energy + corrections.trust.sigmoid() * (by_tracks - proxies.energy) + 1e-2  # GeV
        log_energy = energy.log() + CORRECTION_UNIT * corrections.energy
        direction_trust = corrections.direction_trust
        directions = [proxies.direction, proxies.linear_direction, proxies.track_direction]
        if front_trust is not None:
            front = front_direction(proxies.showers, pairs, depth=FRONT_DEPTH)
            known = front.square().sum(1, keepdim=True) > 0.5
            directions.append(torch.where(known, front, proxies.direction))
            direction_trust = torch.cat([direction_trust, front_trust(described).to(hit_fraction.dtype)], dim=1)
        direction = _corrected_direction(directions, direction_trust, corrections.angles, direction_log_sigma)
        if direction_correction is not None:
            direction = direction_correction(features, direction, proxies.showers, pairs)
        mass = self.get_buffer("masses").index_select(0, pdg)[:, None]
        track_energy = torch.sqrt(track.momentum.square() + mass.square()).clamp(min=1e-6)
        return Particles(
            pdg=pdg_logits,
            identity=pdg,
            charge=charge_logits,
            log_energy=torch.where(by_track, track_energy.log(), log_energy).squeeze(1),
            direction=torch.where(by_track, track.unit, direction),
            energy_log_sigma=corrections.energy_log_sigma.clamp(*ENERGY_LOG_SIGMA).squeeze(1),
            direction_log_sigma=direction_log_sigma.squeeze(1),
            by_track=by_track.squeeze(1),
            track_charge=track.charge.squeeze(1),
            deposit=proxies.energy.squeeze(1),
            pooled=pooled,
        )

    def choose_charge(self, particles: Particles) -> Tensor:
        """Charge index int64 [N] that fits the identity: neutral, the charge of the track, or the most probable."""
        charged = self.get_buffer("charged")[particles.identity]
        most_probable = 2 * (particles.charge[..., 2] > particles.charge[..., 0]).long() - 1
        return 1 + charged * torch.where(particles.by_track, particles.track_charge.long(), most_probable)


def _corrected_direction(directions: Sequence[Tensor], trust: Tensor, angles: Tensor, log_sigma: Tensor) -> Tensor:
    """A mean of K unit vectors [N, 3], turned by small angles; `trust` [N, K - 1] are the logits after the first, 0.

    The `angles` [N, 2], in polar angle and azimuth, are in units of sigma: the gradient of a likelihood with a small
    sigma would be as large as the sigma is small.
    """
    logits = torch.cat([torch.zeros_like(log_sigma), trust], dim=1)
    weights = logits.softmax(-1).chunk(len(directions), dim=1)
    weighted = [weight * direction for weight, direction in zip(weights, directions, strict=True)]
    mean = normalise(sum(weighted[1:], weighted[0]))
    theta, phi = tangent_basis(mean)
    off_theta, off_phi = (log_sigma.exp().detach() * angles).chunk(2, dim=1)
    return normalise(mean + off_theta * theta + off_phi * phi)
