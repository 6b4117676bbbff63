import math

import torch

from pflow.model.pointing import PointingNetworkConfig
from pflow.model.pointing.decoder import PAIR_FEATURES, AssignmentLogits, PairList, candidates
from pflow.model.pointing.network import delta_features

SIZES = PointingNetworkConfig(width=12, hidden_width=8)


def at_angles(*angles):
    """Hit positions 2 m away at some angles from x, in the x-y plane."""
    return [[2000 * math.cos(angle), 2000 * math.sin(angle), 0.0] for angle in angles]


def test_candidates_are_within_the_cone_of_the_seed_and_not_assigned(by_hand, source_of):
    """Hits at 0.1, 0.29, 0.31 and pi from the seed."""
    batch = by_hand(energy=[1.0] * 5, position=at_angles(0, 0.1, -0.29, 0.31, math.pi))
    for unassigned, expected in (([1.0] * 5, [0, 1, 2]), ([1.0, 0.02, 0.005, 1.0, 1.0], [0, 1])):
        near = candidates(source_of(batch).tables(), torch.tensor([[0]]), torch.tensor([[unassigned]]))
        assert near.nonzero()[:, 2].tolist() == expected


def features_of(source, seed):
    """Of both items relative to the seed."""
    logits, pairs = AssignmentLogits(SIZES, n_subdetectors=2), PairList.where(torch.ones(1, 1, 2) > 0)
    return torch.cat(list(logits._features(seed, source.tables(), pairs))).t()


def test_geometry_by_hand(by_hand, source_of):
    """From a seed at (2000, 0, 0) to a hit at (2030, 40, 0): 30 mm along the axis and 40 mm across."""
    source = source_of(by_hand(energy=[1.0, 1.0], position=[[2000, 0, 0], [2030, 40, 0]]))
    features = features_of(source, torch.tensor([0]))
    angle = 2 * math.sin(0.5 * math.atan2(40, 2030))  # the chord
    arc = math.asinh(40 / math.hypot(2030, 40) / 0.01)
    expected = [
        *(math.log1p(4.0), math.exp(-4.0), math.exp(-0.8), 0.1, math.exp(-0.6)),
        *(math.log(angle + 1e-3) / 2, math.exp(-angle / 0.02), 0.0),
        *(0.0, 1.0, arc, arc),
    ]
    assert features.shape == (2, len(PAIR_FEATURES))
    torch.testing.assert_close(features[1], torch.tensor(expected), rtol=1e-4, atol=1e-4)
    at_seed = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, math.log(1e-3) / 2, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    torch.testing.assert_close(features[0], at_seed)


def test_differences_in_angle_by_hand(by_hand, source_of):
    """From a seed at polar angle 1.2 and azimuth 0.5 to a hit 4 mrad further in the first, 20 mrad in the second."""
    angles = torch.tensor([[1.2, 0.5], [1.204, 0.52]], dtype=torch.float64)
    (sin, cos) = (angles.sin(), angles.cos())
    unit = torch.stack([sin[:, 0] * cos[:, 1], sin[:, 0] * sin[:, 1], cos[:, 0]], dim=-1)
    source = source_of(by_hand(energy=[1.0, 1.0], position=(2000 * unit).tolist()))
    arc, same = math.sin(1.204) * math.sin(0.02), math.exp(-4 / 3)
    expected = [math.asinh(4 / 3), same, math.asinh(arc / 0.01), same * math.asinh(arc / 0.01)]
    features = features_of(source, torch.tensor([0]))[:, 8:]
    for delta in (delta_features(unit[:1].float(), unit.float()), features):
        torch.testing.assert_close(delta[1], torch.tensor(expected), rtol=1e-3, atol=2e-4)
        torch.testing.assert_close(delta[0], torch.tensor([0.0, 1.0, 0.0, 0.0]), rtol=1e-4, atol=1e-4)


def test_an_items_assigned_fraction_changes_its_own_logits_only(batch, source_of):
    torch.manual_seed(0)
    source = source_of(batch, torch.randn(len(batch), batch.hits.mask.shape[1] + batch.tracks.mask.shape[1], 12))
    tables, seed = source.tables(), torch.tensor([[0, 1], [1, 0], [0, 5], [3, 2]])
    pairs = PairList.where(candidates(tables, source.in_tables(seed), torch.ones(1, 1, 1)))
    logits = AssignmentLogits(SIZES, n_subdetectors=2)
    hidden, query, seed = logits.items(source.states, source.items), torch.randn(8, 12), source.in_tables(seed)
    known = torch.zeros(1, len(pairs.item))
    before = logits(query, seed.flatten(), tables, hidden.flatten(0, 1), known, pairs)
    chosen = len(before) // 2
    known[0, chosen] = 0.8
    after = logits(query, seed.flatten(), tables, hidden.flatten(0, 1), known, pairs)
    assert (after != before).nonzero().flatten().tolist() == [chosen]
