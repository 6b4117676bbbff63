"""Imports go downwards only, and each heavy library stays where it belongs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "pflow"

LAYERS = (
    {"errors", "units"},
    {"resources", "pdg"},
    {"detector", "kinematics"},
    {"problems", "records"},
    {"events", "reconstruction"},
    {"truth"},
    {"io", "tokens", "metrics", "model"},
    {"data", "plots", "simulation"},
    {"train", "reco"},
    {"export"},
    {"commands"},
    {"cli"},
)
"""Lowest first: a file imports from its own layer's part or from lower layers."""

ONLY_IN = {
    "uproot": {"io"},
    "h5py": {"io"},
    "matplotlib": {"plots"},
    "mplhep": {"plots"},
    "plotly": {"plots"},
    "fastjet": {"metrics"},
    "onnx": {"export"},
    "safetensors": {"tokens", "export"},
    "pytorch_lightning": {"data", "train"},
    "jsonargparse": {"train"},
}

FILES = sorted(PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rank(name: str) -> int:
    return next((i for i, layer in enumerate(LAYERS) if name in layer), len(LAYERS))


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards(path):
    own = part(path)
    if own in ("__init__", "__main__"):
        return
    for name in imports(path):
        if not name.startswith("pflow."):
            continue
        other = name.split(".")[1]
        if other.startswith("__") or other == own:
            continue
        assert rank(other) < rank(own), f"{own} imports {name}"


@pytest.mark.parametrize("path", [path for path in FILES if part(path) == "model"], ids=lambda path: path.name)
def test_model_knows_torch_only(path):
    assert not [name for name in imports(path) if name.startswith("pflow.") and not name.startswith("pflow.model")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_stay_in_their_place(path):
    for name in imports(path):
        library = name.split(".")[0]
        if library in ONLY_IN:
            assert part(path) in ONLY_IN[library], f"{path.name} imports {library}"


def test_every_part_has_a_layer():
    for path in FILES:
        assert part(path) in ("__init__", "__main__") or rank(part(path)) < len(LAYERS), f"{path} has no layer"
