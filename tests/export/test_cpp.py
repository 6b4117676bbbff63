import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.cpp import RUNTIME, SOURCES, compile_program, include_folder, missing_for_cpp, run_program
from pflow.physics.kinematics import momentum_from_track

HERE = Path(__file__).resolve().parent

if missing := missing_for_cpp():
    pytest.skip(missing, allow_module_level=True)

TOY = Path(__file__).resolve().parents[1] / "data" / "toy_graphs"
"""Graphs, as text, of a model in which each hit is a photon, from the last to the first, with half of its hit."""

METADATA = {
    "format": "4",
    "architecture": "pointing",
    "b_field": "3.5",
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
            given = {key: value for key, value in {**METADATA, **metadata}.items() if value is not None}
            onnx.helper.set_model_props(graph, given)
        onnx.save(graph, str(folder / f"{name}.onnx"))
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return write_toy(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture
def run(program, tmp_path):
    """Runs the program on the text of events."""

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


def test_values_and_rows_go_from_graph_to_graph_by_their_names(run, toy):
    (event,) = run(toy, f"event\n{HIT}hit 2.5 0 0 1800 1 4 7\n{TRACK}")
    assert [particle["energy"] for particle in event["particles"]] == [2.5, 1.5]
    assert [particle["hits"] for particle in event["particles"]] == [[[1, 0.5]], [[0, 0.5]]]
    first = event["particles"][0]
    assert first["momentum"] == [2.5] * 3
    assert first["covariance"] == [2.5] * 10
    assert first["class_probability"] == [0.5] * 5
    assert (first["pdg"], first["charge"], first["mass"], first["tracks"]) == (22, 0, 0, [])
    assert not event["truncated"]


def test_an_event_without_hits_and_tracks_has_no_particles(run, toy):
    text = f"event\nevent\nhit 0 1 2 3 0 0 nan\nevent\n{TRACK}event\n{HIT}"
    assert [len(event["particles"]) for event in run(toy, text)] == [0, 0, 0, 1]


def test_decoding_stops_at_the_largest_number_of_particles(run, toy):
    at, above = run(toy, f"event\n{4 * HIT}event\n{5 * HIT}")
    assert [len(at["particles"]), len(above["particles"])] == [4, 4]
    assert (at["truncated"], above["truncated"]) == (False, True)


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ("hit nan 1 2 3 0 0 0", "hits[1].energy", "not known"),
        ("hit -1 1 2 3 0 0 0", "hits[1].energy", "expected 0 to 100000, found -1"),
        ("hit 1 1 2 3 2 0 0", "hits[1].subdetector", "expected 0 to 1, found 2"),
        ("hit 1 1 2 3 0 -1 0", "hits[1].layer", "not known"),
        (TRACK.strip().replace("3", "nan", 1), "tracks[0].pz", "not known"),
        (TRACK.strip().replace("-1", "2000", 1), "tracks[0].charge", "expected -1000 to 1000, found 2000"),
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


def test_a_text_that_is_no_event_is_an_error_that_names_the_line(error_of, toy):
    assert "line 3: expected event, hit or track, found 'shower 3'" in error_of(toy, f"event\n{HIT}shower 3\n")
    assert "line 2: expected a number" in error_of(toy, "event\nhit 3 4\n")


def test_a_missing_folder_is_an_error(error_of, tmp_path):
    assert "encoder.onnx: there is no such file" in error_of(tmp_path / "none")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "2"}, "expected an export of a pointing network in format 4"),
        ({"energy_above": "little"}, "expected a number as metadata 'energy_above'"),
        ({"classes": "photon"}, "its classes of particles are not those of this library"),
    ],
)
def test_a_model_that_the_library_does_not_know_is_an_error(error_of, tmp_path, metadata, message):
    error = error_of(write_toy(tmp_path / "model", **metadata))
    assert "encoder.onnx: " in error
    assert message in error


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
    ],
)
def test_graphs_that_do_not_fit_are_an_error(error_of, tmp_path, change, message):
    assert message in error_of(write_toy(tmp_path / "model", change=change))


def test_the_example_for_key4hep_converts_collections(library, toy):
    flags = f"-O0 -I {HERE / 'cpp'}"
    program = compile_program(library, HERE / "cpp" / "key4hep.cpp", flags=flags)
    done = subprocess.run([str(program), str(toy)], check=True, capture_output=True, text=True)
    track, out = (list(map(float, line.split())) for line in done.stdout.splitlines())
    at_vertex = momentum_from_track(-0.001, 0.3, 0.5, 3.5)
    at_face = momentum_from_track(-0.001, 0.4, 0.5, 3.5)
    position = (1800 - 2 * np.sin(0.4), 40 + 2 * np.cos(0.4), 903)
    np.testing.assert_allclose(track, [*at_vertex, -1, *position, at_face[0]], rtol=1e-5)
    # Hits in the order of the model's calorimeters; the toy gives half of each to its particle, the last first.
    assert out == [2.5, 1, 0.5, 1, 1.5, 1, 1.25, 7, 0.25, 4, 0.75, 3]


def test_the_example_of_the_readme_runs(library, toy, tmp_path):
    _, _, text = (SOURCES / "README.md").read_text("utf-8").partition("```cpp\n")
    (tmp_path / "readme.cpp").write_text(text.partition("```")[0])
    program = compile_program(library, tmp_path / "readme.cpp", flags="-O0")
    done = subprocess.run([str(program), str(toy)], check=True, capture_output=True, text=True)
    assert done.stdout == "1 particles\n22 1.5 GeV, 1 hits\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_builds_it(library, tmp_path, toy):
    found = [f"-DONNXRUNTIME_INCLUDE={include_folder()}", f"-DONNXRUNTIME_LIBRARY={library.parent / RUNTIME}"]
    subprocess.run(["cmake", "-S", str(SOURCES), "-B", str(tmp_path / "build"), *found], check=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True)
    (tmp_path / "events.txt").write_text(f"event\n{HIT}")
    assert len(run_program(tmp_path / "build" / "reconstruct", toy, tmp_path / "events.txt")) == 3
