from __future__ import annotations

import dataclasses

import pytest
import torch

from pflow.model.common.cache import Compaction
from pflow.model.pointing.geometry import FAR, gather, make_scene


def scene_of(batch):
    return make_scene(batch, n_subdetectors=2)


@pytest.fixture
def scene(by_hand):
    """Two hits of 1 and 3 GeV in token 1, one of 2 GeV in token 0, and a track of 5 GeV."""
    return scene_of(
        by_hand(
            energy=[1.0, 2.0, 3.0],
            position=[[2000.0, 0.0, 0.0], [0.0, 0.0, 2500.0], [2000.0, 400.0, 40.0]],
            token=[1, 0, 1],
            momentum=[[3.0, 4.0, 0.0]],
            charge=[-1.0],
        )
    )


def test_tokens_are_sums_of_hits_and_tracks_with_their_momentum_for_energy(scene):
    assert scene.token_is_track.tolist() == [[False, False, True]]
    assert scene.token_energy.tolist() == [[2.0, 4.0, 5.0]]
    assert scene.token_momentum.tolist() == [[[0, 0, 0], [0, 0, 0], [3, 4, 0]]]
    assert scene.token_charge.tolist() == [[0.0, 0.0, -1.0]]
    expected = torch.tensor([[[0.0, 0.0, 2500.0], [2000.0, 300.0, 30.0], [1110.0, 1480.0, 0.0]]])
    torch.testing.assert_close(scene.token_position, expected)


def test_items_are_hits_and_then_tracks(scene):
    assert scene.n_hits == 3
    assert scene.item_token.tolist() == [[1, 0, 1, 2]]
    assert scene.item_energy.tolist() == [[1, 2, 3, 0]]
    torch.testing.assert_close(scene.item_weight.square(), torch.tensor([[1.0, 2.0, 3.0, 5.0]]))


def test_directions_are_unit_vectors(scene):
    for unit in (scene.token_unit, scene.token_axis, scene.item_unit):
        torch.testing.assert_close(unit.norm(dim=-1), torch.ones(unit.shape[:2]))


def test_a_track_of_unknown_position_is_far_along_its_direction(by_hand):
    batch = by_hand(momentum=[[0.0, 0.0, -2.0]], charge=[1.0])
    unknown = dataclasses.replace(batch.readout, track_position=torch.zeros(1, 1, 3))
    position = scene_of(dataclasses.replace(batch, readout=unknown)).token_position
    assert position.tolist() == [[[0.0, 0.0, -FAR]]]


def test_on_tokens_is_the_energy_weighted_mean(scene):
    values = torch.tensor([[[0.2, 0.7, 0.6, 0.9]]])
    torch.testing.assert_close(scene.on_tokens(values), torch.tensor([[[0.7, (0.2 + 3 * 0.6) / 4, 0.9]]]))


def test_cosines_between_a_token_and_all_items_also_under_autocast(scene):
    expected = (scene.token_unit[0, 1] * scene.item_unit[0]).sum(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        towards = scene.cosines(torch.tensor([[1]]))
    assert towards.dtype == torch.float64
    torch.testing.assert_close(towards[0, 0].float(), expected)


def test_padding_has_no_energy_and_is_no_token(batch, events, collate):
    padded = scene_of(collate(events, extra=2))
    assert int(padded.item_mask.sum()) == int(scene_of(batch).item_mask.sum())
    assert not padded.item_energy[~padded.item_mask].any()
    assert not padded.item_weight[~padded.item_mask].any()
    assert not padded.token_energy[~padded.token_mask].any()


def test_compaction_keeps_the_events_that_go_on(batch):
    stays = torch.tensor([False, True, False, True])
    compact = scene_of(batch).compact(Compaction.of(stays))
    for name, whole in scene_of(batch)._asdict().items():
        if name == "n_hits":
            assert compact.n_hits == whole
        else:  # the last event moved to the place of the first
            assert torch.equal(getattr(compact, name), whole[[3, 1]]), name


def test_gather_takes_along_the_second_axis():
    values = torch.arange(12.0).view(2, 3, 2)
    assert gather(values, torch.tensor([[2], [0]])).tolist() == [[[4.0, 5.0]], [[6.0, 7.0]]]


@pytest.mark.parametrize(
    ("part", "message"), [("readout", "the batch has none"), ("tracks", "2 tracks where the source has 0")]
)
def test_a_batch_without_readout_or_with_other_tracks_is_an_error(batch, part, message):
    with pytest.raises(ValueError, match=f"readout: {message}"):
        scene_of(dataclasses.replace(batch, **{part: None}))
