"""Provenance of a reconstruction: inputs, model, versions and options, and the command that makes it again."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pflow.checkpoint.load import TrainedModel
from pflow.config import to_plain
from pflow.errors import ConfigError, InputError
from pflow.inference.worker import Settings
from pflow.io.open import EventFile
from pflow.io.particles_root import count_entries, read_provenance
from pflow.physics.detector import Detector
from pflow.version import VERSION, versions

PACKAGES = ("torch", "numpy", "awkward", "uproot")
"""Packages whose version can change a number of the output."""

NO_OPTIONS = ("detector", "engine", "keep_input")
"""Entries under ``options`` of today's or earlier provenances that are no options of `pflow reconstruct`."""

INPUT_KEYS = ("uuid", "entries", "schema", "truth_tracks")
"""Fields of an input that must agree in the provenance of two outputs for them to be the same; its path may differ."""

WAYS = ("on_error", "batch_size", "chunk_size", "device", "engine", "cluster", "keep_input")
"""Options that the particles of an event do not depend on."""


def describe_input(file: EventFile) -> dict[str, Any]:
    """Path, size, UUID and schema of an input file, as plain data."""
    return {
        "path": file.path,
        "bytes": os.path.getsize(file.path) if os.path.isfile(file.path) else None,
        "uuid": file.uuid,
        "schema": file.schema,
        "entries": file.num_entries,
        "truth_tracks": file.truth_tracks,
    }


def provenance(
    inputs: Sequence[Mapping[str, Any]],
    model: TrainedModel,
    settings: Settings,
    *,
    detector: str,
    **options: str | int | bool | None,
) -> dict[str, Any]:
    """All that repeats a reconstruction, as plain data.

    The same inputs, model, options, versions, number of threads and kind of processor give the same numbers, bit for
    bit. `inputs` come from `describe_input`, `detector` is what they were read as, and `options` are the options of
    `pflow.inference.files.reconstruct_files` that `settings` does not hold.
    """
    reading = settings.reading
    trained_on = model.tokeniser.detector
    return {
        "pflow_version": VERSION,
        "versions": versions(*PACKAGES),
        "machine": {
            "processor": platform.machine(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name(settings.device) if settings.device.startswith("cuda") else None,
        },
        "inputs": list(inputs),
        "checkpoint": {"path": model.path, "sha256": model.digest},
        "options": {
            "detector": detector,
            "read_as": None if reading.detector is trained_on else _named(reading.detector),
            "layout": None if reading.layout is None else str(reading.layout),
            **{name: getattr(reading, name) for name in ("schema", "truth_tracks", "on_error")},
            **{name: getattr(settings, name) for name in ("max_particles", "max_hits", "batch_size", "device")},
            **options,
        },
        "decoding": model.decoding,
        "configuration": model.config,
    }


def command(made: Mapping[str, Any], output: str) -> list[str]:
    """The command line that makes a reconstruction again and writes `output`, as far as its options are stored."""
    options = made.get("options", {})
    words = ["pflow", "reconstruct", *(str(file["path"]) for file in made.get("inputs", ()))]
    words += ["--checkpoint", str(made.get("checkpoint", {}).get("path")), "--output", output]
    for name, value in options.items():
        if name not in NO_OPTIONS and value is not None and value is not False:
            option = f"--{'detector' if name == 'read_as' else name.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
    return words


def is_finished(output: Path, provenance: Mapping[str, Any], n_entries: int) -> bool:
    """Whether an output of `n_entries` is there and whole; a ConfigError names what differs in its provenance."""
    if not output.is_file():
        return False
    try:
        earlier, n_earlier = read_provenance(output), count_entries(output)
    except InputError:
        return False
    if n_earlier != n_entries:
        return False
    ours, theirs = _essence(provenance), _essence(earlier)
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if provenance["options"]["on_error"] == "raise" and {"BAD_INPUT", "NOT_FINITE"} & set(earlier.get("flagged", ())):
        differing.append("on_error (entries were skipped)")
    if differing:
        what = ", ".join(
            f"{name} {theirs.get(name)} there and {ours[name]} here" if name in ours else name for name in differing
        )
        raise ConfigError(
            f"{output} was made otherwise: {what}; choose another folder, or replace the file with --force"
        )
    return True


def _essence(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """All that the particles of an output depend on, by name."""
    options = {name: value for name, value in provenance.get("options", {}).items() if name not in WAYS}
    inputs = provenance.get("inputs", ())
    return {
        "pflow": provenance.get("pflow_version"),
        "checkpoint": str(provenance.get("checkpoint", {}).get("sha256"))[:12],
        **{f"input's {key}": [entry.get(key) for entry in inputs] for key in INPUT_KEYS},
        **options,
        **{f"decoding's {name}": value for name, value in provenance.get("decoding", {}).items()},
    }


def _named(detector: str | Path | Detector | None) -> Any:
    """A detector as the option names it; one that was made in Python as plain data."""
    return to_plain(detector) if isinstance(detector, Detector) else None if detector is None else str(detector)
