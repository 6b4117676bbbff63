import dataclasses

import awkward as ak
import numpy as np
import pytest

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.augment import Augmentation, Disturbance, Overlay, augment
from pflow.event.events import Events, ImplausibleWarning, concatenate, keep_hits
from pflow.event.jagged import Links
from pflow.event.move import HCAL, Forms, Move, Variation, change_cells, move
from pflow.event.schema import make_hits
from pflow.event.truth import select_targets
from pflow.io.open import read_events
from pflow.physics.detector import load_detector
from pflow.physics.geometry import NO_FACE, Geometry, measures

STILL = {"sides": (0,), "endcap": (1.0, 1.0), "scale": (1.0, 1.0), "probability": 1.0}


@pytest.fixture(scope="module")
def cld(sample_dir) -> Events:
    return read_events(sample_dir / "cld_multi_test_small.root")


def drawn(events: Events, **options: object) -> Forms:
    return Variation(**{**STILL, **options}).draw(len(events), np.random.default_rng(1))  # type: ignore[arg-type]


def geometries(events: Events, part: str) -> tuple[Geometry, np.ndarray]:
    """The geometries, and the index into them of each object of a part."""
    event = jagged.event_index(jagged.count(getattr(events, part)))
    return (Geometry.of(events.detector), 0 * event) if events.geometry is None else (events.geometry, event)


def depths(events: Events):
    columns = jagged.columns(events.hits)
    geometry, row = geometries(events, "hits")
    position = (columns[f"position.{axis}"].astype(np.float64) for axis in "xyz")
    return geometry.depths(row, columns["subdetector"], *position)


def positions(events: Events) -> np.ndarray:
    return jagged.vectors(events.hits.position)


def test_nothing_changes_where_no_event_is_moved(events, assert_same):
    assert_same(augment(events, Augmentation(detector=Variation(probability=0.0)), np.random.default_rng(1)), events)


def test_the_scale_changes_all_lengths_and_no_depth_in_matter(events):
    chosen = drawn(events, scale=(0.5, 2.0))
    moved = move(events, chosen)
    moved.validate()
    factor = np.repeat(chosen["scale"], jagged.count(events.hits))
    np.testing.assert_allclose(positions(moved), positions(events) * factor[:, np.newaxis], rtol=1e-6)
    of_tracks = np.repeat(chosen["scale"], jagged.count(events.tracks))[:, np.newaxis]
    entry, before = (jagged.vectors(some.tracks.calo_position) for some in (moved, events))
    np.testing.assert_allclose(entry, before * of_tracks, rtol=1e-6)
    assert ak.array_equal(moved.tracks.momentum.px, events.tracks.momentum.px)
    of_truth = np.repeat(chosen["scale"], jagged.count(events.truth))
    np.testing.assert_allclose(jagged.flat(moved.truth.vertex.x), jagged.flat(events.truth.vertex.x) * of_truth)
    for name in ("radiation", "interaction"):
        np.testing.assert_allclose(getattr(depths(moved), name), getattr(depths(events), name), atol=1e-3)


def test_polygons_and_moved_faces_keep_rays_and_depths_along_them(events):
    moved = move(events, drawn(events, sides=(8,), endcap=(0.8, 1.1)))
    moved.validate()
    unit, before = (p / np.linalg.norm(p, axis=1, keepdims=True) for p in (positions(moved), positions(events)))
    np.testing.assert_allclose(unit, before, atol=1e-6)
    shifted = np.linalg.norm(positions(moved) - positions(events), axis=1)
    assert shifted.max() > 100
    np.testing.assert_allclose(depths(moved).length, depths(events).length, rtol=2e-3, atol=0.05)
    np.testing.assert_allclose(depths(moved).radiation, depths(events).radiation, rtol=0.1, atol=0.3)


@pytest.mark.parametrize("options", [{"scale": (1.4, 1.4)}, {"scale": (0.75, 0.75), "endcap": (0.72, 0.72)}])
def test_truth_by_rule_entering_is_of_the_moved_event(events, options):
    """Vertices move with the scale, so that what entered is the same."""
    targets, moved = (
        select_targets(some, rule="entering") for some in (events, move(events, drawn(events, **options)))
    )
    assert moved.counts.tolist() == targets.counts.tolist()
    assert (moved.chosen == targets.chosen).all()


