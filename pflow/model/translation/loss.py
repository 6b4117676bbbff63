"""What training minimises. Every loss is a mean over real tokens: padding neither dilutes nor dominates it.

Letters: B batch, T target particles, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.translation.config import TranslationLossConfig
from pflow.model.translation.special import IGNORE, special_tokens

__all__ = ["TranslationLoss"]

_MAX_LOG_SIGMA = 7.0  # keeps exp(-2 log_sigma) finite in float32, far outside of any sensible width


class TranslationLoss(nn.Module):
    """Cross-entropies of the classes, an error of the energy and one of the direction, and their weighted sum.

    Parameters
    ----------
    special
        Treatment of special tokens of the network.
    config
        What the losses are, and their weights.

    Raises
    ------
    ValueError
        A weight of a loss that does not exist.
    """

    def __init__(self, *, special: str, config: TranslationLossConfig) -> None:
        super().__init__()
        self.special = special_tokens(special)
        self.names: tuple[str, ...] = ("charge", "pdg", *self.special.heads, "energy", "direction")
        self.weights = config.complete(self.names)
        self.energy = config.energy
        self.direction = config.direction
        self.label_smoothing = config.label_smoothing

    def forward(self, prediction: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Compare.

        Parameters
        ----------
        prediction
            From `TranslationNetwork.forward`.
        batch
            With the target that it was made for.

        Returns
        -------
        dict
            Each loss by name, unweighted, and ``total``; scalars.

        Raises
        ------
        ValueError
            If the batch has no target or the prediction is not one of a network with these special tokens, or has no
            width where the energy loss needs one.
        """
        target = batch.target
        if target is None:
            raise ValueError("target: the batch has none")
        labels = self.special.labels(target)
        _check_prediction(prediction, self.names, self.energy)
        losses = {name: self._cross_entropy(prediction[name], label) for name, label in labels.items()}
        mask = target.mask
        real = {name: value[:, :-1].float() for name, value in prediction.items() if name not in labels}  # not eos
        losses["energy"] = _masked_mean(_ENERGY[self.energy](real, _filled(target.energy, mask)), mask)
        losses["direction"] = _masked_mean(
            _DIRECTION[self.direction](real["direction"], _filled(target.direction, mask)), mask
        )
        total = torch.stack([self.weights[name] * loss for name, loss in losses.items()]).sum()
        return {**losses, "total": total}

    def _cross_entropy(self, logits: Tensor, label: Tensor) -> Tensor:
        total = functional.cross_entropy(
            logits.float().flatten(0, 1),  # [B, T + 1, V] -> [B (T + 1), V]
            label.flatten(),
            ignore_index=IGNORE,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return total / (label != IGNORE).sum().clamp(min=1)


def _mse(prediction: Mapping[str, Tensor], truth: Tensor) -> Tensor:
    return (prediction["energy"] - truth).square()


def _huber(prediction: Mapping[str, Tensor], truth: Tensor) -> Tensor:
    return functional.huber_loss(prediction["energy"], truth, reduction="none")


def _gaussian(prediction: Mapping[str, Tensor], truth: Tensor) -> Tensor:
    log_sigma = prediction["energy_log_sigma"].clamp(-_MAX_LOG_SIGMA, _MAX_LOG_SIGMA)
    return 0.5 * ((prediction["energy"] - truth) * torch.exp(-log_sigma)).square() + log_sigma


def _direction_mse(prediction: Tensor, truth: Tensor) -> Tensor:
    return (prediction - truth).square().mean(-1)


def _angle(prediction: Tensor, truth: Tensor) -> Tensor:
    # atan2 keeps its precision and a finite gradient at 0, where arccos of the product has neither
    cross = torch.linalg.vector_norm(torch.linalg.cross(prediction, truth), dim=-1)
    return torch.atan2(cross, (prediction * truth).sum(-1))


_ENERGY: dict[str, Callable[[Mapping[str, Tensor], Tensor], Tensor]] = {
    "mse": _mse,
    "huber": _huber,
    "gaussian": _gaussian,
}
_DIRECTION: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": _direction_mse, "angle": _angle}


def _filled(value: Tensor, mask: Tensor) -> Tensor:
    """`value` [B, T, ...] with ones in the padding: finite, and a direction that has an angle to every other."""
    return torch.where(mask if value.ndim == 2 else mask[..., None], value, 1.0)


def _masked_mean(value: Tensor, mask: Tensor) -> Tensor:
    return value.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def _check_prediction(prediction: Mapping[str, Tensor], names: tuple[str, ...], energy: str) -> None:
    present = set(prediction) - {"energy_log_sigma"}
    if present != set(names):
        raise ValueError(
            f"prediction: it has {sorted(present)}, the losses are {sorted(names)}; "
            "give network and loss the same 'special'"
        )
    if energy == "gaussian" and "energy_log_sigma" not in prediction:
        raise ValueError("energy: the 'gaussian' loss needs a network with energy_sigma")
