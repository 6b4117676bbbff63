"""The picture of the README: the hits of a two-photon event, and the target sequence that a model is trained on."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import pflow
from measurements.files import DATA, ROOT

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=DATA / "gammasep_test.root", help="default: %(default)s")
    parser.add_argument("--entry", type=int, help="default: the first clear pair of photons")
    parser.add_argument("--output", type=Path, default=ROOT / "notebooks" / "images" / "overview.png")


def run(args: argparse.Namespace) -> None:
    events = pflow.read_events(args.data)
    entry = clear_pair(events) if args.entry is None else args.entry
    draw(events[entry]).savefig(args.output, dpi=130)
    print(f"wrote {args.output}: entry {entry} of {args.data}")


def clear_pair(events: pflow.Events) -> int:
    """First event with two photon targets in the barrel, 60 to 120 mrad apart, of similar energy."""
    targets = pflow.select_targets(events).particles
    for i, particles in enumerate(targets):
        if len(particles) != 2 or max(abs(particles.momentum.eta)) > 0.5:
            continue
        angle = particles.momentum[0].deltaangle(particles.momentum[1])
        if 0.06 < angle < 0.12 and min(particles.energy) > 0.5 * max(particles.energy):
            return i
    raise SystemExit("no clear pair of photons in this file")


def draw(event: pflow.Events) -> Figure:
    particles = pflow.select_targets(event).particles[0]
    particles = particles[np.argsort(-particles.energy.to_numpy())]
    hits = event.hits[0]
    position = np.stack([hits.position[axis].to_numpy() for axis in "xyz"], axis=1)
    energy = hits.energy.to_numpy()

    # Across: along the line from one photon to the other, seen from the vertex.
    momentum = np.stack([particles.momentum[axis].to_numpy() for axis in ("px", "py", "pz")], axis=1)
    one, other = momentum / np.linalg.norm(momentum, axis=1, keepdims=True)
    axis = (one - other) / np.linalg.norm(one - other)
    depth = np.hypot(position[:, 0], position[:, 1])
    across = position @ axis

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    order = np.argsort(energy)
    drawn = left.scatter(
        depth[order], across[order], c=np.log10(1e3 * energy[order]), s=9, cmap="viridis", linewidths=0
    )
    centre = np.average(across, weights=energy)
    left.set(
        xlim=(1795, 2000),
        ylim=(centre - 150, centre + 150),
        xlabel="distance from the beam [mm]",
        ylabel="across the two showers [mm]",
        title=f"{len(energy)} calorimeter hits: the input tokens",
    )
    figure.colorbar(drawn, ax=left, label="log$_{10}$(hit energy / MeV)", pad=0.01)

    right.set_axis_off()
    right.set(xlim=(0, 10), ylim=(0, 10), title="particles: the target sequence")
    rows = ["<bos>"]
    for particle in particles:
        theta, phi = np.degrees(particle.momentum.theta), np.degrees(particle.momentum.phi)
        rows.append(
            f"$\\gamma$   q = {particle.charge:.0f}   PDG {particle.pdg}   E = {particle.energy:.1f} GeV\n"
            f"$\\theta$ = {theta:.1f}°   $\\phi$ = {phi:.1f}°"
        )
    rows.append("<eos>")
    heights = [0.9 if row.startswith("<") else 1.8 for row in rows]
    top = 8.9
    for row, height in zip(rows, heights, strict=True):
        special = row.startswith("<")
        right.add_patch(
            FancyBboxPatch(
                (1.2, top - height),
                7.6,
                height,
                boxstyle="round,pad=0.05,rounding_size=0.2",
                facecolor="#e8e8e8" if special else "#d9ead3",
                edgecolor="#666666",
            )
        )
        right.text(5, top - height / 2, row, ha="center", va="center", fontsize=11 if special else 12)
        if top < 8.9:
            right.annotate("", (5, top + 0.05), (5, top + 0.65), arrowprops={"arrowstyle": "->", "color": "#666666"})
        top -= height + 0.7
    return figure
