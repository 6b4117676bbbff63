from __future__ import annotations

import pytest
import uproot

from pflow.errors import InputError
from pflow.io.detect_schema import sniff


@pytest.mark.parametrize(("layout", "schema"), [("new", "edm4hep"), ("old", "edm4hep"), ("rntuple", "edm4hep-rntuple")])
def test_edm4hep_is_known_by_podio_s_metadata(write, content, layout, schema):
    only_hits = {key: values for key, values in content.items() if key.startswith("Tracks")}
    assert sniff(write(only_hits, layout)) == schema


@pytest.mark.parametrize("part", ["A1", "MCParticles"])
def test_edm4hep_is_known_by_its_collections(write, content, part):
    some = {key: values for key, values in content.items() if key.startswith(f"{part}.")}
    assert sniff(write(some, ids={})) == "edm4hep"


def test_the_flat_layout_is_known_by_its_branches(sample_dir):
    assert sniff(sample_dir / "gamma1_val_small.root") == "flat"


def test_a_layout_means_flat(sample_dir):
    assert sniff(sample_dir / "gamma1_val_small.root", layout="mine.yaml") == "flat"


def test_hdf5_is_known_by_its_signature(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n and so on")
    assert sniff(path) == "legacy-hdf5"


def test_a_tree_of_something_else_says_what_was_looked_for(tmp_path):
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {"calohit.energy": "var * float32", "y": "int32"})
    with pytest.raises(InputError, match=r"holds neither EDM4hep .* nor .* flat layout .*nearest matches: calohit"):
        sniff(path)
