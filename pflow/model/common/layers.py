"""Transformer blocks: residual connections, feed-forward networks, encoder and decoder layers, stacks of them.

Letters: B batch, N tokens, S memory tokens, W width.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from pflow.errors import check_choice
from pflow.model.common.activation import Gelu
from pflow.model.common.checks import check_range
from pflow.model.common.packing import Packing

__all__ = ["DecoderLayer", "Encoder", "EncoderLayer", "FullyConnected", "LayerStyle", "Residual", "final_norm", "stack"]

_Layer = TypeVar("_Layer", bound=nn.Module)

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": Gelu}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerStyle:
    """What all layers of a network have in common; ValueError names a field that is out of range.

    ``post``: the sum with the residual is normalised (Vaswani et al. 2017). ``pre``: the input of the sub-layer is, and
    once more the output of the stack.
    """

    dropout: float = 0.0  # of the output of each sub-layer; attention weights have none, for the fused kernels
    hidden_dropout: float = 0.0  # in the hidden layer of the feed-forward networks
    norm: str = "post"  # ``post`` or ``pre``
    activation: str = "relu"  # ``relu`` or ``gelu``

    def __post_init__(self) -> None:
        check_range(self, "[0, 1)", "dropout", "hidden_dropout")
        check_choice(self.norm, ("post", "pre"), "norm")
        check_choice(self.activation, _ACTIVATIONS, "activation")


class FullyConnected(nn.Sequential):
    """Linear maps between widths, at least two, with activation and dropout between the maps, none after the last."""

    def __init__(self, sizes: Sequence[int], *, activation: str = "relu", dropout: float = 0.0) -> None:
        blocks: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
        for before, after in itertools.pairwise(sizes[1:]):
            blocks += [_ACTIVATIONS[activation](), nn.Dropout(dropout), nn.Linear(before, after)]
        super().__init__(*blocks)


class Residual(nn.Module):
    """Add the output of a sub-layer to its input, with a norm before or after."""

    def __init__(self, *, width: int, style: LayerStyle) -> None:
        super().__init__()
        self.pre = style.norm == "pre"
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(style.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply; float [B, N, W] in and out."""
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


def final_norm(*, width: int, style: LayerStyle) -> nn.Module:
    """The last module of a stack: a norm for pre-norm layers, the identity for post-norm layers."""
    return nn.LayerNorm(width) if style.norm == "pre" else nn.Identity()


def stack(layers: Iterable[_Layer]) -> Sequence[_Layer]:
    """Register `layers` as a module list that keeps their type."""
    return cast("Sequence[_Layer]", nn.ModuleList(layers))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network (Vaswani et al. 2017)."""

    def __init__(self, attention: nn.Module, *, width: int, feedforward: int, style: LayerStyle) -> None:
        super().__init__()
        self.attention: Any = attention
        self.feedforward = _feedforward(width, feedforward, style)
        self.attention_residual = Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        """Apply to x, float [B, N, W]; `context` is passed to the self-attention."""
        x = self.attention_residual(x, lambda y: self.attention(y, **context))
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]

    def begin_as_identity(self) -> None:
        """Let the layer, with norms before its sub-layers, pass on what it gets until it is trained."""
        _silence(self.attention.out, self.feedforward[-1])


class DecoderLayer(nn.Module):
    """An encoder layer with attention to a memory before the feed-forward network (Vaswani et al. 2017)."""

    def __init__(
        self, attention: nn.Module, memory_attention: nn.Module, *, width: int, feedforward: int, style: LayerStyle
    ) -> None:
        super().__init__()
        self.attention: Any = attention
        self.memory_attention: Any = memory_attention
        self.feedforward = _feedforward(width, feedforward, style)
        self.attention_residual = Residual(width=width, style=style)
        self.memory_residual = Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(
        self,
        x: Tensor,
        memory: Any,
        *,
        memory_mask: Tensor | None = None,
        lengths: Sequence[int] | None = None,
        **context: Any,
    ) -> Tensor:
        """Apply to x, float [B, N, W].

        The `memory` is the second argument of the attention to it, with `memory_mask` bool [B, S]; both attentions get
        the `lengths` of packed events, and `context` goes to the self-attention.
        """
        x = self.attention_residual(x, lambda y: self.attention(y, lengths=lengths, **context))
        x = self.memory_residual(x, lambda y: self.memory_attention(y, memory, mask=memory_mask, lengths=lengths))
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]

    def begin_as_identity(self) -> None:
        """As of `EncoderLayer`."""
        _silence(self.attention.out, self.memory_attention.out, self.feedforward[-1])


class Encoder(nn.Module):
    """A stack of layers without causal mask. No token has a position, so the result does not depend on their order.

    Layers are called with ``mask`` or, packed, ``lengths``, and with the other keyword arguments of `forward`.
    """

    def __init__(self, layers: Iterable[EncoderLayer | DecoderLayer], *, width: int, style: LayerStyle) -> None:
        super().__init__()
        self.layers = stack(layers)
        self.norm = final_norm(width=width, style=style)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        **tokens: Any,
    ) -> Tensor:
        """Encode x, float [B, S, W], with `mask` bool [B, S].

        The `memory`, float [B, M, W], is that of decoder layers; `tokens`, float [B, S, ...], go to the attention of
        each layer.
        """
        packing = Packing.of(mask)
        context: dict[str, Any] = {"mask": mask, **tokens}
        if packing is not None:
            x = packing.pack(x)
            context = {"lengths": packing.lengths, **{name: packing.pack(values) for name, values in tokens.items()}}
        if memory is not None:
            context = {**context, "memory": memory, "memory_mask": memory_mask}  # torch 2.5 does not compile `|=`
        for layer in self.layers:
            x = layer(x, **context)
        x = self.norm(x)
        return x if packing is None else packing.unpack(x)


@torch.no_grad()
def _silence(*last: nn.Module) -> None:
    """Let sub-layers, whose last linear maps these are, add nothing."""
    for linear in last:
        for parameter in linear.parameters():
            parameter.zero_()


def _feedforward(width: int, hidden: int, style: LayerStyle) -> FullyConnected:
    return FullyConnected((width, hidden, width), activation=style.activation, dropout=style.hidden_dropout)
