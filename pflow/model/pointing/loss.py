"""What training of the pointing network minimises. Every loss is a mean over real particles (or steps).

Letters: B batch, T target particles, S source tokens, P pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Target
from pflow.model.common.checks import complete_weights
from pflow.model.pointing.config import LOSSES, PointingLossConfig
from pflow.model.pointing.network import PointingTransformer
from pflow.model.pointing.particles import Particles
from pflow.model.pointing.refine_training import Reread
from pflow.model.pointing.teacher_forcing import Taught

__all__ = ["PointingLoss"]

MIN_VISIBLE = 0.1
"""Added to the energies of events before the logarithm, GeV."""

TAIL = 3.0
"""Residuals of more standard deviations count linearly: a mistaken incidence is no measurement error (Huber 1964)."""


class PointingLoss(nn.Module):
    """Pointer, incidence, identity, energy and direction, and their weighted sum.

    ``pointer``: minus the logarithm of the probability of a good seed, each token counted by how good it is. ``eos``:
    the same of the end of the sentence, summed over events and divided by the number of particles like the pointer's,
    so that with equal weights both are the likelihood of the sentence and the end is as probable as it says.
    ``assignment``: binary cross-entropy of the share of what is left, weighted by that share times the square root of
    the energy and normalised particle by particle. ``pdg``, ``charge``: cross-entropies. ``energy``, ``direction``:
    negative log-likelihood of a normal distribution of ln E, and of the two angles in the tangent plane, with the
    widths that the network predicts and linear tails.

    Of a second reading, the last four, and ``refined_assignment``: cross-entropy of whose each item is, weighted by the square root
    of its energy; ``existence``: binary cross-entropy of whether a written particle is one; ``visible_energy``: absolute difference
    of ln E between the sum over what is written, each as probable as it is real, and all that is true.

    Parameters
    ----------
    config
        Weights of the losses.
    """

    def __init__(self, config: PointingLossConfig) -> None:
        super().__init__()
        self.weights = complete_weights(config.weights, LOSSES)

    def forward(self, taught: Taught | Reread, network: PointingTransformer) -> dict[str, Tensor]:
        """Each loss by name, unweighted, and ``total``; scalars.

        Parameters
        ----------
        taught
            From `pflow.model.pointing.teacher_forcing.teach`, or of a second reading `pflow.model.pointing.refine_training.teach_again`.
        network
            Says how energies are normalised.
        """
        mask = taught.target.mask
        if isinstance(taught, Reread):
            losses = {
                "refined_assignment": _shares(taught),
                "existence": _real(taught),
                "visible_energy": _visible(taught),
            }
        else:
            losses = {"pointer": _pointer(taught), "eos": _end(taught), "assignment": _incidence(taught)}
        for name, cost in _of_particles(taught.particles, taught.target, network).items():
            losses[name] = cost.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
        total = torch.stack([self.weights[name] * loss for name, loss in losses.items()]).sum()
        return {**losses, "total": total}


def _of_particles(made: Particles, target: Target, network: PointingTransformer) -> dict[str, Tensor]:
    """Losses float [B, T] of what a reading makes of the particles."""
    true = network.log_energy_of(target.energy)
    off = (made.log_energy - true).abs() * (-made.energy_log_sigma).exp()
    away = (made.direction - target.direction).square().sum(-1).clamp(min=1e-14).sqrt()  # rad, where it is small
    turned = away * (-made.direction_log_sigma).exp()
    return {
        "pdg": functional.cross_entropy(made.pdg.transpose(1, 2), target.pdg, reduction="none"),
        "charge": functional.cross_entropy(made.charge.transpose(1, 2), target.charge, reduction="none"),
        "energy": _tailed(off) + made.energy_log_sigma,
        "direction": _tailed(turned) + 2.0 * made.direction_log_sigma,
    }


def _pointer(taught: Taught) -> Tensor:
    mask = taught.target.mask
    tokens = taught.pointer[:, :-1, :-1]  # [B, T, S]
    weight = taught.seed_weight
    good = torch.logsumexp(tokens + weight.clamp(min=1e-12).log(), dim=-1)
    has_seed = mask & (weight.amax(-1) > 0)
    return -good.masked_fill(~has_seed, 0.0).sum() / has_seed.sum().clamp(min=1)


def _end(taught: Taught) -> Tensor:
    last = taught.target.mask.sum(1)  # position of the end
    ends = taught.pointer[torch.arange(len(last), device=last.device), last, -1]
    return -ends.sum() / last.sum().clamp(min=1)


def _incidence(taught: Taught) -> Tensor:
    mask = taught.target.mask
    cost = functional.binary_cross_entropy_with_logits(taught.incidence, taught.wanted, reduction="none")
    size = mask.numel()
    norm = taught.pairs.sums(taught.weight * (taught.wanted + 0.05), size)
    cost = taught.pairs.sums(taught.weight * cost, size) / norm.clamp(min=1e-3)
    return cost.view_as(mask).masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def _shares(reread: Reread) -> Tensor:
    revised, item_weight = reread.revised, reread.item_weight
    of_pairs = revised.pairs.at_items(item_weight) * reread.true * revised.log_share
    of_no_one = item_weight * reread.rest * revised.log_nobody
    return -(of_pairs.sum() + of_no_one.sum()) / item_weight.sum().clamp(min=1e-6)


def _real(reread: Reread) -> Tensor:
    real = reread.target.mask.float()
    cost = functional.binary_cross_entropy_with_logits(reread.revised.real, real, reduction="none")
    return cost.masked_fill(~reread.written, 0.0).sum() / reread.written.sum().clamp(min=1)


def _visible(reread: Reread) -> Tensor:
    energy = reread.particles.log_energy.exp() * reread.revised.real.sigmoid() * reread.written  # GeV
    off = ((energy.sum(1) + MIN_VISIBLE) / (reread.visible + MIN_VISIBLE)).log().abs()
    return off.mean()


def _tailed(residual: Tensor) -> Tensor:
    """Half the square, and linear beyond `TAIL`."""
    return functional.huber_loss(residual, torch.zeros_like(residual), reduction="none", delta=TAIL)
