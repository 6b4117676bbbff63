"""Flat columns of particles."""

import awkward as ak
import numpy as np
import pytest

from pflow.errors import InputError
from pflow.metrics.table import ParticleTable

EVENTS = [[(22, 2.0, 90, 0), (211, 4.0, 30, 90)], [], [(130, 3.0, 180, 0)]]


def test_counts_and_events(make_table):
    table = make_table(EVENTS)
    assert table.counts.tolist() == [2, 0, 1]
    assert table.event.tolist() == [0, 0, 2]
    assert table.offsets.tolist() == [0, 2, 2, 3]
    assert len(table) == 3


def test_falling_energy_within_each_event_and_ties_in_order(make_table):
    table = make_table([[(22, 1.0, 90, 0), (22, 5.0, 90, 0), (11, 5.0, 90, 0)], [(22, 9.0, 90, 0)]])
    assert table.by_falling_energy().tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize(("field", "value"), [("energy", np.nan), ("charge", np.inf)])
def test_numbers_that_are_not_finite_are_refused(make_records, field, value):
    records = make_records(EVENTS)
    bad = ak.unflatten(np.array([1.0, 1.0, value]), [2, 0, 1])
    with pytest.raises(InputError, match=f"entry 2, '{field}': particles: expected finite numbers"):
        ParticleTable.from_records(ak.with_field(records, bad, field))
