"""From a seed and its assigned hits and tracks to a particle: identity, energy, direction and their uncertainties.

Letters: B batch, T particles, P pairs, V |PDG| codes or charges, W width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.api import ModelInputs
from pflow.model.common.activation import gelu
from pflow.model.common.directions import tangent_basis, unit_vector
from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.conversion import ConversionDirectionCorrection
from pflow.model.pointing.decoder import PreviousParticles
from pflow.model.pointing.encoder import EncodedSource
from pflow.model.pointing.geometry import gather
from pflow.model.pointing.pairs import Pairs
from pflow.model.pointing.proxies import Proxies, make_proxies, n_proxy_features

__all__ = ["EnergyScale", "ParticleHead", "Particles"]

LN10 = math.log(10.0)

CORRECTION_UNIT = 0.1
"""Correction of ln E for an output of 1."""

MAX_ELECTRON_MASS = 1e-3
"""Charged codes with a smaller mass are electrons, GeV."""

ENERGY_LOG_SIGMA = (-6.0, 1.5)
"""Range of the logarithm of the standard deviation of ln E."""

DIRECTION_LOG_SIGMA = (-9.5, 0.0)
"""Range of the logarithm of the standard deviation of an angle, rad."""


class EnergyScale(NamedTuple):
    """Conversion between ln(E / GeV) and normalised log10(E / GeV).

    Parameters
    ----------
    mean, std
        Of log10(E / GeV).
    """

    mean: float
    std: float

    def log_energy(self, normalised: Tensor) -> Tensor:
        """ln(E / GeV)."""
        return LN10 * (self.mean + self.std * normalised)

    def normalised(self, log_energy: Tensor) -> Tensor:
        """Normalised log10(E / GeV)."""
        return (log_energy / LN10 - self.mean) / self.std


class Particles(NamedTuple):
    """Predicted particles.

    Parameters
    ----------
    pdg, charge : float [B, T, V], logits
    log_energy : float [B, T], ln(E / GeV); in evaluation double
    direction : float [B, T, 3], unit vector; in evaluation double
    energy_log_sigma : float [B, T], logarithm of the standard deviation of ln E
    direction_log_sigma : float [B, T], logarithm of that of each of the two angles in the tangent plane, rad
    pooled : float [B, T, W], mean memory of the assigned items, weighted by energy
    proxies
        What energy and direction were corrected from.
    by_track : bool [B, T]
        Charged and with a track as seed, whose momentum they have.
    """

    pdg: Tensor
    charge: Tensor
    log_energy: Tensor
    direction: Tensor
    energy_log_sigma: Tensor
    direction_log_sigma: Tensor
    pooled: Tensor
    proxies: Proxies
    by_track: Tensor

    def as_previous(
        self, seed: Tensor, *, pdg: Tensor | None = None, charge: Tensor | None = None
    ) -> PreviousParticles:
        """As input of the decoder, with energies and directions detached.

        Parameters
        ----------
        seed : int64 [B, T]
        pdg, charge : int64 [B, T] or None
            Chosen identities; None: the most probable.
        """
        return PreviousParticles(
            pdg=self.pdg.argmax(-1) if pdg is None else pdg,
            charge=self.charge.argmax(-1) if charge is None else charge,
            log_energy=self.log_energy.detach().to(self.pooled.dtype),
            direction=self.direction.detach().to(self.pooled.dtype),
            seed=seed,
            deposit=self.proxies.energy.to(self.pooled.dtype),
            pooled=self.pooled,
        )

    def columns(self, pdg: Tensor, charge: Tensor, hit_fraction: Tensor) -> dict[str, Tensor]:
        """What is decoded of the particles, [B, T, ...], by name.

        Parameters
        ----------
        pdg, charge : int64 [B, T]
            Chosen identities.
        hit_fraction : float [B, T, M]
            Fraction of each item that is theirs.
        """
        return {
            "charge": charge,
            "pdg": pdg,
            "log_energy": self.log_energy,
            "direction": self.direction,
            "probability": self.pdg.softmax(-1),
            "energy_sigma": self.energy_log_sigma.exp(),
            "direction_sigma": self.direction_log_sigma.exp(),
            "by_track": self.by_track,
            "hit_fraction": hit_fraction,
        }


class Corrections(NamedTuple):
    """Outputs of the linear map that corrects proxies.

    Parameters
    ----------
    energy : float [B, T], correction of ln E in units of `CORRECTION_UNIT`; without proxies normalised log10 E
    track_trust : float [B, T], logit of the weight of the tracks' energy
    angles : float [B, T, 2], corrections of polar angle and azimuth in units of sigma; without proxies the angles, rad
    energy_log_sigma, direction_log_sigma : float [B, T]
    direction_trust : float [B, T, 2], logits of the linear barycentre and of the tracks' direction
    """

    energy: Tensor
    track_trust: Tensor
    angles: Tensor
    energy_log_sigma: Tensor
    direction_log_sigma: Tensor
    direction_trust: Tensor

    @classmethod
    def of(cls, outputs: Tensor) -> Corrections:
        """From the outputs float [B, T, 8]."""
        energy, trust, theta, phi, energy_sigma, direction_sigma, linear, track = outputs.unbind(-1)
        return cls(
            energy=energy,
            track_trust=trust,
            angles=torch.stack([theta, phi], dim=-1),
            energy_log_sigma=energy_sigma,
            direction_log_sigma=direction_sigma,
            direction_trust=torch.stack([linear, track], dim=-1),
        )


class ParticleHead(nn.Module):
    """Predict particles from what describes them and from their proxies.

    A charged particle whose seed is a track has the track's momentum; others have corrected proxies.
    """

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width = config.width
        self.n_pdg = inputs.n_pdg
        self.use_proxies = config.use_proxies
        self.energy_scale = EnergyScale(inputs.energy_mean, inputs.energy_std)
        self.register_buffer("masses", torch.tensor(inputs.masses, dtype=torch.float32), persistent=False)
        self.register_buffer("charged", torch.tensor(inputs.charged, dtype=torch.bool), persistent=False)
        self.describe = FullyConnected((n_features(width, inputs.n_subdetectors), width, width), activation="gelu")
        self.identity = nn.Linear(width, inputs.n_pdg + inputs.n_charge)
        self.correct = nn.Linear(width, 8)

    @torch.no_grad()
    def initialise(self) -> None:
        """Set the initial corrections to none."""
        if self.use_proxies:
            self.correct.weight.zero_()
        self.correct.bias.copy_(torch.tensor([0.0, -3.0, 0.0, 0.0, -2.0, -4.0, -3.0, -3.0]))

    def forward(
        self,
        query: Tensor,
        seed: Tensor,
        hit_fraction: Tensor,
        pairs: Pairs,
        source: EncodedSource,
        *,
        pdg: Tensor | None = None,
        refined_describe: nn.Module | None = None,
        direction_correction: ConversionDirectionCorrection | None = None,
        electron_log_odds: float = 0.0,
    ) -> Particles:
        """Predict.

        Parameters
        ----------
        query : float [B, T, W], from the assignment
        seed : int64 [B, T]
        hit_fraction : float [P], fraction of the pair's item that is the particle's
        pairs, source
            Pairs and encoded source of the batch.
        pdg : int64 [B, T] or None
            Identities if they are known (training); else the most probable.
        refined_describe
            Of a refinement: added to the description, from the same features.
        direction_correction
            Of a refinement.
        electron_log_odds
            As of `PointingDecodingConfig`: for the choice of identities that are not known.
        """
        scene = source.scene
        precise = hit_fraction if self.training else hit_fraction.double()
        proxies = make_proxies(precise, pairs, scene, seed)
        weight = hit_fraction * pairs.item_values(scene.item_weight).square()
        on_tokens = pairs.token_sums(weight, scene, (seed.shape[0], seed.shape[1]))
        pooled = on_tokens @ source.states / on_tokens.sum(-1, keepdim=True).clamp(min=1e-9)
        features = torch.cat([query, pooled, proxies.features], dim=-1)
        described = self.describe(features)
        if refined_describe is not None:
            described = described + refined_describe(features)
        described = gelu(described)
        identity = self.identity(described)
        corrections = Corrections.of(self.correct(described))
        chosen = pdg
        if chosen is None:
            chosen = self.with_electron_log_odds(identity[..., : self.n_pdg], electron_log_odds).argmax(-1)

        momentum = gather(scene.token_momentum, seed)
        p = torch.linalg.vector_norm(momentum, dim=-1)
        by_track = gather(scene.token_is_track, seed) & self.get_buffer("charged")[chosen] & (p > 0)
        if self.use_proxies:
            log_energy, direction = _corrected(proxies, corrections)
            if direction_correction is not None:
                direction = direction_correction(features, direction, proxies.showers, pairs)
        else:
            log_energy = self.energy_scale.log_energy(corrections.energy)
            theta, phi = corrections.angles.unbind(-1)
            direction = unit_vector(theta + torch.pi / 2, phi)
            by_track = torch.zeros_like(by_track)
        track_energy = torch.sqrt(p.square() + self.get_buffer("masses")[chosen].square()).clamp(min=1e-6)
        return Particles(
            pdg=identity[..., : self.n_pdg],
            charge=identity[..., self.n_pdg :],
            log_energy=torch.where(by_track, track_energy.log(), log_energy),
            direction=torch.where(by_track[..., None], functional.normalize(momentum, dim=-1), direction),
            energy_log_sigma=corrections.energy_log_sigma.clamp(*ENERGY_LOG_SIGMA),
            direction_log_sigma=corrections.direction_log_sigma.clamp(*DIRECTION_LOG_SIGMA),
            pooled=pooled,
            proxies=proxies,
            by_track=by_track,
        )

    def is_photon(self, pdg: Tensor) -> Tensor:
        """Which identities, int64 [B, T], are neutral without mass, bool [B, T]."""
        return (~self.get_buffer("charged") & (self.get_buffer("masses") == 0.0))[pdg]

    def with_electron_log_odds(self, logits: Tensor, log_odds: float) -> Tensor:
        """Logits float [B, T, V] of |PDG| codes, `log_odds` added to those of electrons."""
        if not log_odds:
            return logits
        electron = self.get_buffer("charged") & (self.get_buffer("masses") < MAX_ELECTRON_MASS)
        return logits + log_odds * electron

    def choose_charge(self, particles: Particles, pdg: Tensor, seed: Tensor, source: EncodedSource) -> Tensor:
        """Charge index int64 [B, T] that fits the identity: neutral, the charge of the track, or the most probable."""
        charged = self.get_buffer("charged")[pdg]
        track = 1 + gather(source.scene.token_charge, seed).sign().long()
        most_probable = torch.where(particles.charge[..., 2] > particles.charge[..., 0], 2, 0)
        return torch.where(charged, torch.where(particles.by_track, track, most_probable), 1)


def n_features(width: int, n_subdetectors: int) -> int:
    """Number of features that describe a particle: query, pooled memory and proxies."""
    return 2 * width + n_proxy_features(n_subdetectors)


def _corrected(proxies: Proxies, corrections: Corrections) -> tuple[Tensor, Tensor]:
    """ln E and direction: corrected proxies."""
    tracks = torch.linalg.vector_norm(proxies.track_momentum, dim=-1)
    trust = corrections.track_trust.sigmoid()  # in tracks, for a neutral particle that turned into charged ones
    base = (1.0 - trust) * proxies.energy + trust * tracks + 1e-2
    # A mean of the three directions; the log-weighted barycentre has the logit 0.
    parts = torch.stack([proxies.direction, proxies.linear_direction, proxies.track_direction], dim=-1)  # [B, T, 3, 3]
    weights = functional.pad(corrections.direction_trust, (1, 0)).softmax(-1)
    mean = functional.normalize((parts * weights[..., None, :]).sum(-1), dim=-1)
    theta, phi = tangent_basis(mean)
    # In units of sigma: the gradient of a likelihood with a small sigma would be as large as the sigma is small.
    sigma = corrections.direction_log_sigma.clamp(*DIRECTION_LOG_SIGMA).exp().detach()
    angles = sigma[..., None] * corrections.angles
    direction = mean + angles[..., :1] * theta + angles[..., 1:] * phi
    return base.log() + CORRECTION_UNIT * corrections.energy, functional.normalize(direction, dim=-1)
