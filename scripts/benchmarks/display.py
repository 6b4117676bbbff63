"""An event display: the time of the scene, the figure and the interactive page, and the size of the page."""

from __future__ import annotations

import argparse

from benchmarks.timing import add_common_options, fastest
from pflow.io.open import read_events
from pflow.plots.display import plot_event
from pflow.plots.event_page import event_page
from pflow.plots.scene import make_scene

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file")
    add_common_options(parser, events=1)


def run(args: argparse.Namespace) -> None:
    events = read_events(args.file, entry_stop=args.events)
    print(f"{'entry':>5} {'hits':>6} {'scene [ms]':>11} {'figure [ms]':>12} {'page [ms]':>10} {'page [MB]':>10}")
    for entry in range(len(events)):
        scene = make_scene(events, entry)
        times = (
            fastest(args.runs, make_scene, events, entry),
            fastest(args.runs, plot_event, scene),
            fastest(args.runs, event_page, scene),
        )
        size = len(event_page(scene)) / 1e6
        print(f"{entry:5} {len(scene.position):6} {times[0]:11.0f} {times[1]:12.0f} {times[2]:10.0f} {size:10.1f}")
