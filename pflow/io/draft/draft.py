"""Draft the description of a podio file's detector, with a note on how each value was found.

`collect` chooses the collections, `measure` finds lengths, sides, layers, digitisation, scale of hadrons, field.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from pflow.config import to_plain
from pflow.errors import InputError
from pflow.io.atomic import replacing
from pflow.io.draft import measure
from pflow.io.draft.collect import Group, Sources, collect
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.open import sniff
from pflow.io.root import open_root
from pflow.physics.detector import Calorimeter, Detector, Layers, TruthTracking, load_detector

TRUTH_TRACKS_OF = "cld"  # built-in detector whose truth tracks stand in for the unknown ones

COLLECTIONS = {  # fields of a detector that name collections, and what these hold; "guessed": of several, one is read
    "tracks": ("guessed", "tracks; the first that a file holds is read"),
    "truth_particles": ("found", "Monte Carlo particles"),
    "hit_links": ("found", "links from hits to Monte Carlo particles"),
    "track_links": ("found", "links from tracks to Monte Carlo particles"),
    "references": ("guessed", "particles of another algorithm"),
}

FOUND_BY = {"type": "type of hits", "link": "links", "name": "name", "geometry": "geometry"}
"""Sources of a calorimeter's place, in words; the first two are in the file."""

TYPICAL = {
    "ecal": ("silicon and tungsten", 0.11, 0.0049, 5.0),
    "hcal": ("scintillator and steel", 0.043, 0.0046, 30.0),
    "muon": ("an iron yoke", 0.05, 0.0053, 30.0),
}
"""CLD's material, radiation and interaction lengths per mm along the normal, and cell size, mm, by kind."""

UNLIKE = 50.0  # endcaps whose first hits differ by more than this in |z| begin at different |z|, mm
LAST = ("calorimeters", "tracks", "truth_tracks", "tracker_hits")  # fields that are written behind the lengths


class Note(NamedTuple):
    """How a value was found (``found`` in the file, ``measured``, ``guessed``, still to ``fill in``), and from what."""

    how: str
    text: str


Notes = dict[str, Note]  # by field, e.g. ``b_field`` or ``calorimeters.ecal_barrel.kind``


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectorDraft:
    """A drafted detector, and how its values were found."""

    detector: Detector
    notes: Notes
    left_out: dict[str, str]  # reason for each collection that pflow could read, but that is not named
    path: str
    entries: int  # that were read

    def to_fill_in(self) -> dict[str, str]:
        """Fields that the user must fill in, and why."""
        return {field: note.text for field, note in self.notes.items() if note.how == "fill in"}


def draft_detector(
    path: str | PathLike[str], *, name: str | None = None, b_field: float | None = None, max_entries: int = 100
) -> DetectorDraft:
    """Draft the description of the detector that an EDM4hep or other podio file is from, by its first `max_entries`.

    Of the built-in detectors only CLD's settings for tracks from Monte Carlo particles stand in. `name`: by default
    what the simulation called it, else the file's. `b_field`, T along z: by default measured. An `InputError` if it is
    not such a file, has no hits of an ECAL, or nothing in it tells the field.
    """
    with open_root(path) as directory:
        schema = sniff(directory, str(path))
        if schema == "flat":
            raise InputError("a flat ntuple does not name its collections: describe it by hand", file=path)
        file = PodioFile(directory, path)
        return _draft(file, name, b_field, min(max_entries, file.columns.num_entries))


