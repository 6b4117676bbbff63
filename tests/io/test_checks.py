"""Implausible events and links that lead nowhere give one warning with numbers; `pflow inspect` lists the same."""

import dataclasses
import re
import warnings

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.checkpoint.format import read_header
from pflow.event import jagged
from pflow.event.events import Events, ImplausibleWarning
from pflow.event.jagged import Links
from pflow.event.scales import SampleScales
from pflow.event.scales import problems as problems_of
from pflow.event.schema import make_hits
from pflow.io.checks import Expected, check_events
from pflow.io.flat import write_events
from pflow.io.inspect import inspect_file
from pflow.io.open import ReadOptions, open_events, read_events
from pflow.physics.detector import load_detector
from pflow.physics.geometry import measures


def checks(events, **targets):
    return check_events(events, Expected(targets=targets))


def problems(events, **targets) -> list[str]:
    return [check.name for check in checks(events, **targets) if not check.good]


def test_full_simulation_passes_all_checks(cld_rec, cld_sim):
    assert problems(cld_rec) == problems(cld_sim) == []
    names = {"units", "response", "field", "charges", "targets", "hits twice", "tracks twice", "layers", "links"}
    names |= {"directions", "hits", "masses", "entries", "faces", "track directions"}
    assert {check.name for check in checks(cld_rec)} >= names


@pytest.mark.parametrize(
    ("part", "field", "factor", "names"),
    [
        ("hits", "energy", 1000.0, {"units", "hits", "response"}),
        ("hits", "energy", 0.025, {"units", "response", "targets"}),
        ("hits", "energy", 2.0, {"response"}),
        ("tracks", "momentum", 1.75, {"field", "entries"}),
        ("tracks", "charge", -1, {"charges", "entries"}),
        ("reference", "energy", 1000.0, {"units"}),
        ("truth", "status", 2001, {"status"}),
    ],
)
def test_a_wrong_scale_field_or_status_is_found(cld_rec, part, field, factor, names):
    records = getattr(cld_rec, part)
    changed = ak.with_field(records, records[field] * factor, field)
    assert set(problems(dataclasses.replace(cld_rec, **{part: changed}))) == names


@pytest.mark.parametrize(
    ("factor", "field", "said"),
    [
        (1.0, 2.0, ""),
        (2.0, 2.0, r"hit of the ECAL has 0\.02.* GeV, and in the training sample of the model 0\.01"),
        (3.0, 2.0, r"hit of the HCAL has 0\.1.* GeV, and in the training sample of the model 0\.04"),
        (1000.0, 2.0, r"events have up to .*e\+0. GeV in hits, and in the training sample of the model \d\d"),
        (1.0, 3.0, "tracks are curved as in 3 T, and in the training sample of the model 2"),
    ],
)
def test_scales_are_compared_with_those_of_the_training_sample(cld_path, cld_rec, factor, field, said):
    detector = dataclasses.replace(load_detector("cld"), b_field=field)
    with open_events(cld_path, detector=detector) as file:
        events, *_ = file.read_all(truth=False)
    events = dataclasses.replace(events, hits=_scaled(events.hits, factor))
    problems = problems_of(check_events(events, Expected(sample=SampleScales.of(cld_rec))))
    assert re.search(said, problems) if said else not problems


@pytest.mark.parametrize(
    ("factor", "said"),
    [(1.0, ""), (0.1, "hits near a track have 0"), (3.0, "hits near a track have"), (1000.0, "events have up to")],
)
def test_energies_are_compared_for_any_detector(cld_rec, factor, said):
    """A hit's energy depends on the sampling of a detector, the ratio to a track's momentum does not."""
    events = dataclasses.replace(cld_rec, hits=_scaled(cld_rec.hits, factor))
    problems = problems_of(check_events(events, Expected(sample=read_header("general").tokeniser.sample)))
    assert re.search(said, problems) if said else not problems


