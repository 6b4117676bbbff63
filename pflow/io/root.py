"""ROOT files: their trees (TTree or RNTuple), columns, baskets, and a note of plain data inside the file.

Member ``energy`` of collection ``X`` is the column (``X``, ``energy``), be it branch ``X/X.energy`` (ROOT),
``X.energy`` or ``X/energy`` (other tools), or field ``X.energy`` of an RNTuple. Files on servers (``root://``,
``https://``) are tried again after connection failures.
"""

from __future__ import annotations

import json
import os
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import awkward as ak
import numpy as np
import uproot
import xxhash
from uproot.interpretation import identify
from uproot.source.file import MultithreadedFileSource

from pflow.errors import ConfigError, InputError, first_line, nearest, reading
from pflow.event import jagged
from pflow.physics.arrays import Index

ROOT_SIGNATURE = b"root"

EVENT_WEIGHT = re.compile(r"_?((mc|gen|lhe|event|evt|header)[._]?)*(weight|wgt)s?", re.IGNORECASE)
"""Usual names of branches with weights of events: ``weight``, ``mcEventWeight``, ``_EventHeader_weights``."""

MAX_READ = 2**28  # uncompressed bytes that are read at once so that baskets stay whole

ATTEMPTS = 4  # most attempts to open or read a file
FIRST_WAIT = 1.0  # time before the second attempt, s; doubled before each further one

RETURNED_ERROR = re.compile(r"'\w+Error' object is not subscriptable")
"""Message of the error that uproot raises where fsspec returned an exception instead of the bytes of a range."""

T = TypeVar("T")


def split_tree(path: str | PathLike[str]) -> tuple[str, str | None]:
    """File and name of the tree that ``file.root:tree`` names; what exists is a file, with a colon in its name or not.

    >>> split_tree("root://server:1094//a.root:events"), split_tree("b.root")
    (('root://server:1094//a.root', 'events'), ('b.root', None))
    """
    text = str(path)
    file, colon, tree = text.rpartition(":")
    if colon and not Path(text).exists() and (Path(file).is_file() or ("://" in file and file.endswith(".root"))):
        return file, tree
    return text, None


def open_root(path: str | PathLike[str]) -> Any:
    """Open a ROOT file for reading (`uproot.ReadOnlyDirectory`); an `InputError` if it is another file or truncated."""
    text, _ = split_tree(path)
    local, there = "://" not in text, Path(text)
    if local:
        if there.is_dir():
            raise InputError("is a folder, expected a ROOT file", file=text)
        try:
            with there.open("rb") as stream:
                head = stream.read(len(ROOT_SIGNATURE))
        except OSError as error:
            near = nearest(there.name, os.listdir(there.parent)) if there.parent.is_dir() else []
            raise InputError(f"cannot be opened: {error.strerror}", file=text, suggestions=near) from error
        if head != ROOT_SIGNATURE:
            beginning = f"begins with {head!r}" if head else "is empty"
            raise InputError(f"not a ROOT file: it {beginning}, a ROOT file with {ROOT_SIGNATURE!r}", file=text)
    # Without a thread that reads: handing it each basket costs more than reading does.
    direct = {"handler": MultithreadedFileSource, "use_threads": False, "num_workers": 1} if local else {}
    try:
        # Arrays are read once. Objects are cached for this opening alone: an open copy of the file would share uproot's
        # own cache, and lose its objects when this one closes. In a mapping, no colon begins a tree's name.
        directory = uproot.open({text: None}, array_cache=None, object_cache=8, **direct)
    except Exception as error:  # whatever broken bytes make a decompressor or parser raise
        reason = f"cannot be opened as a {'ROOT file, truncated or damaged' if local else 'remote file'}"
        if isinstance(error, ImportError) and not local:
            reason = "needs a package that is not installed (for root://: pip install 'pflow[xrootd]')"
        raise InputError(f"{reason}: {first_line(error)}", file=text) from error
    end = int(directory.file.fEND)
    if local and (size := there.stat().st_size) < end:
        directory.close()
        raise InputError(f"truncated: the header says {end} bytes, the file has {size}", file=text)
    return directory


