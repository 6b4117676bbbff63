"""Readable files with wrong physics: reading corrects them or warns once, with numbers."""

import dataclasses
import re
import warnings
from collections.abc import Mapping

import awkward as ak
import numpy as np
import pytest

from pflow.event.checks import Expected
from pflow.event.events import ImplausibleWarning
from pflow.event.jagged import columns, vectors
from pflow.io import root
from pflow.io.open import ReadOptions
from pflow.physics.detector import load_detector
from pflow.physics.kinematics import follow_to_calorimeter

STATES = "_SiTracks_Refitted_trackStates"
SIM = tuple(f"{kind}Cal{region}Collection" for kind in "EH" for region in ("Barrel", "Endcap"))
TRACKER = load_detector("cld").truth_tracks.sim_tracker_hits


@pytest.fixture
def sim_path(sample_dir):
    """Three events of simulated hits, in a TTree."""
    return sample_dir / "cld_zqq_small_sim.edm4hep.root"


def said(path, members: Mapping = {}, drop=(), *, truths=(False, True), detector="cld", **options):
    """What reading a file warns of, without truth and as `pflow evaluate` reads it; and the events.

    `members`: changes of these, such as ``MCParticles.mass``, in the shape that they have, as if the file held that;
    `drop`: collections, such as ``MCParticles`` or its relation ``MCParticles_parents``, that it then lacks.
    """
    names_in, read = root._keys, root.read_branch

    def names_left(tree):
        return [name for name in names_in(tree) if name.strip("_").partition(".")[0] not in drop]

    def read_changed(tree, name, *span_and_path):
        values = read(tree, name, *span_and_path)
        if name not in members:
            return values
        flat = ak.to_numpy(ak.flatten(values))
        return ak.unflatten(np.asarray(members[name](flat), flat.dtype), ak.num(values))

    texts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(root, "_keys", names_left)
        patch.setattr(root, "read_branch", read_changed)
        for truth in truths:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                expected = Expected(targets={} if truth else None)
                # The detector is given, because to recognise it takes longer than to read.
                with ReadOptions(expected=expected, detector=detector, **options).open(path) as file:
                    events = file.read(truth=truth)
            texts.append(" ".join(str(warning.message) for warning in caught if warning.category is ImplausibleWarning))
    return (*texts, events)


HALF = {f"{name}Contributions.energy": lambda energy: energy * (np.arange(len(energy)) % 2) for name in SIM}


@pytest.mark.parametrize(
    ("members", "drop", "text"),
    [
        ({}, (f"{SIM[0]}Contributions",), rf"100% of {SIM[0]} ({SIM[0]}Contributions is not in the file)"),
        ({}, (f"{SIM[0]}_contributions", f"{SIM[1]}_contributions"), rf"100% of {SIM[0]}, 100% of {SIM[1]}"),
        (HALF, (), "contributions do not sum to the energy of their hits"),
    ],
    ids=["contributions", "relations", "half"],
)
def test_hits_without_their_contributions_keep_their_energy(sim_path, cld_sim, members, drop, text):
    without, with_truth, events = said(sim_path, members, drop)
    assert text in without
    assert ("of the hits' energy belongs to no target" in with_truth) == bool(drop)
    assert ak.sum(events.hits.energy) == pytest.approx(ak.sum(cld_sim.hits.energy), rel=0.1)


def test_links_to_a_collection_that_the_file_does_not_name_are_said(cld_path):
    """5% of them: links that lead elsewhere are usual, to named collections or to nothing (index -1)."""
    ids = {"_CalohitMCTruthLink_to.collectionID": lambda ids: np.where(np.arange(len(ids)) % 20 == 0, 7, ids)}
    _, with_truth, _ = said(cld_path, ids)
    assert re.search(r"references of CalohitMCTruthLink .*: a collection without a name is not in the file", with_truth)


@pytest.mark.parametrize(
    "change",
    [lambda time: time - 5.0 * (np.arange(len(time)) % 20 == 0), lambda time: 1000.0 * time],
    ids=["some before light", "other unit"],
)
def test_energy_cut_by_time_windows_gives_a_warning(sim_path, change):
    without, _ = said(sim_path, {f"{name}Contributions.time": change for name in SIM}, truths=[False])
    assert "time windows cut energy, as if times were not in ns" in without


