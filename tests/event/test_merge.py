import dataclasses

import awkward as ak
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event import merge as module
from pflow.event.events import Events, concatenate
from pflow.event.merge import Merge, merge_hits, overlay
from pflow.event.schema import make_hits, make_links, make_tracker_hits
from pflow.event.truth import RULES, select_targets
from pflow.io.open import read_events
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
    with pytest.raises(ConfigError, match=r"merge\.depth cuts cells by the depth of hits, which is not given"):
        merge_hits(events, Merge(ecal_mm=20.0, hcal_mm=90.0, depth=8.0))


def test_cells_keep_energy_and_barycentre_and_hits_within_their_size(events):
    """No farther from the barycentre than the diagonal of a cell, which in a barrel grows with the radius."""
    merged, cells = merge_hits(events, COARSE)
    np.testing.assert_allclose(weighted(merged), weighted(events.hits), rtol=1e-12, atol=1e-9)
    assert ak.num(cells).tolist() == ak.num(events.hits).tolist()
    for i in range(len(events)):
        cell_of = ak.to_numpy(cells[i])
        energy = ak.to_numpy(events.hits.energy[i]).astype(np.float64)
        np.testing.assert_allclose(np.bincount(cell_of, energy), merged.energy[i], rtol=1e-12)
        assert merged.subdetector[i][cell_of].tolist() == events.hits.subdetector[i].tolist()
    merged, cell_of = merge_hits(events, Merge(ecal_mm=20.0, hcal_mm=60.0))
    position = merged.position[cell_of]
    distance = np.sqrt(sum((events.hits.position[key] - position[key]) ** 2 for key in "xyz"))
    ecal = events.hits.subdetector <= ECAL_ENDCAP
    assert ak.max(distance[ecal]) < 20.0 * np.hypot(1.0, 1980.0 / 1805.0) + 1.0
    assert ak.max(distance[~ecal]) < 60.0 * np.hypot(1.0, 3350.0 / 2060.0) + 1.0


def test_subdetectors_endcaps_and_layers_also_unknown_ones_stay_apart():
    events = one_event(
        x=1900.0,
        z=[2420.0, -2420.0, 2420.0, 5.0, 5.0, 5.0],
        subdetector=[ECAL_ENDCAP, ECAL_ENDCAP, ECAL_ENDCAP, ECAL_BARREL, ECAL_BARREL, HCAL_BARREL],
        layer=[0, 0, 3, 0, 3, 0],
    )
    assert len(merge_hits(events, COARSE)[0][0]) == 6
    assert len(merge_hits(one_event(layer=[0, -1]), COARSE)[0][0]) == 2  # one is unknown
    # Steps of 20 mm: 1821 and 1839 mm are the 92nd, 1841 mm the next; so are 2421, 2439 and 2441 mm.
    barrel = one_event(x=[1821.0, 1839.0, 1841.0], subdetector=ECAL_BARREL)
    endcap = one_event(x=900.0, z=[-2421.0, -2439.0, -2441.0], subdetector=ECAL_ENDCAP)
    for events in (barrel, endcap):
        first, second, third = merge_hits(events, COARSE)[1][0]
        assert first == second
        assert third != first


def test_cells_have_no_seam_in_phi_and_numbers_that_do_not_overflow():
    """Cells of a nanometre: three numbers of 42 bits in all, and more hits than their key would have room for."""
    x, y = 1810 * np.cos(np.pi - 1e-4), 1810 * np.sin(np.pi - 1e-4)
    events = one_event(x=x, y=[y, -y], layer=0)
    # An odd number of cells has one across phi = pi: 2 pi 1805 mm / 11341 mm is 1, a single cell around the axis.
    around = Merge(ecal_mm=2 * np.pi * 1805.0, hcal_mm=60.0)
    assert len(merge_hits(events, around)[0][0]) == 1
    rng = np.random.default_rng(2)
    position = rng.uniform(-2e3, 2e3, (3, 200))
    events = one_event(**dict(zip("xyz", position, strict=True)), subdetector=ECAL_ENDCAP)
    twice = dataclasses.replace(events, hits=ak.concatenate([events.hits, events.hits], axis=1))
    merged, _ = merge_hits(twice, Merge(ecal_mm=1e-6, hcal_mm=1e-6))
    assert merged.energy.tolist() == [[2.0] * 200]


