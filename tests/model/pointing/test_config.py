from __future__ import annotations

import dataclasses

import torch

from pflow.model.pointing.config import PointingDecodingConfig


def test_the_largest_number_of_particles_follows_tracks_and_hits():
    decoding = PointingDecodingConfig(max_particles=6, hits_per_particle=4)
    item_mask = torch.zeros(3, 43, dtype=torch.bool)  # 40 hits and 3 tracks
    item_mask[0] = True
    item_mask[1, :8] = True
    item_mask[2, :31] = item_mask[2, 40:42] = True
    assert decoding.limits(item_mask, 40).tolist() == [13, 6, 9]
    assert decoding.limited(5).limits(item_mask, 40).tolist() == [5, 5, 5]
    assert dataclasses.replace(decoding, hits_per_particle=0).limits(item_mask, 40).tolist() == [6, 6, 6]
