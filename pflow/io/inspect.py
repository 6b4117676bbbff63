"""The content of a file as plain data: schema, collections, truth, detectors that fit, missing parts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np

from pflow.errors import ConfigError, InputError, first_line
from pflow.event import jagged
from pflow.event.checks import Check, Expected, compare
from pflow.event.scales import SampleScales, Scales, measure
from pflow.io.edm4hep.podio import Collection, PodioFile, collection_contents, open_podio
from pflow.io.open import EventFile, NoDetectorError, ReadOptions, fitting_detectors
from pflow.io.root import open_root, tree_names
from pflow.physics.detector import Detector, load_detector

CHUNK_SIZE = 100  # entries read at once
LEARNING = "training and evaluation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A calorimeter (with its `kind`) or other part of `Events`: collections, objects, energy per entry, GeV."""

    name: str
    kind: str
    collections: tuple[str, ...]
    count: int
    mean: float
    mean_energy: float | None


@dataclasses.dataclass(frozen=True)
class MissingPart:
    """A missing part, what needs it, and why it is missing."""

    name: str
    needed_for: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Table:
    """A TTree or RNTuple, and the types of its branches or fields."""

    name: str
    type: str
    num_entries: int
    columns: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileContent:
    """What a file holds."""

    path: str
    schema: str  # "" if it holds no events
    uuid: str
    num_entries: int
    detector: str = ""  # that it was read as; "" if none fits
    detectors: dict[str, str] = dataclasses.field(default_factory=dict)
    """Of a podio file: the built-in ones, best first, each with the reason why it does not fit, or ""."""
    entries_read: int = 0  # from the start, over which counts are taken
    parts: tuple[Part, ...] = ()
    calorimeter_hits: int = 0
    absent: tuple[str, ...] = ()  # optional collections of the detector that the file does not hold
    has_truth: bool = False  # particles, and links from hits to them
    truth_tracks: bool = False  # whether tracks are made from Monte Carlo particles
    bad_entries: dict[int, str] = dataclasses.field(default_factory=dict)  # with the error of each
    checks: tuple[Check, ...] = ()  # of all entries read
    collections: tuple[Collection, ...] = ()  # of a podio file, whether the detector names them or not
    missing: tuple[MissingPart, ...] = ()
    tables: tuple[Table, ...] = ()  # of a ROOT file that holds no events


def inspect_file(
    path: str | Path,
    options: ReadOptions = ReadOptions(),  # noqa: B008
    *,
    max_entries: int = 1000,
    sample_of: Callable[[Detector], SampleScales | None] = lambda _: None,
) -> FileContent:
    """Summarise the first `max_entries` entries of a file.

    `sample_of`: what a model of the file's detector was trained on, for the checks. Entries that cannot be used count
    as empty. A podio file that no built-in detector fits is summarised by its collections, a ROOT file whose events
    cannot be read by its trees. Errors in opening it are raised.
    """
    try:
        try:
            with options.open(path) as file:
                targets = (options.expected and options.expected.targets) or {}
                file.expected = Expected(targets=targets, sample=sample_of(file.detector))
                return _by_events(file, min(file.num_entries, max_entries))
        except NoDetectorError as error:
            reason = error.summary
        except ConfigError as error:
            if options.detector is None:  # another option is wrong
                raise
            load_detector(options.detector)  # an error if there is no such description
            reason = str(error)
        return _by_collections(path, reason, sim=options.schema == "edm4hep-sim", max_entries=max_entries)
    except Exception as error:  # a file of a format that nobody thought of may make anything fail
        # Who gives a detector, schema or layout wants to know why it fails, not which trees are there.
        if options != ReadOptions(expected=options.expected) or not (tables := _tables(path)):
            raise
        reason = str(error) if isinstance(error, InputError) else first_line(error)
        missing = MissingPart("events", "everything", reason)
        return FileContent(path=str(path), schema="", uuid="", num_entries=0, missing=(missing,), tables=tables)


