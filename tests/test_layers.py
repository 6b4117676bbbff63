"""Imports go downwards only, and each heavy library stays where it belongs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "pflow"

LAYERS = (
    {"version", "errors"},
    {"config"},
    {"physics"},
    {"event", "calibration.uncertainty"},
    {"io", "tokens", "metrics", "data.batch"},
    {"model", "plots"},
    {"checkpoint"},
    {"data"},
    {"inference"},
    {"calibration"},
    {"train", "export"},
    {"cli"},
)
"""Lowest first: a room imports from itself and from lower layers."""

ONLY_IN = {
    "uproot": {"io"},
    "h5py": {"io"},
    "pyarrow": {"io"},
    "matplotlib": {"plots"},
    "mplhep": {"plots"},
    "plotly": {"plots"},
    "fastjet": {"metrics"},
    "onnx": {"export"},
    "safetensors": {"checkpoint", "io"},
    "pytorch_lightning": {"data", "train", "cli"},
    "jsonargparse": {"train", "cli"},
}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__main__.py" and path.parent != PACKAGE)
FILES += sorted(path for path in PACKAGE.glob("*.py") if not path.name.startswith("__"))


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def room(name: str) -> str:
    """The layer's name for a module below pflow: its room, or the module itself where it has a layer of its own."""
    parts = name.split(".")
    own = ".".join(parts[:2])
    return own if any(own in layer for layer in LAYERS) else parts[0]


def rank(name: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if room(name) in layer)


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=module)
def test_imports_go_downwards(path):
    own = module(path)
    for name in imports(path):
        if name.startswith("pflow."):
            other = name.removeprefix("pflow.")
            assert room(other) == room(own) or rank(other) < rank(own), f"{own} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_heavy_libraries_stay_in_their_place(path):
    for name in imports(path):
        library = name.split(".")[0]
        if library in ONLY_IN:
            assert module(path).split(".")[0] in ONLY_IN[library], f"{module(path)} imports {name}"


@pytest.mark.parametrize("path", [path for path in FILES if room(module(path)) in ("model", "data.batch")], ids=module)
def test_models_know_torch_and_batches_only(path):
    allowed = ("pflow.model", "pflow.data.batch", "pflow.errors", "pflow.config")
    assert not [name for name in imports(path) if name.startswith("pflow.") and not name.startswith(allowed)]


def test_every_room_has_a_layer():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms <= set().union(*LAYERS)
