from __future__ import annotations

import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.event import jagged
from pflow.event.events import Events
from pflow.io.edm4hep.podio import open_podio
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.simulated import read_contributions, sum_weights
from pflow.io.open import read_events
from pflow.physics.detector import load_detector


def _cells(events: Events, subdetector: int) -> dict[tuple[float, ...], tuple[float, float]]:
    """Energy and time of each cell, by entry and position."""
    entry = jagged.event_index(jagged.count(events.hits))
    place = np.column_stack([entry, jagged.vectors(events.hits.position)])
    mine = jagged.flat(events.hits.subdetector) == subdetector
    energy, time = jagged.flat(events.hits.energy, np.float64), jagged.flat(events.hits.time, np.float64)
    return {tuple(cell): (float(e), float(t)) for cell, e, t in zip(place[mine], energy[mine], time[mine], strict=True)}


@pytest.fixture
def sim_content(content):
    """Two events of simulated hits: three, the third without contributions, then one of two from one particle."""
    found = {key: values for key, values in content.items() if "MCParticles" in key}
    zeros: dict[str, list[list[float]]] = {"SimA": [[0, 0], [0]], "SimB": [[0], []]}
    for name, energy in {"SimA": [[0.4, 0.5], [0.4]], "SimB": [[0.4], []]}.items():
        found |= {f"{name}.energy": energy, f"{name}.cellID": zeros[name]}
        found |= {f"{name}.position.{axis}": zeros[name] for axis in "xyz"}
    return found | {
        "SimA.contributions_begin": [[0, 2], [0]],
        "SimA.contributions_end": [[2, 3], [2]],
        "_SimA_contributions.index": [[1, 0, 2], [0, 1]],
        "_SimA_contributions.collectionID": [[21, 21, 21], [21, 21]],
        "SimAContributions.energy": [[0.1, 0.3, 0.5], [0.2, 0.2]],
        "SimAContributions.time": [[5.0, 2.0, 9.0], [1.5, 1.0]],
        "_SimAContributions_particle.index": [[1, 2, 1], [0, 0]],
        "_SimAContributions_particle.collectionID": [[15, 15, 15], [15, 15]],
        "SimB.contributions_begin": [[0], []],
        "SimB.contributions_end": [[0], []],
        "_SimB_contributions.index": [[], []],
        "_SimB_contributions.collectionID": [[], []],
    }


def test_simulated_hits_are_read_where_there_are_no_digitised_ones(read, sim_content):
    assert read(sim_content).hits.subdetector.to_list() == [[0, 0, 1], [0]]


def test_digitised_hits_come_first(read, content, sim_content):
    both = content | sim_content
    both = {key: values for key, values in both.items() if "Links" not in key}
    assert ak.num(read(both).hits).to_list() == [4, 1]
    assert ak.num(read(both, sim=True).hits).to_list() == [3, 1]


def test_simulated_energies_are_scaled(read, sim_content):
    energies = ak.to_numpy(ak.flatten(read(sim_content).hits.energy))
    np.testing.assert_allclose(energies, [0.4, 0.5, 4.0, 0.4], rtol=1e-6)  # HCAL times 10


@pytest.mark.parametrize("layout", ["new", "old", "rntuple"])
def test_links_share_a_hit_by_the_energy_of_its_contributions(read, sim_content, layout, links):
    found = links(read(sim_content, layout).hit_links)
    assert found == [[(0, 1, 0.25), (0, 2, 0.75), (1, 1, 1.0)], [(0, 0, 1.0)]]


def test_the_time_is_the_earliest_contribution_s(read, sim_content):
    times = read(sim_content).hits.time
    assert times[0, :2].to_list() == [2.0, 9.0]
    assert np.isnan(times[0, 2])
    assert times[1].to_list() == [1.0]


def test_a_contribution_of_an_unknown_particle_makes_no_link(read, sim_content, links):
    sim_content["_SimAContributions_particle.collectionID"] = [[15, 99, 15], [15, 15]]
    assert links(read(sim_content).hit_links)[0] == [(0, 1, 1.0), (1, 1, 1.0)]


def test_a_contribution_of_a_particle_outside_the_list_is_a_violation(read, sim_content):
    sim_content["_SimAContributions_particle.index"] = [[1, 2, 7], [0, 0]]
    (violation,) = read(sim_content).violations()
    assert (violation.index, violation.field) == (0, "hit_links.particle")


