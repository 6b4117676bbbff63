"""Tracks made from Monte Carlo particles where a file has none; `test_simulated` checks the tracks themselves."""

import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.events import Flag
from pflow.io.open import open_events, read_events
from pflow.physics.detector import load_detector


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


def by_particle(events):
    """Tracks of the first event in the order of their particles, and these."""
    links = events.track_links[0]
    links = links[ak.argsort(links.particle)]
    return events.tracks[0][links.source], links.particle.to_list()


def test_truth_tracks_are_near_the_standard_tracks(full_cld):
    (theirs, particles), (ours, same) = (by_particle(events) for events in full_cld)
    assert particles == same
    assert len(particles) == 24
    assert np.median(abs(ours.momentum.pt / theirs.momentum.pt - 1)) < 0.01
    assert np.median((ours.calo_position - theirs.calo_position).mag) < 10.0  # mm
    assert np.degrees(np.median(ours.calo_momentum.deltaangle(theirs.calo_momentum))) < 0.5


def test_nearly_all_charged_stable_particles_of_simulated_events_have_one(data_dir):
    events = read_events(data_dir / "edm4hep" / "cld_zuds100_sim.edm4hep.root", truth_tracks=True)
    for number, truth, links in zip((22, 24, 12), events.truth, events.track_links, strict=True):
        stable = ak.to_numpy((truth.status == 1) & (truth.charge != 0))
        assert stable.sum() == number
        assert number - 1 <= stable[ak.to_numpy(links.particle)].sum() <= len(links) <= number + 3


def without_tracks(content):
    return {key: values for key, values in content.items() if "Track" not in key}


def test_a_file_without_tracker_hits_is_refused_by_name(write, content, toy):
    tracking = dataclasses.replace(load_detector("cld").truth_tracks, sim_tracker_hits=("Inner", "Outer"))
    detector = dataclasses.replace(toy, truth_tracks=tracking)
    with pytest.raises(InputError, match="need one of Inner, Outer") as caught:
        open_events(write(without_tracks(content)), detector=detector, truth_tracks=True)
    assert caught.value.field == "Inner"


def test_a_detector_that_does_not_describe_them_is_refused(write, content, toy):
    with pytest.raises(ConfigError, match="'toy' does not describe truth_tracks"):
        open_events(write(without_tracks(content)), detector=toy, truth_tracks=True)
