from dataclasses import replace
from typing import Any

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.events import ImplausibleWarning
from pflow.io.edm4hep.reader import Edm4hepReader, missing_collections
from pflow.io.open import read_events


def test_collections_are_joined_in_the_order_of_the_detector(read, content):
    hits = read(content).hits
    assert hits.energy.to_list() == [[1, 2, 3, 4], [5]]
    assert hits.subdetector.to_list() == [[0, 0, 0, 1], [0]]
    assert hits.position.x.to_list() == [[1010, 1020, 1030, 1300], [1050]]


def test_the_first_collection_of_tracks_that_holds_some_is_read(write, content, toy, ids, assert_same):
    expected = read_events(write(content), detector=toy)
    keys = [key for key in content if key.lstrip("_").startswith("Tracks")]
    content |= {key.replace("Tracks", "Seeds", 1): [[] for _ in content[key]] for key in keys}
    toy = replace(toy, tracks=("Seeds", *toy.tracks))
    with pytest.warns(ImplausibleWarning, match="Seeds is empty in the first entries, and Tracks is read"):
        events = read_events(write(content, ids=ids | {"Seeds": 99}), detector=toy)
    assert_same(replace(expected, detector=toy), events)


@pytest.mark.parametrize("layout", ["rec", "old", "rntuple"])
def test_every_layout_gives_the_same_events(read, content, layout, assert_same):
    expected, events = read(content), read(content, layout)
    assert_same(expected, events)
    np.testing.assert_array_equal(expected.event, events.event)


def test_links_follow_collection_and_index_to_one_truth_collection(read, content, links):
    assert links(read(content).hit_links) == [[(1, 1, 0.5), (1, 2, 0.5), (2, 1, 1.0), (3, 1, 1.0)], [(0, 0, 1.0)]]
    content["_HitLinks_to.collectionID"] = [[15, 16, 15, 15, 15], [16]]
    assert links(read(content).hit_links) == [[(1, 1, 1.0), (2, 1, 1.0), (3, 1, 1.0)], []]


@pytest.mark.parametrize(
    ("branch", "index", "violation"),
    [
        ("_HitLinks_from.index", [[2, 1, 0, 0, 0], [0]], (0, "hit_links.source")),  # A1 has two hits, the event four
        ("_HitLinks_to.index", [[1, 2, 1, 1, 1], [3]], (1, "hit_links.particle")),
        ("_MCParticles_parents.index", [[0, 3], []], (0, "truth.parent")),
    ],
)
def test_a_reference_outside_is_a_violation(read, content, branch, index, violation):
    content[branch] = index
    assert [(broken.index, broken.field) for broken in read(content).violations()] == [violation]


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        ("_HitLinks_from", "expected _HitLinks_from or HitLinks#0"),
        ("_Tracks", "expected _Tracks_trackStates or Tracks_1"),
        ("A2.position.y", r"collection 'A2' has no member 'position\.y'"),
    ],
)
def test_missing_columns_are_named(read, content, absent, message):
    less = {key: values for key, values in content.items() if not key.startswith(absent)}
    with pytest.raises(InputError, match=message):
        read(less)


def test_references_that_do_not_match_their_links_are_refused(read, content):
    content["HitLinks.weight"] = [[0.2], [0.7]]
    with pytest.raises(InputError, match="5 references for 1 objects") as caught:
        read(content, stop=1)
    assert (caught.value.entry, caught.value.field) == (0, "_HitLinks_from")


def test_truth_has_energies_and_parents_that_were_stored(read, content):
    truth = read(content).truth
    assert truth.parent.to_list() == [[-1, 0, 1], [-1]]
    assert truth.pdg.to_list() == [[111, 22, 11], [22]]
    assert truth.status.to_list() == [[2, 1, 0], [1]]
    assert truth.vertex.z.to_list() == [[0, 0, 7], [0]]
    np.testing.assert_allclose(truth.energy[0], [np.hypot(5, 0.135), np.sqrt(5), np.hypot(np.sqrt(2), 0.000511)])
    content["_MCParticles_parents.index"] = [[0, -2], []]  # podio writes -2 for an object that is not in the file
    assert read(content).truth.parent.to_list() == [[-1, 0, -1], [-1]]