def _draft(file: PodioFile, name: str | None, b_field: float | None, entries: int) -> DetectorDraft:
    sources, notes = collect(file, entries), Notes()
    lengths, sides = _lengths(file, sources, entries, notes)
    stated = file.parameters.get("detectorName", ())
    if stated and not name:
        notes["name"] = Note("found", "detectorName of the simulation")
    layer_members = all(file.columns.has(sample.name, "layer") for group in sources.groups for sample in group.samples)
    slope = lengths["ecal_inner_radius"] / lengths["ecal_inner_z"]
    calorimeters = [_calorimeter(group, file, notes, layer_members, slope) for group in sources.groups]
    detector = Detector(
        name=name or (stated[0] if stated else Path(file.path).name.split(".")[0]),
        description=f"drafted from {Path(file.path).name}",
        b_field=1.0 if b_field is None else b_field,  # until it is measured
        calorimeters=_with_common_encoding(calorimeters, notes),
        truth_tracks=_truth_tracks(sources, sides, notes),
        **lengths,
        **sources.named,
    )
    _note_collections(sources, notes)
    detector = dataclasses.replace(detector, b_field=_field(file, detector, entries, notes, given=b_field))
    detector = _with_hadron_scale(file, detector, entries, notes)
    return DetectorDraft(detector=detector, notes=notes, left_out=sources.left_out, path=file.path, entries=entries)


def _lengths(file: PodioFile, sources: Sources, entries: int, notes: Notes) -> tuple[dict[str, Any], int | None]:
    """Lengths and symmetry of a `Detector`; and sides of the ECAL barrel, if certain and one faces x."""
    extents = {}
    for kind, region in itertools.product(("ecal", "hcal"), ("barrel", "endcap")):
        groups = [group for group in sources.groups if (group.kind, group.region) == (kind, region)]
        extents[kind, region] = measure.measure_extent(groups, region)
    barrel, endcap = extents["ecal", "barrel"], extents["ecal", "endcap"]
    lengths: dict[str, Any] = {}
    if barrel is not None:
        lengths["ecal_inner_radius"] = _edge("ecal_inner_radius", barrel, notes)
        lengths["ecal_outer_radius"] = _edge("ecal_outer_radius", barrel, notes, back=True)
    elif endcap is not None:
        outer = float(endcap.sample.radius.max())
        lengths["ecal_inner_radius"] = round(outer, 1)
        lengths["ecal_outer_radius"] = round(outer + max(endcap.range.back - endcap.range.front, 1.0), 1)
        no_barrel = "no hits in the barrel; this is"
        notes["ecal_inner_radius"] = Note("fill in", f"{no_barrel} how far out the endcaps have hits")
        notes["ecal_outer_radius"] = Note("fill in", f"{no_barrel} as thick as the endcaps")
    else:
        seen = "; ".join(f"{collection}: {why}" for collection, why in sources.left_out.items())
        raise InputError(
            f"no hits of an ECAL barrel or endcap in the first {entries} entries, so it cannot be described"
            f"{f'. Left out: {seen}' if seen else ''}",
            file=file.path,
        )
    if endcap is not None:
        lengths["ecal_inner_z"] = _edge("ecal_inner_z", endcap, notes)
        z = endcap.sample.position[:, 2]
        if (z < 0).any() and (z > 0).any() and abs(z[z > 0].min() + z[z < 0].max()) > UNLIKE:
            fronts = f"the first hits of the endcaps are at z = {z[z < 0].max():.0f} and {z[z > 0].min():.0f} mm"
            notes["ecal_inner_z"] = Note("guessed", f"{fronts}; this is the nearer one")
    elif barrel is not None:
        lengths["ecal_inner_z"] = round(max(float(abs(barrel.sample.position[:, 2]).max()), 1.0), 1)
        seen = "no hits in the endcaps; this is how far along z the barrel has hits"
        notes["ecal_inner_z"] = Note("fill in", seen)
    for field, region in (("inner_radius", "barrel"), ("inner_z", "endcap")):
        hcal = extents["hcal", region]
        behind = hcal is not None and hcal.range.front > lengths[f"ecal_{field}"]
        lengths[f"hcal_{field}"] = _edge(f"hcal_{field}", hcal, notes) if hcal is not None and behind else None
    lengths["phi_symmetry"] = _symmetry({"ECAL": barrel, "HCAL": extents["hcal", "barrel"]}, notes)
    shape = None if barrel is None else barrel.shape
    if shape is None or len(shape.as_good) > 1 or shape.phase:
        return lengths, None
    return lengths, shape.sides or None


