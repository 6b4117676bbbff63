import dataclasses
import os
import re
import shutil
import subprocess
import sys
import types
from collections import defaultdict
from pathlib import Path

import awkward as ak
import numpy as np
import onnx
import pytest

from benchmarks.cpp import RUNTIME, SOURCES, compile_program, include_folder, missing_for_cpp, run_program
from pflow.config import VERSION
from pflow.event import jagged
from pflow.event.events import Flag
from pflow.io.edm4hep.podio import layer_from_cell_id
from pflow.io.edm4hep.reader import read_tracks
from pflow.io.edm4hep.reco import RecoNames, _mc_links
from pflow.physics.detector import load_detector
from pflow.physics.geometry import cluster_shape
from pflow.physics.kinematics import follow_to_calorimeter, momentum_from_track
from pflow.physics.pdg import class_index

HERE = Path(__file__).resolve().parent

if missing := missing_for_cpp():
    pytest.skip(missing, allow_module_level=True)

TOY = HERE.parent / "data" / "toy_graphs"
"""Graphs, as text, of a model in which each hit is a photon, from the last to the first, with half of its hit."""

METADATA = {
    "format": "4",
    "architecture": "pointing",
    "b_field": "3.5",
    "calorimeter_face": "1800 2200 12",
    "ecal_outer_radius": "2000",
    "subdetectors": "ecal,hcal",
    "known": "hit_energy,hit_position,hit_subdetector,hit_layer,track_momentum,track_charge",
    "energy_above": "0",
    "tracks": "1",
    "classes": "charged_hadron,neutral_hadron,photon,electron,muon",
}

HIT = "hit 1.5 1800 20 30 0 3 nan\n"
TRACK = "track 1 2 3 -1 nan nan nan nan nan nan nan nan nan\n"


def write_toy(folder, *, change=None, **metadata):
    """The toy's folder; `change` is a graph and replacements in its text."""
    folder.mkdir()
    for path in TOY.glob("*.txt"):
        name, text = path.stem, path.read_text("utf-8")
        if change and change[0] == name:
            for old, new in change[1].items():
                text = text.replace(old, new)
        graph = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {name} {text}')
        if name == "encoder":
            onnx.helper.set_model_props(graph, {**METADATA, **metadata})
        onnx.save(graph, str(folder / f"{name}.onnx"))
    return folder


def existence(expression):
    """Change of the toy's refinement that gives it the output ``existence``."""
    output = {"float[T] score,": "float[T] score, float[E] existence,"}
    return output | {"hit_link_hit = Identity(hit)": f"existence = {expression}\n    hit_link_hit = Identity(hit)"}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture
def run(program, tmp_path):

    def run(model, text):
        (tmp_path / "events.txt").write_text(text)
        return run_program(program, model, tmp_path / "events.txt")[1:-1]

    return run


@pytest.fixture
def error_of(run):
    """Runs the program on the text of events; the error that it must give."""

    def error_of(model, text=f"event\n{HIT}"):
        with pytest.raises(subprocess.CalledProcessError) as error:
            run(model, text)
        assert error.value.returncode == 1
        return error.value.stderr

    return error_of


def test_values_rows_and_existence_go_from_graph_to_graph_by_name(run, toy, tmp_path):
    (event,) = run(toy, f"event\n{HIT}hit 2.5 0 0 1800 1 4 7\n{TRACK}")
    assert [particle["energy"] for particle in event["particles"]] == [2.5, 1.5]
    assert [particle["hits"] for particle in event["particles"]] == [[[1, 0.5]], [[0, 0.5]]]
    first = event["particles"][0]
    assert first["momentum"] == [2.5] * 3
    assert first["covariance"] == [2.5] * 10
    assert (first["class_probability"], first["score"]) == ([0.5] * 5, 0.5)
    assert (first["pdg"], first["charge"], first["mass"], first["tracks"]) == (22, 0, 0, [])
    assert not event["truncated"]
    model = write_toy(tmp_path / "model", change=("refinement", existence("Mul(deposit, half)")))
    (event,) = run(model, f"event\n{HIT}hit 0.5 0 0 1800 1 4 7\n")
    assert [particle["existence"] for particle in event["particles"]] == [0.25, 0.75]
    assert "existence" not in run(toy, f"event\n{HIT}")[0]["particles"][0]


