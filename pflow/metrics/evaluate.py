"""Evaluate reconstructions, in memory or in files, against the truth of the events that they were made from."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pflow.config import from_plain
from pflow.errors import ConfigError, InputError
from pflow.event.events import Events
from pflow.event.particles import Reconstruction, concatenate
from pflow.event.scales import SampleScales
from pflow.event.skipped import ImplausibleWarning, leave_out_files
from pflow.event.truth import RULES
from pflow.io.checks import Expected
from pflow.io.open import FilePath, Files, iterate_events, matching
from pflow.io.particles_root import count_entries, iterate_reco, read_provenance
from pflow.io.root import file_uuid
from pflow.metrics.evaluation import ORACLE, REFERENCE, Evaluation, EvaluationResult, EvaluationSettings
from pflow.metrics.match import HitMatching


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
        A reconstruction, or the files of one: one of all truth files, or one of each.
    truth
        The events with truth, or their files, in the order in which they were reconstructed.
    compare
        Further reconstructions of the same events, by name.
    name
        What `reco` is called in the result (default: the reconstruction's own name, or the collection's).
    collection
        Collection of particles in the files.
    settings
        Truth rule, smallest energy and matching. None: of files what `truth_settings` says, else the defaults.
    oracle
        Whether to add the oracle (perfect pattern recognition).
    on_error
        With ``skip``, entries that cannot be used are left out, and files too where each truth file has its own
        reconstructions; with a warning.
    chunk_size
        Events of files in memory at once.
    progress
        Called after each chunk and file with the number of events, of files that are done, and of all files.
    options
        How the truth files are read (``detector``, ``schema``, ``layout``, ``truth_tracks``): see `pflow.open_events`.
        Tracks are made from Monte Carlo particles also if they were for `reco`.

    Raises
    ------
    InputError
        No events; a reconstruction of other events or of files in another order; no truth, or no target in it.
    ConfigError
        An unknown truth rule, or a name that is taken.

    Examples
    --------
    >>> events = pflow.read_events("multi_test_small.root", entry_stop=2)
    >>> result = evaluate(pflow.reconstruct(events, "ild-g4-general"), events)  # or the names of their files
    >>> result.algorithms["PFlow"]["energy_weighted_efficiency"]
    Number(value=1.0, low=0.609..., high=1.0)
    """
    given: tuple[object, object] = (reco, truth)
    if isinstance(given[0], Events) or isinstance(given[1], Reconstruction):
        raise TypeError("the reconstruction comes first and its events second: evaluate(reco, events)")
    name = name or (reco.name if isinstance(reco, Reconstruction) else collection)
    for other in compare or {}:
        if other in (name, ORACLE, REFERENCE):
            raise ConfigError(f"compare: the name '{other}' is taken")
    sources = {name: reco, **(compare or {})}
    if settings is None and not isinstance(reco, Reconstruction):
        settings = truth_settings({name: matching(reco)})
    total = Evaluation(name=name, settings=settings, oracle=oracle)
    if isinstance(truth, Events):
        found = {key: one for key, one in sources.items() if isinstance(one, Reconstruction)}
        if len(found) < len(sources):
            raise TypeError("events in memory need reconstructions in memory; pflow.read_reco reads them")
        total.update(truth, {key: dataclasses.replace(one, name=key) for key, one in found.items()}, on_error=on_error)
        return _with_targets(total, truth.path)
    truth_files = matching(truth)
    files = {key: matching(one) for key, one in sources.items() if not isinstance(one, Reconstruction)}
    if len(files) < len(sources):
        raise TypeError("files of events need files of reconstructions; pflow.read_events reads events")
    for paths in files.values():
        check_order(paths, truth_files)
    if any(one.get("truth_tracks") for paths in files.values() for path in paths for one in _inputs(path) or ()):
        options["truth_tracks"] = True
    options["expected"] = Expected(targets=total.settings.chosen_by, sample=_sample(files[name][0]))
    by_hits = isinstance(total.settings.matching, HitMatching)
    parts = _parts(files, truth_files)
    failed: list[InputError] = []
    for done, (part_files, part) in enumerate(parts):
        before = copy.deepcopy(total) if on_error == "skip" else total
        chunks = iterate_events(part, **options, chunk_size=chunk_size, on_error=on_error)
        recos = {}
        for key, listed in part_files.items():
            links: Any = ("required" if key == name else "if there") if by_hits else "left out"
            of_each = (iterate_reco(path, name=collection, chunk_size=chunk_size, links=links) for path in listed)
            recos[key] = itertools.chain.from_iterable(of_each)
        try:
            for events, found in zip_chunks(chunks, recos, files={k: ", ".join(v) for k, v in part_files.items()}):
                renamed = {key: dataclasses.replace(one, name=key) for key, one in found.items()}
                total.update(events, renamed, on_error=on_error)
                progress(total.counts["n_events"], done, len(parts))
        except InputError as error:
            if on_error == "raise":
                raise
            failed.append(error)
            total = before  # of a file that fails in the middle no event counts
        progress(total.counts["n_events"], done + 1, len(parts))
    leave_out_files(failed, len(parts))
    if not total.counts["n_events"]:
        raise InputError("no events to evaluate", file=files[name][0])
    return _with_targets(total, truth_files[0])


def _with_targets(total: Evaluation, file: str) -> EvaluationResult:
    """The result, or an InputError if no event has a target: all particles would be fakes."""
    if not total.n_targets:
        rule, e_min = total.settings.rule, total.settings.e_min
        raise InputError(
            f"no true particle is a target under truth rule '{rule}' above {e_min:g} GeV: choose another with --rule "
            f"({', '.join(RULES)}); `pflow inspect FILE --targets --rule RULE` says why a particle is none",
            file=file or None,
        )
    return total.result()