def test_muon_systems_stay_and_cells_may_have_no_energy_or_hits():
    cld = load_detector("cld")
    muon = [calorimeter.kind for calorimeter in cld.calorimeters].index("muon")
    events = one_event(detector=cld, energy=[1.0, 2.0], x=4500.0, subdetector=muon)
    assert merge_hits(events, Merge(ecal_mm=1e4, hcal_mm=1e4))[0].energy.tolist() == [[1.0, 2.0]]
    events = one_event(energy=0.0, x=[1810.0, 1812.0], z=[2.0, 4.0], time=[np.nan, 8.0])
    (hit,) = merge_hits(events, Merge(ecal_mm=20.0, hcal_mm=60.0))[0][0]
    assert (hit.energy, hit.position.x, hit.position.z, hit.time) == (0.0, 1811.0, 3.0, 8.0)
    nothing = Events(detector=ILD, hits=make_hits(energy=[[], []], x=[[], []], y=[[], []], z=[[], []]))
    merged, cell_of = merge_hits(nothing, COARSE)
    assert merged.energy.tolist() == cell_of.tolist() == [[], []]
    assert len(merge_hits(nothing[:0], COARSE)[0]) == 0


@pytest.fixture(scope="module")
def two(make_event, make_reco) -> Events:
    """A photon of 10 GeV with three cells, and a pi+ with a daughter, a track and two cells.

    They share a cell: 3 GeV of the photon, and 1 GeV of the pion (three quarters) and its daughter.
    """
    photon = make_event([(22, 10.0)], [(4.0, {0: 1}), (3.0, {0: 1}, 5.0), (3.0, {0: 1}, 10.0)], path="hand.root")
    pion_cells = [(2.0, {0: 1}, 50.0), (1.0, {0: 0.75, 1: 0.25}, 5.0)]
    events = concatenate([photon, make_event([(211, 5.0), (11, 0.5, 0, 0)], pion_cells, [(0, 5.0)], path="hand.root")])
    columns = {"time": np.float32([6.0, 6.5, 6.6, 6.1, 6.2]), "layer": np.int32([0, 1, 2, 0, 1])}
    return dataclasses.replace(
        events,
        **{"entry": [4, 9], "event": [40, 90], "flags": [1, 4]},
        hits=jagged.replaced(events.hits, columns),
        tracker_hits=make_tracker_hits(x=[[17.0], [17.0, 30.0]], y=[[0.0], [0.0, 0.0]], z=[[0.0], [0.0, 0.0]]),
        tracker_hit_links=make_links(source=[[0], [0, 1]], particle=[[0], [0, 1]]),
        reference=make_reco([4, 9]).particles,
        reference_name="Pandora",
    ).validate()


@pytest.fixture(scope="module")
def joined(two) -> Events:
    return overlay(two, [2]).validate()


@pytest.fixture(scope="module")
def real(sample_dir) -> Events:
    return read_events(sample_dir / "multi_test_small.root", entry_stop=12)


def test_a_shared_cell_sums_energies_and_has_the_earlier_time(joined, make_event):
    assert joined.hits.energy.tolist() == [[4.0, 4.0, 3.0, 2.0]]
    assert joined.hits.position.y.tolist() == [[0.0, 5.0, 10.0, 50.0]]
    assert joined.hits.time.tolist() == np.float32([[6.0, 6.2, 6.6, 6.1]]).tolist()
    assert joined.hits.layer.tolist() == [[0, 1, 2, 0]]
    links = {(link.source, link.particle): link.weight for link in joined.hit_links[0]}
    assert links == {(0, 0): 1.0, (1, 0): 0.75, (2, 0): 1.0, (3, 1): 1.0, (1, 1): 0.1875, (1, 2): 0.0625}
    nothing = make_event([(22, 1.0)], [(0.0, {0: 1.0})])
    assert overlay(concatenate([nothing, nothing]), [2]).hit_links.weight.tolist() == [[0.5, 0.5]]


def test_other_parts_are_concatenated_with_shifted_indices(joined):
    assert (joined.entry.tolist(), joined.event.tolist(), joined.flags.tolist()) == ([4], [40], [1 | 4])
    assert (joined.reference, joined.reference_name) == (None, "")
    assert joined.truth.pdg.tolist() == [[22, 211, 11]]
    assert joined.truth.parent.tolist() == [[-1, -1, 1]]
    assert joined.tracks.momentum.px.tolist() == [[5.0]]
    assert joined.track_links.particle.tolist() == [[1]]
    assert joined.tracker_hits.position.x.tolist() == [[17.0, 17.0, 30.0]]
    assert joined.tracker_hit_links.source.tolist() == [[0, 1, 2]]
    assert joined.tracker_hit_links.particle.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(("ecal", "hcal", "n_hits"), [(2.0, 13.0, (4, 1)), (2.5, 15.0, (5, 2))])
