"""Options of the first paper's networks, and their tokens: the special ones pad, bos and eos, and embedders.

One of two treatments of the special tokens defines how an input token is marked, which heads exist beside charge and
PDG, what the losses ignore and what ends a sequence; it has no weights. Embedding stays in the weights' own precision
under autocast: bfloat16 would round a hit's position to several mm.

Letters: B batch, N source tokens, T target tokens or particles, V vocabulary, F features, W width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.data.batch import Target, TokenSet
from pflow.errors import check_choice
from pflow.model.api import MAX_LAYERS, MAX_SIZE, ModelInputs, check_range
from pflow.model.transformer import FullyConnected, LayerStyle, Mask

PAD, BOS, EOS, SAMPLE = range(4)
IGNORE = -100  # the label that torch's cross-entropy ignores


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """One of the two treatments. `kind` is int64 [...]: pad 0, bos 1, eos 2, sample 3."""

    offset: int  # index of the first physical class in the charge and PDG vocabularies
    marks_of_kinds: tuple[tuple[float, ...], ...]  # appended to the features of each input token, by its kind
    heads: Mapping[str, int] = dataclasses.field(default_factory=dict)  # beside charge and PDG: number of classes
    end: str  # head whose class `EOS` ends the sequence; its classes before that one are never chosen

    def index(self, value: Tensor, kind: Tensor) -> Tensor:
        """Vocabulary index of a token with physical index `value`, of special ones their kind; all int64 [...]."""
        # With treatment ``kind`` there is one special class, which pad, bos and eos share.
        return torch.where(kind == SAMPLE, value + self.offset, kind.clamp(max=self.offset - 1))

    def labels(self, target: Target) -> dict[str, Tensor]:
        """Target of each classifying head, int64 [B, T + 1]; `IGNORE` where it has no loss."""
        is_particle = functional.pad(target.mask, (0, 1), value=False)
        before = functional.pad(target.mask, (1, 0), value=True)
        kind = is_particle * SAMPLE + (before & ~is_particle) * EOS
        # Charge and PDG learn the end only where no head of its own does.
        ignored = kind != SAMPLE if self.heads else kind == PAD
        values = {"charge": target.charge, "pdg": target.pdg}
        labels = {name: self.index(functional.pad(value, (0, 1)), kind) for name, value in values.items()}
        return {
            **{name: label.masked_fill(ignored, IGNORE) for name, label in labels.items()},
            **{name: kind.masked_fill(kind == PAD, IGNORE) for name in self.heads},
        }

    def choose(
        self, prediction: Mapping[str, Tensor], *, eos_threshold: float | None = 0.5
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Whether each sequence ends, bool [B], and its next particle, from the heads' logits [B, V].

        It ends where the probability of eos, among it and the particles, reaches the threshold, or, without one, where
        it is the largest. ``charge`` and ``pdg``, int64 [B], are the most probable physical indices from 0, ``score``
        is the probability of `pdg` among the physical classes, float32 [B].
        """
        end = prediction[self.end][:, EOS:].softmax(-1)
        ended = end.argmax(-1) == 0 if eos_threshold is None else end[:, 0] >= eos_threshold
        charge, pdg_logits = (prediction[name][:, self.offset :] for name in ("charge", "pdg"))
        pdg = pdg_logits.argmax(-1)
        score = pdg_logits.float().softmax(-1).gather(-1, pdg[:, None]).squeeze(-1)
        return ended, {"charge": charge.argmax(-1), "pdg": pdg, "score": score}


