"""Detectors unlike the built-in ones: several technologies, crystals, calorimeters without hits, other units."""

import dataclasses

import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.io.draft import Answers, Note, draft_detector, draft_to_yaml
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.physics.geometry import Geometry

N_EVENTS, N_HITS = 4, 400
ABSORBERS = Answers(absorber={"ecal": "tungsten:2.1", "hcal": "steel:20"})


def barrel(name, front, pitch, count, cell, *, seed=1):
    """Hits [event, hit] in a cylinder with cells along the circle and z."""
    rng = np.random.default_rng(seed)
    shape = N_EVENTS, N_HITS
    layer = rng.integers(0, count, shape)
    radius = front + (layer + 0.5) * pitch
    phi = np.round(rng.uniform(-300, 300, shape) / cell) * cell / front  # a part of the circle, where cells are close
    members = {"position.x": radius * np.cos(phi), "position.y": radius * np.sin(phi)}
    members["position.z"] = np.round(rng.uniform(-200, 200, shape) / cell) * cell
    members |= {"cellID": (layer << 5) + seed, "energy": rng.exponential(0.01, shape), "time": np.full(shape, 0.5)}
    return {f"{name}.{member}": values for member, values in members.items()}


def without(content, *names):
    return {key: values for key, values in content.items() if not key.startswith(names)}


def emptied(content, *names):
    return {key: [[]] * N_EVENTS if key.startswith(names) else values for key, values in content.items()}


def described(draft):
    return {part.name: part for part in draft.detector.calorimeters}


def test_two_calorimeters_behind_each_other_are_two(made_up, write_made_up):
    """The same cells and layers, with 273 mm of air between."""
    content = without(made_up(sides=0), "ECALBarrel") | barrel("EcalBarrelFront", 1600.0, 6.0, 10, 5.0)
    content |= barrel("EcalBarrelRear", 1600.0 + 60.0 + 273.0, 6.0, 12, 5.0, seed=2)
    draft = draft_detector(write_made_up(content), ABSORBERS)
    near, far = described(draft)["ecal_barrel"], described(draft)["ecal_barrel_2"]
    assert draft.notes["calorimeters.ecal_barrel_2.kind"].text == "name (EcalBarrelRear)"
    assert (near.collections, far.collections) == (("EcalBarrelFront",), ("EcalBarrelRear",))
    assert (near.inner_radius, far.inner_radius) == pytest.approx((1600.0, 1933.0), abs=0.5)
    assert [part.count for part in (*near.layers, *far.layers)] == [10, 12]
    assert draft.detector.ecal_outer_radius == pytest.approx(2005.0, abs=0.5)


def test_imaging_layers_between_fibres_are_calorimeters_of_their_own(made_up, write_made_up):
    content = without(made_up(sides=0), "ECALBarrel") | barrel("EcalBarrelScFi", 1600.0, 16.0, 12, 15.0)
    content |= barrel("EcalBarrelImaging", 1603.0, 32.0, 6, 0.5, seed=3)
    answers = Answers(absorber={"ecal_barrel": "lead:8", "ecal_barrel_2": "silicon:0.5", "hcal": "steel:20"})
    draft = draft_detector(write_made_up(content), answers)
    note, parts = draft.notes["calorimeters.ecal_barrel_2.kind"], described(draft)
    assert note.text.startswith("name, in the depth of ecal_barrel: if each measures the whole energy, as in ePIC, del")
    assert parts["ecal_barrel"].collections == ("EcalBarrelScFi",)
    assert parts["ecal_barrel_2"].collections == ("EcalBarrelImaging",)
    (fibres,), (imaging,) = parts["ecal_barrel"].layers, parts["ecal_barrel_2"].layers
    assert (fibres.count, fibres.pitch, imaging.count, imaging.pitch) == pytest.approx((12, 16.0, 6, 32.0))
    assert (fibres.radiation_lengths, imaging.radiation_lengths) == pytest.approx((8 / 5.612, 0.5 / 93.7), rel=1e-3)
    content |= {key: values[:, :20] for key, values in content.items() if key.startswith("EcalBarrelImaging")}
    note = draft_detector(write_made_up(content)).notes["calorimeters.ecal_barrel.kind"]
    whole = "if each measures the whole energy, as in ePIC, delete one"
    assert f"too few hits to tell whether the collections are alike: {whole} (--entries)" in note.text


