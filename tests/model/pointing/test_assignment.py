from __future__ import annotations

import math

import pytest
import torch

from pflow.model.pointing.assignment import (
    N_DELTA_FEATURES,
    POSITION_FEATURES,
    AssignmentLogits,
    _relative_position,
    delta_theta_phi_features,
)
from pflow.model.pointing.geometry import make_scene
from pflow.model.pointing.pairs import Pairs, select_pairs
from pflow.model.pointing.seed import SeedPointer

ALL = torch.ones(1, 1, 1)
"""Is unassigned: of any items."""


def scene_of(batch):
    return make_scene(batch, n_subdetectors=2)


def at_angles(*angles):
    """Hit positions 2 m away at some angles from x, in the x-y plane."""
    return [[2000 * math.cos(angle), 2000 * math.sin(angle), 0.0] for angle in angles]


@pytest.fixture
def fan(by_hand):
    """A token at angle 0, and hits at 0.1, 0.29, 0.31 and pi from it."""
    return scene_of(by_hand(energy=[1.0] * 5, position=at_angles(0, 0.1, -0.29, 0.31, math.pi), token=range(5)))


def test_pairs_are_within_the_cone_of_the_seed_and_of_items_that_are_not_assigned(fan):
    for unassigned, expected in ((ALL, [0, 1, 2]), (torch.tensor([[[1.0, 0.02, 0.005, 1.0, 1.0]]]), [0, 1])):
        pairs = Pairs.where(
            select_pairs(fan, torch.tensor([[0]]), unassigned, torch.tensor([[True]]), min_cosine=math.cos(0.3))
        )
        assert pairs.item.tolist() == expected


def test_padding_has_no_pairs(batch):
    scene = scene_of(batch)
    mask = torch.tensor([[True, False]] * 4)
    pairs = Pairs.where(select_pairs(scene, torch.zeros(4, 2, dtype=torch.int64), ALL, mask, min_cosine=-1.1))
    assert set(pairs.particle.tolist()) == {0}
    assert scene.item_mask[pairs.event, pairs.item].all()
    assert len(pairs.item) == int(scene.item_mask.sum())


@pytest.fixture
def several(batch):
    """Pairs of two particles an event, and a number for each."""
    scene = scene_of(batch)
    seed = torch.tensor([[0, 1], [1, 0], [0, 5], [3, 2]])
    pairs = Pairs.where(select_pairs(scene, seed, ALL, torch.ones(4, 2, dtype=torch.bool), min_cosine=math.cos(0.6)))
    return scene, pairs, torch.rand(len(pairs.item), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n_particles", [2, 3])
def test_values_at_pairs_are_those_of_their_particles_and_items(several, n_particles):
    """Also where values are known for more particles than there are pairs of."""
    scene, pairs, _ = several
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(4, n_particles, scene.item_mask.shape[1], generator=generator)
    of_particles = torch.rand(4, 2, 3, generator=generator)
    assert torch.equal(pairs.pair_values(values), values[pairs.event, pairs.particle, pairs.item])
    assert torch.equal(pairs.item_values(scene.item_unit), scene.item_unit[pairs.event, pairs.item])
    assert torch.equal(pairs.particle_values(of_particles), of_particles[pairs.event, pairs.particle])
    assert torch.equal(
        pairs.flat_particle_values(of_particles.flatten(0, 1)), of_particles[pairs.event, pairs.particle]
    )
    assert torch.equal(pairs.item_rows(scene.item_unit), scene.item_unit[pairs.event, pairs.item].t())
    columns = of_particles.flatten(0, 1).t()
    assert torch.equal(pairs.particle_rows(columns), of_particles[pairs.event, pairs.particle].t())


def test_dense_values_and_sums_over_items_and_tokens(several):
    scene, pairs, values = several
    dense, on_tokens = torch.zeros(4, 2, scene.item_mask.shape[1]), torch.zeros(4, 2, scene.token_mask.shape[1])
    for b, t, m, value in zip(pairs.event, pairs.particle, pairs.item, values, strict=True):
        dense[b, t, m] = value
        on_tokens[b, t, scene.item_token[b, m]] += value
    assert torch.equal(pairs.dense(values, dense.shape), dense)
    torch.testing.assert_close(pairs.particle_sums(values, 8).view(4, 2), dense.sum(-1))
    sums = pairs.particle_row_sums(torch.stack([values, 2.0 * values]), 8)
    torch.testing.assert_close(sums.view(2, 4, 2), torch.stack([dense.sum(-1), 2.0 * dense.sum(-1)]))
    torch.testing.assert_close(pairs.token_sums(values, scene, (4, 2)), on_tokens)


def test_geometry_by_hand(by_hand):
    """From a seed at (2000, 0, 0) to a hit at (2030, 40, 0): 30 mm along the axis and 40 mm across."""
    scene = scene_of(by_hand(energy=[1.0, 1.0], position=[[2000, 0, 0], [2030, 40, 0]], token=[0, 1]))
    seed = torch.tensor([[0]])
    pairs = Pairs.where(select_pairs(scene, seed, ALL, torch.tensor([[True]]), min_cosine=0.9))
    found = _relative_position(scene, seed, pairs, delta_features=False).t()
    angle = 2 * math.sin(0.5 * math.atan2(40, 2030))  # the chord
    expected = [
        math.log1p(4.0),
        math.exp(-4.0),
        math.exp(-0.8),
        0.1,
        math.exp(-0.6),
        math.log(angle + 1e-3) / 2,
        math.exp(-angle / 0.02),
        0.0,
    ]
    assert found.shape == (2, len(POSITION_FEATURES))
    torch.testing.assert_close(found[1], torch.tensor(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0], torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, math.log(1e-3) / 2, 1.0, 1.0]))


