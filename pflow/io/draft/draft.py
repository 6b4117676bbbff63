"""Draft the description of a podio file's detector, with a note on how each value was found.

`collect` chooses the collections, `measure` finds lengths, sides, layers, digitisation, scale of hadrons, field. The
user gives what the file does not contain (materials, field, place of collections); values that stay unknown are null.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import yaml

from pflow.config import to_plain
from pflow.errors import ConfigError, InputError, nearest
from pflow.io.atomic import replacing
from pflow.io.draft import measure
from pflow.io.draft.collect import Group, Sources, collect
from pflow.io.draft.measure import Cells, counted, measure_cells
from pflow.io.edm4hep.podio import PodioFile
from pflow.io.open import sniff
from pflow.io.root import open_root
from pflow.physics.detector import HADRON_SCALES, Calorimeter, Detector, Layers, TruthTracking, load_detector
from pflow.physics.materials import matter_of_layers

COLLECTIONS = {  # fields of a detector that name collections, and what these hold; "guessed": of several, one is read
    "tracks": ("guessed", "tracks; the first that a file holds is read"),
    "truth_particles": ("found", "Monte Carlo particles"),
    "hit_links": ("found", "links from hits to Monte Carlo particles"),
    "track_links": ("found", "links from tracks to Monte Carlo particles"),
    "references": ("guessed", "particles of another algorithm"),
}

T = TypeVar("T")

UNLIKE = 50.0  # endcaps whose first hits differ by more than this in |z| begin at different |z|, mm
GAP = 3.0  # a pitch above this many median pitches is a gap
LAST = ("calorimeters", "tracks", "truth_tracks", "tracker_hits")  # fields that are written behind the lengths
TRUTH_TRACKS = ("min_layers", "max_vertex_radius", "inverse_pt", "angle", "impact")


class Note(NamedTuple):
    """How a value was found: ``found`` in the file, ``measured``, ``given``, ``guessed``, to ``fill in``; and where."""

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """What the file cannot tell: ``pflow detector --help`` explains the options of these names."""

    name: str | None = None
    b_field: float | None = None  # T
    absorber: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by calorimeter or kind
    sim_scale: Mapping[str, float] = dataclasses.field(default_factory=dict)  # by calorimeter or kind
    place: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by collection
    tracks_as: str | None = None  # built-in detector, or file of a detector, with `truth_tracks`


def draft_detector(path: str | PathLike[str], answers: Answers = Answers(), *, max_entries: int = 100) -> DetectorDraft:
    """Draft the description of an EDM4hep or other podio file's detector from its first `max_entries`.

    Calorimeters without hits there are left out. InputError: not such a file, no hits of an ECAL, or no estimate of the
    field. ConfigError: an answer that does not fit the file.
    """
    with open_root(path) as directory:
        if sniff(directory, str(path)) == "flat":
            message = "a flat ntuple numbers its calorimeters, and does not say which they are: write a description"
            raise InputError(
                f"{message} as in a file of configs/detector, in the order of the layout's codes", file=path
            )
        file = PodioFile(directory, path)
        return _draft(file, answers, min(max_entries, file.columns.num_entries))


def _draft(file: PodioFile, answers: Answers, entries: int) -> DetectorDraft:
    sources, notes = collect(file, entries, answers.place), Notes()
    known = [name for group in sources.groups for name in (group.name, group.kind)]
    for option, given in (("absorber", answers.absorber), ("sim-scale", answers.sim_scale)):
        for name in set(given) - set(known):
            message = f"--{option} {name}=...: no such calorimeter; drafted are {', '.join(dict.fromkeys(known))}"
            raise ConfigError(message, suggestions=nearest(name, known))
    calorimeters = {
        group.name: _calorimeter(group, file, notes, answers) for group in sources.groups if group.kind != "muon"
    }
    lengths, sides = _lengths(file, sources, calorimeters, entries, notes)
    for group in (group for group in sources.groups if group.kind == "muon"):
        slope = lengths["ecal_inner_radius"] / lengths["ecal_inner_z"]
        calorimeters[group.name] = _calorimeter(_muon_system(group, slope), file, notes, answers, slope)
    calorimeters = _with_sizes(calorimeters, sources, notes)
    stated = file.parameters.get("detectorName", ())
    if stated and not answers.name:
        notes["name"] = Note("found", "detectorName of the simulation")
    detector = Detector(
        name=answers.name or (stated[0] if stated else Path(file.path).name.split(".")[0]),
        description=f"drafted from {Path(file.path).name}",
        b_field=answers.b_field or 1.0,  # until it is measured
        calorimeters=tuple(calorimeters.values()),
        truth_tracks=_truth_tracks(sources, sides, notes, answers.tracks_as),
        **lengths,
        **sources.named,
    )
    digitised = any(group.of(simulated=False) for group in sources.groups)
    # Contributions link simulated hits to particles; the reference is optional.
    optional = {"references": True, "hit_links": not digitised, "track_links": not sources.named["tracks"]}
    for field, (how, what) in COLLECTIONS.items():
        if sources.named[field]:
            notes[field] = Note(how, what)
        elif not optional.get(field):
            notes[field] = Note("fill in", f"the file has no {what.split(';')[0]}")
    detector = dataclasses.replace(detector, b_field=_field(file, detector, entries, notes, given=answers.b_field))
    detector = _with_scales(file, detector, entries, notes)
    return DetectorDraft(detector=detector, notes=notes, left_out=sources.left_out, path=file.path, entries=entries)


def _answer(group: Group, answers: Mapping[str, T]) -> T | None:
    """The answer for a calorimeter, by its name or else its kind."""
    return answers.get(group.name, answers.get(group.kind))


def _muon_system(group: Group, slope: float) -> Group:
    """A muon system with its layers measured where most hits are, in the barrel or the endcaps.

    These are told apart by `slope`, the ratio of radius and |z| of the ECAL's corner.
    """
    sample = group.cells.sample
    in_barrel = sample.radius > slope * np.abs(sample.position[:, 2])
    region = "barrel" if 2 * in_barrel.sum() > len(sample) else "endcap"
    cells = measure_cells([sample[in_barrel if region == "barrel" else ~in_barrel]], region)
    return group if cells is None else group._replace(cells=cells._replace(sample=sample))


def _lengths(
    file: PodioFile, sources: Sources, calorimeters: Mapping[str, Calorimeter], entries: int, notes: Notes
) -> tuple[dict[str, Any], int | None]:
    """Lengths and symmetry of a `Detector`; and sides of the ECAL barrel, if certain and one faces x."""

    def innermost(kind: str, region: str) -> Group | None:
        return next((group for group in sources.groups if (group.kind, group.region) == (kind, region)), None)

    barrel, endcap = innermost("ecal", "barrel"), innermost("ecal", "endcap")
    lengths: dict[str, Any] = {}

    def edge(field: str, group: Group, calorimeter_field: str) -> None:
        """Where a calorimeter begins, mm."""
        front = getattr(calorimeters[group.name], calorimeter_field)
        lengths[field], notes[field] = front, notes[f"calorimeters.{group.name}.{calorimeter_field}"]

    if barrel is not None:
        edge("ecal_inner_radius", barrel, "inner_radius")
        all_barrels = [group for group in sources.groups if (group.kind, group.region) == ("ecal", "barrel")]
        last = max(all_barrels, key=lambda group: group.cells.back)
        depth = sum(layers.count * layers.pitch for layers in calorimeters[last.name].layers)
        front = calorimeters[last.name].inner_radius or 0.0
        lengths["ecal_outer_radius"] = round(max(last.cells.back, front + depth), 1)
        notes["ecal_outer_radius"] = Note("measured", f"behind the last hits or layers of {last.name}")
    elif endcap is not None:
        outer = float(endcap.cells.sample.radius.max())
        lengths["ecal_inner_radius"] = round(outer, 1)
        lengths["ecal_outer_radius"] = round(outer + max(endcap.cells.back - endcap.cells.front, 1.0), 1)
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
        edge("ecal_inner_z", endcap, "inner_z")
        z = endcap.cells.sample.position[:, 2]
        if (z < 0).any() and (z > 0).any() and abs(z[z > 0].min() + z[z < 0].max()) > UNLIKE:
            fronts = f"the first hits of the endcaps are at z = {z[z < 0].max():.0f} and {z[z > 0].min():.0f} mm"
            notes["ecal_inner_z"] = Note("guessed", f"{fronts}; this is the nearer one")
    elif barrel is not None:
        lengths["ecal_inner_z"] = round(max(float(abs(barrel.cells.sample.position[:, 2]).max()), 1.0), 1)
        seen = "no hits in the endcaps; this is how far along z the barrel has hits"
        notes["ecal_inner_z"] = Note("fill in", seen)
    for field, region in (("inner_radius", "barrel"), ("inner_z", "endcap")):
        hcal = innermost("hcal", region)
        if hcal is not None and getattr(calorimeters[hcal.name], field) > lengths[f"ecal_{field}"]:
            edge(f"hcal_{field}", hcal, field)
    barrels = {"ECAL": barrel, "HCAL": innermost("hcal", "barrel")}
    shapes = {name: group.cells.shape for name, group in barrels.items() if group is not None and group.cells.shape}
    lengths["phi_symmetry"] = 1
    if "ECAL" not in shapes:
        text = "1 stands for no symmetry: the hits do not show the sides of the barrel"
        notes["phi_symmetry"] = Note("fill in", text)
        return lengths, None
    described = []
    for name, shape in shapes.items():
        sides = " or ".join(f"{sides} sides" if sides else "a cylinder" for sides in shape.as_good)
        described.append(f"{name} {sides} ({shape.on_layers:.1%} of hits on layers)")
    certain = all(len(shape.as_good) == 1 for shape in shapes.values())
    text = f"barrels: {', '.join(described)}; endcaps not looked at"
    notes["phi_symmetry"] = Note("measured" if certain else "guessed", text)
    lengths["phi_symmetry"] = math.gcd(*(sides for shape in shapes.values() for sides in shape.as_good)) or None
    shape = shapes["ECAL"]
    return lengths, None if len(shape.as_good) > 1 or shape.phase else shape.sides or None


def _calorimeter(group: Group, file: PodioFile, notes: Notes, answers: Answers, slope: float = 1.0) -> Calorimeter:
    """The calorimeter of a group; `slope` of a muon system as of `_muon_system`."""
    digitised, simulated = (tuple(sample.name for sample in group.of(simulated=flag)) for flag in (False, True))
    values: dict[str, Any] = {"collections": digitised, "sim_collections": simulated}

    def note(field: str, how: str, text: str, value: Any = None) -> None:
        notes[f"calorimeters.{group.name}.{field}"] = Note(how, text)
        if value is not None:
            values[field] = value

    how, known_by = group.known_by
    note("kind", {"type": "found", "link": "found", "name": "guessed"}.get(how, how), known_by)
    if not digitised:
        note("collections", "fill in", "digitised hits, for files that have them")
    digitisation = measure.measure_digitisation(group.samples)
    if digitisation is not None:
        seen = f"{counted(digitisation.n_cells, 'cell')} with digitised and simulated energy"
        note("sim_scale", "measured", seen, float(f"{digitisation.scale:.6g}"))
        unit = 10.0 ** (math.floor(math.log10(digitisation.threshold)) - 1)
        threshold = float(f"{math.floor(digitisation.threshold / unit) * unit:.2g}")
        note("sim_threshold", "measured", "GeV, the smallest simulated energy of these cells, rounded down", threshold)
    elif simulated:
        scale = _answer(group, answers.sim_scale)
        what = "factor from deposited to calibrated energy, without which simulated hits are not read"
        note("sim_scale", *(("fill in", what) if scale is None else ("given", "--sim-scale")), scale)
        note("sim_threshold", "fill in", "GeV, deposited energy from which on a cell is read out")
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
    elif group.cells.sample.layer is None:
        note("cell_encoding", "fill in", "bit field of the cell ids; without it layers are not known")
    cells = group.cells
    absorber = _answer(group, answers.absorber)
    layers, text = _layers(cells, absorber)
    note("layers", "given" if absorber else "fill in", text, layers)
    # Without layers, hits are at cell centres: the first is as far behind the face as the last before the end.
    depth, seen = sum(part.count * part.pitch for part in layers), cells.sample.seen
    ahead = 0.0 if cells.pitches else max(0.0, depth - cells.back + cells.front) / 2
    faces = {"inner_radius" if group.region == "barrel" else "inner_z": cells.front - ahead}
    how, text = "guessed", f"99.5% of {seen} are behind it"
    if group.kind == "muon":  # a muon system may have both
        radius, length = cells.sample.radius, np.abs(cells.sample.position[:, 2])
        behind = {"inner_radius": radius[radius > slope * length], "inner_z": length[radius <= slope * length]}
        faces = {name: float(np.quantile(part, measure.OUTLIERS)) for name, part in behind.items() if len(part)}
    elif cells.pitches:
        first = f"the first of {counted(len(cells.pitches), 'layer')}, most of {np.median(cells.pitches):.2f} mm"
        how, text = "measured", f"half a layer before {first}; {seen}"
    for field, face in faces.items():
        note(field, how, text, round(face, 1))
    if cells.shape is not None:
        note("sides", "measured", "0: a cylinder" if not cells.shape.sides else "by the layers", cells.shape.sides)
        note("phase", "measured", "rad, azimuth of the normal of a side", round(cells.shape.phase, 4))
    note(
        "cell_size",
        *(("measured", "mm") if cells.size else ("fill in", "mm; too few cells are hit")),
        cells.size or None,
    )
    required = group.kind != "muon" and group.region != "other"
    return Calorimeter(name=group.name, kind=group.kind, region=group.region, required=required, **values)


def _with_sizes(calorimeters: Mapping[str, Calorimeter], sources: Sources, notes: Notes) -> dict[str, Calorimeter]:
    """Where too few hits show the cell size, take it from a calorimeter of the same kind, or leave it out."""
    described = {}
    for group in sources.groups:
        part, field = calorimeters[group.name], f"calorimeters.{group.name}.cell_size"
        alike = [c for c in calorimeters.values() if c.kind == part.kind and c.cell_size is not None]
        if part.cell_size is None and alike:
            notes[field] = Note("guessed", f"as of {alike[-1].name}; {notes[field].text}")
            part = dataclasses.replace(part, cell_size=alike[-1].cell_size)
        if part.cell_size is None and not part.required:  # it would stop the others
            reason = f"{group.cells.sample.seen}, too few for the size of its cells (--entries)"
            sources.left_out.update(dict.fromkeys((*part.collections, *part.sim_collections), reason))
            for noted in [noted for noted in notes if noted.startswith(f"calorimeters.{group.name}.")]:
                del notes[noted]
        else:
            described[group.name] = part
    return described


def _layers(cells: Cells, absorber: str | None) -> tuple[tuple[Layers, ...], str]:
    """Layers, their lengths null without `absorber`, and how they were found.

    If the hits show no layers, the absorber's layers are evenly spaced over the hits' depth.
    """
    pitches, extent = list(cells.pitches), cells.back - cells.front
    seen = f"{counted(len(pitches), 'layer')} with hits" if pitches else "no layers in the hits"
    if cells.on_layers and not pitches:
        seen = f"one layer, at {(cells.front + cells.back) / 2:.0f} mm, in the hits"
    gaps = [i for i, pitch in enumerate(pitches) if pitch > GAP * np.median(pitches)]
    if gaps:
        seen += f"; {', '.join(f'{pitches[i]:g} mm' for i in gaps)} between two of them is a gap"
    if absorber is None:
        asked = "--absorber CALORIMETER=MATERIAL:MM gives the lengths"
        if not pitches:
            return (), f"{seen}, so their depth is not known; --absorber ecal=PbWO4:220 and the like gives it"
        matter: Any = [(None, None, None)] * len(pitches)
        text = f"{seen}; {asked}"
    else:
        matter = matter_of_layers(absorber, max(len(pitches), 1)).tolist()
        text = f"{seen}; lengths of {absorber} (PDG), without the rest of the layer"
        if len(matter) > len(pitches) > 0:
            text += f"; the last {len(matter) - len(pitches)} of {len(matter)} without hits"
        pitches += [pitches[-1] if pitches else extent / len(matter)] * (len(matter) - len(pitches))
        for i, (thickness, *_) in enumerate(matter):
            if cells.pitches and thickness > pitches[i] + 0.05:
                message = f"absorber '{absorber}': {thickness:g} mm in a layer of {pitches[i]:g} mm"
                raise ConfigError(f"{message} ({counted(len(cells.pitches), 'layer')} measured)")
            pitches[i] = round(max(pitches[i], thickness), 2)
    rows = [(pitch, *lengths) for pitch, (_, *lengths) in zip(pitches, matter, strict=True)]
    layers = []
    for (pitch, radiation, interaction), same in itertools.groupby(rows):
        lengths = [None if value is None else float(f"{value:.4g}") for value in (radiation, interaction)]
        count = len(list(same))
        layers.append(Layers(count=count, pitch=pitch, radiation_lengths=lengths[0], interaction_lengths=lengths[1]))
    return tuple(layers), text


def _truth_tracks(sources: Sources, sides: int | None, notes: Notes, like: str | None) -> TruthTracking | None:
    """How tracks are made from true particles, as in the detector `like`; None without simulated tracker hits."""
    if not sources.sim_tracker_hits:
        text = "the file has no simulated tracker hits, so no tracks are made from Monte Carlo particles"
        sources.left_out["truth_tracks"] = text
        if like is not None:
            raise ConfigError(f"--tracks-as {like}: {text}")
        return None
    notes["truth_tracks.sim_tracker_hits"] = Note("found", "all simulated tracker hits")
    if sides is not None:
        notes["truth_tracks.sides"] = Note("measured", "ECAL barrel")
    settings = TruthTracking(sim_tracker_hits=())
    if like is not None:
        known = load_detector(like).truth_tracks
        if known is None:
            raise ConfigError(f"--tracks-as {like}: this detector does not describe truth_tracks")
        settings = known
    for field in TRUTH_TRACKS:
        unknown = "for --truth-tracks only; --tracks-as cld takes CLD's"
        notes[f"truth_tracks.{field}"] = Note("given", f"{like}'s") if like else Note("fill in", unknown)
    return dataclasses.replace(settings, sim_tracker_hits=sources.sim_tracker_hits, sides=sides)


def _field(file: PodioFile, detector: Detector, entries: int, notes: Notes, *, given: float | None) -> float:
    """Field along z, T: as given, or the most certain estimate."""
    estimates = measure.measure_field(file, detector, entries)
    said = [
        f"{value:.4g} +- {uncertainty:.1g} from {source}" if uncertainty else f"{value:.4g} from {source}"
        for value, uncertainty, source in estimates
    ]
    if given is not None:
        notes["b_field"] = Note("given", "; ".join(("--b-field", *said)))
        return given
    if not estimates:
        raise InputError(
            f"nothing in the file tells the field: fewer than {measure.MIN_TRACKS} tracks with links to Monte Carlo"
            f" particles in {entries} entries, and no parameter of that name; give the field in T with --b-field",
            file=file.path,
        )
    best, uncertainty, source = estimates[0]
    if not 1 / measure.MAX_FIELD < best < measure.MAX_FIELD:
        raise InputError(
            f"{source} give a field of {best:.4g} T: units are not EDM4hep's, mm and GeV (curvatures in 1/cm make it "
            "10 times too large, momenta in MeV 1,000 times); correct the file, or give the field in T with --b-field",
            file=file.path,
        )
    nominal = ("better: the nominal value",) if uncertainty else ()
    notes["b_field"] = Note("measured" if uncertainty else "found", "; ".join((*said, *nominal)))
    return float(f"{best:.4g}")


def _with_scales(file: PodioFile, detector: Detector, entries: int, notes: Notes) -> Detector:
    """The detector with ECAL and HCAL scales from isolated tracks; null for an HCAL without enough of them."""
    (electron, of_electrons), (hadron, of_hadrons) = measure.measure_scales(file, detector, entries)
    low, high = HADRON_SCALES
    if hadron is not None and not low <= hadron <= high:
        hadron, of_hadrons = None, f"{of_hadrons}: not plausible; are energies in GeV, and calibrated?"
    calorimeters = []
    for part in detector.calorimeters:
        if part.kind == "hcal":
            how = (
                ("fill in", f"{of_hadrons}; 1 is ild_g4's, CLD's is 0.79")
                if hadron is None
                else ("measured", of_hadrons)
            )
            notes[f"calorimeters.{part.name}.hadron_scale"] = Note(*how)
            part = dataclasses.replace(part, hadron_scale=None if hadron is None else round(hadron, 2))
        elif part.kind == "ecal":
            how = (
                ("guessed", f"energies as in the file; {of_electrons}")
                if electron is None
                else ("measured", of_electrons)
            )
            notes[f"calorimeters.{part.name}.electron_scale"] = Note(*how)
            part = dataclasses.replace(part, electron_scale=1.0 if electron is None else round(electron, 2))
        calorimeters.append(part)
    return dataclasses.replace(detector, calorimeters=tuple(calorimeters))


def write_draft(draft: DetectorDraft, path: str | Path, *, force: bool = False) -> None:
    """Write a draft as a file for ``--detector``; one that is there, perhaps filled in, is replaced by `force` only."""
    with replacing(path, inputs=[draft.path], force=force) as partial:
        partial.write_text(draft_to_yaml(draft), encoding="utf-8")


def draft_to_yaml(draft: DetectorDraft) -> str:
    """The text of the file, from which `pflow.physics.detector.load_detector` gives the drafted detector."""
    lines = [
        f"# Drafted by pflow detector from {Path(draft.path).name}, {counted(draft.entries, 'event')}.",
        "# Fields, meaning and units (mm, T, GeV): pflow/physics/detector.py. How a value was found stands behind it:",
        "# given, found (in the file), measured (with hits and tracks), guessed (check it), FILL IN (null: not known).",
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
