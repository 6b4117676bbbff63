"""The pointing model as a `Reconstructor`, and its losses: means over real particles or steps.

Letters: B batch, T target particles, R those that are decoded one by one, S source tokens, P pairs.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Batch, Target
from pflow.model.api import (
    DecodingConfig,
    GeneratedParticles,
    LossConfig,
    ModelInputs,
    Reconstructor,
    masked_mean,
    with_total,
)
from pflow.model.pointing.config import PointingDecodingConfig, PointingNetworkConfig, PointingTrainingConfig
from pflow.model.pointing.generate import generate
from pflow.model.pointing.geometry import EncodedSource
from pflow.model.pointing.head import EnergyScale, Particles
from pflow.model.pointing.network import FIRST_STAGE, PointingNetwork, RefinedParticles
from pflow.model.pointing.training import (
    SCHEDULED_SAMPLING_PROB,
    TeacherForcing,
    decode_and_match,
    target_fractions,
    teacher_forcing,
)

LOSSES = (
    *("starts", "pointer", "eos", "assignment", "pdg", "charge", "energy", "direction"),
    *("refined_assignment", "existence", "listed_energy", "visible_energy"),  # of the refinement
)
EPS_VISIBLE = 0.1  # added to the energies of events before the logarithm, GeV
# Residuals of more standard deviations count as their logarithm: a wrong assignment is no measurement error. Linear
# tails (Huber 1964) let one photon of 50, converted in the tracker, decide the mean of all.
TAIL = 3.0


def first_stage_losses(made: TeacherForcing, energy_scale: EnergyScale) -> dict[str, Tensor]:
    """Losses of the first stage by name, unweighted scalars, with `particle_losses`.

    ``starts``, of a network with `parallel_tracks`: binary cross-entropy of whether a track starts a charged particle.
    ``pointer``: minus the logarithm of the probability of a suitable seed, each token weighted by how suitable it is.
    ``eos``: the same of the end, summed over events and divided by the number of particles like the pointer's: with
    equal weights both are the likelihood of the sequence, and the probability of the end is calibrated. ``assignment``:
    binary cross-entropy of the fraction of each item's unassigned part, weighted by the unassigned fraction times the
    square root of the energy, normalised for each particle.
    """
    mask, seed_weight, pairs = made.target.mask, made.seed_weight, made.pairs
    one_by_one = mask[:, mask.shape[1] - seed_weight.shape[1] :]  # bool [B, R]
    seed = torch.logsumexp(made.pointer[:, :-1, :-1] + seed_weight.clamp(min=1e-12).log(), dim=-1)
    last = one_by_one.sum(1)  # position of the end
    end = made.pointer[torch.arange(len(last), device=last.device), last, -1]
    cost = functional.binary_cross_entropy_with_logits(made.logits, made.target_fraction, reduction="none")
    # With 0.05 a particle that has next to nothing of its possible items does not count many times.
    norm = pairs.sums((made.weight * (made.target_fraction + 0.05))[None])
    cost = pairs.sums((made.weight * cost)[None]) / norm.clamp(min=1e-3)
    losses = {
        "pointer": -masked_mean(seed, one_by_one & (seed_weight.amax(-1) > 0)),
        "eos": -end.sum() / last.sum().clamp(min=1),
        "assignment": masked_mean(cost.view_as(mask), mask),
        **particle_losses(made.particles, made.target, energy_scale),
    }
    if n_tracks := made.starts.shape[1]:
        losses["starts"] = _binary_cross_entropy(made.starts, mask[:, :n_tracks], made.is_track)
    return losses


def refinement_losses(
    refined: RefinedParticles,
    decoded: Tensor,
    matched: Target,
    target: Target,
    source: EncodedSource,
    energy_scale: EnergyScale,
) -> dict[str, Tensor]:
    """Losses of the refinement of particles of `decode_and_match`, as of `first_stage_losses`.

    ``refined_assignment``: cross-entropy of the fractions of each item, weighted by the square root of its energy.
    ``existence``: binary cross-entropy of whether a decoded particle, bool [B, T], is matched to a target.
    ``listed_energy``: as ``energy``, of the listed particles with the energies that they have in the list.
    ``visible_energy``: absolute difference of ln E between the plain sum over the list and the sum over all targets.
    """
    pairs, true = refined.refinement.pairs, target_fractions(matched)
    weight = source.items.weight.sqrt() * source.items.mask  # float [B, M], GeV^(1/2)
    of_pairs = pairs.of_items(weight.flatten()) * pairs.values(true) * refined.log_fraction
    of_none = weight * (1.0 - true.sum(1)).clamp(min=0.0) * refined.log_unassigned
    true_energy = energy_scale.log_energy(target.energy).exp().masked_fill(~target.mask, 0.0)  # GeV
    ratio = ((refined.particles.log_energy.exp() * refined.listed).sum(1) + EPS_VISIBLE) / (
        true_energy.sum(1) + EPS_VISIBLE
    )
    in_list = _of_energy(refined.particles, energy_scale.log_energy(matched.energy))
    return {
        "refined_assignment": -(of_pairs.sum() + of_none.sum()) / weight.sum().clamp(min=1e-6),
        "existence": _binary_cross_entropy(refined.refinement.existence_logit, matched.mask, decoded),
        "listed_energy": masked_mean(in_list, matched.mask & refined.listed),
        "visible_energy": ratio.log().abs().mean(),
        **particle_losses(refined.candidates, matched, energy_scale),  # each as if it exists
    }


def particle_losses(particles: Particles, target: Target, energy_scale: EnergyScale) -> dict[str, Tensor]:
    """Losses of predicted particles [B, T], means over real targets.

    ``pdg``, ``charge``: cross-entropies. ``energy``, ``direction``: negative log-likelihood of a normal distribution of
    ln E, and of the two angles in the tangent plane, with the predicted sigma and logarithmic tails.
    """
    angle = (particles.direction - target.direction).square().sum(-1).clamp(min=1e-14).sqrt()  # rad, if small
    angle_pull = angle * (-particles.direction_log_sigma).exp()
    costs = {
        "pdg": functional.cross_entropy(particles.pdg_logits.transpose(1, 2), target.pdg, reduction="none"),
        "charge": functional.cross_entropy(particles.charge_logits.transpose(1, 2), target.charge, reduction="none"),
        "energy": _of_energy(particles, energy_scale.log_energy(target.energy)),
        "direction": _with_tails(angle_pull) + 2.0 * particles.direction_log_sigma,
    }
    return {name: masked_mean(cost, target.mask) for name, cost in costs.items()}


def _of_energy(particles: Particles, true_log_energy: Tensor) -> Tensor:
    pull = (particles.log_energy - true_log_energy).abs() * (-particles.energy_log_sigma).exp()
    return _with_tails(pull) + particles.energy_log_sigma


def _binary_cross_entropy(logits: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(functional.binary_cross_entropy_with_logits(logits, truth.float(), reduction="none"), mask)


def _with_tails(residual: Tensor) -> Tensor:
    """Half the square of residuals float [B, T], from 0; beyond `TAIL` with the same slope there, logarithmic."""
    tail = TAIL**2 * (0.5 + (residual.clamp(min=TAIL) / TAIL).log())
    return torch.where(residual <= TAIL, 0.5 * residual.square(), tail)


class PointingReconstructor(Reconstructor):
    """Network, decoding and losses of the pointing model; ValueError: inputs or options that do not belong together."""

    needs_readout = True
    gives_links: ClassVar[bool] = True

    def __init__(
        self,
        inputs: ModelInputs,
        *,
        network: PointingNetworkConfig = PointingNetworkConfig(),
        decoding: PointingDecodingConfig = PointingDecodingConfig(),
        training: PointingTrainingConfig = PointingTrainingConfig(),
        loss: LossConfig = LossConfig(),
    ) -> None:
        super().__init__(inputs, decoding=decoding, network=network, training=training, loss=loss)
        self.training_config = training
        self.network = PointingNetwork(inputs, network)
        self.loss_weights = loss.complete(LOSSES)
        self.own_particles = False  # drawn before each step of a training
        if self.network.refiner is not None:
            self.first_stage_modules = tuple(f"network.{name}" for name in FIRST_STAGE)

    def training_step(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of the first stage with teacher forcing, of the refinement where there is one, or of both (joint)."""
        if batch.target is None:
            raise ValueError("target: the batch has none, and training needs one")
        # A first stage that is frozen computes as in a reconstruction, whose particles the refinement gets.
        frozen = not any(parameter.requires_grad for parameter in self.network.encoder.parameters())
        network, target, scale = self.network, batch.target, self.network.energy_scale
        source, decoding, first = network.encode(batch, precise=frozen), self._decoding(None), {}
        joint = self.training_config.joint and not frozen  # else the first stage's losses would train nothing
        if network.refiner is None or joint:
            sampling = decoding if self.own_particles and network.training else None
            made = teacher_forcing(network, source, target, self.training_config, sampling=sampling)
            first = with_total(first_stage_losses(made, scale), self.loss_weights)
            if network.refiner is None:
                return first
        decoded, matched = decode_and_match(network, source, target, decoding)
        refined = network.refine(
            decoded,
            source,
            existence_threshold=decoding.existence_threshold,
            pdg=matched.pdg,
            dtype=torch.float64 if frozen else torch.float32,
        )
        losses = refinement_losses(refined, decoded.mask, matched, target, source, scale)
        losses, total = with_total(losses, self.loss_weights), first.get("total", 0.0)
        both = {f"first_stage_{name}" if name in losses else name: loss for name, loss in first.items()} | losses
        return {**both, "total": losses["total"] + total}

    def draw_shared(self, random: Random) -> None:
        """Draw whether the next step trains after the network's own particles, see `Reconstructor.draw_shared`."""
        self.own_particles = random.random() < SCHEDULED_SAMPLING_PROB

    def generate(self, batch: Batch, *, decoding: DecodingConfig | None = None) -> GeneratedParticles:
        """Decode the particles of each event, and refine them; see `Reconstructor.generate`."""
        return generate(self.network, batch, self._decoding(decoding))

    def _decoding(self, decoding: DecodingConfig | None) -> PointingDecodingConfig:
        chosen = self.decoding if decoding is None else decoding
        if not isinstance(chosen, PointingDecodingConfig):
            raise ValueError(f"decoding: expected a PointingDecodingConfig, found a {type(chosen).__name__}")
        return chosen
