"""Files whose collections have names, types and members that no built-in detector knows."""

import dataclasses

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.cli.main import main
from pflow.errors import InputError
from pflow.event.events import ImplausibleWarning, LeftOutWarning
from pflow.io.draft import Answers, draft_detector
from pflow.io.edm4hep.podio import collection_id
from pflow.io.inspect import inspect_file
from pflow.io.open import read_events

CALORIMETERS = ("ECALBarrel", "ECALEndcap", "HCALBarrel", "HCALEndcap")

RENAMED = {
    "ECALBarrel": "Pole",
    "ECALEndcap": "Lids",
    "HCALBarrel": "Tube",
    "HCALEndcap": "Caps",
    "HCALOther": "Ring",
    "MUON": "Shell",
    "ECalBarrelCollection": "PoleSteps",
    "SiTracks_Refitted": "Curves",
    "CalohitMCTruthLink": "Bonds",
    "SiTracksMCTruthLink": "Bows",
    "MCParticles": "Makers",
    "PandoraPFOs": "Objects",
}


@pytest.fixture(scope="module")
def renamed_cld(sample_dir, tmp_path_factory):
    """Events with other names, the first with simulated hits too, and their draft; ids are those of the old names."""
    columns, suffixes = {}, "|_(from|to|trackStates|contributions|parents)"
    for kind in ("_sim", ""):
        with uproot.open(sample_dir / f"cld_zqq_small{kind}.edm4hep.root") as file:
            for old, new in RENAMED.items():
                for key in file["events"].keys(filter_name=f"/_?{old}({suffixes})\\..*/"):
                    columns[key.replace(old, new)] = file["events"][key].array()
    columns = {key: ak.concatenate([values, values[: 5 - len(values), :0]]) for key, values in columns.items()}
    path = tmp_path_factory.mktemp("renamed") / "renamed.root"
    ids = np.array([[collection_id(name) for name in RENAMED]], dtype=np.uint32)
    table = ak.zip({"name": ak.Array([list(RENAMED.values())]), "collectionID": ak.Array(ids)})
    with uproot.recreate(path) as out:
        out.mktree("events", {name: values.type.content for name, values in columns.items()}).extend(columns)
        out.mkrntuple("podio_metadata", {"events___CollectionTypeInfo": table})
    return path, draft_detector(path, PLACES)


PLACES = Answers(
    place={"Pole": "ecal_barrel", "Lids": "ecal_endcap", "Tube": "hcal_barrel", "Caps": "hcal_endcap"}
    | {"PoleSteps": "ecal_barrel", "Ring": "hcal_other", "Shell": "muon"}
)


def test_events_with_other_names_give_the_same_detector(renamed_cld):
    _, draft = renamed_cld
    detector = draft.detector
    placed = {calorimeter.name: calorimeter.collections for calorimeter in detector.calorimeters}
    for name, original in zip(("ecal_barrel", "ecal_endcap", "hcal_barrel", "hcal_endcap"), CALORIMETERS, strict=True):
        assert placed[name] == (RENAMED[original],)
    assert placed["hcal_other"] == ("Ring",)
    assert draft.left_out["Shell"].endswith("too few for the size of its cells (--entries)")
    assert detector.calorimeters[0].sim_collections == ("PoleSteps",)
    assert (detector.tracks, detector.truth_particles, detector.references) == (("Curves",), ("Makers",), ("Objects",))
    assert (detector.hit_links, detector.track_links) == (("Bonds",), ("Bows",))


def test_the_renamed_events_are_read_as_the_others_are(renamed_cld, cld_rec):
    path, draft = renamed_cld
    assert inspect_file(path).detector == ""
    with pytest.warns(ImplausibleWarning, match=r"names no calorimeter for the hits of Shell \(7 hits, 0.00172 GeV\)"):
        events = read_events(path, detector=draft.detector)
    assert ak.sum(events.hits.energy) == pytest.approx(float(ak.sum(cld_rec.hits.energy)), rel=1e-5)
    of_muons = ak.num(cld_rec.hits)[np.arange(5)] - ak.num(events.hits)
    assert ak.num(events.hit_links).to_list() == (ak.num(cld_rec.hit_links) - of_muons).to_list()
    assert ak.num(events.tracks).to_list() == [20, 19, 11, 11, 13]
    assert ak.all(events.hits.layer == -1)  # the file names no cell encoding


EIC_CALORIMETERS = ("EcalBarrelScFiRecHits", "EcalEndcapNRecHits", "HcalBarrelRecHits", "HcalEndcapNRecHits")