def test_moved_events_are_not_joined(events):
    with pytest.raises(ValueError, match="cannot concatenate events of different detectors, or moved into these"):
        concatenate([events, move(events, drawn(events))])


def test_tracks_enter_at_the_moved_faces(events):
    moved = move(events, drawn(events, sides=(8, 12), endcap=(0.8, 1.1), scale=(0.8, 1.3)))
    for some in (events, moved):
        geometry, row = geometries(some, "tracks")
        entry = jagged.vectors(some.tracks.calo_position).T
        beyond = np.maximum(*geometry.faces_of(row).distances(*entry))
        assert np.median(np.abs(beyond)) < 1.0


def test_layers_may_be_counted_from_1_or_be_missing(events):
    """The HCAL as it is loses no hits; without numbers no layer is the second one."""
    columns = jagged.columns(events.hits)
    last = jagged.replaced(events.hits, {"layer": np.full_like(columns["layer"], 48)})
    whole = change_cells(dataclasses.replace(events, hits=last), drawn(events))
    assert jagged.count(whole.hits).tolist() == jagged.count(events.hits).tolist()
    none = jagged.replaced(events.hits, {"layer": np.full_like(columns["layer"], -1)})
    with pytest.raises(InputError, match=r"every second layer cannot be read .*: set detector\.fewer_layers to 0"):
        change_cells(dataclasses.replace(events, hits=none), drawn(events, fewer_layers=1.0))
    with pytest.raises(InputError, match=r"cannot be summed layer by layer: set detector\.coarser to \[1\]"):
        change_cells(dataclasses.replace(events, hits=none), drawn(events, coarser=(2,)))


def test_fewer_layers_are_every_second_with_twice_the_energy(events):
    changed = change_cells(events, drawn(events, fewer_layers=1.0))
    changed.validate()
    even = events.hits[events.hits.layer % 2 == 0]
    assert ak.array_equal(changed.hits.energy, 2 * even.energy)
    assert ak.array_equal(changed.hits.layer, even.layer // 2)
    detector = Move(hcal_layers=47).detector(events.detector)
    odd = change_cells(dataclasses.replace(events, detector=detector), drawn(events, fewer_layers=1.0)).hits
    factor = np.array([47 / 24 if calorimeter.kind == "hcal" else 2 for calorimeter in detector.calorimeters])
    expected = jagged.flat(even.energy) * factor[jagged.flat(even.subdetector)]
    np.testing.assert_allclose(jagged.flat(odd.energy), expected, rtol=1e-6)
    assert move(changed, drawn(events, fewer_layers=1.0)).geometry.density[0, 0, 0, 0] == pytest.approx(0.1)


def test_a_layer_that_stands_for_thicker_ones_has_their_energy(events):
    """Every third of the ILD's ECAL: 20 layers of 0.61 radiation lengths, 10 of 1.21; it looked like a wrong scale."""
    third = Move(layers=3).apply(events).hits
    read = events.hits[events.hits.layer % 3 == 0]
    in_ecal = np.array([part.kind == "ecal" for part in events.detector.calorimeters])[jagged.flat(read.subdetector)]
    mixed = in_ecal & (jagged.flat(read.layer) == 18)
    assert mixed.any()
    expected = np.where(mixed, (2 * 0.61 + 1.21) / 0.61, 3.0) * jagged.flat(read.energy)
    np.testing.assert_allclose(jagged.flat(third.energy), expected, rtol=1e-6)


def test_energy_without_a_particle_stays_without_one_in_coarser_cells(events):
    """Such as noise, whose cells are summed with those of particles."""
    links = Links.of(events.hit_links)
    some = dataclasses.replace(events, hit_links=links.take(links.source % 5 != 0).records())

    def linked(some):
        links = Links.of(some.hit_links)
        return np.sum(links.weight * jagged.columns(some.hits)["energy"][links.flat_source(jagged.count(some.hits))])

    assert linked(change_cells(some, drawn(some, coarser=(3,)))) == pytest.approx(linked(some), rel=1e-4)


def test_noise_and_false_tracks_of_other_events_lie_in_the_detector_of_their_own(events):
    options = Augmentation(detector=Variation(scale=(0.5, 2.0)), disturb=Disturbance(noise_hits=600, fake_tracks=0.3))
    moved = augment(events, options, np.random.default_rng(1))
    assert ak.count(moved.hits.energy) > 1.1 * ak.count(events.hits.energy)
    geometry, row = geometries(moved, "hits")
    behind = np.maximum(*geometry.faces_of(row).distances(*jagged.vectors(moved.hits.position).T))
    assert np.quantile(behind / np.linalg.norm(jagged.vectors(moved.hits.position), axis=1), 0.001) > -0.02


@pytest.mark.parametrize("sample", ["events", "cld"])
def test_coarser_cells_keep_the_energies_of_events_and_of_particles(request, sample, particle_energies):
    events = request.getfixturevalue(sample)
    changed = change_cells(events, drawn(events, coarser=(3,)))
    changed.validate()
    assert ak.count(changed.hits.energy) < 0.95 * ak.count(events.hits.energy)
    np.testing.assert_allclose(ak.sum(changed.hits.energy, axis=1), ak.sum(events.hits.energy, axis=1), rtol=1e-5)

    before, after = (ak.flatten(particle_energies(some)) for some in (events, changed))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("sample", "first"), [("events", 0.5), ("cld", 0.0)], ids=["ILD", "CLD"])
