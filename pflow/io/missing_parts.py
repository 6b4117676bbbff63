"""What a file lacks for reconstruction, training and evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from pflow.event.events import Events
from pflow.io.edm4hep.collection_content import CollectionContent

__all__ = ["MissingPart", "missing_in_collections", "missing_in_events"]

DRAFT = "`pflow detector FILE -o mine.yaml` drafts a description"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MissingPart:
    """A part that is missing, what it is needed for, and why it is not there."""

    name: str
    needed_for: str
    reason: str


def missing_in_events(
    template: Events, collections: Sequence[CollectionContent], without_layers: Collection[str]
) -> tuple[MissingPart, ...]:
    """What is missing in a file that is read as a detector.

    Parameters
    ----------
    template
        Events of the file, with all parts that it has.
    collections
        What a podio file holds; empty for other files.
    without_layers
        Calorimeters whose hits do not know their layer.
    """
    missing = []
    if template.tracks is None:
        missing.append(_tracks(collections, "none that the detector names"))
    if without_layers:
        reason = f"no cell encoding for {', '.join(without_layers)}"
        missing.append(MissingPart(name="layers", needed_for="models that use the layers of hits", reason=reason))
    if template.truth is None:
        missing.append(_truth(collections))
    elif template.hit_links is None:
        missing.append(_hit_links())
    return tuple(missing)


def missing_in_collections(collections: Sequence[CollectionContent], reason: str) -> tuple[MissingPart, ...]:
    """What is missing in a podio file that no detector fits, for a `reason`."""
    missing = [MissingPart(name="detector", needed_for="everything", reason=f"{reason}; {DRAFT}")]
    if not _readable(collections, "CalorimeterHit", "SimCalorimeterHit"):
        refused = _refused(collections, ("CalorimeterHit", "SimCalorimeterHit"))
        missing.append(MissingPart(name="calorimeter hits", needed_for="reconstruction", reason=refused))
    if not _readable(collections, "Track"):
        missing.append(_tracks(collections, "none"))
    if not _readable(collections, "MCParticle"):
        missing.append(_truth(collections))
    elif not _readable(collections, "SimCalorimeterHit") and not any(
        own.kind == "Link" and any(_leads_from_hits(link, collections) for link in own.links) for own in collections
    ):
        missing.append(_hit_links())
    return tuple(missing)


def _tracks(collections: Sequence[CollectionContent], there: str) -> MissingPart:
    reason = there if _readable(collections, "Track") else _refused(collections, ("Track",))
    if _readable(collections, "SimTrackerHit") and _readable(collections, "MCParticle"):
        reason += "; --truth-tracks makes them from Monte Carlo particles"
    return MissingPart(name="tracks", needed_for="charged particles", reason=reason)


def _truth(collections: Sequence[CollectionContent]) -> MissingPart:
    reason = _refused(collections, ("MCParticle",))
    return MissingPart(name="truth", needed_for="training and evaluation", reason=reason)


def _hit_links() -> MissingPart:
    return MissingPart(
        name="links from hits to particles", needed_for="training and evaluation", reason="none in the file"
    )


def _readable(collections: Sequence[CollectionContent], *kinds: str) -> list[CollectionContent]:
    return [own for own in collections if own.kind in kinds and not own.unreadable and not own.subset]


def _refused(collections: Sequence[CollectionContent], kinds: Iterable[str]) -> str:
    """Why there are none: those of the kind that cannot be read, by name and type."""
    refused = [own for own in collections if own.kind in kinds and own.unreadable]
    return "; ".join(f"{own.name} ({own.type}) has {own.unreadable}" for own in refused) or "none in the file"


def _leads_from_hits(link: str, collections: Sequence[CollectionContent]) -> bool:
    kinds = {own.name: own.kind for own in collections}
    start, _, end = link.partition(" -> ")
    return (kinds.get(start), kinds.get(end)) == ("CalorimeterHit", "MCParticle")
