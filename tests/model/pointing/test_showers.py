from __future__ import annotations

import math

import pytest
import torch

from pflow.model.pointing.pairs import PairList
from pflow.model.pointing.showers import LOG_WEIGHT, Showers, ramp_down


def test_energies_weights_and_barycentres_by_hand(by_hand, source_of):
    """Two particles share the second of three hits."""
    position = torch.tensor([[1900.0, 0.0, 0.0], [1900.0, 10.0, 0.0], [0.0, 1900.0, 30.0]])
    source = source_of(by_hand(energy=[3.0, 2.0, 1.0], position=position.tolist(), token=[0, 1, 2]))
    share = torch.tensor([[[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]], dtype=torch.float64)
    pairs = PairList.where(share > 0)
    showers = Showers.of(pairs.values(share), pairs, source.tables().item_sums)
    assert showers.position.dtype == torch.float64
    assert torch.equal(showers.position, position.double()[[0, 1, 1, 2]].t())
    assert showers.energy.tolist() == [[4.0], [2.0]]
    assert showers.fraction.tolist() == [[0.75, 0.25, 0.5, 0.5]]
    weight = [LOG_WEIGHT + math.log(fraction) for fraction in (0.75, 0.25, 0.5, 0.5)]
    assert showers.weight[0].tolist() == pytest.approx(weight)
    assert showers.norm[:, 0].tolist() == pytest.approx([weight[0] + weight[1], 2 * weight[2]])
    assert showers.linear_centre.tolist() == [[1900.0, 2.5, 0.0], [950.0, 955.0, 15.0]]
    centre = weight[0] * position[0] + weight[1] * position[1]
    assert showers.centre[0].tolist() == pytest.approx(centre.tolist())


def test_a_falling_step_is_linear_before_its_end():
    assert ramp_down(torch.tensor([0.0, 1.0, 1.5, 2.0, 3.0]), 2.0, width=1.0).tolist() == [1.0, 1.0, 0.5, 0.0, 0.0]