def test_contributions_without_particles_make_no_links(read, sim_content, links):
    less = {key: values for key, values in sim_content.items() if "_particle" not in key}
    events = read(less)
    assert links(events.hit_links) == [[], []]
    assert events.hits.time[1].to_list() == [1.0]


def test_hits_whose_contributions_are_not_in_the_file_have_no_time(read, sim_content):
    less = {key: values for key, values in sim_content.items() if not key.startswith("_SimA")}
    assert np.isnan(read(less).hits.time[1, 0])


def test_a_reference_to_a_contribution_that_is_not_there_is_left_out(read, sim_content, links):
    sim_content["_SimA_contributions.index"] = [[1, 5, 2], [0, 1]]
    assert links(read(sim_content).hit_links)[0] == [(0, 2, 1.0), (1, 1, 1.0)]


def test_contributions_count_hits_over_all_events(write, sim_content):
    file = open_podio(write(sim_content))
    found = read_contributions(file, "SimA", 0, 2)
    assert found.hit.tolist() == [0, 0, 1, 2, 2]
    assert found.event.tolist() == [0, 0, 0, 1, 1]
    np.testing.assert_allclose(found.energy, [0.3, 0.1, 0.5, 0.2, 0.2], rtol=1e-6)
    assert read_contributions(file, "MCParticles", 0, 2) is None
    file.close()


def test_shares_sum_what_is_equal():
    event, source, particle, weight = sum_weights(
        np.array([1, 0, 0, 0]), np.array([5, 2, 2, 2]), np.array([0, 3, 1, 3]), np.array([1.0, 0.25, 0.5, 2.0])
    )
    assert (event.tolist(), source.tolist(), particle.tolist()) == ([0, 0, 1], [2, 2, 5], [1, 3, 0])
    assert weight.tolist() == [0.5, 2.25, 1.0]


def test_cells_that_digitisation_drops_leave_no_hits_and_no_links(read, toy, sim_content, links):
    ecal = dataclasses.replace(toy.calorimeters[0], sim_threshold=0.15, sim_time_window=(0.0, 4.0), sim_scale=2.0)
    detector = dataclasses.replace(toy, calorimeters=(ecal, *toy.calorimeters[1:]))
    events = read(sim_content, detector=detector).validate()
    np.testing.assert_allclose(ak.flatten(events.hits.energy), [0.6, 4.0, 0.8], rtol=1e-6)
    np.testing.assert_allclose(ak.flatten(events.hits.time), [2.1, np.nan, 1.1], rtol=1e-6)
    assert links(events.hit_links) == [[(0, 2, 1.0)], [(0, 0, 1.0)]]


def test_cld_simulated_hits_digitised_are_those_of_the_standard_digitisation(data_dir):
    """The same event before and after CLD's own digitisation."""
    standard, digitised = (read_events(data_dir / "edm4hep" / f"cld_{name}.edm4hep.root") for name in ("rec", "sim"))
    names = [own.name for own in load_detector("cld").calorimeters]
    assert [own.name for own in standard.detector.calorimeters] == names
    for number in range(len(names)):
        theirs, ours = _cells(standard, number), _cells(digitised, number)
        assert len(ours) == pytest.approx(len(theirs), rel=0.03)
        assert sum(e for e, _ in ours.values()) == pytest.approx(sum(e for e, _ in theirs.values()), rel=0.01)
        assert theirs.keys() <= ours.keys()
        if theirs:
            energy, time = np.array(
                [(ours[cell][0] / theirs[cell][0], ours[cell][1] - theirs[cell][1]) for cell in theirs]
            ).T
            assert np.median(np.abs(energy - 1)) < 0.01
            assert np.median(np.abs(time)) < 1e-3


def test_cld_contributions_and_links_agree_on_the_truth(data_dir):
    """Energy that each particle left, from contributions and from the file's own links."""
    path = data_dir / "edm4hep" / "cld_rec.edm4hep.root"
    sums = []
    for sim in (False, True):
        reader = Edm4hepReader(open_podio(path), detector=load_detector("cld"), sim=sim)
        events = reader.read(0, 1)
        reader.close()
        links, ecal = events.hit_links[0], events.hits[0][events.hit_links.source[0]]
        energy = np.where(ecal.subdetector < 2, ecal.energy * links.weight, 0.0)
        sums.append(np.bincount(ak.to_numpy(links.particle), energy, minlength=len(events.truth[0])))
    assert np.corrcoef(*sums)[0, 1] > 0.99
