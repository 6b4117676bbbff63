"""The first paper's networks: a Transformer from detector hits to a sequence of particles.

Its encoder reads hits alone, hits that attend to tracks, or all types as one sequence; there are two decoders. No
source token has a position, so their order changes nothing. Letters: B batch, S source length, T target particles, W
width, n projections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.api import ModelInputs
from pflow.model.common.transformer import (
    Caches,
    CrossAttention,
    Encoder,
    FullyConnected,
    KeyValue,
    KVCache,
    Mask,
    Residual,
    SelfAttention,
    TransformerLayer,
    final_norm,
    initialise,
    stack,
)
from pflow.model.translation.copy import Copier, TeacherForcing
from pflow.model.translation.tokens import (
    SPECIAL,
    SourceEmbedder,
    TargetEmbedder,
    TargetTokens,
    TranslationNetworkConfig,
)


def make_encoder(config: TranslationNetworkConfig) -> Encoder:
    """A stack of standard layers; with source ``cross`` they also attend to the tracks."""
    layers = (standard_layer(config, memory=config.source == "cross") for _ in range(config.encoder_layers))
    return Encoder(layers, width=config.width, style=config.style)


def standard_layer(config: TranslationNetworkConfig, *, memory: bool = True) -> TransformerLayer:
    """A layer of tokens, with attention to a `memory` of the encoder's width if it has one."""
    return TransformerLayer(
        SelfAttention(width=config.width, heads=config.heads),
        CrossAttention(width=config.width, heads=config.heads) if memory else None,
        width=config.width,
        feedforward=config.feedforward,
        style=config.style,
    )


class Source(nn.Module):
    """Hits, with bos and eos, in one sequence with the other types; ``cross``: hits attend to the tracks instead."""

    def __init__(self, inputs: ModelInputs, config: TranslationNetworkConfig) -> None:
        super().__init__()

        def embed(features: int, *, framed: bool = True) -> SourceEmbedder:
            return SourceEmbedder(features=features, special=SPECIAL[config.special], config=config, framed=framed)

        others = {"tracks": inputs.track_features, "tracker_hits": inputs.tracker_hit_features}
        self.hits = embed(inputs.hit_features)
        self.tracks = embed(others.pop("tracks")) if config.source == "cross" else None
        self.others = nn.ModuleDict({name: embed(n, framed=False) for name, n in others.items() if n})
        self.encoder = make_encoder(config)

    def forward(self, batch: Batch) -> tuple[Tensor, Mask]:
        """Encoded tokens of `batch`, float [B, S, W], and their mask; ValueError if it lacks a type that is read."""
        tracks = {} if self.tracks is None else {"tracks": self.tracks}
        parts: list[tuple[Tensor, Mask]] = []
        for name, embed in {**tracks, "hits": self.hits, **dict(self.others.items())}.items():
            tokens = getattr(batch, name)
            if tokens is None:
                raise ValueError(f"{name}: the network reads them and the batch has none")
            parts.append(embed(tokens))
        memory, memory_mask = parts.pop(0) if tracks else (None, None)
        x = torch.cat([tokens for tokens, _ in parts], dim=1)
        mask = None
        if any(mask is not None for _, mask in parts):
            masks = [torch.ones_like(x[..., 0], dtype=torch.bool) if m is None else m for x, m in parts]
            mask = torch.cat(masks, dim=1)
        return self.encoder(x, mask=mask, memory=memory, memory_mask=memory_mask), mask


