"""The first paper's networks: a Transformer from detector hits to a sequence of particles.

Letters: B batch, S source length, T target particles, W target width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.api import ModelInputs
from pflow.model.common.directions import unit_vector
from pflow.model.common.initialise import initialise
from pflow.model.common.layers import FullyConnected
from pflow.model.translation.config import TranslationNetworkConfig
from pflow.model.translation.embed import SourceEmbedder, TargetEmbedder, TargetTokens
from pflow.model.translation.layers import Decoder, Memory, Source, make_encoder
from pflow.model.translation.special import SPECIAL


class Heads(nn.Module):
    """Linear maps to the logits of each classifier, to normalised log10 E, and to theta and phi or a vector.

    Theta is pi/2 + output: at the poles, where a network with small outputs would otherwise start, phi gets no
    gradient. The angles are returned as a unit vector, which has no jump at 2 pi. Heads stay in the weights' own
    precision under autocast: bfloat16 resolves an angle of 3 rad to half a degree.
    """

    def __init__(self, *, classes: Mapping[str, int], width: int, direction: str = "angles") -> None:
        super().__init__()
        self.classifiers = nn.ModuleDict({name: FullyConnected((width, n)) for name, n in classes.items()})
        self.continuous = FullyConnected((width, 3 if direction == "angles" else 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Of x float [B, T, W]: logits [B, T, V] of each classifier, ``energy`` [B, T] and ``direction`` [B, T, 3]."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(next(self.continuous.parameters()).dtype)
            prediction = {name: head(x) for name, head in self.classifiers.items()}
            energy, *place = self.continuous(x).float().unbind(-1)
            if len(place) == 2:
                theta, phi = place
                direction = unit_vector(theta + torch.pi / 2, phi)
            else:
                direction = functional.normalize(torch.stack(place, dim=-1), dim=-1)
        return {**prediction, "energy": energy, "direction": direction}


class TranslationNetwork(nn.Module):
    """Encoder-decoder Transformer from hits (and tracks) to a sequence of particles."""

    def __init__(self, inputs: ModelInputs, config: TranslationNetworkConfig) -> None:
        super().__init__()
        config.check_inputs(inputs)
        self.special = SPECIAL[config.special]

        def embed(features: int, *, framed: bool = True) -> SourceEmbedder:
            return SourceEmbedder(features=features, special=self.special, config=config, framed=framed)

        others = {"tracks": inputs.track_features, "tracker_hits": inputs.tracker_hit_features}
        cross = config.source == "cross"
        self.source = Source(
            hits=embed(inputs.hit_features),
            tracks=embed(others.pop("tracks")) if cross else None,
            others={name: embed(features, framed=False) for name, features in others.items() if features},
            encoder=make_encoder(config),
        )
        self.target = TargetEmbedder(n_charge=inputs.n_charge, n_pdg=inputs.n_pdg, special=self.special, config=config)
        self.decoder = Decoder(config)
        offset = self.special.offset
        classes = {"charge": inputs.n_charge + offset, "pdg": inputs.n_pdg + offset, **self.special.heads}
        self.heads = Heads(classes=classes, width=config.decoder_width, direction=config.direction)
        initialise(self)

    def encode(self, batch: Batch) -> Memory:
        """The encoded source of `batch`: states float [B, S, width] and their mask."""
        memory: Memory = self.source(batch)
        return memory

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Predict each next token after the target tokens before it (teacher forcing).

        At each of T + 1 positions, for the token after bos, the first particle, ..., the last: ``charge`` and ``pdg``,
        logits [B, T + 1, V] over the physical classes behind the special ones; ``energy`` [B, T + 1], log10 E
        normalised; ``direction`` [B, T + 1, 3], unit vector; with special tokens of version 2 ``kind``, logits [B, T +
        1, 4]. ValueError: the batch has no target, or lacks a source that the network reads.
        """
        if batch.target is None:
            raise ValueError("target: the batch has none, and training needs one")
        memory = self.encode(batch)
        x = self.target(TargetTokens.teacher(batch.target))
        x = self.decoder(x, self.decoder.project(memory.states), memory_mask=memory.mask)
        return self.heads(x)  # type: ignore[no-any-return]
