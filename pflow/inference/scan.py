"""Scans: reconstruct samples in several variants of their detectors, point by point, and evaluate them together."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pflow.checkpoint import TrainedModel, load_model
from pflow.data.dataset import Chunk, FileOptions
from pflow.errors import ConfigError, InputError, warn
from pflow.event import jagged
from pflow.event.checks import BEYOND, check_training_range, compare, outside_training, problems, warn_of
from pflow.event.events import TRUTH_OPTIONS, BadEntriesWarning, Events, Flag, keep_hits, without_refused
from pflow.event.merge import Merge
from pflow.event.move import Move
from pflow.event.scales import Scales, measure
from pflow.event.truth import Targets
from pflow.inference.events import MAX_HITS, batch_limits, pick_device
from pflow.inference.files import (
    Settings,
    Worker,
    check_same,
    describe_input,
    entries_of_a_chunk,
    essence,
    executor_for,
    open_input,
    provenance,
    run,
    stem,
)
from pflow.io.atomic import check_output, make_folder, replacing
from pflow.io.open import Files, ReadOptions, matching
from pflow.metrics.evaluation import Evaluation
from pflow.metrics.report import EvaluationSettings, check_figures, fakes_below, remove_report
from pflow.metrics.scan import (
    MODEL,
    NULL_SCALE,
    PARAMETERS,
    POINTS,
    Limit,
    PointResult,
    ScanPoint,
    ScanResult,
    parse_variations,
    primary_sums,
    scan_points,
    shared_places,
    value_text,
)
from pflow.metrics.stats import N_RESAMPLES, SEED, Floats, Ints
from pflow.physics.detector import HCAL, Detector, digest
from pflow.physics.geometry import CELL, LAYER, LENGTH, kind_index, measures
from pflow.tokens.features import FEATURES

_same = functools.partial(np.allclose, rtol=0.005, atol=0)  # two descriptions' measures, which drafts have measured
CSV, REPORT, DOCUMENT = "scan.csv", "report.html", "scan.json"
SCHEMA = "pflow-scan-point-6"


def scan(
    files: Files,
    *,
    vary: Mapping[str, Sequence[float]] | Sequence[str] = (),
    output: str | Path | None = None,
    grid: bool = False,
    checkpoint: str | Path | TrainedModel = "general",
    tuned: str | Path | None = None,
    detector: Sequence[str | Path | Detector] | str | Path | Detector | None = None,
    schema: str | None = None,
    layout: str | Path | None = None,
    truth_tracks: bool = False,
    rule: str | None = None,
    e_min: float | None = None,
    entries: int | None = None,
    oracle: bool = True,
    null_test: bool = True,
    on_error: Literal["raise", "skip"] = "raise",
    max_hits: int = MAX_HITS,
    batch_size: int | None = None,
    chunk_size: int = 256,
    device: str = "auto",
    cluster: str | None = None,
    force: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> ScanResult:
    """Reconstruct and evaluate samples in several variants of their detectors, without retuning anything.

    Parameters
    ----------
    files
        Events with truth. Files of the same detector are one sample; the first sample, as simulated, is the nominal
        point, and each sample of another detector is a further point.
    vary
        Values of `pflow.metrics.scan.PARAMETERS` by name, or as texts ``"cells=1,2,4"``: every sample is moved
        (`pflow.event.move.Move`), one parameter at a time or with `grid` in all combinations. The particles to find are
        those of the sample as it is.
    output
        Folder for ``scan.csv``, ``scan.json``, figures, ``report.html``, and ``points`` with the numbers of each point.
        Finished points are reused unless inputs, model or options changed. None: nothing is written.
    checkpoint, tuned
        The model; and a model tuned to the nominal point, which measures the error of the untuned one there. At all
        points cells of the ECAL are merged to the size of the smallest ones, or the nearest in the model's training,
        and not to the model's own: particles differ from those of `pflow.reconstruct` without `merge_mm`.
    detector, schema, layout, truth_tracks
        As of `pflow.open_events`; `detector` for all files or one for each.
    rule, e_min
        Truth rule and smallest energy of a target, GeV; None: as the model was trained.
    entries
        Largest number of entries of each file. None: all.
    on_error, max_hits, batch_size, device
        As of `pflow.reconstruct`.
    chunk_size
        Events of files in memory at once.
    oracle, null_test
        Whether to evaluate the oracle (perfect pattern recognition) at each point; whether to make the null test, the
        first sample with all lengths scaled.
    cluster
        As of `pflow reconstruct --cluster`; `checkpoint` and `tuned` must then be paths or names.
    force
        Replace existing outputs, and points made with other inputs, models or options.
    on_progress
        Called with the name of a point, and the numbers of events that are done and to do, over all points.

    Returns
    -------
    ScanResult
        The points, the nominal one first; ratios to it have errors of the paired comparison where events have the same
        primaries.

    Raises
    ------
    ConfigError
        A move that would not be exact, with the reason; a parameter that the model does not read; an output that
        exists, or a point made with other settings.
    InputError
        A file that cannot be used, or that has no truth.

    Examples
    --------
    >>> result = scan("zqq_test_small.root", vary={"cells": [1, 2]}, entries=4, oracle=False)
    >>> [point.point.name for point in result.points]
    ['nominal', 'cells=2', 'null test']
    >>> result.change(result["cells=2"], "event.visible_energy.response_median").value > 0.9
    True
    """
    if cluster is not None and isinstance(checkpoint, TrainedModel):
        raise ConfigError("a cluster needs the path of the checkpoint: its processes load it themselves")
    if isinstance(vary, str) or (isinstance(vary, Mapping) and not all(np.ndim(values) for values in vary.values())):
        raise TypeError(f"vary: expected values by parameter, such as {{'cells': [1, 2]}}; found {vary!r}")
    if entries is not None and entries < 1:
        raise ConfigError(f"entries: expected a number of at least 1, found {entries}")
    named = [f"{name}={','.join(map(str, vary[name]))}" for name in vary] if isinstance(vary, Mapping) else vary
    steps = parse_variations(named)
    folder = None if output is None else Path(output)
    if folder is not None:
        make_folder(folder / "points")
        for name in (CSV, REPORT, DOCUMENT):
            check_output(folder / name, force=force)
        check_figures(folder, force=force)
    model = checkpoint if isinstance(checkpoint, TrainedModel) else load_model(checkpoint)
    models = {"": model} if tuned is None else {"": model, "tuned": load_model(tuned)}
    config, paths, place = model.tokeniser.config, matching(files), pick_device(device)
    if "time" in steps and not any(FEATURES["hits"][name].field == "hits.time" for name in config.hit_features):
        raise ConfigError(
            f"cannot vary time: the model '{model.path}' does not read the times of hits (it reads "
            f"{', '.join(config.hit_features)}), so that its particles would stay the same"
        )
    settings = Settings(
        reading=_reading(
            paths, detector, model, schema=schema, layout=layout, truth_tracks=truth_tracks, on_error=on_error
        ),
        max_hits=max_hits,
        batch_size=batch_limits(place)[0] if batch_size is None else batch_size,
        device=str(place),
    )
    asked: dict[str, Any] = {"rule": rule, "e_min": e_min}
    asked = {name: getattr(config, name) if asked.get(name) is None else asked[name] for name in TRUTH_OPTIONS}
    rules = EvaluationSettings(**asked)
    worker = Worker(model, settings)
    with contextlib.closing(worker.files):
        samples = _samples(paths, worker, entries, chunk_size, cluster)
        detectors = {name: sample.detector for name, sample in samples.items()}
        null_scale = _null_scale(model, next(iter(detectors.values()))) if null_test else None
        points = scan_points(detectors, steps, grid=grid, null_scale=null_scale, tuned=tuned is not None)
        if not any(point.kind == "point" for point in points):
            given = " ".join(f"{name}={','.join(map(value_text, values))}" for name, values in steps.items())
            known = f"{given} is the sample as it is; give other" if given else "give"
            raise ConfigError(f"nothing to scan: {known} values of --vary, or files of several detectors")
        labels, points = _with_detectors(points, detectors, steps)
        nominal = samples[points[0].sample]
        # A move that is not exact is refused before any point has cost time.
        for sample in samples.values():
            for chunk in (chunk for chunk in sample.chunks if chunk.start == 0):  # of each file
                first = worker.files.open(chunk.path).read_all(0, min(chunk.stop, 20), truth=False)[0]
                for point in points:
                    if point.sample == sample.name:
                        point.move.check(first)
                        _check_layers(first, point.move)
        moved = [point.move.detector(samples[point.sample].detector) for point in points]
        # The models run one after the other, so that their workers can share open files.
        workers = {
            kind: Worker(of, dataclasses.replace(settings, merge_mm=_merged_size(of, moved)), files=worker.files)
            for kind, of in models.items()
        }
        tasks = []
        for point in points:
            sample, used = samples[point.sample], workers[point.kind if point.kind in models else ""]
            path = None if folder is None else folder / "points" / point.file_name
            made_from = _made_from(sample, nominal, used, rules, point.move, oracle=oracle)
            limits = _limits(used.model, sample.detector, nominal.detector, point)
            tasks.append(Task(point, sample, used, path, made_from, limits))
        finished = {task.point.name: _finished(task, force=force) for task in tasks}
        results = {name: result for name, result in finished.items() if result is not None}
        missing = [task for task in tasks if task.point.name not in results]
        # Matching reads the truth of all files, which points that are finished do not need.
        if len(samples) > 1 and missing:
            _match(list(samples.values()), worker)
        n_done, n_all = 0, sum(task.sample.n_events for task in missing)

        def show(point: ScanPoint, n: int) -> None:
            nonlocal n_done
            n_done += n
            if on_progress is not None:
                on_progress(point.name, n_done, n_all)

        for used in workers.values():
            some = [task for task in missing if task.worker is used]
            for task, measured in _measured(some, used, rules, cluster=cluster, oracle=oracle, show=show):
                results[task.point.name] = measured
                if task.path is not None:  # at once: an interrupted scan is resumed behind this point
                    made = {"point": task.point.name, "made_from": task.made_from, "numbers": measured.to_plain()}
                    with replacing(task.path, force=True) as partial:  # `_finished` has checked existing files
                        partial.write_text(json.dumps({"schema": SCHEMA, **made}, allow_nan=False) + "\n", "utf-8")
    inputs = [described for sample in samples.values() for described in sample.inputs]
    names = ", ".join(of_sample.name for of_sample in detectors.values())
    used = workers[""]
    made = provenance(inputs, model, used.settings, detector=names, chunk_size=chunk_size, cluster=cluster)
    made["scan"] = {
        "vary": {name: [value_text(value) for value in values] for name, values in steps.items()},
        **{"grid": grid, "entries": entries, "oracle": oracle, "tuned": None if tuned is None else str(tuned)},
        "settings": {**rules.chosen_by, "matching": rules.matching.definition},
    }
    result = ScanResult(
        points=[results[point.name] for point in points],
        labels=labels,
        notes=(
            *_notes(used.model, config.merge, nominal.detector, measured=tuned is not None),
            *fakes_below(rules),
        ),
        provenance=made,
    )
    if folder is not None:
        _write(result, folder, force=force)
    return result


@dataclasses.dataclass(eq=False)
class Sample:
    """Files of one detector; `places` int64 [event] as of `pflow.metrics.evaluation.Evaluation.update`."""

    name: str
    detector: Detector
    chunks: list[Chunk]
    inputs: list[dict[str, Any]]
    places: Ints

    @property
    def n_events(self) -> int:
        """Number of entries that are read."""
        return sum(map(len, self.chunks))


class Task(NamedTuple):
    """A point to measure, the worker of its model, the path of its numbers, and what determines them (`_made_from`)."""

    point: ScanPoint
    sample: Sample
    worker: Worker
    path: Path | None
    made_from: dict[str, Any]
    limits: list[Limit]


def _reading(paths: Sequence[str], detector: Any, model: TrainedModel, **options: Any) -> FileOptions:
    """Reading options of each file: the given detector (one, or one per file), else the model's, else detected."""
    each = list(detector) if isinstance(detector, list | tuple) else [detector]
    if detector is None and not model.tokeniser.config.geometry:
        each = [model.tokeniser.detector]
    if len(each) not in (1, len(paths)):
        raise ConfigError(f"expected one detector for all files or one for each of {len(paths)}, found {len(each)}")
    all_files = FileOptions(detector=each[0], expected=None, **options)  # each point is compared in `_measured`
    if len(each) == 1:
        return all_files
    known = {path: ReadOptions(detector=of, **options) for path, of in zip(paths, each, strict=True)}
    return dataclasses.replace(all_files, known=known)


