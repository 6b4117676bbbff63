"""Transformer blocks: multi-head attention, layers and stacks of them, and their initial values.

Attention uses torch's fused scaled-dot-product attention unless queries are few. Letters: B batch, N query tokens, S
key tokens, W width, H heads, D = W / H. Packed events (`can_pack`) stand side by side in one row, [1,
sum of lengths, W].
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from pflow.errors import check_choice
from pflow.model.api import check_range
from pflow.model.decode import Keep, change_tensors

Mask = Tensor | None  # bool [B, S], True = real token; None: no padding, which keeps the kernels that know no mask
Lengths = Sequence[int] | None  # of packed events


class KeyValue(NamedTuple):
    """Keys and values of a fixed sequence, projected once; float [B, H, S, D] each."""

    key: Tensor
    value: Tensor

    def contiguous(self) -> KeyValue:
        """For many products with few queries: keys lie in memory as [B, H, D, S], values as [B, H, S, D]."""
        return KeyValue(self.key.transpose(2, 3).contiguous().transpose(2, 3), self.value.contiguous())


@dataclasses.dataclass(eq=False)
class KVCache:
    """Keys and values of the tokens decoded so far; input and output of an exported graph."""

    known: KeyValue | None = None

    def update(self, k_val: Tensor, v_val: Tensor) -> KeyValue:
        """Append new tokens' keys and values, float [B, H, S, D]; return all."""
        known = KeyValue(k_val, v_val)
        if self.known is not None:
            known = KeyValue(*(torch.cat(parts, dim=2) for parts in zip(self.known, known, strict=True)))
        self.known = known
        return known

    def compact(self, keep: Keep) -> None:
        """Drop the rows of events that have ended, in place."""
        self.known = change_tensors(keep, self.known)


Caches = Sequence[KVCache] | None  # one a layer, to decode the newest token; None: to decode the whole sequence


def check_heads(width: int, heads: int) -> None:
    """Raise ValueError unless the heads divide the width."""
    if heads < 1 or width % heads:
        raise ValueError(f"heads: {heads} heads do not divide a width of {width}")


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, W] to [B, H, S, D], and [B, W] to [B, H, 1, D]."""
    if x.ndim == 2:
        return x.view(len(x), heads, 1, x.shape[-1] // heads)
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(1, 2)


def _join(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)  # [B, H, N, D] -> [B, N, W]


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Mask = None, lengths: Lengths = None, scale: float | None = None
) -> Tensor:
    """Attention of padded events, with a mask, or of packed ones: [B, H, N, D] to float [B, N, H * D].

    The default of `scale`, the factor of the logits, is D^(-1/2).
    """
    if lengths is None:
        real = None if mask is None else mask[:, None, None]
        return _join(scaled_dot_product_attention(query, key, value, attn_mask=real, scale=scale))
    events = zip(*(part.split_with_sizes(lengths, dim=2) for part in (query, key, value)), strict=True)
    return _join(torch.cat([scaled_dot_product_attention(q, k, v, scale=scale) for q, k, v in events], dim=2))


class SelfAttention(nn.Module):
    """Tokens of one sequence attend to each other; ValueError if `heads` does not divide `width`."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask = None,
        lengths: Lengths = None,
        causal: bool = False,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Attend; float [B, N, W] in and out.

        With `cache`, x [B, W] is one new token of each event, whose key and value are appended. Where `causal`, a token
        attends to itself and to earlier ones; padding behind it is never attended to, so that there is no `mask`.
        """
        query, key, value = split_heads(self.query_key_value(x), 3 * self.heads).chunk(3, dim=1)
        if cache is not None:
            # A key is scaled once, when it comes in, instead of the logits of all keys at each step.
            key, value = cache.update(key * self.scale, value)  # the last token attends to all
            attended = (query @ key.transpose(2, 3)).softmax(-1) @ value  # [B, H, 1, D]
            return self.out(attended.view(x.shape))  # type: ignore[no-any-return]
        if causal:
            return self.out(_join(scaled_dot_product_attention(query, key, value, is_causal=True)))  # type: ignore[no-any-return]
        return self.out(attend(query, key, value, mask=mask, lengths=lengths))  # type: ignore[no-any-return]


class CrossAttention(nn.Module):
    """Tokens of one sequence attend to a memory of the same width, whose keys and values are projected once."""

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def project(self, memory: Tensor) -> KeyValue:
        """Keys, scaled for the logits, and values [B, H, S, D] of the memory, float [B, S, W]."""
        key, value = (split_heads(part, self.heads) for part in self.key_value(memory).chunk(2, dim=-1))
        return KeyValue(key * self.scale, value)

    def forward(self, x: Tensor, memory: KeyValue, *, mask: Mask = None, bias: Tensor | None = None) -> Tensor:
        """Attend from x, float [B, N, W], to `project` of a memory.

        A `bias`, float [B, H, N, S], is added to the logits and replaces the mask; x may then be [B, W].
        """
        query = split_heads(self.query(x), self.heads)
        if bias is None:
            # The keys were scaled by `project`.
            return self.out(attend(query, *memory, mask=mask, scale=1.0))  # type: ignore[no-any-return]
        attended = (query @ memory.key.transpose(2, 3) + bias).softmax(-1) @ memory.value  # [B, H, N, D]
        return self.out(attended.view(x.shape) if x.ndim == 2 else _join(attended))  # type: ignore[no-any-return]


def can_pack(mask: Mask) -> bool:
    """Whether the real tokens of a batch stand side by side in one row, event after event, with attention in each.

    On a CPU masked attention costs as much as unmasked: an encoder is 1.2 to 2.9 times as fast packed as padded on the
    samples of this project. On a GPU many small kernels would cost more than the padding.
    """
    # Not where it is traced, either: there the lengths would be constants.
    return mask is not None and mask.device.type == "cpu" and len(mask) > 0 and not torch.compiler.is_compiling()


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
        """Apply."""
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


class ConstantLinear(nn.Linear):
    """A linear map with the output `initial` until it is trained."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, initial: float = 0.0) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.initial = initial

    @torch.no_grad()
    def set_initial_values(self) -> None:
        """Set them."""
        self.weight.zero_()
        if self.bias is not None:
            self.bias.fill_(self.initial)


