"""Imports go downwards only, and each heavy library stays where it belongs."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "pflow"

LAYERS = (
    {"errors", "show"},
    {"config"},
    {"physics"},
    {"event"},
    {"io", "tokens"},
    {"data"},
    {"metrics", "model"},
    {"plots"},
    {"checkpoint"},
    {"export"},
    {"inference"},
    {"calibration"},
    {"train"},
    {"cli"},
)
"""Lowest first: a room imports from itself and from lower layers."""

ONLY_IN = {
    "uproot": {"io"},
    "mmh3": {"io"},
    "xxhash": {"io"},
    "h5py": {"io"},
    "matplotlib": {"plots"},
    "mplhep": {"plots"},
    "plotly": {"plots"},
    "fastjet": {"metrics"},
    "onnx": {"export"},
    "safetensors": {"checkpoint"},
    "pytorch_lightning": {"data", "train", "cli"},
    "jsonargparse": {"train", "cli"},
}


def room(name: str) -> str:
    """The layer's name for a module below pflow."""
    return name.partition(".")[0]


def rank(name: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if room(name) in layer)


@functools.cache
def imported() -> tuple[tuple[str, str], ...]:
    """Each module below pflow, and a name that it imports."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if path.name == "__main__.py" or module == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found += [(module, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found += [(module, f"{node.module}.{alias.name}") for alias in node.names]
    return tuple(found)


def test_every_room_has_a_layer_and_imports_go_downwards():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms <= set().union(*LAYERS)
    upwards = [
        f"{own} imports {name}"
        for own, name in imported()
        if name.startswith("pflow.")
        and room(other := name.removeprefix("pflow.")) != room(own)
        and rank(other) >= rank(own)
    ]
    assert not upwards


def test_heavy_libraries_stay_in_their_place():
    elsewhere = [
        f"{own} imports {name}"
        for own, name in imported()
        if own.split(".")[0] not in ONLY_IN.get(name.split(".")[0], {own.split(".")[0]})
    ]
    assert not elsewhere


def test_models_know_torch_and_batches_only():
    allowed = ("pflow.model", "pflow.data.batch", "pflow.errors", "pflow.config")
    others = [
        f"{own} imports {name}"
        for own, name in imported()
        if (room(own) == "model" or own == "data.batch") and name.startswith("pflow.") and not name.startswith(allowed)
    ]
    assert not others
