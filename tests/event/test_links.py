from __future__ import annotations

import awkward as ak

from pflow.event.build import make_links
from pflow.event.links import assigned_particle


def test_the_largest_share_wins_and_a_source_without_links_has_minus_one():
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


def test_no_links_at_all():
    links = make_links(source=ak.Array([[0]]), particle=ak.Array([[0]]))[:, :0]
    assert assigned_particle(links, ak.Array([[0.0, 0.0]])).to_list() == [[-1, -1]]
