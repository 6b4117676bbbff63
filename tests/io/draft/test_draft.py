import dataclasses

import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event.closure import TrackDeposits
from pflow.io import draft_measure as measure
from pflow.io.draft import Answers, Note, draft_detector, draft_to_yaml, place_of
from pflow.io.draft_measure import CELL, HitSample, _electron_scales
from pflow.io.edm4hep.podio import collection_id, open_podio
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.physics.geometry import Geometry

LENGTHS = ("ecal_inner_radius", "ecal_outer_radius", "ecal_inner_z")


@pytest.mark.parametrize(
    ("sides", "phase", "radius", "z", "b_field"),
    [(8, np.pi / 8, 1600.0, 2000.0, 3.0), (16, 0.0, 1250.0, 1800.0, 3.8), (0, 0.0, 900.0, 1700.0, 1.7)],
)
def test_another_geometry_is_measured(made_up, write_made_up, sides, phase, radius, z, b_field):
    content = made_up(sides=sides, phase=phase, radius=radius, z=z, b_field=b_field)
    draft = draft_detector(write_made_up(content, **({} if phase else {"encodings": None})))
    detector = draft.detector
    assert [getattr(detector, field) for field in LENGTHS] == pytest.approx([radius, radius + 120, z], abs=3.0)
    assert [detector.hcal_inner_radius, detector.hcal_inner_z] == pytest.approx([radius + 180, z + 180], abs=15.0)
    assert detector.phi_symmetry == (sides or None)
    assert detector.b_field == pytest.approx(b_field, rel=0.01)
    assert {draft.notes[field].how for field in (*LENGTHS, "phi_symmetry", "b_field")} == {"measured"}
    assert draft.entries == 4
    assert ("calorimeters.ecal_barrel.cell_encoding" in draft.to_fill_in()) == (not phase)


def test_hits_on_no_layers_leave_the_symmetry_open(made_up, write_made_up):
    content = made_up()
    rng = np.random.default_rng(0)
    stretch = rng.uniform(1, 1.1, content["ECALBarrel.energy"].shape)
    for axis in "xy":
        content[f"ECALBarrel.position.{axis}"] *= stretch
    draft = draft_detector(write_made_up(content))
    assert draft.detector.phi_symmetry == 1
    assert "phi_symmetry" in draft.to_fill_in()
    assert draft.notes["ecal_inner_radius"].how == "guessed"


def test_hits_on_few_sides_leave_the_number_of_sides_open(made_up, write_made_up):
    content = made_up(sides=4)  # the sides of an octagon at azimuths of 0, 90, 180 and 270 degrees, not at its corners
    for axis, other in ("xy", "yx"):
        towards = np.abs(content[f"ECALBarrel.position.{axis}"]) > np.abs(content[f"ECALBarrel.position.{other}"])
        content[f"ECALBarrel.position.{other}"] = np.where(towards, 0.2, 1.0) * content[f"ECALBarrel.position.{other}"]
    draft = draft_detector(write_made_up(content))
    note = draft.notes["calorimeters.ecal_barrel.sides"]
    assert note == Note("guessed", "4 or 8 or 12 or 16 fit the layers equally well; 0: a cylinder")


def test_answers_place_collections_without_telling_names_and_give_the_field(made_up, write_made_up):
    content = {k.replace("ECALBarrel", "Alpha").replace("HCALEndcap", "Delta"): x for k, x in made_up().items()}
    content |= {k.replace("Delta", "Gamma"): [[]] * len(x) for k, x in content.items() if k.startswith("Delta")}
    path = write_made_up(content)
    draft = draft_detector(path, Answers(place={"Alpha": "ecal_barrel", "Delta": "hcal_endcap"}, b_field=3.5))
    assert [part.collections for part in draft.detector.calorimeters] == [
        (name,) for name in ("Alpha", "ECALEndcap", "HCALBarrel", "Delta")
    ]
    assert draft.notes["calorimeters.ecal_barrel.kind"] == Note("given", "--place (Alpha)")
    assert draft.detector.b_field == 3.5
    assert draft.notes["b_field"].text.startswith("--b-field; 3 +- 0.002 from 48 tracks and the particles")
    draft = draft_detector(path)
    assert draft.left_out["Gamma"] == "no hits in 4 events"
    assert draft.left_out["Delta"].endswith("is not known; --place Delta=ecal_endcap or another says it")
    with pytest.raises(ConfigError, match=r"no collection of hits 'Alfa'.*nearest matches: Alpha"):
        draft_detector(path, Answers(place={"Alfa": "ecal_barrel"}))