def test_a_detector_outside_of_the_training_is_said(cld_rec):
    near = load_detector("cld")
    coarse = [dataclasses.replace(c, cell_size=90.0) if c.kind == "hcal" else c for c in near.calorimeters]
    far = dataclasses.replace(near, name="mine", calorimeters=tuple(coarse), b_field=5.0)
    sample = SampleScales.of(cld_rec)
    sample = dataclasses.replace(sample, b_field=None, detectors=("cld", "ild_g4"), measures=measures(near))
    said = {}
    for detector in (near, far):
        events = dataclasses.replace(cld_rec, detector=detector)
        (said[detector.name],) = (c for c in check_events(events, Expected(sample=sample)) if c.name == "detector")
    assert said["cld"].good
    assert not said["mine"].good
    assert said["mine"].text == (
        "detector 'mine' is outside what the model was trained on, cld, ild_g4 and their variations: field [T] 5 "
        "(training: 2 to 2); cell size of the HCAL [mm] 90 (training: 30 to 30)"
    )


@pytest.mark.parametrize("model", ["ild-g4-photon", "ild-g4-translation", "general"])
def test_jets_without_tracks_are_no_photons(sample_dir, model):
    events = dataclasses.replace(read_events(sample_dir / "zqq_test_small.root").without_truth(), tracks=None)
    said = problems_of(check_events(events, Expected(sample=read_header(model).tokeniser.sample)))
    spread = r"energy of a typical event spreads over 1\.\d+ rad .*, and in the training sample of the model 0\.0377"
    assert not said if model == "general" else re.search(spread, said)


def test_hits_without_targets_are_found(cld_rec):
    links = cld_rec.hit_links
    fewer = links[links.source % 3 > 0]
    check, linked = (check for check in checks(dataclasses.replace(cld_rec, hit_links=fewer)) if not check.good)
    assert (check.name, linked.name) == ("targets", "links")
    assert "of the hits' energy belongs to no target of the rule 'stable'" in check.text


@pytest.mark.parametrize("factor", [3.0, 0.0])
def test_wrong_charges_become_the_pdgs_with_one_warning_a_file(write, content, toy, factor):
    content["MCParticles.PDG"] = [[111, 987654321, 11], [22]]
    content["MCParticles.charge"] = [[0, 0.5, -factor], [0]]
    with open_events(write(content), detector=toy) as file:
        with pytest.warns(ImplausibleWarning, match=rf"MCParticles\.charge .* 1 of 4 .*code 11: {-factor:g} e, "):
            truth = file.read().truth
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            file.read()
    assert truth.charge.to_list() == [[0.0, 0.5, -1.0], [0.0]]  # an unknown code keeps the file's
    checks = inspect_file(write(content), ReadOptions(detector=toy)).checks
    assert "MCParticles.charge" in [check.name for check in checks]


@pytest.mark.parametrize(
    ("branch", "dropped", "said"),
    [
        ("_HitLinks_from", "-", "0 of 6 references of HitLinks lead from A1 or A2 or B to MCParticles: Other is not"),
        ("_TrackLinks_to", "-", "0 of 1 references of TrackLinks lead from Tracks to MCParticles: Other is not in the"),
        ("", "A1.", "3 of 6 references of HitLinks .*: A1, Other is not in the file"),
    ],
)
def test_links_that_lead_nowhere_are_named(write, content, toy, branch, dropped, said):
    content = {key: values for key, values in content.items() if not key.startswith(dropped)}
    if branch:
        content[f"{branch}.collectionID"] = [[16] * len(event) for event in content[f"{branch}.collectionID"]]
    with pytest.warns(ImplausibleWarning, match=said):
        read_events(write(content), detector=toy)


