import awkward as ak
import numpy as np

from pflow.event import jagged
from pflow.event.jagged import assigned_particle
from pflow.event.schema import make_links


def test_the_largest_weight_wins_and_a_source_without_links_has_minus_one():
    links = make_links(
        source=ak.Array([[1, 1, 1, 3], [], [0]]),
        particle=ak.Array([[4, 5, 6, 0], [], [2]]),
        weight=ak.Array([[0.2, 0.5, 0.3, 1.0], [], [1.0]]),
    )
    sources = ak.Array([[0.0, 0.0, 0.0, 0.0], [0.0], [0.0, 0.0]])
    assert assigned_particle(links, sources).to_list() == [[-1, 5, -1, 0], [-1], [2, -1]]


def test_of_equal_weights_the_lowest_particle_wins():
    links = make_links(source=ak.Array([[0, 0, 0]]), particle=ak.Array([[7, 3, 5]]))
    assert assigned_particle(links, ak.Array([[0.0]])).to_list() == [[3]]


def test_weights_do_not_depend_on_the_order_of_the_links():
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


def test_a_single_link_has_weight_1():
    weight = [[0.0, 1e-30, 5.0, np.inf, -1.0]]
    links = make_links(source=ak.Array([[0, 1, 2, 3, 4]]), particle=ak.Array([[0] * 5]), weight=ak.Array(weight))
    np.testing.assert_array_equal(jagged.flat(links.weight), [1, 1, 1, np.nan, np.nan])
