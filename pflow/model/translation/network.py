"""The Transformer that translates detector hits into particles: the paper's networks and ours, put together from parts.

Letters: B batch, S source length, T target particles, W target width.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from pflow.data.batch import Batch
from pflow.model.common.cache import Compaction, KeyValue, KVCache
from pflow.model.common.initialise import initialise
from pflow.model.common.layers import LayerStyle
from pflow.model.translation.decoder import Decoder, MultiProjectionDecoder, VanillaDecoder
from pflow.model.translation.embed import EmbedderStyle, SourceEmbedder, TargetEmbedder, TargetTokens
from pflow.model.translation.encoder import CrossEncoder, Encoder
from pflow.model.translation.heads import Heads
from pflow.model.translation.source import CrossSource, Memory, TokenSetSource
from pflow.model.translation.special import SpecialTokens, special_tokens

__all__ = ["DecoderState", "ParticleTransformer"]


@dataclasses.dataclass
class DecoderState:
    """What a generation remembers: the memory's keys and values, and those of the tokens written so far.

    Parameters
    ----------
    memory
        One pair a standard decoder layer.
    memory_mask : bool [B, S] or None
    caches
        One a standard decoder layer.
    """

    memory: list[KeyValue]
    memory_mask: Tensor | None
    caches: list[KVCache]

    @property
    def length(self) -> int:
        """Number of tokens written so far."""
        return len(self.caches[0])

    def compact(self, compaction: Compaction) -> None:
        """Drop the events that are finished."""
        self.memory = [known.compact(compaction) for known in self.memory]
        if self.memory_mask is not None:
            self.memory_mask = compaction.apply(self.memory_mask)
        for cache in self.caches:
            cache.compact(compaction)


class ParticleTransformer(nn.Module):
    """Encoder-decoder Transformer from hits (and tracks) to a sentence of particles.

    Weights come from torch's global generator (``torch.manual_seed``) when it is built; `initialise` draws them anew
    from a generator of one's own.

    Parameters
    ----------
    n_charge, n_pdg
        Number of physical charges and |PDG| codes.
    hit_features, track_features, tracker_hit_features
        Features of a token of each type; 0 for a type that is not read.
    special
        Treatment of special tokens: ``flags`` (paper, version 1), ``kind`` (paper, version 2) or ``learned``.
    decoder
        ``vanilla`` (version 1) or ``multi_projection`` (version 2).
    source
        ``hits``; ``cross``: hits attend to tracks; ``typed``: hits, tracks and tracker hits as one sentence.
    width
        Of the encoder.
    target_width
        Of the decoder; by default `width`, or `n_projections` times that.
    heads
        Of each attention.
    encoder_layers, decoder_layers
        Their numbers.
    feedforward
        Width of the hidden layer in each encoder and decoder layer.
    n_projections
        Of ``multi_projection``, and required there.
    embedder
        ``v1``: F -> W -> W, or ``v2``: F -> embedder_feedforward -> ... -> W.
    embedder_feedforward, embedder_hidden_layers
        Width (default 2 W) and number (default 2) of the hidden layers of ``v2``.
    dropout
        Probability, on sub-layer outputs and hidden layers.
    norm
        ``post`` (paper) or ``pre``.
    bias
        Whether linear maps and norms have one.
    activation
        ``relu`` (paper) or ``gelu``.
    head_feedforward
        Width of a hidden layer in each head; None: heads are linear.
    target_position
        Whether the index of a target token is embedded; else the causal mask alone carries the order.
    energy_width
        Whether to predict the width of the energy too, for the Gaussian loss.

    Raises
    ------
    ValueError
        Naming an argument that makes no sense, alone or beside the others.
    """

    def __init__(
        self,
        *,
        n_charge: int,
        n_pdg: int,
        hit_features: int,
        track_features: int = 0,
        tracker_hit_features: int = 0,
        special: str = "flags",
        decoder: str = "vanilla",
        source: str = "hits",
        width: int = 128,
        target_width: int | None = None,
        heads: int = 8,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        feedforward: int = 512,
        n_projections: int | None = None,
        embedder: str = "v1",
        embedder_feedforward: int | None = None,
        embedder_hidden_layers: int | None = None,
        dropout: float = 0.0,
        norm: str = "post",
        bias: bool = True,
        activation: str = "relu",
        head_feedforward: int | None = None,
        target_position: bool = False,
        energy_width: bool = False,
    ) -> None:
        super().__init__()
        _check_positive(
            n_charge=n_charge,
            n_pdg=n_pdg,
            hit_features=hit_features,
            width=width,
            target_width=target_width,
            heads=heads,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            feedforward=feedforward,
            n_projections=n_projections,
            head_feedforward=head_feedforward,
        )
        _check_source(source, track_features, tracker_hit_features)
        target_width = _target_width(decoder, width, target_width, n_projections)
        style = LayerStyle(dropout=dropout, norm=norm, bias=bias, activation=activation)
        embedder_style = EmbedderStyle(
            version=embedder,
            feedforward=embedder_feedforward,
            hidden_layers=embedder_hidden_layers,
            activation=activation,
            bias=bias,
        )
        self.special: SpecialTokens = special_tokens(special)

        def embed(features: int, *, framed: bool = True) -> SourceEmbedder:
            return SourceEmbedder(
                features=features, width=width, special=self.special, style=embedder_style, framed=framed
            )

        sizes = {"width": width, "heads": heads, "feedforward": feedforward, "layers": encoder_layers}
        self.source: TokenSetSource | CrossSource
        if source == "cross":
            self.source = CrossSource(
                hits=embed(hit_features), tracks=embed(track_features), encoder=CrossEncoder(**sizes, style=style)
            )
        else:
            others = {"tracks": track_features, "tracker_hits": tracker_hit_features}
            self.source = TokenSetSource(
                hits=embed(hit_features),
                others={name: embed(features, framed=False) for name, features in others.items() if features},
                encoder=Encoder(**sizes, style=style),
            )

        self.target = TargetEmbedder(
            n_charge=n_charge,
            n_pdg=n_pdg,
            width=target_width,
            special=self.special,
            style=embedder_style,
            position=target_position,
        )
        self.decoder: Decoder
        if n_projections is None:
            self.decoder = VanillaDecoder(
                width=target_width,
                heads=heads,
                feedforward=feedforward,
                layers=decoder_layers,
                memory_width=width,
                style=style,
            )
        else:
            self.decoder = MultiProjectionDecoder(
                n_projections=n_projections,
                heads=heads,
                feedforward=feedforward,
                layers=decoder_layers,
                memory_width=width,
                style=style,
            )
        self.heads = Heads(
            width=target_width,
            classes={
                "charge": n_charge + self.special.offset,
                "pdg": n_pdg + self.special.offset,
                **self.special.heads,
            },
            feedforward=head_feedforward,
            energy_width=energy_width,
            activation=activation,
            bias=bias,
        )
        self.initialise()

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew, from `generator` or from torch's global one."""
        initialise(self, generator)

    def encode(self, batch: Batch) -> Memory:
        """The source of `batch`, encoded: states float [B, S, width] and their mask."""
        memory: Memory = self.source(batch)
        return memory

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Predict each next token of the true sentences (teacher forcing).

        Parameters
        ----------
        batch
            With a target of T particles.

        Returns
        -------
        dict
            At each of T + 1 positions, for the token that follows bos, the first particle, ..., the last:
            ``charge`` and ``pdg``, logits [B, T + 1, V] over the physical classes behind the special ones;
            ``energy`` [B, T + 1], log10 E normalised; ``direction`` [B, T + 1, 3], unit vector;
            ``kind`` [B, T + 1, 4] or ``stop`` [B, T + 1, 2], logits, with these special tokens;
            ``energy_log_width`` [B, T + 1], if asked for.

        Raises
        ------
        ValueError
            If the batch has no target, or lacks a source that the network reads.
        """
        if batch.target is None:
            raise ValueError("target: the batch has none, and teacher forcing needs one")
        memory = self.encode(batch)
        x = self.target(TargetTokens.teacher(batch.target))
        x = self.decoder(x, self.decoder.project(memory.states), memory_mask=memory.mask)
        return self.heads(x)  # type: ignore[no-any-return]

    def start(self, memory: Memory, max_length: int) -> DecoderState:
        """Prepare to write at most `max_length` tokens from `memory`: its keys and values are projected here, once."""
        known = [KeyValue(*(part.contiguous() for part in pair)) for pair in self.decoder.project(memory.states)]
        caches = [
            KVCache(
                batch=pair.key.shape[0],
                heads=pair.key.shape[1],
                max_length=max_length,
                head_width=pair.key.shape[3],
                dtype=pair.key.dtype,
                device=pair.key.device,
            )
            for pair in known
        ]
        return DecoderState(known, memory.mask, caches)

    def step(self, tokens: TargetTokens, state: DecoderState) -> dict[str, Tensor]:
        """Read one more token of each event, [B, 1], and predict the next; `state` is updated.

        Returns
        -------
        dict
            As `forward`, for one position: logits [B, V], ``energy`` [B], ``direction`` [B, 3].
        """
        x = self.target(tokens, first=state.length)
        x = self.decoder(x, state.memory, memory_mask=state.memory_mask, caches=state.caches)
        return {name: value[:, 0] for name, value in self.heads(x).items()}


def _check_positive(**sizes: int | None) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name}: {size} is not positive")


def _check_source(source: str, track_features: int, tracker_hit_features: int) -> None:
    given = {"track_features": track_features, "tracker_hit_features": tracker_hit_features}
    read: dict[str, tuple[str, ...]] = {"hits": (), "cross": ("track_features",), "typed": tuple(given)}
    if source not in read:
        raise ValueError(f"source: '{source}' is not one of {sorted(read)}")
    for name, features in given.items():
        if features < 0:
            raise ValueError(f"{name}: {features} is negative")
        if features and name not in read[source]:
            raise ValueError(f"{name}: source '{source}' does not read them")
    if source == "cross" and not track_features:
        raise ValueError("track_features: source 'cross' needs them")
    if source == "typed" and not (track_features or tracker_hit_features):
        raise ValueError("track_features, tracker_hit_features: source 'typed' needs one of them at least")


def _target_width(decoder: str, width: int, target_width: int | None, n_projections: int | None) -> int:
    if decoder == "vanilla":
        if n_projections is not None:
            raise ValueError("n_projections: the 'vanilla' decoder has none")
        return target_width or width
    if decoder != "multi_projection":
        raise ValueError(f"decoder: '{decoder}' is neither 'vanilla' nor 'multi_projection'")
    if n_projections is None:
        raise ValueError("n_projections: the 'multi_projection' decoder needs it")
    if target_width not in (None, n_projections * width):
        raise ValueError(
            f"target_width: {target_width} is not n_projections * width = {n_projections * width}, the only possibility"
        )
    return n_projections * width