@pytest.mark.parametrize("layout", ["new", "rntuple"])
def test_particles_of_digitised_hits_follow_from_simulated_ones(write, content, toy, ids, layout):
    """Hit -> simulated hit -> contribution -> particle: hit 0 of A1 is of two simulated hits, hit 1 of one."""
    chain = {key: values for key, values in content.items() if not key.startswith(("HitLinks", "_HitLinks"))}
    chain |= {f"SimA.{member}": [[1.0] * 3, []] for member in ("energy", "position.x", "position.y", "position.z")}
    chain |= {"SimA.cellID": [[0] * 3, []], "SimA.contributions_begin": [[0, 1, 2], []]}
    chain |= {"SimA.contributions_end": [[1, 2, 4], []], "_SimA_contributions.index": [[0, 1, 2, 3], []]}
    chain |= {"_SimA_contributions.collectionID": [[21] * 4, []], "SimAContributions.time": [[0.0] * 4, []]}
    chain |= {"SimAContributions.energy": [[1.0, 3.0, 1.0, 1.0], []]}
    chain |= {"_SimAContributions_particle.index": [[0, 1, 1, 2], []]}
    chain |= {"_SimAContributions_particle.collectionID": [[15] * 4, []]}
    chain |= {"Relations.weight": [[1.0] * 3, []], "_Relations_from.index": [[0, 0, 1], []]}
    chain |= {"_Relations_from.collectionID": [[11] * 3, []], "_Relations_to.index": [[0, 1, 2], []]}
    chain |= {"_Relations_to.collectionID": [[31] * 3, []]}
    links = read_events(write(chain, layout, ids=ids | {"SimA": 31}), detector=toy).hit_links
    assert (links.source.to_list(), links.particle.to_list()) == ([[0, 0, 1, 1], []], [[0, 1, 1, 2], []])
    assert links.weight.to_list() == [[0.25, 0.75, 0.5, 0.5], []]


@pytest.fixture
def merged(write, content, ids):
    """Writes the events of the small file twice, the second time with other ids, and the ids of both files."""

    def write_merged(**others):
        second = ids | others
        new = {number: second[name] for name, number in ids.items()}
        for key, values in content.items():
            again = [[new[number] for number in event] for event in values] if key.endswith("collectionID") else values
            content[key] = [*values, *again]
        path = write(content, ids={})
        numbers = ak.values_astype(ak.Array([list(ids.values()), list(second.values())]), np.uint32)
        table = ak.zip({"name": ak.Array([list(ids), list(second)]), "collectionID": numbers})
        with uproot.update(path) as file:
            file.mkrntuple("podio_metadata", {"events___CollectionTypeInfo": table})
        return path

    return write_merged


def test_ids_of_merged_files_are_joined(merged, toy):
    """The second file numbers its tracks otherwise, and has a collection more."""
    events = read_events(merged(Tracks=24, More=25), detector=toy)
    for links in (events.hit_links, events.track_links):
        assert links[2:].to_list() == links[:2].to_list()
        assert ak.count(links.source) > 0


def test_an_id_with_two_names_in_merged_files_is_named(merged, toy):
    with open_events(merged(A1=13, B=11), detector=toy) as file:
        check, *_ = file.notes()
    assert "entries 0 and 1 of the metadata name the collection with id 13 B and A1" in check.text


def test_fields_with_dots_in_their_names_are_read(sample_dir, tmp_path):
    """As uproot's ``file["events"] = table`` writes an RNTuple."""
    flat = sample_dir / "multi_test_small.root"
    with uproot.open(flat) as file, uproot.recreate(tmp_path / "copy.root") as copy:
        table = file["events"].arrays(filter_name="*.*")
        copy["events"] = {name: table[name] for name in table.fields}
    assert read_events(tmp_path / "copy.root").hits.energy.to_list() == read_events(flat).hits.energy.to_list()


def test_energies_in_other_units_give_a_warning(make_photons, tmp_path):
    events = make_photons(4)
    write_events(tmp_path / "mev.root", dataclasses.replace(events, hits=_scaled(events.hits, 1000.0)))
    with pytest.warns(ImplausibleWarning, match=r"mev\.root: .* GeV in hits, .* GeV in energy of stable particles"):
        read_events(tmp_path / "mev.root")


def _scaled(hits, factor):
    return ak.with_field(hits, hits.energy * factor, "energy")


