import dataclasses
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.errors import ConfigError, InputError
from pflow.event.events import Reconstruction
from pflow.event.schema import make_links
from pflow.io.edm4hep.podio import collection_id, open_podio
from pflow.io.edm4hep.reader import Edm4hepReader
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import open_events, read_events
from pflow.io.particles_root import read_provenance, read_reco
from pflow.physics.pdg import CLASSES

A2 = 4_000_000_000


@pytest.fixture(scope="module")
def source(write_podio, whole_content):
    return write_podio(whole_content)


@pytest.fixture(scope="module")
def written(source, reconstruct):
    """Output of the small file, what was written into it, and the events."""
    return reconstruct(source, mc_links=True)


def objects(file: Any, name: str) -> list[Any]:
    return records(file, name).to_list()


def records(file: Any, name: str) -> ak.Array:
    """Objects of a branch, with members such as ``position.x``."""
    columns = file["events"][name].array()
    members = {key.removeprefix(f"{name}.").partition("[")[0]: columns[key] for key in columns.fields}
    return ak.zip(members, depth_limit=2) if members else columns


def test_reading_returns_the_written_particles(source, written, reconstruct, same_reco):
    for name, (out, made, _) in {"PFlow": written, "Mine": reconstruct(source, chunk=2, name="Mine")}.items():
        assert same_reco(read_reco(out, name=name), made)
        assert read_reco(out, name=name, links="left out").hit_links is None
        assert read_provenance(out) == {"who": "me", "flagged": {"MAX_PARTICLES": 1}}


def test_optional_parts_stay_absent(source, reconstruct, same_reco):
    def bare(made: Reconstruction) -> Reconstruction:
        fields = [field for field in made.particles.fields if field not in ("existence", "scores", "covariance")]
        return dataclasses.replace(
            made, particles=ak.with_name(made.particles[fields], "Momentum4D"), hit_links=None, track_links=None
        )

    out, made, _ = reconstruct(source, change=bare)
    read_back = read_reco(out)
    assert same_reco(read_back, made)
    assert read_back.hit_links is None
    with pytest.raises(InputError, match="which hits the particles are made of"):
        read_reco(out, links="required")


def test_candidates_are_a_collection_of_their_own(source, reconstruct, same_reco):
    tracks = make_links(source=[[1, 0], []], particle=[[2, 2], []], weight=[[0.75, 0.25], []], normalise=False)
    change = {"candidates": lambda made: made.particles[:, ::-1], "track_links": lambda _: tracks}
    out, made, _ = reconstruct(
        source,
        change=lambda made: dataclasses.replace(made, **{name: of(made) for name, of in change.items()}),
        candidates=True,
    )
    read_back = read_reco(out)
    assert same_reco(read_back, made)
    assert read_back.candidates.existence.to_list() == made.candidates.existence.to_list()
    with uproot.open(out) as file:
        n = ak.num(made.candidates).to_list()
        assert [len(particles) for particles in objects(file, "PFlowCandidates.energy")] == n
        assert objects(file, "PFlowTrackWeights") == [[0.75, 0.25], []]  # the largest of a particle first
        ids = records(file, "_PFlowCandidatesParticleID_particle").collectionID
        assert set(ak.flatten(ids)) == {collection_id("PFlowCandidates")}


def test_a_collection_that_was_dropped_from_the_file_is_not_copied(write_podio, content, reconstruct, same_reco):
    path = write_podio(content, dropped=("Gone", "Lost"))
    with pytest.warns(UserWarning, match=r"podio\.root: Gone, Lost of its metadata is not or not whole in the file"):
        out, made, _ = reconstruct(path)
    assert same_reco(read_reco(out), made)
    names = {info.name for info in open_podio(out).infos()}
    assert {"A1", "Tracks", "PFlow"} <= names
    assert not names & {"Gone", "Lost"}


def ranges(objects: list[dict[str, Any]], name: str) -> list[tuple[int, int]]:
    return [(one[f"{name}_begin"], one[f"{name}_end"]) for one in objects]


