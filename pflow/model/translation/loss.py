"""What training minimises. Every loss is a mean over real tokens: padding neither dilutes nor dominates it.

Letters: B batch, T target particles, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.common.losses import LossConfig, masked_mean, with_total
from pflow.model.translation.coverage import alignment_loss, number_left, true_alignment
from pflow.model.translation.special import IGNORE, SpecialTokens


class TranslationLoss(nn.Module):
    """The paper's losses, and their weighted sum.

    Cross-entropies of the classes, and mean square errors of the normalised log10 E and of the components of the unit
    vector.
    """

    def __init__(self, special: SpecialTokens, config: LossConfig, *, with_coverage: bool = False) -> None:
        super().__init__()
        self.special = special
        coverage = ("left", "last", "next") if with_coverage else ()
        self.weights = config.complete(("charge", "pdg", *special.heads, "energy", "direction", *coverage))

    def forward(self, prediction: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Each loss by name, unweighted, and ``total``, scalars, of the prediction of `TranslationNetwork.forward`."""
        target = batch.target
        assert target is not None  # checked by the network
        losses = {name: _cross_entropy(prediction[name], label) for name, label in self.special.labels(target).items()}
        energy, direction = (prediction[name][:, :-1].float() for name in ("energy", "direction"))  # without eos
        losses["energy"] = _mean_square_error(energy[..., None], target.energy[..., None], target.mask)
        losses["direction"] = _mean_square_error(direction, target.direction, target.mask)
        if "left" in prediction:
            share, left = true_alignment(batch), number_left(target.mask)
            steps = functional.pad(target.mask, (1, 0), value=True)
            losses["left"] = _mean_square_error(prediction["left"][..., None], left[..., None], steps)
            losses["last"] = alignment_loss(prediction["last"][:, 1:], share)
            losses["next"] = alignment_loss(prediction["next"][:, :-1], share)
        return with_total(losses, self.weights)


def _cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Mean over the labels int64 [B, T + 1] that are not ignored, of logits float [B, T + 1, V]."""
    total = functional.cross_entropy(
        logits.float().flatten(0, 1), label.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    return total / (label != IGNORE).sum().clamp(min=1)


def _mean_square_error(prediction: Tensor, truth: Tensor, mask: Tensor) -> Tensor:
    """Over the components of real particles: float [B, T, n] and mask bool [B, T]."""
    # What padding holds may not be finite; masked before it is squared, it has no gradient.
    error = torch.where(mask[..., None], prediction - truth, 0.0)
    return masked_mean(error.square().mean(-1), mask)
