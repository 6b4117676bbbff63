"""How events of the simplified CLD differ from real full simulation: differences.json and its figure.

Real: the reconstructed event and the three simulated ones that are digitised on reading, of `edm4hep`. Simplified:
validation events of `zqq` and `zh`. They are other events, so densities are compared, of hits, of cells in a side of
the barrel, and of what single particles leave.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from measurements.figures import save
from measurements.files import DATA, FIGURES, RESULTS, rounded, write_json
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.truth import select_targets
from pflow.io.open import read_events
from pflow.physics.pdg import CLASSES, class_index
from pflow.plots.style import COLORS, styled

Values = npt.NDArray[np.float64]
SIDES = 12
MIN_ENERGY_GEV = 2.0
"""Of the particles whose deposits are compared."""


class Panel(NamedTuple):
    """A histogram: title, edges, and whether its axis is logarithmic."""

    title: str
    edges: Values
    log: bool = False


PANELS = {
    "ecal_energy": Panel("Energy of an ECAL hit [MeV]", np.geomspace(1, 1000, 31), log=True),
    "hcal_energy": Panel("Energy of an HCAL hit [MeV]", np.geomspace(5, 5000, 31), log=True),
    "ecal_layer": Panel("Layer of an ECAL hit", np.arange(41.0)),
    "hcal_layer": Panel("Layer of an HCAL hit", np.arange(45.0)),
    "ecal_time": Panel("Time of an ECAL hit [ns]", np.geomspace(0.05, 10, 31), log=True),
    "ecal_azimuth": Panel("Azimuth in a side of the ECAL barrel [deg]", np.linspace(-15, 15, 31)),
    "photon_response": Panel("Calorimeter energy / energy of a photon", np.linspace(0, 2, 21)),
    "photon_hits": Panel("ECAL hits per GeV of a photon", np.linspace(0, 80, 21)),
    "hadron_ecal": Panel("ECAL energy / energy of a charged hadron", np.linspace(0, 1.5, 16)),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, default=DATA.parent, help="folder of cld_g4 and edm4hep")
    parser.add_argument(
        "--events", "--n-events", type=int, default=60, help="of each simplified file (default: %(default)s)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Measure; write `args.results`/differences.json and its figure."""
    real = [
        read_events(args.data_dir / "edm4hep" / "cld_rec.edm4hep.root"),
        read_events(args.data_dir / "edm4hep" / "cld_zuds100_sim.edm4hep.root", truth_tracks=True),
    ]
    ours = [
        read_events(args.data_dir / "cld_g4" / f"{name}_val.root", entry_stop=args.events) for name in ("zqq", "zh")
    ]
    content = {"real": _measure(real), "simplified": _measure(ours)}
    for key, panel in PANELS.items():
        means = (f"{found[key]['mean']:.4g} {name}" for name, found in content.items())
        print(f"{panel.title}: mean {', '.join(means)}")
    write_json(args.results / "differences.json", rounded(content))
    save({"cld_differences": differences_figure(content)}, args.results / FIGURES.name)


def _measure(samples: Sequence[Events]) -> dict[str, Any]:
    """Histogram, mean and number of entries of each panel, over all samples."""
    values: dict[str, list[Values]] = {key: [] for key in PANELS}
    for events in samples:
        for key, found in (*_of_hits(events), *_of_particles(events)):
            values[key].append(found)
    result = {}
    for key, panel in PANELS.items():
        all_values = np.concatenate(values[key])
        counts = np.histogram(all_values, panel.edges)[0]
        result[key] = {"n": len(all_values), "mean": float(np.mean(all_values)), "counts": counts.tolist()}
    return result


def _of_hits(events: Events) -> Iterator[tuple[str, Values]]:
    flat = ak.flatten(events.hits, axis=1)
    calorimeters = events.detector.calorimeters
    subdetector = ak.to_numpy(flat.subdetector)
    for kind in ("ecal", "hcal"):
        own = np.isin(subdetector, [k for k, one in enumerate(calorimeters) if one.kind == kind])
        yield f"{kind}_energy", 1000.0 * ak.to_numpy(flat.energy)[own]
        yield f"{kind}_layer", ak.to_numpy(flat.layer)[own].astype(np.float64)
        if kind == "ecal":
            yield "ecal_time", ak.to_numpy(flat.time)[own].astype(np.float64)
    barrel = [k for k, one in enumerate(calorimeters) if (one.kind, one.region) == ("ecal", "barrel")]
    azimuth = np.degrees(ak.to_numpy(flat.position.phi)[np.isin(subdetector, barrel)])
    yield "ecal_azimuth", (azimuth + 180.0 / SIDES) % (360.0 / SIDES) - 180.0 / SIDES


def _of_particles(events: Events) -> Iterator[tuple[str, Values]]:
    """What targets above 2 GeV leave in the calorimeters, by their links."""
    targets = select_targets(events, rule="stable")
    n_targets = jagged.count(targets.particles)
    ecal = [k for k, one in enumerate(events.detector.calorimeters) if one.kind == "ecal"]
    hit = jagged.global_index(targets.hit_links.source, jagged.count(events.hits))
    target = jagged.global_index(targets.hit_links.particle, n_targets)
    weight = jagged.flat(targets.hit_links.weight, np.float64)
    in_ecal = np.isin(jagged.flat(events.hits.subdetector)[hit], ecal)
    left = weight * jagged.flat(events.hits.energy)[hit]
    n = int(n_targets.sum())
    energy = jagged.flat(targets.particles.energy)
    classes = class_index(jagged.flat(targets.particles.pdg))
    photon, hadron = (
        (classes == CLASSES.index(name)) & (energy > MIN_ENERGY_GEV) for name in ("photon", "charged_hadron")
    )
    yield "photon_response", (np.bincount(target, left, n) / energy)[photon]
    yield "photon_hits", (np.bincount(target, weight * in_ecal, n) / energy)[photon]
    yield "hadron_ecal", (np.bincount(target, left * in_ecal, n) / energy)[hadron]


def differences_figure(content: dict[str, Any]) -> Figure:
    """A panel a quantity: densities of real and simplified events."""
    with styled():
        drawn = Figure(figsize=(15.0, 12.0), layout="constrained")
        for axes, (key, panel) in zip(drawn.subplots(3, 3).flat, PANELS.items(), strict=True):
            for color, (name, found) in zip(COLORS, content.items(), strict=False):
                counts = np.array(found[key]["counts"], dtype=np.float64)
                total = max(counts.sum(), 1.0)
                axes.stairs(counts / total, panel.edges, color=color, label=name, linewidth=1.5)
                centres = (panel.edges[1:] + panel.edges[:-1]) / 2
                axes.errorbar(centres, counts / total, yerr=np.sqrt(counts) / total, fmt="none", color=color)
            axes.set(xlabel=panel.title, ylabel="Share", xscale="log" if panel.log else "linear")
        drawn.axes[0].legend()
        return drawn
