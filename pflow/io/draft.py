"""Draft the description of a podio file's detector, with a note on how each value was found.

`collect` chooses the collections by their types and names; lengths, sides, layers, digitisation, scales and field are
measured (`pflow.io.draft_measure`). The user gives what the file does not contain (materials, field, place of
collections whose names do not tell it); values that stay unknown are null.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml

from pflow.config import config_dir, to_plain
from pflow.errors import ConfigError, InputError, nearest
from pflow.event import jagged
from pflow.io import draft_measure as measure
from pflow.io.draft_measure import CELL, Cells, HitSample, counted, measure_cells
from pflow.io.edm4hep.podio import Collection, PodioFile, count_objects, link_pairs, list_collections
from pflow.io.edm4hep.reader import COPY, FORWARD
from pflow.io.open import sniff
from pflow.io.root import open_root
from pflow.physics import geometry
from pflow.physics.detector import (
    FACES,
    KINDS,
    REGIONS,
    Calorimeter,
    Detector,
    Layers,
    TruthTracking,
    load_detector,
    matter_of_layers,
)

KIND_NAMES = (("lumi", r"lumi|beamcal"), ("muon", r"muon|yoke"), ("hcal", r"hcal"), ("ecal", r"ecal|emc|crystal"))
REGION_NAMES = (("other", r"ring|plug|other"), ("barrel", r"barrel"), ("endcap", r"endcap"))
"""Patterns of collection names, in lower case, by kind and region of calorimeter; the first match counts."""

FLOW = re.compile(r"pfo|pandora|particleflow", re.IGNORECASE)  # names of particles of a particle flow algorithm
NOT_FIRST = re.compile(r"unfiltered|truth|generated", re.IGNORECASE)  # names of EICrecon's preliminary and true objects

COLLECTIONS = {  # fields of a detector that name collections, and what these hold; "guessed": of several, one is read
    "tracks": ("guessed", "tracks; the first that a file holds is read"),
    "truth_particles": ("found", "Monte Carlo particles"),
    "hit_links": ("found", "links from hits to Monte Carlo particles"),
    "track_links": ("found", "links from tracks to Monte Carlo particles"),
    "references": ("guessed", "particles of another algorithm"),
}

SCALES = {
    "ecal": ("electron_scale", 1.0, "guessed", "energies as in the file; {}"),
    "hcal": ("hadron_scale", None, "fill in", "{}; 1 is ild_g4's, CLD's is 0.79"),
}
"""Scale by kind of calorimeter; and where it cannot be measured its value and note, with the reason."""

IF_WHOLE = "if each measures the whole energy, as in ePIC, delete one"
MIN_COPIED = 20  # hits that a collection needs to be recognised as a copy
GAP = 3.0  # a pitch above this many median pitches is a gap
LAST = ("calorimeters", "tracks", "truth_tracks", "tracker_hits")  # fields that are written behind the lengths


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
            message = "a flat ntuple numbers its calorimeters, and does not say which they are: write a description as"
            example = config_dir() / "detector" / "ild_g4.yaml"
            raise InputError(f"{message} in {example}, in the order of the layout's codes", file=path)
        file = PodioFile(directory, path)
        return _draft(file, answers, min(max_entries, file.num_entries))


def _draft(file: PodioFile, answers: Answers, entries: int) -> DetectorDraft:
    groups, named, left_out = collect(file, entries, answers.place)
    notes, calorimeters = Notes(), dict[str, Calorimeter]()
    seen = f". Left out: {'; '.join(map(': '.join, left_out.items()))}" if left_out else ""
    if not any(group.kind == "ecal" and group.region in ("barrel", "endcap") for group in groups):
        message = f"no hits of an ECAL barrel or endcap in the first {entries} entries, so it cannot be described"
        raise InputError(f"{message}{seen}", file=file.path)
    known = [name for group in groups for name in (group.name, group.kind)]
    for option, given in (("absorber", answers.absorber), ("sim-scale", answers.sim_scale)):
        for name in set(given) - set(known):
            message = f"--{option} {name}=...: no such calorimeter; drafted are {', '.join(dict.fromkeys(known))}"
            mine = (f"{of}: {why}" for of, why in left_out.items() if name.startswith(_named(of)[0] or name))
            raise ConfigError("; ".join((message, *mine)), suggestions=nearest(name, known))

    def describe(chosen: Iterable[Group], slope: float = 0.0) -> None:
        for group in chosen:
            alike = [c for c in calorimeters.values() if c.kind == group.kind and c.cell_size is not None]
            part, of_part = _calorimeter(group, file, answers, slope, alike[-1] if alike else None)
            if part.cell_size is None and alike:
                of_part["cell_size"] = Note("guessed", f"as of {alike[-1].name}; {of_part['cell_size'].text}")
                part = dataclasses.replace(part, cell_size=alike[-1].cell_size)
            if part.cell_size is None and not part.required:  # it would stop the others
                reason = f"{group.cells.sample.seen}, too few for the size of its cells (--entries)"
                left_out.update(dict.fromkeys((*part.collections, *part.sim_collections), reason))
            else:
                calorimeters[group.name] = part
                notes.update({f"calorimeters.{group.name}.{field}": note for field, note in of_part.items()})

    # The muon system last: it needs the corner of the ECAL, which the other calorimeters give.
    describe(group for group in groups if group.kind != "muon")
    lengths, sides = _lengths(groups, calorimeters, notes)
    slope = lengths["ecal_inner_radius"] / lengths["ecal_inner_z"]
    describe((group for group in groups if group.kind == "muon"), slope)
    stated = file.parameters.get("detectorName", ())
    if stated and not answers.name:
        notes["name"] = Note("found", "detectorName of the simulation")
    detector = Detector(
        name=answers.name or (stated[0] if stated else Path(file.path).name.split(".")[0]),
        description=f"drafted from {Path(file.path).name}",
        b_field=answers.b_field or 1.0,  # until it is measured
        calorimeters=tuple(calorimeters.values()),
        truth_tracks=_truth_tracks(named.pop("sim_tracker_hits"), sides, notes, left_out, answers.tracks_as),
        **lengths,
        **named,
    )
    # Contributions link simulated hits to particles; the reference is optional.
    digitised = any(part.collections for part in calorimeters.values())
    optional = {"references": True, "hit_links": not digitised, "track_links": not named["tracks"]}
    for field, (how, what) in COLLECTIONS.items():
        if named[field]:
            notes[field] = Note(how, what)
        elif not optional.get(field):
            notes[field] = Note("fill in", f"the file has no {what.split(';')[0]}")
    # Field and scales are measured by reading events, for which a detector must be there already.
    detector = dataclasses.replace(detector, b_field=_field(file, detector, entries, notes, given=answers.b_field))
    scales = measure.measure_scales(file, detector, entries)
    for part in detector.calorimeters:
        if part.kind in SCALES:
            field, default, how, text = SCALES[part.kind]
            scale, said = scales[field]
            note = Note(how, text.format(said)) if scale is None else Note("measured", said)
            notes[f"calorimeters.{part.name}.{field}"] = note
            value: Any = {field: default if scale is None else round(scale, 2)}
            calorimeters[part.name] = dataclasses.replace(part, **value)
    detector = dataclasses.replace(detector, calorimeters=tuple(calorimeters.values()))
    return DetectorDraft(detector=detector, notes=notes, left_out=left_out, path=file.path, entries=entries)


class Group(NamedTuple):
    """Digitised and simulated collections that make one calorimeter, and its layers."""

    name: str
    kind: str
    region: str
    samples: list[HitSample]
    place: Note  # how its place is known
    cells: Cells


def collect(file: PodioFile, stop: int, given: Mapping[str, str]) -> tuple[list[Group], dict[str, Any], dict[str, str]]:
    """Choose the collections by looking at the first `stop` entries; `given`: kind_region of some collections.

    The calorimeters: ECAL, HCAL, muon system, each from barrel to endcap to others, from the inside. Names of other
    collections by field of the description, the preferred one first. The reason for each that is left out.
    """
    listed = list_collections(file)
    left_out = {info.name: f"{info.type}, {info.unreadable}" for info in listed if info.unreadable}
    of: defaultdict[str, list[str]] = defaultdict(list)
    samples, counts = [], {}
    # A subset collection only points at objects of others: its hits would count twice.
    for info in (info for info in listed if not info.unreadable and not info.subset):
        of[info.kind].append(info.name)
        if info.kind in ("CalorimeterHit", "SimCalorimeterHit"):
            samples.append(_read_sample(file, info, stop))
        elif info.kind in ("MCParticle", "ReconstructedParticle", "TrackerHit"):
            counts[info.name] = count_objects(file, info, stop)
    hits = [sample.name for sample in samples]
    for name in given:
        if name not in hits:
            message = f"--place: no collection of hits '{name}' in {file.path}"
            raise ConfigError(message, suggestions=nearest(name, hits))
    groups = _groups(samples, given, left_out, stop)
    digitised = [sample.name for group in groups for sample in group.samples if not sample.simulated]
    pairs = {name: link_pairs(file, name, stop) for name in of["Link"]}
    hit_links, of_tracks = (_choose_links(pairs, names, of["MCParticle"]) for names in (digitised, of["Track"]))
    linked = Counter[str]()
    for link in (*hit_links, *of_tracks):
        for pair, number in pairs[link].items():
            linked.update(dict.fromkeys(pair, number))
    flow = [name for name in of["ReconstructedParticle"] if counts[name] or FLOW.search(name)]

    def order(name: str, number: int) -> tuple[Any, ...]:
        # Of equally many, CLIC's PandoraPFOs are before LooseSelectedPandoraPFOs.
        return NOT_FIRST.search(name) is not None, -number, len(name), name

    tracks = sorted(
        of["Track"], key=lambda name: (name not in linked, "refit" not in name.lower(), *order(name, linked[name]))
    )
    named = {
        "tracks": tracks,
        "tracker_hits": [name for name in of["TrackerHit"] if counts[name] or name in file.encodings],
        "truth_particles": sorted(of["MCParticle"], key=lambda name: (name not in linked, -counts[name], name)),
        "hit_links": hit_links,
        "track_links": _choose_links(pairs, tracks[:1], of["MCParticle"]),
        "references": sorted(flow, key=lambda name: (not FLOW.search(name), *order(name, counts[name])))[:1],
        "sim_tracker_hits": of["SimTrackerHit"],
    }
    return groups, {field: tuple(names) for field, names in named.items()}, left_out


def _read_sample(file: PodioFile, collection: Collection, stop: int) -> HitSample:
    name, span = collection.name, range(stop)

    def get(member: str, dtype: type[np.generic] = np.float64) -> npt.NDArray[Any]:
        return jagged.flat(file.get(span, name, member), dtype)

    counts = jagged.count(file.get(span, name, "energy"))
    cell = np.zeros(int(counts.sum()), CELL)
    cell["event"], cell["id"] = jagged.event_index(counts), get("cellID", np.uint64)
    position = np.stack([get(f"position.{axis}") for axis in "xyz"], axis=-1)
    layer = file.layers(span, name)
    sample = HitSample(
        name=name,
        simulated=collection.kind == "SimCalorimeterHit",
        cell=cell,
        position=position,
        energy=get("energy"),
        time=get("time") if file.columns.has(name, "time") else np.full(len(cell), np.nan),
        layer=None if layer is None or (layer == -1).all() else layer,
    )
    return sample[np.isfinite(position).all(axis=1)]


def _choose_links(
    pairs: Mapping[str, Mapping[tuple[str, str], int]], starts: Iterable[str], ends: Iterable[str]
) -> list[str]:
    """Collections of links between these collections: for each start one, so that no link counts twice.

    Names that begin with MC come last: their weights are fractions of the particle, not of the hit or track.
    """
    starts, ends, chosen = set(starts), set(ends), list[str]()
    for name in sorted(pairs, key=lambda name: (name.startswith("MC"), -sum(pairs[name].values()), name)):
        covered = {start for start, end in pairs[name] if start in starts and end in ends}
        if covered:
            chosen.append(name)
            starts -= covered
    return chosen


def _groups(samples: Sequence[HitSample], given: Mapping[str, str], left_out: dict[str, str], stop: int) -> list[Group]:
    """Group collections by place and technology into calorimeters; `left_out` gets the rest, with the reason."""
    by_place: defaultdict[tuple[str, str], list[HitSample]] = defaultdict(list)
    for sample in samples:
        found = place_of(sample, given)
        if found is None and not len(sample):
            left_out[sample.name] = f"no hits in {counted(stop, 'event')}"
        elif found is None:
            kind, region = _named(sample.name)
            flat = np.median(np.abs(sample.position[:, 2])) > np.median(sample.radius)
            example = f"{sample.name}={kind or 'ecal'}_{region or ('endcap' if flat else 'barrel')}"
            where = f"in which part of the detector is not known; --place {example} or another says it"
            left_out[sample.name] = f"{counted(len(sample), 'hit')}, {where}"
        elif len(sample) and not sample.position.any():  # k4RecCalorimeter: cells, which another collection places
            left_out[sample.name] = f"{counted(len(sample), 'hit')} without positions"
        elif found[0] == "lumi":
            left_out[sample.name] = "hits of a luminosity or other very forward calorimeter"
        else:
            by_place[found].append(sample)
    groups: list[Group] = []
    simulated = all(sample.simulated for of_place in by_place.values() for sample in of_place)
    for kind, region in sorted(by_place, key=lambda place: (KINDS.index(place[0]), REGIONS.index(place[1]))):
        distinct: list[HitSample] = []
        # The largest first: a copy holds part of the cells of the collection that it was made of.
        for sample in sorted(by_place[kind, region], key=len, reverse=True):
            larger = (prior for prior in distinct if prior.simulated == sample.simulated and len(sample) >= MIN_COPIED)
            copied = next((prior for prior in larger if np.isin(sample.cell, prior.cell).mean() > COPY), None)
            if copied is None:
                distinct.append(sample)
            else:
                left_out[sample.name] = f"holds mostly the cells of {copied.name}"
        technologies, rest = _technologies(kind, region, distinct, simulated)
        for number, (mine, cells) in enumerate(technologies, start=1):
            names = sorted(sample.name for sample in mine)
            placed = [name for name in names if name in given]
            how, by = ("given", "--place") if placed else ("guessed", "name")
            sizes = [len(sample) for sample in mine if sample.simulated == simulated and len(sample)]
            # Muon collections are joined whatever their cells, so few hits leave no doubt about them.
            if kind != "muon" and len(sizes) > 1 and min(sizes) < geometry.MIN_CELLS:
                by += f", with too few hits to tell whether the collections are alike: {IF_WHOLE} (--entries)"
            here = (group for group in groups if (group.kind, group.region) == (kind, region))
            if inside := [group.name for group in here if cells.among(group.cells)]:
                by += f", in the depth of {inside[0]}: {IF_WHOLE}"
            place = Note(how, f"{by} ({', '.join(placed or names)})")
            name = kind if kind == "muon" else f"{kind}_{region}"
            name = name if number == 1 else f"{name}_{number}"
            groups.append(Group(name, kind, region, sorted(mine, key=lambda sample: sample.name), place, cells))
        for sample in rest:
            only = f"{counted(len(sample), 'simulated hit')} without digitised ones" if len(sample) else "no hits"
            left_out[sample.name] = f"{only} in {counted(stop, 'event')}"
    return groups


def place_of(sample: HitSample, given: Mapping[str, str]) -> tuple[str, str] | None:
    """Kind and region of a collection's calorimeter, as given, else by its name; None if that does not tell.

    Hits close to the beam are of a luminosity calorimeter whatever its name.
    """
    name = sample.name
    if name in given:
        kind, _, region = given[name].partition("_")
        if kind not in KINDS or not (region in REGIONS or (kind in ("muon", "lumi") and not region)):
            wrong = f"--place {name}={given[name]}"
            raise ConfigError(f"{wrong}: expected e.g. {name}=ecal_barrel, hcal_endcap, hcal_other or muon")
        return kind, region or "other"
    if len(sample) and np.all(sample.radius < FORWARD * np.abs(sample.position[:, 2])):
        return "lumi", "endcap"
    kind, region = _named(name)
    region = "other" if kind in ("muon", "lumi") else region  # these are described as one
    return (kind, region) if kind and region else None


def _named(collection: str) -> tuple[str, str]:
    """Kind and region by the name of a collection; "" for what it does not tell."""
    kind, region = (
        next((value for value, pattern in patterns if re.search(pattern, collection.lower())), "")
        for patterns in (KIND_NAMES, REGION_NAMES)
    )
    return kind, region


def _technologies(
    kind: str, region: str, samples: Sequence[HitSample], simulated: bool
) -> tuple[list[tuple[list[HitSample], Cells]], list[HitSample]]:
    """Collections of one place by technology, from the inside, with their layers; and those without hits.

    Digitised hits decide, or `simulated` ones in a file without any. Collections whose cells or layers differ, or that
    lie behind each other, are calorimeters of their own.
    """
    found: list[tuple[list[HitSample], Cells]] = []
    others, rest = list[HitSample](), list[HitSample]()
    for sample in samples:
        cells = measure_cells([sample], region) if sample.simulated == simulated else None
        if cells is None:
            others.append(sample)
            continue
        for number, (mine, of) in enumerate(found):
            if kind == "muon" or cells.like(of):
                found[number] = [*mine, sample], measure_cells([*mine, sample], region) or of
                break
        else:
            found.append(([sample], cells))
    for sample in others:  # simulated hits of the digitised ones, and empty collections
        shared = (mine for mine, _ in found if any(np.isin(sample.cell, member.cell).any() for member in mine))
        # Empty collections share no cell with any other: they can join only where there is one technology.
        owner = found[0][0] if len(found) == 1 else next(shared, rest)
        owner.append(sample)
    return sorted(found, key=lambda pair: pair[1].front), rest


def _lengths(
    groups: Sequence[Group], calorimeters: Mapping[str, Calorimeter], notes: Notes
) -> tuple[dict[str, Any], int | None]:
    """Lengths and symmetry of a `Detector`; and sides of the ECAL barrel, if certain and one faces x."""
    # Groups of one place come from the inside to the outside: read from the end, the innermost remains.
    inner = {(group.kind, group.region): group for group in reversed(groups)}
    barrel, endcap = inner.get(("ecal", "barrel")), inner.get(("ecal", "endcap"))
    lengths: dict[str, Any] = {}

    def faces(kind: str) -> None:
        """Where the calorimeters of a kind begin, mm; an HCAL that is not behind the ECAL does not say it."""
        for region, face in FACES.items():
            if first := inner.get((kind, region)):
                front = getattr(calorimeters[first.name], face)
                if front > lengths.get(f"ecal_{face}", 0.0):
                    lengths[f"{kind}_{face}"] = front
                    notes[f"{kind}_{face}"] = notes[f"calorimeters.{first.name}.{face}"]

    faces("ecal")
    if barrel is not None:
        last = max((g for g in groups if (g.kind, g.region) == ("ecal", "barrel")), key=lambda group: group.cells.back)
        described = calorimeters[last.name]
        depth = sum(layers.count * layers.pitch for layers in described.layers)
        # The absorber may have layers behind the last one that was hit.
        lengths["ecal_outer_radius"] = round(max(last.cells.back, (described.inner_radius or 0.0) + depth), 1)
        notes["ecal_outer_radius"] = Note("measured", f"behind the last hits or layers of {last.name}")
    else:
        assert endcap is not None  # or no ECAL at all
        outer = float(endcap.cells.sample.radius.max())
        lengths["ecal_inner_radius"] = round(outer, 1)
        lengths["ecal_outer_radius"] = round(outer + max(endcap.cells.back - endcap.cells.front, 1.0), 1)
        no_barrel = "no hits in the barrel; this is"
        notes["ecal_inner_radius"] = Note("fill in", f"{no_barrel} how far out the endcaps have hits")
        notes["ecal_outer_radius"] = Note("fill in", f"{no_barrel} as thick as the endcaps")
    if endcap is not None:
        endcaps = (group for group in groups if (group.kind, group.region) == ("ecal", "endcap"))
        z = np.concatenate([group.cells.sample.position[:, 2] for group in endcaps])  # each may have its own technology
        if text := measure.other_end(z):
            notes["ecal_inner_z"] = Note("guessed", text)
    elif barrel is not None:
        lengths["ecal_inner_z"] = round(max(float(abs(barrel.cells.sample.position[:, 2]).max()), 1.0), 1)
        notes["ecal_inner_z"] = Note("fill in", "no hits in the endcaps; this is how far along z the barrel has hits")
    faces("hcal")
    barrels = {kind: inner.get((kind, "barrel")) for kind in ("ecal", "hcal")}
    shapes = {kind: group.cells.shape for kind, group in barrels.items() if group is not None and group.cells.shape}
    lengths["phi_symmetry"] = 1
    if "ecal" not in shapes:
        text = "1 stands for no symmetry: the hits do not show the sides of the barrel"
        notes["phi_symmetry"] = Note("fill in", text)
        return lengths, None
    seen = ", ".join(
        f"{kind.upper()} {' or '.join(f'{sides} sides' if sides else 'a cylinder' for sides in shape.as_good)} "
        f"({shape.on_layers:.1%} of hits on layers)"
        for kind, shape in shapes.items()
    )
    how = "measured" if all(len(shape.as_good) == 1 for shape in shapes.values()) else "guessed"
    notes["phi_symmetry"] = Note(how, f"barrels: {seen}; endcaps not looked at")
    # The symmetry that all shapes in question share; gcd passes over the 0 of a cylinder, and is 0 for cylinders alone.
    lengths["phi_symmetry"] = math.gcd(*(sides for shape in shapes.values() for sides in shape.as_good)) or None
    shape = shapes["ecal"]
    return lengths, None if len(shape.as_good) > 1 or shape.phase else shape.sides or None


def _calorimeter(
    group: Group, file: PodioFile, answers: Answers, slope: float, like: Calorimeter | None
) -> tuple[Calorimeter, Notes]:
    """The calorimeter of a group, and notes on its fields; with few hits it has the layers of `like`.

    A muon system may have both faces; its layers are measured where most hits are, in the barrel or the endcaps. These
    are told apart by `slope`, the ratio of radius and |z| of the ECAL's corner.
    """
    cells, absorber = group.cells, answers.absorber.get(group.name, answers.absorber.get(group.kind))
    digitised, simulated = (
        tuple(sample.name for sample in group.samples if sample.simulated == kind) for kind in (False, True)
    )
    values: dict[str, Any] = {"collections": digitised, "sim_collections": simulated}
    notes = Notes()

    def note(field: str, how: str, text: str, value: Any = None) -> None:
        notes[field] = Note(how, text)
        if value is not None:
            values[field] = value

    note("kind", *group.place)
    if not digitised:
        note("collections", "fill in", "digitised hits, for files that have them")
    if digitisation := measure.measure_digitisation(group.samples):
        ratio, smallest, n_cells, measures_time = digitisation
        seen = f"{counted(n_cells, 'cell')} with digitised and simulated energy"
        note("sim_scale", "measured", seen, float(f"{ratio:.6g}"))
        # Rounded down: above the smallest energy, the threshold would drop cells that the digitisation kept.
        unit = 10.0 ** (math.floor(math.log10(smallest)) - 1)
        threshold = float(f"{math.floor(smallest / unit) * unit:.2g}")
        note("sim_threshold", "measured", "GeV, the smallest simulated energy of these cells, rounded down", threshold)
        if not measures_time:
            note("sim_measures_time", "measured", "all digitised hits have time 0", False)
    elif simulated:
        scale = answers.sim_scale.get(group.name, answers.sim_scale.get(group.kind))
        what = "1 / sampling fraction: deposited to calibrated energy, without which simulated hits are not read"
        note("sim_scale", *(("fill in", what) if scale is None else ("given", "--sim-scale")), scale)
        note("sim_threshold", *measure.guess_threshold(group.kind, cells.sample.energy))
    if simulated:
        text = "ns after a straight flight at c, energy before and after which does not count"
        note("sim_time_window", "fill in", text)
    encodings = {name: file.encodings[name] for name in (*digitised, *simulated) if name in file.encodings}
    if encodings:
        first, encoding = next(iter(encodings.items()))
        others = ", ".join(name for name, text in encodings.items() if text != encoding)
        note("cell_encoding", "found", f"{first}; others in {others}" if others else first, encoding)
    elif cells.sample.layer is None:
        note("cell_encoding", "fill in", "bit field of the cell ids; without it layers are not known")
    sample, seen = cells.sample, cells.sample.seen
    if group.kind == "muon":
        in_barrel = sample.radius > slope * np.abs(sample.position[:, 2])
        region, most = ("barrel", in_barrel) if 2 * in_barrel.sum() > len(sample) else ("endcap", ~in_barrel)
        cells = measure_cells([sample[most]], region) or cells
    few = len(sample) < geometry.MIN_CELLS and group.name not in answers.absorber
    # Cells that are numbered alike are of one technology.
    if few and like and values.get("cell_encoding") == like.cell_encoding and len(cells.pitches) < like.n_layers:
        layers, ahead = like.layers, 0.0
        how, text = "guessed", f"as of {like.name}; {seen}, too few for {like.n_layers} layers (--entries)"
    else:
        layers, text = _layers(group.name, cells, absorber)
        how = "given"
        # Without layers, hits are at cell centres: the first is as far behind the face as the last before the end.
        depth = sum(part.count * part.pitch for part in layers)
        missing = layers[0].pitch - cells.pitches[0] if cells.pitches else max(0.0, depth - cells.back + cells.front)
        ahead = missing / 2
    note("layers", how if absorber else "fill in", text, layers)
    faces = {"inner_radius" if group.region == "barrel" else "inner_z": cells.front - ahead}
    how, text = "guessed", f"99.5% of {seen} are behind it"
    if ahead:
        text = f"{ahead:.0f} mm before the hits, as they are in the middle of layers; {seen}"
    if group.kind == "muon":
        behind = {"inner_radius": sample.radius[in_barrel], "inner_z": np.abs(sample.position[~in_barrel, 2])}
        faces = {name: float(np.quantile(part, measure.OUTLIERS)) for name, part in behind.items() if len(part)}
    elif cells.pitches:
        first = f"the first of {counted(len(cells.pitches), 'layer')}, most of {np.median(cells.pitches):.2f} mm"
        how, text = "measured", f"half a layer before {first}; {seen}"
        if len(cells.pitches) == 2 and not absorber:  # the distance of their centres is the mean of both
            both = f"as if both layers were {cells.pitches[0]:g} mm thick, which --absorber corrects"
            how, text = "guessed", f"{both}; {seen}"
    if group.region == "endcap" and (other := measure.other_end(sample.position[:, 2])):
        how, text = "guessed", f"{other}; the layers are its, too"
    for field, face in faces.items():
        note(field, how, text, round(face, 1))
    if cells.shape is not None:
        as_good = cells.shape.as_good
        text = "by the layers" if len(as_good) == 1 else f"{' or '.join(map(str, as_good))} fit the layers equally well"
        note("sides", "measured" if len(as_good) == 1 else "guessed", f"{text}; 0: a cylinder", cells.shape.sides)
        note("phase", "measured", "rad, azimuth of the normal of a side", round(cells.shape.phase, 4))
    how, text = "fill in", "mm; too few cells are hit (--entries)"
    if cells.size:
        bars = measure.crossed_bars(sample, group.region)
        how, unequal = ("guessed", f"{bars}:") if bars else ("measured", "of oblong or unequal cells")
        text = f"mm to the nearest neighbour; {unequal} write the root of their mean area"
    note("cell_size", how, text, cells.size or None)
    required = group.kind != "muon" and group.region != "other"
    place: Any = {"name": group.name, "kind": group.kind, "region": group.region}
    return Calorimeter(**place, required=required, **values), notes


def _layers(calorimeter: str, cells: Cells, absorber: str | None) -> tuple[tuple[Layers, ...], str]:
    """Layers of a calorimeter, their lengths null without `absorber`, and how they were found.

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
        # Far thinner than the depth of the hits: it must be the absorber of one of many layers.
        if not pitches and len(matter) == 1 and matter[0][0] < extent / 4:
            mm = f"{matter[0][0]:g}"
            message = f"{calorimeter}, absorber '{absorber}': one layer of {mm} mm where hits in {extent:.0f} mm"
            raise ConfigError(f"{message} show no layers; give the number of layers too, as in lead:30x{mm}")
        if len(matter) > len(pitches) > 0:
            text += f"; the last {len(matter) - len(pitches)} of {len(matter)} without hits"
        pitches += [pitches[-1] if pitches else extent / len(matter)] * (len(matter) - len(pitches))
        if len(cells.pitches) == len(matter) == 2:  # as for crystals: half of each is between the centres
            spare = (sum(pitches) - sum(thickness for thickness, *_ in matter)) / 2
            pitches = [thickness + spare for thickness, *_ in matter]
        for i, (thickness, *_) in enumerate(matter):
            if cells.pitches and thickness > pitches[i] + 0.05:
                message = f"{calorimeter}, absorber '{absorber}': {thickness:g} mm in a layer of {pitches[i]:g} mm"
                seen = f"{counted(len(cells.pitches), 'layer')} measured, if hits are in mm"
                raise ConfigError(f"{message} ({seen}); give that of one layer, or of each as in PbWO4:1x50+1x150")
            # A measured pitch may be up to 0.05 mm thinner than the absorber, but no layer is.
            pitches[i] = round(max(pitches[i], thickness), 2)
    rows = [(pitch, *lengths) for pitch, (_, *lengths) in zip(pitches, matter, strict=True)]
    layers = []
    for (pitch, radiation, interaction), same in itertools.groupby(rows):
        lengths = [None if value is None else float(f"{value:.4g}") for value in (radiation, interaction)]
        count = len(list(same))
        layers.append(Layers(count=count, pitch=pitch, radiation_lengths=lengths[0], interaction_lengths=lengths[1]))
    return tuple(layers), text


