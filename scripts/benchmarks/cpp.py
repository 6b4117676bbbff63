"""The C++ library and its example program, compiled with the system's compiler, and events as the program reads them.

ONNX Runtime's headers are looked for in $ONNXRUNTIME_INCLUDE (default ../shared/onnxruntime-include beside the
checkout); its library comes with the Python package.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pflow.event import jagged
from pflow.event.events import Events
from pflow.inference.events import MAX_HITS

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "pflow" / "export" / "cpp"
COMPILER = ("c++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror")

RUNTIME = "libonnxruntime.so.1"
"""Name by which programs look for ONNX Runtime's library; in the Python package it has its version behind it."""

HIT = ("energy", "position.x", "position.y", "position.z", "subdetector", "layer", "time")
TRACK = (
    *("momentum.px", "momentum.py", "momentum.pz", "charge"),
    *("calo_position.x", "calo_position.y", "calo_position.z"),
    *("calo_momentum.px", "calo_momentum.py", "calo_momentum.pz"),
    *("d0", "z0", "omega"),
)


def include_folder() -> Path:
    """Where ONNX Runtime's headers should be."""
    return Path(os.environ.get("ONNXRUNTIME_INCLUDE", REPOSITORY.parent / "shared" / "onnxruntime-include"))


def missing_for_cpp() -> str:
    """Why the library cannot be compiled; empty if it can."""
    if shutil.which("c++") is None:
        return "no C++ compiler is installed"
    if not (include_folder() / "onnxruntime_cxx_api.h").is_file():
        return f"ONNX Runtime's headers not found in {include_folder()}; set ONNXRUNTIME_INCLUDE"
    if find_spec("onnxruntime") is None:
        return "onnxruntime is not installed"
    text = (include_folder() / "onnxruntime_c_api.h").read_text("utf-8")
    needed, installed = re.search(r"define ORT_API_VERSION (\d+)", text), metadata.version("onnxruntime").split(".")[1]
    if needed is not None and int(installed) < int(needed[1]):
        return f"ONNX Runtime's headers are of version 1.{needed[1]}, and its library is 1.{installed}"
    return ""


def compile_library(folder: Path, *, flags: str = "-O2") -> Path:
    """Compile the library into a folder, which also gets the link to ONNX Runtime that programs need; its path."""
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    (shared,) = (Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*")
    (folder / RUNTIME).symlink_to(shared)
    library = folder / "pflow.o"
    include = ["-isystem", str(include_folder())]
    subprocess.run(
        [*COMPILER, *flags.split(), *include, "-c", str(SOURCES / "pflow.cpp"), "-o", str(library)], check=True
    )
    return library


def compile_program(library: Path, source: Path = SOURCES / "reconstruct.cpp", *, flags: str = "-O2") -> Path:
    """Compile a program beside the library that it uses; its path."""
    folder, program = library.parent, library.with_name(source.stem)
    command = [*COMPILER, *flags.split(), "-I", str(SOURCES), str(source), str(library), str(folder / RUNTIME)]
    subprocess.run([*command, f"-Wl,-rpath,{folder}", "-pthread", "-o", str(program)], check=True)
    return program


def write_events(events: Events, path: Path) -> Path:
    """Write events as text that `reconstruct.cpp` reads; the path."""
    parts = [("hit", events.hits, HIT)]
    if events.tracks is not None:
        parts.append(("track", events.tracks, TRACK))
    lines: list[list[str]] = [["event"] for _ in range(len(events))]
    for name, part, fields in parts:
        columns = [jagged.flat(part[tuple(field.split("."))]) for field in fields]
        form = " ".join([name, *("%d" if column.dtype.kind == "i" else "%.9g" for column in columns)])
        event_of = jagged.event_index(jagged.count(part)).tolist()
        for event, *values in zip(event_of, *(column.tolist() for column in columns), strict=True):
            lines[event].append(form % tuple(values))
    path.write_text("".join("\n".join(event) + "\n" for event in lines))
    return path


def run_program(
    program: Path, model: Path, events: Path, *, runs: int = 1, max_hits: int = MAX_HITS
) -> list[dict[str, Any]]:
    """Run the program; its output: mappings for the model, for each event, and for the run.

    CalledProcessError: the program failed; its ``stderr`` says why.
    """
    command = [str(program), str(model), str(events), str(runs), str(max_hits)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
