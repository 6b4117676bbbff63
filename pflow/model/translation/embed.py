"""From features to tokens of the network's width, special tokens included.

Letters: B batch, N source tokens, T target tokens, F features, W width. Embedding stays in the weights' own precision
under autocast: bfloat16 would round a hit's position to several mm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Target, TokenSet
from pflow.model.common.transformer import FullyConnected, Mask
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.special import BOS, EOS, PAD, SAMPLE, SpecialTokens, kind_of_input

N_FRAME = 2  # bos and eos, in front of the hits


class TokenEmbedder(nn.Module):
    """Embed tokens of F features, to which the marks of special tokens are added."""

    def __init__(self, *, features: int, width: int, special: SpecialTokens, config: TranslationNetworkConfig) -> None:
        super().__init__()
        self.special = special
        sizes = (features + len(special.marks_of_kinds[PAD]), *config.embedder_widths(width))
        self.network = FullyConnected(sizes, activation=config.activation)

    def forward(self, features: Tensor, kind: Tensor) -> Tensor:
        """Embed features [B, N, F], zeros where a token is not a sample, and kind int64 [B, N]; float [B, N, W]."""
        dtype = next(self.network.parameters()).dtype
        with torch.autocast(features.device.type, enabled=False):
            return self.network(torch.cat([features.to(dtype), self.special.marks(kind).to(dtype)], dim=-1))  # type: ignore[no-any-return]


class SourceEmbedder(nn.Module):
    """Embed source tokens, which have no order; where `framed` behind bos and eos, so that they stay together."""

    def __init__(
        self, *, features: int, special: SpecialTokens, config: TranslationNetworkConfig, framed: bool = True
    ) -> None:
        super().__init__()
        self.framed = framed
        self.embed = TokenEmbedder(features=features, width=config.width, special=special, config=config)

    def forward(self, tokens: TokenSet) -> tuple[Tensor, Mask]:
        """Tokens float [B, N', W], N' = N + N_FRAME if framed, and their mask."""
        features, mask = tokens.features, tokens.mask
        if not tokens.full:
            features = features.masked_fill(~mask[..., None], 0.0)  # whatever padding holds, NaN included
        kind = torch.where(mask, SAMPLE, PAD)
        if self.framed:
            features = functional.pad(features, (0, 0, N_FRAME, 0))
            mask = functional.pad(mask, (N_FRAME, 0), value=True)
            kind = functional.pad(functional.pad(kind, (1, 0), value=EOS), (1, 0), value=BOS)
        return self.embed(features, kind), None if tokens.full else mask


class TargetTokens(NamedTuple):
    """Input tokens of the decoder; physical values of special tokens have no meaning."""

    charge: Tensor  # int64 [B, T], as pdg and kind
    pdg: Tensor
    energy: Tensor  # float [B, T]
    direction: Tensor  # float [B, T, 3]
    kind: Tensor

    @classmethod
    def teacher(cls, target: Target) -> TargetTokens:
        """Bos and the target particles: [B, T] to [B, T + 1]."""
        return cls(
            charge=functional.pad(target.charge, (1, 0)),
            pdg=functional.pad(target.pdg, (1, 0)),
            energy=functional.pad(target.energy, (1, 0)),
            direction=functional.pad(target.direction, (0, 0, 1, 0)),
            kind=kind_of_input(target.mask),
        )

    @classmethod
    def bos(cls, batch: int, device: torch.device) -> TargetTokens:
        """One bos for each of `batch` events, [B, 1]: there are no particles."""
        nothing = torch.zeros(batch, 0, device=device)
        classes, directions = nothing.long(), nothing[..., None].expand(-1, -1, 3)
        return cls.teacher(Target(classes, classes, nothing, directions, nothing.bool()))


class TargetEmbedder(nn.Module):
    """Embed target tokens: one-hot charge and PDG, energy, direction, and the marks of special tokens.

    With ``target_position`` the sinusoidal embedding of the token's index (Vaswani et al. 2017) is added.
    """

    def __init__(self, *, n_charge: int, n_pdg: int, special: SpecialTokens, config: TranslationNetworkConfig) -> None:
        super().__init__()
        self.special = special
        self.n_charge = n_charge + special.offset
        self.n_pdg = n_pdg + special.offset
        features, self.width = self.n_charge + self.n_pdg + 4, config.decoder_width
        self.embed = TokenEmbedder(features=features, width=self.width, special=special, config=config)
        self.position = config.target_position

    def forward(self, tokens: TargetTokens, *, first: int = 0) -> Tensor:
        """Embed `tokens` [B, T], which begin at index `first` of their sequence; float [B, T, W]."""
        special = (tokens.kind != SAMPLE)[..., None]
        charge = functional.one_hot(self.special.index(tokens.charge, tokens.kind), self.n_charge)
        pdg = functional.one_hot(self.special.index(tokens.pdg, tokens.kind), self.n_pdg)
        continuous = torch.cat([tokens.energy[..., None], tokens.direction], dim=-1).masked_fill(special, 0.0)
        embedded: Tensor = self.embed(torch.cat([charge, pdg, continuous], dim=-1), tokens.kind)
        if self.position:
            index = torch.arange(first, first + embedded.shape[1], device=embedded.device)
            embedded = embedded + _sinusoid(index, self.width).to(embedded.dtype)
        return embedded


def _sinusoid(index: Tensor, width: int) -> Tensor:
    """Sines and cosines of `index` [T] at geometric wavelengths, [T, W]."""
    even = torch.arange(0, width, 2, device=index.device)
    angle = index[:, None] / 10_000.0 ** (even / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]
