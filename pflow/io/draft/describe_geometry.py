"""Where the calorimeter begins, and its symmetry, in a drafted description."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from pflow.io.draft.collect import Group
from pflow.io.draft.measure_calorimeters import Extent, measure_barrel, measure_endcap
from pflow.io.draft.notes import Notes, counted

__all__ = ["Geometry", "describe_geometry"]


UNLIKE = 50.0
"""Endcaps whose first hits differ by more than this in |z| begin at different |z|, mm."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Geometry:
    """Fields of the same names of `pflow.physics.detector.Detector`, mm; `sides` of its `TruthTracking`."""

    ecal_inner_radius: float
    ecal_outer_radius: float
    ecal_inner_z: float
    hcal_inner_radius: float | None
    hcal_inner_z: float | None
    phi_symmetry: int | None
    sides: int | None


def describe_geometry(groups: Sequence[Group], notes: Notes) -> Geometry | None:
    """Geometry from the hits of ECAL and HCAL; None without hits in the ECAL's barrel or endcaps.

    Parameters
    ----------
    groups
        Calorimeters.
    notes
        Gets how each value was found.
    """

    def of(kind: str, region: str) -> list[Group]:
        return [group for group in groups if (group.kind, group.region) == (kind, region)]

    barrel, endcap = measure_barrel(of("ecal", "barrel")), measure_endcap(of("ecal", "endcap"))
    hcal_barrel, hcal_endcap = measure_barrel(of("hcal", "barrel")), measure_endcap(of("hcal", "endcap"))
    if barrel is None and endcap is None:
        return None
    inner, outer = _radii(barrel, endcap, notes)
    inner_z = _inner_z(barrel, endcap, notes)
    return Geometry(
        ecal_inner_radius=inner,
        ecal_outer_radius=outer,
        ecal_inner_z=inner_z,
        hcal_inner_radius=_front("hcal_inner_radius", hcal_barrel, inner, notes),
        hcal_inner_z=_front("hcal_inner_z", hcal_endcap, inner_z, notes),
        phi_symmetry=_symmetry({"ECAL": barrel, "HCAL": hcal_barrel}, notes),
        sides=_sides(barrel, notes),
    )


def _radii(barrel: Extent | None, endcap: Extent | None, notes: Notes) -> tuple[float, float]:
    fields = ("ecal_inner_radius", "ecal_outer_radius")
    if barrel is not None:
        for field, where in zip(fields, ("before the first", "behind the last"), strict=True):
            _note_length(field, barrel, where, notes)
        return round(barrel.range.front, 1), round(barrel.range.back, 1)
    assert endcap is not None
    notes.add(fields[0], "fill in", "no hits in the barrel; this is how far out the endcaps have hits")
    notes.add(fields[1], "fill in", "no hits in the barrel; this is as thick as the endcaps")
    thickness = max(endcap.range.back - endcap.range.front, 1.0)
    return round(endcap.outer_radius, 1), round(endcap.outer_radius + thickness, 1)


def _inner_z(barrel: Extent | None, endcap: Extent | None, notes: Notes) -> float:
    if endcap is not None:
        _note_length("ecal_inner_z", endcap, "before the first", notes)
        if endcap.z_fronts is not None and abs(endcap.z_fronts[0] - endcap.z_fronts[1]) > UNLIKE:
            fronts = "the first hits of the endcaps are at z = -{:.0f} and {:.0f} mm".format(*endcap.z_fronts)
            notes.add("ecal_inner_z", "guessed", f"{fronts}; this is the nearer one")
        return round(endcap.range.front, 1)
    assert barrel is not None
    notes.add("ecal_inner_z", "fill in", "no hits in the endcaps; this is how far along z the barrel has hits")
    return round(max(barrel.max_z, 1.0), 1)


def _front(field: str, extent: Extent | None, ecal: float, notes: Notes) -> float | None:
    """Where the HCAL begins; None if that is not behind the front of the ECAL."""
    if extent is None or not extent.range.front > ecal:
        return None
    _note_length(field, extent, "before the first", notes)
    return round(extent.range.front, 1)


def _note_length(field: str, extent: Extent, where: str, notes: Notes) -> None:
    seen = f"{counted(extent.n_hits, 'hit')} in {counted(extent.n_events, 'event')}"
    if extent.on_layers:
        layers = f"{counted(extent.range.count, 'layer')} every {extent.range.spacing:.2f} mm"
        notes.add(field, "measured", f"half a layer {where} of {layers}, {seen}")
    else:
        notes.add(field, "guessed", f"the hits lie on no layers; all but half a percent of {seen} are behind it")


def _symmetry(barrels: dict[str, Extent | None], notes: Notes) -> int | None:
    """Turns under which the barrels stay the same: None for any, 1 where that is not known."""
    shapes = {name: extent.shape for name, extent in barrels.items() if extent is not None and extent.shape}
    if "ECAL" not in shapes:
        notes.add("phi_symmetry", "fill in", "1 stands for no symmetry: the hits do not show the sides of the barrel")
        return 1
    described = []
    for name, shape in shapes.items():
        sides = " or ".join(f"{sides} sides" if sides else "a cylinder" for sides in shape.as_good)
        described.append(f"{name} {sides} ({shape.on_layers:.1%} of hits on layers)")
    certain = all(len(shape.as_good) == 1 for shape in shapes.values())
    text = f"barrels: {', '.join(described)}; endcaps not looked at"
    notes.add("phi_symmetry", "measured" if certain else "guessed", text)
    return math.gcd(*(shape.symmetry for shape in shapes.values())) or None


def _sides(barrel: Extent | None, notes: Notes) -> int | None:
    """Sides of the ECAL barrel if they are certain and one of them faces x."""
    shape = None if barrel is None else barrel.shape
    if shape is None or len(shape.as_good) > 1 or shape.phase or not shape.sides:
        return None
    notes.add("truth_tracks.sides", "measured", "ECAL barrel")
    return shape.sides