def _samples(
    paths: Sequence[str], worker: Worker, entries: int | None, chunk_size: int, cluster: str | None
) -> dict[str, Sample]:
    """The samples by their names, in the order of the files; InputError: no entries, a file twice, or not the model's
    detector."""
    samples: dict[str, Sample] = {}
    for path in paths:
        file = open_input(worker, path)
        chunks = Chunk.of(file, entries_of_a_chunk(cluster, file.num_entries, chunk_size))
        if entries is not None:
            chunks = [Chunk(path, c.start, min(c.stop, entries)) for c in chunks if c.start < entries]
        if not chunks:
            raise InputError("the file has no entries", file=path)
        sample = next((sample for sample in samples.values() if sample.detector == file.detector), None)
        if sample is None:
            # Files of one name may be of several detectors of one name, and files be called as points of the first.
            taken = [*samples, *(POINTS if samples else ())]
            more = (f"{stem(path)} ({file.detector.name}{f' {n}' * (n > 1)})" for n in itertools.count(1))
            name = next(name for name in itertools.chain([stem(path)], more) if name not in taken)
            sample = samples[name] = Sample(name, file.detector, [], [], np.zeros(0, dtype=np.int64))
        described = describe_input(file)
        # Twice the same events would make all errors smaller.
        if described["uuid"] and described["uuid"] in [entry["uuid"] for entry in sample.inputs]:
            raise InputError("is given twice, or a copy of another one of these files", file=path)
        sample.chunks += chunks
        sample.inputs.append(described)
    first = 0
    for sample in samples.values():  # places that no two samples share, until events are matched
        sample.places = first + np.arange(sample.n_events)
        first += sample.n_events
    return samples


