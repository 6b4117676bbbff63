"""Write events to a flat ntuple in the built-in layout, which `pflow.io.flat.FlatReader` reads back without loss."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import uproot

from pflow.config import builtin_names, to_plain
from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.events import Events, Flag
from pflow.event.links import assigned_particle
from pflow.event.schema import LINKED, quantities_of
from pflow.io.atomic import replacing
from pflow.io.flat import NOTE, Layout, load_layout
from pflow.io.root import write_note
from pflow.physics.detector import Detector, load_detector


def write_events(
    path: str | Path,
    events: Events | Iterable[Events],
    *,
    compression: Any = None,
    inputs: Iterable[str | Path] = (),
    force: bool = False,
) -> int:
    """Write events, all at once or in chunks, to a TTree in the layout ``g4``; return how many.

    One basket a branch for each chunk (some hundred events compress well). A note names the detector, so that reading
    needs no option. `compression` as uproot takes it, by default ``uproot.ZSTD(9)``; `inputs` and `force` as of
    `pflow.io.atomic.check_output`. A `ConfigError` if there is nothing to write, chunks differ in detector or parts, or
    the output cannot be written.
    """
    layout = load_layout("g4").with_all()
    chunks = iter((events,) if isinstance(events, Events) else events)
    with replacing(path, inputs=inputs, replace=NOTE.encode(), force=force) as partial:
        first = next(chunks, None)
        if first is None:
            raise ConfigError(f"cannot write {path}: no events were given")
        parts = [name for name, _ in first.parts()]
        written = 0
        with uproot.recreate(partial, compression=compression or uproot.ZSTD(9)) as file:
            note = {
                "detector": _by_name(first.detector),
                "calorimeters": [calorimeter.name for calorimeter in first.detector.calorimeters],
                "reference_name": first.reference_name,
                "truth_tracks": bool(np.any(first.flags & Flag.TRUTH_TRACKS)),
            }
            write_note(file, NOTE, note)
            groups = _groups(first[:0], layout, parts)
            tree = file.mktree(
                layout.tree,
                {str(layout.event): np.dtype(np.int64)} | {name: group.type.content for name, group in groups.items()},
                title="events",
                counter_name=lambda counted: f"n_{counted}",
                field_name=lambda outer, inner: f"{outer}.{inner}",
            )
            for chunk in itertools.chain([first], chunks):
                chunk_parts = [name for name, _ in chunk.parts()]
                if (chunk.detector, chunk_parts) != (first.detector, parts):
                    raise ConfigError(
                        f"cannot write {path}: chunks with {', '.join(parts)} of detector '{first.detector.name}', and "
                        f"with {', '.join(chunk_parts)} of '{chunk.detector.name}'"
                    )
                if len(chunk):
                    tree.extend({str(layout.event): chunk.event} | _groups(chunk, layout, parts))
                written += len(chunk)
        return written


def _by_name(detector: Detector) -> str | dict[str, Any]:
    """The name of a built-in detector, which later versions may know better; the content of any other."""
    if detector.name in builtin_names("detector") and load_detector(detector.name) == detector:
        return detector.name
    plain: dict[str, Any] = to_plain(detector)
    return plain


def _groups(events: Events, layout: Layout, parts: Iterable[str]) -> dict[str, ak.Array]:
    """[event, object] records by the prefix of their branches, e.g. ``calo_hit``."""
    groups = {}
    for part in parts:
        records = getattr(events, part)
        columns, flat, quantities, counts = {}, jagged.columns(records), quantities_of(part), jagged.count(records)
        for name, branch in layout.parts[part].items():
            prefix, _, member = branch.branch.partition(".")
            if name == "particle" and part not in LINKED:
                links = next(link for link, source in LINKED.items() if source == part)
                if getattr(events, links) is not None:
                    columns[member] = assigned_particle(getattr(events, links), records)
            else:
                columns[member] = jagged.unflatten(flat[quantities[name]], counts)
        groups[prefix] = ak.zip(columns, depth_limit=2)
    return groups
