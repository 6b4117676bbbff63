"""Displays of the worst events."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from pflow.io.open import open_events
from pflow.io.particles_root import read_reco
from pflow.plots.display import plot_event
from pflow.plots.scene import make_scene

__all__ = ["display"]


def display(events: Path, reco: Path, entry: int, *, rule: str) -> Figure:
    """One event with what was reconstructed of it, hits in the colour of their true particle."""
    with open_events(events) as file:
        event = file.read(entry, entry + 1)
    answer = read_reco(reco, entry_start=entry, entry_stop=entry + 1)
    return plot_event(make_scene(event, reconstruction=answer, rule=rule, max_particles=12))
