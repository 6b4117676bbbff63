import dataclasses

import awkward as ak
import numpy as np

from pflow.event.events import Events
from pflow.event.merge import Merge, merge_hits
from pflow.event.schema import make_hits
from pflow.physics.detector import load_detector

ILD = load_detector("ild_g4")
COARSE = Merge(ecal_mm=20.0, hcal_mm=60.0, layers=3)
ECAL_BARREL, ECAL_ENDCAP, HCAL_BARREL = 0, 1, 2


def one_event(*, detector=ILD, **columns) -> Events:
    """Hits of 1 GeV at the ECAL, but for these columns: a number is of all of them."""
    columns = {"energy": 1.0, "x": 1810.0, "y": 1.0, "z": 1.0, **columns}
    hits = zip(columns, np.broadcast_arrays(*columns.values()), strict=True)
    return Events(detector=detector, hits=make_hits(**{name: [values.tolist()] for name, values in hits}))


def weighted(hits: ak.Array) -> np.ndarray:
    """Energy and energy times position, summed in each event: float64 [event, 4]."""
    energy = ak.values_astype(hits.energy, np.float64)
    columns = [ak.sum(energy, axis=1)] + [ak.sum(energy * hits.position[key], axis=1) for key in "xyz"]
    return np.stack([ak.to_numpy(column) for column in columns], axis=1)


def rows(hits: ak.Array) -> np.ndarray:
    flat = ak.flatten(hits, axis=1)
    columns = [flat.energy, *(flat.position[key] for key in "xyz"), flat.time, flat.subdetector, flat.layer]
    table = np.stack([ak.to_numpy(column).astype(np.float64) for column in columns], axis=1)
    return table[np.lexsort(np.round(table, 6).T)]


def test_two_cells_in_a_coarse_one_by_hand():
    # 20 mm in z: 101 and 113 mm share cell 5; phi differs by 3 mm, layers 3 and 5 are the second group of three.
    events = one_event(
        energy=[1.0, 3.0, 2.0],
        **{"x": [1810.0, 1820.0, 1810.0], "y": [3.0, 6.0, 3.0], "z": [101.0, 113.0, 121.0]},
        **{"time": [7.0, 6.5, 6.0], "subdetector": ECAL_BARREL, "layer": [3, 5, 3]},
    )
    hits, cell_of = merge_hits(events, COARSE)
    first, second = hits[0]
    assert first.energy == 4.0
    assert first.position.tolist() == {"x": 1817.5, "y": 5.25, "z": 110.0}
    assert (first.time, first.layer, first.subdetector) == (6.5, 3, ECAL_BARREL)
    assert (second.energy, second.position.z) == (2.0, 121.0)
    assert cell_of.tolist() == [[0, 0, 1]]


def test_cells_keep_energy_and_barycentre_and_know_their_hits(events):
    merged, cells = merge_hits(events, COARSE)
    np.testing.assert_allclose(weighted(merged), weighted(events.hits), rtol=1e-12, atol=1e-9)
    assert ak.num(cells).tolist() == ak.num(events.hits).tolist()
    for i in range(len(events)):
        cell_of = ak.to_numpy(cells[i])
        energy = ak.to_numpy(events.hits.energy[i]).astype(np.float64)
        np.testing.assert_allclose(np.bincount(cell_of, energy), merged.energy[i], rtol=1e-12)
        assert merged.subdetector[i][cell_of].tolist() == events.hits.subdetector[i].tolist()


def test_hits_of_a_cell_are_within_its_size(events):
    """No farther from the barycentre than the diagonal of a cell, which in a barrel grows with the radius."""
    merged, cell_of = merge_hits(events, Merge(ecal_mm=20.0, hcal_mm=60.0))
    position = merged.position[cell_of]
    distance = np.sqrt(sum((events.hits.position[key] - position[key]) ** 2 for key in "xyz"))
    ecal = events.hits.subdetector <= ECAL_ENDCAP
    assert ak.max(distance[ecal]) < 20.0 * np.hypot(1.0, 1980.0 / 1805.0) + 1.0
    assert ak.max(distance[~ecal]) < 60.0 * np.hypot(1.0, 3350.0 / 2060.0) + 1.0


