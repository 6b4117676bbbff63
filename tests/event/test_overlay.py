import dataclasses

import awkward as ak
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event import merge as module
from pflow.event.events import Events, concatenate
from pflow.event.merge import overlay
from pflow.event.schema import make_hits, make_links, make_tracker_hits
from pflow.event.truth import RULES, select_targets
from pflow.io.open import read_events
from pflow.physics.detector import load_detector

ILD = load_detector("ild_g4")


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


@pytest.mark.parametrize(("field", "step"), [("subdetector", 1), ("layer", 1), (("position", "y"), 2.5)])
def test_a_cell_is_shared_only_at_the_same_place_of_the_same_layer(two, field, step):
    hits = ak.with_field(two.hits, two.hits[field] + ak.Array([[0, 0, 0], [0, step]]), field)
    assert ak.num(overlay(dataclasses.replace(two, hits=hits), [2]).hits).tolist() == [5]


def test_a_shared_cell_is_at_the_barycentre_within_tolerance(two, monkeypatch):
    moved = two.hits.position.y + ak.Array([[0.0] * 3, [0.0, 2.0]])
    near = dataclasses.replace(two, hits=ak.with_field(two.hits, moved, ("position", "y")))
    assert overlay(near, [2]).hits.position.y[0, 1] == 5.5  # (3 x 5 + 1 x 7) / 4
    columns = {"energy": [[1.0], [1.0]], "x": [[2100.0], [2100.0]], "y": [[0.0], [10.0]], "z": [[0.0], [0.0]]}
    events = Events(detector=ILD, hits=make_hits(**columns, subdetector=[[2], [2]]))
    assert ak.num(overlay(events, [2]).hits).tolist() == [1]
    monkeypatch.setattr(module, "ECAL_TOLERANCE", 1.9)
    monkeypatch.setattr(module, "HCAL_TOLERANCE", 9.0)
    assert ak.num(overlay(near, [2]).hits).tolist() == [5]
    assert ak.num(overlay(events, [2]).hits).tolist() == [2]


def test_cells_agree_with_a_search_over_all_pairs_of_hits():
    generator = np.random.default_rng(1)
    counts = generator.integers(20, 60, size=6)
    position = generator.uniform(-15.0, 15.0, (counts.sum(), 3)).astype(np.float32)
    event, layer = np.repeat(np.arange(6), counts), generator.integers(0, 2, counts.sum())
    columns = {"energy": np.ones(len(layer)), **dict(zip("xyz", position.T, strict=True)), "layer": layer}
    hits = make_hits(**{name: ak.unflatten(values, counts) for name, values in columns.items()})
    joined = overlay(Events(detector=ILD, hits=hits), [3, 1, 2])

    near = np.linalg.norm(position[:, np.newaxis].astype(float) - position, axis=-1) <= 2.4
    near &= (layer[:, np.newaxis] == layer) & (event[:, np.newaxis] != event)
    group = np.array([0, 0, 0, 1, 2, 2])[event]
    n_cells, cell = connected_components(near & (group[:, np.newaxis] == group), directed=False)
    assert n_cells < len(layer)
    assert ak.num(joined.hits).tolist() == [len(np.unique(cell[group == k])) for k in range(3)]
    assert sorted(ak.flatten(joined.hits.energy)) == sorted(np.bincount(cell))


def test_groups_do_not_depend_on_each_other(real):
    together = overlay(real[:6], [2, 3, 1])
    alone = overlay(real[2:5], [3])
    for name, part in alone.parts():
        assert str(part.tolist()) == str(getattr(together, name)[1:2].tolist()), name


def test_energies_of_events_and_particles_are_kept(real, particle_energies):
    """Events joined with themselves share all cells."""
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
