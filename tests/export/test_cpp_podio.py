"""pflow_podio and the algorithm of Gaudi, which is compiled against stand-ins for Gaudi, k4FWCore and DD4hep.

Needs podio and EDM4hep, else skipped: PODIO_ROOT and EDM4HEP_ROOT name their folders, LD_LIBRARY_PATH ROOT's libraries,
CMAKE_PREFIX_PATH its CMake package.
"""

import dataclasses
import functools
import os
import re
import resource
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import awkward as ak
import numpy as np
import onnx
import pytest
import uproot

from benchmarks.cpp import COMPILER, RUNTIME, SOURCES, include_folder, missing_for_cpp
from make_sample import reconstructed, write_podio
from pflow.cli.main import main
from pflow.event import jagged
from pflow.event.events import Flag, concatenate
from pflow.event.schema import make_links
from pflow.io.edm4hep.podio import open_podio
from pflow.io.open import read_events
from pflow.io.particles_root import read_reco

if missing := missing_for_cpp():
    pytest.skip(missing, allow_module_level=True)
FOLDERS = [os.environ.get(name) for name in ("PODIO_ROOT", "EDM4HEP_ROOT")]
if not all(FOLDERS):
    pytest.skip("PODIO_ROOT and EDM4HEP_ROOT do not name podio and EDM4hep", allow_module_level=True)

pytestmark = pytest.mark.slow

GAUDI = Path(__file__).resolve().parent / "cpp" / "gaudi"

CLD = {
    "ECALBarrel": "ecal_barrel",
    "ECALEndcap": "ecal_endcap",
    "HCALBarrel": "hcal_barrel",
    "HCALEndcap": "hcal_endcap",
    "HCALOther": "hcal_other",
    "MUON": "muon",
}
COLLECTIONS = (*(f"{name}={calorimeter}" for name, calorimeter in CLD.items()), "SiTracks_Refitted")
MODEL = "general"


