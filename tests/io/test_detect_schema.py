from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uproot

from pflow.errors import InputError
from pflow.io.detect_schema import sniff

Write = Callable[..., Path]


@pytest.mark.parametrize(("layout", "schema"), [("new", "edm4hep"), ("old", "edm4hep"), ("rntuple", "edm4hep-rntuple")])
def test_edm4hep_is_known_by_podio_s_metadata(write: Write, content: dict[str, Any], layout: str, schema: str) -> None:
    only_hits = {key: values for key, values in content.items() if key.startswith("Tracks")}
    assert sniff(write(only_hits, layout)) == schema


@pytest.mark.parametrize("part", ["A1", "MCParticles"])
def test_edm4hep_is_known_by_its_collections(write: Write, content: dict[str, Any], part: str) -> None:
    some = {key: values for key, values in content.items() if key.startswith(f"{part}.")}
    assert sniff(write(some, ids={})) == "edm4hep"


def test_the_flat_layout_is_known_by_its_branches(sample_dir: Path) -> None:
    assert sniff(sample_dir / "gamma1_val_small.root") == "flat"


def test_a_layout_means_flat(sample_dir: Path) -> None:
    assert sniff(sample_dir / "gamma1_val_small.root", layout="mine.yaml") == "flat"


def test_hdf5_is_known_by_its_signature(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n and so on")
    assert sniff(path) == "legacy-hdf5"


def test_a_tree_of_something_else_says_what_was_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.root"
    with uproot.recreate(path) as file:
        file.mktree("events", {"calohit.energy": "var * float32", "y": "int32"})
    with pytest.raises(InputError, match=r"holds neither EDM4hep .* nor .* flat layout .*nearest matches: calohit"):
        sniff(path)


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        sniff(tmp_path / "a.root")


def test_a_file_that_is_neither_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.root"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="not a ROOT file"):
        sniff(path)