@pytest.mark.parametrize("b_field", [2.5, -1.7])
def test_simulated_tracker_hits_show_the_field_and_its_sign(made_up, write_made_up, b_field):
    content = {key: values for key, values in made_up().items() if "Track" not in key}
    px, py, pz, charge = (
        content[f"MCParticles.{name}"] for name in (*(f"momentum.{axis}" for axis in "xyz"), "charge")
    )
    pt, radius, index = np.hypot(px, py), 1000.0, np.broadcast_to(np.arange(12), px.shape)
    half = -np.arcsin(charge * b_field * 0.299792458e-3 * radius / pt / 2)  # of the way to the hit
    phi = np.arctan2(py, px)
    content |= {"Hits.cellID": index, "Hits.time": 0 * pt, "Hits.position.z": radius * pz / pt, "Hits.momentum.z": pz}
    for axis, of in (("x", np.cos), ("y", np.sin)):
        content[f"Hits.position.{axis}"] = 10.0 + radius * of(phi + half)
        content[f"Hits.momentum.{axis}"] = pt * of(phi + 2 * half)
        content[f"MCParticles.vertex.{axis}"] = 10.0 + 0 * pt
    ids = np.full(px.shape, collection_id("MCParticles"))
    content |= {"_Hits_particle.index": index, "_Hits_particle.collectionID": ids}
    path = write_made_up(content)
    draft = draft_detector(path)
    assert draft.detector.truth_tracks.sim_tracker_hits == ("Hits",)
    assert draft.detector.b_field == pytest.approx(b_field, rel=1e-3)
    assert draft.notes["b_field"].text.endswith(
        "from 48 particles and their simulated tracker hits; better: the nominal value"
    )
    assert draft_detector(path, Answers(b_field=1.1 * b_field)).detector.b_field == 1.1 * b_field
    with pytest.raises(ConfigError, match=rf"--b-field {-b_field}: particles bend the other way .*: give {b_field}"):
        draft_detector(path, Answers(b_field=-b_field))
    content["Hits.momentum.x"] = -content["Hits.momentum.x"]  # of no circle from the vertex
    with pytest.raises(InputError, match=r"tells the field: .* or of these with simulated tracker hits"):
        draft_detector(write_made_up(content))


def test_thresholds_are_guessed_as_low_as_the_hits_need():
    """Silicon of some 0.15 MeV, gas with less energy than CLD's threshold for scintillator, and a muon system."""
    energy = np.linspace(0.0, 3e-4, 1001)
    assert measure.guess_threshold("ecal", energy)[::2] == ("guessed", 5e-5)
    assert measure.guess_threshold("hcal", energy / 100)[2] == pytest.approx(3e-6 * 0.1**0.5, rel=0.02)
    for kind, of in (("muon", energy), ("ecal", energy[:0]), ("ecal", np.array([np.nan]))):
        assert measure.guess_threshold(kind, of)[::2] == ("fill in", None)


def test_a_file_without_the_field_is_refused(made_up, write_made_up):
    path = write_made_up({key: values for key, values in made_up().items() if "TrackLinks" not in key})
    with pytest.raises(InputError, match=r"nothing in the file tells the field.*--b-field"):
        draft_detector(path)
    assert draft_detector(path, Answers(b_field=3.0)).detector.tracks == ("Tracks",)