def _truth_tracks(
    sim_tracker_hits: tuple[str, ...], sides: int | None, notes: Notes, left_out: dict[str, str], like: str | None
) -> TruthTracking | None:
    """How tracks are made from true particles, as in the detector `like`; None without simulated tracker hits."""
    if not sim_tracker_hits:
        text = "the file has no simulated tracker hits, so no tracks are made from Monte Carlo particles"
        left_out["truth_tracks"] = text
        if like is not None:
            raise ConfigError(f"--tracks-as {like}: {text}")
        return None
    notes["truth_tracks.sim_tracker_hits"] = Note("found", "all simulated tracker hits")
    if sides is not None:
        notes["truth_tracks.sides"] = Note("measured", "ECAL barrel")
    blank = TruthTracking(sim_tracker_hits=())
    settings = blank if like is None else load_detector(like).truth_tracks
    if settings is None:
        raise ConfigError(f"--tracks-as {like}: this detector does not describe truth_tracks")
    unknown = Note("fill in", "for --truth-tracks only; --tracks-as cld takes CLD's")
    notes |= {f"truth_tracks.{field}": Note("given", f"{like}'s") if like else unknown for field in blank.unknown}
    return dataclasses.replace(settings, sim_tracker_hits=sim_tracker_hits, sides=sides)