@pytest.mark.parametrize("part", ["ecal_endcap", "hcal_endcap", "hcal_barrel"])
def test_coarse_cells_are_whole_cells_of_the_simulation(request, sample, first, part):
    """Two along each axis; the first cell beyond the origin has its centre at so many cell sizes."""
    events = request.getfixturevalue(sample)
    changed = change_cells(events, drawn(events, coarser=(2,)))
    number = [calorimeter.name for calorimeter in events.detector.calorimeters].index(part)
    cell = events.detector.calorimeters[number].cell_size
    turn = Geometry.of(events.detector).faces.phase[0][number]

    def in_cells(some: Events) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of the hits in cell sizes, [N, 1 or 2], and what else tells their cells apart."""
        hits = jagged.columns(some.hits)
        rows = hits["subdetector"] == number
        x, y, z = (hits[f"position.{k}"][rows].astype(np.float64) for k in "xyz")
        event = jagged.event_index(jagged.count(some.hits))[rows]
        if part == "hcal_barrel":
            return z[:, np.newaxis] / cell, np.stack([event, hits["layer"][rows]], 1)
        u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
        return np.stack([u, v], 1) / cell, np.stack([event, hits["layer"][rows], np.sign(z)], 1)

    (fine, of_fine), (coarse, of_coarse) = in_cells(events), in_cells(changed)
    np.testing.assert_allclose((coarse - first - 0.5) / 2, np.round((coarse - first - 0.5) / 2), atol=2e-3)
    expected = np.concatenate([of_fine, np.round(fine - first) // 2], axis=1)
    found = np.concatenate([of_coarse, np.round((coarse - first - 0.5) / 2)], axis=1)
    if "endcap" in part:
        assert len(np.unique(found, axis=0)) == len(found)
    assert np.array_equal(np.unique(expected, axis=0), np.unique(found, axis=0))


def test_cells_of_opposite_endcaps_stay_apart(events):
    columns = {"energy": [1.0, 2.0, 4.0], "x": [502.5, 502.5, 507.5], "y": [2.5] * 3, "z": [2500.0, -2500.0, 2500.0]}
    columns |= {"subdetector": [1] * 3, "layer": [3] * 3}
    some = Events(detector=events.detector, hits=make_hits(**{name: [values] for name, values in columns.items()}))
    assert change_cells(some, drawn(some, coarser=(2,))).hits.energy.to_list() == [[5.0, 2.0]]


def test_a_cylinder_has_whole_cells_around(events):
    """Each layer of the simplified ILD's barrels has the whole number nearest to its circle over the cell size."""
    changed = jagged.columns(change_cells(events, drawn(events, coarser=(2,))).hits)
    hits = jagged.columns(events.hits)
    barrel = hits["subdetector"] == 0
    event, layer = jagged.event_index(jagged.count(events.hits))[barrel], hits["layer"][barrel].astype(np.int64)
    x, y, z = (hits[f"position.{axis}"][barrel].astype(np.float64) for axis in "xyz")
    group = event * 100 + layer
    radius = (np.bincount(group, np.hypot(x, y)) / np.maximum(np.bincount(group), 1))[group]
    turns = np.arctan2(y, x) / (2 * np.pi) + 0.5
    around = np.floor(turns * np.round(2 * np.pi * radius / 5.0)) // 2
    cells = np.unique(np.stack([group, around, np.floor(z / 10)], axis=1), axis=0)
    assert len(cells) == np.count_nonzero(changed["subdetector"] == 0)
    # A phase has no meaning here. With this one, cells on its line have hits on both sides.
    first, *others = events.detector.calorimeters
    detector = dataclasses.replace(events.detector, calorimeters=(dataclasses.replace(first, phase=-2.75), *others))
    with_phase = change_cells(dataclasses.replace(events, detector=detector), drawn(events, coarser=(2,))).hits
    assert jagged.flat(with_phase.energy).tolist() == changed["energy"].tolist()