def _match(samples: Sequence[Sample], worker: Worker) -> None:
    """Give events of further samples the place of the first sample's event with the same primaries."""
    sums: list[Floats] = []
    for sample in samples:
        files = (worker.files.open(chunk.path).read_all(chunk.start, chunk.stop)[0] for chunk in sample.chunks)
        sums.append(np.concatenate([primary_sums(events) for events in files]))
    for sample, mine in zip(samples[1:], sums[1:], strict=True):
        places = shared_places(sums[0], mine)
        sample.places = np.where(places >= 0, places, sample.places)


def _check_layers(events: Events, move: Move) -> None:
    """InputError: layers are to be left out by numbers that do not follow the depth of the hits."""
    if move.layers == 1 and not move.hcal_layers:
        return
    if move.layers == 1:
        events = keep_hits(events, kind_index(events.detector)[jagged.columns(events.hits)["subdetector"]] == HCAL)
    if wrong := problems(check for check in compare(measure(events)) if check.name == "layers"):
        raise InputError(f"{wrong}; no layers can be left out by such numbers", file=events.path)


def _with_detectors(
    points: list[ScanPoint], detectors: Mapping[str, Detector], steps: Iterable[str]
) -> tuple[dict[str, str], list[ScanPoint]]:
    """Labels of all parameters, and the points with the values of the parameters that distinguish the samples.

    Parameters are the measures (`pflow.physics.geometry.measures`) in which the detectors differ, if each differs from
    the first in one of them, else their number.
    """
    labels = {name: PARAMETERS[name].label for name in steps}
    if len(detectors) == 1:
        return labels, points
    values = {sample: {"detector": float(number)} for number, sample in enumerate(detectors)}
    with contextlib.suppress(ConfigError):  # a calorimeter is not described
        known = {sample: measures(detector) for sample, detector in detectors.items()}
        first, *others = known.values()
        # What one of two lacks is NaN, and so not the same.
        changed = [[k for k in first | of if not _same(first.get(k, np.nan), of.get(k, np.nan))] for of in others]
        names = list(dict.fromkeys(itertools.chain(*changed)))
        if all(len(keys) == 1 for keys in changed) and all(_same(*of[key]) for of in known.values() for key in names):
            values = {
                sample: {key: (first if _same(first[key], of[key]) else of)[key][0] for key in names}
                for sample, of in known.items()
            }
    labels |= {name: f"{name[0].upper()}{name[1:]}" for of in values.values() for name in of}
    return labels, [dataclasses.replace(p, values={**p.values, **values[p.sample]}) for p in points]