def test_an_empty_event_and_the_largest_number_of_particles(run, toy, tmp_path):
    text = f"event\nevent\nhit 0 0 0 0 0 0 nan\nevent\n{TRACK}event\n{HIT}"
    assert [len(event["particles"]) for event in run(toy, text)] == [0, 0, 0, 1]
    full, cut = run(toy, f"event\n{4 * HIT}event\n{5 * HIT}")
    assert [len(full["particles"]), len(cut["particles"])] == [4, 4]
    assert (full["truncated"], cut["truncated"]) == (False, True)
    without_tracks = write_toy(tmp_path / "model", energy_above="2", tracks="0")
    assert run(without_tracks, f"event\n{HIT}{TRACK.replace('1 2 3', '0 0 0')}")[0]["particles"] == []


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ("hit nan 1 2 3 0 0 0", "hits[1].energy", "not known"),
        ("hit -1 1 2 3 0 0 0", "hits[1].energy", "expected 0 to 100000, found -1"),
        ("hit 1 1 2 3 2 0 0", "hits[1].subdetector", "expected 0 to 1, found 2"),
        ("hit 1 1 2 3 0 -1 0", "hits[1].layer", "not known"),
        (TRACK.strip().replace("3", "nan", 1), "tracks[0].pz", "not known"),
        (TRACK.strip().replace("-1", "2000", 1), "tracks[0].charge", "expected -1.01 to 1.01, found 2000"),
        (TRACK.strip().replace("1 2 3 -1", "0 0 0 -1"), "tracks[0].px", "expected a momentum, found (0, 0, 0) GeV"),
        ("hit 1 0 0 0 0 0 0", "hits[1].energy", "expected 0 at the origin, (0, 0, 0) mm, found 1"),
    ],
)
def test_an_impossible_value_is_an_error_that_names_it(error_of, toy, line, field, message):
    error = error_of(toy, f"event\n{HIT}{line}\n")
    assert error.startswith(f"error: {field}: ")
    assert message in error


def test_what_the_model_does_not_read_need_not_be_known(run, tmp_path):
    known = METADATA["known"].replace(",hit_layer", "")
    (event,) = run(write_toy(tmp_path / "model", known=known), "event\nhit 1.5 1800 20 30 0 -1 nan\n")
    assert len(event["particles"]) == 1


def test_a_text_that_is_no_event_and_a_missing_folder_are_errors(error_of, toy, tmp_path):
    assert "encoder.onnx: there is no such file; expected the folder" in error_of(tmp_path / "none")
    assert "line 3: expected event, hit or track, found 'shower 3'" in error_of(toy, f"event\n{HIT}shower 3\n")
    assert "line 2: expected a number" in error_of(toy, "event\nhit 3 4\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "2"}, "encoder.onnx: expected an export of a pointing network in format 4"),
        ({"energy_above": "little"}, "encoder.onnx: expected a number as metadata 'energy_above'"),
        ({"export": "1"}, "decoder.onnx: is of another export than encoder.onnx"),
        ({"classes": "photon"}, "encoder.onnx: its classes of particles differ from this library"),
    ],
)
def test_a_model_that_the_library_does_not_know_is_an_error(error_of, tmp_path, changes, message):
    assert message in error_of(write_toy(tmp_path / "model", **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("encoder", {"hit_layer": "hit_colour"}), "this library has no input 'hit_colour'"),
        (
            ("decoder", {"bool[1]": "bool[2]", "Greater(left, limit)": "Constant<value = bool[2] {0, 0}>()"}),
            "expected one value as output 'truncated'",
        ),
        (("decoder", {"energies": "momenta"}), "'momenta' is not an output of the encoder"),
        (("refinement", {"covariance": "spread"}), "expected the output 'covariance'"),
        (
            ("refinement", {"double[T] mass": "float[T] mass", "Cast<to = 11>(charge)": "Identity(charge)"}),
            "output 'mass' has another type or shape than expected",
        ),
        (("refinement", {"hit_link_hit = Identity(hit)": "hit_link_hit = Add(hit, one)"}), "a link leads to no hit"),
        (
            ("refinement", {"charge = Mul(deposit, none)": "charge = Concat<axis = 0>(deposit, deposit)"}),
            "different numbers of particles",
        ),
        (("refinement", {"energy = Cast<to = 11>(deposit)": "energy = Log(mass)"}), "numbers that are not finite"),
        (("refinement", {"column = Unsqueeze(energy": "no = Log(mass)\n column = Unsqueeze(no"}), "not finite"),
        (
            ("refinement", {"score_column = Unsqueeze(score": "no = Log(charge)\n score_column = Unsqueeze(no"}),
            "not finite",
        ),
        (
            ("refinement", {"link_particle = Range(first, size, step)": "link_particle = Add(hit, one)"}),
            "or no particle",
        ),
        (("refinement", existence("Slice(deposit, zero, zero)")), "different numbers of particles"),
        (("refinement", existence("Log(charge)")), "numbers that are not finite"),
    ],
)
def test_graphs_that_do_not_fit_are_an_error(error_of, tmp_path, change, message):
    assert message in error_of(write_toy(tmp_path / "model", change=change))


def test_a_refinement_of_another_export_is_an_error(error_of, tmp_path):
    model = write_toy(tmp_path / "model", export="1")
    decoder = onnx.load(str(model / "decoder.onnx"))
    onnx.helper.set_model_props(decoder, {"export": "1"})
    onnx.save(decoder, str(model / "decoder.onnx"))
    assert "refinement.onnx: is of another export than encoder.onnx" in error_of(model)