def first_bytes(path: str | PathLike[str]) -> bytes:
    """The first bytes of a local file; b"" if it cannot be opened."""
    with suppress(OSError), open(path, "rb") as stream:
        return stream.read(8)
    return b""


def file_uuid(path: str | PathLike[str]) -> str:
    """UUID of a ROOT file; "" for a file of another kind, or a truncated one."""
    # A file on a server has no first bytes here: uproot has to open it.
    if (head := first_bytes(path)) and not head.startswith(ROOT_SIGNATURE):
        return ""
    # The reader of the file names the damage, and a list of files may be read without this one.
    with suppress(InputError), open_root(path) as directory:
        return str(directory.file.uuid)
    return ""


def tree_names(directory: Any) -> list[str]:
    """Names of the TTrees and RNTuples of an open file."""
    classes = {key.split(";")[0]: cls for key, cls in directory.classnames(recursive=True).items()}
    return [key for key, cls in classes.items() if cls in ("TTree", "TNtuple", "TNtupleD") or "RNTuple" in cls]


def open_tree(directory: Any, name: str, path: str) -> Any:
    """Open a TTree or RNTuple of an open file; an `InputError` names the trees that are there."""
    trees = tree_names(directory)
    if name not in trees:
        content = f"it holds {', '.join(trees)}" if trees else "it holds no trees at all"
        raise InputError(f"no tree '{name}'; {content}", file=path, suggestions=nearest(name, trees))
    if "Experimental" in str(directory.classname_of(name)):
        text = f"'{name}' is an RNTuple from before version 1.0 of the format, which is not read"
        raise InputError(f"{text}; expected one that ROOT 6.34 or newer wrote", file=path, field=name)
    with reading(f"tree '{name}' cannot be read", file=path):
        tree = directory[name]
        _keys(tree)  # an RNTuple reads its header when it is asked for it
        n_entries = int(tree.num_entries)
        # uproot checks no list of pages, and takes memory for the values that one declares, which may be billions.
        for record in tree.footer.cluster_group_records if hasattr(tree, "all_fields") else ():
            link = record.page_list_link
            pages = bytes(tree.read_locator(link.locator, link.env_uncomp_size)[0].raw_data)[: link.env_uncomp_size]
            if xxhash.xxh3_64_intdigest(pages[:-8]) != int.from_bytes(pages[-8:], "little"):
                raise ValueError("a list of pages differs from its checksum, damaged file")
    held = 0
    for branch in getattr(tree, "branches", ()):
        with suppress(Exception):  # a branch that uproot does not understand harms no other
            held = max(held, int(branch.entry_offsets[-1]))
    # The branches of a tree may be without entries (metadata of older podio files).
    if n_entries < 0 or 0 < held < n_entries:
        raise InputError(f"{n_entries} entries are declared, the branches have {held}", file=path, field=name)
    return tree


def earlier_trees(directory: Any, name: str, tree: Any) -> dict[str, str]:
    """The note, ``cycles``, of earlier trees of the same name, which are not read; {} without them.

    A backup that ROOT keeps of a tree while it writes it (AutoSave) has the tree's baskets.
    """
    texts = []
    for key in (key for key in directory.keys(recursive=True) if key.rpartition(";")[0] == name):
        with suppress(Exception):  # an earlier tree that cannot be read is of no use to anybody
            other = directory[key]
            if _first_basket(other) not in (0, _first_basket(tree)):
                texts.append(f"{key} with {other.num_entries} entries")
    text = f"{', '.join(texts)} is in the file, too, and only the last tree is read, with {tree.num_entries} entries"
    return {"cycles": f"{text}: a job wrote into an existing file; join files by ROOT's hadd"} if texts else {}


def _first_basket(tree: Any) -> int:
    """Where the first basket of a TTree's first branch that has one, or the header of an RNTuple, is in its file."""
    if hasattr(tree, "all_fields"):
        return int(tree.member("fSeekHeader"))
    seeks = (branch.member("fBasketSeek") for branch in tree.itervalues(recursive=True))
    return next((int(seek[0]) for seek in seeks if len(seek) and seek[0]), 0)


