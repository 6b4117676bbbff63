"""Whether the particles depend on batch, chunk, threads, processes or an event's place in its file: sameness.json.

The first events of each test file are reconstructed in one batch after the other of 32, all in one chunk, with one
thread and one process, and then with one of these changed at a time. Particles are compared in their order: counts, PDG
codes and charges must be the same, numbers to 1e-4 for every particle and to 1e-5 for 99.9% of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import numpy.typing as npt
import torch

from measurements.commands import revision
from measurements.files import DATA, RESULTS, rounded, write_json
from measurements.markdown import table
from pflow.checkpoint.load import Model, load_model
from pflow.event import jagged
from pflow.event.particles import LINKS, Reconstruction, concatenate
from pflow.inference.events import BATCH_SIZE, reconstruct
from pflow.inference.files import reconstruct_files
from pflow.io.events_root import write_events
from pflow.io.open import open_events
from pflow.io.particles_root import read_reco

FILES = {
    "ild-g4-photon": [f"g4/{name}_test.root" for name in ("gamma1", "gammasep")],
    "ild-g4-general": [
        *(f"g4/{name}_test.root" for name in ("gamma1", "gammasep", "single", "multi", "tau10", "zqq", "zh")),
        "edm4hep/ild_g4_zqq_rntuple.root",
    ],
    "cld-general": [
        *(f"cld_g4/{name}_test.root" for name in ("gammasep", "single", "multi", "zqq", "zh")),
        "edm4hep/cld_rec.edm4hep.root",
    ],
}
IN_FULL = "g4/zqq_test.root"
"""The file that also goes through processes of a cluster, with more events."""
TOLERANCES = (1e-4, 1e-5)
LARGEST = ("energy, momentum", "covariance", "scores", "weights of links")
"""Kinds of numbers that are compared."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How events are reconstructed; `first` entries are left out, which moves the others in their batches."""

    batch_size: int = BATCH_SIZE
    chunk_size: int = 10**6
    threads: int = 1
    first: int = 0
    reverse: bool = False
    processes: int = 1


