"""What is implausible about the events of a file, with numbers: energies, the field, hits without a target."""

from __future__ import annotations

from typing import NamedTuple

import awkward as ak
import numpy as np

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.truth import select_targets
from pflow.physics.pdg import is_invisible

__all__ = ["Check", "ImplausibleWarning", "check_events", "check_units"]

MUON = 13

UNITS = 30.0  # energies that differ by more than this factor are in different units
RESPONSE = (0.5, 1.5)  # plausible ratios of the energy in hits to that of the stable particles that shower
FIELD = 0.05  # largest plausible deviation of the transverse momenta of tracks from those of their particles
UNOWNED = 0.25  # largest plausible fraction of the hits' energy that belongs to no target


class ImplausibleWarning(UserWarning):
    """Something in a file that is probably wrong, and would give wrong physics without a word."""


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    good: bool
    text: str


def check_units(events: Events) -> list[Check]:
    """Energy in hits against that of stable particles and momenta of tracks, where these are there."""
    hits, found = float(jagged.flat(events.hits.energy, np.float64).sum()), []
    others = {}
    if events.truth is not None:
        others["energy of stable particles that shower"] = _showering_energy(events), UNITS
    if events.tracks is not None:
        momentum = np.linalg.norm(jagged.vectors(events.tracks.momentum), axis=1)
        others["momenta of tracks"] = float(momentum.sum()), UNITS**1.5
    for what, (other, factor) in others.items():
        if hits and other:
            good = 1 / factor < hits / other < factor
            found.append(Check("units", good, f"{hits:.4g} GeV in hits, {other:.4g} GeV in {what}"))
    return found


def check_events(events: Events, *, rule: str = "stable") -> list[Check]:
    """Everything that can be checked; `rule` chooses the targets."""
    found = check_units(events)
    hits = float(jagged.flat(events.hits.energy, np.float64).sum())
    if events.truth is None:
        return found
    true, status = _showering_energy(events), jagged.flat(events.truth.status)
    if len(status) and not (status == 1).any():
        codes, counts = np.unique(status, return_counts=True)
        most = codes[counts.argmax()]
        text = f"no particle has status 1, as targets of the rule 'stable' have; most have {most} (--stable-status)"
        return [*found, Check("status", False, text)]
    if true and hits:
        low, high = RESPONSE
        text = f"hits have {hits / true:.2f} times the energy of the particles of status 1 that shower"
        found.append(Check("response", low < hits / true < high, text))
    if events.tracks is not None and events.track_links is not None and ak.any(ak.num(events.track_links)):
        links, field = events.track_links, events.detector.b_field
        particles = events.truth[links.particle]
        ratio = float(np.median(jagged.flat(events.tracks[links.source].momentum.pt / particles.momentum.pt)))
        text = f"transverse momenta of tracks are {ratio:.3f} times those of their particles in {field:g} T"
        good = abs(ratio - 1) < FIELD
        found.append(Check("field", good, text if good else f"{text}; {field / ratio:.2g} T would fit"))
    if events.hit_links is not None and hits:
        selected = select_targets(events, rule=rule, use_tracks=events.track_links is not None)
        share = abs(1 - float(selected.column("hit_energy").sum()) / hits)
        text = f"{share:.1%} of the hits' energy belongs to no target of the rule '{rule}'"
        found.append(Check("targets", share < UNOWNED, text))
    return found


def _showering_energy(events: Events) -> float:
    """Energy of the stable particles, without neutrinos and muons, GeV."""
    columns = jagged.columns(events.truth)
    pdg = columns["pdg"]
    showers = (columns["status"] == 1) & ~is_invisible(pdg) & (np.abs(pdg) != MUON)
    return float(columns["energy"][showers].sum())