def _edge(field: str, extent: measure.Extent, notes: Notes, *, back: bool = False) -> float:
    """Where a calorimeter begins, or ends, mm."""
    edge, where = (extent.range.back, "behind the last") if back else (extent.range.front, "before the first")
    n_events = len(np.unique(extent.sample.cell["event"]))
    seen = f"{measure.counted(len(extent.sample), 'hit')} in {measure.counted(n_events, 'event')}"
    if extent.on_layers:
        layers = f"{measure.counted(extent.range.count, 'layer')} every {extent.range.spacing:.2f} mm"
        notes[field] = Note("measured", f"half a layer {where} of {layers}, {seen}")
    else:
        notes[field] = Note("guessed", f"the hits lie on no layers; all but half a percent of {seen} are behind it")
    return round(edge, 1)


def _symmetry(barrels: dict[str, measure.Extent | None], notes: Notes) -> int | None:
    """Turns under which the barrels stay the same: None for any, 1 where that is not known."""
    shapes = {name: extent.shape for name, extent in barrels.items() if extent is not None and extent.shape}
    if "ECAL" not in shapes:
        text = "1 stands for no symmetry: the hits do not show the sides of the barrel"
        notes["phi_symmetry"] = Note("fill in", text)
        return 1
    described = []
    for name, shape in shapes.items():
        sides = " or ".join(f"{sides} sides" if sides else "a cylinder" for sides in shape.as_good)
        described.append(f"{name} {sides} ({shape.on_layers:.1%} of hits on layers)")
    certain = all(len(shape.as_good) == 1 for shape in shapes.values())
    text = f"barrels: {', '.join(described)}; endcaps not looked at"
    notes["phi_symmetry"] = Note("measured" if certain else "guessed", text)
    return math.gcd(*(sides for shape in shapes.values() for sides in shape.as_good)) or None


def _calorimeter(group: Group, file: PodioFile, notes: Notes, layer_members: bool, slope: float) -> Calorimeter:
    """The calorimeter of a group; `layer_members`: whether hits name their layer; `slope` as of `measure_cells`."""
    digitised, simulated = (tuple(sample.name for sample in group.of(simulated=flag)) for flag in (False, True))
    values: dict[str, Any] = {"collections": digitised, "sim_collections": simulated}

    def note(field: str, how: str, text: str, value: Any = None) -> None:
        notes[f"calorimeters.{group.name}.{field}"] = Note(how, text)
        if value is not None:
            values[field] = value

    for what in ("kind",) if group.kind == "muon" else ("kind", "region"):  # by the most trustworthy collections
        by: dict[str, list[str]] = {}
        for name, place in group.places.items():
            by.setdefault(place.get(what, ("", ""))[1], []).append(name)
        source = next(source for source in FOUND_BY if source in by)
        how = "found" if source in ("type", "link") else "guessed"
        note(what, how, f"{FOUND_BY[source]} ({', '.join(by[source])})")
    if not digitised:
        note("collections", "fill in", "digitised hits, for files that have them")
    digitisation = measure.measure_digitisation(group)
    if digitisation is not None:
        seen = f"{measure.counted(digitisation.n_cells, 'cell')} with digitised and simulated energy"
        note("sim_scale", "measured", seen, float(f"{digitisation.scale:.6g}"))
        unit = 10.0 ** (math.floor(math.log10(digitisation.threshold)) - 1)
        threshold = float(f"{math.floor(digitisation.threshold / unit) * unit:.2g}")
        note("sim_threshold", "measured", "GeV, the smallest simulated energy of these cells, rounded down", threshold)
    elif simulated:
        note("sim_scale", "fill in", "factor from visible to calibrated energy of simulated hits")
        note("sim_threshold", "fill in", "GeV, visible energy from which on a cell is read out")
    if simulated:
        text = "ns after a straight flight at c, energy before and after which does not count"
        note("sim_time_window", "fill in", text)
    if digitisation is not None and not digitisation.measures_time:
        note("sim_measures_time", "measured", "all digitised hits have time 0", False)
    encodings = {name: file.encodings[name] for name in (*digitised, *simulated) if name in file.encodings}
    if encodings:
        first, encoding = next(iter(encodings.items()))
        others = ", ".join(name for name, text in encodings.items() if text != encoding)
        note("cell_encoding", "found", f"{first}; others in {others}" if others else first, encoding)
    elif not layer_members:
        note("cell_encoding", "fill in", "bit field of the cell ids; without it layers are not known")
    cells = measure.measure_cells(group, slope)
    if cells is None or not cells.pitches:
        note("layers", "fill in", "there are no hits; with inner_radius or inner_z, for models of any detector")
    else:
        _describe(cells, TYPICAL[group.kind], note)
    required = group.kind != "muon" and group.region != "other"
    return Calorimeter(name=group.name, kind=group.kind, region=group.region, required=required, **values)