def test_the_order_of_the_hits_does_not_change_the_cells(events):
    events = events[:3]
    rng = np.random.default_rng(1)
    order = ak.Array([rng.permutation(n).tolist() for n in ak.num(events.hits)])
    permuted, new = merge_hits(dataclasses.replace(events, hits=events.hits[order], hit_links=None), COARSE)
    plain, cell_of = merge_hits(events, COARSE)
    np.testing.assert_allclose(rows(permuted), rows(plain), rtol=1e-12, atol=1e-9)
    assert new.tolist() == cell_of[order].tolist()


def test_subdetectors_layers_and_the_two_endcaps_stay_apart():
    events = one_event(
        x=1900.0,
        z=[2420.0, -2420.0, 2420.0, 5.0, 5.0, 5.0],
        subdetector=[ECAL_ENDCAP, ECAL_ENDCAP, ECAL_ENDCAP, ECAL_BARREL, ECAL_BARREL, HCAL_BARREL],
        layer=[0, 0, 3, 0, 3, 0],
    )
    assert len(merge_hits(events, COARSE)[0][0]) == 6
    assert len(merge_hits(one_event(layer=[0, -1]), COARSE)[0][0]) == 2  # one is unknown


def test_a_layer_that_is_not_known_is_told_from_the_depth():
    # Steps of 20 mm: 1821 and 1839 mm are the 92nd, 1841 mm the next; so are 2421, 2439 and 2441 mm.
    barrel = one_event(x=[1821.0, 1839.0, 1841.0], subdetector=ECAL_BARREL)
    endcap = one_event(x=900.0, z=[-2421.0, -2439.0, -2441.0], subdetector=ECAL_ENDCAP)
    for events in (barrel, endcap):
        first, second, third = merge_hits(events, COARSE)[1][0]
        assert first == second
        assert third != first


def test_phi_has_no_seam():
    x, y = 1810 * np.cos(np.pi - 1e-4), 1810 * np.sin(np.pi - 1e-4)
    events = one_event(x=x, y=[y, -y], layer=0)
    # An odd number of cells has one across phi = pi: 2 pi 1805 mm / 11341 mm is 1, a single cell around the axis.
    around = Merge(ecal_mm=2 * np.pi * 1805.0, hcal_mm=60.0)
    assert len(merge_hits(events, around)[0][0]) == 1


def test_other_kinds_are_left_as_they_are():
    cld = load_detector("cld")
    muon = [calorimeter.kind for calorimeter in cld.calorimeters].index("muon")
    events = one_event(detector=cld, energy=[1.0, 2.0], x=4500.0, subdetector=muon)
    assert merge_hits(events, Merge(ecal_mm=1e4, hcal_mm=1e4))[0].energy.tolist() == [[1.0, 2.0]]


def test_cells_of_no_energy_and_of_no_hits():
    events = one_event(energy=0.0, x=[1810.0, 1812.0], z=[2.0, 4.0], time=[np.nan, 8.0])
    (hit,) = merge_hits(events, Merge(ecal_mm=20.0, hcal_mm=60.0))[0][0]
    assert (hit.energy, hit.position.x, hit.position.z, hit.time) == (0.0, 1811.0, 3.0, 8.0)
    nothing = Events(detector=ILD, hits=make_hits(energy=[[], []], x=[[], []], y=[[], []], z=[[], []]))
    merged, cell_of = merge_hits(nothing, COARSE)
    assert merged.energy.tolist() == cell_of.tolist() == [[], []]
    assert len(merge_hits(nothing[:0], COARSE)[0]) == 0


def test_far_numbers_of_cells_do_not_overflow():
    """Cells of a nanometre: three numbers of 42 bits in all, and more hits than their key would have room for."""
    rng = np.random.default_rng(2)
    position = rng.uniform(-2e3, 2e3, (3, 200))
    events = one_event(**dict(zip("xyz", position, strict=True)), subdetector=ECAL_ENDCAP)
    twice = dataclasses.replace(events, hits=ak.concatenate([events.hits, events.hits], axis=1))
    merged, _ = merge_hits(twice, Merge(ecal_mm=1e-6, hcal_mm=1e-6))
    assert merged.energy.tolist() == [[2.0] * 200]
