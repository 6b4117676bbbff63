"""Options of the translation models: what the network is, and what its losses are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pflow.model.api import ModelInputs
from pflow.model.common.checks import MAX_LAYERS, check_choice, check_positive, complete_weights
from pflow.model.common.layers import LayerStyle
from pflow.model.translation.special import SPECIAL

__all__ = ["TranslationLossConfig", "TranslationNetworkConfig"]

SOURCES: dict[str, tuple[str, ...]] = {
    "hits": (),
    "cross": ("track_features",),
    "typed": ("track_features", "tracker_hit_features"),
}
"""Which token types each source reads beside hits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationNetworkConfig:
    """Sizes and parts of the network.

    Parameters
    ----------
    special
        Treatment of special tokens: ``flags`` (paper, version 1), ``kind`` (paper, version 2) or ``learned``.
    decoder
        ``vanilla`` (version 1) or ``multi_projection`` (version 2).
    source
        ``hits``; ``cross``: hits attend to tracks; ``typed``: hits, tracks and tracker hits as one sequence.
    width
        Token width of the encoder.
    target_width
        Token width of the decoder; default: `width`, or `n_projections` times that.
    heads
        Heads of each attention.
    encoder_layers, decoder_layers
        Number of layers.
    feedforward
        Hidden width of the feed-forward network of each layer.
    n_projections
        Number of projections; required by ``multi_projection``.
    embedder
        ``v1``: F -> W -> W, or ``v2``: F -> 2 W -> 2 W -> W.
    dropout
        Dropout probability of sub-layer outputs and hidden layers.
    norm
        ``post`` (paper) or ``pre``.
    bias
        Whether linear maps and norms have a bias.
    activation
        ``relu`` (paper) or ``gelu``.
    head_feedforward
        Hidden width of each head; None: heads are linear.
    target_position
        Whether the position in the output sequence is embedded; else the causal mask alone carries the order.
    energy_sigma
        Whether the standard deviation of the energy is predicted; needed by the Gaussian loss.

    Raises
    ------
    ValueError
        A value out of range, or values that do not belong together; names the field.
    """

    special: str = "flags"
    decoder: str = "vanilla"
    source: str = "hits"
    width: int = 128
    target_width: int | None = None
    heads: int = 8
    encoder_layers: int = 3
    decoder_layers: int = 3
    feedforward: int = 512
    n_projections: int | None = None
    embedder: str = "v1"
    dropout: float = 0.0
    norm: str = "post"
    bias: bool = True
    activation: str = "relu"
    head_feedforward: int | None = None
    target_position: bool = False
    energy_sigma: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "width", "target_width", "heads", "feedforward", "n_projections", "head_feedforward")
        check_positive(self, "encoder_layers", "decoder_layers", largest=MAX_LAYERS)
        check_choice(self, "special", SPECIAL)
        check_choice(self, "decoder", ("vanilla", "multi_projection"))
        check_choice(self, "source", SOURCES)
        check_choice(self, "embedder", ("v1", "v2"))
        if (self.decoder == "multi_projection") != (self.n_projections is not None):
            needs = "needs it" if self.n_projections is None else "has none"
            raise ValueError(f"n_projections: the '{self.decoder}' decoder {needs}")
        if self.n_projections is not None and self.target_width not in (None, self.decoder_width):
            raise ValueError(
                f"target_width: {self.target_width} is not n_projections * width = {self.decoder_width}, "
                "the only possibility"
            )
        assert self.style  # checks dropout, norm and activation

    @property
    def decoder_width(self) -> int:
        """Token width of the decoder."""
        return self.n_projections * self.width if self.n_projections else self.target_width or self.width

    @property
    def style(self) -> LayerStyle:
        """What all layers have in common."""
        return LayerStyle(
            dropout=self.dropout,
            hidden_dropout=self.dropout,
            norm=self.norm,
            bias=self.bias,
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationLossConfig:
    """What the losses are, and their weights.

    Parameters
    ----------
    weights
        Weight of each loss by name (``charge``, ``pdg``, ``energy``, ``direction``, and ``kind`` or ``stop`` with
        these special tokens); 1 for those not given.
    energy
        Loss of the normalised log10 E: ``mse`` (paper), ``huber`` (threshold 1), or ``gaussian``: the negative
        log-likelihood of a normal distribution whose standard deviation is predicted, without its constant.
    direction
        ``mse``: mean square error of the unit vector's components (paper), or ``angle``, rad.
    label_smoothing
        Label smoothing of the cross-entropies, in [0, 1).

    Raises
    ------
    ValueError
        A value out of range; names the field.
    """

    weights: dict[str, float] = dataclasses.field(default_factory=dict)
    energy: str = "mse"
    direction: str = "mse"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_choice(self, "energy", ("mse", "huber", "gaussian"))
        check_choice(self, "direction", ("mse", "angle"))
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing: {self.label_smoothing} is not in [0, 1)")

    def complete(self, names: Iterable[str]) -> dict[str, float]:
        """Weight of each of the losses `names`; ValueError for a weight of another one."""
        return complete_weights(self.weights, names)
