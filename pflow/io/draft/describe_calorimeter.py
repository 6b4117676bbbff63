"""One calorimeter of a drafted description."""

from __future__ import annotations

from collections.abc import Mapping

from pflow.io.draft.collect import Group
from pflow.io.draft.measure_calorimeters import Digitisation, measure_digitisation, measure_encoding
from pflow.io.draft.notes import Notes, counted
from pflow.physics.detector import Calorimeter

__all__ = ["describe_calorimeter"]

FOUND_BY = {"type": "type of hits", "link": "links", "name": "name", "geometry": "geometry"}
"""In words, what `pflow.io.draft.calorimeters.Place` says; the first two stand in the file."""


def describe_calorimeter(
    group: Group, encodings: Mapping[str, str], *, layer_members: bool, notes: Notes
) -> Calorimeter:
    """The calorimeter that a group of collections makes.

    Parameters
    ----------
    group
        Its collections.
    encodings
        Cell encodings of the file, by collection.
    layer_members
        Whether the hits of the file name their layer themselves.
    notes
        Gets how each value was found.
    """
    prefix = f"calorimeters.{group.name}"
    _note_place(group, "kind", notes)
    if group.kind != "muon":
        _note_place(group, "region", notes)
    digitised, simulated = (tuple(own.name for own in group.of(simulated=flag)) for flag in (False, True))
    if not digitised:
        notes.add(f"{prefix}.collections", "fill in", "digitised hits, for files that have them")
    found = measure_digitisation(group)
    if found is not None:
        _note_digitisation(prefix, found, notes)
    elif simulated:
        notes.add(f"{prefix}.sim_scale", "fill in", "factor from visible to calibrated energy of simulated hits")
    named = {name: encodings[name] for name in (*digitised, *simulated) if name in encodings}
    encoding = next(iter(named.values()), None)
    if named:
        others = [name for name, own in named.items() if own != encoding]
        text = f"{next(iter(named))}; others in {', '.join(others)}" if others else next(iter(named))
        notes.add(f"{prefix}.cell_encoding", "found", text)
    elif not layer_members:
        encoding = measure_encoding(group)
        how, text = ("fill in", "bit field of the cell ids; without it layers are not known")
        if encoding is not None:
            how, text = ("measured", "bits of the cell ids that follow the layers")
        notes.add(f"{prefix}.cell_encoding", how, text)
    return Calorimeter(
        name=group.name,
        kind=group.kind,
        region=group.region,
        collections=digitised,
        sim_collections=simulated,
        sim_scale=1.0 if found is None else float(f"{found.scale:.6g}"),
        sim_threshold=None if found is None else float(f"{found.threshold:.3g}"),
        sim_measures_time=found is None or found.measures_time,
        required=group.kind != "muon" and group.region != "other",
        cell_encoding=encoding,
    )


def _note_place(group: Group, what: str, notes: Notes) -> None:
    """Say how kind or region was found, by its most trustworthy collections."""
    by: dict[str, list[str]] = {}
    for name, place in group.places.items():
        by.setdefault(getattr(place, f"{what}_from"), []).append(name)
    source = next(source for source in FOUND_BY if source in by)
    how = "found" if source in ("type", "link") else "guessed"
    notes.add(f"calorimeters.{group.name}.{what}", how, f"{FOUND_BY[source]} ({', '.join(by[source])})")


def _note_digitisation(prefix: str, found: Digitisation, notes: Notes) -> None:
    cells = counted(found.n_cells, "cell")
    notes.add(f"{prefix}.sim_scale", "measured", f"{cells} with digitised and simulated energy")
    notes.add(f"{prefix}.sim_threshold", "measured", "GeV, smallest simulated energy of these cells, so at most that")
    if not found.measures_time:
        notes.add(f"{prefix}.sim_measures_time", "measured", "all digitised hits have time 0")
