"""Evaluate reconstructions, in memory or in files, against the truth of their events."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pflow.config import from_plain
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events, ImplausibleWarning, leave_out_files
from pflow.event.particles import Reconstruction, concatenate
from pflow.event.scales import SampleScales
from pflow.event.truth import RULES
from pflow.io.checks import Expected
from pflow.io.open import FilePath, Files, ReadOptions, matching
from pflow.io.particles_root import count_entries, iterate_reco, read_provenance, truth_options
from pflow.io.root import file_uuid
from pflow.metrics.evaluation import REFERENCE, Evaluation, EvaluationResult, EvaluationSettings
from pflow.metrics.match import HitMatching
from pflow.metrics.oracle import ORACLE


def evaluate(
    reco: Reconstruction | Files,
    truth: Events | Files,
    *,
    compare: Mapping[str, Reconstruction | Files] | None = None,
    name: str | None = None,
    collection: str = "PFlow",
    settings: EvaluationSettings | None = None,
    oracle: bool = True,
    on_error: Literal["raise", "skip"] = "raise",
    chunk_size: int = 500,
    progress: Callable[[int, int, int], object] = lambda n_events, done, n_parts: None,
    **options: Any,
) -> EvaluationResult:
    """Compare reconstructed with true particles, event by event.

    Parameters
    ----------
    reco
        A reconstruction, or its files: one file for all truth files, or one for each.
    truth
        The events with truth, or their files, in the order of the reconstruction.
    compare
        Further reconstructions of the same events, by name.
    name
        Name of `reco` in the result (default: the reconstruction's name, or the collection's).
    collection
        Collection of particles in the files.
    settings
        Truth rule, smallest energy and matching. None: from `truth_settings`.
    oracle
        Whether to add the oracle (perfect pattern recognition).
    on_error
        With ``skip``, entries that cannot be used are left out with a warning, and so are files if each truth file has
        its reconstruction files.
    chunk_size
        Events of files in memory at once.
    progress
        Called after each chunk and file with the number of events, of finished files, and of all files.
    options
        How the truth files are read (``detector``, ``schema``, ``layout``, ``truth_tracks``): see `pflow.open_events`.
        A `reco` made with tracks from Monte Carlo particles sets ``truth_tracks``.

    Raises
    ------
    InputError
        No events; a reconstruction of other events or of files in another order; no truth, or no target in it.
    ConfigError
        An unknown truth rule, or a name in use.

    Examples
    --------
    >>> events = pflow.read_events("multi_test_small.root", entry_stop=2)
    >>> result = evaluate(pflow.reconstruct(events, "general"), events)  # or the names of their files
    >>> result.algorithms["PFlow"]["energy_weighted_efficiency"]
    Number(value=1.0, low=0.609..., high=1.0)
    """
    given: tuple[object, object] = (reco, truth)
    if isinstance(given[0], Events) or isinstance(given[1], Reconstruction):
        raise TypeError("the reconstruction comes first and its events second: evaluate(reco, events)")
    name = name or (reco.name if isinstance(reco, Reconstruction) else collection)
    for further in compare or {}:
        if further in (name, ORACLE, REFERENCE):
            raise ConfigError(f"compare: the name '{further}' is taken")
    sources = {name: reco, **(compare or {})}
    recos = {key: source for key, source in sources.items() if isinstance(source, Reconstruction)}
    if isinstance(truth, Events):
        if len(recos) < len(sources):
            raise TypeError("events in memory need reconstructions in memory; pflow.read_reco reads them")
        total = Evaluation(name=name, settings=settings or truth_settings(recos), oracle=oracle)
        total.update(truth, _renamed(recos), on_error=on_error)
        return _with_targets(total, truth.path)
    if recos:
        raise TypeError("files of events need files of reconstructions; pflow.read_events reads events")
    files = {key: matching(source) for key, source in sources.items() if not isinstance(source, Reconstruction)}
    total = Evaluation(name=name, settings=settings or truth_settings(files), oracle=oracle)
    reading = ReadOptions(**options, on_error=on_error)
    return _evaluate_files(total, files, matching(truth), collection, progress, reading, chunk_size)


def _evaluate_files(
    total: Evaluation,
    files: Mapping[str, Sequence[str]],
    truth: Sequence[str],
    collection: str,
    progress: Callable[[int, int, int], object],
    reading: ReadOptions,
    chunk_size: int,
) -> EvaluationResult:
    """Evaluate the reconstructions in `files` by algorithm."""
    for paths in files.values():
        check_order(paths, truth)
    inputs = [entry for paths in files.values() for path in paths for entry in _inputs(path) or ()]
    reading = dataclasses.replace(
        reading,
        truth_tracks=reading.truth_tracks or any(entry.get("truth_tracks") for entry in inputs),
        expected=Expected(targets=total.settings.chosen_by, sample=_sample(files[total.name][0])),
    )
    skip = reading.on_error == "skip"
    parts = _parts(files, truth)
    failed: list[InputError] = []
    for done, (part_files, part_truth) in enumerate(parts):
        before = copy.deepcopy(total) if skip else total
        truth_chunks = reading.iterate(part_truth, chunk_size)
        chunks = _chunks(total, part_files, truth_chunks, collection, chunk_size)
        try:
            for events, recos in chunks:
                total.update(events, _renamed(recos), on_error=reading.on_error)
                progress(total.counts["n_events"], done, len(parts))
        except InputError as error:
            if not skip:
                raise
            failed.append(error)
            total = before  # no event of a failed file counts
        progress(total.counts["n_events"], done + 1, len(parts))
    leave_out_files(failed, len(parts))
    if not total.counts["n_events"]:
        raise InputError("no events to evaluate", file=files[total.name][0])
    return _with_targets(total, truth[0])


def _renamed(recos: Mapping[str, Reconstruction]) -> dict[str, Reconstruction]:
    """Reconstructions with their keys as names."""
    return {key: dataclasses.replace(reco, name=key) for key, reco in recos.items()}


def _chunks(
    total: Evaluation, files: Mapping[str, Sequence[str]], events: Iterable[Events], collection: str, chunk_size: int
) -> Iterator[tuple[Events, dict[str, Reconstruction]]]:
    """Chunks of events with their reconstructions from files, and with links from hits if they are matched by hits."""
    recos = {}
    for name, paths in files.items():
        links: Any = "left out"
        if isinstance(total.settings.matching, HitMatching):
            links = "required" if name == total.name else "if there"
        read = functools.partial(iterate_reco, name=collection, chunk_size=chunk_size, links=links)
        recos[name] = itertools.chain.from_iterable(map(read, paths))
    return zip_chunks(events, recos, files={name: ", ".join(paths) for name, paths in files.items()})


def _with_targets(total: Evaluation, file: str) -> EvaluationResult:
    """The result; InputError if no event has a target, because all particles would be fakes."""
    if not total.n_targets:
        rule, e_min = total.settings.rule, total.settings.e_min
        raise InputError(
            f"no true particle is a target under truth rule '{rule}' above {e_min:g} GeV: choose another with --rule "
            f"({', '.join(RULES)}); `pflow inspect FILE --targets --rule RULE` lists the reasons",
            file=file or None,
        )
    return total.result()


def truth_settings(
    recos: Mapping[str, Reconstruction] | Mapping[str, Sequence[FilePath]], **given: Any
) -> EvaluationSettings:
    """Settings with the truth rule, `e_min` and further options of the model that made the first of `recos`.

    `recos`: reconstructions or their files, by algorithm. One without the training options of its model has the
    defaults; options
    `given` and not None take precedence. An `ImplausibleWarning` names a model that was trained with another rule.
    """
    trained = {name: _trained_with(reco) for name, reco in recos.items()}
    model = next(iter(trained.values())) or EvaluationSettings()
    settings = dataclasses.replace(model, **{name: value for name, value in given.items() if value is not None})
    for name, training in trained.items():
        if training is not None and training.rule != settings.rule:
            warnings.warn(
                f"{name} is evaluated under rule '{settings.rule}', its model was trained with '{training.rule}', "
                "which counts other particles",
                ImplausibleWarning,
                stacklevel=2,
            )
    return settings


def _trained_with(reco: Reconstruction | Sequence[FilePath]) -> EvaluationSettings | None:
    """Truth rule and its options of the model that made a reconstruction; None if it does not have them."""
    if isinstance(reco, Reconstruction):
        options, origin = reco.trained_with, f"trained_with of {reco.name}"
    else:
        options, origin = truth_options(provenance_of(reco[0])), str(reco[0])
    return None if options is None else from_plain(EvaluationSettings, options, origin)


def _parts(
    files: Mapping[str, Sequence[str]], truth: Sequence[str]
) -> list[tuple[Mapping[str, Sequence[str]], Sequence[str]]]:
    """Files that belong together: a part for each truth file if each has reconstruction files, else one part."""
    if any(len(paths) != len(truth) for paths in files.values()):
        return [(files, truth)]
    return [({name: [paths[i]] for name, paths in files.items()}, [truth[i]]) for i in range(len(truth))]


def provenance_of(path: FilePath) -> dict[str, Any] | None:
    """Provenance of a file of pflow; None for another program's file."""
    try:
        return read_provenance(str(path))
    except InputError:
        return None


