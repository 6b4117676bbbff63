"""A description of the detector that a podio file is from, and how each of its values was found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from pflow.errors import InputError
from pflow.io.detect import sniff
from pflow.io.draft.collect import Sources, collect
from pflow.io.draft.describe_calorimeter import describe_calorimeter
from pflow.io.draft.describe_geometry import describe_geometry
from pflow.io.draft.measure_field import MeasuredField, measure_field
from pflow.io.draft.notes import Note, Notes
from pflow.io.edm4hep.podio import PodioFile, open_podio
from pflow.physics.detector import Calorimeter, Detector, TruthTracking, load_detector

__all__ = ["DetectorDraft", "draft_detector"]

TRUTH_TRACKS_OF = "cld"
"""Built-in detector whose truth tracks stand in for the unknown ones."""

COLLECTIONS = {
    "tracks": "tracks; the first that a file holds is read",
    "truth_particles": "Monte Carlo particles",
    "hit_links": "links from hits to Monte Carlo particles",
    "track_links": "links from tracks to Monte Carlo particles",
    "references": "particles of another algorithm",
}
"""Fields of a detector that name collections, and what these hold."""

CHOSEN = ("tracks", "references")
"""Fields for which a file may hold several collections, of which one is read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectorDraft:
    """A drafted detector.

    Parameters
    ----------
    detector
        The description.
    notes
        How its values were found, by field, e.g. ``b_field`` or ``calorimeters.ecal_barrel.kind``.
    left_out
        Reason for each collection that pflow could read, but that the description does not name.
    path, entries
        File, and how many of its entries were looked at.
    """

    detector: Detector
    notes: Mapping[str, Note]
    left_out: Mapping[str, str]
    path: str
    entries: int

    def to_fill_in(self) -> dict[str, str]:
        """What must be given by hand, by field."""
        return {field: note.text for field, note in self.notes.items() if note.how == "fill in"}


def draft_detector(
    path: str | PathLike[str], *, name: str | None = None, b_field: float | None = None, max_entries: int = 100
) -> DetectorDraft:
    """Draft the description of the detector that an EDM4hep or other podio file is from.

    The built-in detectors are not looked at, but for how tracks are made from Monte Carlo particles: CLD's stands in.

    Parameters
    ----------
    path
        The file, TTree or RNTuple.
    name
        Of the detector; by default what the simulation called it, else the file's name.
    b_field
        Field along z, T; by default measured.
    max_entries
        Entries that are looked at, from the first on.

    Raises
    ------
    InputError
        Not such a file; no hits of an ECAL; or nothing in it tells the field, and it is not given.
    """
    schema = sniff(path)
    if not schema.startswith("edm4hep"):
        raise InputError(f"a file of schema '{schema}' does not name its collections: describe it by hand", file=path)
    file = open_podio(path)
    try:
        return _draft(file, name, b_field, min(max_entries, file.columns.num_entries))
    finally:
        file.close()


def _draft(file: PodioFile, name: str | None, b_field: float | None, entries: int) -> DetectorDraft:
    sources = collect(file, entries)
    notes = Notes()
    geometry = describe_geometry(sources.groups, notes)
    if geometry is None:
        seen = "; ".join(f"{own}: {why}" for own, why in sources.left_out.items())
        raise InputError(
            f"no hits of an ECAL barrel or endcap in the first {entries} entries, so it cannot be described"
            f"{f'. Left out: {seen}' if seen else ''}",
            file=file.path,
        )
    layer_members = all(file.columns.has(sample.name, "layer") for group in sources.groups for sample in group.samples)
    detector = Detector(
        name=name or _stated_name(file, notes),
        description=f"drafted from {Path(file.path).name}",
        b_field=0.0 if b_field is None else b_field,
        calorimeters=_with_common_encoding(
            [
                describe_calorimeter(group, file, entries, layer_members=layer_members, notes=notes)
                for group in sources.groups
            ],
            notes,
        ),
        ecal_inner_radius=geometry.ecal_inner_radius,
        ecal_inner_z=geometry.ecal_inner_z,
        ecal_outer_radius=geometry.ecal_outer_radius,
        hcal_inner_radius=geometry.hcal_inner_radius,
        hcal_inner_z=geometry.hcal_inner_z,
        phi_symmetry=geometry.phi_symmetry,
        tracks=sources.tracks,
        truth_tracks=_truth_tracks(sources, geometry.sides, notes),
        tracker_hits=sources.tracker_hits,
        truth_particles=sources.truth_particles,
        hit_links=sources.hit_links,
        track_links=sources.track_links,
        references=sources.references,
    )
    _note_collections(sources, notes)
    if b_field is None:
        found = measure_field(file, detector, sources.sim_tracker_hits, entries)
        detector = dataclasses.replace(detector, b_field=_choose_field(file, found, notes))
    else:
        notes.add("b_field", "found", "as given")
    return DetectorDraft(detector=detector, notes=notes, left_out=sources.left_out, path=file.path, entries=entries)