def test_thresholds_and_dropped_layers_drop_hits_with_their_links(events, cld):
    options = {"ecal_threshold": 0.02, "hcal_threshold": 0.1, "shorter_hcal": 0.5}
    changed = change_cells(events, drawn(events, **options))
    changed.validate()
    assert 0.3 < ak.count(changed.hits.energy) / ak.count(events.hits.energy) < 0.95
    assert ak.all(changed.hit_links.source < ak.num(changed.hits))
    optional = [i for i, calorimeter in enumerate(cld.detector.calorimeters) if not calorimeter.required]
    required_only = change_cells(cld, drawn(cld, missing=1.0))
    assert not np.isin(jagged.flat(required_only.hits.subdetector), optional).any()
    changed = change_cells(events, drawn(events, ecal_threshold=0.02, hcal_threshold=0.02))
    assert ak.sum(events.hits.energy > 0.02) == ak.sum(changed.hits.energy > 0.02)
    assert ak.sum(changed.hits.energy < 0.02) < ak.sum(events.hits.energy < 0.02)


def test_a_digital_readout_without_times(events):
    """Events of three thresholds, of one, and of three with coarser cells: three detectors, each with a calibration."""
    some = drawn(events, no_time=1.0)
    some["coarser"][2::3, HCAL] = 2
    measured = some.copy()
    some["digital"] = np.resize([2, 1, 2], len(events))
    changed = jagged.columns(change_cells(events, some).hits)
    analogue = jagged.columns(change_cells(events, measured).hits)
    kind = np.array([c.kind for c in events.detector.calorimeters])[analogue["subdetector"]]
    assert np.array_equal(changed["energy"][kind != "hcal"], analogue["energy"][kind != "hcal"])
    assert np.isnan(changed["time"]).all()
    event = jagged.event_index(jagged.count(change_cells(events, some).hits))
    for number, thresholds in enumerate(((3.0, 10.0), (), (3.0, 10.0))):  # times the detector's median
        rows = (kind == "hcal") & (event % 3 == number)
        before = analogue["energy"][rows].astype(np.float64)
        passed = sum((before / np.median(before) >= threshold).astype(int) for threshold in thresholds) + 0 * before
        means = [before[passed == n].mean() for n in range(len(thresholds) + 1)]
        assert changed["energy"][rows] == pytest.approx(np.array(means)[passed.astype(int)], rel=1e-5)


def test_the_seed_draws_the_detector_and_joined_events_share_it(events):
    options = Augmentation(
        rotate=True,
        reflect=True,
        overlay=Overlay(frequencies=[0, 1]),
        detector=Variation(coarser=(1, 2), fewer_layers=0.5),
    )
    once, again = (augment(events, options, np.random.default_rng(3)) for _ in range(2))
    once.validate()
    assert ak.array_equal(once.hits.energy, again.hits.energy)
    assert len(once.geometry.cell_size) == len(events)
    assert len(once[2:4].geometry.cell_size) == 2


def test_the_range_of_the_detectors_that_events_are_moved_into():
    before = measures(load_detector("cld"))
    variation = Variation(scale=(0.5, 2.0), endcap=(0.8, 1.1), coarser=(1, 3), fewer_layers=0.1, shorter_hcal=0.5)
    after = variation.widened(before)
    assert after["radius of the ECAL [mm]"] == (1075.0, 4300.0)
    assert after["|z| of the ECAL [mm]"] == pytest.approx((2307.0 * 0.4, 2307.0 * 2.2))
    assert after["field [T]"] == (1.0, 4.0)
    assert after["cell size of the HCAL [mm]"] == (15.0, 180.0)
    assert after["radiation lengths of a layer of the ECAL"] == pytest.approx((0.55, 1.1))
    low, high = before["interaction lengths of the HCAL"]
    assert after["interaction lengths of the HCAL"] == (0.5 * low, high)
    assert after["radiation lengths of the ECAL"] == before["radiation lengths of the ECAL"]