def test_endcaps_of_two_collections_that_begin_at_different_z_are_said_to(made_up, write_made_up):
    content = made_up()
    z = content["ECALEndcap.position.z"]
    forward = z > 0
    z += 400 * forward
    content["ECALEndcap.cellID"] = np.arange(1200).reshape(4, 300)
    for key in [key for key in content if key.startswith("ECALEndcap.")]:  # other cells, as in ePIC
        rows, factor = list(zip(content[key], forward, strict=True)), 3 if key.endswith((".x", ".y")) else 1
        content[f"EcalEndcapP.{key.split('.', 1)[1]}"] = [factor * row[side] for row, side in rows]
        content[key] = [row[~side] for row, side in rows]
    draft = draft_detector(write_made_up(content, encodings=None))
    assert draft.detector.ecal_inner_z == pytest.approx(2000.0, abs=3.0)
    note = draft.notes["ecal_inner_z"]
    assert (note.how, "z = -2003 and 2403 mm" in note.text) == ("guessed", True)


@pytest.mark.parametrize(
    ("region", "unknown"),
    [("Barrel", {"ecal_inner_radius", "ecal_outer_radius", "phi_symmetry"}), ("Endcap", {"ecal_inner_z"})],
)
def test_without_hits_of_a_region_its_lengths_must_be_filled_in(made_up, write_made_up, region, unknown):
    content = {key: [[]] * 4 if key.startswith(f"ECAL{region}") else values for key, values in made_up().items()}
    draft = draft_detector(write_made_up(content))
    lengths = {"ecal_inner_radius": 1600.0, "ecal_inner_z": 2000.0}
    assert unknown <= set(draft.to_fill_in())
    assert all(getattr(draft.detector, name) == pytest.approx(lengths[name], abs=3.0) for name in {*lengths} - unknown)


def test_copies_of_a_collection_are_left_out(made_up, write_made_up):
    content = made_up()
    content["ECALBarrel.cellID"] = np.arange(1200).reshape(4, 300)
    merged = {
        f"EcalBarrelMerged.{key.split('.', 1)[1]}": [event[:250] for event in values]
        for key, values in content.items()
        if key.startswith("ECALBarrel.")
    }
    unplaced = {
        f"CellsOfEcalBarrel.{key.split('.', 1)[1]}": 0 * values if "position" in key else values
        for key, values in content.items()
        if key.startswith("ECALBarrel.")
    }
    draft = draft_detector(write_made_up(content | merged | unplaced, encodings=None))
    assert draft.detector.calorimeters[0].collections == ("ECALBarrel",)
    assert draft.left_out["EcalBarrelMerged"] == "holds mostly the cells of ECALBarrel"
    assert draft.left_out["CellsOfEcalBarrel"] == "1,200 hits without positions"


@pytest.fixture(scope="module")
def drafts(cld_path, cld_sim_path):
    """Drafts from the small samples of CLD, reconstructed and simulated."""
    return draft_detector(cld_path), draft_detector(cld_sim_path, Answers(b_field=2.0))


@pytest.fixture(scope="module")
def real(data_dir):
    names = ("cld_rec.edm4hep", "ild_g4_zqq_rntuple")
    return {name.split(".")[0]: draft_detector(data_dir / "edm4hep" / f"{name}.root") for name in names}


