"""From a batch to the memory that the decoder reads: calorimeter hits alone, with tracks, or all as one sentence.

Letters: B batch, S memory length, W width. No source token has a position, so their order changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch, TokenSet
from pflow.model.translation.embed import SourceEmbedder
from pflow.model.translation.encoder import CrossEncoder, Encoder

__all__ = ["CrossSource", "Memory", "TokenSetSource"]


class Memory(NamedTuple):
    """What the encoder makes of events.

    Parameters
    ----------
    states : float [B, S, W]
    mask : bool [B, S] or None
        Real tokens; None where there is no padding.
    """

    states: Tensor
    mask: Tensor | None


class TokenSetSource(nn.Module):
    """One sentence of hits and, where asked for, tracks and tracker hits, each type with its own embedder.

    Parameters
    ----------
    hits
        Embeds the hits, with bos and eos.
    others
        Embeds more types, by their names in `Batch`, without.
    encoder
        Reads the sentence.
    """

    def __init__(self, *, hits: SourceEmbedder, others: Mapping[str, SourceEmbedder], encoder: Encoder) -> None:
        super().__init__()
        self.hits = hits
        self.others = nn.ModuleDict(dict(others))
        self.encoder = encoder

    def forward(self, batch: Batch) -> Memory:
        """Encode all source tokens of `batch`.

        Raises
        ------
        ValueError
            If a type that is read is not in the batch.
        """
        parts = [self.hits(batch.hits)]
        parts += [embed(_required(getattr(batch, name), name)) for name, embed in self.others.items()]
        x = torch.cat([tokens for tokens, _ in parts], dim=1)
        mask = None
        if any(mask is not None for _, mask in parts):
            whole = [torch.ones_like(tokens[..., 0], dtype=torch.bool) if m is None else m for tokens, m in parts]
            mask = torch.cat(whole, dim=1)
        return Memory(self.encoder(x, mask=mask), mask)


class CrossSource(nn.Module):
    """Hits attend to each other and to the embedded tracks.

    Parameters
    ----------
    hits, tracks
        Embed the two sentences, each with bos and eos.
    encoder
        Reads them.
    """

    def __init__(self, *, hits: SourceEmbedder, tracks: SourceEmbedder, encoder: CrossEncoder) -> None:
        super().__init__()
        self.hits = hits
        self.tracks = tracks
        self.encoder = encoder

    def forward(self, batch: Batch) -> Memory:
        """Encode the hits of `batch` in the light of its tracks.

        Raises
        ------
        ValueError
            If the batch has no tracks.
        """
        hits, mask = self.hits(batch.hits)
        tracks, track_mask = self.tracks(_required(batch.tracks, "tracks"))
        return Memory(self.encoder(hits, tracks, mask=mask, other_mask=track_mask), mask)


def _required(sentence: TokenSet | None, name: str) -> TokenSet:
    if sentence is None:
        raise ValueError(f"{name}: the network reads them, the batch has none")
    return sentence
