import copy
import pickle
import subprocess
import sys

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.jagged import assigned_particle
from pflow.event.schema import make_links


def test_missing_values_are_refused():
    with pytest.raises(ValueError, match=r"objects that are None: choose with hits\[\.\.\.\]"):
        jagged.flat(ak.Array([[1.0, None]]))
    with pytest.raises(ValueError, match="events that are None"):  # their number was -2**63
        jagged.count(ak.Array([[1.0], None]))


def particles() -> ak.Array:
    """Two events: a pion of 50 GeV and a photon; nothing."""
    columns = {
        "pdg": [211, 22],
        "energy": [50, 3],
        "rest_mass": [0.13957, 0],
        "px": [30, 0],
        "py": [40, 0],
        "pz": [0, 3],
    }
    floats = {name: np.array(values, dtype=np.float32) for name, values in columns.items()}
    return jagged.records(floats, np.array([2, 0]))


def test_particles_are_four_momenta_whose_sums_have_a_mass():
    array = particles()
    assert array.pt.to_list() == [[50, 0], []]
    assert array.eta[0, 0] == 0
    assert array.mass[0].to_list() == pytest.approx([0.13957, 0.0])  # E^2 - p^2 is 0 in float32
    assert array[0, 0].mass == pytest.approx(0.13957)
    assert array[0, 1].E == array[0, 1].energy == 3
    assert array.momentum[0, 0].to_list() == {"px": 30, "py": 40, "pz": 0}
    assert array.momentum.p.to_list() == [[50, 3], []]
    pair = array[0, 0] + array[0, 1]
    assert (pair.energy, pair.px, pair.pz) == (53, 30, 3)
    assert pair.mass == pytest.approx(np.sqrt(53**2 - 30**2 - 40**2 - 9), rel=1e-6)
    assert (array + array).mass[0, 1] == 0
    assert ak.sum(array, axis=1).energy.to_list() == [53, 0]


def test_pickled_particles_are_the_same_in_another_process(tmp_path):
    expected = particles()
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(expected))
    code = "import pickle; a = pickle.load(open('a.pickle', 'rb')); print([a.pt.to_list(), (a + a).mass.to_list()])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{[expected.pt.to_list(), (expected + expected).mass.to_list()]}\n"


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, lambda array: pickle.loads(pickle.dumps(array))])
@pytest.mark.parametrize(
    "part",
    [particles(), particles()[0, 1], particles().momentum, ak.concatenate([particles(), particles()])],
    ids=["all", "1", "momentum", "joined"],
)
def test_copies_are_equal(copy_of, part):
    copied = copy_of(part)
    assert copied.to_list() == part.to_list()
    assert ak.to_list(copied.pt) == ak.to_list(part.pt)
    assert type(copied) is type(part)


def test_arrays_from_a_parquet_file_are_four_vectors_with_their_mass(tmp_path):
    ak.to_parquet(particles(), tmp_path / "a.parquet")
    array = ak.from_parquet(tmp_path / "a.parquet")
    assert array.mass.to_list() == particles().mass.to_list()
    assert array.momentum.p.to_list() == particles().momentum.p.to_list()


def test_the_largest_weight_wins_and_no_link_is_minus_one():
    links = make_links(
        source=ak.Array([[1, 1, 1, 3], [], [0]]),
        particle=ak.Array([[4, 5, 6, 0], [], [2]]),
        weight=ak.Array([[0.2, 0.5, 0.3, 1.0], [], [1.0]]),
    )
    sources = ak.Array([[0.0, 0.0, 0.0, 0.0], [0.0], [0.0, 0.0]])
    assert assigned_particle(links, sources).to_list() == [[-1, 5, -1, 0], [-1], [2, -1]]


def test_blocks_hold_all_pairs_of_each_event_and_no_more_at_once(monkeypatch):
    monkeypatch.setattr(jagged, "MAX_PAIRS", 6)
    bounds = np.array([0, 5, 5, 6, 8]), np.array([0, 3, 4, 4, 11]), np.array([0, 1, 1, 1, 1])
    found = list(jagged.blocks(*bounds))
    assert found[:3] == [(slice(*rows), slice(0, 3), slice(0, 1)) for rows in ((0, 2), (2, 4), (4, 5))]
    assert found[3:] == [
        (slice(*rows), slice(*of), slice(1, 1)) for rows, of in (((5, 6), (4, 4)), ((6, 7), (4, 11)), ((7, 8), (4, 11)))
    ]