def _inputs(path: FilePath) -> list[dict[str, Any]] | None:
    """Provenance of the input files of an output; None if it does not cover all entries."""
    inputs = (provenance_of(path) or {}).get("inputs")
    if not isinstance(inputs, list):
        return None
    stated = [entry.get("entries") for entry in inputs]
    return inputs if None in stated or sum(stated) == count_entries(str(path)) else None


def _sample(path: FilePath) -> SampleScales | None:
    """Scales of the training sample of the model that made an output."""
    scales = (provenance_of(path) or {}).get("configuration", {}).get("tokeniser", {}).get("sample")
    return None if scales is None else from_plain(SampleScales, scales, "sample")


def check_input(reco: str, events: str) -> None:
    """Refuse a reconstruction whose provenance names other input files than the one with the events."""
    inputs, uuid = _inputs(reco), file_uuid(events)
    uuids = {entry.get("uuid") for entry in inputs or ()}
    if inputs and uuid and all(uuids) and uuids.isdisjoint({uuid, *_input_uuids(events)}):
        paths = ", ".join(str(entry.get("path")) for entry in inputs)
        raise InputError(f"was made from {paths} and not from {events}", file=reco)


def _input_uuids(path: FilePath) -> list[Any]:
    return [entry.get("uuid") for entry in _inputs(path) or ()]


