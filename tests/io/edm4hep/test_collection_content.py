from __future__ import annotations

from pflow.io.edm4hep.collection_content import collection_contents
from pflow.io.edm4hep.podio import open_podio


def contents(path, stop=2):
    file = open_podio(path)
    found = {own.name: own for own in collection_contents(file, stop)}
    file.close()
    return found


def test_objects_energies_encodings_and_links(write, content):
    found = contents(write(content, encodings={"A1": "layer:8"}))
    a1, a2, links = found["A1"], found["A2"], found["HitLinks"]
    assert (a1.count, a1.mean, a1.mean_energy, a1.cell_encoding) == (2, 1.0, 1.5, "layer:8")
    assert (a2.mean_energy, a2.cell_encoding, a2.links) == (4.0, "", ())
    assert (links.type, links.mean_energy) == ("Link", None)
    assert set(links.links) == {f"{name} -> MCParticles" for name in ("A1", "A2", "B", "Other")}


def test_only_the_first_entries_count(write, content):
    found = contents(write(content), stop=1)
    assert (found["A1"].mean, found["A2"].mean_energy) == (2.0, 3.0)


def test_energies_that_are_not_finite_do_not_count(write, content):
    content["A2.energy"] = [[float("nan")], [5.0]]
    assert contents(write(content))["A2"].mean_energy == 2.5


def test_links_of_a_file_without_ids_have_no_known_ends(write, content):
    assert contents(write(content, ids={}))["HitLinks"].links == ()


def test_an_end_without_a_name(write, content):
    content["_TrackLinks_to.collectionID"] = [[77], []]
    assert contents(write(content))["TrackLinks"].links == ("Tracks -> ?",)
