import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged


def test_missing_values_are_refused():
    with pytest.raises(ValueError, match="None"):
        jagged.flat(ak.Array([[1.0, None]]))


def particles() -> ak.Array:
    """Two events: a pion of 50 GeV and a photon; nothing."""
    columns = {
        "pdg": [211, 22],
        "energy": [50.0, 3.0],
        "mass": [0.13957, 0.0],
        "px": [30.0, 0],
        "py": [40, 0],
        "pz": [0, 3],
    }
    floats = {name: np.array(values, dtype=np.float32) for name, values in columns.items()}
    return jagged.records(floats, np.array([2, 0]))


def test_particles_are_four_momenta_with_their_own_mass():
    found = particles()
    assert found.pt.to_list() == [[50, 0], []]
    assert found.eta[0, 0] == 0
    assert found.mass[0].to_list() == pytest.approx([0.13957, 0.0])  # E^2 - p^2 is 0 in float32
    assert found[0, 0].mass == pytest.approx(0.13957)
    assert found[0, 1].E == found[0, 1].energy == 3
    assert found.momentum.px.to_list() == [[30, 0], []]
    assert found.momentum[0, 0].to_list() == {"px": 30, "py": 40, "pz": 0}
    assert found.momentum.p.to_list() == [[50, 3], []]


def test_the_sum_of_two_particles_has_the_mass_of_both():
    found = particles()
    pair = found[0, 0] + found[0, 1]
    assert (pair.energy, pair.px, pair.pz) == (53, 30, 3)
    assert pair.mass == pytest.approx(np.sqrt(53**2 - 30**2 - 40**2 - 9), rel=1e-6)
    assert (found + found).mass[0, 1] == 0
    assert ak.sum(found, axis=1).energy.to_list() == [53, 0]