def _measured(
    tasks: Sequence[Task],
    worker: Worker,
    rules: EvaluationSettings,
    *,
    cluster: str | None,
    oracle: bool,
    show: Callable[[ScanPoint, int], None],
) -> Iterator[tuple[Task, PointResult]]:
    """Reconstruct the chunks of all points, here or on a cluster, and evaluate each point here when it is complete."""
    if not tasks:  # a cluster would start for nothing
        return
    with executor_for(worker, cluster) as executor:
        on_error = worker.settings.reading.on_error
        moved = ((task, task.point.move) for task in tasks)
        chunks = ((task, dataclasses.replace(chunk, move=move)) for task, move in moved for chunk in task.sample.chunks)
        for task, results in itertools.groupby(run(chunks, executor), itemgetter(0)):
            sample, place, scales = task.sample, 0, Scales()
            as_simulated = task.point.move == Move()
            evaluation = Evaluation(name=MODEL, settings=rules, oracle=oracle)
            counts = np.zeros(3)
            show(task.point, 0)
            for _, begun in results:
                assert begun is not None  # a sample has chunks
                chunk, wait = begun
                result = wait()
                for warning in result.warnings:
                    warnings.warn(warning, stacklevel=3)
                # The workers read no truth, and return particles alone.
                events = worker.files.open(chunk.path).read(chunk.start, chunk.stop, on_error=on_error)
                # Their hits would stand beside no particles.
                bad = (result.reconstruction.flags & Flag.BAD_INPUT) > 0
                _, simulated = without_refused(events.emptied(bad), rules.targets, on_error)
                events = chunk.move.apply(simulated)
                good = (events.flags & Flag.BAD_INPUT) == 0
                used, particles = events[good], result.reconstruction.particles[good]
                counts += (len(used), jagged.count(used.hits).sum(), result.n_tokens[good].sum())
                places = sample.places[place : place + len(events)]
                # The truth is the same at all points.
                scales += measure(used, particles, targets=rules.chosen_by) if as_simulated else result.scales

                # What a coarser detector does not see is lost, and stays among the particles to find.
                def choose(settings: EvaluationSettings, some: Events, simulated: Events = simulated) -> Targets:
                    return settings.targets(simulated[np.isin(simulated.entry, some.entry)]).moved(some)

                recos = {MODEL: result.reconstruction}
                evaluation.update(events, recos, on_error=on_error, positions=places, choose=choose)
                place += len(events)
                show(task.point, len(events))
            if not evaluation.n_targets:
                text = f"no true particle is a target under truth rule '{rules.rule}' above {rules.e_min:g} GeV"
                raise InputError(text, file=sample.chunks[0].path)
            checks = compare(scales, worker.model.tokeniser.sample)
            # The detector is one of the limits. Moved events have other thresholds and cells, by the user's choice.
            checks = [check for check in checks if check.name == "reconstructed energy" or as_simulated]
            warn_of([check for check in checks if check.name != "detector"], task.point.name)
            yield (
                task,
                PointResult.of(
                    evaluation.result(),
                    point=task.point,
                    places=evaluation.algorithms[MODEL].places["place"],
                    n_bad=evaluation.counts["n_bad_input"],
                    hits=float(counts[1] / counts[0]),
                    tokens=float(counts[2] / counts[0]),
                    limits=tuple(task.limits),
                ),
            )


