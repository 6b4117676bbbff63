"""Our EDM4hep files in podio itself, which reads them, follows their references and writes them again.

Needs podio and EDM4hep, else skipped: PODIO_ROOT and EDM4HEP_ROOT name their folders, LD_LIBRARY_PATH ROOT's libraries.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import awkward as ak
import pytest
import uproot

from pflow.io.edm4hep.frames import FrameWriter, InputCopy
from pflow.io.edm4hep.podio import DataModel, Filled
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import open_events

FOLDERS = [os.environ.get(name) for name in ("PODIO_ROOT", "EDM4HEP_ROOT")]
if not all(FOLDERS) or shutil.which("g++") is None:
    pytest.skip("PODIO_ROOT and EDM4HEP_ROOT do not name podio and EDM4hep, or no g++", allow_module_level=True)
pytestmark = pytest.mark.slow

SOURCES = {
    "copied": ("cld_zqq_small_rntuple.edm4hep.root", {}),
    "not copied": ("cld_zqq_small.edm4hep.root", {}),
    "simulated": ("cld_zqq_small_sim_rntuple.edm4hep.root", {"truth_tracks": True}),
    "flat": ("zqq_test_small.root", {}),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """`rewrite.cpp`, compiled."""
    program = tmp_path_factory.mktemp("rewrite") / "rewrite"
    source = Path(__file__).with_name("rewrite.cpp")
    options = [
        option for root in FOLDERS for option in (f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib")
    ]
    libraries = ["-lpodioIO", "-ledm4hep", "-lpodio"]
    subprocess.run(["g++", "-std=c++20", "-w", source, *options, *libraries, "-o", program], check=True)
    return program


def reconstructed(path, out, perfect, **options):
    with open_events(path, **options) as file, Edm4hepRecoWriter(out, file, provenance={}) as writer:
        writer.extend(perfect(file.read()))
    return out


def check(program, out, newer=lambda name: name):
    """Compare the file bit by bit with podio's copy of it; `newer`: name of a branch there."""
    again = out.with_name("again.root")
    done = subprocess.run([program, out, again], capture_output=True, text=True, check=True)
    with uproot.open(out) as file, uproot.open(again) as copy:
        for category in set(file.keys(cycle=False, filter_classname="TTree")) - {"podio_metadata"}:
            ours, theirs = file[category], copy[category]
            assert set(map(newer, ours.keys())) == set(theirs.keys())
            for field in (key for key in ours.keys() if not (ours[key].branches or key.startswith("GP"))):  # noqa: SIM118
                assert ak.array_equal(
                    ours[field].array(), theirs[newer(field)].array(), equal_nan=True, dtype_exact=False
                ), field
        n_tracks, n_hits = (
            ak.count(file["events"][f"{name}/{name}.index"].array())
            for name in ("_PFlow_tracks", "_PFlowClusters_hits")
        )
    assert done.stdout == f"{n_tracks} {n_hits}\n"
    assert n_hits > 100


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.filterwarnings("ignore:.*the hits and tracks that were used instead")
def test_podio_reads_and_writes_again_what_pflow_writes(source, program, sample_dir, perfect, tmp_path):
    name, options = SOURCES[source]
    check(program, reconstructed(sample_dir / name, tmp_path / "out.root", perfect, **options))


def test_clusters_of_an_older_edm4hep_keep_their_angle(cld_podio, program, perfect, tmp_path):
    """EDM4hep 0.99 has phi, 1.0 iPhi, and shorter types of quantities: podio reads both in one file."""
    source = InputCopy(cld_podio)
    expected = cld_podio.columns.get("PandoraClusters", "iPhi", start=0, stop=1).to_list()
    with uproot.recreate(tmp_path / "older.root") as to:
        definition = json.loads(source.definitions["edm4hep"][0].replace("iPhi", "phi")) | {"schema_version": 5}
        of_quantity = definition["components"]["edm4hep::Quantity"]["Members"]
        of_quantity[:] = [line.replace("int32_t type", "int16_t type") for line in of_quantity]
        text = json.dumps(definition)
        collections = [(DataModel(json.loads(text)), info) for info in source.collections.values()]
        frames = {
            name: Filled(counts=old.counts, columns={key.replace("iPhi", "phi"): x for key, x in old.columns.items()})
            for name, old in source.read(0, 1).items()
        }
        writer = FrameWriter(to, collections=collections, definitions={"edm4hep": (text, (0, 99, 4))})
        writer.extend(frames, cld_podio.frame_parameters("events", 0, 1))
        writer.finish(source.categories())
    out = reconstructed(tmp_path / "older.root", tmp_path / "out.root", perfect)
    check(program, out, lambda name: name.replace("Clusters.phi", "Clusters.iPhi"))
    with uproot.open(tmp_path / "again.root") as file:
        assert file["events"]["PandoraClusters/PandoraClusters.iPhi"].array().to_list() == expected