def test_references_clusters_and_probabilities_of_particles(written):
    """Particle 1 has half of hit 1 of A1 and all of A2's and B's; particle 2 the other half, and track 1."""
    out, made, _ = written
    file = uproot.open(out)
    hits = objects(file, "_PFlowClusters_hits")
    assert [tuple(hit.values()) for hit in hits[0]] == [(1, 11), (0, A2), (0, 13), (1, 11)]
    assert hits[1] == [{"index": 0, "collectionID": A2}]
    assert objects(file, "PFlowHitWeights")[0] == [0.375, 0.75, 0.75, 0.375]
    assert objects(file, "_PFlow_tracks") == [[{"index": 1, "collectionID": 14}], []]
    particles, clusters = objects(file, "PFlow")[0], objects(file, "PFlowClusters")[0]
    assert ranges(particles, "tracks") == [(0, 0), (0, 0), (0, 1)]
    assert ranges(particles, "clusters") == [(0, 0), (0, 1), (1, 2)]
    references = [{"index": i, "collectionID": collection_id("PFlowClusters")} for i in range(2)]
    assert objects(file, "_PFlow_clusters")[0] == references
    nothing = {"index": -2, "collectionID": 0}
    assert objects(file, "_PFlow_decayVertex") == [[nothing] * 3, [nothing]]
    cluster = clusters[0]
    energy = np.array([0.375 * 2.0, 0.75 * 3.0, 0.75 * 4.0])
    assert cluster["energy"] == pytest.approx(energy.sum())
    assert cluster["position.x"] == pytest.approx(energy @ [1020.0, 1030.0, 1300.0] / energy.sum())
    assert (cluster["iTheta"], cluster["iPhi"]) == pytest.approx((np.pi / 2, 0.0))
    assert objects(file, "_PFlowClusters_subdetectorEnergies")[0][:3] == pytest.approx([3.0, 3.0, 0.0])
    assert ranges(clusters[:1], "hits") == ranges(clusters[:1], "subdetectorEnergies") == [(0, 3)]
    numbers = ak.concatenate([made.particles.scores, made.particles.existence[:, :, np.newaxis]], axis=2)
    assert objects(file, "_PFlowParticleID_parameters") == ak.flatten(numbers, axis=2).to_list()
    pid = objects(file, "PFlowParticleID")[0]
    assert [(hypothesis["PDG"], hypothesis["type"]) for hypothesis in pid] == [(111, 1), (22, 2), (11, 3)]
    assert [hypothesis["likelihood"] for hypothesis in pid] == made.particles.score[0].to_list()
    assert ranges(pid, "parameters") == [(0, 6), (6, 12), (12, 18)]
    references = [{"index": i, "collectionID": collection_id("PFlow")} for i in range(3)]
    assert objects(file, "_PFlowParticleID_particle")[0] == references
    texts = metadata(file, "String")
    assert texts["PFlowParticleID__AlgoName"] == ["PFlow"]
    assert texts["PFlowParticleID__ParameterNames"] == [*CLASSES, "existence"]
    assert metadata(file, "Int")["PFlowParticleID__AlgoType"] == [pid[0]["algorithmType"]]
    assert texts["PFlowClusters__SubdetectorNames"] == ["ecal", "hcal", "muon"]


def metadata(file: Any, kind: str) -> dict[str, Any]:
    keys, values = (file["metadata"][f"GP{kind}{part}"].array().to_list()[0] for part in ("Keys", "Values"))
    return dict(zip(keys, values, strict=True))


def test_links_to_monte_carlo_particles_are_by_energy_or_by_tracks(source, written, reconstruct):
    """Hit 1 of A1 (2 GeV) belongs to particles 1 and 2 by halves, and so do the true ones."""
    file = uproot.open(written[0])
    links = zip(
        *(objects(file, name)[0] for name in ("_PFlowMCParticleLinks_from", "_PFlowMCParticleLinks_to")), strict=True
    )
    pairs = [(start["index"], end["index"]) for start, end in links]
    assert pairs == [(1, 2), (1, 1), (2, 1), (2, 2)]  # the largest of each particle last
    weights = [link["weight"] for link in objects(file, "PFlowMCParticleLinks")[0]]
    energy = 1.0 + 3.0 + 4.0
    assert weights == pytest.approx([0.5 / energy, (0.5 + 3.0 + 4.0) / energy, 0.5, 0.5])
    assert {link["collectionID"] for link in objects(file, "_PFlowMCParticleLinks_to")[0]} == {15}
    tracks_only = {"change": lambda made: dataclasses.replace(made, hit_links=made.hit_links[:, :0])}
    file = uproot.open(reconstruct(source, mc_links=True, **tracks_only)[0])
    assert objects(file, "PFlowMCParticleLinks") == [[{"weight": 1.0}], []]
    assert objects(file, "_PFlowMCParticleLinks_from")[0] == [{"index": 2, "collectionID": collection_id("PFlow")}]