def test_late_energy_that_no_time_window_cuts_is_said(sim_path):
    cld = load_detector("cld")
    parts = (dataclasses.replace(part, sim_time_window=None) for part in cld.calorimeters)
    late = {f"{SIM[0]}Contributions.time": lambda time: time + 120.0 * (np.arange(len(time)) % 10 == 0)}
    for detector, expected in ((dataclasses.replace(cld, calorimeters=tuple(parts)), True), (cld, False)):
        without, _ = said(sim_path, late, truths=[False], detector=detector)
        text = r"\d\.\d% of the energy comes more than 100 ns after light, and counts, as .*_window for ECalBarrelC"
        assert bool(re.search(text, without)) == expected


def test_particles_without_tracks_because_tracker_hits_are_missing(sim_path):
    without, _ = said(sim_path, drop=TRACKER[:-1], truths=[False], truth_tracks=True)
    assert "charged particles that cross the tracker have hits in 4 layers and so a track (VertexBarrel" in without


def test_exchanged_terms_of_a_resolution_are_said(sim_path):
    cld = load_detector("cld")
    exchanged = dataclasses.replace(cld.truth_tracks, angle=cld.truth_tracks.angle[::-1])
    detector = dataclasses.replace(cld, truth_tracks=exchanged)
    without, _ = said(sim_path, truths=[False], detector=detector, truth_tracks=True)
    assert "constant term of truth_tracks (angle [0.0014, 3e-05]) is larger than that of multiple scattering" in without
    assert "truth_tracks" not in said(sim_path, truths=[False], truth_tracks=True)[0]


@pytest.mark.parametrize(
    ("change", "text", "with_truth_too"),
    [
        ({f"{STATES}.phi": np.rad2deg}, "the helix from the IP leads", r"rad from their \d+ particles"),
        ({f"{STATES}.tanLambda": np.negative}, "the helix from the IP leads 0% of 13", r"rad from their \d+ particles"),
        ({f"{STATES}.omega": np.negative}, "bend against their charge", "bend against their charge"),
    ],
    ids=["degrees", "-tan lambda", "charge"],
)
def test_directions_and_frames(cld_path, change, text, with_truth_too):
    without, with_truth, _ = said(cld_path, change)
    assert text in without
    assert re.search(with_truth_too, with_truth)


@pytest.mark.parametrize("factor", [1e-3, 10.0])
def test_reference_points_in_other_units(cld_path, cld_rec, factor):
    points = {f"{STATES}.referencePoint.{axis}": lambda values: factor * values for axis in "xyz"}
    without, events = said(cld_path, points, truths=[False])
    assert "states of SiTracks_Refitted at the calorimeter have a reference point elsewhere" in without
    assert_same_tracks(events, cld_rec)


@pytest.mark.parametrize(
    ("location", "text"),
    [
        (lambda place: np.where((place >= 1) & (place <= 4), 5 - place, place), "at the IP have a reference point"),
        (lambda place: np.where(place == 4, place, 7), ""),
        (lambda place: np.where(place == 4, 7, place), "no track of SiTracks_Refitted has a state at the calorimeter"),
    ],
    ids=["reversed", "at the calorimeter only", "at the IP only"],
)
def test_states_that_are_not_there_are_followed(cld_path, cld_rec, location, text):
    without, events = said(cld_path, {f"{STATES}.location": location}, truths=[False])
    assert text in without
    assert_same_tracks(events, cld_rec)
    if not text:  # d0 and z0 are of the helix that leads to the state
        of, momentum = columns(events.tracks), vectors(events.tracks, field="momentum")
        start = np.stack([-of["d0"] * np.sin(of["phi"]), of["d0"] * np.cos(of["phi"]), of["z0"]], axis=1)
        off = follow_to_calorimeter(start, momentum, of["charge"], events.detector)[0]
        off -= vectors(events.tracks, field="calo_position")
        assert np.nanmedian(np.linalg.norm(off, axis=1)) < 0.1  # mm


def assert_same_tracks(events, expected):
    """Of most tracks above 1 GeV directions within 30 mrad and entries within 30 mm: they lose energy on the way."""
    hard = expected.tracks.momentum.mag > 1.0
    assert ak.mean(events.tracks.momentum.deltaangle(expected.tracks.momentum)[hard] < 0.03) > 0.8
    assert ak.mean(abs(events.tracks.calo_position - expected.tracks.calo_position)[hard] < 30.0) > 0.8


@pytest.mark.parametrize(
    ("field", "text"),
    [(2.1, "2 T would fit"), (4.0, "2 T would fit"), (-2.0, "the helix from the IP leads")],
)
def test_another_field(cld_path, field, text):
    detector = dataclasses.replace(load_detector("cld"), b_field=field)
    without, with_truth, _ = said(cld_path, detector=detector)
    assert text in with_truth
    assert "would fit" not in without
    assert (f"look at the field, {field:g} T" in without) == (field == 4.0), "without truth by a factor of two"
