import dataclasses
from typing import Annotated

import pytest
import torch
from torch import Tensor

from pflow.model.common.columns import Columns


@dataclasses.dataclass
class Track(Columns):
    position: Annotated[Tensor, 3]
    layers: Annotated[Tensor, 0]
    charge: Annotated[Tensor, 1]


def test_groups_of_columns_have_their_widths_and_one_has_the_rest():
    table = torch.arange(14.0).view(2, 7)
    track = Track.of(table)
    assert (track.position[1].tolist(), track.layers[1].tolist(), track.charge[1].tolist()) == (
        [7, 8, 9],
        [10, 11, 12],
        [13],
    )
    assert track.table().equal(table)
    assert Track.of(table.t(), dim=0).layers.tolist() == [[3, 10], [4, 11], [5, 12]]


def test_a_group_of_another_width_is_named():
    with pytest.raises(ValueError, match=r"Track\.charge: 2 columns, expected 1"):
        Track(torch.zeros(5, 3), torch.zeros(5, 0), torch.zeros(5, 2)).table()