def _by_events(file: EventFile, stop: int, *, refused: str = "") -> FileContent:
    """A file that is read as a detector; counts are over the first `stop` entries. `refused`: why truth is not read."""
    calorimeters = file.detector.calorimeters
    totals = np.zeros((3, len(calorimeters)))  # hits, those with a layer, and GeV, of each calorimeter
    counts, reference, scales = Counter[str](), 0.0, Scales()
    bad_entries: dict[int, str] = {}
    left_out, unusable = list[InputError](), list[Check]()
    expected = file.expected or Expected()
    try:
        template = file.read_all(file.num_entries, truth=not refused)[0]  # no event, but all parts
        for start, end in file.ranges(CHUNK_SIZE):
            if start >= stop:
                break
            events, errors, of_objects = file.read_all(start, min(end, stop), truth=not refused)
            bad_entries |= {error.entry: str(error) for error in errors if error.entry is not None}
            left_out += of_objects
            try:
                scales += measure(events, targets=expected.targets)
            except InputError as error:  # the truth has no targets
                unusable.append(Check("truth", False, str(error)))
                scales += measure(events.without_truth())
            counts.update({name: int(jagged.count(part).sum()) for name, part in events.parts() if name != "hits"})
            reference += 0.0 if events.reference is None else float(ak.sum(events.reference.energy))
            hits = jagged.columns(events.hits)
            weights = np.ones(len(hits["energy"])), hits["layer"] >= 0, hits["energy"].astype(np.float64)
            totals += [np.bincount(hits["subdetector"], weight, len(calorimeters)) for weight in weights]
    except InputError as error:
        if refused:  # it is not the truth that cannot be read
            raise
        # From the start again: the counts so far are of a part of the entries, and partly with truth.
        return _by_events(file, stop, refused=str(error))
    there = dict(template.parts())
    podio, sim = (getattr(file.reader, name, None) for name in ("file", "sim"))  # of a podio file only
    content = _without_events(file, podio, stop, sim)
    missing = [MissingPart("truth", LEARNING, refused)] if refused else []
    truth, links = ("truth" in there or bool(refused), "hit_links" in there or bool(refused))
    missing += _missing(content, tracks="tracks" in there, truth=truth, links=links)

    def part(name: str, count: int, energy: float | None, kind: str = "") -> Part:
        means: Any = {"mean": count / max(stop, 1), "mean_energy": None if energy is None else energy / max(stop, 1)}
        return Part(name=name, kind=kind, collections=tuple(file.sources.get(name, ())), count=count, **means)

    rows = list(zip(calorimeters, *totals, strict=True))
    parts = [part(calorimeter.name, int(n), energy, calorimeter.kind) for calorimeter, n, _, energy in rows]
    parts += [part(name, counts[name], reference if name == "reference" else None) for name in there if name != "hits"]
    # A calorimeter without hits cannot show whether its layers are known.
    if without_layers := [calorimeter.name for calorimeter, n, n_layered, _ in rows if n and not n_layered]:
        source = (
            "no cell encoding with a layer"
            if file.layout is None
            else f"layout '{file.layout.name}' gives no hits.layer"
        )
        reason = f"{source} for {', '.join(without_layers)}"
        missing.append(MissingPart("layers", "models that use the layers of hits", reason))
    checks = [*file.notes(), *unusable[:1]]
    if left_out:
        n_entries = len({error.entry for error in left_out})
        checks.append(Check("objects", False, f"left out in {n_entries} entries; the first: {left_out[0]}"))
    return dataclasses.replace(
        content,
        detector=file.detector.name,
        parts=tuple(parts),
        calorimeter_hits=int(totals[0].sum()),
        absent=file.absent,
        has_truth=template.has_truth,
        truth_tracks=file.truth_tracks,
        bad_entries=bad_entries,
        checks=(*checks, *compare(scales, expected.sample)),
        missing=tuple(missing),
    )


