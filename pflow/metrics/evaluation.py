"""Evaluation of reconstructions against the truth: chunks of events in, one tree of results for each algorithm out."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np

from pflow.errors import ConfigError, InputError
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.particles import Reconstruction
from pflow.event.truth import RULES, Targets, select_targets
from pflow.event.validate import validate_links
from pflow.metrics import jets
from pflow.metrics.counting import CountMetrics
from pflow.metrics.event import EventMetrics
from pflow.metrics.indexed import IndexedMetrics
from pflow.metrics.jets import JetMetrics
from pflow.metrics.match import Matches, Matching, match
from pflow.metrics.oracle import NAME as LIMIT
from pflow.metrics.oracle import perfect_reconstruction
from pflow.metrics.oracle_calibration import load_calibration
from pflow.metrics.overlap import HitMatching, HitSets, match_by_hits
from pflow.metrics.particles import ParticleMetrics
from pflow.metrics.stats import Tree, merged
from pflow.metrics.table import ParticleTable
from pflow.physics.pdg import is_neutrino

__all__ = [
    "CLASSICAL",
    "LIMIT",
    "Evaluation",
    "EvaluationResult",
    "LineMetrics",
    "Settings",
    "evaluate",
    "visible_truth",
]

CLASSICAL = "classical"
"""Name of the line of another algorithm's particles that the truth file itself holds (`Events.reference`)."""

WITHOUT_HITS = Matching()
"""How lines are matched that do not say which hits their particles were made of, beside one matched by hits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the numbers of an evaluation depend on, beside the events.

    Parameters
    ----------
    rule, e_min, use_tracks
        Truth rule, least energy of a target in GeV and whether a track makes a particle a target: see
        `pflow.event.truth.select_targets`.
    matching
        Rule of assignment. By hits, the line under evaluation must say which hits its particles were made of; other
        lines that do not are matched by energy and angle (`WITHOUT_HITS`), and the result says so.
    """

    rule: str = "stable"
    e_min: float = 0.1
    use_tracks: bool = True
    matching: Matching | HitMatching = dataclasses.field(default_factory=Matching)


class LineMetrics:
    """All metrics of one algorithm: the accumulators of this package side by side; jets where fastjet is installed."""

    def __init__(self) -> None:
        self.n_events = 0
        self.particles = ParticleMetrics()
        self.counts = CountMetrics()
        self.events = EventMetrics()
        self.legacy = IndexedMetrics()
        self.jets = JetMetrics() if jets.available() else None

    def update(self, *, truth: ParticleTable, visible: ParticleTable, reco: ParticleTable, matches: Matches) -> None:
        """Count events: their targets, their visible truth, what was reconstructed, and which answers for which."""
        self.n_events += len(truth.counts)
        self.particles.update(truth, reco, matches)
        self.counts.update(truth, reco)
        self.events.update(visible, reco)
        self.legacy.update(truth, reco)
        if self.jets is not None:
            self.jets.update(visible, reco)

    def result(self) -> Tree:
        """Results by name; the keys are those of ``metrics.json``."""
        return {
            "n_events": self.n_events,
            "count": self.counts.result(),
            **self.particles.result(),
            "event": self.events.result(),
            **({} if self.jets is None else {"jets": self.jets.result()}),
            "legacy": self.legacy.result(),
        }


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationResult:
    """What an evaluation found.

    Parameters
    ----------
    settings
        As given.
    n_events, n_bad_input, n_max_particles
        Events seen; those left out because an input was bad; those in which generation stopped at its limit.
    name
        The line under evaluation.
    lines
        Results by line, `name` first; ``limit`` if asked for; ``classical`` if the truth file holds another algorithm's
        particles.
    titles
        Name of the algorithm behind each line, for tables and plots.
    calibrations
        By detector, what the calibration of the limit was fitted on.
    matched_otherwise
        Definition of the matching by line, for those that could not be matched as `settings` says.
    """

    settings: Settings
    n_events: int
    n_bad_input: int
    n_max_particles: int
    name: str
    lines: dict[str, Tree]
    titles: dict[str, str]
    calibrations: dict[str, str] = dataclasses.field(default_factory=dict)
    matched_otherwise: dict[str, str] = dataclasses.field(default_factory=dict)


