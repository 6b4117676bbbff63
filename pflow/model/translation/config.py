"""Options of the translation models: what the network is."""

from __future__ import annotations

import dataclasses

from pflow.errors import check_choice
from pflow.model.api import MAX_LAYERS, MAX_SIZE, ModelInputs, check_range
from pflow.model.common.transformer import LayerStyle
from pflow.model.translation.special import SPECIAL

SOURCES = {"hits": (), "cross": ("track_features",), "typed": ("track_features", "tracker_hit_features")}
"""Which token types each source reads beside hits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationNetworkConfig:
    """Sizes and parts of the network; ValueError names fields out of range, or that do not belong together.

    Parameters
    ----------
    special
        Treatment of special tokens: ``flags`` or, the author's later change, ``kind``; with either decoder.
    decoder
        ``vanilla`` (paper, version 1) or ``multi_projection`` (version 2), which needs `n_projections`.
    source
        ``hits``; ``cross`` (the author's later branch): hits attend to tracks; ``typed``: hits, tracks and tracker hits
        as one sequence.
    width, heads, feedforward
        Token width of the encoder (`n_projections` times the decoder's), attention heads, hidden width.
    embedder, embedder_layers
        Hidden layers of the embedders as wide as a token (``v1``) or twice as wide (``v2``), and how many linear maps
        they have; None: 2 (v1, F -> W -> W) or 3 (v2, F -> 2 W -> 2 W -> W).
    dropout
        Dropout probability of sub-layer outputs and hidden layers.
    norm, activation
        ``post`` (paper) or ``pre``; ``relu`` (paper) or ``gelu``.
    target_position
        Whether the position in the output sequence is embedded (the author's notes); else the causal mask alone carries
        the order.
    direction
        ``angles`` (paper): regress theta and phi; ``vector``: regress three components, since phi jumps at 2 pi, where
        a network's directions are wrong; ``copied``: choose a cell, and copy direction and energy from its particle's
        cells (`pflow.model.translation.copy`), since a direction regressed with a squared error lies between two
        possible ones. Particles without hits cannot be copied.
    """

    special: str = "flags"
    decoder: str = "vanilla"
    source: str = "hits"
    width: int = 128
    heads: int = 8
    encoder_layers: int = 3
    decoder_layers: int = 3
    feedforward: int = 512
    n_projections: int | None = None
    embedder: str = "v1"
    embedder_layers: int | None = None
    dropout: float = 0.0
    norm: str = "post"
    activation: str = "relu"
    target_position: bool = False
    direction: str = "angles"

    def __post_init__(self) -> None:
        check_range(self, f"[1, {MAX_SIZE}]", "width", "heads", "feedforward", "n_projections")
        check_range(self, f"[1, {MAX_LAYERS}]", "encoder_layers", "decoder_layers", "embedder_layers")
        check_choice(self.special, SPECIAL, "special")
        check_choice(self.decoder, ("vanilla", "multi_projection"), "decoder")
        check_choice(self.source, SOURCES, "source")
        check_choice(self.embedder, ("v1", "v2"), "embedder")
        check_choice(self.direction, ("angles", "vector", "copied"), "direction")
        if (self.decoder == "multi_projection") != (self.n_projections is not None):
            needs = "needs it" if self.n_projections is None else "has none"
            raise ValueError(f"n_projections: the '{self.decoder}' decoder {needs}")
        _ = self.style  # checks dropout, norm and activation

    @property
    def decoder_width(self) -> int:
        """Token width of the decoder."""
        return (self.n_projections or 1) * self.width

    def embedder_widths(self, width: int) -> list[int]:
        """Widths of an embedder's layers behind its input; the last is the token's `width`."""
        wide = self.embedder == "v2"
        layers = self.embedder_layers or (3 if wide else 2)
        return [width * (1 + wide)] * (layers - 1) + [width]

    @property
    def style(self) -> LayerStyle:
        """What all layers have in common."""
        return LayerStyle(
            dropout=self.dropout,
            hidden_dropout=self.dropout,
            norm=self.norm,
            activation=self.activation,
        )

    def check_inputs(self, inputs: ModelInputs) -> None:
        """Raise ValueError unless the source reads exactly the token types of `inputs`."""
        read = SOURCES[self.source]
        for name in ("track_features", "tracker_hit_features"):
            if getattr(inputs, name) and name not in read:
                raise ValueError(f"{name}: source '{self.source}' does not read them")
        if read and not any(getattr(inputs, name) for name in read):
            raise ValueError(f"{', '.join(read)}: source '{self.source}' needs them")
