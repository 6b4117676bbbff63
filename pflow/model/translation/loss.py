"""What training minimises. Every loss is a mean over real tokens: padding neither dilutes nor dominates it.

Letters: B batch, T target particles, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.translation.special import IGNORE, special_tokens

__all__ = ["ParticleLoss"]

_MAX_LOG_WIDTH = 7.0  # keeps exp(-2 log_width) finite in float32, far outside of any sensible width


class ParticleLoss(nn.Module):
    """Cross-entropies of the classes, an error of the energy and one of the direction, and their weighted sum.

    Parameters
    ----------
    special
        The network's treatment of special tokens.
    weights
        Weight of each loss by name (``charge``, ``pdg``, ``energy``, ``direction``, and ``kind`` or ``stop``), 1 where
        not given; or ``learned``: weighted by homoscedastic uncertainty, exp(-s) L + s / 2 for a cross-entropy and half
        the first term for a regression, with one parameter s a loss (Kendall, Gal and Cipolla 2018).
    energy
        Of log10 E, normalised: ``mse`` (paper), ``huber`` (threshold 1) or ``gaussian``, the negative log-likelihood of
        a normal distribution whose width the network predicts too (constant left out).
    direction
        ``mse``: mean square error of the unit vector's components (paper), or ``angle``: the angle in rad.
    label_smoothing
        Of the cross-entropies, in [0, 1).

    Raises
    ------
    ValueError
        Naming an argument that makes no sense, alone or beside the others.
    """

    def __init__(
        self,
        *,
        special: str = "flags",
        weights: Mapping[str, float] | str | None = None,
        energy: str = "mse",
        direction: str = "mse",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.special = special_tokens(special)
        classes = ("charge", "pdg", *self.special.heads)
        self.names: tuple[str, ...] = (*classes, "energy", "direction")
        if energy not in _ENERGY:
            raise ValueError(f"energy: '{energy}' is not one of {sorted(_ENERGY)}")
        if direction not in _DIRECTION:
            raise ValueError(f"direction: '{direction}' is not one of {sorted(_DIRECTION)}")
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing: {label_smoothing} is not in [0, 1)")
        self.energy = energy
        self.direction = direction
        self.label_smoothing = label_smoothing
        self.log_variances: nn.ParameterDict | None = None
        self.weights: dict[str, float] = {}
        if weights == "learned":
            if energy == "gaussian":
                raise ValueError("weights: 'learned' weights have no minimum with the 'gaussian' energy loss")
            self.log_variances = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.names})
        elif isinstance(weights, str):
            raise ValueError(f"weights: '{weights}' is neither 'learned' nor a weight for each loss")
        else:
            self.weights = _complete(weights or {}, self.names)

    def forward(self, prediction: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Compare.

        Parameters
        ----------
        prediction
            From `ParticleTransformer.forward`.
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
        return {**losses, "total": self._total(losses)}

    def _cross_entropy(self, logits: Tensor, label: Tensor) -> Tensor:
        total = functional.cross_entropy(
            logits.float().flatten(0, 1),  # [B, T + 1, V] -> [B (T + 1), V]
            label.flatten(),
            ignore_index=IGNORE,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return total / (label != IGNORE).sum().clamp(min=1)

    def _total(self, losses: Mapping[str, Tensor]) -> Tensor:
        if self.log_variances is None:
            return torch.stack([self.weights[name] * loss for name, loss in losses.items()]).sum()
        terms = []
        for name, loss in losses.items():
            factor = 0.5 if name in ("energy", "direction") else 1.0
            log_variance = self.log_variances[name]
            terms.append(factor * torch.exp(-log_variance) * loss + 0.5 * log_variance)
        return torch.stack(terms).sum()


def _mse(prediction: Mapping[str, Tensor], truth: Tensor) -> Tensor:
    return (prediction["energy"] - truth).square()


def _huber(prediction: Mapping[str, Tensor], truth: Tensor) -> Tensor:
    return functional.huber_loss(prediction["energy"], truth, reduction="none")


def _gaussian(prediction: Mapping[str, Tensor], truth: Tensor) -> Tensor:
    log_width = prediction["energy_log_width"].clamp(-_MAX_LOG_WIDTH, _MAX_LOG_WIDTH)
    return 0.5 * ((prediction["energy"] - truth) * torch.exp(-log_width)).square() + log_width


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


def _complete(weights: Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    for name, weight in weights.items():
        if name not in names:
            raise ValueError(f"weights: there is no loss '{name}', only {list(names)}")
        if not 0.0 <= weight < float("inf"):
            raise ValueError(f"weights: {weight} of '{name}' is not a finite number from 0")
    return {name: float(weights.get(name, 1.0)) for name in names}


def _check_prediction(prediction: Mapping[str, Tensor], names: tuple[str, ...], energy: str) -> None:
    present = set(prediction) - {"energy_log_width"}
    if present != set(names):
        raise ValueError(
            f"prediction: it has {sorted(present)}, the losses are {sorted(names)}; "
            "give network and loss the same 'special'"
        )
    if energy == "gaussian" and "energy_log_width" not in prediction:
        raise ValueError("energy: the 'gaussian' loss needs a network with energy_width=True")
