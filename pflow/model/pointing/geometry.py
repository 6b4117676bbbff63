"""Positions, energies and momenta of tokens, hits and tracks.

An item is what a particle can be assigned: a hit or a track. A token is one or more hits, or a track.

Letters: B batch, S source tokens (S_h of hits, then K of tracks), N hits, M = N + K items (hits, then tracks).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pflow.data.batch import Batch
from pflow.model.common.cache import Compaction

__all__ = [
    "BY_DEPOSIT",
    "BY_FRACTION",
    "DEPOSIT_ENERGY",
    "DEPOSIT_POSITION",
    "IS_TRACK",
    "ITEM_FEATURES",
    "LAYER",
    "Scene",
    "gather",
    "make_scene",
]

FAR = 2000.0
"""Distance from the vertex, along its momentum, of a track whose position at the calorimeter is not known, mm."""

ITEM_FEATURES = 3
"""Number of features of an item before those of its subdetector: log energy, layer, whether it is a track."""

LAYER, IS_TRACK = 1, 2
"""Columns of `Scene.item_features`."""

DEPOSIT_POSITION, DEPOSIT_ENERGY = slice(0, 3), 3
"""Columns of `Scene.item_deposit`."""

BY_FRACTION, BY_DEPOSIT = slice(0, 7), slice(7, None)
"""Columns of `Scene.item_sums`: those that are summed with the assigned fractions of the items; and those by
subdetector, which are summed with the items' fractions of the particle's deposit."""


class Scene(NamedTuple):
    """Tokens and items of a batch in space.

    Parameters
    ----------
    token_position, token_unit, token_axis : float [B, S, 3]
        Energy-weighted mean position of a token's hits, or where its track enters the calorimeter, mm; its unit vector;
        and the direction in which a shower goes from there: that of the position, or of the track's momentum.
    token_energy : float [B, S], energy of a token's hits, or momentum of its track, GeV
    token_is_track : bool [B, S]
    token_momentum : float [B, S, 3], momentum of a track at the vertex, GeV; 0 for hits
    token_charge : float [B, S], e; 0 for hits
    token_mask : bool [B, S], True = real token
    item_energy : float [B, M], GeV; 0 for tracks
    item_weight : float [B, M], square root of the energy of a hit or the momentum of a track, GeV^(1/2)
    item_position, item_unit : float [B, M, 3], mm and its unit vector
    item_token : int64 [B, M], index of the token that the item is part of
    item_features : float [B, M, F], see `ITEM_FEATURES`, and one of subdetectors
    item_mask : bool [B, M], True = real item
    n_hits : N
    token_geometry : float [B, S, 9], position, axis and unit vector of each token
    item_geometry : float [B, M, 7], position, unit vector and token of each item
    item_deposit : float [B, M, 4], position and energy of each item
    item_sums : float [B, M, 7 + 2 D]
        What is summed over a particle's items: momentum (3), its norm, charge, number of tracks and of hits; and for
        each of the D subdetectors whether the item is in it, then for each the item's layer if it is.
    """

    token_position: Tensor
    token_unit: Tensor
    token_axis: Tensor
    token_energy: Tensor
    token_is_track: Tensor
    token_momentum: Tensor
    token_charge: Tensor
    token_mask: Tensor
    item_energy: Tensor
    item_weight: Tensor
    item_position: Tensor
    item_unit: Tensor
    item_token: Tensor
    item_features: Tensor
    item_mask: Tensor
    n_hits: int
    token_geometry: Tensor
    item_geometry: Tensor
    item_deposit: Tensor
    item_sums: Tensor

    @classmethod
    def of(cls, **fields: Any) -> Scene:
        """From all other fields: those that join some of them are made once an event and not for each particle."""
        position, unit, token = fields["item_position"], fields["item_unit"], fields["item_token"]
        features = fields["item_features"]
        is_track = features[..., IS_TRACK : IS_TRACK + 1]
        subdetector = features[..., ITEM_FEATURES:]
        momentum = gather(fields["token_momentum"], token)  # of other tokens than tracks 0
        of_tracks = [
            momentum,
            torch.linalg.vector_norm(momentum, dim=-1, keepdim=True),
            gather(fields["token_charge"], token)[..., None] * is_track,
            is_track,
            1.0 - is_track,
        ]
        depth = features[..., LAYER : LAYER + 1] * subdetector
        return cls(
            **fields,
            token_geometry=torch.cat([fields[f"token_{name}"] for name in ("position", "axis", "unit")], dim=-1),
            # Indices of tokens are exact in single precision up to 2^24.
            item_geometry=torch.cat([position, unit, token[..., None].to(unit.dtype)], dim=-1),
            item_deposit=torch.cat([position, fields["item_energy"][..., None]], dim=-1),
            item_sums=torch.cat([*of_tracks, subdetector, depth], dim=-1),
        )

    def on_tokens(self, values: Tensor) -> Tensor:
        """Energy-weighted mean over each token's items (of tracks: the value itself), float [B, T, M] to [B, T, S]."""
        size, steps = values.shape[:2]
        index = self.item_token[:, None].expand(-1, steps, -1)
        weighted = values * (self.item_weight.square())[:, None]
        summed = values.new_zeros(size, steps, self.token_mask.shape[1]).scatter_add(2, index, weighted)
        return summed / self.token_energy.clamp(min=1e-9)[:, None]

    def cosines(self, token: Tensor) -> Tensor:
        """Cosines of the angles between tokens int64 [B, T] and all items as seen from the vertex, double [B, T, M]."""
        # Products in double precision: what is within an angle must not depend on their rounding.
        with torch.autocast(token.device.type, enabled=False):
            return gather(self.token_unit, token).double() @ self.item_unit.double().transpose(1, 2)

    def copy(self) -> Scene:
        """A copy that shares no storage."""
        tensors: dict[str, Any] = {name: part.clone() for name, part in self._asdict().items() if name != "n_hits"}
        return self._replace(**tensors)

    def events(self, rows: slice) -> Scene:
        """Some of the events, as views."""
        tensors: dict[str, Any] = {name: part[rows] for name, part in self._asdict().items() if name != "n_hits"}
        return self._replace(**tensors)

    def compact(self, compaction: Compaction) -> Scene:
        """The events that go on, moved in place."""
        tensors: dict[str, Any] = {
            name: compaction.apply(part.contiguous()) for name, part in self._asdict().items() if name != "n_hits"
        }
        return self._replace(**tensors)


