"""Evaluation of reconstructions against the truth: chunks of events in, a tree of results for each algorithm out."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from pflow.errors import ConfigError, InputError, check_choice
from pflow.event.events import Events, Flag, ImplausibleWarning, without_refused
from pflow.event.jagged import Links
from pflow.event.particles import Reconstruction
from pflow.event.truth import RULES, STABLE_STATUS, Targets, select_targets
from pflow.metrics import jets
from pflow.metrics.event import CountMetrics, EventMetrics, IndexedMetrics, TrackMetrics
from pflow.metrics.match import HitMatching, Matches, Matching, match, match_by_hits
from pflow.metrics.oracle import ORACLE, load_calibration, perfect_reconstruction
from pflow.metrics.particles import ParticleMetrics
from pflow.metrics.stats import Floats, Tree
from pflow.metrics.table import ParticleTable

REFERENCE = "reference"
"""Name in the results of the algorithm whose particles are in the truth file (`Events.reference`)."""

WITHOUT_HITS = Matching()
"""Matching of an algorithm without links from hits, if the algorithm under evaluation is matched by hits."""

MIN_MATCHED = 0.3
"""If a smaller fraction of an event's true energy is matched, the particles may be another event's."""
UNLIKE, MIN_UNLIKE = 0.2, 3
"""Smallest fraction and number of such events in a chunk that are compared with the next event's truth."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Options that the numbers of an evaluation depend on.

    `rule` to `invisible` are options of `pflow.event.truth.select_targets`, `e_min` in GeV. For `matching` by hits, the
    algorithm under evaluation must have links from hits to its particles; other algorithms without such links are
    matched by energy and angle (`WITHOUT_HITS`), and the result names them.

    >>> EvaluationSettings(rule="calo", e_min=0.5).matching.cut
    3.0
    """

    rule: str = "stable"
    e_min: float = 0.1
    use_tracks: bool = True
    stable_status: tuple[int, ...] = STABLE_STATUS
    invisible: tuple[int, ...] = ()
    matching: Matching | HitMatching = dataclasses.field(default_factory=Matching)

    @property
    def chosen_by(self) -> dict[str, Any]:
        """The options of `select_targets`."""
        return {name: getattr(self, name) for name in ("rule", "e_min", "use_tracks", "stable_status", "invisible")}

    def targets(self, events: Events) -> Targets:
        """The targets of the events."""
        return select_targets(events, **self.chosen_by)


class AlgorithmMetrics:
    """All metrics of one algorithm; jets if fastjet is installed."""

    def __init__(self) -> None:
        self.n_events = 0
        self.particles = ParticleMetrics()
        self.counts = CountMetrics()
        self.events = EventMetrics()
        self.tracks = TrackMetrics()
        self.indexed = IndexedMetrics()
        self.jets = jets.JetMetrics() if jets.available() else None

    def update(
        self,
        *,
        truth: ParticleTable,
        visible: ParticleTable,
        reco: ParticleTable,
        matches: Matches,
        expected: ParticleTable | None = None,
    ) -> None:
        """Count events by their targets, visible truth, reconstructed particles and matched pairs.

        `expected` are the reconstructed particles for sums (`Reconstruction.expected`), by default the same.
        """
        expected = reco if expected is None else expected
        self.n_events += len(truth.counts)
        self.particles.update(truth, reco, matches, expected)
        self.counts.update(truth, reco)
        self.events.update(visible, expected)
        self.indexed.update(truth, reco)
        if self.jets is not None:
            self.jets.update(visible, expected)

    def result(self) -> Tree:
        """Results by name; with the keys of ``metrics.json``."""
        return {
            "n_events": self.n_events,
            "count": self.counts.result(),
            **self.particles.result(),
            "event": self.events.result(),
            "track_momentum": self.tracks.result(),
            **({} if self.jets is None else {"jets": self.jets.result()}),
            "energy_rank": self.indexed.result(),
        }


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class EvaluationResult:
    """The numbers of an evaluation.

    Parameters
    ----------
    n_events, n_bad_input, n_max_particles, n_truth_tracks
        Numbers of all events; of events left out for bad input; of events that reached the maximum number of particles;
        of events whose tracks were made from Monte Carlo particles, in the truth file or for a reconstruction.
    algorithms
        Results by algorithm: `name` first; ``oracle`` on request; ``reference`` if the truth file has a reference.
    titles, calibrations
        Name of each algorithm for tables and plots; origin of the oracle's calibration by detector.
    matched_otherwise
        Definition of the matching of each algorithm that cannot be matched by the rule of `settings`.
    """

    settings: EvaluationSettings
    n_events: int
    n_bad_input: int
    n_max_particles: int
    n_truth_tracks: int = 0
    name: str
    algorithms: dict[str, Tree]
    titles: dict[str, str]
    calibrations: dict[str, str] = dataclasses.field(default_factory=dict)
    matched_otherwise: dict[str, str] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        numbers = {name: tree["class"]["all"]["efficiency"].value for name, tree in self.algorithms.items()}
        texts = (f"{self.titles.get(name, name)} {value:.3f}" for name, value in numbers.items())
        return f"<EvaluationResult: {self.n_events} events, efficiency: {', '.join(texts)}>"

    def _repr_html_(self) -> str:
        """The table of `pflow evaluate`, for notebooks."""
        from pflow.metrics.report import html, summary

        return html(self, caption=summary(self))


class Evaluation:
    """Accumulates chunks of events.

    `oracle` adds the algorithm ``oracle``, perfect pattern recognition; as `name` it is the one under evaluation.
    Exact quantiles need about 40 bytes of memory for each matched particle and algorithm.
    """

    def __init__(
        self, *, name: str = "PFlow", settings: EvaluationSettings | None = None, oracle: bool = False
    ) -> None:
        self.name = name
        self.oracle = oracle
        self.settings = settings or EvaluationSettings()
        check_choice(self.settings.rule, RULES, "truth rule")
        if not self.settings.e_min >= 0:
            raise ConfigError(f"e_min must be at least 0 GeV, found {self.settings.e_min}")
        self.counts = dict.fromkeys(("n_events", "n_bad_input", "n_max_particles", "n_truth_tracks"), 0)
        self.n_targets = 0
        self.algorithms: dict[str, AlgorithmMetrics] = {}
        self.titles: dict[str, str] = {}
        self.calibrations: dict[str, str] = {}
        self.matched_by: dict[str, str] = {}
        self.unlike: Counter[str] = Counter()  # events whose particles do not fit the truth, by algorithm

    def update(
        self,
        events: Events,
        reconstructions: Mapping[str, Reconstruction],
        *,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Count events with truth and links, and their reconstructions by algorithm, including `name`.

        `InputError`: the events hold no truth, a reconstruction is of other events, a particle's numbers are not
        finite, or links from hits, for matching by hits, are missing or wrong.
        """
        if self.name not in reconstructions and not (self.oracle and self.name == ORACLE):
            raise ValueError(f"expected the reconstruction '{self.name}', found {', '.join(reconstructions) or 'none'}")
        good = (events.flags & Flag.BAD_INPUT) == 0
        for reconstruction in reconstructions.values():
            reconstruction.check_events(events)
            good &= (reconstruction.flags & Flag.BAD_INPUT) == 0
        self.counts["n_events"] += len(events)
        self.counts["n_bad_input"] += int(np.sum(~good))
        flags = np.bitwise_or.reduce([events.flags, *(reco.flags for reco in reconstructions.values())])
        self.counts["n_truth_tracks"] += int(np.sum((flags & Flag.TRUTH_TRACKS) != 0))
        if self.name in reconstructions:
            stopped = (reconstructions[self.name].flags & Flag.MAX_PARTICLES) != 0
            self.counts["n_max_particles"] += int(np.sum(stopped))

        events, settings = events[good], self.settings
        recos = {algorithm: reconstruction[good] for algorithm, reconstruction in reconstructions.items()}
        targets, events = without_refused(events, settings.targets, on_error)
        good = (events.flags & Flag.BAD_INPUT) == 0
        if not good.all():
            self.counts["n_bad_input"] += int(np.sum(~good))
            events, recos = events[good], {algorithm: reco[good] for algorithm, reco in recos.items()}
            targets = settings.targets(events)
        if self.oracle:
            calibration = load_calibration(events.detector)
            recos[ORACLE] = perfect_reconstruction(events, targets, calibration, use_tracks=settings.use_tracks)
            self.calibrations[events.detector.name] = calibration.origin
        if events.reference is not None:
            recos[REFERENCE] = Reconstruction(
                particles=events.reference,
                event=events.event,
                flags=events.flags,
                name=events.reference_name or REFERENCE,
            )
        self.n_targets += int(targets.counts.sum())
        truth, visible = ParticleTable.from_records(targets.particles), visible_truth(events, targets)
        for algorithm, reconstruction in recos.items():
            if reconstruction.track_links is not None:
                reconstruction.check_links("track_links", events)
            where: dict[str, Any] = {"name": reconstruction.name, "file": events.path or None, "entries": events.entry}
            reco = expected = ParticleTable.from_records(reconstruction.particles, **where)
            if "existence" in reconstruction.optional_parts:
                expected = ParticleTable.from_records(reconstruction.expected, **where)
            matches = self._match(algorithm, events, targets, reconstruction, truth, reco)
            metrics = self.algorithms.setdefault(algorithm, AlgorithmMetrics())
            metrics.update(truth=truth, visible=visible, reco=reco, expected=expected, matches=matches)
            metrics.tracks.update(reconstruction.track_momentum(events))
            self.unlike[algorithm] += self._count_unlike(truth, reco, matches)
            self.titles[algorithm] = reconstruction.name

    def _match(
        self,
        algorithm: str,
        events: Events,
        targets: Targets,
        reconstruction: Reconstruction,
        truth: ParticleTable,
        reco: ParticleTable,
    ) -> Matches:
        """Matches by the rule of the settings, or by `WITHOUT_HITS` for a further algorithm without links."""
        rule, links = self.settings.matching, reconstruction.hit_links
        if isinstance(rule, HitMatching) and links is None:
            if algorithm == self.name:
                raise InputError(
                    f"reconstruction '{algorithm}' has no links from hits to its particles: match it by energy and "
                    "angle",
                    field="hit_links",
                )
            rule = WITHOUT_HITS
        if self.matched_by.setdefault(algorithm, rule.definition) != rule.definition:
            raise ValueError(f"some chunks of reconstruction '{algorithm}' have links from hits and others have none")
        if isinstance(rule, Matching):
            return match(truth, reco, rule)
        reconstruction.check_links("hit_links", events)
        true_links = Links.of(targets.hit_links)
        return match_by_hits(true_links, Links.of(links), events.hits, truth.counts, reco.counts, rule)

    def _count_unlike(self, truth: ParticleTable, reco: ParticleTable, matches: Matches) -> int:
        """Number of events whose particles fit the next event's truth as well, if there are many."""
        if isinstance(self.settings.matching, HitMatching):  # its links are checked
            return 0
        if self.settings.matching != WITHOUT_HITS:
            matches = match(truth, reco, WITHOUT_HITS)
        matched = _matched_energy(truth, matches)
        unlike = matched < MIN_MATCHED * truth.sum_by_event(truth.energy)
        if unlike.sum() < max(MIN_UNLIKE, UNLIKE * len(unlike)):
            return 0
        next_truth = truth.next_event()
        matched_next = _matched_energy(next_truth, match(next_truth, reco, WITHOUT_HITS))
        return int(unlike.sum()) if matched[unlike].sum() <= 2 * matched_next[unlike].sum() else 0

    def result(self) -> EvaluationResult:
        """The numbers so far, with a warning about an algorithm whose particles do not fit their events."""
        for algorithm, n_events in self.unlike.items():
            if n_events:
                text = (
                    f"in {n_events} of {self.counts['n_events']} events less than {MIN_MATCHED:.0%} of the true "
                    f"energy is matched by '{algorithm}', no more than in the next event: are these its events, in "
                    "their order?"
                )
                warnings.warn(text, ImplausibleWarning, stacklevel=3)
        default = self.settings.matching.definition
        return EvaluationResult(
            settings=self.settings,
            **self.counts,
            name=self.name,
            algorithms={algorithm: metrics.result() for algorithm, metrics in self.algorithms.items()},
            titles=_distinct(self.titles),
            calibrations=dict(self.calibrations),
            matched_otherwise={name: rule for name, rule in self.matched_by.items() if rule != default},
        )


def _matched_energy(truth: ParticleTable, matches: Matches) -> Floats:
    """Energy of each event's true particles that have a match, GeV, float64 [event]."""
    return truth.sum_by_event(truth.energy * np.isin(np.arange(len(truth)), matches.truth))


def visible_truth(events: Events, targets: Targets) -> ParticleTable:
    """The particles of the true visible energy and mass: under ``stable`` all visible stable ones, else the targets.

    Soft particles and particles in the beam pipe are thus counted as lost energy.
    """
    if targets.rule != "stable":
        return ParticleTable.from_records(targets.particles)
    return ParticleTable.from_records(events.truth).take(targets.final)


def _distinct(titles: Mapping[str, str]) -> dict[str, str]:
    """Titles by algorithm; a title of several algorithms gets their names added."""
    counts = Counter(titles.values())
    return {name: title if counts[title] == 1 else f"{title} ({name})" for name, title in titles.items()}