def _field(file: PodioFile, detector: Detector, entries: int, notes: Notes, *, given: float | None) -> float:
    """Field along z, T: as given, or the most certain estimate."""
    estimates = measure.measure_field(file, detector, entries)
    said = [f"{value:.4g} +- {uncertainty:.1g} from {source}" for value, uncertainty, source in estimates]
    if given is not None:
        if estimates and given * estimates[0][0] < 0:
            raise ConfigError(f"--b-field {given:g}: particles bend the other way ({said[0]}): give {-given:g}")
        notes["b_field"] = Note("given", "; ".join(("--b-field", *said)))
        return given
    if not estimates:
        raise InputError(
            f"nothing in the file tells the field: fewer than {measure.MIN_TRACKS} tracks with a curvature and links to"
            f" Monte Carlo particles in {entries} entries, or of these with simulated tracker hits; give the field in T"
            " with --b-field",
            file=file.path,
        )
    best, _, source = estimates[0]
    if not 1 / measure.MAX_FIELD < abs(best) < measure.MAX_FIELD:
        raise InputError(
            f"{source} give a field of {best:.4g} T: units are not EDM4hep's, mm and GeV (curvatures in 1/cm make it "
            "10 times too large, momenta in MeV 1,000 times); correct the file, or give the field in T with --b-field",
            file=file.path,
        )
    notes["b_field"] = Note("measured", "; ".join((*said, "better: the nominal value")))
    return float(f"{best:.4g}")


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
            # After a bare scalar safe_dump writes "..."; and a value of several lines could have no note behind it.
            text = yaml.safe_dump(plain, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()
            mark = "" if note is None else f"  # {note.how.upper() if note.how == 'fill in' else note.how}: {note.text}"
            yield f"{field.name}: {text}{mark}"