def test_the_bend_by_hand(by_hand):
    """From a seed at polar angle 1.2 and azimuth 0.5 to a hit 4 mrad further in the first, 20 mrad in the second."""
    angles = torch.tensor([[1.2, 0.5], [1.204, 0.52]], dtype=torch.float64)
    (sin, cos) = (angles.sin(), angles.cos())
    unit = torch.stack([sin[:, 0] * cos[:, 1], sin[:, 0] * sin[:, 1], cos[:, 0]], dim=-1)
    found = delta_theta_phi_features(unit[:1].float(), unit.float())
    arc, same = math.sin(1.204) * math.sin(0.02), math.exp(-4 / 3)
    expected = [math.asinh(4 / 3), same, math.asinh(arc / 0.01), same * math.asinh(arc / 0.01)]
    assert found.shape == (2, N_DELTA_FEATURES)
    torch.testing.assert_close(found[1], torch.tensor(expected), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[0], torch.tensor([0.0, 1.0, 0.0, 0.0]), rtol=1e-4, atol=1e-4)


@pytest.fixture
def pointer():
    torch.manual_seed(0)
    pointer = SeedPointer(width=12, hidden_width=4)
    pointer.initialise()
    return pointer


@pytest.fixture
def asked(batch):
    """Scene, states of two positions, memory, and what is assigned."""
    generator = torch.Generator().manual_seed(1)
    scene = scene_of(batch)
    n_tokens = scene.token_mask.shape[1]
    assigned = torch.rand(4, 2, n_tokens, generator=generator)
    return (
        scene,
        torch.randn(4, 2, 12, generator=generator),
        torch.randn(4, n_tokens, 12, generator=generator),
        assigned,
    )


def test_a_projected_memory_gives_the_same_probabilities(pointer, asked):
    scene, state, memory, assigned = asked
    found = pointer(state, pointer.project(memory), scene, assigned)
    torch.testing.assert_close(found, pointer(state, memory, scene, assigned))


def test_probabilities_of_all_tokens_and_the_end_sum_to_one(pointer, asked):
    scene, state, memory, assigned = asked
    said = pointer(state, memory, scene, assigned).exp()
    torch.testing.assert_close(said.sum(-1), torch.ones(4, 2))
    assert not said[..., :-1].masked_select(~scene.token_mask[:, None]).any()


def test_the_pointers_logits_by_hand(pointer, asked):
    scene, state, memory, assigned = asked
    b, t = 1, 1
    with torch.no_grad():
        said = pointer(state, memory, scene, assigned)[b, t]
        queries, keys = pointer.state(state[b, t]).view(3, 4), pointer.token(memory[b]).view(-1, 3, 4)
        end = float(pointer.eos(state[b, t]))
    real = scene.token_mask[b].nonzero().flatten().tolist()
    assert len(real) < len(scene.token_mask[b])
    evidence = []
    for s in real:
        plain, taken, energetic = (
            float(queries[i] @ keys[s, i]) / 2.0 + offset for i, offset in enumerate((-3.0, -3.0, 0.5))
        )
        c = float(assigned[b, t, s])
        left = math.log(float(scene.token_energy[b, s]) * (1 - c) + 1e-3)
        evidence.append(plain + taken * c + energetic * left)
    expected = torch.tensor([*evidence, end]).log_softmax(-1)
    torch.testing.assert_close(said[[*real, -1]], expected, rtol=1e-4, atol=1e-4)


def test_without_tokens_the_end_is_certain(pointer, by_hand):
    scene = scene_of(by_hand())
    said = pointer(torch.randn(1, 1, 12), torch.zeros(1, 0, 12), scene, torch.zeros(1, 1, 0))
    assert said.exp().tolist() == [[[1.0]]]


def test_the_assigned_fraction_of_an_item_matters_to_its_own_logits_only(several, batch):
    torch.manual_seed(0)
    scene, pairs, _ = several
    logits = AssignmentLogits(width=12, hidden_width=8, n_subdetectors=2)
    items = logits.items(torch.randn(4, scene.token_mask.shape[1], 12), scene)
    query, seed = torch.randn(4, 2, 12), torch.tensor([[0, 1], [1, 0], [0, 5], [3, 2]])
    known = torch.zeros(len(pairs.item), 1)
    before = logits(query, items, scene, seed, known, pairs)
    chosen = len(before) // 2
    known[chosen] = 0.8
    after = logits(query, items, scene, seed, known, pairs)
    assert (after != before).nonzero().flatten().tolist() == [chosen]