def _describe(
    cells: measure.Cells, typical: tuple[str, float, float, float], note: Callable[[str, str, str, Any], None]
) -> None:
    """Faces, cells and layers, for models that read the geometry; the matter of layers is `typical` of their kind."""
    material, *per_mm, cell_size = typical
    for field, value in cells.face.items():
        how = ("measured", "by the layers") if cells.on_layers else ("guessed", "the hits lie on no layers")
        note(field, *how, value)
    how = ("measured", "mm") if cells.size else ("fill in", "mm; too few cells are hit")
    note("cell_size", *how, cells.size or cell_size)
    layers = []
    for count, pitch in cells.pitches:
        radiation, interaction = (float(f"{lengths * pitch:.3g}") for lengths in per_mm)
        layers.append(Layers(count=count, pitch=pitch, radiation_lengths=radiation, interaction_lengths=interaction))
    counted = "counts and pitches are measured" if cells.on_layers else "one, as deep as the hits"
    note("layers", "fill in", f"{counted}; lengths as of {material}", tuple(layers))


def _with_common_encoding(calorimeters: list[Calorimeter], notes: Notes) -> tuple[Calorimeter, ...]:
    """Calorimeters whose cell encoding was not found get the one that all others have."""
    known = {part.cell_encoding: part.name for part in calorimeters if part.cell_encoding is not None}
    for i, calorimeter in enumerate(calorimeters):
        field = f"calorimeters.{calorimeter.name}.cell_encoding"
        if calorimeter.cell_encoding is None and len(known) == 1 and field in notes:
            ((encoding, name),) = known.items()
            calorimeters[i] = dataclasses.replace(calorimeter, cell_encoding=encoding)
            notes[field] = Note("guessed", f"as in {name}")
    return tuple(calorimeters)


def _truth_tracks(sources: Sources, sides: int | None, notes: Notes) -> TruthTracking | None:
    """How tracks are made from Monte Carlo particles; None without simulated tracker hits."""
    if not sources.sim_tracker_hits:
        return None
    like = load_detector(TRUTH_TRACKS_OF).truth_tracks
    assert like is not None
    notes["truth_tracks.sim_tracker_hits"] = Note("found", "all simulated tracker hits")
    if sides is not None:
        notes["truth_tracks.sides"] = Note("measured", "ECAL barrel")
    for field in ("min_layers", "max_vertex_radius", "inverse_pt", "angle", "impact"):
        notes[f"truth_tracks.{field}"] = Note("fill in", f"this is {TRUTH_TRACKS_OF}'s; for --truth-tracks only")
    return dataclasses.replace(like, sim_tracker_hits=sources.sim_tracker_hits, sides=sides)


def _note_collections(sources: Sources, notes: Notes) -> None:
    digitised = any(group.of(simulated=False) for group in sources.groups)
    # Contributions link simulated hits to particles; the reference is optional.
    optional = {"references": True, "hit_links": not digitised, "track_links": not sources.named["tracks"]}
    for field, (how, what) in COLLECTIONS.items():
        if sources.named[field]:
            notes[field] = Note(how, what)
        elif not optional.get(field):
            notes[field] = Note("fill in", f"the file has no {what.split(';')[0]}")