def test_a_shared_cell_is_at_the_barycentre_within_tolerance(two, ecal, hcal, n_hits):
    moved = two.hits.position.y + ak.Array([[0.0] * 3, [0.0, ecal]])
    near = overlay(dataclasses.replace(two, hits=ak.with_field(two.hits, moved, ("position", "y"))), [2])
    columns = {"energy": [[1.0], [1.0]], "x": [[2100.0], [2100.0]], "y": [[0.0], [hcal]], "z": [[0.0], [0.0]]}
    events = Events(detector=ILD, hits=make_hits(**columns, subdetector=[[2], [2]]))
    assert (*ak.num(near.hits), *ak.num(overlay(events, [2]).hits)) == n_hits
    if n_hits[0] == 4:
        assert near.hits.position.y[0, 1] == 5.5  # (3 x 5 + 1 x 7) / 4


def test_cells_agree_with_a_search_over_all_pairs_of_hits():
    generator = np.random.default_rng(1)
    counts = generator.integers(20, 60, size=6)
    position = generator.uniform(-12.0, 12.0, (counts.sum(), 3)).astype(np.float32)
    event, (layer, part) = np.repeat(np.arange(6), counts), generator.integers(0, 2, (2, counts.sum()))
    columns = {"energy": np.ones(len(layer)), **dict(zip("xyz", position.T, strict=True)), "layer": layer}
    columns["subdetector"] = part
    hits = make_hits(**{name: ak.unflatten(values, counts) for name, values in columns.items()})
    joined = overlay(Events(detector=ILD, hits=hits), [3, 1, 2])

    near = np.linalg.norm(position[:, np.newaxis].astype(float) - position, axis=-1) <= 2.4
    near &= (layer[:, np.newaxis] == layer) & (part[:, np.newaxis] == part) & (event[:, np.newaxis] != event)
    group = np.array([0, 0, 0, 1, 2, 2])[event]
    n_cells, cell = connected_components(near & (group[:, np.newaxis] == group), directed=False)
    assert n_cells < len(layer)
    assert ak.num(joined.hits).tolist() == [len(np.unique(cell[group == k])) for k in range(3)]
    assert sorted(ak.flatten(joined.hits.energy)) == sorted(np.bincount(cell))


def test_groups_keep_energies_and_do_not_depend_on_each_other(real, particle_energies):
    """Events joined with themselves share all cells."""
    together = overlay(real[:6], [2, 3, 1])
    alone = overlay(real[2:5], [3])
    for name, part in alone.parts():
        assert str(part.tolist()) == str(getattr(together, name)[1:2].tolist()), name
    n = len(real)
    joined = overlay(real[np.repeat(np.arange(n), 2)], n * [2]).validate()
    assert ak.num(joined.hits).tolist() == ak.num(real.hits).tolist()
    np.testing.assert_allclose(ak.sum(joined.hits.energy, axis=1), 2 * ak.sum(real.hits.energy, axis=1), rtol=1e-6)
    weights = ak.to_numpy(ak.flatten(joined.hit_links.weight)).astype(float)
    assert weights.sum() == pytest.approx(ak.sum(ak.num(joined.hits)), rel=1e-6)
    expected = ak.concatenate(2 * [particle_energies(real)], axis=1)
    np.testing.assert_allclose(ak.flatten(particle_energies(joined)), ak.flatten(expected), rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_joined_events_have_the_same_targets(real, rule, monkeypatch):
    monkeypatch.setattr(module, "ECAL_TOLERANCE", 1e-6)
    monkeypatch.setattr(module, "HCAL_TOLERANCE", 1e-6)
    apart = overlay(real[:6], [2, 2, 2])
    assert int(ak.sum(ak.num(apart.hits))) == int(ak.sum(ak.num(real[:6].hits)))
    targets = select_targets(apart, rule=rule).particles
    expected = select_targets(real[:6], rule=rule).particles
    assert ak.flatten(targets.energy).tolist() == ak.flatten(expected.energy).tolist()
    assert ak.flatten(targets.hit_energy).tolist() == pytest.approx(ak.flatten(expected.hit_energy).tolist(), rel=1e-6)


@pytest.mark.parametrize("sizes", [[1], [2, 0], [3, -1], [2, 1]])
def test_sizes_of_groups_that_do_not_fit_are_refused(two, sizes):
    with pytest.raises(ConfigError, match="sizes of groups must be at least 1 and sum to the number of events, 2"):
        overlay(two, sizes)