USUAL = Setting()
SETTINGS = {
    "the same again": USUAL,
    "batches of 1": Setting(batch_size=1),
    "batches of 7": Setting(batch_size=7),
    "chunks of 1": Setting(chunk_size=1),
    "chunks of 50": Setting(chunk_size=50),
    "2 threads": Setting(threads=2),
    "2 processes": Setting(processes=2, chunk_size=8),
    "reversed": Setting(reverse=True),
    "from entry 3": Setting(first=3),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=DATA.parent, help="folder of g4, cld_g4 and edm4hep")
    parser.add_argument("--models", nargs="+", choices=FILES, default=list(FILES), help="models (default: all)")
    parser.add_argument("--events", "--n-events", type=int, default=20, help="of each file (default: %(default)s)")
    parser.add_argument("--n-full", type=int, default=60, help=f"of {IN_FULL} (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Compare, and write `args.results`/sameness.json."""
    rows = []
    for name in args.models:
        model = load_model(name)
        for file in FILES[name]:
            in_full = file == IN_FULL
            n_events = args.n_full if in_full else args.events
            rows += _compared(args.data_dir / file, model, n_events, in_full=in_full)
    write_json(args.results / "sameness.json", {"revision": revision(), "rows": rounded(rows)})
    print(sameness_table({"rows": rows}))


def _compared(path: Path, model: Model, n_events: int, *, in_full: bool) -> list[dict[str, Any]]:
    """A row for each setting that changes something for so many events of a file."""
    rows = []
    wanted = _reconstructed(path, model, n_events, USUAL)
    for name, setting in SETTINGS.items():
        too_few = len(wanted) <= max(1, setting.first, setting.chunk_size if "chunks" in name else 0)
        if (setting.processes > 1 and not in_full) or (too_few and setting != USUAL):
            continue
        found = _reconstructed(path, model, n_events, setting)
        row = {"model": model.path, "file": f"{path.parent.name}/{path.name}", "setting": name}
        rows.append({**row, **compare(found, wanted[setting.first :])})
        print(rows[-1], flush=True)
    return rows


def _reconstructed(path: Path, model: Model, n_events: int, setting: Setting) -> Reconstruction:
    if setting.processes > 1:
        return _by_processes(path, model, n_events, setting)
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    parts = []
    try:
        with open_events(path, detector=model.tokeniser.detector) as file:
            stop = min(n_events, len(file))
            for begin in range(setting.first, stop, setting.chunk_size):
                events = file.read(begin, min(begin + setting.chunk_size, stop), truth=False)
                order = np.arange(len(events))[:: -1 if setting.reverse else 1]
                part = reconstruct(events[order], model, batch_size=setting.batch_size, device="cpu")
                parts.append(part[order])
    finally:
        torch.set_num_threads(threads)
    return concatenate(parts)


def _by_processes(path: Path, model: Model, n_events: int, setting: Setting) -> Reconstruction:
    with tempfile.TemporaryDirectory() as folder:
        events, output = Path(folder) / "events.root", Path(folder) / "reco.root"
        with open_events(path, detector=model.tokeniser.detector) as file:
            write_events(events, file.read(0, min(n_events, len(file))))
        reconstruct_files(
            [events],
            checkpoint=model.path,
            output=output,
            chunk_size=setting.chunk_size,
            cluster=f"local:{setting.processes}",
            device="cpu",
        )
        return read_reco(output)


def compare(found: Reconstruction, wanted: Reconstruction) -> dict[str, Any]:
    """Numbers of events and particles, of events that differ in more than numbers, and how far numbers are apart.

    Differences of energy and momentum are relative to the energy, of the covariance to its trace, of scores and of
    weights of links absolute. A particle is within a limit if all its numbers are; links are not its own. Where the
    particles or links of an event differ, its numbers are not compared.
    """
    same = [_kinds(one) == _kinds(other) for one, other in zip(found.particles, wanted.particles, strict=True)]
    off = _differences(found.particles[same], wanted.particles[same])
    links = {name: (getattr(found, name), getattr(wanted, name)) for name in LINKS}
    of_links = [_link_differences(one[same], other[same]) for one, other in links.values() if one is not None]
    worst = np.max(list(off.values()), axis=0)
    return {
        "n_events": len(wanted),
        "n_particles": int(ak.count(wanted.particles.pdg)),
        "other_events": same.count(False),
        "other_links": sum(n for n, _ in of_links),
        **{f"within_{limit:g}": float(np.mean(worst < limit)) if len(worst) else 1.0 for limit in TOLERANCES},
        "largest": {name: float(values.max(initial=0.0)) for name, values in off.items()}
        | {"weights of links": max((largest for _, largest in of_links), default=0.0)},
        "identical": all(same) and all(not values.any() for values in off.values()) and not any(map(any, of_links)),
    }


def _kinds(particles: ak.Array) -> list[tuple[int, float]]:
    return list(zip(ak.to_list(particles.pdg), ak.to_list(particles.charge), strict=True))


def _differences(found: ak.Array, wanted: ak.Array) -> Mapping[str, npt.NDArray[np.float64]]:
    """For each particle, the largest difference of its numbers."""
    ones, others = jagged.flat_records(found), jagged.flat_records(wanted)

    def off(of: Any) -> npt.NDArray[np.float64]:
        difference = np.abs(ak.to_numpy(of(ones)).astype(np.float64) - ak.to_numpy(of(others)))
        return np.asarray(difference if difference.ndim == 1 else difference.max(axis=1, initial=0.0))

    energy = ak.to_numpy(others.energy).astype(np.float64)
    kinematic = [off(lambda p: p.energy), *(off(lambda p, axis=axis: p.momentum[axis]) for axis in ("px", "py", "pz"))]
    result = {"energy, momentum": np.max(kinematic, axis=0) / energy}
    if "covariance" in others.fields:
        trace = ak.to_numpy(others.covariance)[:, [0, 2, 5, 9]].sum(axis=1, dtype=np.float64)
        result["covariance"] = off(lambda p: p.covariance) / trace
    if "scores" in others.fields:
        result["scores"] = off(lambda p: p.scores)
    return result


def _link_differences(found: ak.Array, wanted: ak.Array) -> tuple[int, float]:
    """Number of events with other links, and the largest difference of a weight of the others."""
    pairs = ((ak.to_list(one[["source", "particle"]]) for one in links) for links in (found, wanted))
    same = [one == other for one, other in zip(*pairs, strict=True)]
    weights = (jagged.flat(links[same].weight, np.float64) for links in (found, wanted))
    return same.count(False), float(np.abs(np.subtract(*weights)).max(initial=0.0))


def sameness_table(results: Mapping[str, Any]) -> str:
    """A row a model and file, with the worst of all settings; for one file a row each."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    again = {}
    for row in results["rows"]:
        name, file, setting = (row[key] for key in ("model", "file", "setting"))
        changed = groups.setdefault((name, file, setting if file == IN_FULL else "any of them"), [])
        if SETTINGS[setting] == USUAL:
            again[name, file] = row
        else:
            changed.append(row)
    rows = []
    for (name, file, setting), changed in groups.items():
        first = again[name, file]
        found = changed or [first]
        counts = (str(first[key]) for key in ("n_events", "n_particles"))
        others = (str(max(row[key] for row in found)) for key in ("other_events", "other_links"))
        shares = (f"{min(row[f'within_{limit:g}'] for row in found):.2%}" for limit in TOLERANCES)
        largest = (max(row["largest"].get(kind, 0.0) for row in found) for kind in LARGEST)
        texts = ("0" if not value else f"{value:.0e}" for value in largest)
        identical = "yes" if first["identical"] else "no"
        title = setting if changed else next(iter(SETTINGS))
        rows.append([name, f"`{file}`", *counts, identical, title, *others, *shares, *texts])
    head = ["model", "file", "events", "particles", "identical again", "changed"]
    head += ["events with other particles", "with other links", *(f"within {limit:g}" for limit in TOLERANCES)]
    return table([*head, *(f"largest: {kind}" for kind in LARGEST)], rows, left=(0, 1, 4, 5))