def _field(file: PodioFile, detector: Detector, entries: int, notes: Notes, *, given: float | None) -> float:
    """The field as `given`, else its most certain value, T; the note has all that the file tells of it."""
    estimates = measure.measure_field(file, detector, entries)
    said = [
        f"{value:.4g} +- {uncertainty:.1g} from {source}" if uncertainty else f"{value:.4g} from {source}"
        for value, uncertainty, source in estimates
    ]
    if given is not None:
        notes["b_field"] = Note("found", "; ".join(("as given", *said)))
        return given
    if not estimates:
        raise InputError(
            f"nothing in the file tells the field: fewer than {measure.MIN_TRACKS} tracks with links to Monte Carlo"
            f" particles in {entries} entries, and no parameter of that name; give the field in T with --b-field",
            file=file.path,
        )
    best, uncertainty, _ = estimates[0]
    nominal = ("better: the nominal value",) if uncertainty else ()
    notes["b_field"] = Note("measured" if uncertainty else "found", "; ".join((*said, *nominal)))
    return float(f"{best:.4g}")


def _with_hadron_scale(file: PodioFile, detector: Detector, entries: int, notes: Notes) -> Detector:
    """The detector with the scale of hadrons in its HCALs, by isolated tracks."""
    scale, how = measure.measure_hadron_scale(file, detector, entries)
    known = not math.isnan(scale)
    note = Note("measured", how) if known else Note("fill in", f"{how}; 1 is ild_g4's, CLD's is 0.79")
    calorimeters = []
    for calorimeter in detector.calorimeters:
        if calorimeter.kind == "hcal":
            notes[f"calorimeters.{calorimeter.name}.hadron_scale"] = note
            calorimeter = dataclasses.replace(calorimeter, hadron_scale=round(scale, 2) if known else 1.0)
        calorimeters.append(calorimeter)
    return dataclasses.replace(detector, calorimeters=tuple(calorimeters))


def write_draft(draft: DetectorDraft, path: str | Path, *, force: bool = False) -> None:
    """Write a draft as a file for ``--detector``; one that is there, perhaps filled in, is replaced by `force` only."""
    with replacing(path, inputs=[draft.path], force=force) as partial:
        partial.write_text(draft_to_yaml(draft), encoding="utf-8")


def draft_to_yaml(draft: DetectorDraft) -> str:
    """The text of the file, from which `pflow.physics.detector.load_detector` gives the drafted detector."""
    lines = [
        f"# Drafted by pflow detector from {Path(draft.path).name}, {measure.counted(draft.entries, 'event')}.",
        "# Fields, meaning and units (mm, T, GeV): pflow/physics/detector.py. How a value was found stands behind it:",
        "# found (in the file), measured (with hits and tracks), guessed (check it), FILL IN (the file cannot tell).",
        *_lines(draft.detector, "", draft.notes),
    ]
    if draft.left_out:
        lines += ["# Left out:", *(f"#   {name}: {reason}" for name, reason in sorted(draft.left_out.items()))]
    return "\n".join(lines) + "\n"


def _lines(described: Detector | Calorimeter | TruthTracking, prefix: str, notes: Notes) -> Iterator[str]:
    """One line a field; fields at their default are left out unless there is a note."""
    for field in sorted(dataclasses.fields(described), key=lambda field: field.name in LAST):
        value, note = getattr(described, field.name), notes.get(f"{prefix}{field.name}")
        if field.name == "calorimeters":
            yield "calorimeters:"
            for calorimeter in value:
                for number, line in enumerate(_lines(calorimeter, f"calorimeters.{calorimeter.name}.", notes)):
                    yield f"  {' ' if number else '-'} {line}"
        elif isinstance(value, TruthTracking):
            yield f"{field.name}:"
            yield from (f"  {line}" for line in _lines(value, f"{field.name}.", notes))
        elif note is not None or value != field.default:
            plain = to_plain(described)[field.name]
            text = yaml.safe_dump(plain, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()
            mark = "" if note is None else f"  # {note.how.upper() if note.how == 'fill in' else note.how}: {note.text}"
            yield f"{field.name}: {text}{mark}"
