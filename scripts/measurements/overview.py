"""The picture of the README: the hits of a two-photon event, and the target sequence that a model is trained on."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import pflow
from measurements.files import DATA, ROOT
from pflow.event import jagged


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", "--data", type=Path, default=DATA / "gammasep_test.root", help="default: %(default)s")
    parser.add_argument("--entry", type=int, default=45, help="an event of two photons (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "notebooks" / "images" / "overview.png")


def run(args: argparse.Namespace) -> None:
    event = pflow.read_events(args.file, entry_start=args.entry, entry_stop=args.entry + 1)
    draw(event).savefig(args.output, dpi=130)
    print(f"wrote {args.output}")


def draw(event: pflow.Events) -> Figure:
    particles = pflow.select_targets(event).particles[0]
    particles = particles[np.argsort(-particles.energy.to_numpy())]
    hits = event.hits[0]
    position = jagged.vectors(hits.position)
    energy = hits.energy.to_numpy()
    order = np.argsort(energy)
    # Across: along the line from one photon to the other, seen from the vertex.
    momentum = jagged.vectors(particles.momentum)
    one, other = momentum / np.linalg.norm(momentum, axis=1, keepdims=True)
    across = position @ (one - other) / np.linalg.norm(one - other)
    depth = np.hypot(position[:, 0], position[:, 1])

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    drawn = left.scatter(depth[order], across[order], c=np.log10(1e3 * energy[order]), s=9, linewidths=0)
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
    right.set_title("particles: the target sequence")
    rows = [
        f"$\\gamma$   q = {particle.charge:.0f}   PDG {particle.pdg}   E = {particle.energy:.1f} GeV\n"
        f"$\\theta$ = {np.degrees(particle.momentum.theta):.1f}°   $\\phi$ = {np.degrees(particle.momentum.phi):.1f}°"
        for particle in particles
    ]
    for k, row in enumerate(["<bos>", *rows, "<eos>"]):
        colour = "#e8e8e8" if row.startswith("<") else "#d9ead3"
        box = {"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "#666666"}
        right.text(0.5, 0.87 - 0.23 * k, row, ha="center", va="center", fontsize=12, bbox=box)
        if k:
            arrow = {"arrowstyle": "->", "color": "#666666"}
            right.annotate("", (0.5, 0.96 - 0.23 * k), (0.5, 1.02 - 0.23 * k), arrowprops=arrow)
    return figure
