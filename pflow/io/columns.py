"""Columns of a TTree or an RNTuple by the names of their collection and member.

ROOT writes member ``energy`` of collection ``X`` as branch ``X/X.energy`` where it splits the collection, other tools
as ``X.energy`` or ``X/energy``, and an RNTuple has it as field ``X.energy`` of a vector of records. Here all of them
are the column (``X``, ``energy``).
"""

from __future__ import annotations

from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt
import uproot
from uproot.source.file import MultithreadedFileSource

from pflow.errors import InputError, first_line, nearest, reading
from pflow.event import jagged
from pflow.io.declared_sizes import check_tree, watch_decompression
from pflow.io.rootfile import read_branch

__all__ = ["Columns", "file_uuid", "open_root", "open_tree", "tree_names"]

ROOT_SIGNATURE = b"root"


def open_root(path: str | PathLike[str]) -> Any:
    """Open a ROOT file for reading: an `uproot.ReadOnlyDirectory`.

    Raises
    ------
    InputError
        No such file, not a ROOT file, or one that ends before its header says.
    """
    text = str(path)
    local = "://" not in text
    if local:
        _check_local(Path(path))
    watch_decompression()
    # Without a thread that reads: handing it each basket costs more than reading does.
    direct = {"handler": MultithreadedFileSource, "use_threads": False, "num_workers": 1} if local else {}
    try:
        # Arrays are read once; and a copy of a file that is open would share its objects, which close with it.
        directory = uproot.open(text, array_cache=None, object_cache=None, **direct)
    except Exception as error:  # whatever broken bytes make a decompressor or parser raise
        if local:
            reason = "cannot be opened as a ROOT file, truncated or damaged"
        elif isinstance(error, ImportError):
            reason = "needs a package that is not installed (for root://: pip install 'pflow[xrootd]')"
        else:
            reason = "cannot be opened as a remote file"
        raise InputError(f"{reason}: {first_line(error)}", file=text) from error
    end, size = int(directory.file.fEND), Path(path).stat().st_size if local else None
    if size is not None and size < end:
        directory.close()
        raise InputError(f"truncated: the header says {end} bytes, the file has {size}", file=text)
    return directory


def file_uuid(path: str | PathLike[str]) -> str:
    """UUID of a ROOT file; "" for a file of another kind.

    Raises
    ------
    InputError
        A ROOT file that cannot be opened.
    """
    if "://" not in str(path):
        with suppress(OSError), Path(path).open("rb") as stream:
            if stream.read(len(ROOT_SIGNATURE)) != ROOT_SIGNATURE:
                return ""
    with open_root(path) as directory:
        return str(directory.file.uuid)


def tree_names(directory: Any) -> list[str]:
    """Names of the TTrees and RNTuples of an open file."""
    classes = {key.split(";")[0]: cls for key, cls in directory.classnames(recursive=True).items()}
    return [key for key, cls in classes.items() if cls in ("TTree", "TNtuple", "TNtupleD") or "RNTuple" in cls]


def open_tree(directory: Any, name: str, path: str) -> Any:
    """Open a TTree or RNTuple of an open file.

    Raises
    ------
    InputError
        Not in the file, or not a tree; names the trees that are there.
    """
    trees = tree_names(directory)
    if name not in trees:
        found = f"it holds {', '.join(trees)}" if trees else "it holds no trees at all"
        raise InputError(f"no tree '{name}'; {found}", file=path, suggestions=nearest(name, trees))
    if "Experimental" in str(directory.classname_of(name)):
        raise InputError(
            f"'{name}' is an RNTuple from before version 1.0 of the format, which is not read; expected one that ROOT "
            "6.34 or newer wrote",
            file=path,
            field=name,
        )
    with reading(f"tree '{name}' cannot be read", file=path):
        tree = directory[name]
        _keys(tree)  # an RNTuple reads its header when it is asked for it
        check_tree(tree, name, path)
        return tree


