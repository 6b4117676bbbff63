"""Attentions of the pointing network. Letters: B batch, S source, T target tokens, W width, H heads, D = W / H."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from pflow.model.common.attention import CrossAttention, attend
from pflow.model.common.cache import KeyValue
from pflow.model.pointing.nearby import Directions, attend_nearby, nearness_of

MIN_STRENGTH, MAX_STRENGTH = 3.0, 3000.0
"""Initial strengths of the widest and the narrowest head: attention falls by e at an angle of sqrt(2 / strength) rad,
0.8 rad and 26 mrad."""

EPS_UNASSIGNED = 0.02
"""Added to the unassigned fraction of a token before the logarithm: fully assigned tokens are still attended to."""

PADDING_LOGIT = -1e4
"""Added to the logits of padding: finite, so that an event without tokens has a result."""

MAX_BIASES = 2**24
"""Most logits whose preference for directions is held in memory at a time, 64 MB."""


class DirectionalSelfAttention(nn.Module):
    """Self-attention with a learned preference of each head for tokens in similar directions.

    The logits gain lambda_h n_i . n_j, which up to a constant is -lambda_h |n_i - n_j|^2 / 2: a Gaussian in the angle
    between tokens. The result depends neither on the order of the tokens nor on the frame.

    Fused, the three components replace three of the D numbers of keys and queries, so that the fused kernels compute
    them. For a narrow head this product is some 10^4, and single precision rounds the logit to 10^-3, each time
    otherwise. Precise, the small -lambda_h |n_i - n_j|^2 / 2 is added instead, computed in double precision: for a
    batch to all logits, for one event in blocks of near tokens (`pflow.model.pointing.nearby`).

    ValueError if H does not divide W, or D is not more than 3.
    """

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        if width % heads or width // heads <= 3:
            raise ValueError(f"heads: {heads} heads do not divide a width of {width} into parts of more than 3")
        self.heads = heads
        self.head_width = width // heads
        self.key_width = self.head_width - 3
        self.query_key = nn.Linear(width, 2 * heads * self.key_width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        strength = torch.logspace(math.log10(MIN_STRENGTH), math.log10(MAX_STRENGTH), heads)
        self.register_buffer("initial_strength", strength, persistent=False)
        self.log_strength = nn.Parameter(torch.zeros(heads))
        self.attend_nearby = attend_nearby  # an export has another

    @property
    def strength(self) -> Tensor:
        """Of the preference for similar directions, float [H]."""
        return self.get_buffer("initial_strength") * self.log_strength.exp()

    @torch.no_grad()
    def set_initial_values(self) -> None:
        """Set the initial strengths."""
        self.log_strength.zero_()

    def forward(
        self,
        x: Tensor,
        *,
        unit: Tensor | None = None,
        directions: Directions | Tensor | None = None,
        mask: Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> Tensor:
        """Attend; float [B, S, W] in and out, with `mask` bool [B, S].

        Fused with unit vectors `unit` float [B, S, 3], where packed events, [1, N, W], have `lengths`; precise with
        `directions`: unit vectors double [B, S, 3], or of one event, [S, W], in their order.
        """
        strength = self.strength
        query, key = torch.split(self.query_key(x), self.heads * self.key_width, dim=-1)
        # In full precision under autocast: bfloat16 does not resolve the angles that a narrow head prefers.
        query, key, value = query.float() * self.key_width**-0.5, key.float(), self.value(x).float()
        with torch.autocast(x.device.type, enabled=False):
            query, key, value = (part.unflatten(-1, (self.heads, -1)) for part in (query, key, value))
            if isinstance(directions, Directions):
                return self.out(self.attend_nearby(query, key, value, directions, strength))  # type: ignore[no-any-return]
            if unit is not None:
                direction = unit[:, :, None].expand(-1, -1, self.heads, -1)  # [B, S, H, 3]
                query = torch.cat([query, direction * strength[:, None]], dim=-1)
                key = torch.cat([key, direction], dim=-1)
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # [B, H, S, D]
            if directions is None:
                return self.out(attend(query, key, value, mask=mask, lengths=lengths, scale=1.0))  # type: ignore[no-any-return]
            attended = _attend_to_all(query, key, value, directions, strength=strength, mask=mask)
            return self.out(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _attend_to_all(
    query: Tensor, key: Tensor, value: Tensor, unit: Tensor, *, strength: Tensor, mask: Tensor | None
) -> Tensor:
    """Attention with a preference for tokens in similar directions `unit`, double [B, S, 3]; float [B, H, S, D].

    Of queries and keys [B, H, S, D - 3], values [B, H, S, D], strengths [H] and `mask` bool [B, S].
    """
    batch, heads, length, _ = query.shape
    query, key = functional.pad(query, (0, 3)), functional.pad(key, (0, 3))  # the fused kernels want equal widths
    n_rows = max(1, MAX_BIASES // max(1, batch * heads * length))
    attended = []
    for start in range(0, max(length, 1), n_rows):
        rows = slice(start, start + n_rows)
        near = nearness_of(unit[:, rows], unit)
        bias = near[:, None] * strength[:, None, None]  # [B, H, R, S]
        if mask is not None:
            bias = bias.masked_fill(~mask[:, None, None], float("-inf"))
        attended.append(scaled_dot_product_attention(query[:, :, rows], key, value, attn_mask=bias, scale=1.0))
    return torch.cat(attended, dim=2)


class Coverage(NamedTuple):
    """Which fraction of each token of the source no particle has yet."""

    log_unassigned: Tensor  # float [B, 1, T, S], of the unassigned fraction and `EPS_UNASSIGNED`
    padding: Tensor | None  # float [B, S], `PADDING_LOGIT` for padding, else 0

    @classmethod
    def of(cls, assigned: Tensor, mask: Tensor | None) -> Coverage:
        """From the assigned fraction float [B, 1, T, S] of each token, and the mask bool [B, S]."""
        log_unassigned = ((1.0 + EPS_UNASSIGNED) - assigned).clamp(min=EPS_UNASSIGNED).log()
        padding = None if mask is None else torch.where(mask, 0.0, PADDING_LOGIT).to(log_unassigned.dtype)
        return cls(log_unassigned, padding)


class CoverageAttention(nn.Module):
    """Attention to the source: a head's logits gain s_h ln(unassigned fraction), with s_h learned."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        self.attention = CrossAttention(width=width, heads=heads)
        self.strength = nn.Parameter(torch.ones(heads))

    @property
    def out(self) -> nn.Linear:
        """The last linear map."""
        return self.attention.out

    @torch.no_grad()
    def set_initial_values(self) -> None:
        """Set the initial strengths."""
        self.strength.fill_(1.0)

    def forward(self, x: Tensor, memory: tuple[KeyValue, Coverage], **_: None) -> Tensor:
        """Attend from x float [B, T, W] or [B, W] to keys and values of the source; its coverage knows the mask."""
        known, coverage = memory
        bias = self.strength[:, None, None] * coverage.log_unassigned  # [B, H, T, S]
        if coverage.padding is not None:
            bias = bias + coverage.padding[:, None, None]
        return self.attention(x, known, bias=bias)  # type: ignore[no-any-return]
