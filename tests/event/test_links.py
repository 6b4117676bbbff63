from __future__ import annotations

import awkward as ak

from pflow.event.build import make_links
from pflow.event.links import largest_share


def test_the_largest_share_wins_and_nobody_is_minus_one() -> None:
    links = make_links(
        source=ak.Array([[1, 1, 1, 3], [], [0]]),
        particle=ak.Array([[4, 5, 6, 0], [], [2]]),
        weight=ak.Array([[0.2, 0.5, 0.3, 1.0], [], [1.0]]),
    )
    sources = ak.Array([[0.0, 0.0, 0.0, 0.0], [0.0], [0.0, 0.0]])
    assert largest_share(links, sources).to_list() == [[-1, 5, -1, 0], [-1], [2, -1]]


def test_of_equal_shares_the_first_link_wins() -> None:
    links = make_links(source=ak.Array([[0, 0, 0]]), particle=ak.Array([[7, 3, 5]]))
    assert largest_share(links, ak.Array([[0.0]])).to_list() == [[7]]


def test_no_links_at_all() -> None:
    links = make_links(source=ak.Array([[0]]), particle=ak.Array([[0]]))[:, :0]
    assert largest_share(links, ak.Array([[0.0, 0.0]])).to_list() == [[-1, -1]]
