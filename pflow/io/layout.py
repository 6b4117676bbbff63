"""Layouts: YAML tables from the quantities of `Events` to the branches of a flat ntuple (configs/layout/*.yaml)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pflow.config import from_plain, load_yaml, resolve
from pflow.errors import ConfigError, InputError, check_fields, nearest
from pflow.event.schema import LINKED, PARTS, quantities_of

FIELDS: Mapping[str, tuple[str, ...]] = {
    part: (*quantities_of(part), *(["particle"] if part in LINKED.values() else [])) for part in PARTS
}
"""Quantities of each part that a layout may name; ``particle`` stands for links of weight 1."""

REQUIRED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "hits": (("energy", "x", "y", "z"),),
    "tracks": (("px", "py", "pz", "charge"), ("omega", "phi", "tan_lambda")),
    "tracker_hits": (("x", "y", "z"),),
    "truth": (("pdg", "px", "py", "pz"),),
    "hit_links": (("source", "particle"),),
    "track_links": (("source", "particle"),),
    "tracker_hit_links": (("source", "particle"),),
    "reference": (("pdg", "energy", "px", "py", "pz"),),
}
"""A part is complete with any one of these sets of quantities."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """Where one quantity is: the name of its branch."""

    branch: str
    scale: float = 1.0  # factor from the file's unit to pflow's
    optional: bool = False  # whether a file without it is not reported
    names: Mapping[int, str] | None = None
    """For the subdetector: name of the calorimeter that each code of the file stands for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Which branches of a flat ntuple hold which quantities, as `load_layout` reads it."""

    name: str = ""
    tree: str = "events"
    detector: str | None = None  # detector that its files belong to by default; None if the user must name it
    event: str | None = None  # branch of the event number; None to number the entries
    parts: Mapping[str, Mapping[str, Branch]] = dataclasses.field(default_factory=dict)
    """For each part of `Events` (keys of `FIELDS`), where its quantities are."""
    reference_name: str = ""  # name of the algorithm behind ``reference``

    def with_all(self) -> Layout:
        """With every quantity of the schema, in branches of their own names, as pflow's own files hold them."""
        parts = {}
        for part, fields in self.parts.items():
            group = next(iter(fields.values())).branch.partition(".")[0]
            unmapped = {name: Branch(branch=f"{group}.{name}", optional=True) for name in quantities_of(part)}
            parts[part] = {**fields, **{name: branch for name, branch in unmapped.items() if name not in fields}}
        return dataclasses.replace(self, parts=parts)

    def available(self, part: str, keys: Iterable[str], *, file: str | Path | None = None) -> dict[str, Branch]:
        """The quantities of a part that a file with the branches `keys` has; none if the part is not in the file.

        An `InputError` names the first missing branch of a part that is there in part, or of the hits.
        """
        known = set(keys)
        fields = self.parts.get(part, {})
        present = {name: branch for name, branch in fields.items() if branch.branch in known}
        if any(present.keys() >= set(complete) for complete in REQUIRED[part]):
            return present
        needed = [name for complete in REQUIRED[part] for name in complete if name in fields]
        if part != "hits" and not any(name in present for name in needed):
            return {}
        missing = next(fields[name].branch for name in needed if name not in present)
        raise InputError(
            f"branch is missing; layout '{self.name}' needs it for the {part.replace('_', ' ')}",
            file=file,
            field=missing,
            suggestions=nearest(missing, known),
        )


def load_layout(name: str | Path | Layout) -> Layout:
    """A layout by built-in name (``g4``), from a YAML file, or as it is; a `ConfigError` if it is not valid."""
    if isinstance(name, Layout):
        return name
    path = resolve("layout", name)
    return _layout(load_yaml(path), origin=str(path))


def _layout(content: Mapping[str, Any], *, origin: str) -> Layout:
    top = ("name", "tree", "detector", "event")
    check_fields(content, (*top, *FIELDS), origin)
    parts: dict[str, dict[str, Branch]] = {}
    header = {key: content[key] for key in top if key in content}
    for part in FIELDS:
        fields = content.get(part)
        if fields is None:
            continue
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{origin}: '{part}' must map quantities to branches, found {fields!r}")
        fields = dict(fields)
        if part == "reference":
            header["reference_name"] = fields.pop("name", "reference")
        parts[part] = _part(part, fields, f"{origin}: {part}")
    if "hits" not in parts:
        raise ConfigError(f"{origin}: 'hits' is missing: energy, x, y and z of the calorimeter hits are required")
    layout = from_plain(Layout, header, origin)
    return dataclasses.replace(layout, name=layout.name or Path(origin).stem, parts=parts)


def _part(part: str, fields: Mapping[str, Any], origin: str) -> dict[str, Branch]:
    check_fields(fields, FIELDS[part], origin)
    if not any(set(complete) <= fields.keys() for complete in REQUIRED[part]):
        needed = ", or ".join(", ".join(complete) for complete in REQUIRED[part])
        raise ConfigError(f"{origin}: needs at least {needed}; found {', '.join(fields) or 'nothing'}")
    branches = {}
    for name, value in fields.items():
        content = {"branch": value} if isinstance(value, str) else value
        branches[name] = from_plain(Branch, content, f"{origin}.{name}")
        if branches[name].names is not None and name != "subdetector":
            raise ConfigError(f"{origin}.{name}: 'names' belongs to hits.subdetector only")
    return branches
