"""Losses of the pointing model. Each is a mean over real particles or steps.

Letters: B batch, T target particles, S source tokens, P pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Target
from pflow.model.api import LossConfig, masked_mean, with_total
from pflow.model.pointing.head import EnergyScale, Particles
from pflow.model.pointing.refine_training import RefinementOutput
from pflow.model.pointing.teacher_forcing import TeacherForcing

LOSSES = (
    *("starts", "pointer", "eos", "assignment", "pdg", "charge", "energy", "direction"),
    *("refined_assignment", "existence", "visible_energy"),
)
"""Names of the losses; the last three are the refinement's."""

EPS_VISIBLE = 0.1
"""Added to the energies of events before the logarithm, GeV."""

TAIL = 3.0
"""Residuals of more standard deviations count as their logarithm: a wrong assignment is no measurement error. Linear
tails (Huber 1964) let one photon of 50, converted in the tracker, decide the mean of all."""


class PointingLoss(nn.Module):
    """Losses by name, and their weighted sum.

    First stage. ``starts``, of a network with `parallel_tracks`: binary cross-entropy of whether a track starts a
    charged particle. ``pointer``: minus the logarithm of the probability of a suitable seed, each token weighted by how
    suitable it is. ``eos``: the same of the end, summed over events and divided by the number of particles like the
    pointer's: with equal weights both are the likelihood of the sequence, and the probability of the end is calibrated.
    ``assignment``: binary cross-entropy of the fraction of each item's unassigned part, weighted by the unassigned
    fraction times the square root of the energy, normalised for each particle.

    Refinement. ``refined_assignment``: cross-entropy of the fractions of each item, weighted by the square root of its
    energy. ``existence``: binary cross-entropy of whether a decoded particle is matched to a target.
    ``visible_energy``: absolute difference of ln E between the sum over decoded particles, each times its existence
    probability, and the sum over all targets.

    Both. ``pdg``, ``charge``: cross-entropies. ``energy``, ``direction``: negative log-likelihood of a normal
    distribution of ln E, and of the two angles in the tangent plane, with the predicted sigma and logarithmic tails.
    """

    def __init__(self, config: LossConfig, energy_scale: EnergyScale) -> None:
        super().__init__()
        self.weights = config.complete(LOSSES)
        self.energy_scale = energy_scale

    def forward(self, output: TeacherForcing | RefinementOutput) -> dict[str, Tensor]:
        """Each loss by name, unweighted, and ``total``; scalars."""
        mask = output.target.mask
        if isinstance(output, RefinementOutput):
            losses = {
                "refined_assignment": _refined_assignment(output),
                "existence": _existence(output),
                "visible_energy": _visible_energy(output),
            }
        else:
            losses = {"pointer": _pointer(output), "eos": _eos(output), "assignment": _assignment(output)}
            if output.starts.shape[1]:
                losses["starts"] = _starts(output)
        for name, cost in self._of_particles(output.particles, output.target).items():
            losses[name] = masked_mean(cost, mask)
        return with_total(losses, self.weights)

    def _of_particles(self, particles: Particles, target: Target) -> dict[str, Tensor]:
        """Losses float [B, T] of the predicted particles."""
        true = self.energy_scale.log_energy(target.energy)
        energy_pull = (particles.log_energy - true).abs() * (-particles.energy_log_sigma).exp()
        angle = (particles.direction - target.direction).square().sum(-1).clamp(min=1e-14).sqrt()  # rad, if small
        angle_pull = angle * (-particles.direction_log_sigma).exp()
        return {
            "pdg": functional.cross_entropy(particles.pdg.transpose(1, 2), target.pdg, reduction="none"),
            "charge": functional.cross_entropy(particles.charge.transpose(1, 2), target.charge, reduction="none"),
            "energy": _with_tails(energy_pull) + particles.energy_log_sigma,
            "direction": _with_tails(angle_pull) + 2.0 * particles.direction_log_sigma,
        }


def _pointer(output: TeacherForcing) -> Tensor:
    tokens = output.pointer[:, :-1, :-1]  # [B, R, S]
    weight = output.seed_weight
    mask = _one_by_one(output)
    good = torch.logsumexp(tokens + weight.clamp(min=1e-12).log(), dim=-1)
    has_seed = mask & (weight.amax(-1) > 0)
    return -masked_mean(good, has_seed)


def _starts(output: TeacherForcing) -> Tensor:
    is_start = output.target.mask[:, : output.starts.shape[1]].float()
    cost = functional.binary_cross_entropy_with_logits(output.starts, is_start, reduction="none")
    return masked_mean(cost, output.is_track)


def _one_by_one(output: TeacherForcing) -> Tensor:
    """The mask bool [B, R] of the targets that are decoded one by one."""
    mask = output.target.mask
    return mask[:, mask.shape[1] - output.seed_weight.shape[1] :]


def _eos(output: TeacherForcing) -> Tensor:
    last = _one_by_one(output).sum(1)  # position of the end
    ends = output.pointer[torch.arange(len(last), device=last.device), last, -1]
    return -ends.sum() / last.sum().clamp(min=1)


def _assignment(output: TeacherForcing) -> Tensor:
    mask = output.target.mask
    cost = functional.binary_cross_entropy_with_logits(output.logits, output.target_fraction, reduction="none")
    norm = output.pairs.sums((output.weight * (output.target_fraction + 0.05))[None])
    cost = output.pairs.sums((output.weight * cost)[None]) / norm.clamp(min=1e-3)
    return masked_mean(cost.view_as(mask), mask)


def _refined_assignment(output: RefinementOutput) -> Tensor:
    refined, item_weight = output.refined, output.item_weight
    of_pairs = refined.pairs.of_items(item_weight.flatten()) * output.target_fraction * refined.log_fraction
    unassigned = item_weight * output.target_unassigned * refined.log_unassigned
    return -(of_pairs.sum() + unassigned.sum()) / item_weight.sum().clamp(min=1e-6)


def _existence(output: RefinementOutput) -> Tensor:
    exists = output.target.mask.float()
    cost = functional.binary_cross_entropy_with_logits(output.refined.existence_logit, exists, reduction="none")
    return masked_mean(cost, output.decoded)


def _visible_energy(output: RefinementOutput) -> Tensor:
    energy = output.particles.log_energy.exp() * output.refined.existence_logit.sigmoid() * output.decoded  # GeV
    difference = ((energy.sum(1) + EPS_VISIBLE) / (output.visible_energy + EPS_VISIBLE)).log()
    return difference.abs().mean()


def _with_tails(residual: Tensor) -> Tensor:
    """Half the square of residuals float [B, T], from 0; beyond `TAIL` with the same slope there, logarithmic."""
    tail = TAIL**2 * (0.5 + (residual.clamp(min=TAIL) / TAIL).log())
    return torch.where(residual <= TAIL, 0.5 * residual.square(), tail)