def check_range(start: Any, stop: Any) -> None:
    """A ConfigError unless a range of entries has whole numbers from 0, or no `stop`."""
    for entry in (start, 0 if stop is None else stop):
        if not isinstance(entry, int | np.integer) or entry < 0:
            raise ConfigError(f"entries are counted from 0 in whole numbers, found {start} to {stop}")


def read_branch(tree: Any, branch: str, start: int, stop: int, path: str | PathLike[str]) -> ak.Array:
    """One branch or field of entries `start` to `stop`; an `InputError` says what cannot be read."""
    with reading(f"cannot be read up to entry {stop}, truncated or damaged file", file=path, entry=start, field=branch):
        try:
            column = tree[branch]
            how = {} if hasattr(tree, "all_fields") else {"interpretation": _interpretation(column)}
            values = column.array(entry_start=start, entry_stop=stop, library="ak", **how)
        except KeyError:
            if not hasattr(tree, "all_fields"):
                raise
            # An RNTuple of uproot's, whose fields have dots in their names.
            values = tree.arrays(filter_name=branch, entry_start=start, entry_stop=stop, library="ak")[branch]
        # A branch may have fewer entries than its tree: uproot then returns fewer, without an error.
        if len(values) != max(stop - start, 0):
            raise ValueError(f"{len(values)} entries where {stop - start} are expected")
        layout = values.layout
        while layout.is_list:  # damaged bytes can declare lists that end before they begin, or beyond the values
            starts, stops = np.asarray(layout.starts), np.asarray(layout.stops)
            if len(stops) and ((stops < starts).any() or starts.min() < 0 or stops.max() > len(layout.content)):
                raise ValueError(f"lists do not lie in order within the {len(layout.content)} values")
            layout = layout.content
    return values


def _interpretation(branch: Any) -> Any:
    """How to read lists of ROOT's packed numbers, Float16_t and Double32_t; None for other branches: as uproot does.

    uproot takes the brackets of their count (``e[n]/f[0,9,16]``) for their range: it fails, or reads other numbers.
    Its private function is called with a title without them: no public one takes a title.
    """
    leaf = branch.member("fLeaves")[0] if len(branch.member("fLeaves")) == 1 else None
    if leaf is None or leaf.classname not in ("TLeafF16", "TLeafD32") or leaf.member("fLeafCount") is None:
        return None
    title = leaf.member("fTitle").replace(f"[{leaf.member('fLeafCount').member('fName')}]", "", 1)
    alone = SimpleNamespace(classname=leaf.classname, member=lambda _: title)
    return uproot.AsJagged(identify._float16_or_double32(branch, {}, alone, leaf.classname == "TLeafF16", ()))


def check_counts(
    found: Index, expected: Index, text: str, *names: str, file: str | PathLike[str], start: int, field: str
) -> None:
    """Refuse the first entry, from `start`, whose int64 [event] differ; `text` has places for both and `names`."""
    for event in np.flatnonzero(found != expected)[:1]:
        message = text.format(found[event], expected[event], *names)
        raise InputError(message, file=file, entry=start + int(event), field=field)


