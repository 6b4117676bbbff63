import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.build import make_links
from pflow.event.links import assigned_particle, shared_sources, sum_by_pair


def test_the_largest_weight_wins_and_a_source_without_links_has_minus_one():
    links = make_links(
        source=ak.Array([[1, 1, 1, 3], [], [0]]),
        particle=ak.Array([[4, 5, 6, 0], [], [2]]),
        weight=ak.Array([[0.2, 0.5, 0.3, 1.0], [], [1.0]]),
    )
    sources = ak.Array([[0.0, 0.0, 0.0, 0.0], [0.0], [0.0, 0.0]])
    assert assigned_particle(links, sources).to_list() == [[-1, 5, -1, 0], [-1], [2, -1]]


def test_of_equal_shares_the_particle_of_the_lowest_index_wins():
    links = make_links(source=ak.Array([[0, 0, 0]]), particle=ak.Array([[7, 3, 5]]))
    assert assigned_particle(links, ak.Array([[0.0]])).to_list() == [[3]]


def test_particles_share_the_energy_of_their_common_sources():
    ours = (np.array([0, 1, 1]), np.array([0, 0, 2]), np.array([1.0, 0.5, 0.5]))
    theirs = (np.array([0, 0, 1]), np.array([4, 1, 4]), np.array([0.25, 0.75, 1.0]))
    particle, other, shared = shared_sources(ours, theirs, np.array([8.0, 2.0, 100.0]))
    assert list(zip(particle, other, shared, strict=True)) == [(0, 1, 6.0), (0, 4, 2.0 + 1.0), (2, 4, 1.0)]


@pytest.mark.parametrize("n_links", [0, 1, 2, 300])
def test_sums_by_pair_do_not_depend_on_the_order(n_links):
    rng = np.random.default_rng(n_links)
    source, particle = rng.integers(0, 150, n_links), rng.integers(-1, 4, n_links)
    weight = rng.integers(0, 8, n_links) / 8  # sums are exact
    order = np.argsort(source, kind="stable")
    sums = sum_by_pair(source, particle, weight)
    for found, same in zip(sums, sum_by_pair(source[order], particle[order], weight[order]), strict=True):
        np.testing.assert_array_equal(found, same)
    expected: dict[tuple[int, int], float] = {}
    for key, value in zip(zip(source.tolist(), particle.tolist(), strict=True), weight.tolist(), strict=True):
        expected[key] = expected.get(key, 0.0) + value
    rows = zip(*(column.tolist() for column in sums), strict=True)
    assert [((a, b), w) for a, b, w in rows] == sorted(expected.items())


def test_shares_do_not_depend_on_the_order_of_the_links():
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 40, 50)
    source = rng.integers(0, 15, counts.sum()) - 1
    weight = rng.choice(
        [0.0, 1e-5, 0.3, 2.0, -1.0, np.nan, np.inf], len(source), p=[0.1, 0.2, 0.3, 0.3, 0.05, 0.03, 0.02]
    )
    event = jagged.event_index(counts)
    order = np.lexsort((source, event))  # keeps the order of the links of a source

    def fractions(order: np.ndarray) -> np.ndarray:
        columns = (jagged.unflatten(values[order], counts) for values in (source, source, weight))
        links = make_links(**dict(zip(("source", "particle", "weight"), columns, strict=True)))
        return jagged.flat(links.weight)

    np.testing.assert_array_equal(fractions(order), fractions(np.arange(len(source)))[order])


def test_a_source_with_one_link_has_a_share_of_1_whatever_its_weight():
    weight = [[0.0, 1e-30, 5.0, np.inf, -1.0]]
    links = make_links(source=ak.Array([[0, 1, 2, 3, 4]]), particle=ak.Array([[0] * 5]), weight=ak.Array(weight))
    np.testing.assert_array_equal(jagged.flat(links.weight), [1, 1, 1, np.nan, np.nan])