def compile_with_podio(source: Path, library: Path) -> Path:
    """Compile a program of podio's with event.cpp and the library; its path."""
    program, folder = library.with_name(source.stem), library.parent
    include = [*(f"-isystem{root}/include" for root in FOLDERS), f"-I{SOURCES}", f"-I{GAUDI}"]
    objects = [str(source), str(SOURCES / "event.cpp"), str(library), str(folder / RUNTIME), f"-Wl,-rpath,{folder}"]
    folders = [option for root in FOLDERS for option in (f"-L{root}/lib", f"-Wl,-rpath,{root}/lib")]
    libraries = ["-lpodioIO", "-lpodio", "-ledm4hep", "-ledm4hepUtils", "-pthread"]
    command = [*COMPILER, "-std=c++20", "-O1", *include, *objects, *folders, *libraries, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    return done.returncode, done.stderr


@pytest.fixture(scope="session")
def pflow_podio(library, exported):
    """Runs the program with a model of CLD."""
    program, model = compile_with_podio(SOURCES / "pflow_podio.cpp", library), exported(MODEL, "cld")
    return lambda source, output, *options, model=model, collections=COLLECTIONS, **process: run(
        program, *options, model, source, output, *collections, **process
    )


@pytest.fixture(scope="session")
def job(library, exported):
    """Runs the algorithm on a source, into an output, in an event loop of several threads, with options."""
    program = compile_with_podio(GAUDI / "job.cpp", library)
    return functools.partial(run, program, exported(MODEL, "cld"))


@pytest.fixture(scope="session")
def source(cld_rntuple_path):
    return cld_rntuple_path


@pytest.fixture(scope="session")
def by_program(pflow_podio, source, tmp_path_factory):
    path = tmp_path_factory.mktemp("podio") / "program.root"
    assert pflow_podio(source, path) == (0, "")
    return path


@pytest.fixture(scope="session")
def synthetic(sample_dir, source, tmp_path_factory):
    """A file of 200 events: small ones with hits and tracks that are missing, unusable or without a state."""
    events = read_events(sample_dir / "cld_multi_test_small.root")
    none = make_links(source=[[]] * len(events), particle=[[]] * len(events))
    events = dataclasses.replace(events, hit_links=none, track_links=none)
    draw, variants = np.random.default_rng(2), []
    for variant in range(8):
        hits, tracks = jagged.columns(events.hits), jagged.columns(events.tracks)
        n_hits, n_tracks = jagged.count(events.hits), jagged.count(events.tracks)
        hits["energy"] = hits["energy"] * (0.6 + 0.1 * variant)
        unusable = draw.random(n_tracks.sum()) < 0.3
        if variant == 1:
            n_hits = 0 * n_hits
        elif variant == 2:
            n_tracks = 0 * n_tracks
        elif variant == 3:
            hits["energy"][draw.random(n_hits.sum()) < 0.02] = np.nan
        elif variant == 4:
            tracks = {name: np.where(unusable, np.nan, values) for name, values in tracks.items()}
        elif variant == 5:  # to be followed to the calorimeter
            tracks |= {name: np.where(unusable, np.nan, tracks[name]) for name in tracks if name.startswith("calo")}
        elif variant == 6:
            hits["layer"] = hits["layer"] % 4
        elif variant == 7:
            at_origin = draw.random(n_hits.sum()) < 0.02
            hits |= {name: np.where(at_origin, 0, hits[name]) for name in hits if name.startswith("position")}
        hits = {name: values[: n_hits.sum()] for name, values in hits.items()}
        tracks = {name: values[: n_tracks.sum()] for name, values in tracks.items()}
        changed = {"hits": jagged.records(hits, n_hits), "tracks": jagged.records(tracks, n_tracks)}
        variants.append(dataclasses.replace(events, **changed))
    path = tmp_path_factory.mktemp("synthetic") / "events.root"
    podio = open_podio(source)
    write_podio(path, reconstructed(concatenate(variants)), podio.definitions()["edm4hep"])
    podio.close()
    return path


def command_line(source, output):
    main(["reconstruct", str(source), "--checkpoint", MODEL, "--format", "edm4hep", "-o", str(output)])
    return output


def contents(path):
    """Numbers of the collections of PFlow by field and member, of a TTree or an RNTuple."""
    with uproot.open(path) as file:
        events = file["events"]
        keys = events.keys()
        inner = {key.rpartition(".")[0] for key in keys}  # structs of an RNTuple; a TTree's have branches
        leaves = (
            key for key in keys if "PFlow" in key and key not in inner and not getattr(events[key], "branches", [])
        )
        return {re.sub(r"^.*/|\[\d+\]$", "", key): events[key].array() for key in leaves}


def parameters(path):
    """Parameters of the frames of events and of the file."""
    podio = open_podio(path)
    frames = [podio.frame_parameters(category) for category in ("events", "metadata")]
    podio.close()
    return frames


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert ak.array_equal(values, second[name], same_content_types=False, check_parameters=False), name


def assert_close(first, second):
    """Whole numbers and counts are the same, others as ONNX Runtime and torch round them."""
    for name, values in first.items():
        for field in values.fields or [None]:
            ours, theirs = (
                ak.to_numpy(ak.flatten(x if field is None else x[field], axis=None)) for x in (values, second[name])
            )
            tolerance = {"rtol": 1e-3, "atol": 1e-4} if ours.dtype.kind == "f" else {"rtol": 0}
            np.testing.assert_allclose(ours, theirs, **tolerance, err_msg=f"{name} {field}")


def test_the_program_writes_what_the_command_line_writes(by_program, source, tmp_path):
    expected = command_line(source, tmp_path / "python.root")
    ours, theirs = contents(by_program), contents(expected)
    assert ours.keys() == theirs.keys()
    assert ak.sum(ak.num(ours["PFlow.energy"])) > 100
    assert_close(ours, theirs)
    assert parameters(by_program) == parameters(expected)
    parts = ("particles", "hit_links", "track_links")
    assert_close(*({part: getattr(read_reco(path), part) for part in parts} for path in (by_program, expected)))


def test_synthetic_events_are_those_of_the_command_line(pflow_podio, synthetic, tmp_path):
    status, message = pflow_podio(synthetic, tmp_path / "cpp.root", "--threads", "2")
    assert (status, message) == (0, "")
    expected = command_line(synthetic, tmp_path / "python.root")
    ours = contents(tmp_path / "cpp.root")
    assert len(ours["PFlow.energy"]) == 200
    assert_close(ours, contents(expected))
    assert parameters(tmp_path / "cpp.root") == parameters(expected)
    flags = read_reco(tmp_path / "cpp.root").flags
    assert np.count_nonzero(flags & Flag.UNUSABLE_HITS) > 10
    assert np.count_nonzero(flags & Flag.UNUSABLE_TRACKS) > 10


def test_threads_do_not_change_the_content(pflow_podio, by_program, source, tmp_path):
    assert pflow_podio(source, tmp_path / "out.root", "--threads", "4") == (0, "")
    assert_same(contents(tmp_path / "out.root"), contents(by_program))


@pytest.mark.parametrize("threads", [1, 4])
def test_the_algorithm_gives_what_the_program_writes(job, by_program, source, tmp_path, threads):
    assert job(source, tmp_path / "job.root", threads) == (0, "")
    given = contents(tmp_path / "job.root")
    # The job always has the collection of links, which is empty here.
    links = {name: given.pop(name) for name in list(given) if "MCParticleLinks" in name}
    assert not any(ak.count(values) for values in links.values())
    assert_same(given, contents(by_program))
    podio = open_podio(tmp_path / "job.root")
    assert podio.parameters["PFlowParticleID__AlgoName"] == ("PFlow",)
    assert podio.parameters["PFlowClusters__SubdetectorNames"] == tuple(CLD.values())
    podio.close()


def test_monte_carlo_links_are_those_of_the_command_line(pflow_podio, job, source, tmp_path):
    assert pflow_podio(source, tmp_path / "cpp.root", "--mc-links") == (0, "")
    arguments = ["--checkpoint", MODEL, "--format", "edm4hep", "--mc-links", "-o", str(tmp_path / "python.root")]
    main(["reconstruct", str(source), *arguments])
    ours, theirs = (
        {name: values for name, values in contents(tmp_path / path).items() if "MCParticleLinks" in name}
        for path in ("cpp.root", "python.root")
    )
    assert ours.keys() == theirs.keys()
    assert ak.sum(ak.num(ours["PFlowMCParticleLinks.weight"])) > 100
    assert_close(ours, theirs)
    assert job(source, tmp_path / "job.root", 2, "raise", 9000, 0, "none", "links") == (0, "")
    assert_same({name: contents(tmp_path / "job.root")[name] for name in ours}, ours)


def test_the_input_and_outputs_that_exist_are_not_replaced(pflow_podio, source, tmp_path):
    path = tmp_path / "in.root"
    shutil.copy(source, path)
    before = path.read_bytes()
    assert pflow_podio(path, path, "--force") == (1, f"error: {path}: it is the input\n")
    (tmp_path / "link.root").symlink_to(path)
    assert pflow_podio(path, tmp_path / "link.root", "--force")[0] == 1
    assert path.read_bytes() == before
    (tmp_path / "out.root").write_text("mine")
    status, message = pflow_podio(path, tmp_path / "out.root")
    assert status == 1
    assert "it exists; choose another name, or replace it with --force" in message
    assert (tmp_path / "out.root").read_text() == "mine"
    assert pflow_podio(path, tmp_path / "out.root", "--force") == (0, "")
    status, message = pflow_podio(tmp_path / "out.root", tmp_path / "again.root")
    assert (status, "it holds a collection 'PFlow' already; reconstruct the file" in message) == (1, True)
    assert pflow_podio(path, tmp_path, "--force") == (1, f"error: {tmp_path}: it is a folder; name a file\n")
    status, message = pflow_podio(path, tmp_path / "none" / "out.root")
    assert (status, ".root: it cannot be written: is there such a folder" in message) == (1, True)
    assert pflow_podio(path, tmp_path / f"{'n' * 245}.root")[0] == 1  # no abort, where a longer name is too long


def test_processes_that_write_one_output_do_not_share_a_file(pflow_podio, source, tmp_path):
    """The second had written into the file of the first, which ended with "not written whole" or an abort."""
    left, foreign = (tmp_path / f"out.root.tmp-{host}-999999999.root" for host in (socket.gethostname(), "other"))
    for path in (left, foreign):
        path.write_text("killed")
    with ThreadPoolExecutor() as pool:
        ends = list(pool.map(lambda _: pflow_podio(source, tmp_path / "out.root", "--force"), range(3)))
    assert ends == 3 * [(0, "")]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "out.root", foreign]
    assert len(read_reco(tmp_path / "out.root")) == len(read_events(source))


