"""Messages between all particles of one event, without a list of pairs: one particle has no pair, and an empty axis
ends onnxruntime.

Letters: T particles, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.model.pointing.assignment import delta_features
from pflow.model.pointing.pairs import PairList
from pflow.model.pointing.refiner import MIN_SLOPE_FRACTION, RANGE, SLOPE_FRACTION_WIDTH, PairwiseMessages
from pflow.model.pointing.shower_directions import SLOPE_UNIT, shower_slopes
from pflow.model.pointing.showers import Showers, ramp_up

__all__ = ["DenseMessages"]


class DenseMessages(nn.Module):
    """The same as `pflow.model.pointing.refiner.PairwiseMessages`, whose weights it has, for a batch of one event."""

    def __init__(self, messages: PairwiseMessages) -> None:
        super().__init__()
        self.messages = messages

    def forward(
        self, x: Tensor, log_energy: Tensor, direction: Tensor, mask: Tensor, hit_fraction: Tensor, item_sums: Tensor
    ) -> Tensor:
        """The sum of the messages to each particle, float [1, T, W]; `mask` is True."""
        messages = self.messages
        direction = direction[0].double()
        start, end = direction[:, None], direction[None]  # receivers and senders
        angle = (end - start).square().sum(-1).clamp(min=1e-12).sqrt()  # [T, T], rad
        half = log_energy[0].double() / 2.0
        to, by = half[:, None].expand_as(angle), half[None].expand_as(angle)
        features = [
            delta_features(start, end),
            torch.stack([(angle + 1e-3).log() / 2.0, to, by], dim=-1),
            self._slopes(hit_fraction, item_sums, start, end),
        ]
        geometry = messages.geometry(torch.cat(features, dim=-1).float())
        message = messages.receiver(x[0])[:, None] + messages.sender(x[0])[None] + geometry
        order = torch.cumsum(torch.ones_like(log_energy[0], dtype=torch.int64), 0)
        weight = torch.where(order[:, None] == order, 0.0, (angle / -RANGE).exp().float())
        total = (functional.gelu(message) * weight[..., None]).sum(1)
        return messages.out(total)[None]  # type: ignore[no-any-return]

    def _slopes(self, hit_fraction: Tensor, item_sums: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Features of the slopes of both showers, double [T, T, 4]."""
        full = MIN_SLOPE_FRACTION + SLOPE_FRACTION_WIDTH
        pairs = PairList.where(hit_fraction > MIN_SLOPE_FRACTION)
        fraction = pairs.values(hit_fraction)
        fraction = fraction * ramp_up(fraction, full, width=SLOPE_FRACTION_WIDTH)
        slope = shower_slopes(Showers.of(fraction.double(), pairs, item_sums), pairs)
        theta, phi = (slope.double() / SLOPE_UNIT).asinh().unbind(-1)  # [T]
        side = (start[..., 0] * end[..., 1] - start[..., 1] * end[..., 0]).sign()  # [T, T]
        theta = theta.abs()
        return torch.stack(
            [phi[:, None] * side, -phi * side, theta[:, None].expand_as(side), theta.expand_as(side)], dim=-1
        )