def _without_events(file: EventFile | PodioFile, podio: PodioFile | None, stop: int, sim: bool | None) -> FileContent:
    """The collections of a file of podio's, and which detectors fit; `sim` as of `fitting_detectors`."""
    fitting = [] if podio is None else fitting_detectors(podio, sim=sim)
    return FileContent(
        path=file.path,
        schema=file.schema,
        uuid=file.uuid,
        num_entries=file.num_entries,
        detectors={match.detector.name: match.reason for match in fitting},
        entries_read=stop,
        collections=() if podio is None else collection_contents(podio, stop),
    )


def _by_collections(path: str | Path, reason: str, *, sim: bool, max_entries: int) -> FileContent:
    """A podio file without detector; `reason`: why none is used."""
    with closing(open_podio(path)) as file:
        content = _without_events(file, file, min(file.num_entries, max_entries), sim or None)
    missing = [MissingPart("detector", "everything", reason)]
    if not _readable(content, "CalorimeterHit", "SimCalorimeterHit"):
        why = _why_none(content, "CalorimeterHit", "SimCalorimeterHit")
        missing.append(MissingPart("calorimeter hits", "reconstruction", why))
    # Simulated hits name their particles in their contributions, digitised ones only by links.
    links = _readable(content, "SimCalorimeterHit") or _has_hit_links(content)
    truth = _readable(content, "MCParticle")
    missing += _missing(content, tracks=_readable(content, "Track"), truth=truth, links=links)
    has_truth = any(info.kind == "MCParticle" for info in content.collections)
    return dataclasses.replace(content, has_truth=has_truth, missing=tuple(missing))


def _tables(path: str | Path) -> tuple[Table, ...]:
    """The trees and RNTuples of a file; empty if uproot cannot open it."""
    tables = []
    with suppress(Exception), open_root(path) as directory:  # the caller raises the error
        for name in tree_names(directory):
            columns, n_entries = {}, -1
            with suppress(Exception):  # a type that uproot does not know harms no other table
                table = directory[name]
                n_entries = int(table.num_entries)
                for key in table.keys(recursive=True):
                    columns[str(key)] = "unknown"
                    with suppress(Exception):  # nor another branch
                        columns[str(key)] = str(table[key].typename)
            kind = str(directory.classname_of(name))
            tables.append(Table(name, kind, n_entries, columns))
    return tuple(tables)


def _missing(content: FileContent, *, tracks: bool, truth: bool, links: bool) -> Iterator[MissingPart]:
    """The missing parts; `tracks`, `truth`, `links` (from hits to particles): whether the file has them."""
    unnamed = "none that the detector names"
    if not tracks:
        reason = unnamed if _readable(content, "Track") else _why_none(content, "Track")
        if _readable(content, "SimTrackerHit") and _readable(content, "MCParticle"):
            reason += "; --truth-tracks makes them from Monte Carlo particles"
        yield MissingPart("tracks", "charged particles", reason)
    if not truth:
        reason = unnamed if _readable(content, "MCParticle") else _why_none(content, "MCParticle")
        yield MissingPart("truth", LEARNING, reason)
    elif not links:
        reason = unnamed if _has_hit_links(content) else "none in the file"
        yield MissingPart("links from hits to particles", LEARNING, reason)


def _has_hit_links(content: FileContent) -> bool:
    """Whether links lead from digitised hits to particles."""
    kinds = {info.name: info.kind for info in content.collections}
    ends = [[kinds.get(name) for name in link.split(" -> ")] for info in content.collections for link in info.links]
    return ["CalorimeterHit", "MCParticle"] in ends


def _readable(content: FileContent, *kinds: str) -> bool:
    return any(info.kind in kinds and not info.unreadable and not info.subset for info in content.collections)


def _why_none(content: FileContent, *kinds: str) -> str:
    """Why a file has no such collections: it holds none, or unreadable ones, by name and type."""
    refused = [info for info in content.collections if info.kind in kinds and info.unreadable]
    said = [f"{info.name} ({info.type}) has {info.unreadable}" for info in refused]
    if "CalorimeterHit" in kinds:  # raw hits, and those of other data models
        others = (info for info in content.collections if "CalorimeterHit" in info.type and info.kind not in kinds)
        said += [f"{info.name} is of a type that is not read, {info.type}" for info in others]
    return "; ".join(said) or "none in the file"