def _merged_size(model: TrainedModel, detectors: Sequence[Detector]) -> float | None:
    """Size to which cells of the ECAL are merged at all points, mm; None: the model was trained with one size.

    The size of the smallest cells, or the nearest that training has shown: then the model sees what other cells change.
    """
    merge = model.tokeniser.config.merge
    cells = [c.cell_size for of in detectors for c in of.calorimeters if c.kind == "ecal" and c.cell_size is not None]
    if merge is None or not merge.ecal_sizes or not cells:
        return None
    return float(np.clip(min(cells), min(merge.ecal_sizes), max(merge.ecal_sizes)))


def _null_scale(model: TrainedModel, detector: Detector) -> float:
    """The scale of the null test, larger or smaller, that takes fewer measures out of the model's training."""
    sample = model.tokeniser.sample
    if sample is None or not sample.detectors:
        return NULL_SCALE
    scales = (NULL_SCALE, 1 / NULL_SCALE)
    return min(scales, key=lambda of: len(outside_training(Move(scale=of).detector(detector), sample, BEYOND)))


def _limits(model: TrainedModel, detector: Detector, nominal: Detector, point: ScanPoint) -> list[Limit]:
    """Limits of a point: detectors outside the model's training, and sizes that its encoder merges."""
    moved, sample, config, limits = point.move.detector(detector), model.tokeniser.sample, model.tokeniser.config, []
    if sample is not None and moved != nominal:  # a moved detector keeps its name, and the calibration is the nominal's
        sample = dataclasses.replace(sample, calibrated_for=dict.fromkeys(sample.calibrated_for))
    if sample is not None and sample.detectors and not (check := check_training_range(moved, sample)).good:
        limits.append(Limit("outside", check.text))
    if not config.geometry and point.kind in ("point", "null test"):
        limits.append(Limit("outside", f"the model was trained on detector '{model.tokeniser.detector.name}' alone"))
    if config.merge is None or point.kind != "point":
        return limits
    as_long = dataclasses.replace(point.move, hcal_layers=None).detector(detector)  # layers left out are not merged
    try:
        before, after, merge = measures(nominal), measures(as_long), config.merge
    except ConfigError as error:
        return [*limits, Limit("merged", f"what is merged before the encoder is not known: {error}")]
    for kind, cells, depth in (("ecal", merge.ecal_mm, merge.depth), ("hcal", merge.hcal_mm, merge.depth / 10)):
        for text, merged in ((CELL, cells), (LAYER, depth)):
            name = text.format(kind.upper(), LENGTH[kind])
            values = [*before.get(name, ()), *after.get(name, ())]
            if len(values) == 4 and not _same(values[:2], values[2:]) and min(values) < merged:
                different = ", ".join(dict.fromkeys(f"{value:.4g}" for value in values))
                said = f"{name} {different}: what is below {merged:g} is merged before the encoder"
                limits.append(Limit("merged", said, kind))
    return limits


