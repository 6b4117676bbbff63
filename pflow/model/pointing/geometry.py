"""Tokens and items in space: what a network reads of an event beside the features of its tokens.

An item is what a particle can be assigned: a hit or a track. A token is one or more hits, or a track. Letters: B batch,
S source tokens (S_h of hits, then K of tracks), N hits, M = N + K items (hits, then tracks), R subdetectors, W width.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, NamedTuple, Self, get_type_hints

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.api import normalise
from pflow.model.decode import change_tensors

UNKNOWN_ENTRY = 2000.0  # mm, along its momentum, to a track whose position at the calorimeter is not known
THETA_UNIT, ARC_UNIT = 0.003, 0.01  # of differences in polar angle and of arcs in azimuth, rad
MIN_RHO = 1e-3  # smallest sine of the polar angle by which differences in azimuth become arcs


@dataclasses.dataclass
class Columns:
    """Groups of columns of a table: ``Annotated[Tensor, 3]`` are three, 0 all that the other groups leave."""

    @classmethod
    @functools.cache
    def widths(cls) -> tuple[int, ...]:
        """Number of columns of each group."""
        return tuple(hint.__metadata__[0] for hint in get_type_hints(cls, include_extras=True).values())

    @classmethod
    def of(cls, table: Tensor, *, dim: int = -1) -> Self:
        """The columns of a table float [..., F], as views; with `dim` 0 the rows of [F, ...]."""
        widths = cls.widths()
        rest = int(table.shape[dim]) - sum(widths) if 0 in widths else 0
        return cls(*table.split_with_sizes([width or rest for width in widths], dim))

    def table(self) -> Tensor:
        """The table float [..., F]."""
        return torch.cat(list(vars(self).values()), dim=-1)


@dataclasses.dataclass
class ItemPlaces(Columns):
    """Columns of `Items.places`."""

    position: Annotated[Tensor, 3]  # mm
    unit: Annotated[Tensor, 3]  # its unit vector
    theta: Annotated[Tensor, 2]  # polar angle / 3 mrad, and what its rounding leaves: differences need it


@dataclasses.dataclass
class TokenFrames(Columns):
    """Columns of `Tokens.frames`: where a particle starts, and what its items are compared with."""

    place: Annotated[Tensor, sum(ItemPlaces.widths())]  # columns of `ItemPlaces`
    axis: Annotated[Tensor, 3]  # direction in which a shower goes from there
    azimuth: Annotated[Tensor, 3]  # its product with a small difference of unit vectors is the arc / 10 mrad

    @property
    def unit(self) -> Tensor:
        """Unit vectors of the positions, float [..., 3]."""
        return ItemPlaces.of(self.place).unit


@dataclasses.dataclass
class TokenTracks(Columns):
    """Columns of `Tokens.tracks`, 0 for tokens of hits."""

    unit: Annotated[Tensor, 3]  # unit vector of a track's momentum at the vertex
    momentum: Annotated[Tensor, 1]  # its size, GeV
    charge: Annotated[Tensor, 1]  # its sign
    is_track: Annotated[Tensor, 1]


@dataclasses.dataclass
class ItemFeatures(Columns):
    """Columns of `Items.features`."""

    log_energy: Annotated[Tensor, 1]
    layer: Annotated[Tensor, 1]  # / 30
    is_track: Annotated[Tensor, 1]
    subdetector: Annotated[Tensor, 0]  # [R], one-hot


@dataclasses.dataclass
class FractionSums(Columns):
    """Sums over the items of a particle, weighted by their fractions."""

    energy: Annotated[Tensor, 1]  # of hits, GeV
    track_energy: Annotated[Tensor, 1]  # momentum of tracks, GeV
    n_hits: Annotated[Tensor, 1]
    momentum: Annotated[Tensor, 3]  # of tracks, GeV
    tracks: Annotated[Tensor, 2]  # number, and charge [e]


@dataclasses.dataclass
class ItemSums(Columns):
    """Columns of `Items.sums`; the last two are summed with the items' fractions of a particle's deposit."""

    by_fraction: Annotated[Tensor, sum(FractionSums.widths())]  # columns of `FractionSums`
    position: Annotated[Tensor, 3]  # mm
    by_subdetector: Annotated[Tensor, 0]  # [2 R], of each: whether the item is in it, then its layer / 30 if it is


class Tokens(NamedTuple):
    """Tokens of a batch; in `Tables` [B * S, ...]."""

    mask: Tensor  # bool [B, S], True = real token
    energy: Tensor  # float [B, S], energy of a token's hits, or momentum of its track, GeV
    is_track: Tensor  # bool [B, S]
    frames: Tensor  # float [B, S, F], columns of `TokenFrames`
    tracks: Tensor  # float [B, S, F], columns of `TokenTracks`
    item: Tensor  # int64 [B, S], one of the items of each token
    track: Tensor  # int64 [B, K], the tokens of tracks

    @property
    def unit(self) -> Tensor:
        """Unit vectors of the positions, float [B, S, 3]."""
        return TokenFrames.of(self.frames).unit


class Items(NamedTuple):
    """Items of a batch; in `Tables` [B * M, ...], but for the directions."""

    mask: Tensor  # bool [B, M], True = real item
    token: Tensor  # int64 [B, M], index of the token that the item is part of
    weight: Tensor  # float [B, M], energy of a hit or momentum of a track, GeV
    features: Tensor  # float [B, M, F], columns of `ItemFeatures`
    direction: Tensor  # float [B, 3, M], unit vectors of the positions, as products want them
    places: Tensor  # float [B, M, F], columns of `ItemPlaces`
    sums: Tensor  # float [B, M, F], columns of `ItemSums`

    @property
    def is_track(self) -> Tensor:
        """Which items are tracks, bool [B, M]."""
        return ItemFeatures.of(self.features).is_track[..., 0] > 0.5


class Tables(NamedTuple):
    """An encoded source as the decoder reads it: the tokens of all events in one table, their items in another."""

    tokens: Tokens  # [B * S, ...], with indices into the items
    items: Items  # [B * M, ...], with indices into the tokens
    states: Tensor  # float [B * S, W]
    hidden: Tensor  # float [B * M, hidden]
    n_tokens: int = -1  # S, or -1 in a graph that is exported
    n_items: int = -1  # M
    padded: bool = True  # whether the masks have to be read


class EncodedSource(NamedTuple):
    """The encoded source of a batch."""

    tokens: Tokens
    items: Items
    states: Tensor  # float [B, S, W]
    hidden: Tensor  # float [B, M, hidden], from `AssignmentLogits.items`

    def in_tables(self, token: Tensor) -> Tensor:
        """Indices into B * S of tokens int64 [B, ...] of each event."""
        first = torch.arange(len(token), device=token.device) * self.states.shape[1]
        return token + first.view(-1, *[1] * (token.ndim - 1))

    def tables(self) -> Tables:
        """Tables of all tokens and of all items."""
        first_item = torch.arange(len(self.states), device=self.states.device)[:, None] * self.items.mask.shape[1]
        tokens = self.tokens._replace(item=self.tokens.item + first_item)
        items = self.items._replace(token=self.in_tables(self.items.token))
        source = self._replace(tokens=tokens, items=items)
        flat: EncodedSource = change_tensors(lambda part: part.flatten(0, 1), source)
        # Not flat: `cosines` multiplies them event by event.
        items = flat.items._replace(direction=items.direction)
        return Tables(flat.tokens, items, *flat[2:], n_tokens=tokens.mask.shape[1], n_items=self.items.mask.shape[1])

    def on_tokens(self, values: Tensor) -> Tensor:
        """Energy of the fractions of items on each token, float [B, T, M] to [B, T, S], GeV."""
        index = self.items.token[:, None].expand(-1, values.shape[1], -1)
        on_tokens = values.new_zeros(*values.shape[:2], self.states.shape[1])
        return on_tokens.scatter_add(2, index, values * self.items.weight[:, None])

    def assigned(self, values: Tensor) -> Tensor:
        """Energy-weighted mean over each token's items (of tracks: the value itself), float [B, T, M] to [B, T, S]."""
        return self.on_tokens(values) / self.tokens.energy.clamp(min=1e-9)[:, None]