def test_particles_of_overlaid_background_are_known(read, content):
    assert "overlay" not in read(content).truth.fields
    content["MCParticles.simulatorStatus"] = [[0, 1 << 30, (1 << 23) + (1 << 30)], [1 << 23]]
    assert read(content).truth.overlay.to_list() == [[False, False, True], [True]]


def test_the_states_of_a_track_are_found_by_location_or_followed(read, content):
    track, other = read(content).tracks[0]
    pt = 0.299792458e-3 * 2.0 / 3e-4  # of the state at the IP
    np.testing.assert_allclose([track.momentum[axis] for axis in ("px", "py", "pz")], [pt, 0, pt], atol=1e-6)
    np.testing.assert_allclose([track.d0, track.z0, track.phi, track.tan_lambda], [0.5, 0.25, 0, 1])
    # At the calorimeter the point of closest approach, and the momentum of that state.
    pt = 0.299792458e-3 * 2.0 / 4e-4
    np.testing.assert_allclose([track.calo_position[axis] for axis in "xyz"], [990, 200, 305], rtol=1e-6)
    np.testing.assert_allclose([track.calo_momentum[axis] for axis in ("px", "py", "pz")], [0, pt, pt], atol=1e-6)
    assert track.charge == -1
    pt = 0.299792458e-3 * 2.0 / 2e-4
    assert other.momentum.pt == pytest.approx(pt)
    assert other.momentum.deltaangle(ak.Record({"px": -pt, "py": 0.0, "pz": 0.0}, with_name="Momentum3D")) < 0.01
    assert other.charge == 1


def test_tracker_hits_are_joined(read, content):
    for name, values, energy in (("Inner", [[1.0], [2.0, 3.0]], "eDep"), ("Outer", [[], [9.0]], "EDep")):
        content |= {f"{name}.position.{axis}": values for axis in "xyz"}
        content |= {f"{name}.{energy}": values, f"{name}.time": values, f"{name}.cellID": values}
    hits = read(content, encodings={"Inner": "x:1,layer:3"}).tracker_hits
    assert hits.position.x.to_list() == [[1], [2, 3, 9]]
    assert hits.energy.to_list() == [[1], [2, 3, 9]]
    assert hits.layer.to_list() == [[0], [1, 1, -1]]


@pytest.mark.parametrize("code", ["PDG", "type"])
def test_the_reference_is_read_with_old_and_new_names(read, write, content, toy, code):
    content |= {f"Pandora.{code}": [[22], [211]], "Pandora.charge": [[0], [1]], "Pandora.energy": [[2.0], [5.0]]}
    content |= {f"Pandora.momentum.{axis}": [[0.0], [3.0 if axis == "x" else 0.0]] for axis in "xyz"}
    content |= {"Pandora.goodnessOfPID": [[0.5], [1.0]]}
    events = read(content)
    assert events.reference_name == "Pandora"
    assert events.reference.pdg.to_list() == [[22], [211]]
    assert events.reference.score.to_list() == [[0.5], [1.0]]
    assert events.reference.mass.to_list() == [[2.0], [4.0]]
    with pytest.warns(ImplausibleWarning, match=r"algorithm are read: the file has no PandoraPFO \(nearest: Pandora,"):
        read_events(write(content), detector=replace(toy, references=("PandoraPFO",)))
    subset = {f"PandoraPFO_objIdx.{member}": [[0], [0]] for member in ("index", "collectionID")}
    with pytest.warns(ImplausibleWarning, match=r"PandoraPFO only refers to .* \(a subset\) and is not read; no coll"):
        read_events(write(content | subset), detector=replace(toy, references=("PandoraPFO",)))


@pytest.mark.parametrize(("header", "numbers"), [([[70], [71]], [70, 71]), ([[70], []], [70, 1]), (None, [0, 1])])
def test_the_event_number_is_the_header_s_or_the_entry(read, content, header, numbers):
    del content["EventHeader.eventNumber"]
    content |= {"EventHeader.eventNumber": header} if header else {}
    assert read(content).event.tolist() == numbers
    later = read(content, start=1)
    assert (later.event.tolist(), later.entry.tolist()) == (numbers[1:], [1])