class MultiProjectionLayer(nn.Module):
    """Project to n narrow sequences, apply a standard decoder layer to each, join, and mix."""

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        width, style = config.decoder_width, config.style
        self.projections = nn.Linear(width, width)  # the n maps W -> W / n, fused
        self.branches = stack(standard_layer(config) for _ in range(config.n_projections or 0))
        self.feedforward = FullyConnected(
            (width, 2 * width, width), activation=style.activation, dropout=style.hidden_dropout
        )
        self.branches_residual = Residual(width=width, style=style)
        self.feedforward_residual = Residual(width=width, style=style)

    def forward(
        self, x: Tensor, memory: Sequence[KeyValue], *, cache: Sequence[KVCache | None], **context: Any
    ) -> Tensor:
        """As `TransformerLayer.forward`, with a memory and a cache for each projection."""

        def apply_branches(y: Tensor) -> Tensor:
            parts = self.projections(y).chunk(len(self.branches), dim=-1)  # [B, T, W] -> n of [B, T, W / n]
            decoded = [
                branch(part, known, cache=past, **context)
                for branch, part, known, past in zip(self.branches, parts, memory, cache, strict=True)
            ]
            return torch.cat(decoded, dim=-1)

        x = self.branches_residual(x, apply_branches)
        return self.feedforward_residual(x, self.feedforward)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A stack of standard decoder layers (version 1), or of multi-projection layers (version 2).

    In version 2 the target is n times as wide as the memory, and each layer decodes its n projections separately.
    """

    def __init__(self, config: TranslationNetworkConfig) -> None:
        super().__init__()
        self.n_projections = config.n_projections
        make_layer = standard_layer if config.n_projections is None else MultiProjectionLayer
        self.layers = stack(make_layer(config) for _ in range(config.decoder_layers))
        self.norm = final_norm(width=config.decoder_width, style=config.style)

    def project(self, memory: Tensor) -> list[KeyValue]:
        """Keys and values of `memory`, float [B, S, memory width], one pair a standard decoder layer."""
        standard: list[Any] = list(self.layers)
        if self.n_projections is not None:
            standard = [branch for layer in standard for branch in layer.branches]
        return [layer.memory_attention.project(memory) for layer in standard]

    def forward(
        self, x: Tensor, memory: Sequence[KeyValue], *, memory_mask: Mask = None, caches: Caches = None
    ) -> Tensor:
        """Decode x, float [B, T, W], with a memory from `project`; there is one cache a standard decoder layer."""
        past = caches if caches is not None else [None] * len(memory)
        n = self.n_projections
        for i, layer in enumerate(self.layers):
            index = i if n is None else slice(i * n, (i + 1) * n)
            x = layer(x, memory[index], memory_mask=memory_mask, causal=True, cache=past[index])
        return self.norm(x)  # type: ignore[no-any-return]


class Heads(nn.Module):
    """Linear maps to the logits of each classifier and, unless `Copier` gives them, to log10 E and a direction.

    The energy is normalised; the direction is theta and phi, or a vector. Theta is pi/2 + output: at the poles, where a
    network with small outputs would otherwise start, phi gets no gradient. The angles are returned as a unit vector,
    which has no jump at 2 pi. Heads stay in the weights' own precision under autocast: bfloat16 resolves an angle of 3
    rad to half a degree.
    """

    def __init__(self, *, classes: Mapping[str, int], width: int, direction: str = "angles") -> None:
        super().__init__()
        self.classifiers = nn.ModuleDict({name: FullyConnected((width, n)) for name, n in classes.items()})
        outputs = {"angles": 3, "vector": 4, "copied": 0}[direction]
        self.continuous = FullyConnected((width, outputs)) if outputs else None

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Of x float [B, T, W]: logits [B, T, V] of each classifier, ``energy`` [B, T] and ``direction`` [B, T, 3]."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(next(self.parameters()).dtype)
            prediction = {name: head(x) for name, head in self.classifiers.items()}
            if self.continuous is None:
                return prediction
            energy, *place = self.continuous(x).float().unbind(-1)
            if len(place) == 2:
                theta, phi = place
                theta = theta + torch.pi / 2
                direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], dim=-1)
            else:
                direction = functional.normalize(torch.stack(place, dim=-1), dim=-1)
        return {**prediction, "energy": energy, "direction": direction}


class TranslationNetwork(nn.Module):
    """Encoder-decoder Transformer from hits (and tracks) to a sequence of particles."""

    def __init__(self, inputs: ModelInputs, config: TranslationNetworkConfig) -> None:
        super().__init__()
        config.check_inputs(inputs)
        self.special = SPECIAL[config.special]
        self.source = Source(inputs, config)
        self.target = TargetEmbedder(n_charge=inputs.n_charge, n_pdg=inputs.n_pdg, special=self.special, config=config)
        self.decoder = Decoder(config)
        offset = self.special.offset
        classes = {"charge": inputs.n_charge + offset, "pdg": inputs.n_pdg + offset, **self.special.heads}
        self.heads = Heads(classes=classes, width=config.decoder_width, direction=config.direction)
        self.copy = Copier(inputs, config) if config.direction == "copied" else None
        initialise(self)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Predict each next token after the target tokens before it (teacher forcing).

        At each of T + 1 positions, for the token after bos, the first particle, ..., the last: ``charge`` and ``pdg``,
        logits [B, T + 1, V] over the physical classes behind the special ones; ``energy`` [B, T + 1], log10 E
        normalised; ``direction`` [B, T + 1, 3], unit vector; with special tokens by kind ``kind``, logits [B, T + 1,
        4]; where directions are copied the fields of `Copied` and `TeacherForcing`. ValueError: the batch has no
        target, or lacks a source that the network reads.
        """
        if batch.target is None:
            raise ValueError("target: the batch has none, and training needs one")
        memory, mask = self.source(batch)
        x = self.target(TargetTokens.teacher(batch.target))
        x = self.decoder(x, self.decoder.project(memory), memory_mask=mask)
        prediction: dict[str, Tensor] = self.heads(x)
        if self.copy is not None:
            items = self.copy.items(memory, batch)
            forced = TeacherForcing.of(batch, items)
            if self.training:
                with torch.no_grad():
                    forced = forced.with_own(self.copy(x, items, forced.assigned, forced.true).fraction)
            prediction |= self.copy(x, items, forced.assigned, forced.true)._asdict() | forced._asdict()
        return prediction
