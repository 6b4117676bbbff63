"""The encoder: tokens of hits and tracks attend to each other, with a preference for tokens in similar directions.

One event's tokens attend to each other in blocks, without the pairs that are too far apart to count. A head of strength
lambda subtracts lambda |n_i - n_j|^2 / 2 from the logit of tokens i and j. Beyond some angle this is more than any
product of query and key can add, and the weight of j is below the rounding of single precision. To find the others
without looking at all pairs, tokens are ordered by their angle to one axis: the angle between two tokens is at least
the difference of these. So for each block of consecutive tokens, all tokens that count lie in one slice of that order,
and the attention of the block is computed with this slice alone.

Letters: B batch, or blocks of R rows, S source tokens, W width, H heads, D = W / H, K width of a key.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from pflow.data.batch import Batch
from pflow.model.api import ModelInputs, normalise
from pflow.model.pointing.config import PointingNetworkConfig
from pflow.model.pointing.geometry import Tokens
from pflow.model.transformer import Encoder, FullyConnected, LayerStyle, Lengths, Mask, TransformerLayer, attend

# Initial strengths of the widest and the narrowest head: attention falls by e at sqrt(2 / strength), 0.8 and 0.026 rad.
MIN_STRENGTH, MAX_STRENGTH = 3.0, 3000.0
MAX_PAIRS = 2**24  # pairs of tokens, of each head in a batch, whose `nearness_of` is held in memory at a time, 64 MB
BLOCK_TOKENS = 128  # tokens whose attention is computed at a time
SLICE_STEP = 16  # tokens in whose steps the slices of those that count begin and end
# Minus the logarithm of the largest fraction of a token's attention that may be left out: 1/4 of the rounding.
LOG_ROUNDING = 26.0 * math.log(2.0)
# The preference for directions is cut off this far below zero, or further: much lower, and the weights would be
# denormal numbers, which slow a CPU down many times.
MIN_CUT_OFF = 60.0
ANGLE_MARGIN = 1e-3  # rad, to the angle within which tokens count: near an axis, cosines round angles to 4e-4
# Largest strength of a head for which all tokens count, be they back to back. Its logits are rounded as others are.
MAX_WIDE = LOG_ROUNDING / 2.0


class DirectionalSelfAttention(nn.Module):
    """Self-attention with a learned preference of each head for tokens in similar directions.

    The logits gain lambda_h n_i . n_j, which up to a constant is -lambda_h |n_i - n_j|^2 / 2: a Gaussian in the angle
    between tokens. The result depends neither on the order of the tokens nor on the frame.

    Fused, the three components replace three of the D numbers of keys and queries, so that the fused kernels compute
    them. For a narrow head this product is some 10^4, and single precision rounds the logit to 10^-3, each time
    otherwise. Precise, the small -lambda_h |n_i - n_j|^2 / 2 is added instead, computed in double precision: for a
    batch to all logits, for one event in blocks of near tokens (`attend_nearby`).

    ValueError if H does not divide W, or D is not more than 3.
    """

    def __init__(self, *, width: int, heads: int) -> None:
        super().__init__()
        if width % heads or width // heads <= 3:
            raise ValueError(f"heads: {heads} heads do not divide a width of {width} into parts of more than 3")
        self.heads, self.key_width = heads, width // heads - 3
        self.query_key = nn.Linear(width, 2 * heads * self.key_width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        strength = torch.logspace(math.log10(MIN_STRENGTH), math.log10(MAX_STRENGTH), heads)
        self.register_buffer("initial_strength", strength, persistent=False)
        # As the logarithm of a factor a strength stays positive, and all learn alike over three powers of ten.
        self.log_strength = nn.Parameter(torch.zeros(heads))
        self.attend_nearby = attend_nearby  # an export has another

    @property
    def strength(self) -> Tensor:
        """Of the preference for similar directions, float [H]."""
        return self.get_buffer("initial_strength") * self.log_strength.exp()

    def set_initial_values(self) -> None:
        """Set the initial strengths."""
        self.log_strength.zero_()

    def forward(
        self,
        x: Tensor,
        *,
        unit: Tensor | None = None,
        directions: Directions | Tensor | None = None,
        mask: Mask = None,
        lengths: Lengths = None,
    ) -> Tensor:
        """Attend; float [B, S, W] in and out.

        Fused with unit vectors `unit` float [B, S, 3]; precise with `directions`: unit vectors double [B, S, 3], or of
        one event, [S, W], in their order.
        """
        strength = self.strength
        query, key = torch.split(self.query_key(x), self.heads * self.key_width, dim=-1)
        # In full precision under autocast: bfloat16 does not resolve the angles that a narrow head prefers.
        query, key, value = query.float() * self.key_width**-0.5, key.float(), self.value(x).float()
        with torch.autocast(x.device.type, enabled=False):
            query, key, value = (part.unflatten(-1, (self.heads, -1)) for part in (query, key, value))
            if isinstance(directions, Directions):
                return self.out(self.attend_nearby(query, key, value, directions, strength))  # type: ignore[no-any-return]
            if unit is not None:
                direction = unit[:, :, None].expand(-1, -1, self.heads, -1)  # [B, S, H, 3]
                query = torch.cat([query, direction * strength[:, None]], dim=-1)
                key = torch.cat([key, direction], dim=-1)
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # [B, H, S, D]
            if directions is None:
                return self.out(attend(query, key, value, mask=mask, lengths=lengths, scale=1.0))  # type: ignore[no-any-return]
            attended = _attend_to_all(query, key, value, directions, strength=strength, mask=mask)
            return self.out(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _attend_to_all(query: Tensor, key: Tensor, value: Tensor, unit: Tensor, *, strength: Tensor, mask: Mask) -> Tensor:
    """Precise attention of queries and keys [B, H, S, D - 3] and values [B, H, S, D]; float [B, H, S, D].

    `unit`, double [B, S, 3], are the tokens' directions.
    """
    batch, heads, length, _ = query.shape
    query, key = functional.pad(query, (0, 3)), functional.pad(key, (0, 3))  # the fused kernels want equal widths
    n_rows = max(1, MAX_PAIRS // max(1, batch * heads * length))
    attended = []
    # At least one round: `cat` needs a part, even of a batch without tokens.
    for start in range(0, max(length, 1), n_rows):
        rows = slice(start, start + n_rows)
        bias = nearness_of(unit[:, rows], unit)[:, None] * strength[:, None, None]  # [B, H, R, S]
        if mask is not None:
            bias = bias.masked_fill(~mask[:, None, None], float("-inf"))
        attended.append(scaled_dot_product_attention(query[:, :, rows], key, value, attn_mask=bias, scale=1.0))
    return torch.cat(attended, dim=2)


@dataclasses.dataclass(frozen=True, eq=False)
class Directions:
    """Directions of an event's tokens in the order of their angles to an axis."""

    unit: Tensor  # double [S, 3]
    angle: Tensor  # float [S], rising, rad

    @classmethod
    def of(cls, unit: Tensor) -> tuple[Directions, Tensor]:
        """From vectors float [S, 3] of at least one token, and the order int64 [S] in which they are."""
        unit = normalise(unit.double())
        # About the axis to which most directions are close, either way: the largest eigenvector, by the 16th power.
        spread = unit.t() @ unit
        for _ in range(4):
            spread = spread @ spread
            # If no token has a direction the spread is 0, and has to stay 0 instead of NaN.
            spread = spread / spread.square().sum().clamp(min=1e-300).sqrt()
        # The power is nearly v v^T of the eigenvector v: each row lies along it, and the longest is not all rounding.
        axis = normalise(spread[spread.square().sum(1).argmax()])
        # Cosines may round to more than 1, where acos is NaN.
        angle = torch.acos((unit @ axis[:, None]).view(-1).float().clamp(-1.0, 1.0))
        # A token without direction is equally far from all.
        angle = torch.where(unit.square().sum(1).min() < 0.5, torch.zeros_like(angle), angle)
        angle, order = torch.sort(angle)
        return cls(unit.index_select(0, order), angle), order

    @functools.cached_property
    def near(self) -> list[Tensor] | None:
        """`nearness_of` each block of directions and all, float [R, S], unless they are too many."""
        if len(self.unit) ** 2 > MAX_PAIRS:
            return None
        return [nearness_of(rows, self.unit) for rows in torch.split(self.unit, BLOCK_TOKENS)]


