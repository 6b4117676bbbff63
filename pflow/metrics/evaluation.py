"""Evaluation of reconstructions, in memory or in files, against the truth: a tree of results for each algorithm."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import awkward as ak
import numpy as np

from pflow.config import from_plain
from pflow.errors import ConfigError, InputError, check_choice, check_fields, check_type, warn
from pflow.event import jagged
from pflow.event.checks import Expected
from pflow.event.events import (
    LINKS,
    Events,
    Flag,
    ImplausibleWarning,
    Reconstruction,
    concatenate_reconstructions,
    give_up,
    leave_out_files,
    without_refused,
)
from pflow.event.jagged import Links
from pflow.event.scales import SampleScales, charged_without_track, count_copies, first_hits
from pflow.event.truth import RULES, Targets
from pflow.io.open import FilePath, Files, ReadOptions, matching
from pflow.io.particles_root import count_entries, differing_origins, read_provenance, read_reco, truth_options
from pflow.io.root import file_uuid
from pflow.metrics import jets
from pflow.metrics.event import (
    BosonMetrics,
    CountMetrics,
    EventMetrics,
    PhotonPairMetrics,
    TauMetrics,
    TrackMetrics,
    find_bosons,
    find_taus,
)
from pflow.metrics.jets import ConfusionBudget, JetEnergyMetrics, energy_by_kind, jet_axes
from pflow.metrics.match import (
    HitMatching,
    Matches,
    Matching,
    ParticleMetrics,
    ParticleTable,
    angle_energy,
    find_faults,
    match_by_hits,
    match_tables,
)
from pflow.metrics.oracle import ORACLE, load_calibration, perfect_reconstruction
from pflow.metrics.report import MIN_EVENTS, REFERENCE, EvaluationResult, EvaluationSettings
from pflow.metrics.stats import Bootstrap, Columns, Floats, Ints, Tree
from pflow.physics.detector import digest
from pflow.physics.kinematics import COVARIANCE
from pflow.physics.pdg import known_charges

OFF = {
    "momenta": "more momentum than energy, or much less: are both in GeV, and of one calibration? Jets are wrong",
    "charges": "another charge than their PDG code says, or an unknown code: classes are by the code, and what a track "
    "gives is by the charge",
    "copies": "the momentum of another one: are lists joined that share particles?",
}
"""What is said of particles with momenta or charges that do not fit, and of those that are there twice."""
NEAR_TRACK = 0.5
"""Relative momentum to a track's: a recalibrated or smeared particle has still its track, another event's has none."""


class TrueEvents:
    """Truth of a chunk of events, shared by all algorithms; each part is made once.

    `truth` has the targets, `visible` the particles of `visible_truth`; `jets` their jets, None without fastjet; `axes`
    the `jet_axes`; `oracle` the oracle's `energy_by_kind`, None without it. `marks` [event, numbers] are equal only for
    events with the same first hits (``start``), or with the same true particles (``alike``); NaN for too few of them.
    """

    def __init__(self, events: Events, targets: Targets, *, oracle: Floats | None = None) -> None:
        self.truth = ParticleTable.from_records(targets.particles)
        self.visible = visible_truth(events, targets)
        self.jets = jets.true_jets(self.visible) if jets.available() else None
        self.axes = jet_axes(events, self.visible)
        # Energy and momentum are conserved and equal in all events at rest; sums of their products with the energy mark
        # the generator's event, whatever the simulation made of it.
        products = self.visible.energy * np.stack([self.visible.energy, *self.visible.momentum.T])
        sums = np.stack([jagged.total(of, self.visible.offsets) for of in products], axis=1)
        # Of one particle or few, many events are alike.
        alike = np.where(self.visible.counts[:, None] >= 6, np.round(sums, 3), np.nan)
        self.marks = {"start": first_hits(events), "alike": alike}
        self.taus = find_taus(events, targets)
        self.bosons = find_bosons(events, targets)
        self.oracle = oracle


class AlgorithmMetrics:
    """All metrics of one algorithm; jets if fastjet is installed."""

    def __init__(self) -> None:
        self.n_off, self.n_candidates, self.n_exact, self.n_empty = dict.fromkeys(OFF, 0), 0, 0, 0
        self.places, self.tracked = Columns(), Columns()
        self.particles, self.counts = ParticleMetrics(), CountMetrics()
        self.parts: dict[str, Any] = {
            "event": EventMetrics(),
            "track_momentum": TrackMetrics(),
            "confusion_budget": ConfusionBudget(),
            "photon_pairs": PhotonPairMetrics(),
            "jet_energy": JetEnergyMetrics(),
            "taus": TauMetrics(),
            "hadronic_mass": BosonMetrics(),
        }
        if jets.available():
            self.parts["jets"] = jets.JetMetrics()

    def update(
        self,
        true: TrueEvents,
        reco: ParticleTable,
        matches: Matches,
        close: Matches,
        positions: Ints,
        sigma: Floats | None,
    ) -> None:
        """Count events by their reconstructed particles, unweighted, and by all and `close` matches.

        `positions` int64 [event]: places of the events in the input. `sigma`: stated errors of the energies, if any.
        """
        truth, visible, parts = true.truth, true.visible, self.parts
        self.places.add(place=positions)
        momentum, hard = np.linalg.norm(reco.momentum, axis=1), reco.energy > 3.0  # GeV
        # From there on any particle has most of its energy as momentum.
        off = (momentum > 1.01 * reco.energy) | (hard & (momentum < 0.8 * reco.energy))
        self.n_off["momenta"] += int(np.sum(off))
        self.n_off["charges"] += int(np.sum(~(np.abs(known_charges(reco.pdg) - reco.charge) <= 0.5)))
        self.n_off["copies"] += int(count_copies(reco.event, reco.momentum, len(reco.counts)).sum())
        # Below this cost rounding alone differs.
        self.n_exact += int(np.sum(angle_energy(truth, reco, matches.truth, matches.reco) < 1e-5))
        self.n_empty += int(np.sum((truth.counts > 0) & (reco.counts == 0)))
        self.particles.update(truth, reco, matches, close, sigma=sigma)
        self.counts.update(truth, reco)
        parts["event"].update(visible, reco)
        parts["confusion_budget"].update(visible, truth, reco, matches, true.oracle)
        parts["photon_pairs"].update(truth, reco, matches)
        parts["jet_energy"].update(true.axes, reco)
        parts["taus"].update(true.taus, reco, matches)
        if true.jets is not None:
            parts["hadronic_mass"].update(true.bosons, reco, matches)
            parts["jets"].update(true.jets, reco)

    def result(self) -> Tree:
        """Results with the keys of ``metrics.json``; `n_empty`: events with targets and no particle; `places`: a digest
        that two trees of the same events share."""
        places = self.places["place"]
        bootstrap = Bootstrap(places)
        return {
            "n_events": len(places),
            "n_empty": self.n_empty,
            "places": hashlib.sha256(places.tobytes()).hexdigest()[:12],
            "count": self.counts.numbers(bootstrap),
            **self.particles.numbers(bootstrap),
            **{name: tree for name, part in self.parts.items() if (tree := part.numbers(bootstrap))},
        }


class Evaluation:
    """Accumulates chunks of events: exact quantiles need about 100 bytes for each particle and algorithm.

    `oracle` adds the algorithm ``oracle``, perfect pattern recognition; as `name` it is the one under evaluation.
    """

    def __init__(
        self, *, name: str = "PFlow", settings: EvaluationSettings | None = None, oracle: bool = False
    ) -> None:
        self.name, self.oracle = name, oracle
        self.settings = settings or EvaluationSettings()
        check_choice(self.settings.rule, RULES, "truth rule")
        # `not >=` refuses NaN as well, which `< 0` would let pass.
        if not self.settings.e_min >= 0:
            raise ConfigError(f"e_min must be at least 0 GeV, found {self.settings.e_min}")
        self.counts = dict.fromkeys(("n_events", "n_bad_input", "n_max_particles", "n_truth_tracks"), 0)
        self.n_targets, self.marks = 0, Columns()
        self.algorithms: dict[str, AlgorithmMetrics] = {}
        self._names: dict[str, dict[str, None]] = {}
        # Dictionaries instead of sets, because they keep the order of the files.
        self.samples: dict[str, None] = {}
        self.detectors: dict[str, None] = {}

    @property
    def titles(self) -> dict[str, str]:
        """Name of each algorithm; of the reference several, where files hold particles of different ones."""
        return {algorithm: " and ".join(names) for algorithm, names in self._names.items()}

    def update(
        self,
        events: Events,
        reconstructions: Mapping[str, Reconstruction],
        *,
        on_error: Literal["raise", "skip"] = "raise",
        positions: Ints | None = None,
        files: Mapping[str, str] | None = None,
        choose: Callable[[EvaluationSettings, Events], Targets] = EvaluationSettings.targets,
    ) -> None:
        """Count events with truth and links, and their reconstructions by algorithm, including `name`.

        `choose`: the targets by these settings of some of these events. `positions` int64 [event]: places
        for the bootstrap, by default in the order of the events. `files`: paths of the reconstructions, for messages.
        With `on_error` ``skip``, events with particles that cannot be used are left out with a warning. `InputError`:
        the events hold no truth, a reconstruction is of other events, a particle's numbers are not finite, its energy
        is below 0, or links from hits, for matching by hits, are missing or wrong.
        """
        check_choice(on_error, ("raise", "skip"), "on_error")
        recos = {algorithm: dataclasses.replace(reco, name=algorithm) for algorithm, reco in reconstructions.items()}
        rule = self.settings.matching
        if isinstance(rule, HitMatching):  # a reference assigns no hits
            events = dataclasses.replace(events, reference=None)
        for algorithm, reco in recos.items():
            reco.check_events(events)
            if isinstance(rule, HitMatching) and reco.hit_links is None:
                text = f"reconstruction '{algorithm}' has no links from hits to its particles"
                raise InputError(f"{text}: match by energy and angle", field="hit_links")
        # An event that is bad for one algorithm is left out for all, so that all are compared on the same events.
        flags = np.bitwise_or.reduce([events.flags, *(reco.flags for reco in recos.values())])
        lists = {algorithm: reco.particles for algorithm, reco in recos.items()}
        lists |= {} if events.reference is None else {REFERENCE: events.reference}
        for algorithm, particles in lists.items():
            name = f"{algorithm} of {files[algorithm]}" if files and algorithm in files else algorithm
            faults = find_faults(particles, name=name, file=events.path or None, entries=events.entry)
            faults = {index: error for index, error in faults.items() if not flags[index] & Flag.BAD_INPUT}
            give_up([*faults.values()], len(events), on_error)
            flags[[*faults]] |= np.uint32(Flag.BAD_INPUT)
        good = (flags & Flag.BAD_INPUT) == 0
        if positions is None:
            # Bad events keep their places, so that the weights of the others do not depend on what is left out.
            positions = self.counts["n_events"] + np.arange(len(events))
        self.samples |= dict.fromkeys([Path(events.path).name] if events.path else [])
        self.detectors |= {events.detector.name: None}
        self.counts["n_events"] += len(events)
        self.counts["n_truth_tracks"] += int(np.count_nonzero(flags & Flag.TRUTH_TRACKS))
        if self.name in recos:
            self.counts["n_max_particles"] += int(np.count_nonzero(recos[self.name].flags & Flag.MAX_PARTICLES))

        targets, used = without_refused(events[good], functools.partial(choose, self.settings), on_error)
        refused = (used.flags & Flag.BAD_INPUT) > 0
        if refused.any():
            good[good] = ~refused
            targets = choose(self.settings, events[good])
        self.counts["n_bad_input"] += int(np.sum(~good))
        events, positions = events[good], positions[good]
        recos = {algorithm: reco[good] for algorithm, reco in recos.items()}
        by_oracle = None  # of the one that is made here, and of no reconstruction with its name
        if self.oracle:
            calibration, of_oracle = load_calibration(events.detector), targets
            # Like any algorithm it also gives softer particles than those that are asked for: sums need them.
            if self.settings.e_min > EvaluationSettings.e_min:
                of_oracle = choose(dataclasses.replace(self.settings, e_min=EvaluationSettings.e_min), events)
            recos[ORACLE] = perfect_reconstruction(events, of_oracle, calibration, use_tracks=self.settings.use_tracks)
            by_oracle = energy_by_kind(ParticleTable.from_records(recos[ORACLE].particles))
        if events.reference is not None:
            particles, title = events.reference, events.reference_name or REFERENCE
            recos[REFERENCE] = Reconstruction(particles=particles, event=events.event, flags=events.flags, name=title)
        self.n_targets += int(targets.counts.sum())
        true = TrueEvents(events, targets, oracle=by_oracle)
        self.marks.add(**true.marks)
        for algorithm, reconstruction in recos.items():
            for name in LINKS:
                if getattr(reconstruction, name) is not None:
                    reconstruction.check_links(name, events)
            particles = ParticleTable.from_records(reconstruction.particles)
            if isinstance(rule, Matching):
                matches, close = (match_tables(true.truth, particles, of) for of in (rule, rule.close))
            else:
                links = Links.of(targets.hit_links), Links.of(reconstruction.hit_links)
                counts = true.truth.counts, particles.counts
                matches, close = (match_by_hits(*links, events.hits, *counts, of) for of in (rule, rule.close))
            metrics = self.algorithms.setdefault(algorithm, AlgorithmMetrics())
            sigma = _stated_errors(reconstruction.particles, algorithm) if len(particles) else None
            metrics.update(true, particles, matches, close, positions, sigma)
            if reconstruction.candidates is not None and "existence" in reconstruction.particles.fields:
                listed, less = (
                    jagged.flat(of["existence"]) for of in (reconstruction.particles, reconstruction.candidates)
                )
                metrics.n_candidates += int(np.sum(listed <= less.max(initial=-1)))
            # The reference is checked with the events, and the oracle follows the links.
            if algorithm not in (ORACLE, REFERENCE) and events.tracks is not None and self.settings.use_tracks:
                charged, alone = charged_without_track(events, reconstruction.particles, near=NEAR_TRACK)
                metrics.tracked.add(charged=charged, alone=alone)
            metrics.parts["track_momentum"].update(reconstruction.track_momentum(events))
            self._names.setdefault(algorithm, {})[reconstruction.name] = None

    def result(self) -> EvaluationResult:
        """The numbers so far."""
        # Figures have their curves by title: of two algorithms with the same one, one would be lost.
        n_titles = Counter(self.titles.values())
        some = next(iter(self.algorithms.values()), None)
        samples = list(self.samples)
        return EvaluationResult(
            settings=self.settings,
            warnings=(),  # or mypy takes the counts for them
            **self.counts,
            name=self.name,
            algorithms={algorithm: metrics.result() for algorithm, metrics in self.algorithms.items()},
            titles={name: f"{title} ({name})" if n_titles[title] > 1 else title for name, title in self.titles.items()},
            sample=", ".join(samples[:2]) + (f" and {len(samples) - 2} more" if len(samples) > 2 else ""),
            detector=", ".join(self.detectors),
            energy="" if some is None else _energy_text(some.parts["event"].columns["true_energy"]),
        )


def _energy_text(energy: Floats) -> str:
    """The visible energies of events in words.

    >>> _energy_text(np.array([91.2, 91.19, 91.2, 85.0]))
    '91.2 GeV'
    """
    if not len(energy):
        return ""
    low, middle, high = np.quantile(energy, (0.0, 0.5, 1.0)).tolist()
    # Neutrinos give a sample of one energy a tail below and none above: the median is compared with the largest.
    return f"{high:.3g} GeV" if middle > 0.99 * high else f"{low:.3g} to {high:.3g} GeV"


def visible_truth(events: Events, targets: Targets) -> ParticleTable:
    """The particles of the true visible energy and mass: under ``stable`` all visible stable ones, else the targets.

    Soft particles and particles in the beam pipe are thus counted as lost energy. Particles of overlaid background
    (EDM4hep's ``simulatorStatus``) do not count, and of a particle that is stable and decays only its products.
    """
    if targets.rule != "stable":
        return ParticleTable.from_records(targets.particles)
    return ParticleTable.from_records(events.truth).take(targets.final)


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
    if options and isinstance(truth, Events):
        raise TypeError(f"{', '.join(options)}: for files of events; the truth rule and the like are in `settings`")
    check_fields(options, (field.name for field in dataclasses.fields(ReadOptions)), "options of reading")
    name = name or (reco.name if isinstance(reco, Reconstruction) else collection)
    # Its particles would be those of the file's reference, or of the oracle that is made here.
    if name == REFERENCE or (oracle and name == ORACLE):
        raise ConfigError(f"the name '{name}' is taken: give the reconstruction another one (name)")
    check_type(compare, Mapping | None, "compare: further reconstructions by their names")
    for further in compare or {}:
        if further in (name, ORACLE, REFERENCE):
            raise ConfigError(f"compare: the name '{further}' is taken")
    check_type(settings, EvaluationSettings | None, "pflow.EvaluationSettings")
    sources = {name: reco, **(compare or {})}
    recos = {key: source for key, source in sources.items() if isinstance(source, Reconstruction)}
    if any(isinstance(source, Reconstruction) != isinstance(truth, Events) for source in sources.values()):
        raise TypeError(
            "expected files of reconstructions and of events, or both in memory: pflow.read_reco and pflow.read_events "
            "read them; pflow.Reconstruction(particles=..., event=events.event, flags=events.flags) is of an array"
        )
    if isinstance(truth, Events):
        total = Evaluation(name=name, settings=settings or truth_settings(recos), oracle=oracle)
        total.update(truth, recos, on_error=on_error)
        return _finished(total, truth.path)
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
    notes = {name: [provenance_of(path) or {} for path in paths] for name, paths in files.items()}
    for name, paths in files.items():
        check_order(paths, truth)
        if differing := differing_origins(notes[name]):
            warn(f"{name}: its files were made with different {differing}", ImplausibleWarning)
    if again := [path for path, n in Counter(truth).items() if n > 1]:
        warn(f"{again[0]}: given more than once, and its events count as often", ImplausibleWarning)
    inputs = [entry for paths in files.values() for path in paths for entry in _inputs(path) or ()]
    scales = notes[total.name][0].get("configuration", {}).get("tokeniser", {}).get("sample")
    sample = None if scales is None else from_plain(SampleScales, scales, "sample")
    reading = dataclasses.replace(
        reading,
        truth_tracks=reading.truth_tracks or any(entry.get("truth_tracks") for entry in inputs),
        expected=Expected(targets=total.settings.chosen_by, sample=sample),
    )
    # With one file each, a file that fails costs only its own events; else no part can be left out.
    one_each = all(len(paths) == len(truth) for paths in files.values())
    parts = [slice(i, i + 1) for i in range(len(truth))] if one_each else [slice(None)]
    skip = reading.on_error == "skip"
    failed: list[InputError] = []
    for done, part in enumerate(parts):
        # Chunks of a file are counted before a later entry of it can fail.
        before = copy.deepcopy(total) if skip else total
        part_files = {name: paths[part] for name, paths in files.items()}
        shown = {name: ", ".join(paths) for name, paths in part_files.items()}
        try:
            truth_chunks = reading.iterate(truth[part], chunk_size)
            chunks = _chunks(total, part_files, truth_chunks, collection)
            for number, (events, recos) in enumerate(chunks):
                if not number:  # each further chunk would repeat the warning
                    for name, paths in part_files.items():
                        check_description(paths[0], name, events)
                total.update(events, recos, on_error=reading.on_error, files=shown)
                progress(total.counts["n_events"], done, len(parts))
        except InputError as error:
            if not skip:
                raise
            failed.append(error)
            total = before  # no event of a failed file counts
        progress(total.counts["n_events"], done + 1, len(parts))
    leave_out_files(failed, len(parts))
    return _finished(total, truth[0])


def _chunks(
    total: Evaluation, files: Mapping[str, Sequence[str]], events: Iterable[Events], collection: str
) -> Iterator[tuple[Events, dict[str, Reconstruction]]]:
    """Each chunk of events with its entries of the reconstructions, which may be spread over other numbers of files.

    InputError names the first entry that only the truth or only a reconstruction has.
    """
    links: Any = "required" if isinstance(total.settings.matching, HitMatching) else "left out"
    bounds = {name: [0, *itertools.accumulate(map(count_entries, paths))] for name, paths in files.items()}
    read, start = functools.partial(read_reco, name=collection, links=links), 0
    for chunk in filter(len, events):
        stop, recos = start + len(chunk), {}
        for name, paths in files.items():
            if (end := bounds[name][-1]) < stop:
                raise InputError("ends here, but the truth has more events", file=", ".join(paths), entry=end)
            parts = [
                read(path, entry_start=max(start - first, 0), entry_stop=min(stop, last) - first)
                for path, (first, last) in zip(paths, itertools.pairwise(bounds[name]), strict=True)
                if first < stop and start < last
            ]
            recos[name] = concatenate_reconstructions(parts)
        yield chunk, recos
        start = stop
    for name, paths in files.items():
        if bounds[name][-1] > start:
            raise InputError("has more events, but the truth ends here", file=", ".join(paths), entry=start)


def _finished(total: Evaluation, file: str) -> EvaluationResult:
    """The result, with warnings of events that are there twice, and of energies and momenta that do not fit.

    InputError: no events, or none has a target, so that all particles would be fakes.
    """
    if not total.counts["n_events"]:
        raise InputError("no events to evaluate", file=file or None)
    if not total.n_targets:
        if total.counts["n_events"] == total.counts["n_bad_input"] > 0:
            raise InputError("none of the events can be evaluated: all were left out", file=file or None)
        rule, e_min = total.settings.rule, total.settings.e_min
        raise InputError(
            f"no true particle is a target under truth rule '{rule}' above {e_min:g} GeV: choose another with --rule "
            f"({', '.join(RULES)}), or see with pflow inspect whether the links of hits and tracks lead to particles; "
            f"`pflow.select_targets(events, rule='{rule}', e_min={e_min:g}).dropped` has reasons",
            file=file or None,
        )
    result = total.result()
    said = tuple(_implausible(total, result, file))
    for text in said:
        warn(text, ImplausibleWarning)
    return dataclasses.replace(result, warnings=said)


def _stated_errors(particles: ak.Array, algorithm: str) -> Floats | None:
    """Standard deviations of the energies, GeV, by the particles' covariance; None without. InputError: its shape."""
    if "covariance" not in particles.fields:
        return None
    covariance = jagged.columns(particles)["covariance"]
    if covariance.shape[1:] != (len(COVARIANCE),):
        text = f"expected {len(COVARIANCE)} elements a particle (pflow.physics.kinematics.COVARIANCE)"
        raise InputError(f"{text}, found an array of shape {covariance.shape}", field=f"{algorithm}.covariance")
    sigma: Floats = np.sqrt(covariance[:, -1].clip(0.0))
    return sigma


def _implausible(total: Evaluation, result: EvaluationResult, file: str) -> Iterator[str]:
    """What is said of implausible events and particles."""
    for column, what in (("start", "hits"), ("alike", "true particles, with other hits,")):
        marks = total.marks[column][np.isfinite(total.marks[column][:, 0])]
        if (again := len(marks) - len(np.unique(marks, axis=0))) > 0.01 * len(marks):
            text = f"{again} events have the {what} of another one: they count as often, and errors are too small"
            yield f"{file}: {text}"
            break
    sums = {name: tree["event"]["visible_energy"] for name, tree in result.algorithms.items()}
    widths = {name: tree["resolution_68_over_median"].value for name, tree in sums.items()}
    for name, metrics in total.algorithms.items():
        title, n = total.titles[name], len(metrics.particles.reco["energy"])
        # Of 29,000 particles of `general` and Pandora in five validation samples none is exact.
        if metrics.n_exact >= 20 and metrics.n_exact > 0.01 * n:
            text = f"{metrics.n_exact} of {n} particles have exactly the energy and direction of a true one"
            yield f"{title}: {text}: are they the truth?"
        # The smallest ratio to the oracle's width is 0.6, of single neutrons in 30 events or more.
        if widths[name] < 0.33 * widths.get(ORACLE, 0.0) and metrics.particles.n_events >= MIN_EVENTS:
            text = f"the sums of energies have a resolution of {widths[name]:.2%}, with perfect pattern recognition "
            text += f"{widths[ORACLE]:.2%}: were they scaled to a known energy? Then they are no measurement"
            yield f"{title}: {text}"
        for quantity, text in OFF.items():
            if (n_off := metrics.n_off[quantity]) > 0.1 * n:
                yield f"{title}: {n_off} of {n} particles have {text}"
        if metrics.n_candidates:
            text = f"{metrics.n_candidates} of {n} particles exist no more probably than candidates do"
            yield f"{title}: {text}: were candidates added to the list? Leave them out"
        yield from without_tracks(title, metrics.tracked["charged"], metrics.tracked["alone"])
        energy, true = (metrics.parts["event"].columns[column] for column in ("energy", "true_energy"))
        far = (true > 0) & (energy > np.maximum(3.0 * true, true + 10.0))  # GeV
        if far.any():
            text = f"{title}: particles of {np.count_nonzero(far)} of {len(far)} events have up to "
            text += f"{energy[far].max():.4g} GeV, and their true visible energy is up to {true[far].max():.4g} GeV"
            yield f"{text}: are they in GeV, and of one event?"


def without_tracks(name: str, charged: Floats, alone: Floats) -> Iterator[str]:
    """What is said of particles that seem to be of other events; parameters as `charged_without_track` gives them."""
    known = charged >= 4  # events of fewer say little
    n_others, n_known = (int(np.sum(of)) for of in (known & (2 * alone > charged), known))
    # Where events are in each other's place there are two; a few may have many decays or stops in the tracker.
    if n_others >= min(2, n_known) and n_others > 0.02 * n_known:
        text = f"in {n_others} of {n_known} events most charged particles have no track of their charge, direction"
        yield f"{name}: {text} and momentum: are they of other events, changed, or of a poor model?"


def truth_settings(
    recos: Mapping[str, Reconstruction] | Mapping[str, Sequence[FilePath]], **given: Any
) -> EvaluationSettings:
    """Settings with the truth rule, `e_min` and further options of the model that made the first of `recos`.

    `recos`: reconstructions or their files, by algorithm. Without the model's training options: the defaults. Options
    `given` and not None take precedence. An `ImplausibleWarning` names a model that was trained with another rule.
    """
    trained: dict[str, EvaluationSettings | None] = {}
    for name, reco in recos.items():
        if isinstance(reco, Reconstruction):
            options, origin = reco.trained_with, f"trained_with of {reco.name}"
        else:
            options, origin = truth_options(provenance_of(reco[0])), str(reco[0])
        trained[name] = None if options is None else from_plain(EvaluationSettings, options, origin)
    model = next(iter(trained.values())) or EvaluationSettings()
    settings = dataclasses.replace(model, **{name: value for name, value in given.items() if value is not None})
    for name, training in trained.items():
        if training is not None and training.rule != settings.rule:
            warn(
                f"{name} is evaluated under rule '{settings.rule}', its model was trained with '{training.rule}', "
                "which counts other particles",
                ImplausibleWarning,
            )
    return settings


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
    # A merged file may have the provenance of one part only, with fewer entries than the file.
    stated = [entry.get("entries") for entry in inputs]
    return inputs if None in stated or sum(stated) == count_entries(str(path)) else None


def check_description(reco: FilePath, name: str, events: Events) -> None:
    """Warn of particles of a model that reads the geometry, made with another description of the events' detector."""
    made = provenance_of(reco) or {}
    by_geometry = made.get("configuration", {}).get("tokeniser", {}).get("config", {}).get("geometry")
    described = {entry["description"] for entry in _inputs(reco) or () if entry.get("description")}
    if by_geometry and described and digest(events.detector) not in described:
        options = made.get("options", {})
        before = options.get("read_as")
        if not isinstance(before, str):  # a detector that was made in Python is stored as a whole
            before = f"detector '{options.get('detector')}' as it was described then"
        warn(
            f"{reco}: the particles of {name} were made with another description ({before}) than the one that the "
            f"truth is read with, detector '{events.detector.name}': give the same --detector",
            ImplausibleWarning,
        )


def _input_uuids(path: FilePath) -> list[Any]:
    return [entry.get("uuid") for entry in _inputs(path) or ()]


def check_order(reco: Sequence[str], truth: Sequence[str]) -> None:
    """Refuse reconstructions of other files than `truth`, or in another order; event numbers would not show it."""
    made_from: list[tuple[str, Mapping[str, Any]]] = []
    for path in reco:
        inputs = _inputs(path)
        if inputs is None:
            # A file without provenance may be the truth, given in the place of the reconstruction.
            for expected in truth:
                if file_uuid(path) in _input_uuids(expected):
                    text = f"{expected} was made from this file: give the reconstruction first, and this as the truth"
                    raise InputError(text, file=path)
            return
        made_from += [(path, entry) for entry in inputs]
    if len(made_from) != len(truth):  # one of them was merged
        return
    for (path, entry), expected in zip(made_from, truth, strict=True):
        known, uuid, source = file_uuid(expected), entry.get("uuid"), str(entry.get("path"))
        # An output of pflow may hold the truth of its input, and so the truth of other outputs from that input.
        if known and uuid and uuid != known and uuid not in _input_uuids(expected):
            text = f"was made from {source} and not from {expected}: give what it was made from, in the same order"
            if os.path.realpath(source) == os.path.realpath(expected):
                text = f"was made from an earlier {expected}, written again since: reconstruct it again"
            raise InputError(text, file=path)
