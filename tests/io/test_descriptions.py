"""Descriptions that do not fit a file are said by every verb that reads it; each would change energies in silence."""

import dataclasses

import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.events import ImplausibleWarning
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.tokens.features import feature_columns

CLD = load_detector("cld")


def changed(change, kind):
    """The description with all calorimeters of a kind changed; None leaves one out."""
    parts = (change(part) if part.kind == kind else part for part in CLD.calorimeters)
    return dataclasses.replace(CLD, name="mine", calorimeters=tuple(part for part in parts if part is not None))


def test_hits_of_a_calorimeter_that_is_not_described_are_said(cld_path):
    said = "no calorimeter for the hits of HCALBarrel .*, HCALOther .*: 167 of 393 GeV are"
    with pytest.warns(ImplausibleWarning, match=said):
        read_events(cld_path, detector=changed(lambda _: None, "hcal"))


def test_a_wrong_name_of_the_tracks_is_said_with_the_nearest(cld_path):
    detector = dataclasses.replace(CLD, tracks=("SiTrack_Refited",))
    said = r"the file has no SiTrack_Refited, and the file has SiTracks_Refitted \(nearest: SiTracks_Refitted"
    with pytest.warns(ImplausibleWarning, match=said):
        assert read_events(cld_path, detector=detector).tracks is None


def test_simulated_hits_need_a_scale_and_deposited_energy_is_said(cld_sim_path):
    unknown = changed(lambda part: dataclasses.replace(part, sim_scale=None), "ecal")
    with pytest.raises(ConfigError, match=r"'mine' does not say sim_scale of ecal_barrel, ecal_endcap, the factor"):
        read_events(cld_sim_path, detector=unknown)
    deposited = changed(lambda part: dataclasses.replace(part, sim_scale=1.0), "ecal")
    with pytest.warns(ImplausibleWarning, match=r"hits of ecal_barrel, ecal_endcap have the energy that was deposited"):
        read_events(cld_sim_path, detector=deposited)
    crystals = (dataclasses.replace(CLD.calorimeters[0].layers[0], count=1, pitch=220.0),)
    deposited = changed(lambda part: dataclasses.replace(part, sim_scale=1.0, layers=crystals), "ecal")
    with pytest.warns(ImplausibleWarning) as said:
        read_events(cld_sim_path, detector=deposited)
    assert not any("deposited" in str(warning.message) for warning in said)


def test_a_file_without_tracks_has_a_remedy_that_its_detector_allows(cld_rec):
    bare = dataclasses.replace(cld_rec, tracks=None, track_links=None)
    with pytest.raises(InputError, match=r"none were read; --truth-tracks makes them from Monte Carlo particles"):
        feature_columns(bare, "tracks", ["omega"])
    unable = dataclasses.replace(bare, detector=dataclasses.replace(CLD, truth_tracks=None))
    with pytest.raises(
        InputError, match=r"none were read, and detector 'cld' does not describe how .* give a file with tracks"
    ):
        feature_columns(unable, "tracks", ["omega"])