def test_half_of_the_tracks_may_enter_the_calorimeter_nowhere(run, error_of, tmp_path):
    change = ("encoder", {"float[K] track_charge)": "float[K] track_charge, float[K, 3] track_calo_position)"})
    model = write_toy(tmp_path / "model", change=change, known=METADATA["known"] + ",track_calo_position")
    near = TRACK.replace("-1 nan nan nan", "-1 1800 0 0")
    assert len(run(model, f"event\n{HIT}{near}{TRACK}")[0]["particles"]) == 1
    assert "tracks[1].calo_x: the model reads it" in error_of(model, f"event\n{HIT}{near}{TRACK}{TRACK}")


USAGE_DATA = """#include <cstdio>
#include <cstdlib>
#include "pflow.h"
int main(int, char** argv) {
  const pflow::Reconstructor reconstructor(argv[1], {-5});  // threads: all cores
  std::puts(std::getenv("ORT_DISABLE_TELEMETRY"));
}
"""


def test_onnx_runtime_sends_no_usage_data(library, toy, tmp_path):
    (tmp_path / "usage.cpp").write_text(USAGE_DATA)
    program = compile_program(library, tmp_path / "usage.cpp", flags="-O0")
    for given, expected in (({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")):
        done = subprocess.run([program, toy], check=True, capture_output=True, text=True, env=given, timeout=60)
        assert done.stdout.strip() == expected


@pytest.fixture(scope="module")
def run_event(library, toy):
    """Runs event.cpp, with stand-ins for EDM4hep, on the text of an event; numbers by line."""
    flags = f"-std=c++20 -O0 -I {HERE / 'cpp'} {SOURCES / 'event.cpp'}"
    program = compile_program(library, HERE / "cpp" / "event.cpp", flags=flags)

    def run(*lines, model=toy):
        text = "".join(f"{line}\n" for line in lines)
        done = subprocess.run([str(program), str(model)], check=True, capture_output=True, text=True, input=text)
        rows = defaultdict(list)
        for line in done.stdout.splitlines():
            name, *numbers = line.split()
            rows[name].append([float(number) for number in numbers])
        return rows

    return run


ECAL, HCAL = "collection ecal layer:0:8", "collection hcal layer:0:8"


def state(location, *, d0=0.0, phi=0.3, omega=-1e-3, z0=0.0, tan_lambda=0.5, point="0 0 0"):
    return f"state {location} {d0:.9g} {phi:.9g} {omega:.9g} {z0:.9g} {tan_lambda:.9g} {point}"


@pytest.mark.parametrize(
    "encoding",
    ["system:5,side:-2,layer:9", "x:32:-16,layer:19:9", "layer:60:-4", "layer:0:-64", "K-1:4:6,M:3", "system:0:8"],
)
def test_layers_are_those_of_python(run_event, encoding):
    cells = np.random.default_rng(0).integers(0, 2**64, 40, dtype=np.uint64)
    rows = run_event(f"collection ecal {encoding}", *(f"hit 1 0 0 0 {cell}" for cell in cells))
    assert [row[5] for row in rows["hit"]] == layer_from_cell_id(cells, encoding).tolist()


@pytest.mark.parametrize(
    ("collection", "message"),
    [
        ("ecal layer:60:5", "'layer:60:5' in 'layer:60:5' is not name:offset:width"),
        ("ecal layer:8,side", "'side' in 'layer:8,side' is not"),
        ("ecal layer:8:x", "is not name:offset:width or name:width within 64 bits"),
        ("lumical layer:8", "lumical: the model has no such calorimeter; expected one of ecal hcal"),
    ],
)
def test_a_collection_that_cannot_be_read_is_an_error(run_event, collection, message):
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_event(f"collection {collection}")
    assert message in error.value.stderr


def test_hits_are_ordered_by_calorimeter(run_event):
    rows = run_event(HCAL, "hit 1 2 3 4 7", ECAL, "hit 2 2 3 4 8", "hit 3 2 3 4 9", ECAL, "hit 4 2 3 4 10")
    assert [row[0] for row in rows["hit"]] == [2, 3, 4, 1]
    assert [row[4:6] for row in rows["hit"]] == [[0, 8], [0, 9], [0, 10], [1, 7]]
    assert rows["offsets"] == [[3, 0, 2]]


def python_tracks(*values):
    """What pflow's reader of EDM4hep files makes of tracks, each a list of keyword arguments of `state`."""
    states = [one for of_track in values for one in of_track]
    points = np.array([[float(x) for x in one.get("point", "0 0 0").split()] for one in states])
    names = {"D0": "d0", "phi": "phi", "omega": "omega", "Z0": "z0", "tanLambda": "tan_lambda"}
    default = {"d0": 0.0, "phi": 0.3, "omega": -1e-3, "z0": 0.0, "tan_lambda": 0.5}
    columns = {name: np.array([one.get(key, default[key]) for one in states]) for name, key in names.items()}
    columns |= {f"referencePoint.{axis}": points[:, i] for i, axis in enumerate("xyz")}
    columns = {name: values.astype(np.float32) for name, values in columns.items()}
    end = np.cumsum([len(of_track) for of_track in values])
    table = {("T", f"trackStates_{which}"): [at] for which, at in (("begin", np.append(0, end)[:-1]), ("end", end))}
    table |= {("_T_trackStates", name): [column] for name, column in columns.items()}
    table["_T_trackStates", "location"] = [[one["location"] for one in states]]
    table = {key: ak.Array(column) for key, column in table.items()}
    reads = types.SimpleNamespace(
        has=lambda field, *members: all((field, member) in table for member in members),
        first=lambda *fields: next((field for field in fields if (field, "omega") in table), None),
        members=lambda field: [member for of, member in table if of == field],
    )
    get = lambda span, field, *members: next(table[field, name] for name in members if (field, name) in table)  # noqa: E731
    cld = load_detector("cld")
    bare = (dataclasses.replace(part, inner_radius=None, inner_z=None) for part in cld.calorimeters)
    detector = dataclasses.replace(cld, calorimeters=tuple(bare), **GEOMETRY)
    file = types.SimpleNamespace(columns=reads, get=get, path="", num_entries=1)
    sources = types.SimpleNamespace(detector=detector, collections={"tracks": ("T",)}, notes={}, states_elsewhere=None)
    tracks = read_tracks(file, sources, range(1))
    fields = [f"{part}.{axis}" for part, axes in PARTS for axis in axes] + ["d0", "z0", "omega"]
    flat = jagged.columns(tracks)
    return [[float(flat[field][i]) for field in fields] for i in range(len(values))]


def assert_tracks(rows, *values):
    ours = np.delete(np.array(rows["track"]), 3, axis=1)  # without the charge
    np.testing.assert_allclose(ours, python_tracks(*values), rtol=2e-6, atol=1e-4)


def lines_of(*values):
    return [line for of_track in values for line in ("track", *(state(**one) for one in of_track))]


GEOMETRY = {"b_field": 3.5, "ecal_inner_radius": 1800.0, "ecal_inner_z": 2200.0, "ecal_outer_radius": 2000.0}
"""What `METADATA` says of the detector; CLD's ECAL barrel has twelve sides as well."""

PARTS = (("momentum", ("px", "py", "pz")), ("calo_position", "xyz"), ("calo_momentum", ("px", "py", "pz")))


def test_a_tracks_best_states_are_taken_and_followed_to_the_axis(run_event):
    first = {"location": 2, "phi": 0.1, "point": "100 -40 20", "z0": 3, "d0": 1.5}
    unused = {"location": 7, "phi": 0.2}
    face = {"location": 4, "phi": 0.4, "d0": 2, "z0": 3, "point": "1800 40 900"}
    at_ip = {"location": 1}
    far = {"location": 1, "point": "0 200 10", "omega": 1e-3}
    on_centre = {"location": 2, "omega": 2**-10, "phi": 0.0, "point": "0 1024 0"}  # the axis is the circle's centre
    bad = ({"location": 1, "omega": 0}, {"location": 1, "d0": np.nan}, {"location": 1, "point": "0 0 inf"})
    tracks = (
        [unused, face, first, at_ip, at_ip | {"phi": 9}],
        [unused, face, first, *bad],
        [unused],
        [far, face],
        [{"location": 3, "tan_lambda": -2, "point": "-700 300 -1000"}, {"location": 3}],
        [face | {"point": "1900 -300 10"}],
        [at_ip | {"phi": 0.5}, {"location": 1, "point": "9.9 0 0"}],
        [{"location": 1, "point": "9.9 0 5", "phi": 0.7}],
        [on_centre],
    )  # fmt: skip
    assert_tracks(run_event(*lines_of(*tracks)), *tracks)


@pytest.mark.parametrize(("n_elsewhere", "third"), [(1, ""), (2, ""), (3, "0 0 2800"), (3, "0 nan 2000")])
def test_states_elsewhere_than_at_the_calorimeter_are_not_used(run_event, n_elsewhere, third):
    points = ("1750 0 0", "0 2400 0", third)[:n_elsewhere]  # inside; behind the barrel; behind an endcap, or nowhere
    barrel = ("1770 0 900", "0 1800 -100", "1780 0 0", "0 2030 0", "1990 0 0")
    there = (*barrel, "0 0 2170", "0 0 -2480", "9 9 2300", "0 1810 2100")  # the last four in endcaps
    tracks = [[{"location": 1, "phi": i / 4}, {"location": 4, "point": p}] for i, p in enumerate((*points, *there))]
    rows = run_event("elsewhere", *lines_of(*tracks))
    assert_tracks(rows, *tracks)
    followed = [row[4:7] != [float(x) for x in (*points, *there)[i].split()] for i, row in enumerate(rows["track"])]
    # Those in the tracker are never used, others unless many are elsewhere.
    assert followed == [True, *[n_elsewhere > 2] * (n_elsewhere - 1)] + [False] * len(there)


@pytest.mark.parametrize("n_behind", [1, 2])
def test_few_states_on_the_other_side_are_not_used(run_event, n_behind):
    phi = np.arange(6) + 0.1
    side = np.where(np.arange(6) < n_behind, -1, 1)
    points = [f"{s * 1800 * np.cos(p):.3f} {s * 1800 * np.sin(p):.3f} 900" for s, p in zip(side, phi, strict=True)]
    helix = {"omega": -2e-4, "tan_lambda": 0.5}  # 5 GeV
    tracks = [
        [{"location": 1, "phi": p, **helix}, {"location": 4, "point": at, "phi": p, **helix}]
        for p, at in zip(phi, points, strict=True)
    ]
    rows = run_event(*lines_of(*tracks))
    assert_tracks(rows, *tracks)
    used = [
        np.allclose(row[4:7], [float(x) for x in at.split()]) for row, at in zip(rows["track"], points, strict=True)
    ]
    assert used == [n_behind == 2] * n_behind + [True] * (6 - n_behind)


@pytest.mark.parametrize("sides", [0, 12])
def test_tracks_without_a_state_at_the_calorimeter_are_followed(run_event, tmp_path, sides):
    draw = np.random.default_rng(1)
    phi, tan_lambda, d0, z0 = (draw.uniform(-3, 3, (4, 60)) * [[1], [1], [5], [900]]).astype(np.float32)
    omega = (np.tile([-1, 1], 30) * 10 ** draw.uniform(-5, -2.5, 60)).astype(np.float32)
    states = zip(d0, phi, omega, z0, tan_lambda, strict=True)
    values = [dict(zip(("d0", "phi", "omega", "z0", "tan_lambda"), state, strict=True)) for state in states]
    detector, tracking = load_detector("ild_g4"), load_detector("cld").truth_tracks
    face = f"{detector.ecal_inner_radius} {detector.ecal_inner_z} {sides}"
    model = write_toy(tmp_path / "model", calorimeter_face=face)
    rows = run_event(*(line for helix in values for line in ("track", state(1, **helix))), model=model)
    position, momentum = follow_to_calorimeter(
        np.stack([-d0 * np.sin(phi), d0 * np.cos(phi), z0], axis=1),
        np.stack(momentum_from_track(omega.astype(np.float64), phi, tan_lambda, 3.5), axis=1),
        np.sign(omega),
        dataclasses.replace(detector, truth_tracks=dataclasses.replace(tracking, sides=sides or None)),
    )
    never = np.isnan(position[:, 0])  # tracks that start beyond the endcap
    assert 5 < never.sum() < 30
    momentum[never] = np.nan
    at_face = np.array(rows["track"])[:, 4:10]
    np.testing.assert_allclose(at_face, np.concatenate([position, momentum], axis=1), rtol=1e-5, atol=1e-3)


def test_impossible_hits_and_tracks_are_left_out(run_event):
    bad = ("hit nan 1 2 3 0", "hit -1 1 2 3 0", "hit 1 2 3 inf 0", "hit 1 0 0 0 0", "hit 2e5 1 2 3 0")
    hits = (*bad, *5 * ["hit 1 2 3 4 5"])
    rows = run_event(ECAL, *hits, "track", "track", state(1), "track", state(1, omega=1e-12))
    assert [row[0] for row in rows["hit"]] == [0] * 5 + [1] * 5
    assert (len(rows["track"]), rows["unused"]) == (1, [[0, 2]])
    assert rows["flags"] == [[Flag.UNUSABLE_HITS | Flag.UNUSABLE_TRACKS]]
    changed = ({"phi": 0.302}, {"phi": 0.3004}, {"omega": -1.03e-3}, {"omega": -1.2e-3}, {"omega": 1e-3})
    of_one = (state(1), *(state(1, **values) for values in changed))
    again = (line for of_track in of_one for line in ("track", of_track))
    rows = run_event(ECAL, *hits, *again)
    assert (len(rows["track"]), rows["unused"]) == (4, [[2, 3]])  # other momenta and charges are other tracks
    rows = run_event(ECAL, *hits[:-1])  # more than half of them: for the library to refuse
    assert np.isnan(rows["hit"][0][0])
    assert rows["flags"] == [[0]]


def particle(pdg, charge, *links, energy=2.0, existence=np.nan):
    """Lines of a particle, with links (kind, index, weight)."""
    yield f"particle {pdg} {charge} {energy} 0.25 1 -2 3 0.75 {existence}"
    yield from (f"{kind}_link {index} {weight:.9g}" for kind, index, weight in links)


@pytest.mark.parametrize("n_hits", [1, 2, 3, 200])
def test_clusters_are_those_of_python(run_event, n_hits):
    draw = np.random.default_rng(n_hits)
    position = (1500 + 300 * draw.standard_normal((n_hits, 3)) * [1, 0.3, 2]).astype(np.float32)
    energy = draw.exponential(size=n_hits).astype(np.float32)
    lines = [f"hit {e:.9g} {x:.9g} {y:.9g} {z:.9g} 0" for e, (x, y, z) in zip(energy, position, strict=True)]
    every = np.arange(0, n_hits, 2)
    weight = (1 / (1 + every % 3)).astype(np.float32)
    of_particle = particle(22, 0, *(("hit", i, w) for i, w in zip(every, weight, strict=True)))
    rows = run_event(ECAL, *lines[: n_hits // 2], HCAL, *lines[n_hits // 2 :], *of_particle)
    part = energy[every].astype(np.float64) * weight
    (mean,), (axis,) = cluster_shape(np.zeros(len(every), int), part, position[every], 1)
    expected = [part.sum(), *mean, np.arccos(axis[2]), np.arctan2(axis[1], axis[0])]
    np.testing.assert_allclose(rows["cluster"], [expected], rtol=1e-5)
    in_ecal = part[every < n_hits // 2].sum()
    np.testing.assert_allclose(rows["subdetectors"], [[in_ecal, part.sum() - in_ecal]], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows["hits"], [energy[every]], rtol=1e-7)
    np.testing.assert_allclose(rows["hit_weights"], [weight], rtol=1e-7)


@pytest.mark.parametrize(
    ("hits", "mean", "axis"),
    [
        (("hit 0 3 0 4 0", "hit 0 9 0 12 0"), (6, 0, 8), (0.6, 0, 0.8)),  # without energy: the plain mean
        (("hit 2 -3 0 4 0", "hit 2 -3 0 4 0"), (-3, 0, 4), (-0.6, 0, 0.8)),  # no spread: away from the origin
        (("hit 1 0 0 0 0",), (0, 0, 0), (0, 0, 1)),
        (("hit 1 -7 1 0 0", "hit 3 -9 1 0 0"), (-8.5, 1, 0), (-1, 0, 0)),  # the axis is turned away from it
        (("hit 1 4 -7 1 0", "hit 1 4 -9 1 0"), (4, -8, 1), (0, -1, 0)),
        (("hit 1 4 1 -7 0", "hit 1 4 1 -9 0"), (4, 1, -8), (0, 0, -1)),
    ],
)
def test_directions_of_clusters_without_energy_or_spread(run_event, hits, mean, axis):
    links = (("hit", i, 1.0) for i in range(len(hits)))
    (row,) = run_event(ECAL, *hits, *particle(22, 0, *links))["cluster"]
    *place, theta, phi = row[1:]
    direction = [np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)]
    np.testing.assert_allclose([*place, *direction], [*mean, *axis], atol=1e-6)


def test_a_particle_has_all_its_members_and_its_tracks_by_weight(run_event):
    tracks = [("track", i, weight) for i, weight in enumerate((0.25, 0.5, 0.25, 0.5))]
    rows = run_event(
        ECAL,
        "hit 1 2 3 4 5",
        *(line for i in range(4) for line in ("track", state(1, omega=0.5**i))),
        *particle(-13, -1, *tracks, energy=7, existence=0.625),
        *particle(22, 0, ("hit", 0, 0.5), energy=8),
    )
    members = [0.25, 1, -2, 3, 0.75]
    assert rows["particle"] == [[-13, -1, 7, *members, 0], [22, 0, 8, *members, 1]]
    assert rows["covariance"] == [list(range(1, 11))] * 2
    assert rows["track_weights"] == [[0.5, 0.5, 0.25, 0.25]]
    assert rows["tracks"] == [[0.5, 0.125, 1, 0.25], []]
    assert len(rows["cluster"]) == 1
    assert rows["particle_id"] == [[4, 7, -13, 0.75, 7], [2, 7, 22, 0.75, 8]]
    np.testing.assert_allclose(rows["parameters"][0], [0.1, 0.2, 0.3, 0.15, 0.25, 0.625])
    np.testing.assert_allclose(rows["parameters"][1], [0.1, 0.2, 0.3, 0.15, 0.25])


def test_classes_are_those_of_python(run_event):
    codes = np.array([211, -211, 2112, 130, 22, 11, -11, 13, -13, 2212, 310])
    lines = [line for pdg in codes for line in particle(pdg, int(pdg in (211, 2212)) - int(pdg == -211))]
    rows = run_event(ECAL, *lines)
    assert [row[0] for row in rows["particle_id"]] == class_index(codes).tolist()


@pytest.mark.parametrize(
    ("particles", "flags"),
    [
        ([], Flag.LOST_TRACKS),
        ([(211, 1, ("track", 0, 1.0), ("track", 1, 1.0))], 0),
        ([(211, 1, ("track", 0, 1.0), ("track", 1, 0.61))], 0),  # momenta are 3 to 1: 9.8% are lost
        ([(211, 1, ("track", 0, 1.0), ("track", 1, 0.59))], Flag.LOST_TRACKS),
        ([(211, 1, ("track", 0, 1.0), ("track", 1, 0.61)), (22, 0, ("track", 1, 0.39))], 0),
        ([(211, 1, ("track", 0, 1.0), ("track", 1, 0.59)), (22, 0, ("track", 1, 0.41))], Flag.NEUTRAL_TRACKS),
        ([(22, 0, ("track", 0, 0.8))], Flag.LOST_TRACKS | Flag.NEUTRAL_TRACKS),
        (["truncated"], Flag.MAX_PARTICLES),
    ],
)
def test_flags_say_how_much_of_the_tracks_momentum_is_where(run_event, particles, flags):
    tracks = ("track", state(1, omega=1e-3), "track", state(1, omega=-3e-3))
    lines = [line for one in particles for line in ([one] if isinstance(one, str) else particle(*one))]
    bad = ("hit nan 1 2 3 0", "hit 1 1 2 3 0")
    assert run_event(ECAL, *bad, *tracks, *lines)["flags_of"] == [[Flag.UNUSABLE_HITS | flags]]


def test_monte_carlo_links_are_those_of_python(run_event):
    energy = [1.0, 2.0, 4.0, 8.0]
    hit_mc = ((0, 5, 0.5), (0, 3, 1.5), (1, 3, 7.0), (2, 9, 0.0), (2, 5, 0.0))  # the last hit has none
    track_mc = ((0, 9, 2.0), (1, 3, 0.25), (1, 5, 0.75))
    particles = (
        (22, 0, ("hit", 0, 0.5), ("hit", 1, 1.0), ("hit", 3, 0.25), ("track", 0, 1.0)),
        (130, 0, ("hit", 2, 1.0), ("hit", 0, 0.5)),
        (211, 1, ("track", 0, 0.5), ("track", 1, 1.0)),
        (211, 1),
        (22, 0, ("hit", 3, 0.5)),
    )
    lines = [f"hit {e} 1 2 3 0" for e in energy]
    rows = run_event(
        *(ECAL, *lines[:2], HCAL, *lines[2:]),
        *(line for phi in (0.3, 0.6) for line in ("track", state(1, phi=phi))),
        *(f"hit_mc {hit} {mc} {weight}" for hit, mc, weight in hit_mc),
        *(f"track_mc {track} {mc} {weight}" for track, mc, weight in track_mc),
        *(line for i, one in enumerate(particles) for line in particle(*one, energy=i)),
    )

    def links(pairs):
        source, mc, weight = zip(*pairs, strict=True) if pairs else ([], [], [])
        return jagged.Links.by_event(*(np.array(x) for x in (np.zeros(len(mc), int), source, mc, weight)), 1)

    def linked(kind):
        return links([(i, n, w) for n, one in enumerate(particles) for what, i, w in one[2:] if what == kind])

    class OneEvent(types.SimpleNamespace):
        def __len__(self):
            return 1

    event = OneEvent(
        hits=ak.Array({"energy": ak.Array([energy])}),
        tracks=ak.Array([[{"charge": 1.0}] * 2]),
        truth=ak.Array([[{"pdg": 22}] * 10]),
        hit_links=links(hit_mc).normalised().records(),
        track_links=links(track_mc).normalised().records(),
    )
    names = RecoNames("PFlow")
    frames = _mc_links(event, np.array([len(particles)]), linked("hit"), linked("track"), 1, names)
    name = names.mc_links
    expected = [frames[f"_{name}_from"].columns["index"], frames[f"_{name}_to"].columns["index"]]
    np.testing.assert_allclose(rows["mc_link"], np.transpose([*expected, frames[name].columns["weight"]]), rtol=1e-6)
    assert len(rows["mc_link"]) == 8


CONFIGURABLES = """def __getattr__(name):
    def component(instance="", **properties):
        properties["component"] = name
        if name == "PFlowReconstruction":
            print(sorted(properties.items()))
        return type(name, (), {})()
    return component
"""


@pytest.mark.parametrize(("options", "links"), [([], "[]"), (["--mc-links"], "['CalohitMCTruthLink']")])
def test_the_options_of_k4run_have_defaults(tmp_path, options, links):
    """Without any, ``--help`` of k4run gets as far as k4run's own help; Gaudi's modules are stand-ins."""
    for path, text in (
        ("Configurables.py", CONFIGURABLES),
        ("Gaudi/Configuration.py", "INFO = 3"),
        ("k4FWCore/__init__.py", CONFIGURABLES),
        ("k4FWCore/parseArgs.py", "import argparse\nparser = argparse.ArgumentParser(add_help=False)"),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    command = [sys.executable, SOURCES / "pflow_cld.py", "--help", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)})
    assert f"('HitLinks', {links}), ('Model', 'model')" in done.stdout
    assert "OnError" not in done.stdout  # its default: an unusable event fails the job


USER = """cmake_minimum_required(VERSION 3.18)
project(user CXX)
find_package(pflow REQUIRED)
add_executable(readme readme.cpp)
target_link_libraries(readme PRIVATE pflow::pflow)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_builds_and_installs_it_and_another_project_finds_it(library, tmp_path, toy):
    paths = [f"-DONNXRUNTIME_INCLUDE={include_folder()}", f"-DONNXRUNTIME_LIBRARY={library.parent / RUNTIME}"]
    build, installed, user = (tmp_path / name for name in ("build", "installed", "user"))

    def cmake(*arguments):
        subprocess.run(["cmake", *map(str, arguments)], check=True, capture_output=True)

    cmake("-S", SOURCES, "-B", build, *paths, "-DCMAKE_CXX_FLAGS=-O0")
    cmake("--build", build)
    cmake("--install", build, "--prefix", installed)
    assert (installed / "include" / "pflow" / "pflow.h").is_file()  # with event.h, as libevent has one
    shutil.rmtree(build)
    (tmp_path / "events.txt").write_text(f"event\n{HIT}")
    assert len(run_program(installed / "bin" / "pflow_reconstruct", toy, tmp_path / "events.txt")) == 3
    user.mkdir()
    (user / "CMakeLists.txt").write_text(USER)
    example = (SOURCES / "README.md").read_text("utf-8").partition("```cpp\n")[2].partition("```")[0]
    (user / "readme.cpp").write_text(example)
    cmake("-S", user, "-B", user / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    cmake("--build", user / "build")
    done = subprocess.run([user / "build" / "readme", toy], check=True, capture_output=True, text=True)
    assert done.stdout == "1 particles\n22 1.5 GeV, 1 hits\n"


STAND_INS = {
    "podio": ("1.3", ("podio::podio", "podio::podioIO")),
    "EDM4HEP": ("", ("EDM4HEP::edm4hep", "EDM4HEP::utils")),
}
"""CMake packages: version and targets, with which nothing is compiled."""

PACKAGE_VERSION = """set(PACKAGE_VERSION {})
if(PACKAGE_VERSION VERSION_GREATER_EQUAL PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize(
    ("edm4hep", "targets", "message"),
    [
        ("0.99", [], "podio 1.3 and EDM4hep 1.0 were not found"),
        (
            "1.0",
            ["pflow_podio"],
            "EDM4hep is 1.0, and k4FWCore 1.7 compares ParticleIDMeta, which EDM4hep 1.1 can first",
        ),
        ("1.1", ["pflow_gaudi", "pflow_podio"], ""),
    ],
)
def test_cmake_says_which_edm4hep_a_target_needs(library, tmp_path, edm4hep, targets, message):
    for name, (version, names) in STAND_INS.items():
        made = "".join(f"add_library({target} INTERFACE IMPORTED)\n" for target in names)
        package = tmp_path / name / "share" / "cmake" / name
        package.mkdir(parents=True)
        (package / f"{name}Config.cmake").write_text(made)
        (package / f"{name}ConfigVersion.cmake").write_text(PACKAGE_VERSION.format(version or edm4hep))
    roots = {"PODIO_ROOT": str(tmp_path / "podio"), "EDM4HEP_ROOT": str(tmp_path / "EDM4HEP")}
    roots = {**os.environ, "CMAKE_PREFIX_PATH": "", **roots}
    folders = {f"{name}_DIR": HERE / "cpp" / "gaudi" / "cmake" for name in ("Gaudi", "k4FWCore", "DD4hep")}
    folders |= {"ONNXRUNTIME_INCLUDE": include_folder(), "ONNXRUNTIME_LIBRARY": library.parent / RUNTIME}
    definitions = (f"-D{key}={value}" for key, value in folders.items())
    command = ["cmake", "-S", SOURCES, "-B", tmp_path / "build", *definitions]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=roots)
    # The package finds podio where the build found it.
    (tmp_path / "build" / "pflowTargets.cmake").touch()
    minor = VERSION.rpartition(".")[0]
    user = f"cmake_minimum_required(VERSION 3.18)\nproject(user NONE)\nfind_package(pflow {minor} REQUIRED)\n"
    (tmp_path / "CMakeLists.txt").write_text(user)
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "user", f"-Dpflow_DIR={tmp_path / 'build'}"]
    subprocess.run(command, check=True, capture_output=True, env=roots)
    version = (tmp_path / "build" / "pflowConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{VERSION}")' in version
    made = (path.stem for path in (tmp_path / "build" / "CMakeFiles").glob("pflow_*.dir"))
    assert sorted({*made} - {"pflow_edm4hep", "pflow_reconstruct"}) == targets
    assert message in re.sub(r"\s+", " ", done.stdout)
    assert ("not built" in done.stdout) == bool(message)
