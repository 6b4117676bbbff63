"""Which schema a file has, by looking at it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from pflow.errors import InputError, nearest
from pflow.io.columns import Columns, open_root, open_tree
from pflow.io.layout import Layout

__all__ = ["SCHEMAS", "sniff"]

SCHEMAS = ("edm4hep", "edm4hep-rntuple", "edm4hep-sim", "flat", "legacy-hdf5")
"""Names of the schemas that can be asked for."""

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

HIT_MEMBERS = ("cellID", "energy", "position.x", "position.y", "position.z")
"""Members by which a collection of EDM4hep calorimeter hits is known."""

PARTICLE_MEMBERS = ("PDG", "generatorStatus", "momentum.x")
"""Members by which EDM4hep Monte Carlo particles are known."""


def sniff(path: str | PathLike[str], *, layout: str | Path | Layout | None = None) -> str:
    """Schema of a file: ``edm4hep``, ``edm4hep-rntuple``, ``flat`` or ``legacy-hdf5``.

    A file of which `layout` is given counts as flat.

    Raises
    ------
    InputError
        Neither ROOT nor HDF5, damaged, without a tree ``events``, or with one that no schema fits.
    """
    from pflow.io.flat import missing_branches

    if _is_hdf5(path):
        return "legacy-hdf5"
    if layout is not None:
        return "flat"
    with open_root(path) as directory:
        if "podio_metadata" in directory and "events" in directory:  # saves opening a tree of a thousand branches
            return _edm4hep(directory)
        tree = open_tree(directory, "events", str(path))
        columns = Columns(tree, str(path))
        if _holds_edm4hep(columns):
            return _edm4hep(directory)
        keys = list(tree.keys(recursive=True))
        missing = missing_branches(keys)
        if not missing:
            return "flat"
    names = columns.collections
    raise InputError(
        f"tree 'events' holds neither EDM4hep collections (calorimeter hits with {', '.join(HIT_MEMBERS)},"
        f" or MCParticles) nor the branches of the built-in flat layout (no {', '.join(missing)});"
        f" it holds {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}. For other branches give a layout",
        file=path,
        suggestions=dict.fromkeys(close for branch in missing for close in nearest(branch, keys, n=1))
        or nearest("ECALBarrel", names),
    )


def _is_hdf5(path: str | PathLike[str]) -> bool:
    if "://" in str(path):
        return False
    try:
        with Path(path).open("rb") as stream:
            return stream.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE
    except OSError:
        return False  # open_root says what is wrong


def _edm4hep(directory: Any) -> str:
    return "edm4hep-rntuple" if "RNTuple" in directory.classname_of("events") else "edm4hep"


def _holds_edm4hep(columns: Columns) -> bool:
    return any(columns.has(name, *HIT_MEMBERS) or columns.has(name, *PARTICLE_MEMBERS) for name in columns.collections)
