"""Which files are reconstructed by which shipped model; reconstructions are made once and kept."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

from pflow.checkpoint.load import Model
from pflow.errors import InputError
from pflow.inference.files import reconstruct_files
from pflow.io.events_root import write_events
from pflow.io.open import open_events
from pflow.io.particles_root import read_provenance
from pflow.version import VERSION

__all__ = ["ROLES", "SAMPLES", "Sample", "event_file", "reconstructed"]

ROLES = ("photon", "general")
"""The shipped models by their purpose; also their names in the results."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Files NAME_train.root, NAME_val.root and NAME_test.root, the models that reconstruct them, and the truth rule."""

    name: str
    roles: tuple[str, ...] = ("general",)
    rule: str = "stable"


SAMPLES = (
    Sample(name="gamma1", roles=ROLES),
    Sample(name="gammasep", roles=ROLES),
    Sample(name="single"),
    Sample(name="multi"),
    Sample(name="zqq"),
    Sample(name="tau10", rule="entering"),
)


def event_file(sample: Sample, *, data: Path, split: str, folder: Path, limit: int | None) -> Path | None:
    """The file of a sample, or its first `limit` events copied into `folder`; None if there is no such file."""
    path = data / f"{sample.name}_{split}.root"
    if not path.is_file():
        return None
    if limit is None:
        return path
    cut = folder / "events" / path.name
    if not cut.exists():
        cut.parent.mkdir(parents=True, exist_ok=True)
        with open_events(path) as file:
            write_events(cut, file.read(0, min(limit, len(file))), inputs=[path])
    return cut


def reconstructed(
    sample: Sample, events: Path, models: Mapping[str, Model], *, folder: Path, device: str, force: bool
) -> dict[str, Path]:
    """Reconstructions of a file by role. One of this very file by this very model and version of pflow is kept."""
    found = {}
    for role in sample.roles:
        if role not in models:
            continue
        output = found[role] = folder / role / f"{sample.name}.root"
        if not force and _is_of(output, events, models[role]):
            print(f"{sample.name}: {output} is there", flush=True)
            continue
        output.parent.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        summary = reconstruct_files([events], checkpoint=models[role], output=output, device=device)
        print(
            f"{sample.name}: {summary.n_events} events to {output} in {time.perf_counter() - begin:.0f} s", flush=True
        )
    return found


def _is_of(output: Path, events: Path, model: Model) -> bool:
    if not output.exists():
        return False
    try:
        provenance = read_provenance(output)
    except InputError:
        return False
    with open_events(events) as file:
        uuid = file.uuid
    made = [provenance["checkpoint"]["sha256"], provenance["pflow_version"], provenance["inputs"][0]["uuid"]]
    return made == [model.digest, VERSION, uuid]