def cosines(unit: Tensor, direction: Tensor) -> Tensor:
    """Cosines double [B, T, M] between unit vectors [B, T, 3] and [B, 3, M]."""
    # Which items are within an angle must not depend on the rounding of the products; autocast leaves double alone.
    return unit.double() @ direction.double()


def gather(values: Tensor, index: Tensor) -> Tensor:
    """`values` [B, S, ...] at `index` int64 [B, T], along the second axis: [B, T, ...]."""
    if len(values) == 1:
        return values[0].index_select(0, index[0])[None]
    # One index along one axis: with several indices it takes several times as long on a CPU.
    begin = torch.arange(values.shape[0], device=values.device)[:, None] * values.shape[1]
    rows = values.flatten(0, 1).index_select(0, (begin + index).flatten())
    return rows.view(*index.shape, *values.shape[2:])


def make_tokens_and_items(batch: Batch, *, n_subdetectors: int) -> tuple[Tokens, Items]:
    """Tokens and items of the readout of a batch; ValueError if the batch has no readout."""
    readout = batch.readout
    if readout is None:
        raise ValueError("readout: the batch has none; batches are made with the model's tokeniser (data.use)")
    n_tracks = readout.track_mask.shape[1]
    size, n_hit_tokens = batch.hits.mask.shape
    energy = readout.energy * readout.mask  # [B, N]
    token_energy = energy.new_zeros(size, n_hit_tokens).scatter_add(1, readout.token, energy)
    moment = energy.new_zeros(size, n_hit_tokens, 3).scatter_add(
        1, readout.token[..., None].expand(-1, -1, 3), energy[..., None] * readout.position
    )
    hit_position = moment / token_energy.clamp(min=1e-9)[..., None]  # [B, S_h, 3]

    momentum = torch.linalg.vector_norm(readout.track_momentum, dim=-1)  # [B, K]
    track_position = torch.where(readout.entry_unknown, UNKNOWN_ENTRY * readout.track_direction, readout.track_position)
    position = torch.cat([hit_position, track_position], dim=1)
    unit = normalise(position)
    x, y, z = unit.unbind(-1)
    # Near the beam a small step is a large azimuth: the unit of the arc must not vanish.
    arc = (ARC_UNIT * torch.hypot(x, y).clamp(min=MIN_RHO))[..., None]
    charge = functional.pad(readout.track_charge, (n_hit_tokens, 0))[..., None]
    track_momentum = functional.pad(readout.track_momentum, (0, 0, n_hit_tokens, 0))
    is_track = torch.cat([torch.zeros_like(batch.hits.mask), readout.track_mask], dim=1)
    track_token = n_hit_tokens + torch.arange(n_tracks, device=energy.device).expand(size, -1)
    item_token = torch.cat([readout.token, track_token], dim=1)
    frames = TokenFrames(
        place=ItemPlaces(position, unit, _polar_angle(unit)).table(),
        axis=torch.cat([unit[:, :n_hit_tokens], readout.track_direction], dim=1),
        azimuth=torch.stack([-y, x, torch.zeros_like(z)], dim=-1) / arc,
    )
    tracks = TokenTracks(
        unit=normalise(track_momentum),
        momentum=torch.linalg.vector_norm(track_momentum, dim=-1, keepdim=True),
        charge=charge.sign(),
        is_track=is_track[..., None].to(unit.dtype),
    )
    item_mask = torch.cat([readout.mask, readout.track_mask], dim=1)
    item_order = torch.ones_like(item_token).cumsum(1) - 1
    token = torch.where(item_mask, item_token, is_track.shape[1])  # padding behind all tokens
    # One column more takes what padding scatters, and is then cut off.
    no_item = functional.pad(torch.zeros_like(is_track, dtype=torch.int64), (0, 1))
    tokens = Tokens(
        mask=torch.cat([batch.hits.mask, readout.track_mask], dim=1),
        energy=torch.cat([token_energy, momentum], dim=1),
        is_track=is_track,
        frames=frames.table(),
        tracks=tracks.table(),
        item=no_item.scatter(1, token, item_order)[:, :-1],
        track=track_token,
    )

    item_position = torch.cat([readout.position, track_position], dim=1)
    item_unit = normalise(item_position)
    measured = torch.cat([energy, momentum], dim=1)  # [B, M]
    of_track = torch.cat([torch.zeros_like(energy), torch.ones_like(momentum)], dim=1)[..., None]
    layer = functional.pad(readout.layer.float(), (0, n_tracks))[..., None] / 30.0
    subdetector = functional.one_hot(readout.subdetector.clamp(0, n_subdetectors - 1), n_subdetectors).float()
    subdetector = functional.pad(subdetector, (0, 0, 0, n_tracks))
    sums = ItemSums(
        by_fraction=FractionSums(
            energy=functional.pad(energy, (0, n_tracks))[..., None],
            track_energy=measured[..., None] * of_track,
            n_hits=1.0 - of_track,
            momentum=gather(track_momentum, item_token),  # of other tokens than tracks 0
            tracks=torch.cat([of_track, gather(charge, item_token) * of_track], dim=-1),
        ).table(),
        position=item_position,
        by_subdetector=torch.cat([subdetector, layer * subdetector], dim=-1),
    )
    items = Items(
        mask=item_mask,
        token=item_token,
        weight=measured,
        features=ItemFeatures((measured + 1e-4).log()[..., None], layer, of_track, subdetector).table(),
        direction=item_unit.transpose(1, 2).contiguous(),
        places=ItemPlaces(item_position, item_unit, _polar_angle(item_unit)).table(),
        sums=sums.table(),
    )
    return tokens, items


def _polar_angle(unit: Tensor) -> Tensor:
    """Polar angles of unit vectors [..., 3], float [..., 2], see `ItemPlaces`."""
    x, y, z = unit.double().unbind(-1)
    # By atan2, as the cosine alone does not resolve small angles to the beam.
    theta = torch.atan2(torch.hypot(x, y), z) / THETA_UNIT
    rounded = theta.to(unit.dtype)
    return torch.stack([rounded, (theta - rounded).to(unit.dtype)], dim=-1)
