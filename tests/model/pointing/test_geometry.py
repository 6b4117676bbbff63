import dataclasses
import math
from typing import Annotated

import pytest
import torch
from torch import Tensor

from pflow.model.api import tangent_basis
from pflow.model.pointing.geometry import UNKNOWN_ENTRY, Columns, ItemPlaces, TokenFrames, TokenTracks, cosines


@pytest.fixture
def source(by_hand, source_of):
    """Two hits of 1 and 3 GeV in token 1, one of 2 GeV in token 0, and a track of 5 GeV."""
    return source_of(
        by_hand(
            energy=[1.0, 2.0, 3.0],
            position=[[2000.0, 0.0, 0.0], [0.0, 0.0, 2500.0], [2000.0, 400.0, 40.0]],
            token=[1, 0, 1],
            momentum=[[3.0, 4.0, 0.0]],
            charge=[-1.0],
        )
    )


def test_tokens_are_sums_of_hits_and_tracks(source):
    tokens = source.tokens
    assert tokens.is_track.tolist() == [[False, False, True]]
    assert tokens.energy.tolist() == [[2.0, 4.0, 5.0]]
    tracks = TokenTracks.of(tokens.tracks[0])
    torch.testing.assert_close(tracks.unit, torch.tensor([[0, 0, 0], [0, 0, 0], [0.6, 0.8, 0]]))
    assert torch.cat([tracks.momentum, tracks.charge, tracks.is_track], dim=1).tolist() == [[0, 0, 0]] * 2 + [
        [5, -1, 1]
    ]
    expected = torch.tensor([[0.0, 0.0, 2500.0], [2000.0, 300.0, 30.0], [1110.0, 1480.0, 0.0]])
    torch.testing.assert_close(ItemPlaces.of(TokenFrames.of(tokens.frames[0]).place).position, expected)
    assert source.items.token.gather(1, tokens.item).tolist() == [[0, 1, 2]]


def test_a_track_of_unknown_position_is_far_along_its_direction(by_hand, source_of):
    batch = by_hand(momentum=[[0.0, 0.0, -2.0]], charge=[1.0])
    unknown = dataclasses.replace(batch.readout, track_position=torch.zeros(1, 1, 3))
    frames = source_of(dataclasses.replace(batch, readout=unknown)).tokens.frames
    assert frames[..., :3].tolist() == [[[0.0, 0.0, -UNKNOWN_ENTRY]]]


def test_means_on_tokens_and_cosines_also_under_autocast(source):
    values = torch.tensor([[[0.2, 0.7, 0.6, 0.9]]])
    torch.testing.assert_close(source.assigned(values), torch.tensor([[[0.7, (0.2 + 3 * 0.6) / 4, 0.9]]]))
    expected = source.tokens.unit[0, 1] @ source.items.direction[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        towards = cosines(source.tokens.unit[:, 1:2], source.items.direction)
    assert towards.dtype == torch.float64
    torch.testing.assert_close(towards[0, 0].float(), expected)


def test_a_batch_without_readout_is_an_error(batch, source_of):
    with pytest.raises(ValueError, match="readout: the batch has none"):
        source_of(dataclasses.replace(batch, readout=None))


@dataclasses.dataclass
class Track(Columns):
    position: Annotated[Tensor, 3]
    layers: Annotated[Tensor, 0]
    charge: Annotated[Tensor, 1]


def test_groups_of_columns_have_their_widths_and_one_has_the_rest():
    table = torch.arange(14.0).view(2, 7)
    track = Track.of(table)
    parts = [part[1].tolist() for part in (track.position, track.layers, track.charge)]
    assert parts == [[7, 8, 9], [10, 11, 12], [13]]
    assert track.table().equal(table)
    assert Track.of(table.t(), dim=0).layers.tolist() == [[3, 10], [4, 11], [5, 12]]


@pytest.mark.parametrize("angles", [(0.7, -2.1), (0.0, 0.0), (math.pi, 0.0)])
def test_the_tangent_basis_is_that_of_spherical_coordinates(angles):
    """On the z axis it is x and y."""
    theta, phi = torch.tensor(angles, dtype=torch.float64)
    direction = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()]).round(decimals=15)
    e_theta, e_phi = tangent_basis(direction)
    torch.testing.assert_close(e_theta, torch.stack([theta.cos() * phi.cos(), theta.cos() * phi.sin(), -theta.sin()]))
    torch.testing.assert_close(e_phi, torch.stack([-phi.sin(), phi.cos(), 0.0 * phi]))