def test_the_small_files_of_cld_give_the_built_in_description(drafts):
    """Each but for the collections of the other, and the muon system's."""
    cld, (reconstructed, simulated) = load_detector("cld"), (draft.detector for draft in drafts)
    lengths = pytest.approx([getattr(cld, field) for field in LENGTHS], abs=5.05)
    for drafted in (reconstructed, simulated):
        assert [getattr(drafted, field) for field in LENGTHS] == lengths
        assert drafted.phi_symmetry == 12
        assert drafted.b_field == pytest.approx(2.0, rel=0.01)
    calorimeters = cld.calorimeters[:4]
    for own, other, built_in in zip(reconstructed.calorimeters, simulated.calorimeters, calorimeters, strict=False):
        assert own.collections == built_in.collections
        assert other.sim_collections == built_in.sim_collections
        assert (own.name, own.kind, own.region) == (other.name, other.kind, other.region)
    assert (reconstructed.tracks[0], reconstructed.references) == (cld.tracks[0], cld.references)
    assert (reconstructed.hit_links, reconstructed.track_links) == (cld.hit_links, cld.track_links)
    assert set(reconstructed.tracker_hits) == set(cld.tracker_hits)
    assert simulated.truth_tracks.sides == 12
    assert simulated.truth_tracks.unknown == ("min_layers", "max_vertex_radius", "inverse_pt", "angle", "impact")
    assert set(simulated.truth_tracks.sim_tracker_hits) == set(cld.truth_tracks.sim_tracker_hits)


def test_a_cld_file_gives_its_tracks_and_calibration(real):
    cld, draft = load_detector("cld"), real["cld_rec"].detector
    for drafted, built_in in zip(draft.calorimeters, cld.calorimeters[:4], strict=True):
        assert drafted.sim_measures_time == built_in.sim_measures_time
        assert drafted.sim_scale == pytest.approx(built_in.sim_scale, rel=1e-5)
    left_out = real["cld_rec"].left_out
    assert left_out["HCALOther"] == "no hits in 1 event"
    assert left_out["MUON"] == "19 hits in 1 event, too few for the size of its cells (--entries)"
    assert (draft.tracks, draft.truth_particles) == (cld.tracks, ("MCParticles",))
    windows = {f"calorimeters.{calorimeter.name}.sim_time_window" for calorimeter in draft.calorimeters}
    assert windows <= set(real["cld_rec"].to_fill_in())


@pytest.mark.filterwarnings("ignore:.*names no calorimeter for the hits of HCalRing")
def test_the_draft_of_a_reconstructed_file_digitises_simulated_ones(real, data_dir, full_cld):
    path = data_dir / "edm4hep" / "cld_sim.edm4hep.root"
    draft, counts, energies = real["cld_rec"].detector, [], []
    windows = [calorimeter.sim_time_window for calorimeter in load_detector("cld").calorimeters[:4]]
    parts = [dataclasses.replace(part, sim_time_window=w) for part, w in zip(draft.calorimeters, windows, strict=True)]
    for events in (full_cld[0], read_events(path, detector=dataclasses.replace(draft, calorimeters=tuple(parts)))):
        subdetector = np.concatenate(events.hits.subdetector.to_list())
        counts.append(np.bincount(subdetector, minlength=4)[:4])
        energies.append(np.bincount(subdetector, np.concatenate(events.hits.energy.to_list()), minlength=4)[:4])
    np.testing.assert_allclose(counts[1], counts[0], rtol=0.03)
    np.testing.assert_allclose(energies[1], energies[0], rtol=0.01)


def test_the_rntuple_file_gives_the_simplified_ild(real):
    ild, draft = load_detector("ild_g4"), real["ild_g4_zqq_rntuple"].detector
    fields = (*LENGTHS, "hcal_inner_radius", "hcal_inner_z")
    expected = [getattr(ild, field) for field in fields]
    assert [getattr(draft, field) for field in fields] == pytest.approx(expected, rel=0.01)
    assert draft.phi_symmetry is None
    assert draft.b_field == pytest.approx(3.5, rel=0.001)
    drafted, built_in = ([system.collections for system in detector.calorimeters] for detector in (draft, ild))
    assert drafted == built_in