def entries_at_once(tree: Any) -> int:
    """Entries of a TTree or RNTuple that are `MAX_READ` uncompressed bytes together, at least 1."""
    n_bytes = getattr(tree, "uncompressed_bytes", 4 * int(tree.file.fEND))  # of an RNTuple a guess
    return max(1, MAX_READ * int(tree.num_entries) // max(int(n_bytes), 1))


def read_ranges(tree: Any, size: int, most: int | None = None) -> list[tuple[int, int]]:
    """Ranges of at least `size` entries in which a tree is best read: a shared basket would be decompressed twice.

    Each ends where a basket of every branch (a cluster) ends, or after `size` where that is too large.
    """
    n, limit = int(tree.num_entries), max(size, entries_at_once(tree))
    limit = limit if most is None else min(limit, most)
    edges: list[int] = []
    with suppress(Exception):  # a branch that uproot does not understand: then baskets are cut
        if hasattr(tree, "common_entry_offsets"):
            edges = list(tree.common_entry_offsets())
        else:
            edges = [int(cluster.num_first_entry) for cluster in tree.cluster_summaries]
    # Edges of a TTree end with n, but an RNTuple lists only where clusters begin.
    ends = [*(edge for edge in edges if edge < n), n]
    ranges, start = [], 0
    while start < n:
        stop = ends[min(bisect_left(ends, start + size), len(ends) - 1)]
        step = stop - start if stop - start <= limit else size
        ranges += [(first, min(first + step, stop)) for first in range(start, stop, step)]
        start = stop
    return ranges


def make_ttree(directory: Any, name: str, types: Mapping[str, Any], title: str) -> Any:
    """Make an empty TTree in a file open for writing, with branches ``X.energy``, counted by ``n_X``, for records."""
    return directory.mktree(
        name,
        types,
        title=title,
        counter_name=lambda counted: f"n_{counted}",
        field_name=lambda outer, inner: f"{outer}.{inner}",
    )


def write_note(file: Any, key: str, content: Mapping[str, Any]) -> None:
    """Store what JSON can hold under `key` of a ROOT file open for writing, as a TObjString."""
    file[key] = json.dumps(content, sort_keys=True)


def read_notes(file: Any, key: str, path: str | PathLike[str]) -> list[dict[str, Any]]:
    """What `write_note` stored under `key` of an open file: ROOT's hadd keeps a cycle of the key for each file."""
    cycles = [int(name.split(";")[1]) for name in file.keys(recursive=False) if name.split(";")[0] == key]
    notes = []
    for cycle in sorted(cycles):
        with reading("expected a JSON object", file=path, field=key):
            content = json.loads(str(file[f"{key};{cycle}"]))
        if not isinstance(content, dict):
            raise InputError(f"expected a JSON object, found {type(content).__name__}", file=path, field=key)
        notes.append(content)
    return notes


def read_note(file: Any, key: str, path: str | PathLike[str]) -> dict[str, Any] | None:
    """The one content of `read_notes`, None without notes; an `InputError` where the notes of merged files differ."""
    notes = read_notes(file, key, path)
    for number, note in enumerate(notes):
        if note != notes[0]:
            names = ", ".join(name for name in {**notes[0], **note} if note.get(name) != notes[0].get(name))
            raise InputError(f"files 0 and {number} that were merged into it differ in {names}", file=path, field=key)
    return notes[0] if notes else None


class EventWeights:
    """Smallest and largest value of each branch of event weights, which no part of pflow uses, as far as it was read.

    Branches are found by their names, `EVENT_WEIGHT`, unless they are `used` for other quantities.
    """

    def __init__(self, tree: Any, path: str, *, used: Collection[str] = ()) -> None:
        self._tree, self._path = tree, path
        names = [key for key in _keys(tree) if EVENT_WEIGHT.fullmatch(key.rpartition("/")[2]) and key not in used]
        self._ranges = dict.fromkeys(names, (np.inf, -np.inf))

    def read(self, start: int, stop: int) -> str:
        """Read entries; say which weights differ so far, or nothing."""
        for key, (low, high) in self._ranges.items():
            with suppress(InputError, TypeError, ValueError):  # no number, or damaged: nobody needs it
                values = ak.to_numpy(ak.flatten(read_branch(self._tree, key, start, stop, self._path), axis=None))
                values = values[np.isfinite(values)]
                self._ranges[key] = min(low, values.min(initial=np.inf)), max(high, values.max(initial=-np.inf))
        # A branch of which nothing could be read still has the range inf to -inf, which is no difference.
        differing = [f"{key.rpartition('/')[2]} is {a:g} to {b:g}" for key, (a, b) in self._ranges.items() if a < b]
        return f"{', '.join(differing)}: weights of events are not used" if differing else ""


class Columns:
    """Columns of one tree (TTree or RNTuple) by collection and member; `path` is for messages."""

    def __init__(self, tree: Any, path: str) -> None:
        self.path = path
        self.tree = tree
        self.num_entries = int(tree.num_entries)
        self._keys: dict[str, dict[str, str]] = {}
        for key in _keys(tree):
            collection, member = _split(key)
            self._keys.setdefault(collection, {}).setdefault(member, key)
        self._lengths: dict[str, tuple[tuple[int, int], str, Index]] = {}  # range, column and lengths read last

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
        return "" if key is None else str(getattr(self.tree[key], "typename", ""))

    def has(self, collection: str, *members: str) -> bool:
        """Whether the collection and all of these members are there."""
        return collection in self._keys and all(member in self._keys[collection] for member in members)

    def first(self, *collections: str) -> str | None:
        """The first of these collections that the file holds, or None."""
        return next((name for name in collections if name in self._keys), None)

    def key(self, collection: str, *members: str) -> str:
        """Name in the file of a column: the first of the alternative `members` that is there; else an `InputError`."""
        known = self._keys.get(collection, {})
        for member in members:
            if member in known:
                return known[member]
        if not known:
            suggestions = nearest(collection, self._keys)
            raise InputError("no such collection", file=self.path, field=collection, suggestions=suggestions)
        message, suggestions = f"collection '{collection}' has no member", nearest(members[0], known)
        field = f"{collection}.{members[0]}"
        raise InputError(f"{message} '{' or '.join(members)}'", file=self.path, field=field, suggestions=suggestions)

    def n_values(self, collection: str, member: str) -> int:
        """Entries that a column has: fewer than the tree where uproot cannot read its type (metadata of old files)."""
        return int(getattr(self.tree[self.key(collection, member)], "num_entries", self.num_entries))

    def get(self, collection: str, *members: str, start: int, stop: int) -> ak.Array:
        """One column of entries `start` to `stop`, [event, object], of the first of the `members` that is there.

        An `InputError` if it is missing, cannot be decoded, or differs in length from another of the collection.
        """
        key = self.key(collection, *members)
        values = read_branch(self.tree, key, start, stop, self.path)
        if values.ndim > 1:
            counts = jagged.count(values)
            # Lengths of another range of entries say nothing about this one.
            if (before := self._lengths.get(collection)) and before[0] == (start, stop):
                text = "{0} values, and '{2}' has {1}"
                check_counts(counts, before[2], text, before[1], file=self.path, start=start, field=key)
            else:
                self._lengths[collection] = (start, stop), key, counts
        return values


def _keys(tree: Any) -> list[str]:
    """Names of all branches, or of all fields of an RNTuple, which uproot's `keys` lists in quadratic time."""
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


def with_retries(path: str | PathLike[str], work: Callable[[], T], *, again: Callable[[], object] | None = None) -> T:
    """Return the result of `work` on a file; call `again` and retry if the connection to its server fails.

    An `InputError` says how often it was tried and for how long. A local file has one attempt.
    """
    if "://" not in str(path):
        return work()
    begin, failed = time.monotonic(), 0
    while True:
        try:
            # Within the try, as connecting again may fail too, and is then tried again.
            if failed and again is not None:
                again()
            return work()
        except Exception as error:
            failed += 1
            if (failure := _connection_failure(error)) is None:
                raise
            if failed == ATTEMPTS:
                text = f"no connection, tried {ATTEMPTS} times in {time.monotonic() - begin:.0f} s"
                raise InputError(f"{text}: {first_line(failure)}", file=path) from error
        time.sleep(FIRST_WAIT * 2 ** (failed - 1))
        with suppress(Exception):  # fsspec keeps connections that broke; whatever else is wrong, opening says it
            import fsspec

            fsspec.get_filesystem_class(str(path).partition("://")[0]).clear_instance_cache()


def _connection_failure(error: BaseException | None) -> BaseException | None:
    """The failure of the network or server among the causes of an error; None without one."""
    while error is not None:
        text = str(error)
        # The server has answered: asking again would change nothing.
        if isinstance(error, FileNotFoundError | PermissionError) or "No such file" in text:
            return None
        of_network = isinstance(error, OSError) or type(error).__module__.startswith("aiohttp")
        if of_network or "closed file" in text or RETURNED_ERROR.search(text):
            return error
        error = error.__cause__ or error.__context__
    return None