def nearness_of(unit: Tensor, others: Tensor) -> Tensor:
    """n_i . n_j - 1 of unit vectors double [..., R, 3] and [..., S, 3], computed in double; float32 [..., R, S]."""
    return (unit @ others.transpose(-1, -2)).sub_(1.0).float()


def slices_nearby(query: Tensor, key: Tensor, directions: Directions, strength: Tensor) -> tuple[Tensor, Tensor]:
    """First token that counts, and the one after the last, for each head and block of tokens, int64 [2, H, B].

    Beside it the preference for directions, below zero, from which a token does not count, float [H]. Of queries and
    keys [S, H, K], in the order of the directions, and strengths [H]. The weight of a token at the distance d is at
    most exp(|q| max |k| - q . k - lambda d^2 / 2) times the token's weight for itself (key k), and there are S.
    """
    angle = directions.angle
    length = torch.ones_like(angle).sum()
    largest = (query.square().sum(2) * key.square().sum(2).amax(0)).sqrt()  # [S, H]
    excess = (largest - (query * key).sum(2)).amax(0) + length.log() + LOG_ROUNDING
    # A weak head reaches all directions: asin of more than 1 would be NaN.
    reach = 2.0 * torch.asin((excess / (2.0 * strength)).sqrt().clamp(max=1.0)) + ANGLE_MARGIN
    first = torch.arange(0, angle.shape[0], BLOCK_TOKENS, device=angle.device)
    begin, end = angle[first], angle[torch.minimum(first + (BLOCK_TOKENS - 1), length.long() - 1)]  # of each block
    every, reach = angle[::SLICE_STEP], reach[:, None]
    n_before = (every < (begin - reach)[..., None]).long().sum(2)  # [H, B]
    n_within = (every <= (end + reach)[..., None]).long().sum(2)
    # One step back: tokens behind the last one that is too far may be near before the next that is looked at.
    return SLICE_STEP * torch.stack([(n_before - 1).clamp(min=0), n_within]), excess


