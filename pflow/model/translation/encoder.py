"""Stacks of layers that read the source. Letters: B batch, S source length, W width."""

from __future__ import annotations

from torch import Tensor, nn

from pflow.model.common.layers import DecoderLayer, EncoderLayer, LayerStyle, final_norm, stack
from pflow.model.common.packing import Packing

__all__ = ["CrossEncoder", "Encoder"]


class Encoder(nn.Module):
    """Standard encoder layers, one after the other; no position, so the order of tokens changes nothing.

    Parameters
    ----------
    width, heads, feedforward, layers
        W, H, the width of hidden layers and the number of layers.
    style
        Dropout, norm, bias, activation.
    """

    def __init__(self, *, width: int, heads: int, feedforward: int, layers: int, style: LayerStyle) -> None:
        super().__init__()
        self.layers = stack(
            EncoderLayer(width=width, heads=heads, feedforward=feedforward, style=style) for _ in range(layers)
        )
        self.norm = final_norm(width=width, style=style)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Encode x, float [B, S, W], whose real tokens `mask` bool [B, S] tells (None: all)."""
        packing = Packing.of(mask)
        if packing is None:
            for layer in self.layers:
                x = layer(x, mask=mask)
            return self.norm(x)  # type: ignore[no-any-return]
        x = packing.pack(x)
        for layer in self.layers:
            x = layer(x, lengths=packing.lengths)
        return packing.unpack(self.norm(x))


class CrossEncoder(nn.Module):
    """Decoder layers without causal mask: tokens attend to each other and to those of a second sentence.

    Parameters
    ----------
    width, heads, feedforward, layers, style
        As in `Encoder`; both sentences are W wide.
    """

    def __init__(self, *, width: int, heads: int, feedforward: int, layers: int, style: LayerStyle) -> None:
        super().__init__()
        self.layers = stack(
            DecoderLayer(width=width, heads=heads, feedforward=feedforward, memory_width=width, style=style)
            for _ in range(layers)
        )
        self.norm = final_norm(width=width, style=style)

    def forward(
        self, x: Tensor, other: Tensor, *, mask: Tensor | None = None, other_mask: Tensor | None = None
    ) -> Tensor:
        """Encode x, float [B, S, W], in the light of `other`, float [B, S', W]; masks as in `Encoder.forward`."""
        packing = Packing.of(mask)
        if packing is None:
            for layer in self.layers:
                x = layer(x, layer.memory_attention.project(other), memory_mask=other_mask, mask=mask)
            return self.norm(x)  # type: ignore[no-any-return]
        x = packing.pack(x)
        for layer in self.layers:
            known = layer.memory_attention.project(other)
            x = layer(x, known, memory_mask=other_mask, lengths=packing.lengths)
        return packing.unpack(self.norm(x))