def test_endcaps_with_few_hits_have_the_layers_of_the_barrel(made_up, write_made_up):
    content = {key: values[:, : 8 if "Endcap" in key else None] for key, values in made_up().items()}
    draft = draft_detector(write_made_up(content), ABSORBERS)
    parts = described(draft)
    for kind, count in (("ecal", 20), ("hcal", 25)):
        assert parts[f"{kind}_barrel"].n_layers == count
        note = draft.notes[f"calorimeters.{kind}_endcap.layers"]
        assert note == Note(
            "guessed", f"as of {kind}_barrel; 32 hits in 4 events, too few for {count} layers (--entries)"
        )
        assert parts[f"{kind}_endcap"].layers == parts[f"{kind}_barrel"].layers
    # Other cell ids are of another technology.
    encodings = dict.fromkeys(("ECALBarrel", "HCALBarrel", "HCALEndcap"), "system:0:5,layer:5:8,x:32:-16,y:48:-16")
    z = content["ECALEndcap.position.z"]
    content["ECALEndcap.position.z"] = np.sign(z) * np.linspace(2000, 2200, z.size).reshape(z.shape)
    with pytest.raises(ConfigError, match=r"ecal_endcap, absorber 'tungsten:2.1': one layer of 2.1 mm where hits in"):
        draft_detector(write_made_up(content, encodings=encodings), ABSORBERS)


def test_crystals_of_one_layer_are_asked_for_their_depth(made_up, write_made_up):
    content = without(made_up(sides=0), "ECALBarrel") | barrel("EcalBarrelCrystals", 1690.0, 20.0, 1, 10.0)
    path = write_made_up(content)
    draft = draft_detector(path)
    assert described(draft)["ecal_barrel"].layers == ()
    said = "one layer, at 1700 mm, in the hits, so their depth is not known; --absorber ecal=PbWO4:220"
    assert draft.notes["calorimeters.ecal_barrel.layers"] == Note("fill in", f"{said} and the like gives it")
    with pytest.raises(ConfigError, match=r"does not say layers of ecal_barrel; .*--absorber"):
        Geometry.of(draft.detector)
    draft = draft_detector(path, Answers(absorber={"ecal_barrel": "PbWO4:220"}))
    crystals = described(draft)["ecal_barrel"]
    assert (crystals.inner_radius, draft.detector.ecal_outer_radius) == pytest.approx((1590.0, 1810.0), abs=0.2)
    assert draft.notes["calorimeters.ecal_barrel.inner_radius"].text.startswith("110 mm before the hits")
    (layer,) = crystals.layers
    assert (layer.count, layer.pitch, layer.radiation_lengths) == pytest.approx((1, 220.0, 24.71), rel=1e-3)
    assert crystals.cell_size == pytest.approx(10.0, rel=0.05)


def test_crystals_of_two_lengths_meet_between_their_centres(made_up, write_made_up):
    content = without(made_up(sides=0), "ECALBarrel") | barrel("EcalBarrelCrystals", 1575.0, 100.0, 2, 10.0)
    path = write_made_up(content)
    crystals = described(draft_detector(path, Answers(absorber={"ecal_barrel": "PbWO4:1x50+1x150"})))["ecal_barrel"]
    assert [part.pitch for part in crystals.layers] == pytest.approx([50.0, 150.0], abs=0.1)
    assert crystals.inner_radius == pytest.approx(1600.0, abs=0.2)
    with pytest.raises(ConfigError, match=r"50 mm in a layer of 40 mm .* of one layer, or of each as in PbWO4:1x50"):
        draft_detector(path, Answers(absorber={"ecal_barrel": "PbWO4:1x50+1x170"}))
    without_lengths = draft_detector(path)
    assert described(without_lengths)["ecal_barrel"].inner_radius == pytest.approx(1575.0, abs=0.2)
    note = without_lengths.notes["calorimeters.ecal_barrel.inner_radius"]
    assert (note.how, note.text[:51]) == ("guessed", "as if both layers were 100 mm thick, which --absorb")