def test_collections_that_are_not_read_are_named(write, content, toy):
    """A subset collection of tracks, and a calorimeter without a collection."""
    tracks = {"Tracks_objIdx.index": [[0], []], "Tracks_objIdx.collectionID": [[16], []]}
    less = {key: values for key, values in content.items() if "Track" not in key} | tracks
    path = write(less)
    with open_events(path, detector=toy) as file:
        assert "no collection of muon: its energy is missing from the particles" in {x.text for x in file.notes()}
        with pytest.warns(ImplausibleWarning, match=r"Tracks only refers to objects of other collections \(a subset\)"):
            events = file.read()
    assert events.tracks is None
    names = [check.name for check in inspect_file(path, ReadOptions(detector=toy)).checks if not check.good]
    assert {"Tracks", "calorimeters"} <= set(names)


def doubled(part):
    return lambda events: {part: ak.concatenate([getattr(events, part)] * 2, axis=1)}


def layered(change):
    """Layers of the hits changed, given with random bits, int [hit]."""

    def made(events):
        layer, counts = jagged.flat(events.hits.layer), jagged.count(events.hits)
        bits = np.random.default_rng(1).integers(0, 2, len(layer))
        return {"hits": ak.with_field(events.hits, ak.unflatten(change(layer, bits), counts), "layer")}

    return made


def shifted_links(events):
    """Links of hits to the next particles, the last ones to the first."""
    links = Links.of(events.hit_links)
    particle = (links.particle + 1) % jagged.count(events.truth)[links.event]
    return {"hit_links": dataclasses.replace(links, particle=particle).records()}


def without_links_of_the_ecal_barrel(events):
    links = events.hit_links
    return {"hit_links": links[events.hits.subdetector[links.source] != 0]}


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (doubled("hits"), "hits twice", r"\d+ of \d+ hits lie exactly where another one does"),
        (doubled("tracks"), "tracks twice", r"\d+ of \d+ tracks have the momentum of another one"),
        (layered(lambda layer, bits: layer >> 1), "layers", r"of ecal_endcap \(correlation 1\.00, [56]\d% of the hits"),
        (layered(lambda layer, bits: 2 * layer + bits), "layers", r"of ecal_barrel \(correlation 1\.00, [56]\d% of"),
        (layered(lambda layer, bits: 7 + 0 * layer), "layers", r"of ecal_barrel \(correlation 0\.00"),
        (layered(lambda layer, bits: 40 - layer), "layers", r"of ecal_endcap \(correlation -1\.00"),
        (shifted_links, "directions", r"\d+ of \d+ particles have most of their hits farther than 0\.3 rad"),
        (without_links_of_the_ecal_barrel, "links", "0% of the energy of ecal_barrel is linked to particles"),
        (lambda events: {"track_links": None}, "links", r"0% of the tracks are linked .* \(no SiTracksMCTruthLink\)"),
    ],
)
def test_duplicated_or_misassigned_objects_fail_the_check(cld_rec, cld_sim, change, name, said):
    for events in (cld_rec, cld_sim):
        (check,) = (check for check in checks(dataclasses.replace(events, **change(events))) if check.name == name)
        assert not check.good
        assert re.search(said, check.text)


@pytest.mark.parametrize(
    ("part", "wrong", "said"),
    [
        (
            "ecal_barrel",
            {"inner_radius": 2450.0},
            r"\d+% of the hits .* inner_radius 2450 mm, layers of 202 mm; hits at 2",
        ),
        ("ecal_barrel", {"inner_radius": 215.0}, "hits of ecal_barrel lie outside of it"),  # cm
        ("ecal_endcap", {"inner_z": 1500.0}, "hits of ecal_endcap .* inner_z 1500 mm"),
        ("hcal_barrel", {"layers": load_detector("cld").calorimeters[0].layers[:1]}, "hits of hcal_barrel lie outside"),
    ],
)
def test_hits_outside_of_their_calorimeter_as_described_are_found(cld_rec, part, wrong, said):
    detector = cld_rec.detector
    parts = (dataclasses.replace(old, **wrong) if old.name == part else old for old in detector.calorimeters)
    events = dataclasses.replace(cld_rec, detector=dataclasses.replace(detector, calorimeters=tuple(parts)))
    (check,) = (check for check in checks(events) if check.name == "faces")
    assert not check.good
    assert re.search(said, check.text)