def _notes(model: TrainedModel, default: Merge | None, nominal: Detector, *, measured: bool) -> Iterator[str]:
    """Limits of the whole scan; `default`: how the model merges cells where nothing else is asked for."""
    config, sample = model.tokeniser.config, model.tokeniser.sample
    if config.merge is not None:
        merge = config.merge
        depth = f"{merge.depth:g} radiation lengths ({merge.depth / 10:g} interaction lengths)"
        depth = depth if merge.depth else f"{merge.layers} layers"
        alone = "" if merge.ecal_sizes else ", the one size of its training (data.merge.ecal_sizes: several)"
        if default is not None and default.ecal_mm != merge.ecal_mm:
            alone = f" (in pflow reconstruct without --merge-mm {default.ecal_mm:g} mm in the ECAL)"
        readout = "; energies and positions are read from single hits" if config.readout else ""
        yield (
            f"The encoder sees cells merged to {merge.ecal_mm:g} mm (ECAL), {merge.hcal_mm:g} mm (HCAL) and {depth}"
            f"{alone}: efficiency, fakes, confusion, which widths of jets have in them, and pairs of photons depend on "
            "finding particles, and change with cells smaller than these and with thinner layers only as the measured "
            f"energies do{readout}."
        )
    trained = sample.detectors if sample is not None and sample.detectors else (model.tokeniser.detector.name,)
    known = "is one of these" if nominal.name in trained else "is not one of these"
    model_error = (
        "row 'tuned model' has the error of the model that is not tuned, at the nominal point"
        if measured
        else "a model tuned to the nominal point (pflow fit --start-from) and --tuned measure its error there"
    )
    yield (
        f"The same model, not retuned, at all points; trained on {', '.join(trained)}, and the nominal detector "
        f"'{nominal.name}' {known}. {model_error[0].upper()}{model_error[1:]}."
    )