def test_a_name_tells_the_place_or_a_part_of_it(made_up, write_made_up):
    content = {key.replace("ECALBarrel", "EMCBarrel"): values for key, values in made_up().items()}
    content = {key.replace("HCALEndcap", "LidEndcap"): values for key, values in content.items()}
    content = {key.replace("HCALBarrel", "Hcal"): values for key, values in content.items()}
    draft = draft_detector(write_made_up(content), Answers(absorber={"ecal": "tungsten:2.1"}))
    assert {name: part.collections for name, part in described(draft).items()} == {
        "ecal_barrel": ("EMCBarrel",),
        "ecal_endcap": ("ECALEndcap",),
    }
    assert "--place LidEndcap=ecal_endcap or another says it" in draft.left_out["LidEndcap"]
    assert "--place Hcal=hcal_barrel or another says it" in draft.left_out["Hcal"]


def test_crystal_bars_that_cross_from_layer_to_layer_are_said(made_up, write_made_up):
    content, rng = barrel("EcalBarrelCrystals", 1600.0, 10.0, 20, 10.0), np.random.default_rng(1)
    layer = content["EcalBarrelCrystals.cellID"] >> 5
    along_z, side = layer % 2 == 1, rng.integers(0, 8, layer.shape) * np.pi / 4
    across = np.where(along_z, np.round(rng.uniform(-250, 250, layer.shape) / 10) * 10, 0.0)
    x, y, z = (f"EcalBarrelCrystals.position.{axis}" for axis in "xyz")
    distance = 1600.0 + 10.0 * (layer + 0.5)
    content[x] = distance * np.cos(side) - across * np.sin(side)
    content[y] = distance * np.sin(side) + across * np.cos(side)
    content[z] = np.where(along_z, np.round(content[z] / 200) * 200, content[z])
    path = write_made_up(without(made_up(), "ECALBarrel") | content)
    notes = draft_detector(path, Answers(absorber={"ecal_barrel": "PbWO4:10"})).notes
    note = notes["calorimeters.ecal_barrel.cell_size"]
    assert note.text.endswith("the cells are bars, which cross from layer to layer: write the root of their mean area")
    with pytest.raises(ConfigError, match=r"200 mm in a layer of 10 mm .* give that of one layer"):
        draft_detector(path, Answers(absorber={"ecal_barrel": "PbWO4:200"}))


def test_crystals_without_layers_lie_in_the_depth_that_is_given(made_up, write_made_up):
    """Cells along phi and z, whose centres are at other radii along z."""
    content = barrel("EcalBarrelCrystals", 1690.0, 20.0, 1, 10.0)
    stretch = 1 + 0.03 * np.abs(content["EcalBarrelCrystals.position.z"]) / 200
    for axis in "xy":
        content[f"EcalBarrelCrystals.position.{axis}"] *= stretch
    path = write_made_up(without(made_up(sides=0), "ECALBarrel") | content, encodings=None)
    draft = draft_detector(path)
    assert described(draft)["ecal_barrel"].layers == ()
    assert "no layers in the hits" in draft.to_fill_in()["calorimeters.ecal_barrel.layers"]
    crystals = described(draft_detector(path, Answers(absorber={"ecal_barrel": "PbWO4:220"})))["ecal_barrel"]
    assert crystals.layers[0].pitch == 220.0
    assert crystals.inner_radius == pytest.approx(1725.0 - 110.0, abs=5.0)
    with pytest.raises(
        ConfigError, match=r"'lead:4': one layer of 4 mm where hits in \d+ mm show no layers.*lead:30x4"
    ):
        draft_detector(path, Answers(absorber={"ecal_barrel": "lead:4"}))


