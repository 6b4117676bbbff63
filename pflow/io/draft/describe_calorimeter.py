"""One calorimeter of a drafted description."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pflow.io.draft.collect import Group
from pflow.io.draft.measure_calorimeters import Digitisation, measure_digitisation, measure_encoding
from pflow.io.draft.measure_time_window import EARLIEST, measure_time_window
from pflow.io.draft.notes import Notes, counted
from pflow.io.edm4hep.podio import PodioFile
from pflow.physics.detector import Calorimeter

__all__ = ["describe_calorimeter"]

FOUND_BY = {"type": "type of hits", "link": "links", "name": "name", "geometry": "geometry"}
"""In words, what `pflow.io.draft.calorimeters.Place` says; the first two stand in the file."""


def describe_calorimeter(
    group: Group, file: PodioFile, entries: int, *, layer_members: bool, notes: Notes
) -> Calorimeter:
    """The calorimeter that a group of collections makes.

    Parameters
    ----------
    group
        Its collections.
    file, entries
        Open file, and how many of its entries were read.
    layer_members
        Whether the hits of the file name their layer themselves.
    notes
        Gets how each value was found.
    """
    _note_place(group, "kind", notes)
    if group.kind != "muon":
        _note_place(group, "region", notes)
    digitised, simulated = (tuple(own.name for own in group.of(simulated=flag)) for flag in (False, True))
    if not digitised:
        notes.add(f"calorimeters.{group.name}.collections", "fill in", "digitised hits, for files that have them")
    found = measure_digitisation(group)
    return Calorimeter(
        name=group.name,
        kind=group.kind,
        region=group.region,
        collections=digitised,
        sim_collections=simulated,
        sim_scale=_scale(group, found, notes),
        sim_threshold=_threshold(group, found, notes),
        sim_time_window=_time_window(group, found, file, entries, notes),
        sim_measures_time=_measures_time(group, found, notes),
        required=group.kind != "muon" and group.region != "other",
        cell_encoding=_encoding(group, file.encodings, notes, layer_members=layer_members),
    )


def _note_place(group: Group, what: str, notes: Notes) -> None:
    """Say how kind or region was found, by its most trustworthy collections."""
    by: dict[str, list[str]] = {}
    for name, place in group.places.items():
        by.setdefault(getattr(place, f"{what}_from"), []).append(name)
    source = next(source for source in FOUND_BY if source in by)
    how = "found" if source in ("type", "link") else "guessed"
    notes.add(f"calorimeters.{group.name}.{what}", how, f"{FOUND_BY[source]} ({', '.join(by[source])})")


def _encoding(group: Group, encodings: Mapping[str, str], notes: Notes, *, layer_members: bool) -> str | None:
    field = f"calorimeters.{group.name}.cell_encoding"
    names = [sample.name for simulated in (False, True) for sample in group.of(simulated=simulated)]
    named = {name: encodings[name] for name in names if name in encodings}
    if named:
        first = next(iter(named))
        others = [name for name, own in named.items() if own != named[first]]
        notes.add(field, "found", f"{first}; others in {', '.join(others)}" if others else first)
        return named[first]
    if layer_members:
        return None
    encoding = measure_encoding(group)
    if encoding is None:
        notes.add(field, "fill in", "bit field of the cell ids; without it layers are not known")
    else:
        notes.add(field, "measured", "bits of the cell ids that follow the layers")
    return encoding


def _scale(group: Group, found: Digitisation | None, notes: Notes) -> float:
    field = f"calorimeters.{group.name}.sim_scale"
    if found is not None:
        notes.add(field, "measured", f"{counted(found.n_cells, 'cell')} with digitised and simulated energy")
        return float(f"{found.scale:.6g}")
    if group.of(simulated=True):
        notes.add(field, "fill in", "factor from visible to calibrated energy of simulated hits")
    return 1.0


def _threshold(group: Group, found: Digitisation | None, notes: Notes) -> float | None:
    field = f"calorimeters.{group.name}.sim_threshold"
    if found is not None:
        notes.add(field, "measured", "GeV, the smallest simulated energy of these cells, rounded down")
        unit = 10.0 ** (math.floor(math.log10(found.threshold)) - 1)
        return float(f"{math.floor(found.threshold / unit) * unit:.2g}")
    if group.of(simulated=True):
        notes.add(field, "fill in", "GeV, visible energy from which on a cell is read out")
    return None


def _time_window(
    group: Group, found: Digitisation | None, file: PodioFile, entries: int, notes: Notes
) -> tuple[float, float] | None:
    field = f"calorimeters.{group.name}.sim_time_window"
    window = None if found is None else measure_time_window(file, group, found, entries)
    if window is not None:
        explained = f"{window.explained:,} of {counted(window.n_cells, 'simulated cell')}"
        notes.add(field, "measured", f"ns, explains {explained} (no window {window.explained_without:,})")
        return EARLIEST, window.latest
    if group.of(simulated=True) and (found is None or found.measures_time):
        notes.add(field, "fill in", "ns after a straight flight at c, energy before and after which does not count")
    return None


def _measures_time(group: Group, found: Digitisation | None, notes: Notes) -> bool:
    if found is None or found.measures_time:
        return True
    notes.add(f"calorimeters.{group.name}.sim_measures_time", "measured", "all digitised hits have time 0")
    return False