class Evaluation:
    """Accumulates chunks of events in constant memory; partial evaluations merge to exactly the result of one pass.

    Parameters
    ----------
    name
        The reconstruction under evaluation: its line in the results.
    settings
        Truth rule and matching.
    limit
        Whether to add the line ``limit``: what perfect pattern recognition would reconstruct (`pflow.metrics.oracle`).
        With `name` ``limit`` it is itself what is evaluated.

    Raises
    ------
    ConfigError
        `settings.rule` is not a truth rule, or e_min is negative.
    """

    def __init__(self, *, name: str = "PFlow", settings: Settings | None = None, limit: bool = False) -> None:
        self.name = name
        self.limit = limit
        self.settings = settings or Settings()
        if self.settings.rule not in RULES:
            raise ConfigError(f"no truth rule '{self.settings.rule}': expected one of {', '.join(RULES)}")
        if not self.settings.e_min >= 0:
            raise ConfigError(f"e_min must be at least 0 GeV, found {self.settings.e_min}")
        self.n_events = 0
        self.n_bad_input = 0
        self.n_max_particles = 0
        self.lines: dict[str, LineMetrics] = {}
        self.titles: dict[str, str] = {}
        self.calibrations: dict[str, str] = {}
        self.matched_by: dict[str, str] = {}

    def update(self, events: Events, reconstructions: Mapping[str, Reconstruction]) -> None:
        """Count events.

        Parameters
        ----------
        events
            With truth particles and links.
        reconstructions
            Answers for these very events, by the name of their line; `name` must be among them (or be the limit).

        Raises
        ------
        InputError
            The events hold no truth, a reconstruction is of other events, a particle's numbers are not finite, or, for
            matching by hits, there are no links from hits or wrong ones.
        ValueError
            `reconstructions` lacks the line under evaluation.
        """
        if self.name not in reconstructions and not (self.limit and self.name == LIMIT):
            raise ValueError(f"expected the reconstruction '{self.name}', found {', '.join(reconstructions) or 'none'}")
        good = (events.flags & Flag.BAD_INPUT) == 0
        for line, reconstruction in reconstructions.items():
            _check_same_events(events, line, reconstruction)
            good &= (reconstruction.flags & Flag.BAD_INPUT) == 0
        self.n_events += len(events)
        self.n_bad_input += int(np.sum(~good))
        if self.name in reconstructions:
            self.n_max_particles += int(np.sum((reconstructions[self.name].flags & Flag.MAX_PARTICLES) != 0))

        events = events[good]
        targets = select_targets(
            events, rule=self.settings.rule, e_min=self.settings.e_min, use_tracks=self.settings.use_tracks
        )
        answers = {line: reconstruction[good] for line, reconstruction in reconstructions.items()}
        if self.limit:
            calibration = load_calibration(events.detector)
            answers[LIMIT] = perfect_reconstruction(events, targets, calibration, use_tracks=self.settings.use_tracks)
            self.calibrations[events.detector.name] = calibration.origin
        if events.reference is not None:
            answers[CLASSICAL] = Reconstruction(
                particles=events.reference,
                event=events.event,
                flags=events.flags,
                name=events.reference_name or CLASSICAL,
            )
        truth = ParticleTable.from_records(targets.particles)
        visible = visible_truth(events, targets)
        for line, answer in answers.items():
            reco = ParticleTable.from_records(
                answer.particles, name=answer.name, file=events.path or None, entries=events.entry
            )
            matches = self._match(line, events, targets, answer, truth, reco)
            metrics = self.lines.setdefault(line, LineMetrics())
            metrics.update(truth=truth, visible=visible, reco=reco, matches=matches)
            self.titles[line] = answer.name

    def _match(
        self,
        line: str,
        events: Events,
        targets: Targets,
        answer: Reconstruction,
        truth: ParticleTable,
        reco: ParticleTable,
    ) -> Matches:
        """Matches of a line by the rule of the settings, or, if it has no hits to be matched by, by the other one."""
        rule = self.settings.matching
        if isinstance(rule, HitMatching) and answer.hit_links is None:
            if line == self.name:
                raise InputError(
                    f"reconstruction '{line}' does not say which hits its particles were made of: match it by energy "
                    "and angle",
                    field="hit_links",
                )
            rule = WITHOUT_HITS
        if self.matched_by.setdefault(line, rule.definition) != rule.definition:
            raise ValueError(f"some chunks of reconstruction '{line}' have links from hits and others have none")
        if isinstance(rule, Matching):
            return match(truth, reco, rule)
        _check_links(events, line, answer)
        n_hits = jagged.count(events.hits)
        return match_by_hits(
            HitSets.from_links(targets.hit_links, n_hits=n_hits, n_particles=truth.counts),
            HitSets.from_links(answer.hit_links, n_hits=n_hits, n_particles=reco.counts),
            jagged.flat(events.hits["energy"], np.float64),
            least_overlap=rule.least_overlap,
        )

    def merge(self, other: Evaluation) -> None:
        """Count what another evaluation of other events has counted.

        Raises
        ------
        ValueError
            It was made with other settings or for another line, or a line was matched in another way.
        """
        if (self.name, self.settings, self.limit) != (other.name, other.settings, other.limit):
            raise ValueError("cannot merge evaluations of different lines or with different settings")
        for line, definition in other.matched_by.items():
            if self.matched_by.setdefault(line, definition) != definition:
                raise ValueError(f"cannot merge evaluations in which '{line}' was matched in different ways")
        self.n_events += other.n_events
        self.n_bad_input += other.n_bad_input
        self.n_max_particles += other.n_max_particles
        for line, metrics in other.lines.items():
            self.lines[line] = merged(self.lines[line], metrics) if line in self.lines else metrics
        self.titles.update(other.titles)
        self.calibrations.update(other.calibrations)

    def result(self) -> EvaluationResult:
        """The numbers so far."""
        lines = {line: metrics.result() for line, metrics in self.lines.items()}
        return EvaluationResult(
            settings=self.settings,
            n_events=self.n_events,
            n_bad_input=self.n_bad_input,
            n_max_particles=self.n_max_particles,
            name=self.name,
            lines=lines,
            titles=_distinct(self.titles),
            calibrations=dict(self.calibrations),
            matched_otherwise={
                line: definition
                for line, definition in self.matched_by.items()
                if definition != self.settings.matching.definition
            },
        )


