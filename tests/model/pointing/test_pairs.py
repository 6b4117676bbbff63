import pytest
import torch

from pflow.model.pointing.pairs import PairList, PairsOfOne

B, T, S, M = 3, 2, 5, 7


@pytest.fixture
def drawn():
    """Which pairs there are, and a number for each."""
    generator = torch.Generator().manual_seed(0)
    selected = torch.rand(B, T, M, generator=generator) < 0.5
    return PairList.where(selected), selected, torch.rand(int(selected.sum()), generator=generator)


def test_look_ups_are_those_of_indices(drawn):
    pairs, selected, _ = drawn
    event, particle, item = selected.nonzero(as_tuple=True)
    of_items, of_particles, of_both = torch.rand(B, M, 3), torch.rand(B, T, 3), torch.rand(B, T, M)
    assert torch.equal(pairs.values(of_both), of_both[event, particle, item])
    assert torch.equal(pairs.of_items(of_items.flatten(0, 1)), of_items[event, item])
    assert torch.equal(pairs.of_particles(of_particles.flatten(0, 1)), of_particles[event, particle])
    assert torch.equal(pairs.item_rows(of_items.flatten(0, 1)), of_items[event, item].t())
    assert torch.equal(pairs.particle_rows(of_particles.flatten(0, 1)), of_particles[event, particle].t())


def test_sums_and_dense_values(drawn):
    pairs, selected, values = drawn
    dense = torch.zeros(B, T, M).masked_scatter(selected, values)
    assert torch.equal(pairs.dense(values), dense)
    sums = pairs.sums(torch.stack([values, 2.0 * values]))
    torch.testing.assert_close(sums, dense.sum(-1).flatten()[:, None] * torch.tensor([1.0, 2.0]))
    assert torch.equal(pairs.any(values > 0.8), (dense > 0.8).any(-1).flatten())


def test_with_a_known_number_of_pairs_they_are_the_same(drawn):
    pairs, selected, _ = drawn
    for one, other in zip(PairList.where(selected, int(selected.sum())), pairs, strict=True):
        assert one == other if isinstance(one, tuple) else torch.equal(one, other)


def test_the_mean_state_is_that_of_the_items_tokens(drawn):
    pairs, _, weight = drawn
    states, token = torch.rand(B, S, 4), torch.randint(0, S, (B, M))
    in_tables = (token + S * torch.arange(B)[:, None]).flatten()
    found = pairs.mean_state(weight, pairs.of_items(in_tables), states.flatten(0, 1)).view(B, T, 4)
    dense = pairs.dense(weight)
    of_items = states.gather(1, token[..., None].expand(-1, -1, 4))
    torch.testing.assert_close(found, dense @ of_items / dense.sum(-1, keepdim=True))


def test_one_particle_has_the_same_in_both_layouts():
    selected, values = torch.rand(1, 1, M) < 0.6, torch.rand(M, 3)
    listed, one = PairList.where(selected), PairsOfOne(selected.flatten().nonzero().squeeze(1))
    weight, rows = torch.rand(len(one.item)), torch.rand(2, len(one.item))
    states, token, particle = torch.rand(S, 4), torch.randint(0, S, (M,)), torch.rand(1, 3)
    for layout in (listed, one):
        torch.testing.assert_close(layout.item_rows(values), listed.item_rows(values))
        torch.testing.assert_close(rows + layout.particle_rows(particle)[:2], rows + listed.particle_rows(particle)[:2])
        torch.testing.assert_close(layout.sums(rows), listed.sums(rows))
        assert torch.equal(layout.any(weight > 0.9), listed.any(weight > 0.9))
        mean = layout.mean_state(weight, layout.of_items(token), states)
        torch.testing.assert_close(mean, listed.mean_state(weight, listed.of_items(token), states))