def _made_from(
    sample: Sample, nominal: Sample, worker: Worker, rules: EvaluationSettings, move: Move, *, oracle: bool
) -> dict[str, Any]:
    """Inputs, model, settings and move that determine the numbers of a point, as plain data."""
    made = essence(provenance(sample.inputs, worker.model, worker.settings, detector=sample.detector.name)) | {
        "calibration": digest(worker.model.calibration),  # the weights stay as they are
        "entries": [sample.n_events, nominal.n_events],
        "nominal sample": [entry["uuid"] for entry in nominal.inputs],
        "move": {name: str(value) for name, value in vars(move).items()},
        "truth": {**rules.chosen_by, "matching": rules.matching.definition},
        "oracle": oracle,
        "resamples": [N_RESAMPLES, SEED],
    }
    # As it is read back from a file: tuples become lists, and would count as changed.
    plain: dict[str, Any] = json.loads(json.dumps(made, default=str))
    return plain


def _finished(task: Task, *, force: bool) -> PointResult | None:
    """Stored numbers of a point, None if missing; ConfigError names changed inputs, unless `force` replaces them."""
    if task.path is None or not task.path.is_file():
        return None
    try:
        content = json.loads(task.path.read_text("utf-8"))
        schema, made, numbers = (content[name] for name in ("schema", "made_from", "numbers"))
    except (OSError, ValueError, KeyError, TypeError):
        schema = made = numbers = None
    if force and (schema, made) != (SCHEMA, task.made_from):
        return None
    if schema != SCHEMA:
        raise ConfigError(f"{task.path} is damaged, or of another layout: delete it, or replace it with --force")
    check_same(task.path, task.made_from, made)
    result = PointResult.of_plain(task.point, numbers, task.limits)
    if result.n_bad and task.worker.settings.reading.on_error == "raise":
        return None  # measured again for the error of the first bad entry
    if result.n_bad:
        text = f"{result.n_bad} of {task.sample.n_events} entries could not be used and were left out"
        warn(f"{task.path}: {text}", BadEntriesWarning)
    return result


def _write(result: ScanResult, folder: Path, *, force: bool) -> None:
    """Write figures, tables and the report; `DOCUMENT` last, as a sign that the others are complete."""
    from pflow.plots import rendered
    from pflow.plots.report import scan_figures, scan_page

    drawn = scan_figures(result)
    files = {f"{name}.{kind}": rendered(drawn[name], kind) for name in drawn for kind in ("png", "pdf")}
    files[CSV] = result.csv().encode()
    files[REPORT] = scan_page(result, {name: files[f"{name}.png"] for name in drawn}).encode()
    files[DOCUMENT] = f"{json.dumps(result.document(), indent=1, allow_nan=False)}\n".encode()
    if force:
        remove_report(folder, "pflow scan")
        (folder / DOCUMENT).unlink(missing_ok=True)
    for name, content in files.items():
        with replacing(folder / name, force=force) as partial:
            partial.write_bytes(content)