@pytest.fixture
def eic_file(made_up, write):
    """Hits, tracks, particles and links as EICrecon has them: hits know their layer, tracks have no states."""
    names = dict(zip(CALORIMETERS, EIC_CALORIMETERS, strict=True))
    content = {}
    for key, values in (made := made_up(radius=820.0, z=1700.0)).items():
        name, _, member = key.partition(".")
        if "Track" not in name:
            content[f"{names.get(name, name)}.{member}"] = values
    for name in names.values():
        content[f"{name}.layer"] = content[f"{name}.cellID"] >> 5
        content[f"{name}.energyError"] = content[f"{name}.timeError"] = content[f"{name}.time"]
        content[f"{name}.cellID"] = np.arange(1200).reshape(4, 300)
    tracks = {"B0TrackerCKFTracks": 3, "CentralCKFTracks": 12, "CentralCKFTracksUnfiltered": 12}
    for name, count in tracks.items():
        columns = {f"momentum.{axis}": content[f"MCParticles.momentum.{axis}"] for axis in "xyz"}
        columns |= {f"position.{axis}": np.zeros((4, 12)) for axis in "xyz"} | {"charge": content["MCParticles.charge"]}
        content |= {f"{name}.{member}": values[:, :count] for member, values in columns.items()}
        link = f"{name}Associations"
        content[f"{link}.weight"] = made["TrackLinks.weight"][:, :count]
        for end, side, to in (("from", "rec", name), ("to", "sim", "MCParticles")):
            content[f"_{link}_{side}.index"] = made[f"_TrackLinks_{end}.index"][:, :count]
            content[f"_{link}_{side}.collectionID"] = np.full((4, count), collection_id(to))
    still = {key.replace("B0", "Still"): values for key, values in content.items() if key.startswith("B0")}
    content |= {key: 0 * values for key, values in still.items() if "Associations" not in key}
    tracks["StillTrackerCKFTracks"] = 3
    particles = ("GeneratedParticles", "LooseReconstructedParticles", "ReconstructedParticles")
    ones, members = [[1.0]] * 4, ("energy", "charge", "mass", "goodnessOfPID", *(f"momentum.{axis}" for axis in "xyz"))
    content |= {f"{name}.{member}": ones for name in particles for member in members}
    content |= {f"{name}.PDG": [[22]] * 4 for name in particles}
    types = dict.fromkeys(names.values(), "edm4eic::CalorimeterHitCollection")
    types |= dict.fromkeys(tracks, "edm4eic::TrackCollection") | {"MCParticles": "edm4hep::MCParticleCollection"}
    types |= dict.fromkeys(map("{}Associations".format, tracks), "edm4eic::MCRecoTrackParticleAssociationCollection")
    types |= dict.fromkeys(particles, "edm4eic::ReconstructedParticleCollection")
    return write(content, ids={name: collection_id(name) for name in types}, types=types)


@pytest.mark.filterwarnings("ignore::pflow.event.events.ImplausibleWarning")  # random energies are of no shower
def test_hits_and_tracks_of_edm4eic_are_read(eic_file, tmp_path, capsys):
    with pytest.raises(InputError, match=r"fewer than 3 tracks with a curvature .* in T with --b-field"):
        draft_detector(eic_file)  # momenta do not tell the field
    detector = draft_detector(eic_file, Answers(b_field=1.7)).detector
    assert [calorimeter.collections for calorimeter in detector.calorimeters] == [(name,) for name in EIC_CALORIMETERS]
    assert detector.ecal_inner_radius == pytest.approx(820.0, abs=3.0)
    named = ("CentralCKFTracks", "B0TrackerCKFTracks", "CentralCKFTracksUnfiltered", "StillTrackerCKFTracks")
    assert detector.tracks == named
    assert main(["detector", str(eic_file), "-o", str(tmp_path / "eic.yaml"), "--b-field", "1.7"]) == 0
    assert f"{', '.join(named[:3])}, ...  guessed" in capsys.readouterr().out
    assert detector.track_links == ("CentralCKFTracksAssociations",)
    assert detector.references == ("ReconstructedParticles",)
    events = read_events(eic_file, detector=detector)
    layers = np.concatenate(events.hits.layer.to_list())
    assert (layers.min(), layers.max()) == (0, 24)
    assert ak.num(events.reference).to_list() == [1, 1, 1, 1]
    tracks, linked = events.tracks, events.truth[events.track_links.particle]
    assert ak.to_numpy(tracks.momentum.py) == pytest.approx(ak.to_numpy(linked.momentum.py), rel=1e-5)
    assert ak.to_numpy(tracks.charge).tolist() == linked.charge.to_list()
    radius, z = np.hypot(tracks.calo_position.x, tracks.calo_position.y), abs(tracks.calo_position.z)
    assert ak.all(ak.isclose(radius, detector.ecal_inner_radius) | ak.isclose(z, detector.ecal_inner_z))
    still = dataclasses.replace(detector, tracks=("StillTrackerCKFTracks",), track_links=())
    said = "12 of 12 tracks of StillTrackerCKFTracks have no momentum, and are left out: older EICrecon"
    with pytest.warns(ImplausibleWarning, match=said), pytest.warns(LeftOutWarning, match="found nan"):
        read_events(eic_file, detector=still)