def test_endcaps_at_different_z_are_said_and_measured_at_the_nearer_one(made_up, write_made_up):
    """Together they had 40 and 50 layers, some of them thinner."""
    content = made_up()
    for name in ("ECALEndcap.position.z", "HCALEndcap.position.z"):
        content[name] = np.where(content[name] < 0, content[name] - 200, content[name])
    draft = draft_detector(write_made_up(content))
    said = "the first hits of the endcaps are at z = -2203 and 2003 mm; this is the nearer one"
    assert draft.notes["ecal_inner_z"] == Note("guessed", said)
    assert draft.notes["hcal_inner_z"].text == (
        "the first hits of the endcaps are at z = -2395 and 2195 mm; this is the nearer one; the layers are its, too"
    )
    for parts in (described(draft), described(draft_detector(write_made_up(content, encodings=None)))):
        for name, front, count, pitch in (("ecal_endcap", 2000.0, 20, 6.0), ("hcal_endcap", 2180.0, 25, 30.0)):
            layers = [(layer.count, layer.pitch) for layer in parts[name].layers]
            assert (parts[name].inner_z, layers) == (front, [(count, pitch)])


def tiles(name, front, pitch, count, cell):
    """Hits [event, hit] in eight flat sides with large cells, whose centres at the edges lie beyond their side."""
    rng = np.random.default_rng(4)
    shape = N_EVENTS, 1500
    layer, side = rng.integers(0, count, shape), rng.integers(0, 8, shape) * np.pi / 4
    distance = front + (layer + 0.5) * pitch
    half = distance * np.tan(np.pi / 8)
    across, z = (np.round(rng.uniform(-length, length) / cell) * cell for length in (half, np.full(shape, 400.0)))
    members = {"position.x": distance * np.cos(side) - across * np.sin(side)}
    members |= {"position.y": distance * np.sin(side) + across * np.cos(side), "position.z": z}
    members |= {"cellID": np.arange(layer.size).reshape(shape), "energy": rng.exponential(0.01, shape)}
    members["time"] = np.full(shape, 0.5)
    return {f"{name}.{member}": values for member, values in members.items()}


@pytest.mark.parametrize(("pitch", "count", "cell"), [(13.0, 20, 40.0), (37.0, 30, 100.0)])
def test_large_tiles_in_flat_sides_show_their_layers_without_numbers(made_up, write_made_up, pitch, count, cell):
    content = without(made_up(), "ECALBarrel") | tiles("ECALBarrel", 1800.0, pitch, count, cell)
    draft = draft_detector(write_made_up(content, encodings=None))
    part = described(draft)["ecal_barrel"]
    assert (part.sides, part.phase, part.cell_size) == (8, 0.0, cell)
    assert draft.notes["calorimeters.ecal_barrel.sides"].how == "measured"
    assert [(layers.count, layers.pitch) for layers in part.layers] == [(count, pitch)]
    assert part.inner_radius == pytest.approx(1800.0, abs=0.1)


def test_calorimeters_without_hits_are_left_out_and_stop_no_other(made_up, write_made_up):
    content = emptied(made_up() | barrel("MuonBarrel", 4000.0, 200.0, 5, 30.0), "HCALEndcap", "MuonBarrel")
    draft = draft_detector(write_made_up(content), ABSORBERS)
    assert list(described(draft)) == ["ecal_barrel", "ecal_endcap", "hcal_barrel"]
    assert draft.left_out["HCALEndcap"] == draft.left_out["MuonBarrel"] == "no hits in 4 events"
    assert "#   HCALEndcap: no hits in 4 events" in draft_to_yaml(draft)