@pytest.mark.parametrize("options", [("--force",), ("--force", "--ttree")])
def test_an_output_that_is_not_whole_replaces_nothing(pflow_podio, source, tmp_path, options):
    (tmp_path / "out.root").write_text("mine")
    most = 100_000  # bytes; Python ignores the signal of a larger file, and so does the program, as on a full disk
    process = {"restore_signals": False, "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))}
    status, message = pflow_podio(source, tmp_path / "out.root", *options, **process)
    assert status == 1
    assert f"error: {tmp_path / 'out.root'}: it was not written whole: is the disk full" in message
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.root", "mine")]


def test_a_calorimeter_without_a_collection_is_said(pflow_podio, job, source, tmp_path):
    collections = ("ECALBarrel=ecal_barrel", *COLLECTIONS[2:])
    _, message = pflow_podio(source, tmp_path / "out.root", "--max-hits", "1", collections=collections)
    assert message.startswith("ecal_endcap: no collection is named for it, none of its hits are read\nerror: ")
    _, message = job(source, tmp_path / "job.root", 1, "raise", 1, 0, "none", "barrel")
    assert re.findall("PFlow: (.*): no collection is named for it", message) == 2 * [*CLD.values()][1:]  # of two passes


def test_hits_that_are_elsewhere_than_the_models_calorimeter_are_said(pflow_podio, exported, source, tmp_path):
    model = shutil.copytree(exported(MODEL, "cld"), tmp_path / "model")
    encoder = onnx.load(str(model / "encoder.onnx"))
    (face,) = (entry for entry in encoder.metadata_props if entry.key == "calorimeter_face")
    at_cld, rest = face.value.split(maxsplit=1)
    for factor, alarm in ((0.9, True), (0.93, False), (1.03, False), (1.06, True)):
        face.value = f"{factor * float(at_cld):.9g} {rest}"
        onnx.save(encoder, str(model / "encoder.onnx"))
        _, message = pflow_podio(source, tmp_path / "out.root", "--max-hits", "1", model=model)  # ends at an event
        found = re.findall("barrel begin at 21.. mm, expected (.*) mm by the model: was it exported", message)
        assert found == [f"{factor * float(at_cld):.0f}"] * alarm
        # A line for states of tracks, too, where they are more than 2% before the face.
        assert len(message.splitlines()) == 1 + alarm + (factor > 1.02)


def test_an_event_that_cannot_be_used_is_an_error_or_is_skipped(pflow_podio, job, source, tmp_path):
    limit = ("--max-hits", "2400")
    status, message = pflow_podio(source, tmp_path / "out.root", *limit, "--threads", "3")
    assert (status, message) == (1, "error: entry 0: hits: 2602, expected at most 2400 (Options::max_hits)\n")
    assert list(tmp_path.iterdir()) == []
    status, message = pflow_podio(source, tmp_path / "out.root", *limit, "--on-error", "skip")
    assert status == 3
    assert "entry 0: hits: 2" in message
    reco = read_reco(tmp_path / "out.root")
    skipped = (reco.flags & Flag.BAD_INPUT) > 0
    assert 0 < skipped.sum() < len(skipped)
    np.testing.assert_array_equal(skipped, ak.num(reco.particles) == 0)
    status, message = job(source, tmp_path / "job.root", 2, "raise", 2400)
    assert (status, message) == (1, "error: PFlow : event 0: hits: 2602, expected at most 2400 (Options::max_hits)\n")
    status, message = job(source, tmp_path / "job.root", 1, "skip", 2400)
    assert (status, re.findall(r"event (.): it cannot", message)) == (0, list(map(str, np.flatnonzero(skipped))))
    assert message.endswith(f"PFlow: {skipped.sum()} events could not be used and have no particles\n")


@pytest.mark.parametrize(
    ("options", "collections", "message"),
    [
        ((), ("ECALBarel=ecal_barrel",), "ECALBarel: no such edm4hep::CalorimeterHitCollection; the file has ECALB"),
        ((), ("ECALBarrel=ecal",), "ecal: the model has no such calorimeter; expected one of ecal_barrel"),
        ((), (*COLLECTIONS, COLLECTIONS[0]), "ECALBarrel: expected each collection once, found it twice"),
        ((), (*COLLECTIONS[:-1], "Tracks"), "Tracks: no such edm4hep::TrackCollection; the file has SiTracks_Refitted"),
        (("--threads", "0"), COLLECTIONS, "--threads: expected a whole number from 1, found '0'"),
        (("--on-error", "stop"), COLLECTIONS, "--on-error: expected raise or skip, found 'stop'"),
        (("--quiet",), COLLECTIONS, "--quiet: no such option; usage: pflow_podio [--threads N]"),
        ((), (), "usage: pflow_podio [--threads N] "),
    ],
)
def test_wrong_arguments_of_the_program(pflow_podio, source, tmp_path, options, collections, message):
    status, said = pflow_podio(source, tmp_path / "out.root", *options, collections=collections)
    assert status == 1
    assert message in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("stop",), "OnError: expected raise or skip, found 'stop'"),
        (("raise", 9000, 3.5), "Field: the detector's is 3.5"),
        (("raise", 9000, 0, 1.9), "Field: the detector's is 1.9"),
    ],
)
def test_a_job_that_does_not_fit_the_model_does_not_begin(job, source, tmp_path, options, message):
    status, said = job(source, tmp_path / "job.root", 1, *options)
    assert status == 1
    assert message in said


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_builds_the_program_and_the_module_of_gaudi(library, exported, source, tmp_path):
    definitions = {
        "ONNXRUNTIME_INCLUDE": include_folder(),
        "ONNXRUNTIME_LIBRARY": library.parent / RUNTIME,
        "CMAKE_CXX_FLAGS": "-O0",
        "PFLOW_TEST_MODEL": exported(MODEL, "cld"),
        "PFLOW_TEST_INPUT": source,
        **{f"{name}_DIR": GAUDI / "cmake" for name in ("Gaudi", "k4FWCore", "DD4hep")},
    }
    options = [f"-D{name}={value}" for name, value in definitions.items()]
    subprocess.run(["cmake", "-S", str(SOURCES), "-B", str(tmp_path), *options], check=True)
    subprocess.run(["cmake", "--build", str(tmp_path), "--target", "pflow_podio", "pflow_gaudi"], check=True)
    assert (tmp_path / "libpflow_gaudi.so").is_file()
    tests = subprocess.run(["ctest", "-N", "--test-dir", str(tmp_path)], check=True, capture_output=True, text=True)
    assert "k4run" in tests.stdout