def check_order(reco: Sequence[str], truth: Sequence[str]) -> None:
    """Refuse reconstructions of other files than `truth`, or in another order; event numbers would not show it."""
    made_from: list[tuple[str, Mapping[str, Any]]] = []
    for path in reco:
        inputs = _inputs(path)
        if inputs is None:
            for expected in truth:
                if file_uuid(path) in _input_uuids(expected):
                    raise InputError(
                        f"{expected} was made from this file: give the reconstruction first, and this as the truth",
                        file=path,
                    )
            return
        made_from += [(path, entry) for entry in inputs]
    if len(made_from) != len(truth):  # one of them was merged
        return
    for (path, entry), expected in zip(made_from, truth, strict=True):
        known, uuid = file_uuid(expected), entry.get("uuid")
        if not known or not uuid or uuid == known:
            continue
        # An output of pflow may hold the truth of its input, and so the truth of other outputs from that input.
        if uuid not in _input_uuids(expected):
            raise InputError(
                f"was made from {entry.get('path')}, and the truth has {expected} at this place: give both in the "
                "same order",
                file=path,
            )


def zip_chunks(
    events: Iterable[Events], reconstructions: Mapping[str, Iterator[Reconstruction]], *, files: Mapping[str, str]
) -> Iterator[tuple[Events, dict[str, Reconstruction]]]:
    """Each chunk of events with its reconstructions, read from chunks of any length.

    InputError names the first entry that only the truth or only a reconstruction has.
    """
    entry = 0
    rest: dict[str, Reconstruction] = {}  # read and not yet taken

    def take(name: str, n: int) -> int:
        """Read until `n` entries are there, if there are so many; their number."""
        while len(rest.get(name, ())) < n and (chunk := next(reconstructions[name], None)) is not None:
            rest[name] = concatenate([rest[name], chunk]) if name in rest else chunk
        return len(rest.get(name, ()))

    for chunk in filter(len, events):
        n = len(chunk)
        for name in reconstructions:
            if (there := take(name, n)) < n:
                raise InputError("ends here, but the truth has more events", file=files[name], entry=entry + there)
        yield chunk, {name: rest[name][:n] for name in reconstructions}
        rest, entry = {name: reco[n:] for name, reco in rest.items()}, entry + n
    for name in reconstructions:
        if take(name, 1):
            raise InputError("has more events, but the truth ends here", file=files[name], entry=entry)