def attend_nearby(query: Tensor, key: Tensor, value: Tensor, directions: Directions, strength: Tensor) -> Tensor:
    """Precise attention of one event, float [S, H D]: inputs as of `slices_nearby`, and values [S, H, D]."""
    slices, depth = slices_nearby(query, key, directions, strength)
    (starts, stops), near = slices.tolist(), directions.near
    factors, lowest = strength.tolist(), (depth.clamp(min=MIN_CUT_OFF) / -strength).tolist()
    queries, keys, values = query.unbind(1), [of_head.t() for of_head in key.unbind(1)], value.unbind(1)
    unit, wide = directions.unit.float(), {}
    for head, factor in enumerate(factors):
        if factor <= MAX_WIDE:  # torch's fused attention takes half the time
            of_query, of_key = torch.cat([queries[head], factor * unit], 1), torch.cat([key[:, head], unit], 1)
            wide[head] = attend(of_query[None, None], of_key[None, None], values[head][None, None], scale=1.0)[0]
    attended = []
    for block, row in enumerate(range(0, len(query), BLOCK_TOKENS)):
        rows, of_heads = slice(row, row + BLOCK_TOKENS), []
        # The same for all heads, of which a wide one sees all tokens.
        nearness = near[block] if near is not None else nearness_of(directions.unit[rows], directions.unit)
        for head, factor in enumerate(factors):
            if head in wide:
                of_heads.append(wide[head][rows])
                continue
            start, stop = starts[head][block], stops[head][block]
            nearby = nearness[:, start:stop]
            # The clamp makes the copy that addmm_ overwrites: other heads and layers read the nearness again.
            logits = nearby.clamp(min=lowest[head]).addmm_(queries[head][rows], keys[head][:, start:stop], beta=factor)
            of_heads.append(logits.softmax(-1) @ values[head][start:stop])
        attended.append(torch.cat(of_heads, dim=1))
    return torch.cat(attended)


class SourceEncoder(nn.Module):
    """Embed hit and track tokens, and encode them with attention that knows their directions."""

    def __init__(self, inputs: ModelInputs, config: PointingNetworkConfig) -> None:
        super().__init__()
        width = config.width
        style = LayerStyle(hidden_dropout=config.dropout, norm="pre", activation="gelu")
        self.embed_hit = FullyConnected((inputs.hit_features, width, width))
        self.embed_track = None
        if inputs.track_features:
            self.embed_track = FullyConnected((inputs.track_features, width, width))
        attentions = (DirectionalSelfAttention(width=width, heads=config.heads) for _ in range(config.encoder_layers))
        layers = (
            TransformerLayer(attention, width=width, feedforward=config.feedforward, style=style)
            for attention in attentions
        )
        self.stack = Encoder(layers, width=width, style=style)

    def forward(self, batch: Batch, tokens: Tokens, *, precise: bool = True) -> Tensor:
        """Encoder states float [B, S, W] of a batch and its tokens; `precise`: see `DirectionalSelfAttention`."""
        x = self._embed(batch.hits.features, None if batch.tracks is None else batch.tracks.features)
        if not precise:
            return self.stack(x, mask=tokens.mask, unit=tokens.unit)  # type: ignore[no-any-return]
        if x.device.type != "cpu":
            return self.stack(x, mask=tokens.mask, directions=normalise(tokens.unit.double()))  # type: ignore[no-any-return]
        # One by one: matrix products round by their shapes, and an event's states must not depend on its batch.
        states = torch.zeros_like(x)
        for row, mask in enumerate(tokens.mask):
            real = mask.nonzero().squeeze(1)
            if len(real):
                states[row, real] = self._encode(x[row, real], tokens.unit[row, real])
        return states

    def of_event(self, hits: Tensor, tracks: Tensor | None, unit: Tensor) -> Tensor:
        """Encoder states float [S, W] of one event, from features of hits and tracks and the directions of tokens."""
        return self._encode(self._embed(hits, tracks), unit)

    def _embed(self, hits: Tensor, tracks: Tensor | None) -> Tensor:
        with torch.autocast(hits.device.type, enabled=False):  # bfloat16 would round a hit's position
            x = self.embed_hit(hits)
            if self.embed_track is None or tracks is None:
                return x  # type: ignore[no-any-return]
            return torch.cat([x, self.embed_track(tracks)], dim=-2)

    def _encode(self, x: Tensor, unit: Tensor) -> Tensor:
        directions, order = Directions.of(unit)
        x = self.stack(x.index_select(0, order), directions=directions)
        return x.index_select(0, torch.sort(order)[1])
