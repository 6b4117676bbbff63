"""What is implausible about the events of a file, with numbers: energies, the field, hits without a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.truth import STABLE_STATUS, select_targets, unknown_status
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


def check_scales(events: Events, stable_status: Sequence[int] = STABLE_STATUS) -> list[Check]:
    """What does not depend on a truth rule: energies against each other, tracks against their particles."""
    hits, found = float(jagged.flat(events.hits.energy, np.float64).sum()), []
    others = {}
    if events.truth is not None:
        others["energy of stable particles that shower"] = _showering_energy(events, stable_status), UNITS
    if events.tracks is not None:
        momentum = np.linalg.norm(jagged.vectors(events.tracks.momentum), axis=1)
        others["momenta of tracks"] = float(momentum.sum()), UNITS**1.5
    if events.reference is not None:
        energy = float(jagged.flat(events.reference.energy, np.float64).sum())
        others[f"particles of {events.reference_name}"] = energy, UNITS**1.5
    for what, (other, factor) in others.items():
        if hits and other:
            good = 1 / factor < hits / other < factor
            found.append(Check("units", good, f"{hits:.4g} GeV in hits, {other:.4g} GeV in {what}"))
    return [*found, *_check_tracks(events)]


def _check_tracks(events: Events) -> list[Check]:
    """Momenta and charges of tracks against those of the particles that they are linked to."""
    links = events.track_links
    if events.tracks is None or events.truth is None or links is None or len(jagged.flat(links.source)) < MIN_TRACKS:
        return []
    tracks, particles, field = events.tracks[links.source], events.truth[links.particle], events.detector.b_field
    with np.errstate(divide="ignore", invalid="ignore"):  # true particles that were left out have no momentum
        ratio = float(np.nanmedian(jagged.flat(tracks.momentum.pt / particles.momentum.pt)))
    text = f"transverse momenta of tracks are {ratio:.3f} times those of their particles in {field:g} T"
    good = abs(ratio - 1) < FIELD
    found = [Check("field", good, text if good else f"{text}; {field / ratio:.2g} T would fit")]
    opposite = float(np.mean(jagged.flat(tracks.charge) * jagged.flat(particles.charge) < 0))
    text = f"{opposite:.0%} of the tracks have the opposite charge of their particles"
    return [*found, Check("charges", opposite < OPPOSITE, text)]


def check_events(events: Events, **targets: Any) -> list[Check]:
    """Everything that can be checked; `targets` as of `pflow.event.truth.select_targets`."""
    status = targets.get("stable_status", STABLE_STATUS)
    found = check_scales(events, status)
    hits = float(jagged.flat(events.hits.energy, np.float64).sum())
    if events.truth is None:
        return found
    true, codes = _showering_energy(events, status), jagged.flat(events.truth.status)
    if problem := unknown_status(codes, status):
        return [*found, Check("status", False, problem)]
    if true and hits:
        low, high = RESPONSE
        named = ", ".join(map(str, status))
        text = f"hits have {hits / true:.2f} times the energy of the particles of status {named} that shower"
        found.append(Check("response", low < hits / true < high, text))
    if events.hit_links is not None and hits:
        selected = select_targets(events, use_tracks=events.track_links is not None, **targets)
        share = abs(1 - float(selected.column("hit_energy").sum()) / hits)
        text = f"{share:.1%} of the hits' energy belongs to no target of the rule '{selected.rule}'"
        found.append(Check("targets", share < UNOWNED, text))
    return found


def _showering_energy(events: Events, stable_status: Sequence[int]) -> float:
    """Energy of the stable particles, without neutrinos and muons, GeV."""
    columns = jagged.columns(events.truth)
    pdg = columns["pdg"]
    showers = np.isin(columns["status"], stable_status) & ~is_invisible(pdg) & (np.abs(pdg) != MUON)
    return float(columns["energy"][showers].sum())