class FullyConnected(nn.Sequential):
    """Linear maps between widths, at least two, with activation and dropout between the maps, none after the last.

    With `initial` the output is that number until it is trained.
    """

    def __init__(
        self, sizes: Sequence[int], *, activation: str = "gelu", dropout: float = 0.0, initial: float | None = None
    ) -> None:
        blocks: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes[:-1]):
            blocks += [nn.Linear(before, after), _ACTIVATIONS[activation](), nn.Dropout(dropout)]
        before, after = sizes[-2:]
        last = nn.Linear(before, after) if initial is None else ConstantLinear(before, after, initial=initial)
        super().__init__(*blocks, last)

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
        # As in `FullyConnected`: the call alone costs as much as a product of few rows.
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

    def forward(self, x: Tensor, memory: Any = None, *, memory_mask: Mask = None, **context: Any) -> Tensor:
        """Apply to x, float [B, N, W].

        The `memory` is the second argument of the attention to it; `context` goes to the self-attention.
        """
        x = self.attention_residual(x, lambda y: self.attention(y, **context))
        if self.memory_residual is not None:
            x = self.memory_residual(x, lambda y: self.memory_attention(y, memory, mask=memory_mask))
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A stack of layers without causal mask, called with ``mask`` or ``lengths``; no token has a position."""

    def __init__(self, layers: Iterable[TransformerLayer], *, width: int, style: LayerStyle) -> None:
        super().__init__()
        self.layers = stack(layers)
        self.norm = final_norm(width=width, style=style)

    def forward(
        self, x: Tensor, *, mask: Mask = None, memory: Tensor | None = None, memory_mask: Mask = None, **tokens: Any
    ) -> Tensor:
        """Encode x, float [B, S, W]; `tokens`, float [B, S, ...], go to the self-attention of each layer.

        Layers with attention to a memory attend to `memory`, float [B, M, W]; events are then not packed.
        """
        context: dict[str, Any] = {"mask": mask, **tokens}
        packed = mask if memory is None and can_pack(mask) else None
        if packed is not None:
            x = x[packed][None]  # [1, sum of lengths, W]
            tokens = {name: values[packed][None] for name, values in tokens.items()}
            context = {"lengths": packed.sum(1).tolist(), **tokens}
        for layer in self.layers:
            if memory is not None:
                context |= {"memory": layer.memory_attention.project(memory), "memory_mask": memory_mask}
            x = layer(x, **context)
        x = self.norm(x)
        return x if packed is None else x.new_zeros(*packed.shape, x.shape[-1]).index_put((packed,), x[0])


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Draw all weights of `module` from torch's global generator, then let its parts `set_initial_values`.

    Linear maps: uniform with variance 1 / (number of inputs) (LeCun et al. 1998; independent of whether maps are
    fused), biases 0. Norms: 1 and 0. Other parameters, which are token vectors: normal with standard deviation 1, but
    not on the ``meta`` device, where torch would import its compiler, two seconds of it.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            bound = (3.0 / part.in_features) ** 0.5
            part.weight.uniform_(-bound, bound)
            if part.bias is not None:
                part.bias.zero_()
        elif isinstance(part, nn.LayerNorm):
            part.reset_parameters()
        else:
            for parameter in part.parameters(recurse=False):
                if not parameter.is_meta:
                    parameter.normal_()
    # In a second round: a module comes before its parts, whose draws would overwrite what it sets in them.
    for part in module.modules():
        getattr(part, "set_initial_values", lambda: None)()
