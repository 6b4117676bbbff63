"""Transformer blocks and stacks of them. Letters: B batch, N tokens (S padded), M memory tokens, W width."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.errors import check_choice
from pflow.model.common.checks import check_range


class Packing(NamedTuple):
    """The real tokens of a batch side by side in one row, event after event; attention then goes event by event.

    For the CPU, where masked attention costs as much as unmasked: an encoder is 1.2 to 2.9 times as fast packed as
    padded on the samples of this project. On a GPU many small kernels would cost more than the padding.
    """

    mask: Tensor  # bool [B, S], real tokens
    lengths: tuple[int, ...]  # number of real tokens of each event

    @classmethod
    def of(cls, mask: Tensor | None) -> Packing | None:
        """The packing of `mask`, or None where it does not pay: no mask or event, not on a CPU.

        A traced graph is not packed either: it would hold the lengths as constants.
        """
        if mask is None or mask.device.type != "cpu" or torch.compiler.is_compiling() or len(mask) == 0:
            return None
        return cls(mask, tuple(mask.sum(1).tolist()))

    def pack(self, x: Tensor) -> Tensor:
        """Real tokens of `x` [B, S, W] in one row, [1, N, W]."""
        return x[self.mask][None]

    def unpack(self, x: Tensor) -> Tensor:
        """Inverse of `pack`, [1, N, W] to [B, S, W], with zeros in the padding."""
        padded = x.new_zeros(*self.mask.shape, x.shape[-1])
        return padded.index_put((self.mask,), x[0])


def gelu(x: Tensor) -> Tensor:
    """x Phi(x) with the normal distribution function Phi (Hendrycks and Gimpel 2016, arXiv:1606.08415), float [..., W].

    For contiguous tensors on a CPU torch calls oneDNN, which makes a kernel for each new shape: 70 us, ten times the
    work for a few hundred rows. Torch's own kernel takes the transposed view, and for a single row two rows in one.
    """
    if x.device.type != "cpu" or x.ndim < 2 or torch.compiler.is_compiling():
        return functional.gelu(x)
    if x.ndim == 2 and len(x) == 1:
        return functional.gelu(x.expand(2, -1))[:1]
    return functional.gelu(x.transpose(0, -1)).transpose(0, -1)


class Gelu(nn.Module):
    """`gelu` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply; float [..., W] in and out."""
        return gelu(x)


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

    def forward(self, input: Tensor) -> Tensor:
        """Apply; float [..., W] in and out."""
        for part in self:
            if self.training or not isinstance(part, nn.Dropout):  # each call costs as much as a product of few rows
                input = part(input)
        return input


class Residual(nn.Module):
    """Add the output of a sub-layer to its input, with a norm before or after."""

    def __init__(self, *, width: int, style: LayerStyle) -> None:
        super().__init__()
        self.pre = style.norm == "pre"
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(style.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply; float [B, N, W] in and out."""
        change = sublayer(self.norm(x) if self.pre else x)
        x = x + (self.dropout(change) if self.training else change)
        return x if self.pre else self.norm(x)


def final_norm(*, width: int, style: LayerStyle) -> nn.Module:
    """The last module of a stack: a norm for pre-norm layers, the identity for post-norm layers."""
    return nn.LayerNorm(width) if style.norm == "pre" else nn.Identity()


def stack(layers: Iterable[_Layer]) -> Sequence[_Layer]:
    """Register `layers` as a module list that keeps their type."""
    return cast("Sequence[_Layer]", nn.ModuleList(layers))


class TransformerLayer(nn.Module):
    """Self-attention, attention to a memory where it is given, and a feed-forward network (Vaswani et al. 2017)."""

    def __init__(
        self,
        attention: nn.Module,
        memory_attention: nn.Module | None = None,
        *,
        width: int,
        feedforward: int,
        style: LayerStyle,
    ) -> None:
        super().__init__()
        self.attention: Any = attention
        self.memory_attention: Any = memory_attention
        self.feedforward = FullyConnected(
            (width, feedforward, width), activation=style.activation, dropout=style.hidden_dropout
        )
        self.attention_residual = Residual(width=width, style=style)
        self.memory_residual = None if memory_attention is None else Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(
        self,
        x: Tensor,
        memory: Any = None,
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
        if self.memory_residual is not None:
            x = self.memory_residual(x, lambda y: self.memory_attention(y, memory, mask=memory_mask, lengths=lengths))
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]

    @torch.no_grad()
    def begin_as_identity(self) -> None:
        """Let the layer, with norms before its sub-layers, pass on what it gets until it is trained."""
        attentions = [part for part in (self.attention, self.memory_attention) if part is not None]
        for linear in (*(part.out for part in attentions), self.feedforward[-1]):
            for parameter in linear.parameters():
                parameter.zero_()


class Encoder(nn.Module):
    """A stack of layers without causal mask, called with ``mask`` or ``lengths``; no token has a position."""

    def __init__(self, layers: Iterable[TransformerLayer], *, width: int, style: LayerStyle) -> None:
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

        Decoder layers attend to `memory`, float [B, M, W]; `tokens`, float [B, S, ...], go to the attention of each
        layer.
        """
        packing = Packing.of(mask)
        context: dict[str, Any] = {"mask": mask, **tokens}
        if packing is not None:
            x = packing.pack(x)
            context = {"lengths": packing.lengths, **{name: packing.pack(values) for name, values in tokens.items()}}
        if memory is not None:
            context |= {"memory": memory, "memory_mask": memory_mask}
        for layer in self.layers:
            x = layer(x, **context)
        x = self.norm(x)
        return x if packing is None else packing.unpack(x)