def _with_common_encoding(calorimeters: list[Calorimeter], notes: Notes) -> tuple[Calorimeter, ...]:
    """Calorimeters whose cell encoding was not found get the one that all others have."""
    known = {own.cell_encoding: own.name for own in calorimeters if own.cell_encoding is not None}
    filled = []
    for own in calorimeters:
        field = f"calorimeters.{own.name}.cell_encoding"
        if own.cell_encoding is None and len(known) == 1 and field in notes:
            (encoding, name) = next(iter(known.items()))
            own = dataclasses.replace(own, cell_encoding=encoding)
            notes.add(field, "guessed", f"as in {name}")
        filled.append(own)
    return tuple(filled)


def _stated_name(file: PodioFile, notes: Notes) -> str:
    stated = file.parameters.get("detectorName", ())
    if not stated:
        return Path(file.path).name.split(".")[0]
    notes.add("name", "found", "detectorName of the simulation")
    return stated[0]


def _truth_tracks(sources: Sources, sides: int | None, notes: Notes) -> TruthTracking | None:
    """How tracks are made from Monte Carlo particles; None without simulated tracker hits."""
    if not sources.sim_tracker_hits:
        notes.pop("truth_tracks.sides", None)
        return None
    like = load_detector(TRUTH_TRACKS_OF).truth_tracks
    assert like is not None  # it is the one that describes them
    notes.add("truth_tracks.sim_tracker_hits", "found", "all simulated tracker hits")
    for field in ("min_layers", "max_vertex_radius", "inverse_pt", "angle", "impact"):
        notes.add(f"truth_tracks.{field}", "fill in", f"this is {TRUTH_TRACKS_OF}'s; for --truth-tracks only")
    return dataclasses.replace(like, sim_tracker_hits=sources.sim_tracker_hits, sides=sides)


def _note_collections(sources: Sources, notes: Notes) -> None:
    digitised = any(group.of(simulated=False) for group in sources.groups)
    useful = {
        "tracks": True,
        "truth_particles": True,
        "hit_links": digitised,  # simulated hits have their particles in their contributions
        "track_links": bool(sources.tracks),
    }
    for field, what in COLLECTIONS.items():
        if getattr(sources, field):
            notes.add(field, "guessed" if field in CHOSEN else "found", what)
        elif useful.get(field):
            notes.add(field, "fill in", f"the file has no {what.split(';')[0]}")


def _choose_field(file: PodioFile, found: list[MeasuredField], notes: Notes) -> float:
    """The most certain value.

    Raises
    ------
    InputError
        There is none.
    """
    if not found:
        raise InputError(
            "nothing in the file tells the field: no tracks with links to Monte Carlo particles, no simulated tracker"
            " hits with their momentum, and no parameter of that name; give it (--b-field)",
            file=file.path,
        )
    stated = not found[0].uncertainty
    values = [
        own.source if not own.uncertainty else f"{own.b_field:.4g} +- {own.uncertainty:.1g} from {own.source}"
        for own in found
    ]
    if stated:
        notes.add("b_field", "found", "; ".join(values))
    else:
        notes.add("b_field", "measured", f"{'; '.join(values)}; better: the nominal value")
    return float(f"{found[0].b_field:.4g}")