@pytest.mark.parametrize(("name", "detector"), [("cld_rec", "cld"), ("ild_g4_zqq_rntuple", "ild_g4")])
def test_cells_and_layers_are_measured(real, name, detector):
    nominal = {calorimeter.name: calorimeter for calorimeter in load_detector(detector).calorimeters}
    for calorimeter in real[name].detector.calorimeters:
        expected = nominal[calorimeter.name]
        assert calorimeter.cell_size == pytest.approx(expected.cell_size, rel=0.05)
        assert calorimeter.sides == expected.sides
        front, nominal_front = (described.inner_radius or described.inner_z for described in (calorimeter, expected))
        assert front == pytest.approx(nominal_front, abs=15)
        for layers, like in zip(calorimeter.layers, expected.layers, strict=True):
            assert layers.pitch == pytest.approx(like.pitch, abs=0.15)
            assert layers.count == pytest.approx(like.count, abs=5)
            assert (layers.radiation_lengths, layers.interaction_lengths) == (None, None)
    with pytest.raises(ConfigError, match=r"lengths of layers of ecal_barrel, .*; hadron_scale of hcal_barrel, hcal_"):
        Geometry.of(real[name].detector)


def test_isolated_tracks_give_the_scale_of_hadrons_if_they_are_enough(drafts, real, data_dir, monkeypatch):
    def noted(draft):
        hcals = [part for part in draft.detector.calorimeters if part.kind == "hcal"]
        (scale,) = {part.hadron_scale for part in hcals}
        (note,) = {draft.notes[f"calorimeters.{part.name}.hadron_scale"] for part in hcals}
        return scale, note

    unknown = "; 1 is ild_g4's, CLD's is 0.79"
    scale, note = noted(drafts[1])
    assert (scale, note.how, "sim_scale" in note.text) == (None, "fill in", True)
    few = "9 isolated tracks in 40 events; 20 and 10% are needed (--entries)"
    assert noted(real["ild_g4_zqq_rntuple"]) == (None, Note("fill in", few + unknown))

    path, jets = data_dir / "edm4hep" / "ild_g4_zqq_rntuple.root", "times 1.06 for neutral particles near them, as "

    def with_scales(scale, spread):
        hadrons = scale + spread * np.linspace(-1.0, 1.0, 41)
        monkeypatch.setattr(measure.TrackDeposits, "hadron_scales", lambda _: hadrons)

    for scale, spread in ((1.063, 2.0), (-0.5, 0.01)):
        with_scales(scale, spread)
        value, text = measure.measure_scales(open_podio(path), load_detector("ild_g4"), 2)["hadron_scale"]
        assert value is None
        assert text.startswith(f"{scale:.2f} +- ")
        assert "by 41 isolated tracks in 2 events" in text
        assert jets not in text
    with_scales(1.063, 0.1)
    scale, note = noted(draft_detector(path, max_entries=2))
    assert (scale, note.how) == (1.13, "measured")
    assert note.text.startswith("1.06 +- ")
    assert jets in note.text


def test_a_draft_loads_with_its_notes(drafts, tmp_path):
    for draft in drafts:
        (tmp_path / "mine.yaml").write_text(draft_to_yaml(draft), "utf-8")
        assert load_detector(tmp_path / "mine.yaml") == draft.detector
        lines = draft_to_yaml(draft).splitlines()
        for note in draft.notes.values():
            mark = "FILL IN" if note.how == "fill in" else note.how
            assert any(line.endswith(f"  # {mark}: {note.text}") for line in lines)
    (field,) = [line for line in draft_to_yaml(drafts[0]).splitlines() if line.startswith("b_field")]
    assert field.startswith("b_field: 2.0  # measured: 2 +- 0.0002 from 65 tracks")


