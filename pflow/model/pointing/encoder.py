"""An encoder whose attention knows how far apart tokens are.

Letters: B batch, S tokens, W width, H heads, D = W / H.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from pflow.model.common.layers import FullyConnected, stack
from pflow.model.common.packing import Packing

__all__ = ["LocalEncoder", "LocalSelfAttention"]

WIDEST, NARROWEST = 3.0, 3000.0
"""Strengths of the widest and the narrowest head at birth: attention falls by e at an angle of sqrt(2 / strength) rad,
0.8 rad and 26 mrad."""


class LocalSelfAttention(nn.Module):
    """Self-attention with a learned preference of each head for tokens nearby in direction.

    The logits gain lambda_h n_i . n_j, which up to a constant is -lambda_h |n_i - n_j|^2 / 2: a Gaussian in the angle
    between tokens. The three components take the place of three of the D numbers that keys and queries have, so that
    the fused kernels do the work. It depends on directions alone: neither on the order of tokens nor on the frame.

    Parameters
    ----------
    width, heads
        W and H; D must be more than 3.
    local
        Whether to have the preference; else plain self-attention.

    Raises
    ------
    ValueError
        If H does not divide W, or D is too small.
    """

    def __init__(self, *, width: int, heads: int, local: bool = True) -> None:
        super().__init__()
        if width % heads or width // heads <= 3:
            raise ValueError(f"heads: {heads} heads do not divide a width of {width} into parts of more than 3")
        self.heads = heads
        self.head_width = width // heads
        self.local = local
        self.key_width = self.head_width - 3 * local
        self.query_key = nn.Linear(width, 2 * heads * self.key_width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        # From nearly the whole detector to a shower's width, evenly in the logarithm.
        strength = torch.logspace(math.log10(WIDEST), math.log10(NARROWEST), heads)
        self.register_buffer("birth", strength, persistent=False)
        self.log_strength = nn.Parameter(torch.zeros(heads)) if local else None

    def forward(self, x: Tensor, unit: Tensor, *, mask: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        """Attend.

        Parameters
        ----------
        x : float [B, S, W], or [1, N, W] of packed events
        unit : float [B, S, 3] or [1, N, 3], direction of each token
        mask : bool [B, S] or None
        packing
            Of packed events; then without `mask`.
        """
        query, key = self.query_key(x).unflatten(-1, (2, self.heads, self.key_width)).unbind(-3)  # [B, S, H, D']
        query = query * self.key_width**-0.5
        value = self.value(x).unflatten(-1, (self.heads, self.head_width))
        if self.log_strength is not None:
            strength = self.get_buffer("birth") * self.log_strength.exp()  # [H]
            bearing = unit[:, :, None].expand(-1, -1, self.heads, -1)  # [B, S, H, 3]
            query = torch.cat([query, bearing * strength[:, None]], dim=-1)
            key = torch.cat([key, bearing], dim=-1)
        query, key, value = (part.float().transpose(1, 2) for part in (query, key, value))  # [B, H, S, D]
        # In full precision under autocast: rounded to bfloat16, directions say little to a narrow head.
        with torch.autocast(x.device.type, enabled=False):
            if packing is None:
                seen = None if mask is None else mask[:, None, None, :]
                attended = scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=1.0)
            else:
                queries, keys, values = (part.split(list(packing.lengths), dim=2) for part in (query, key, value))
                events = zip(queries, keys, values, strict=True)
                attended = torch.cat([scaled_dot_product_attention(q, k, v, scale=1.0) for q, k, v in events], dim=2)
        return self.out(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, *, width: int, heads: int, feedforward: int, dropout: float, local: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = LocalSelfAttention(width=width, heads=heads, local=local)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = FullyConnected((width, feedforward, width), activation="gelu", dropout=dropout)

    def forward(self, x: Tensor, unit: Tensor, *, mask: Tensor | None, packing: Packing | None) -> Tensor:
        x = x + self.attention(self.norm(x), unit, mask=mask, packing=packing)
        return x + self.feedforward(self.feedforward_norm(x))  # type: ignore[no-any-return]


class LocalEncoder(nn.Module):
    """A stack of pre-norm encoder layers with `LocalSelfAttention`.

    Parameters
    ----------
    width, heads, feedforward, layers
        Of the stack.
    dropout
        In the hidden layer of the feed-forward networks.
    local
        Whether attention knows directions.
    """

    def __init__(
        self, *, width: int, heads: int, feedforward: int, layers: int, dropout: float = 0.0, local: bool = True
    ) -> None:
        super().__init__()
        self.layers = stack(
            _Layer(width=width, heads=heads, feedforward=feedforward, dropout=dropout, local=local)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    @torch.no_grad()
    def initialise(self) -> None:
        """Let the strengths of the preference begin where `WIDEST` and `NARROWEST` say."""
        for layer in self.layers:
            if layer.attention.log_strength is not None:
                layer.attention.log_strength.zero_()

    def forward(self, x: Tensor, unit: Tensor, mask: Tensor) -> Tensor:
        """Encode tokens x float [B, S, W] of directions `unit` float [B, S, 3]; `mask` bool [B, S]."""
        packing = Packing.of(mask) if len(mask) else None
        if packing is not None:
            x, unit = packing.pack(x), packing.pack(unit)
        for layer in self.layers:
            x = layer(x, unit, mask=None if packing is not None else mask, packing=packing)
        x = self.norm(x)
        return x if packing is None else packing.unpack(x)