def test_layers_use_the_file_s_encoding_before_the_detector_s(read, content):
    assert read(content).hits.layer.to_list() == [[-1, -1, -1, 7], [-1]]
    encoded = read(content, encodings={"A1": "x:1,layer:3", "B": "x:1,layer:3"})
    assert encoded.hits.layer.to_list() == [[1, 2, -1, 3], [-1]]
    members = content | {"A1.layer": [[5, 6], []]}  # of edm4eic's hits
    for encodings, layers in (({"A1": "x:1,y:3"}, [5, 6]), ({"A1": "x:1,layer:3"}, [1, 2])):
        assert read(members, encodings=encodings).hits.layer.to_list()[0][:2] == layers


def test_no_events_have_all_parts_and_absent_ones_are_reported(read, content):
    assert [name for name, _ in read(content, truth=False).parts()] == ["hits", "tracks"]
    some, none = read(content), read(content, start=1, stop=1)
    assert len(none) == 0
    assert [name for name, _ in none.parts()] == [name for name, _ in some.parts()]
    assert none.hits.type.content == some.hits.type.content
    less = {key: values for key, values in content.items() if not key.startswith("A1")}
    assert read(less).absent == ("A1", "MUON", "Inner", "Outer", "Pandora")


def test_a_missing_or_unnamed_required_collection_is_refused(podio, content, toy):
    digitised = replace(toy, calorimeters=tuple(replace(system, sim_collections=()) for system in toy.calorimeters))
    with pytest.raises(ConfigError, match="names no simulated collections"):
        Edm4hepReader(podio(content), detector=digitised, sim=True)
    file = podio({key.replace("B.", "b."): values for key, values in content.items()})
    with pytest.raises(InputError, match=r"required collection 'B' of detector 'toy'.*nearest matches: b"):
        Edm4hepReader(file, detector=toy)
    assert missing_collections(file, toy) == [("B",)]
    last = replace(toy.calorimeters[-1], collections=("A1", "MUON"))
    for wrong in ({"calorimeters": (*toy.calorimeters[:-1], last)}, {"hit_links": 2 * toy.hit_links}):
        with pytest.raises(ConfigError, match=r"detector 'toy' names \w+ twice"):
            Edm4hepReader(podio(content), detector=replace(toy, **wrong))


def as_subset(content: dict[str, Any]) -> dict[str, Any]:
    """The hits of A1 in reverse order after another one in the collection Other, to which a subset A1 refers."""
    subset = {key: values for key, values in content.items() if not key.startswith("A1.")}
    for key in (key for key in content if key.startswith("A1.")):
        subset[key.replace("A1", "Other")] = [[9.0, *reversed(values)] for values in content[key]]
    counts = [len(values) for values in content["A1.energy"]]
    subset["A1_objIdx.index"] = [[n - k for k in range(n)] for n in counts]
    subset["A1_objIdx.collectionID"] = [[16] * n for n in counts]
    pairs = list(zip(content["_HitLinks_from.collectionID"], content["_HitLinks_from.index"], counts, strict=True))
    subset["_HitLinks_from.index"] = [
        [n - k if number == 11 else k for number, k in zip(ids, index, strict=True)] for ids, index, n in pairs
    ]
    subset["_HitLinks_from.collectionID"] = [[16 if number == 11 else number for number in ids] for ids, *_ in pairs]
    return subset


@pytest.mark.parametrize("layout", ["new", "rntuple"])
def test_a_subset_reads_the_hits_it_refers_to(read, content, layout, assert_same):
    assert_same(read(as_subset(content), layout), read(content, layout))


def test_dangling_references_of_a_subset_give_a_warning(write, content, toy):
    subset = as_subset(content)
    subset["A1_objIdx.index"][0][1] = 7
    with pytest.warns(ImplausibleWarning, match="1 of 2 references of A1 lead to no hit of the file"):
        events = read_events(write(subset), detector=toy)
    assert ak.num(events.hits).to_list() == [3, 1]