def evaluate(
    events: Events, reconstruction: Reconstruction, *, settings: Settings | None = None, limit: bool = False
) -> EvaluationResult:
    """Evaluate a reconstruction of events that are in memory; parameters and errors as for `Evaluation`.

    Files of any size: `pflow evaluate` on the command line, or `Evaluation` fed chunk by chunk.
    """
    evaluation = Evaluation(name=reconstruction.name, settings=settings, limit=limit)
    evaluation.update(events, {reconstruction.name: reconstruction})
    return evaluation.result()


def visible_truth(events: Events, targets: Targets) -> ParticleTable:
    """The particles that make up the true visible energy and mass of each event.

    Under ``stable`` all particles with generator status 1 but neutrinos, whether they are targets or not: the energy
    that softness or the beam pipe hides counts as lost. Under the other rules, where status 1 does not say what a
    detector could see (a tau, say), the targets themselves.
    """
    truth = events.truth
    if targets.rule != "stable" or truth is None:
        return ParticleTable.from_records(targets.particles)
    table = ParticleTable.from_records(truth)
    status = jagged.flat(truth["status"])
    return table.take((status == 1) & ~is_neutrino(table.pdg))


def _distinct(titles: Mapping[str, str]) -> dict[str, str]:
    """Titles by line; two lines of one title have the line's name added."""
    counts = Counter(titles.values())
    return {line: title if counts[title] == 1 else f"{title} ({line})" for line, title in titles.items()}


def _check_same_events(events: Events, line: str, reconstruction: Reconstruction) -> None:
    if len(events) != len(reconstruction):
        raise InputError(
            f"the truth has {len(events)} events here, reconstruction '{line}' has {len(reconstruction)}",
            file=events.path or None,
        )
    differs = np.flatnonzero(events.event != reconstruction.event)
    if len(differs):
        first = int(differs[0])
        raise InputError(
            f"event number {events.event[first]} in the truth, {reconstruction.event[first]} in reconstruction "
            f"'{line}': not made from this file, or not in its order",
            file=events.path or None,
            entry=int(events.entry[first]),
        )


def _check_links(events: Events, line: str, reconstruction: Reconstruction) -> None:
    problems = validate_links("hit_links", reconstruction.hit_links, events.hits, reconstruction.particles)
    if problems:
        raise InputError(
            f"reconstruction '{line}': {problems[0].message}; made from other hits?",
            file=events.path or None,
            entry=int(events.entry[problems[0].index]),
            field=problems[0].field,
        )