MOVES = {
    "cells": Move(ecal_cells=2, hcal_cells=2),
    "layers": Move(layers=2),
    "HCAL": Move(hcal_layers=40),
    "scale": Move(scale=1.25),
    "thresholds": Move(ecal_threshold=0.01, hcal_threshold=0.1),
}


@pytest.fixture(scope="module")
def zqq(events) -> Events:
    return events[:3]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cells", {"coarser": (2,)}),
        ("layers", {"fewer_layers": 1.0}),
        ("scale", {"scale": (1.25, 1.25)}),
    ],
)
def test_a_move_is_one_of_the_variations_of_the_training(zqq, name, options, assert_same):
    """The hits are theirs, and the description gives their geometry."""
    chosen = drawn(zqq, **options)
    varied, moved = move(change_cells(zqq, chosen), chosen), MOVES[name].apply(zqq)
    moved.validate()
    assert moved.detector.b_field == pytest.approx(zqq.detector.b_field / MOVES[name].scale)
    assert_same(
        dataclasses.replace(varied, detector=moved.detector, geometry=None, reference=None, reference_name=""), moved
    )
    expected, found = varied.geometry, Geometry.of(moved.detector)
    for field in ("cell_size", "edge", "density", "before"):
        here, there = (np.minimum(getattr(of, field)[0], NO_FACE) for of in (found, expected))
        np.testing.assert_allclose(here, there, err_msg=field)
    for axis in ("radius", "z"):
        there, here = (np.minimum(getattr(of.faces, axis)[0], NO_FACE) for of in (expected, found))
        np.testing.assert_allclose(here, there, err_msg=axis)


@pytest.mark.parametrize("move", [*MOVES.values(), Move(time=0.1)], ids=[*MOVES, "time"])
def test_each_event_is_moved_alone(zqq, move, assert_same):
    move.check(zqq)
    assert_same(move.apply(zqq)[1:], move.apply(zqq[1:]))


def test_layers_that_are_read_have_the_energy_of_all(zqq):
    hits, moved = jagged.columns(zqq.hits), jagged.columns(Move(layers=2, hcal_layers=40).apply(zqq).hits)
    hcal = np.array([calorimeter.kind == "hcal" for calorimeter in zqq.detector.calorimeters])[hits["subdetector"]]
    Move(layers=2, ecal_threshold=1.5 * float(hits["energy"][~hcal].max())).check(zqq)  # of the sums, not of the hits
    keep = (hits["layer"] % 2 == 0) & ~(hcal & (hits["layer"] >= 40))
    np.testing.assert_array_equal(moved["energy"], 2 * hits["energy"][keep])
    np.testing.assert_array_equal(moved["layer"], hits["layer"][keep] // 2)


def test_times_get_a_resolution_or_none(zqq):
    time = jagged.columns(zqq.hits)["time"]
    error, larger = (jagged.columns(Move(time=sigma).apply(zqq).hits)["time"] - time for sigma in (0.1, 1.0))
    assert np.nanstd(error) == pytest.approx(0.1, rel=0.05)
    assert np.ptp(error[jagged.offsets(jagged.count(zqq.hits))[:-1]]) > 0.01  # other errors in each event
    np.testing.assert_allclose(larger, 10 * error, atol=1e-3)
    assert np.isnan(jagged.columns(Move(time=np.inf).apply(zqq).hits)["time"]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 4}, "has 30 layers, which is no multiple of 4"),
        ({"hcal_layers": 60}, "the HCAL of 'ild_g4' has 48 layers"),
        ({"hcal_layers": 33, "layers": 2}, "has 33 layers"),
        ({"ecal_cells": 1.5}, "can be summed and not be cut"),
        ({"ecal_threshold": 1e-9}, "changes nothing: hits of the ECAL have at least"),
        ({"time": -1.0}, "at least 0 ns"),
    ],
)
def test_a_move_that_would_not_be_exact_is_refused(zqq, options, message):
    with pytest.raises(ConfigError, match=message):
        Move(**options).check(zqq)


