"""Tracks made from Monte Carlo particles for EDM4hep files without tracks; tests/event checks the tracks themselves."""

import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, Flag
from pflow.io.open import open_events, read_events
from pflow.physics.detector import TruthTracking


def _tracks(events: Events) -> dict[tuple[int, int], int]:
    """Index of each track, by entry and particle."""
    return {
        (entry, int(link.particle)): int(link.source)
        for entry, links in enumerate(events.track_links)
        for link in links
    }


@pytest.fixture
def tracking(toy):
    """The small detector, with tracks made from particles."""
    settings = TruthTracking(
        sim_tracker_hits=("Inner", "Outer"),
        min_layers=1,
        max_vertex_radius=350.0,
        inverse_pt=(0.0, 1e-3),
        angle=(0.0, 1e-3),
        impact=(0.0, 1e-2),
    )
    return dataclasses.replace(toy, truth_tracks=settings)


def test_tracks_are_made_only_where_there_are_none_and_flagged(cld_sim, cld_path):
    assert (cld_sim.flags == Flag.TRUTH_TRACKS).all()
    with open_events(cld_path, truth_tracks=True) as file:
        assert not file.truth_tracks


def test_truth_tracks_do_not_depend_on_other_parts(cld_sim_path, cld_sim):
    with open_events(cld_sim_path, truth_tracks=True) as file:
        assert file.truth_tracks
        alone = file.read(1, 2, truth=False)
        assert len(file.read(3, 3).tracks) == 0
    assert alone.truth is None
    assert alone.track_links is None
    assert ak.array_equal(alone.tracks, cld_sim.tracks[1:2])


def test_truth_tracks_are_near_the_standard_tracks(full_cld):
    cld_rec, cld_sim = full_cld
    ours, theirs = _tracks(cld_sim), _tracks(cld_rec)
    assert len(ours) == 24
    assert ours.keys() == theirs.keys()
    pairs = [(cld_sim.tracks[key[0]][ours[key]], cld_rec.tracks[key[0]][theirs[key]]) for key in sorted(ours)]
    momenta = np.array([[track.momentum.pt for track in pair] for pair in pairs])
    places = np.array([[[track.calo_position[axis] for axis in "xyz"] for track in pair] for pair in pairs])
    assert np.median(np.abs(momenta[:, 0] / momenta[:, 1] - 1)) < 0.01
    assert np.median(np.linalg.norm(places[:, 0] - places[:, 1], axis=1)) < 10.0  # mm
    assert (
        np.degrees(np.median([made.calo_momentum.deltaangle(standard.calo_momentum) for made, standard in pairs])) < 0.5
    )


def test_nearly_all_charged_stable_particles_of_simulated_events_have_one(data_dir):
    events = read_events(data_dir / "edm4hep" / "cld_zuds100_sim.edm4hep.root", truth_tracks=True)
    for number, truth, links in zip((22, 24, 12), events.truth, events.track_links, strict=True):
        stable = ak.to_numpy((truth.status == 1) & (truth.charge != 0))
        assert stable.sum() == number
        assert number - 1 <= stable[ak.to_numpy(links.particle)].sum() <= len(links) <= number + 3


def test_the_electron_of_a_small_file_gets_one(write, content, tracking):
    less = {key: values for key, values in content.items() if "Track" not in key}
    less |= {
        "Inner.cellID": [[0, 0], []],
        "_Inner_particle.index": [[1, 2], []],
        "_Inner_particle.collectionID": [[15, 15], []],
        **{
            f"Inner.{member}": [[0.0, 0.0], []] for member in ("position.x", "position.y", "position.z", "eDep", "time")
        },
    }
    events = read_events(write(less), detector=tracking, truth_tracks=True)
    assert events.track_links.particle.to_list() == [[2], []]
    assert events.tracks.charge.to_list() == [[-1.0], []]
    np.testing.assert_allclose(events.tracks.momentum.pt[0], [1.0], rtol=0.05)


def test_a_file_without_tracker_hits_is_refused_by_name(write, content, tracking):
    less = {key: values for key, values in content.items() if "Track" not in key}
    with pytest.raises(InputError, match="need one of Inner, Outer") as caught:
        open_events(write(less), detector=tracking, truth_tracks=True)
    assert caught.value.field == "Inner"


def test_a_detector_that_does_not_describe_them_is_refused(write, content, toy):
    less = {key: values for key, values in content.items() if "Track" not in key}
    with pytest.raises(ConfigError, match="'toy' does not describe truth_tracks"):
        open_events(write(less), detector=toy, truth_tracks=True)