def test_an_absorbers_count_adds_layers_and_thick_ones_are_refused(made_up, write_made_up):
    path = write_made_up(made_up())
    answers = Answers(absorber={"ecal": "tungsten:10x2.1+15x4.2", "hcal": "steel:20"})
    draft = draft_detector(path, answers)
    first, second = described(draft)["ecal_barrel"].layers  # hits are in 20
    assert [(part.count, part.pitch) for part in (first, second)] == [(10, 6.0), (15, 6.0)]
    assert second.radiation_lengths == pytest.approx(2 * first.radiation_lengths, rel=1e-3)
    assert "the last 5 of 25 without hits" in draft.notes["calorimeters.ecal_barrel.layers"].text
    with pytest.raises(ConfigError, match=r"absorber 'steel:20': 20 mm in a layer of 6 mm \(20 layers measured, if"):
        draft_detector(path, Answers(absorber={"ecal": "steel:20"}))
    with pytest.raises(
        ConfigError, match=r"--absorber hcl=...: no such calorimeter; drafted are .*nearest matches: hcal"
    ):
        draft_detector(path, Answers(absorber={"hcl": "steel:20"}))


@pytest.mark.parametrize(("factor", "field"), [(10.0, "30"), (1000.0, "3000")])
def test_a_field_of_another_unit_is_refused(made_up, write_made_up, factor, field):
    content = made_up()
    content["_Tracks_trackStates.omega"] = content["_Tracks_trackStates.omega"] * factor
    with pytest.raises(InputError, match=rf"give a field of {field}\.?\d* T: units are not EDM4hep's, mm and GeV"):
        draft_detector(write_made_up(content))


def test_scales_of_simulated_hits_and_how_tracks_are_made_can_be_given(cld_sim_path):
    answers = Answers(b_field=2.0, tracks_as="cld", sim_scale={"ecal": 37.5, "hcal_barrel": 46.0})
    draft = draft_detector(cld_sim_path, answers)
    assert draft.detector.truth_tracks.impact == load_detector("cld").truth_tracks.impact
    assert draft.detector.truth_tracks.unknown == ()
    scales = {name: part.sim_scale for name, part in described(draft).items()}
    assert (scales["ecal_endcap"], scales["hcal_barrel"], scales["hcal_endcap"]) == (37.5, 46.0, None)
    assert draft.notes["calorimeters.ecal_barrel.sim_scale"] == Note("given", "--sim-scale")
    complete = dataclasses.replace(answers, sim_scale={"ecal": 37.5, "hcal": 46.0})
    note = draft_detector(cld_sim_path, complete).notes["calorimeters.hcal_barrel.hadron_scale"]
    assert "isolated track in" in note.text  # made from Monte Carlo particles


def test_without_tracks_and_their_hits_nothing_leads_in_a_circle(made_up, write_made_up):
    path = write_made_up(without(made_up(), "Tracks", "_Tracks", "TrackLinks", "_TrackLinks"))
    with pytest.raises(
        ConfigError, match=r"--tracks-as cld: the file has no simulated tracker hits, so no tracks are made"
    ):
        draft_detector(path, Answers(b_field=3.0, tracks_as="cld"))
    draft = draft_detector(path, Answers(b_field=3.0))
    assert draft.detector.truth_tracks is None
    assert "no simulated tracker hits" in draft.left_out["truth_tracks"]
    with pytest.raises(ConfigError, match=r"does not describe truth_tracks, .* a file with simulated tracker hits"):
        read_events(path, detector=draft.detector, truth_tracks=True)


def test_options_for_calorimeters_that_are_not_drafted_say_why_these_are_left_out(made_up, write_made_up):
    content = emptied(made_up(), "HCALBarrel", "HCALEndcap")
    with pytest.raises(
        ConfigError, match=r"drafted are ecal_barrel, ecal, ecal_endcap; HCALBarrel: no hits in 4 events; HCAL"
    ):
        draft_detector(write_made_up(content), ABSORBERS)
    unnamed = {key.replace("ECAL", "Front").replace("HCAL", "Back"): values for key, values in made_up().items()}
    said = r"no hits of an ECAL .* first 4 entries.*: 1,200 hits, in which part .* --place FrontBarrel=ecal_barrel or"
    with pytest.raises(InputError, match=said):
        draft_detector(write_made_up(unnamed), ABSORBERS)