def test_links_to_particles_that_the_detector_does_not_name_are_refused(source, toy, tmp_path):
    """As the description drafted from a file without any."""
    with (
        open_events(source, detector=dataclasses.replace(toy, truth_particles=())) as file,
        pytest.raises(InputError, match="links to Monte Carlo particles need an EDM4hep file that holds them"),
    ):
        Edm4hepRecoWriter(tmp_path / "out.root", file, mc_links=True, provenance={})


def test_the_inputs_collections_are_kept_as_they_are(source, written, toy):
    out, _, events = written
    again = read_events(out, detector=toy)
    for name, part in events.parts():
        assert ak.array_equal(getattr(again, name), part, equal_nan=True)
    input_file, output_file = uproot.open(source), uproot.open(out)
    assert metadata(output_file, "String").items() >= metadata(input_file, "String").items()
    assert output_file["runs"]["GPIntValues"].array().to_list() == input_file["runs"]["GPIntValues"].array().to_list()
    assert "weight" in output_file["events"]["GPFloatKeys"].array()[0].to_list()


def test_an_input_that_is_not_copied_has_its_hits_and_tracks_written(write, content, reconstruct, same_reco):
    path = write(content, "rntuple")
    with pytest.warns(UserWarning, match="does not say the types.*hits and tracks that were used instead"):
        out, made, events = reconstruct(path)
    assert same_reco(read_reco(out), made)
    file = uproot.open(out)
    names = ("EventHeader", "PFlow", "PFlowCaloHits", "PFlowClusters", "PFlowHitWeights", "PFlowParticleID")
    infos = open_podio(out).infos()
    assert [info.name for info in infos] == [*names, "PFlowTrackWeights", "PFlowTracks"]
    assert {info.schema_version for info in infos if info.data_type.startswith("podio")} == {1}
    assert [event[0]["eventNumber"] for event in objects(file, "EventHeader")] == events.event.tolist()
    ids = {reference["collectionID"] for event in objects(file, "_PFlowClusters_hits") for reference in event}
    assert ids == {collection_id("PFlowCaloHits")}
    with pytest.raises(InputError, match="need an EDM4hep file"), pytest.warns(UserWarning, match="types"):
        reconstruct(path, mc_links=True)


def test_hits_and_tracks_of_edm4eic_are_not_referred_to(write_podio, content, reconstruct, same_reco):
    out, made, _ = reconstruct(write_podio(content, namespace="edm4eic"))
    assert same_reco(read_reco(out), made)
    for branch, ours in {"_PFlowClusters_hits": "PFlowCaloHits", "_PFlow_tracks": "PFlowTracks"}.items():
        ids = {reference["collectionID"] for event in objects(uproot.open(out), branch) for reference in event}
        assert ids == {collection_id(ours)}
    assert open_podio(out).types["Tracks"] == "edm4eic::TrackCollection"


