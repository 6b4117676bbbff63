"""The blocks of a Transformer: residuals with their norm, feed-forward networks, encoder and decoder layers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

from torch import Tensor, nn

from pflow.model.common.attention import CrossAttention, SelfAttention
from pflow.model.common.cache import Cache, KeyValue

__all__ = ["DecoderLayer", "EncoderLayer", "FullyConnected", "LayerStyle", "Residual", "final_norm", "stack"]

_Layer = TypeVar("_Layer", bound=nn.Module)

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerStyle:
    """What all layers of a network have in common.

    Parameters
    ----------
    dropout
        Probability, on the output of each sub-layer and on the hidden layer of feed-forward networks. Attention weights
        are left alone, which keeps the fused kernels.
    norm
        ``post``: normalise the sum with the residual, as Vaswani et al. (2017). ``pre``: normalise what goes into the
        sub-layer, and once more at the end of the stack.
    bias
        Of linear maps and norms.
    activation
        ``relu`` or ``gelu``.

    Raises
    ------
    ValueError
        For a value outside of these.
    """

    dropout: float = 0.0
    norm: str = "post"
    bias: bool = True
    activation: str = "relu"

    def __post_init__(self) -> None:
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout: {self.dropout} is not in [0, 1)")
        if self.norm not in ("post", "pre"):
            raise ValueError(f"norm: '{self.norm}' is neither 'post' nor 'pre'")
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation: '{self.activation}' is not one of {sorted(_ACTIVATIONS)}")


class FullyConnected(nn.Sequential):
    """Linear maps with an activation between them, none after the last.

    Parameters
    ----------
    sizes
        UncertaintyCalibration from input to output, at least two.
    activation, bias, dropout
        As in `LayerStyle`.
    """

    def __init__(
        self, sizes: Sequence[int], *, activation: str = "relu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        blocks: list[nn.Module] = [nn.Linear(sizes[0], sizes[1], bias=bias)]
        for before, after in itertools.pairwise(sizes[1:]):
            blocks += [_ACTIVATIONS[activation](), nn.Dropout(dropout), nn.Linear(before, after, bias=bias)]
        super().__init__(*blocks)


class Residual(nn.Module):
    """Add a sub-layer's answer to its input, and normalise, before or after.

    Parameters
    ----------
    width
        Of the tokens.
    style
        Says where the norm goes.
    """

    def __init__(self, *, width: int, style: LayerStyle) -> None:
        super().__init__()
        self.pre = style.norm == "pre"
        self.norm = nn.LayerNorm(width, bias=style.bias)
        self.dropout = nn.Dropout(style.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply; float [B, N, W] in and out."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


def final_norm(*, width: int, style: LayerStyle) -> nn.Module:
    """What closes a stack of layers: a norm where they are pre-norm, nothing where they are post-norm."""
    return nn.LayerNorm(width, bias=style.bias) if style.norm == "pre" else nn.Identity()


def stack(layers: Iterable[_Layer]) -> Sequence[_Layer]:
    """Register `layers` as a module list that keeps their type."""
    return cast("Sequence[_Layer]", nn.ModuleList(layers))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network (Vaswani et al. 2017).

    Parameters
    ----------
    width, heads, feedforward
        W, H and the width of the hidden layer.
    style
        Dropout, norm, bias, activation.
    """

    def __init__(self, *, width: int, heads: int, feedforward: int, style: LayerStyle) -> None:
        super().__init__()
        self.attention = SelfAttention(width=width, heads=heads, bias=style.bias)
        self.feedforward = _feedforward(width, feedforward, style)
        self.attention_residual = Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(self, x: Tensor, *, mask: Tensor | None = None, lengths: Sequence[int] | None = None) -> Tensor:
        """Apply to x, float [B, N, W]; `mask` bool [B, N] and `lengths` are those of the self-attention."""
        x = self.attention_residual(x, lambda y: self.attention(y, mask=mask, lengths=lengths))
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Self-attention, attention to a memory and a feed-forward network (Vaswani et al. 2017).

    Parameters
    ----------
    width, heads, feedforward
        W, H and the width of the hidden layer.
    memory_width
        Width of the memory's tokens.
    style
        Dropout, norm, bias, activation.
    """

    def __init__(self, *, width: int, heads: int, feedforward: int, memory_width: int, style: LayerStyle) -> None:
        super().__init__()
        self.attention = SelfAttention(width=width, heads=heads, bias=style.bias)
        self.memory_attention = CrossAttention(width=width, heads=heads, memory_width=memory_width, bias=style.bias)
        self.feedforward = _feedforward(width, feedforward, style)
        self.attention_residual = Residual(width=width, style=style)
        self.memory_residual = Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(
        self,
        x: Tensor,
        memory: KeyValue,
        *,
        memory_mask: Tensor | None = None,
        mask: Tensor | None = None,
        lengths: Sequence[int] | None = None,
        causal: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Apply.

        Parameters
        ----------
        x : float [B, N, W]
        memory : KeyValue [B, H, S, D]
            From ``memory_attention.project``.
        memory_mask : bool [B, S] or None
        mask, causal, cache
            Of the self-attention.
        lengths
            Of both attentions.
        """
        x = self.attention_residual(
            x, lambda y: self.attention(y, mask=mask, lengths=lengths, causal=causal, cache=cache)
        )
        x = self.memory_residual(x, lambda y: self.memory_attention(y, memory, mask=memory_mask, lengths=lengths))
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]


def _feedforward(width: int, hidden: int, style: LayerStyle) -> FullyConnected:
    return FullyConnected((width, hidden, width), activation=style.activation, bias=style.bias, dropout=style.dropout)
