"""Our EDM4hep files as ROOT reads them: podio's calls, with the structs of EDM4hep's own definition.

Needs ROOT, else skipped: pip install root==0.1a12 (Python 3.11).
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import uproot

from pflow.event.particles import concatenate
from pflow.io.edm4hep.data_model import ARRAY, PRIMITIVES, DataModel
from pflow.io.edm4hep.podio import open_podio
from pflow.io.edm4hep.writer import Edm4hepRecoWriter
from pflow.io.open import open_events
from pflow.io.particles_root import read_reco

if importlib.util.find_spec("ROOT") is None:
    pytest.skip("ROOT is not installed", allow_module_level=True)
pytestmark = pytest.mark.slow

RUN = """
import sys, warnings
warnings.simplefilter("ignore")  # "This distribution of ROOT is in alpha stage"
import ROOT
assert ROOT.gInterpreter.Declare(open(sys.argv[1]).read())
ROOT.run(sys.argv[2], sys.argv[3])
"""

SUPPORT = """
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>
#include <ROOT/RNTupleReader.hxx>
using Bytes = std::string;
template <class T> void put(Bytes& to, const T& value) { to.append(reinterpret_cast<const char*>(&value), sizeof(T)); }
"""


def program(model: DataModel, fields: dict[str, str]) -> str:
    """C++ that reads each field as a vector of its struct, and dumps the bytes of each member."""
    structs, reads = [], []
    for name, members in _in_order(model, fields.values()).items():
        space, _, short = name.rpartition("::")
        structs.append(f"namespace {space} {{ struct {short} {{ {' '.join(f'{t} {m}{{}};' for m, t in members)} }}; }}")
    for field, cpp_type in fields.items():
        puts = " ".join(
            f'put(dump["{field}.{path}"], object{"." if path else ""}{path});' for path, _ in model.leaves(cpp_type)
        )
        reads.append(
            f'  {{ auto view = reader->GetView<std::vector<{cpp_type}>>("{field}");\n'
            f"    for (auto i : reader->GetEntryRange()) for (const auto& object : view(i)) {{ {puts} }} }}"
        )
    return "\n".join(
        [
            SUPPORT,
            *structs,
            "void run(const std::string& file, const std::string& output) {",
            "  std::map<std::string, Bytes> dump;",
            '  auto reader = ROOT::RNTupleReader::Open("events", file);',
            *reads,
            '  auto stream = std::fopen(output.c_str(), "wb");',
            "  for (const auto& [path, bytes] : dump) {",
            '    std::fprintf(stream, "%s\\n%zu\\n", path.c_str(), bytes.size());',
            "    std::fwrite(bytes.data(), 1, bytes.size(), stream); }",
            "  std::fclose(stream); }",
        ]
    )


def _in_order(model: DataModel, types: Iterable[str]) -> dict[str, Any]:
    """Structs and their members, each after those that it contains."""
    structs: dict[str, Any] = {}
    for cpp_type in types:
        inner = ARRAY.fullmatch(cpp_type)
        cpp_type = inner[1] if inner else cpp_type
        if cpp_type not in PRIMITIVES:
            members = model.structs[cpp_type]
            structs |= _in_order(model, [kind for _, kind in members]) | {cpp_type: members}
    return structs


def _parse(data: bytes) -> dict[str, bytes]:
    files, begin = {}, 0
    while begin < len(data):
        name, size = data[begin:].split(b"\n", 2)[:2]
        begin += len(name) + len(size) + 2
        files[name.decode()] = data[begin : begin + int(size)]
        begin += int(size)
    return files


@pytest.fixture(scope="module")
def out(cld_rntuple_path, tmp_path_factory, perfect):
    """Events of CLD with perfect particles."""
    path = tmp_path_factory.mktemp("root") / "out.root"
    with open_events(cld_rntuple_path) as file, Edm4hepRecoWriter(path, file, provenance={}, mc_links=True) as writer:
        writer.extend(perfect(file.read()))
    return path


def test_root_reads_every_member_as_uproot_does(cld_rntuple_path, out, tmp_path):
    """Of the event's collections and ours, bit by bit; `test_writer` compares with the input."""
    with open_events(cld_rntuple_path) as file:
        definitions = file.reader.file.definitions()
    model, written = DataModel(*(json.loads(text) for text in definitions.values())), open_podio(out)
    fields = {field: kind for info in written.infos() for field, kind in model.fields(info).items()}
    (tmp_path / "read.cpp").write_text(program(model, fields))
    command = [sys.executable, "-c", RUN, str(tmp_path / "read.cpp"), str(out), str(tmp_path / "dump")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    dump = _parse((tmp_path / "dump").read_bytes())

    events, n_objects = uproot.open(out)["events"], 0
    for field, cpp_type in fields.items():
        for member, _ in model.leaves(cpp_type):
            values = ak.flatten(events[f"{field}.{member}" if member else field].array(), axis=1)
            assert dump.get(f"{field}.{member}", b"") == np.asarray(ak.to_numpy(values)).tobytes(), f"{field}.{member}"
        n_objects += len(values)
    assert n_objects > 10_000
    written.close()


def test_hadd_merges_outputs(out, tmp_path, same_reco):
    root = Path(importlib.util.find_spec("ROOT").origin).parent
    subprocess.run([root / "bin" / "hadd", tmp_path / "both.root", out, out], capture_output=True, check=True)
    single, both = read_reco(out), read_reco(tmp_path / "both.root")
    assert same_reco(both, concatenate([single, single]))