def test_hits_and_tracks_of_another_schema_are_written_as_collections(reconstruct, sample_dir, same_reco, caplog):
    with caplog.at_level("INFO", "pflow"):
        out, made, events = reconstruct(sample_dir / "multi_test_small.root", detector=None, stop=3)
    assert caplog.text.count("the input has no d0 and z0; in PFlowTracks D0 = Z0 = 0") == 1
    assert same_reco(read_reco(out), made)
    written = uproot.open(out)
    hits, tracks = (records(written, name) for name in ("PFlowCaloHits", "PFlowTracks"))
    assert hits.energy.to_list() == events.hits.energy.to_list()
    assert hits["position.x"].to_list() == events.hits.position.x.to_list()
    assert hits["type"].to_list() == events.hits.subdetector.to_list()
    clusters = records(written, "PFlowClusters")
    theta = np.arctan2(np.hypot(clusters["position.x"], clusters["position.y"]), clusters["position.z"])
    assert ak.sum(abs(clusters.iTheta - theta) < 0.1) == 3  # of six; the others are hadrons
    assert events.tracks is not None
    states = records(written, "_PFlowTracks_trackStates")
    assert ak.num(states).to_list() == (2 * ak.num(tracks)).to_list()
    at_ip, at_face = states[states.location == 1], states[states.location == 4]
    assert at_ip.omega.to_list() == events.tracks.omega.to_list()
    assert at_face["referencePoint.z"].to_list() == events.tracks.calo_position.z.to_list()
    momentum = events.tracks.calo_momentum
    assert ak.all(ak.isclose(at_face.tanLambda, momentum.pz / momentum.pt, rtol=1e-6))
    assert ak.all(ak.isclose(0.299792458e-3 * events.detector.b_field / abs(at_face.omega), momentum.pt, rtol=1e-6))
    assert ak.all(np.isfinite(at_ip.D0) & np.isfinite(at_ip.Z0))
    ids = written["events"]["_PFlowClusters_hits/_PFlowClusters_hits.collectionID"].array()
    assert set(ak.flatten(ids).to_list()) == {collection_id("PFlowCaloHits")}


def test_simulated_hits_are_digitised_and_linked(cld_sim_path, reconstruct, same_reco):
    out, made, events = reconstruct(cld_sim_path, detector="cld", stop=1)
    assert same_reco(read_reco(out), made)
    written, original = uproot.open(out), uproot.open(cld_sim_path)["events"]
    ours = records(written, "PFlowCaloHits")[0]
    assert ours.energy.to_list() == events.hits.energy[0].to_list()
    links = records(written, "_PFlowCaloHitSimLinks_to")[0]
    barrel = links.collectionID == collection_id("ECalBarrelCollection")
    assert 100 < ak.sum(barrel) < len(ours)
    name = "ECalBarrelCollection"
    for member, values in (("cellID", ours.cellID), ("position.y", ours["position.y"])):
        theirs = original[f"{name}.{member}"].array()[0]
        assert values[barrel].to_list() == theirs[links.index[barrel]].to_list()


def test_an_entry_that_cannot_be_decoded_is_empty_if_it_was_skipped(source, toy, perfect, tmp_path, monkeypatch):
    read = Edm4hepReader.read_with_origins

    def damaged(self, start, stop, *, truth):
        if stop > 1:
            raise InputError("damaged", file=self.path, entry=start)
        return read(self, start, stop, truth=truth)

    monkeypatch.setattr(Edm4hepReader, "read_with_origins", damaged)
    out = tmp_path / "out.root"
    with open_events(source, detector=toy) as file:
        made = perfect(file.read().emptied(np.array([False, True])))
        used, skipped = (dataclasses.replace(made, flags=np.array(flags, np.uint32)) for flags in ([0, 0], [0, 1]))
        with pytest.raises(InputError, match="damaged"), Edm4hepRecoWriter(out, file, provenance={}) as writer:
            writer.extend(used)
        with Edm4hepRecoWriter(out, file, provenance={}) as writer:
            writer.extend(skipped)
    read_back = read_reco(out)
    assert ak.num(read_back.particles).to_list() == [3, 0]
    assert read_back.particles.to_list() == skipped.particles.to_list()
    assert read_back.flags.tolist() == [0, 1]
    assert ak.num(read_back.hit_links).to_list() == ak.num(skipped.hit_links).to_list()


def test_an_output_is_not_reconstructed_again_with_its_collections(written, reconstruct):
    with pytest.raises(ConfigError, match="a collection 'PFlow' already"):
        reconstruct(written[0])


def test_particles_of_any_edm4hep_file_can_be_read(cld_path):
    pandora = read_reco(cld_path, name="PandoraPFOs")
    assert ak.num(pandora.particles).to_list() == [46, 39, 19, 34, 34]
    assert pandora.hit_links is None
    with pytest.raises(InputError, match="PandoraPFOs") as error:
        read_reco(cld_path, name="PandoraPFO")
    assert error.value.field == "PandoraPFO"
