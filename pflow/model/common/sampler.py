"""Choosing classes from logits. Letters: B batch, V classes."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Sampler"]


class Sampler:
    """Choose the most probable class, or draw one at a temperature.

    Draws are made for all events of a batch at each step, including those that have ended, so that the particles of an
    event do not depend on when others end.

    Parameters
    ----------
    temperature
        Divides the logits before drawing; None: the most probable class is chosen.
    generator
        Source of randomness, on any device; default: torch's global one.

    Raises
    ------
    ValueError
        If `temperature` is not positive, or `generator` is given without it.
    """

    def __init__(self, *, temperature: float | None = None, generator: torch.Generator | None = None) -> None:
        if temperature is not None and not 0.0 < temperature < float("inf"):
            raise ValueError(f"temperature: {temperature} is not a positive number")
        if generator is not None and temperature is None:
            raise ValueError("generator: without a temperature the most probable classes are chosen")
        self._temperature = temperature
        self._generator = generator

    @property
    def draws(self) -> bool:
        """Whether classes are drawn at random."""
        return self._temperature is not None

    def __call__(self, logits: Tensor, *, rows: Tensor | None = None, batch: int | None = None) -> Tensor:
        """Choose a class for each event, int64 [B'], from logits float [B', V].

        `rows`, int64 [B'], are the events' places in the batch of size `batch`; None: these are all.
        """
        if self._temperature is None:
            return logits.argmax(-1)
        device = logits.device if self._generator is None else self._generator.device
        size = len(logits) if batch is None else batch
        uniform = torch.rand(size, logits.shape[-1], generator=self._generator, device=device)
        uniform = uniform.clamp(min=torch.finfo(uniform.dtype).tiny).to(logits.device)
        # Gumbel noise: the argmax of logits + noise is a draw from the softmax of the logits.
        noise = -torch.log(-torch.log(uniform))
        return (logits.float() / self._temperature + (noise if rows is None else noise[rows])).argmax(-1)
