"""What is implausible about the events of a file, with numbers: energies, the field, hits without a target.

`check_events` runs while a file is read, by every verb, and for `pflow inspect`. A check is a generator in `CHECKS`: it
takes a `Subject`, and yields nothing where the events do not hold what it needs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.truth import STABLE_STATUS, Targets, select_targets, unknown_status
from pflow.physics.pdg import is_invisible

MUON = 13

UNITS = 30.0  # energies that differ by more than this factor are in different units
RESPONSE = (0.5, 1.5)  # plausible ratios of the energy in hits to that of the stable particles that shower
FIELD = 0.05  # largest plausible deviation of the transverse momenta of tracks from those of their particles
MIN_TRACKS = 20  # with links to particles, that show the field
OPPOSITE = 0.5  # largest plausible fraction of tracks whose charge is not their particle's
UNOWNED = 0.25  # largest plausible fraction of the hits' energy that belongs to no target


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    good: bool
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What a verb knows of the events that it reads.

    `targets`: how it chooses them, options of `pflow.event.truth.select_targets`; None: it has no targets.
    """

    targets: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """Events under check, what is expected of them, and what several checks compute from them."""

    events: Events
    expected: Expected

    @property
    def stable_status(self) -> Sequence[int]:
        """Status of stable particles."""
        chosen = self.expected.targets or {}
        return tuple(chosen.get("stable_status", STABLE_STATUS))

    @functools.cached_property
    def hit_energy(self) -> npt.NDArray[np.float64]:
        """Energy of each hit, GeV, [hit]."""
        return jagged.flat(self.events.hits.energy, np.float64)

    @functools.cached_property
    def has_stable(self) -> bool:
        """Whether there are true particles, some of them stable or none at all."""
        truth = self.events.truth
        return truth is not None and not unknown_status(jagged.flat(truth.status), self.stable_status)

    @functools.cached_property
    def showering_energy(self) -> float:
        """Energy of the stable particles, without neutrinos and muons, GeV; 0 without truth."""
        if self.events.truth is None:
            return 0.0
        columns = jagged.columns(self.events.truth)
        pdg = columns["pdg"]
        showers = np.isin(columns["status"], self.stable_status) & ~is_invisible(pdg) & (np.abs(pdg) != MUON)
        return float(columns["energy"][showers].sum())

    @functools.cached_property
    def targets(self) -> Targets | None:
        """All targets of the rule; None where the verb has none, or there is no truth to choose them from."""
        if self.expected.targets is None or not self.events.has_truth or not self.has_stable:
            return None
        by_choice = ("e_min", "invisible")  # the user knows that hits of these belong to no target
        options = {name: value for name, value in self.expected.targets.items() if name not in by_choice}
        return select_targets(self.events, **options)


def check_events(events: Events, expected: Expected | None = None) -> list[Check]:
    """Everything that can be checked about events, by what a verb expects of them.

    Raises what `pflow.event.truth.select_targets` does.
    """
    subject = Subject(events, expected or Expected())
    return [found for check in CHECKS for found in check(subject)]


def check_units(subject: Subject) -> Iterator[Check]:
    """Energy in hits against the other energies."""
    events, hits = subject.events, float(subject.hit_energy.sum())
    others = {"energy of stable particles that shower": (subject.showering_energy, UNITS)}
    if events.tracks is not None:
        momentum = np.linalg.norm(jagged.vectors(events.tracks.momentum), axis=1)
        others["momenta of tracks"] = float(momentum.sum()), UNITS**1.5
    if events.reference is not None:
        energy = float(jagged.flat(events.reference.energy, np.float64).sum())
        others[f"particles of {events.reference_name}"] = energy, UNITS**1.5
    for what, (other, factor) in others.items():
        if hits and other:
            good = 1 / factor < hits / other < factor
            yield Check("units", good, f"{hits:.4g} GeV in hits, {other:.4g} GeV in {what}")


def check_tracks(subject: Subject) -> Iterator[Check]:
    """Momenta and charges of tracks against those of the particles that they are linked to."""
    events = subject.events
    links = events.track_links
    if events.tracks is None or events.truth is None or links is None or len(jagged.flat(links.source)) < MIN_TRACKS:
        return
    tracks, particles, field = events.tracks[links.source], events.truth[links.particle], events.detector.b_field
    with np.errstate(divide="ignore", invalid="ignore"):  # true particles that were left out have no momentum
        ratio = float(np.nanmedian(jagged.flat(tracks.momentum.pt / particles.momentum.pt)))
    text = f"transverse momenta of tracks are {ratio:.3f} times those of their particles in {field:g} T"
    good = abs(ratio - 1) < FIELD
    yield Check("field", good, text if good else f"{text}; {field / ratio:.2g} T would fit")
    opposite = float(np.mean(jagged.flat(tracks.charge) * jagged.flat(particles.charge) < 0))
    text = f"{opposite:.0%} of the tracks have the opposite charge of their particles"
    yield Check("charges", opposite < OPPOSITE, text)


def check_status(subject: Subject) -> Iterator[Check]:
    """Whether there are stable particles."""
    if subject.expected.targets is not None and subject.events.truth is not None and not subject.has_stable:
        codes = jagged.flat(subject.events.truth.status)
        yield Check("status", False, unknown_status(codes, subject.stable_status))


def check_response(subject: Subject) -> Iterator[Check]:
    """Energy in hits against the stable particles that shower."""
    hits, true = float(subject.hit_energy.sum()), subject.showering_energy
    if subject.expected.targets is not None and hits and true:
        low, high = RESPONSE
        named = ", ".join(map(str, subject.stable_status))
        text = f"hits have {hits / true:.2f} times the energy of the particles of status {named} that shower"
        yield Check("response", low < hits / true < high, text)


def check_targets(subject: Subject) -> Iterator[Check]:
    """The hits' energy that belongs to targets."""
    hits, targets = float(subject.hit_energy.sum()), subject.targets
    if targets is not None and hits:
        share = abs(1 - float(targets.column("hit_energy").sum()) / hits)
        text = f"{share:.1%} of the hits' energy belongs to no target of the rule '{targets.rule}'"
        yield Check("targets", share < UNOWNED, text)


CHECKS: tuple[Callable[[Subject], Iterator[Check]], ...] = (
    check_units,
    check_tracks,
    check_status,
    check_response,
    check_targets,
)
"""All checks, in the order in which they are listed."""