class Columns:
    """Columns of one tree by collection and member.

    Parameters
    ----------
    tree
        `uproot.TTree` or RNTuple.
    path
        Its file, for messages.
    """

    def __init__(self, tree: Any, path: str) -> None:
        self.path = path
        self.num_entries = int(tree.num_entries)
        self._tree = tree
        self._keys: dict[str, dict[str, str]] = {}
        for key in _keys(tree):
            collection, member = _split(key)
            self._keys.setdefault(collection, {}).setdefault(member, key)
        self._lengths: dict[str, _Lengths] = {}

    @property
    def collections(self) -> list[str]:
        """Names of the collections, sorted."""
        return sorted(self._keys)

    def members(self, collection: str) -> list[str]:
        """Members of a collection, e.g. ``position.x``; empty if it is not in the file."""
        return [member for member in self._keys.get(collection, {}) if member]

    def typename(self, collection: str) -> str:
        """C++ type of a collection's branch, e.g. ``vector<edm4hep::TrackData>``; "" where the file does not say."""
        key = self._keys.get(collection, {}).get("")
        return "" if key is None else str(getattr(self._tree[key], "typename", ""))

    def has(self, collection: str, *members: str) -> bool:
        """Whether the collection and all of these members are there."""
        return collection in self._keys and all(member in self._keys[collection] for member in members)

    def first(self, *collections: str) -> str | None:
        """The first of these collections that is there, None if none is."""
        return next((name for name in collections if name in self._keys), None)

    def key(self, collection: str, *members: str) -> str:
        """Name in the file of a column: the first of the alternative `members` that is there.

        Raises
        ------
        InputError
            None is; names the nearest ones.
        """
        known = self._keys.get(collection, {})
        for member in members:
            if member in known:
                return known[member]
        if not known:
            raise InputError(
                "no such collection",
                file=self.path,
                field=collection,
                suggestions=nearest(collection, self._keys),
            )
        raise InputError(
            f"collection '{collection}' has no member '{' or '.join(members)}'",
            file=self.path,
            field=f"{collection}.{members[0]}",
            suggestions=nearest(members[0], known),
        )

    def get(self, collection: str, *members: str, start: int, stop: int) -> ak.Array:
        """One column of entries `start` to `stop`, [event, object].

        Raises
        ------
        InputError
            No such column; or its bytes cannot be decoded, or an entry has more or fewer values than in the column of
            the collection that was read before (then with ``entry``).
        """
        key = self.key(collection, *members)
        values = read_branch(self._tree, key, start, stop, self.path)
        if values.ndim > 1:
            self._check_length(collection, _Lengths(key, start, stop, jagged.count(values)))
        return values

    def _check_length(self, collection: str, found: _Lengths) -> None:
        """Refuse columns of one collection that differ in length: objects with a member missing."""
        before = self._lengths.setdefault(collection, found)
        if (before.start, before.stop) != (found.start, found.stop):
            self._lengths[collection] = found
            return
        if not np.array_equal(before.counts, found.counts):
            at = int(np.flatnonzero(before.counts != found.counts)[0])
            raise InputError(
                f"{found.counts[at]} values, and '{before.key}' has {before.counts[at]}",
                file=self.path,
                entry=found.start + at,
                field=found.key,
            )


class _Lengths(NamedTuple):
    """Numbers of values of each entry of a column, int64 [event], for a range of entries."""

    key: str
    start: int
    stop: int
    counts: npt.NDArray[np.int64]


def _keys(tree: Any) -> list[str]:
    """Names of all branches, or of all fields of an RNTuple.

    uproot lists the fields of an RNTuple in a time that grows with the square of their number: seconds for a thousand.
    """
    fields = getattr(tree, "all_fields", None)
    return list(tree.keys(recursive=True)) if fields is None else [field.path for field in fields if field.path]


def _split(key: str) -> tuple[str, str]:
    """Collection and member of a branch or field name.

    >>> _split("X/X.position.x"), _split("X.energy"), _split("X/energy"), _split("X")
    (('X', 'position.x'), ('X', 'energy'), ('X', 'energy'), ('X', ''))
    """
    top, *inner = key.split("/")
    if inner and not inner[-1].startswith(f"{top.rstrip('.')}."):
        return top.rstrip("."), inner[-1]
    collection, _, member = (inner[-1] if inner else top).partition(".")
    return collection, member


def _check_local(path: Path) -> None:
    if path.is_dir():
        raise InputError("is a folder, expected a ROOT file", file=path)
    try:
        with path.open("rb") as stream:
            head = stream.read(len(ROOT_SIGNATURE))
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror}", file=path) from error
    if head != ROOT_SIGNATURE:
        found = f"begins with {head!r}" if head else "is empty"
        raise InputError(f"not a ROOT file: it {found}, a ROOT file with {ROOT_SIGNATURE!r}", file=path)