def test_a_detector_that_does_not_say_its_cells_is_refused_with_both_remedies(zqq):
    """Models store descriptions of their time: that of the same name may be complete."""
    parts = [dataclasses.replace(part, cell_size=None) for part in zqq.detector.calorimeters]
    older = dataclasses.replace(zqq, detector=dataclasses.replace(zqq.detector, calorimeters=tuple(parts)))
    with pytest.raises(ConfigError, match=r"name it \(--detector ild_g4\) if .*, or complete its YAML file"):
        Move(ecal_cells=2).check(older)


def test_layers_of_two_calorimeters_behind_each_other_have_no_one_number(zqq):
    *others, endcap = zqq.detector.calorimeters
    tail = dataclasses.replace(endcap, name="tail_catcher", collections=("Tail",), sim_collections=())
    both = dataclasses.replace(zqq.detector, calorimeters=(*others, endcap, tail))
    assert Move(layers=2).detector(both)
    with pytest.raises(ConfigError, match="hcal_endcap and tail_catcher are in one region"):
        Move(hcal_layers=24).detector(both)


def test_layers_of_the_hcal_are_counted_from_0(zqq):
    layer = jagged.columns(zqq.hits)["layer"]
    at = np.array([c.kind == "hcal" for c in zqq.detector.calorimeters])[jagged.columns(zqq.hits)["subdetector"]]
    one, deep = (jagged.replaced(zqq.hits, {"layer": (layer + by).astype(layer.dtype)}) for by in (at, 40 * at))
    for hits in (one, deep):
        with pytest.raises(ConfigError, match=r"hcal_layers: hits of hcal_\w+ are in layers .*, expected .* 0 to 47"):
            Move(hcal_layers=24).check(dataclasses.replace(zqq, hits=hits))
    Move(hcal_layers=24).check(keep_hits(zqq, ~at | (layer >= 3)))  # no shower has begun before
    unknown = jagged.replaced(zqq.hits, {"layer": np.full_like(layer, -1)})
    with pytest.raises(InputError, match=r"'hits\.layer': no layers of the HCAL can be left out without"):
        Move(hcal_layers=24).apply(dataclasses.replace(zqq, hits=unknown))  # a further file's: `check` sees the first


def test_layers_must_be_known(zqq):
    unknown = jagged.replaced(zqq.hits, {"layer": -1 + 0 * jagged.columns(zqq.hits)["layer"]})
    for form in (Move(layers=2), Move(ecal_cells=2)):  # cells behind each other would be summed
        with pytest.raises(ConfigError, match="the hits of the ECAL have no layer numbers"):
            form.check(dataclasses.replace(zqq, hits=unknown))
    columns = jagged.columns(zqq.hits)
    in_hcal = np.array([part.kind == "hcal" for part in zqq.detector.calorimeters])[columns["subdetector"]]
    some = dataclasses.replace(zqq, hits=jagged.replaced(zqq.hits, {"layer": np.where(in_hcal, -1, columns["layer"])}))
    Move(ecal_cells=2).check(some)
    with pytest.raises(ConfigError, match="the hits of the HCAL have no layer numbers"):
        Move(hcal_cells=2).check(some)


@pytest.mark.parametrize(
    ("region", "wrong", "said"),
    [
        (
            "endcap",
            {"phase": 0.3},
            r"ecal_endcap do not lie in cells of 5 mm along axes turned by the phase of 0\.3 rad",
        ),
        ("barrel", {"cell_size": 5.1}, r"ecal_barrel do not lie in cells of 5\.1 mm along z"),
    ],
)
def test_cells_that_the_hits_do_not_lie_in_are_said(zqq, region, wrong, said):
    Move(ecal_cells=2).check(zqq)  # silent: warnings are errors
    parts = (
        dataclasses.replace(c, **wrong) if (c.kind, c.region) == ("ecal", region) else c
        for c in zqq.detector.calorimeters
    )
    other = dataclasses.replace(zqq, detector=dataclasses.replace(zqq.detector, calorimeters=tuple(parts)))
    with pytest.warns(ImplausibleWarning, match=said):
        Move(ecal_cells=2).check(other)
