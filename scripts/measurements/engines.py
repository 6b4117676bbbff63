"""Whether torch, ONNX Runtime from Python and the C++ program find the same particles: engines.json, and a table.

The first events of each test file of the simplified ILD and CLD, and of the EDM4hep files that a model reads, are
reconstructed by all three, one event at a time. Particles are compared in the order in which they are found.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import torch

from benchmarks.cpp import compile_library, compile_program, missing_for_cpp, run_program, write_events
from measurements.engine_tables import engines_table
from measurements.files import DATA, REPORT, RESULTS, rounded, write_json
from measurements.markdown import fill
from pflow.checkpoint.load import load_model
from pflow.event.events import Events
from pflow.event.particles import Reconstruction
from pflow.export.folder import export_model
from pflow.inference.events import reconstruct
from pflow.inference.exported import ExportedModel
from pflow.inference.exported_events import reconstruct_exported
from pflow.io.open import read_events

Particles = list[list[dict[str, Any]]]
"""Of each event, as `pflow/export/cpp/reconstruct.cpp` writes them."""


class Sample(NamedTuple):
    """Events, and the model that reads them."""

    path: str
    model: str
    truth_tracks: bool = False

    def read(self, data: Path, n_events: int) -> Events:
        """The first events; with truth where tracks are made from it."""
        made = self.truth_tracks
        return read_events(data / self.path, entry_stop=n_events, truth=made, truth_tracks=made)


SAMPLES = (
    *(Sample(f"g4/{name}_test.root", "ild-g4-general") for name in ("single", "multi", "gammasep", "tau10")),
    *(Sample(f"g4/{name}_test.root", "ild-g4-general") for name in ("zh", "zqq")),
    Sample("g4/gamma1_test.root", "ild-g4-photon"),
    *(Sample(f"cld_g4/{name}_test.root", "cld-general") for name in ("single", "multi", "gammasep", "zh", "zqq")),
    Sample("edm4hep/ild_g4_zqq_rntuple.root", "ild-g4-general"),
    Sample("edm4hep/cld_rec.edm4hep.root", "cld-general"),
    Sample("edm4hep/cld_zuds100_sim.edm4hep.root", "cld-general", truth_tracks=True),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=20, help="of each file (default: %(default)s)")
    parser.add_argument("--data-dir", type=Path, default=DATA.parent, help="folder of g4, cld_g4 and edm4hep")
    parser.add_argument(
        "--samples", nargs="*", metavar="FILE", help="only these (g4/zqq_test.root ...), shown and not kept"
    )


def run(args: argparse.Namespace) -> None:
    """Measure, and write engines.json and its table."""
    torch.set_num_threads(1)
    samples = [one for one in SAMPLES if args.samples is None or one.path in args.samples]
    rows: list[dict[str, Any]] = []
    missing = missing_for_cpp()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = None if missing else compile_program(compile_library(folder))
        for model_name, group in itertools.groupby(samples, lambda one: one.model):
            model, exported = load_model(model_name), folder / model_name
            if not exported.exists():
                export_model(model, exported)
            runtime = ExportedModel(exported)
            for sample in group:
                events = sample.read(args.data_dir, args.events)
                expected = particles_of(reconstruct(events, model, batch_size=1, device="cpu"))
                found = {"ONNX Runtime": particles_of(reconstruct_exported(events, runtime))}
                if program is not None:
                    text = write_events(events, folder / "events.txt")
                    found["C++"] = [event["particles"] for event in run_program(program, exported, text)[1:-1]]
                for engine, particles in found.items():
                    row = {"file": sample.path, "model": model_name, "engine": engine, "events": len(events)}
                    rows.append({**row, **compare(particles, expected)})
                    print(rows[-1], flush=True)
    result = rounded({"torch": torch.__version__, "rows": rows})
    print(engines_table(result))
    if args.samples is None and not missing:
        write_json(RESULTS / "engines.json", result)
        fill(REPORT, {"engines": engines_table(result)})


def particles_of(reconstruction: Reconstruction) -> Particles:
    """The particles of each event as plain data, in the form of the C++ program."""
    particles = reconstruction.particles
    columns: dict[str, Any] = {
        **{name: particles[name] for name in ("pdg", "charge", "energy", "covariance")},
        "momentum": ak.concatenate([particles.momentum[axis][..., None] for axis in ("px", "py", "pz")], axis=-1),
        "class_probability": particles.scores,
    }
    values = {name: ak.to_list(column) for name, column in columns.items()}
    events: Particles = [
        [{name: values[name][event][i] for name in values} | {"hits": [], "tracks": []} for i in range(n)]
        for event, n in enumerate(ak.num(particles).tolist())
    ]
    for name, links in (("hits", reconstruction.hit_links), ("tracks", reconstruction.track_links)):
        for event, of_event in enumerate([] if links is None else ak.to_list(links)):
            for link in of_event:
                events[event][link["particle"]][name].append([link["source"], link["weight"]])
    return events


def compare(found: Particles, expected: Particles) -> dict[str, Any]:
    """What one engine finds beside another.

    Returns
    -------
    dict
        Number of ``particles`` of both together (the larger of each event); of those with the ``same_identity`` (code
        and charge); and of these with the ``same_momentum`` (energy to 1e-3, direction to 1e-3 rad), the
        ``same_covariance`` (to 1%) and the ``same_links`` (hits and tracks, fractions to 0.02), and largest differences
        of ``energy`` (relative) and ``class_probability``.
    """
    counts = dict.fromkeys(("particles", "same_identity", "same_momentum", "same_covariance", "same_links"), 0)
    largest = dict.fromkeys(("energy", "class_probability"), 0.0)
    for ours, theirs in zip(found, expected, strict=True):
        counts["particles"] += max(len(ours), len(theirs))
        for one, other in zip(ours, theirs, strict=False):
            if (one["pdg"], one["charge"]) != (other["pdg"], other["charge"]):
                continue
            energy = abs(one["energy"] / other["energy"] - 1.0)
            off = np.abs(np.subtract(one["momentum"], other["momentum"])).max() / other["energy"]
            scale = abs(other["covariance"][-1])
            counts["same_identity"] += 1
            counts["same_momentum"] += bool(energy <= 1e-3 and off <= 2e-3)
            counts["same_covariance"] += np.allclose(one["covariance"], other["covariance"], 0.01, 0.01 * scale)
            counts["same_links"] += all(_linked(one[name], other[name]) for name in ("hits", "tracks"))
            apart = np.abs(np.subtract(one["class_probability"], other["class_probability"])).max()
            largest = {
                "energy": max(largest["energy"], float(energy)),
                "class_probability": max(largest["class_probability"], float(apart)),
            }
    return {**counts, **largest}


def _linked(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> bool:
    """Whether lists of [index, share] are the same, but for shares that differ by less than 0.02."""
    one, other = ({int(index): share for index, share in links} for links in (ours, theirs))
    return all(abs(one.get(i, 0.0) - other.get(i, 0.0)) < 0.02 for i in one.keys() | other.keys())