def test_hits_that_were_left_out_are_not_compared_with_layers_or_faces(cld_rec):
    energy, position = cld_rec.hits.energy, cld_rec.hits.position
    bad = ak.unflatten(np.arange(ak.count(energy)) % 5 == 0, ak.num(energy))
    hits = ak.with_field(cld_rec.hits, ak.where(bad, 0.0, energy), "energy")
    at_origin = {axis: ak.where(bad, 0.0, position[axis]) for axis in "xyz"}
    events = dataclasses.replace(cld_rec, hits=ak.with_field(hits, ak.zip(at_origin, with_name="Vector3D"), "position"))
    assert {check.name for check in checks(events) if not check.good}.isdisjoint({"layers", "faces"})


def test_the_barrel_may_have_more_sides_than_the_detector_is_symmetric():
    """ILD's barrel is an octagon; its endcaps, with a square hole, make the detector's symmetry 4."""
    ild, random = load_detector("ild"), np.random.default_rng(2)
    layer, side = random.integers(0, 30, 1000), random.integers(0, 8, 1000)
    depth, along = ild.ecal_inner_radius + 5.0 * layer, random.uniform(-700, 700, 1000)
    angle = side * np.pi / 4
    x, y = depth * np.cos(angle) - along * np.sin(angle), depth * np.sin(angle) + along * np.cos(angle)
    number = [calorimeter.name for calorimeter in ild.calorimeters].index("ecal_barrel")
    columns = {"energy": 0 * x + 1, "x": x, "y": y, "z": along, "layer": layer, "subdetector": 0 * layer + number}
    events = Events(detector=ild, hits=make_hits(**{name: values[None] for name, values in columns.items()}))
    assert {check.name: check.good for check in checks(events)}["layers"]


@pytest.mark.parametrize(
    ("layout", "branch", "values"),
    [
        ("new", "EventHeader.weight", [[0.5], [2.0]]),
        ("rntuple", "EventHeader.weight", [[0.5], [2.0]]),
        ("new", "_EventHeader_weights", [[0.5], [2.0, 1.0]]),
        ("new", "EventWeights", [[0.5], [2.0]]),
    ],
)
def test_unused_event_weights_give_a_warning(write, content, toy, layout, branch, values):
    content["EventHeader.eventNumber"], content[branch] = [[3], [4]], values
    said = rf"{branch} is 0\.5 to 2: weights of events are not used; only outputs of the format edm4hep keep"
    with open_events(write(content, layout), detector=toy) as file:
        file.read(0, 1)  # weights may be the same in each chunk, as of files that were merged
        with pytest.warns(ImplausibleWarning, match=said):
            file.read(1, 2)


@pytest.mark.parametrize(
    ("branch", "make"), [("weight", "mktree"), ("event_weights", "mkrntuple"), ("mcEventWeight", "mktree")]
)
def test_unused_weights_of_flat_files_give_a_warning(make_photons, tmp_path, branch, make):
    path = tmp_path / "flat.root"
    write_events(path, make_photons(4))
    with uproot.open(path) as file:
        columns = file["events"].arrays()
    for weights in (np.array([1.0, -1.0, 1.0, -1.0]), np.ones(4)):
        values = ak.Array(weights[:, None]) if branch.endswith("s") else weights
        with uproot.recreate(path) as file:
            getattr(file, make)("events", {name: columns[name] for name in columns.fields} | {branch: values})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read_events(path, layout="g4")
        said = [str(warning.message) for warning in caught if branch in str(warning.message)]
        text = f"flat.root: {branch} is -1 to 1: weights of events are not used, and no output keeps them"
        assert [warning.endswith(text) for warning in said] == ([True] if weights.min() < 0 else [])