def gather(values: Tensor, index: Tensor) -> Tensor:
    """`values` [B, S, ...] at `index` int64 [B, T], along the second axis: [B, T, ...]."""
    if len(values) == 1:
        return values[0].index_select(0, index[0])[None]
    # One index along one axis: with several indices it takes several times as long on a CPU.
    begin = torch.arange(values.shape[0], device=values.device)[:, None] * values.shape[1]
    found = values.flatten(0, 1).index_select(0, (begin + index).flatten())
    return found.view(*index.shape, *values.shape[2:])


def make_scene(batch: Batch, *, n_subdetectors: int) -> Scene:
    """Scene of the readout of a batch.

    Raises
    ------
    ValueError
        The batch has no readout, or one with other tracks than its source.
    """
    readout = batch.readout
    if readout is None:
        raise ValueError("readout: the batch has none; the tokeniser's configuration must ask for it")
    n_tracks = 0 if batch.tracks is None else batch.tracks.mask.shape[1]
    if readout.track_mask.shape[1] != n_tracks:
        raise ValueError(f"readout: {readout.track_mask.shape[1]} tracks where the source has {n_tracks}")
    size, n_hit_tokens = batch.hits.mask.shape
    energy = readout.energy * readout.mask  # [B, N]
    token_energy = energy.new_zeros(size, n_hit_tokens).scatter_add(1, readout.token, energy)
    moment = energy.new_zeros(size, n_hit_tokens, 3).scatter_add(
        1, readout.token[..., None].expand(-1, -1, 3), energy[..., None] * readout.position
    )
    hit_position = moment / token_energy.clamp(min=1e-9)[..., None]  # [B, S_h, 3]

    momentum = torch.linalg.vector_norm(readout.track_momentum, dim=-1)  # [B, K]
    unknown = (readout.track_position == 0).all(-1, keepdim=True)
    track_position = torch.where(unknown, FAR * readout.track_direction, readout.track_position)

    hit_unit = functional.normalize(hit_position, dim=-1)
    layer = torch.cat([readout.layer.float(), torch.zeros_like(momentum)], dim=1)
    measured = torch.cat([energy, momentum], dim=1)  # [B, M]
    is_track = torch.cat([torch.zeros_like(energy), torch.ones_like(momentum)], dim=1)
    subdetector = functional.one_hot(readout.subdetector.clamp(0, n_subdetectors - 1), n_subdetectors).float()
    features = torch.cat(
        [
            torch.stack([(measured + 1e-4).log(), layer / 30.0, is_track], dim=-1),
            functional.pad(subdetector, (0, 0, 0, momentum.shape[1])),
        ],
        dim=-1,
    )
    item_position = torch.cat([readout.position, track_position], dim=1)
    return Scene.of(
        token_position=torch.cat([hit_position, track_position], dim=1),
        token_unit=torch.cat([hit_unit, functional.normalize(track_position, dim=-1)], dim=1),
        token_axis=torch.cat([hit_unit, readout.track_direction], dim=1),
        token_energy=torch.cat([token_energy, momentum], dim=1),
        token_is_track=torch.cat([torch.zeros_like(batch.hits.mask), readout.track_mask], dim=1),
        token_momentum=functional.pad(readout.track_momentum, (0, 0, n_hit_tokens, 0)),
        token_charge=functional.pad(readout.track_charge, (n_hit_tokens, 0)),
        token_mask=torch.cat([batch.hits.mask, readout.track_mask], dim=1),
        item_energy=functional.pad(energy, (0, n_tracks)),
        item_weight=measured.sqrt(),
        item_position=item_position,
        item_unit=functional.normalize(item_position, dim=-1),
        item_token=torch.cat(
            [readout.token, n_hit_tokens + torch.arange(n_tracks, device=energy.device).expand(size, -1)], dim=1
        ),
        item_features=features,
        item_mask=torch.cat([readout.mask, readout.track_mask], dim=1),
        n_hits=energy.shape[1],
    )