def truth_settings(files: Mapping[str, Sequence[FilePath]], **given: Any) -> EvaluationSettings:
    """Settings with the truth rule and its options, `e_min` among them, of the model that made the first of `files`.

    Outputs by the name of their algorithm; one that does not say how its model was trained has the defaults. What is
    `given` and not None comes first. An `ImplausibleWarning` names a model that was trained with another rule.
    """
    trained = {name: _trained_with(paths[0]) for name, paths in files.items()}
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


def _trained_with(path: FilePath) -> EvaluationSettings | None:
    """Truth rule and its options of the model that made an output; None: it does not say."""
    try:
        config = (provenance_of(path) or {})["configuration"]["tokeniser"]["config"]
        known = {name: config[name] for name in ("rule", "e_min", "stable_status", "invisible")}
    except (KeyError, TypeError):
        return None
    return from_plain(EvaluationSettings, known, str(path))


def _parts(
    files: Mapping[str, Sequence[str]], truth: Sequence[str]
) -> list[tuple[Mapping[str, Sequence[str]], Sequence[str]]]:
    """Files that belong together: a part for each truth file if each has its own reconstructions, else one part."""
    if any(len(paths) != len(truth) for paths in files.values()):
        return [(files, truth)]
    return [({name: [paths[i]] for name, paths in files.items()}, [truth[i]]) for i in range(len(truth))]


def provenance_of(path: FilePath) -> dict[str, Any] | None:
    """Provenance of a file of pflow; None for another program's file of the same members."""
    try:
        return read_provenance(Path(path))
    except InputError:
        return None


def _inputs(path: FilePath) -> list[dict[str, Any]] | None:
    """What an output of pflow says of the files that it was made from; None: it does not say of all its entries."""
    inputs = (provenance_of(path) or {}).get("inputs")
    if not isinstance(inputs, list):
        return None
    stated = [entry.get("entries") for entry in inputs]
    return inputs if None in stated or sum(stated) == count_entries(str(path)) else None


def _sample(path: FilePath) -> SampleScales | None:
    """What an output of pflow says of the sample that its model was trained on."""
    scales = (provenance_of(path) or {}).get("configuration", {}).get("tokeniser", {}).get("sample")
    return None if scales is None else from_plain(SampleScales, scales, "sample")


def check_input(reco: str, events: str) -> None:
    """Refuse a reconstruction that says that it was made from other files than the one with the events."""
    made_from, known = _inputs(reco), file_uuid(events)
    uuids = {entry.get("uuid") for entry in made_from or ()}
    if (
        made_from
        and known
        and all(uuids)
        and uuids.isdisjoint({known, *(e.get("uuid") for e in _inputs(events) or ())})
    ):
        paths = ", ".join(str(entry.get("path")) for entry in made_from)
        raise InputError(f"was made from {paths} and not from {events}", file=reco)


def check_order(reco: Sequence[str], truth: Sequence[str]) -> None:
    """Refuse reconstructions of other files than the truth's, or in another order, which event numbers do not tell."""
    made_from: list[tuple[str, Mapping[str, Any]]] = []
    for path in reco:
        inputs = _inputs(path)
        if inputs is None:
            for expected in truth:
                if file_uuid(path) in [entry.get("uuid") for entry in _inputs(expected) or ()]:
                    message = (
                        f"{expected} was made from this file: give the reconstruction first, and this as the truth"
                    )
                    raise InputError(message, file=path)
            return
        made_from += [(path, entry) for entry in inputs]
    if len(made_from) != len(truth):  # one of them was merged
        return
    for (path, entry), expected in zip(made_from, truth, strict=True):
        known, uuid = file_uuid(expected), entry.get("uuid")
        if not known or not uuid or uuid == known:
            continue
        # An output of pflow that holds the truth of its input is the truth of what was made from that input, too.
        if uuid not in [one.get("uuid") for one in _inputs(expected) or ()]:
            raise InputError(
                f"was made from {entry.get('path')}, and in its place in the truth is {expected}: give both in the "
                "same order",
                file=path,
            )


def zip_chunks(
    events: Iterable[Events],
    reconstructions: Mapping[str, Iterator[Reconstruction]],
    *,
    files: Mapping[str, str],
) -> Iterator[tuple[Events, dict[str, Reconstruction]]]:
    """Add each chunk's reconstructions, from iterators of other chunks; InputError names an entry without one."""
    entry = 0
    queues = {name: _Queue(chunks) for name, chunks in reconstructions.items()}
    for chunk in events:
        found = {name: queue.take(len(chunk)) for name, queue in queues.items()} if len(chunk) else {}
        for name, reconstruction in found.items():
            n = 0 if reconstruction is None else len(reconstruction)
            if n < len(chunk):
                raise InputError("ends here, but the truth has more events", file=files[name], entry=entry + n)
        if len(chunk):
            yield chunk, {name: reco for name, reco in found.items() if reco is not None}
        entry += len(chunk)
    for name, queue in queues.items():
        if queue.take(1):
            raise InputError("has more events, but the truth ends here", file=files[name], entry=entry)


class _Queue:
    """Entries of an iterator of chunks, taken in any numbers."""

    def __init__(self, chunks: Iterator[Reconstruction]) -> None:
        self._chunks = chunks
        self._rest: Reconstruction | None = None

    def take(self, n: int) -> Reconstruction | None:
        """The next `n` entries, or what is left of them; None for an iterator without chunks."""
        while self._rest is None or len(self._rest) < n:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._rest = chunk if self._rest is None else concatenate([self._rest, chunk])
        whole = self._rest
        self._rest = None if whole is None else whole[n:]
        return None if whole is None else whole[:n]
