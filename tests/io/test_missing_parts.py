from __future__ import annotations

import pytest

from pflow.io.open import open_events
from pflow.io.summary import inspect_file


def missing(path, **options) -> dict[str, str]:
    return {part.name: part.reason for part in inspect_file(path, **options).missing}


def without(content, *names):
    return {key: values for key, values in content.items() if key.split(".")[0].strip("_").split("_")[0] not in names}


def test_a_complete_file_lacks_nothing(data_dir):
    assert missing(data_dir / "edm4hep" / "cld_rec.edm4hep.root") == {}


def test_a_simulated_file_lacks_tracks_that_can_be_made(data_dir):
    (reason,) = missing(data_dir / "edm4hep" / "cld_sim.edm4hep.root").values()
    assert reason == "none in the file; --truth-tracks makes them from Monte Carlo particles"
    assert missing(data_dir / "edm4hep" / "cld_sim.edm4hep.root", truth_tracks=True) == {}


def test_layers_are_missing_without_a_cell_encoding(write, content, toy):
    assert missing(write(content), detector=toy) == {"layers": "no cell encoding for ecal"}


@pytest.mark.parametrize(
    ("gone", "name", "reason"),
    [
        (("Tracks", "TrackLinks"), "tracks", "none in the file"),
        (("MCParticles",), "truth", "none in the file"),
        (("HitLinks",), "links from hits to particles", "none in the file"),
    ],
)
def test_what_the_file_does_not_hold(write, content, toy, gone, name, reason):
    path = write(without(content, *gone), encodings={"A1": "layer:8", "A2": "layer:8"})
    assert missing(path, detector=toy) == {name: reason}
    assert missing(path)[name] == reason  # without a detector too


def test_tracks_that_the_detector_does_not_name(write, content, toy):
    renamed = {key.replace("Tracks", "Others"): values for key, values in without(content, "TrackLinks").items()}
    path = write(renamed, encodings={"A1": "layer:8", "A2": "layer:8"})
    assert missing(path, detector=toy) == {"tracks": "none that the detector names"}


def test_without_a_fitting_detector_its_draft_is_named(write, content):
    found = missing(write(content))
    assert list(found) == ["detector"]
    assert found["detector"].startswith("none of the built-in detectors fits; `pflow detector FILE")


def test_tracks_without_states_are_refused_by_name_and_type(write, content):
    stateless = {key: values for key, values in content.items() if "trackStates" not in key}
    stateless["Tracks.charge"] = [[1.0, 1.0], []]
    found = missing(write(stateless, types={"Tracks": "edm4eic::TrackCollection"}))
    assert found["tracks"] == "Tracks (edm4eic::Track) has no trackStates_begin, no trackStates_end"


def test_links_that_cannot_be_followed_leave_the_rest_readable(write, content, toy):
    path = write(content, ids={}, encodings={"A1": "layer:8", "A2": "layer:8"})
    found = inspect_file(path, detector=toy)
    (part,) = [part for part in found.missing if "no table of collection ids" in part.reason]
    assert (part.name, part.needed_for) == ("truth", "training and evaluation")
    assert found.calorimeter_hits == 5
    with open_events(path, detector=toy) as file:
        assert len(file.read(truth=False)) == 2