@pytest.mark.parametrize(
    ("kind", "region", "names"),
    [  # of CLD and CLIC, ILD, SiD, ALLEGRO and ePIC
        ("ecal", "barrel", "ECALBarrel ECalBarrelModuleThetaMergedPositioned EcalBarrelScFiRecHits EmCalBarrel"),
        ("ecal", "endcap", "ECalEndcapCollection EcalEndcapNRecHits"),
        ("ecal", "other", "ECalPlugCollection EcalEndcapRingCollectionRec"),
        ("hcal", "endcap", "HcalEndcapsCollectionRec DigitalHCALEndcap"),
        ("hcal", "other", "HCALOther HCalRingCollection"),
        ("muon", "other", "YokeBarrelCollection MuonTaggerBarrelPhiThetaPositioned MUON"),
        ("lumi", "other", "LumiCalCollection BeamCalHits EcalLumiSpecRecHits"),
        ("", "", "SomeHits HAD_PLATES LFHCALRecHits"),
    ],
)
def test_names_tell_the_calorimeter(kind, region, names):
    for name in names.split():
        assert place_of(sample(name), {}) == ((kind, region) if kind else None), name


def sample(name: str, *places: tuple[float, float]) -> HitSample:
    """Hits at these radii and z, mm."""
    cell, n = np.zeros(len(places), CELL), len(places)
    position = np.array([(radius, 0.0, z) for radius, z in places]).reshape(-1, 3)
    hits = {"cell": cell, "position": position, "energy": np.ones(n), "time": np.zeros(n), "layer": None}
    return HitSample(name=name, simulated=False, **hits)


def test_a_place_is_given_or_forward_by_hits_close_to_the_beam():
    assert place_of(sample("HcalEndcapZDC", (40, 35000), (300, -35000)), {}) == ("lumi", "endcap")
    assert place_of(sample("HcalEndcap", (300, 2200), (2500, -2200)), {}) == ("hcal", "endcap")
    hits = sample("EcalBarrel", (40, 35000), (300, -35000))
    assert place_of(hits, {"EcalBarrel": "ecal_endcap"}) == ("ecal", "endcap")
    for wrong in ("ecal", "ecal_middle", "tracker_barrel"):
        with pytest.raises(ConfigError, match=f"--place EcalBarrel={wrong}: expected e.g. EcalBarrel=ecal_barrel"):
            place_of(hits, {"EcalBarrel": wrong})


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 1.4])
def test_electrons_give_the_scale_of_the_ecal_and_hadrons_none(scale):
    rng = np.random.default_rng(1)
    n_electrons, n = 70, 110
    momentum = rng.uniform(3.0, 40.0, n)
    in_ecal = (
        np.where(np.arange(n) < n_electrons, rng.normal(1.0, 0.06, n), rng.normal(0.55, 0.18, n)) * momentum / scale
    )
    columns = dict.fromkeys((field.name for field in dataclasses.fields(TrackDeposits)), np.zeros(n))
    columns |= {
        "momentum": momentum,
        "narrow": np.stack([np.zeros(n), in_ecal], axis=1),
        "around": np.zeros((n, 2)),
        "separation": np.full(n, np.inf),
    }
    entries = TrackDeposits(**columns)
    found = _electron_scales(entries)
    assert len(found) == pytest.approx(n_electrons, abs=10)
    assert np.median(found) == pytest.approx(scale, rel=0.03)
    only_hadrons = {name: values[n_electrons:] for name, values in vars(entries).items()}
    assert len(_electron_scales(TrackDeposits(**only_hadrons))) == 0
    crowded = TrackDeposits(**vars(entries) | {"separation": np.zeros(n)})
    assert len(_electron_scales(crowded)) == 0
    # As in ild_g4's Z -> qq: hadrons of which less than half have some 0.58 of their momentum there, within 8%.
    narrow = np.concatenate([rng.normal(0.58, 0.035, 35), rng.uniform(0.05, 1.3, 75)]) * momentum / scale
    of_jets = TrackDeposits(**vars(entries) | {"narrow": np.stack([np.zeros(n), narrow], axis=1)})
    assert len(_electron_scales(of_jets)) == 0
