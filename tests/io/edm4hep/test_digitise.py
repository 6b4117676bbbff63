from __future__ import annotations

import numpy as np
import pytest

from pflow.io.edm4hep.digitise import digitise, time_after_flight
from pflow.io.edm4hep.simulated import Contributions
from pflow.physics.detector import Calorimeter

FLIGHT = 10.0
"""ns, of a hit at 3 m."""


def contributions(hit, energy, time, n_hits):
    none = np.zeros(len(hit), dtype=np.int64)
    return Contributions(
        counts=np.array([n_hits]),
        hit=np.array(hit),
        energy=np.array(energy),
        time=np.array(time) + FLIGHT,
        event=none,
        particle_id=none,
        particle=none,
    )


def calorimeter(**settings):
    return Calorimeter(name="ecal", kind="ecal", region="barrel", **settings)


MADE_BY = contributions([0, 0, 0, 1, 2], [1.0, 2.0, 4.0, 3.0, 0.5], [0.0, 9.0, 50.0, 20.0, 1.0], 3)
HITS = {"energy": np.array([7.0, 3.0, 0.5]), "position": np.full((3, 3), np.sqrt(3) * 1000), "layer": np.arange(3)}


def test_without_settings_all_hits_keep_their_energy_and_earliest_time():
    found = digitise(calorimeter(), **HITS, contributions=MADE_BY)
    assert found.kept.all()
    assert found.energy.tolist() == [7.0, 3.0, 0.5]
    np.testing.assert_allclose(found.time, [FLIGHT, FLIGHT + 20.0, FLIGHT + 1.0])


def test_energy_in_the_window_counts_and_times_are_after_flight():
    found = digitise(calorimeter(sim_time_window=(-1.0, 10.0), sim_threshold=0.0), **HITS, contributions=MADE_BY)
    assert found.energy.tolist() == [3.0, 0.0, 0.5]
    assert found.kept.tolist() == [True, False, True]
    assert found.counted.tolist() == [True, True, False, False, True]
    np.testing.assert_allclose(found.time, [0.1, np.nan, 1.1])


def test_the_threshold_is_on_visible_energy_in_the_window():
    found = digitise(
        calorimeter(sim_time_window=(-1.0, 10.0), sim_threshold=0.5, sim_scale=40.0), **HITS, contributions=MADE_BY
    )
    assert found.kept.tolist() == [True, False, False]
    assert found.energy[0] == 120.0


def test_deep_layers_have_their_own_scale():
    found = digitise(calorimeter(sim_scale=2.0, sim_deep_scale=(1, 4.0)), **HITS, contributions=MADE_BY)
    assert found.energy.tolist() == [14.0, 12.0, 2.0]


def test_a_readout_without_times_gives_zero():
    found = digitise(calorimeter(sim_measures_time=False), **HITS, contributions=MADE_BY)
    assert found.time.tolist() == [0.0, 0.0, 0.0]


def test_without_contributions_there_is_no_window_and_no_time():
    found = digitise(calorimeter(sim_time_window=(-1.0, 10.0), sim_threshold=0.5), **HITS, contributions=None)
    assert found.kept.tolist() == [True, True, False]
    assert found.energy.tolist() == [7.0, 3.0, 0.5]
    assert np.isnan(found.time).all()
    assert found.counted is None


def test_a_prompt_hit_has_a_tenth_of_a_nanosecond():
    position = np.array([[0.0, 0.0, -3000.0]])
    assert time_after_flight(np.array([FLIGHT]), position) == pytest.approx(0.1)
