from __future__ import annotations

import pytest

from pflow.errors import InputError
from pflow.io.edm4hep.podio import Joined, open_podio
from pflow.io.edm4hep.sim_tracker_hits import count_layers

ENCODING = "system:4,layer:4"


@pytest.fixture
def tracker_content():
    """Two events of two and one particles: in the first, hits in layers 0, 0, 1, 1 and, in another collection, 0."""
    return {
        "Inner.cellID": [[0, 0, 16, 16], [16]],
        "Inner.quality": [[0, 0, 0, 1 << 30], [0]],
        "_Inner_particle.index": [[0, 0, 0, 1], [0]],
        "_Inner_particle.collectionID": [[15, 15, 15, 15], [15]],
        "Outer.cellID": [[0], []],
        "_Outer_particle.index": [[0], []],
        "_Outer_particle.collectionID": [[15], []],
    }


@pytest.fixture
def count(write):
    def count_content(content, layout="new", **encodings):
        file = open_podio(write(content, layout, encodings=encodings))
        try:
            return list(count_layers(file, ["Inner", "Outer"], Joined(["MCParticles"], [[2, 1]]), 0, 2))
        finally:
            file.close()

    return count_content


@pytest.mark.parametrize("layout", ["new", "old"])
def test_a_layer_counts_once_and_secondaries_do_not(count, tracker_content, layout):
    assert count(tracker_content, layout, Inner=ENCODING, Outer=ENCODING) == [3, 0, 1]


def test_without_an_encoding_every_hit_is_a_layer(count, tracker_content):
    assert count(tracker_content, Outer=ENCODING) == [4, 0, 1]


def test_references_elsewhere_are_left_out(count, tracker_content):
    tracker_content["_Inner_particle.index"] = [[0, 7, -2, 1], [0]]
    tracker_content["_Outer_particle.collectionID"] = [[99], []]
    assert count(tracker_content, Inner=ENCODING, Outer=ENCODING) == [1, 0, 1]


def test_hits_without_references_are_refused(count, tracker_content):
    less = {key: values for key, values in tracker_content.items() if not key.startswith("_Outer")}
    with pytest.raises(InputError, match="no references to particles") as caught:
        count(less, Inner=ENCODING)
    assert caught.value.field == "Outer"


def test_an_encoding_that_cannot_be_understood_names_its_collection(count, tracker_content):
    with pytest.raises(InputError, match="cell encoding") as caught:
        count(tracker_content, Inner="layer:x")
    assert caught.value.field == "Inner"