SPECIAL: Mapping[str, SpecialTokens] = {
    # The first one: two flags a token (bos or eos; bos or pad), and three special classes in each vocabulary, whose
    # indices are their kinds. The charge head ends the sequence.
    "flags": SpecialTokens(offset=3, marks_of_kinds=((0.0, 1.0), (1.0, 1.0), (1.0, 0.0), (0.0, 0.0)), end="charge"),
    # The later one: one of four a token, and one special class in each vocabulary, which the losses ignore. A fourth
    # head predicts the kind of the next token and alone ends the sequence.
    "kind": SpecialTokens(
        offset=1,
        marks_of_kinds=((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
        heads={"kind": 4},
        end="kind",
    ),
}
"""The treatments by their names in the configuration."""


N_FRAME = 2  # bos and eos, in front of the hits


class TokenEmbedder(nn.Module):
    """Embed tokens of F features, to which the marks of special tokens are added."""

    def __init__(self, *, features: int, width: int, config: TranslationNetworkConfig) -> None:
        super().__init__()
        marks = torch.tensor(SPECIAL[config.special].marks_of_kinds)  # [4, marks], on the model's device
        self.register_buffer("marks", marks, persistent=False)
        wide = config.embedder == "v2"
        layers = config.embedder_layers or (3 if wide else 2)
        sizes = (features + marks.shape[1], *[width * (1 + wide)] * (layers - 1), width)
        self.network = FullyConnected(sizes, activation=config.activation)

    def forward(self, features: Tensor, kind: Tensor) -> Tensor:
        """Embed features [B, N, F], zeros where a token is not a sample, and kind int64 [B, N]; float [B, N, W]."""
        dtype = next(self.network.parameters()).dtype
        with torch.autocast(features.device.type, enabled=False):
            return self.network(torch.cat([features.to(dtype), self.get_buffer("marks")[kind].to(dtype)], dim=-1))  # type: ignore[no-any-return]


class SourceEmbedder(nn.Module):
    """Embed source tokens, which have no order; where `framed` behind bos and eos, so that they stay together."""

    def __init__(self, *, features: int, config: TranslationNetworkConfig, framed: bool = True) -> None:
        super().__init__()
        self.framed = framed
        self.embed = TokenEmbedder(features=features, width=config.width, config=config)

    def forward(self, tokens: TokenSet) -> tuple[Tensor, Mask]:
        """Tokens float [B, N', W], N' = N + N_FRAME if framed, and their mask."""
        features, mask = tokens.features, tokens.mask
        # Without padding attention needs no mask. A mask on a GPU counts as padded, to avoid a synchronisation.
        padded = mask.device.type != "cpu" or not bool(mask.all())
        if padded:
            features = features.masked_fill(~mask[..., None], 0.0)  # whatever padding holds, NaN included
        kind = torch.where(mask, SAMPLE, PAD)
        if self.framed:
            features = functional.pad(features, (0, 0, N_FRAME, 0))
            mask = functional.pad(mask, (N_FRAME, 0), value=True)
            kind = functional.pad(functional.pad(kind, (1, 0), value=EOS), (1, 0), value=BOS)
        return self.embed(features, kind), mask if padded else None


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
            kind=functional.pad(target.mask * SAMPLE, (1, 0), value=BOS),
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

    def __init__(self, *, n_charge: int, n_pdg: int, config: TranslationNetworkConfig) -> None:
        super().__init__()
        self.special = special = SPECIAL[config.special]
        self.n_charge, self.n_pdg = n_charge + special.offset, n_pdg + special.offset
        features, self.width = self.n_charge + self.n_pdg + 4, config.decoder_width
        self.embed = TokenEmbedder(features=features, width=self.width, config=config)
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
            even = torch.arange(0, self.width, 2, device=embedded.device)
            angle = index[:, None] / 10_000.0 ** (even / self.width)  # geometric wavelengths
            # Cut, as an odd width has one sine more than cosines.
            sinusoid = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, : self.width]
            embedded = embedded + sinusoid.to(embedded.dtype)
        return embedded


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
        cells (`pflow.model.translation.network`), since a direction regressed with a squared error lies between two
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

    @property
    def style(self) -> LayerStyle:
        """What all layers have in common."""
        p = self.dropout
        return LayerStyle(dropout=p, hidden_dropout=p, norm=self.norm, activation=self.activation)

    def check_inputs(self, inputs: ModelInputs) -> None:
        """Raise ValueError unless the source reads exactly the token types of `inputs`."""
        read = SOURCES[self.source]
        for name in ("track_features", "tracker_hit_features"):
            if getattr(inputs, name) and name not in read:
                raise ValueError(f"{name}: source '{self.source}' does not read them")
        if read and not any(getattr(inputs, name) for name in read):
            raise ValueError(f"{', '.join(read)}: source '{self.source}' needs them")
