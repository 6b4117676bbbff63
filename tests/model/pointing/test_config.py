from __future__ import annotations

import dataclasses

import torch

from pflow.model.pointing.config import PointingDecodingConfig


def test_the_largest_number_of_particles_follows_tracks_and_hits():
    decoding = PointingDecodingConfig(max_particles=6, hits_per_particle=4)
    n_hits, n_tracks = torch.tensor([40, 8, 31]), torch.tensor([3, 0, 2])
    assert decoding.limits(n_hits, n_tracks).tolist() == [13, 6, 9]
    assert decoding.limited(5).limits(n_hits, n_tracks).tolist() == [5, 5, 5]
    assert dataclasses.replace(decoding, hits_per_particle=0).limits(n_hits, n_tracks).tolist() == [6, 6, 6]
