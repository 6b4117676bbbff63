"""Podio frames: collections as objects in TTrees that podio's `ROOTReader` opens, and copies of an input's.

uproot writes branches of numbers only, which podio and RDataFrame (FCCAnalyses) cannot read as objects, and has no
class to extend. So `TreeWriter` writes branches of objects itself, byte by byte as ROOT's streamers of TTree 20,
TBranchElement 10, TLeafElement 1 and TStreamerInfo 9 do; uproot manages the file, its directory and its free space.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import uproot
from uproot.serialization import string
from uproot.writing._cascade import RawStreamerInfo

from pflow.errors import InputError
from pflow.event import jagged
from pflow.io.edm4hep.podio import (
    ARRAY,
    PRIMITIVES,
    SCHEMA_VERSION,
    TEXT,
    TYPES,
    CollectionInfo,
    DataModel,
    Filled,
    PodioFile,
)
from pflow.io.root import tree_names

IN_ARRAY, OBJECT, STL, STL_STRING, STRING = 20, 62, 300, 365, 500  # further ones; the first is added to a number's
WHOLE, SPLIT, MEMBER = 0, 4, 41  # TBranchElement::fType: an object, a vector of objects, a member of its objects
COUNT, NEW_CLASS = 0x40000000, 0xFFFFFFFF  # marks of the length of an object, and of a class named for the first time
COLLECTION_VERSION = 9  # of streamed vectors, from ROOT 5.34 to 6.38
SINGLE = "podio::version::Version"  # the struct that is a field itself, not in a vector


def root_name(cpp_type: str) -> str:
    """The name that ROOT gives to a type: ``vector<vector<int> >`` for ``std::vector<std::vector<std::int32_t>>``."""
    if cpp_type in PRIMITIVES:
        return TYPES[PRIMITIVES[cpp_type].name][0]
    outer, bracket, inner = cpp_type.removeprefix("std::").partition("<")
    if outer == "array":
        inner, _, length = inner.removesuffix(">").rpartition(",")
        return f"array<{root_name(inner)},{length.strip()}>"
    if outer == "vector":
        inner = root_name(inner.removesuffix(">"))
        return f"vector<{inner}{' ' if inner.endswith('>') else ''}>"
    return outer + bracket + inner


def checksum(name: str, members: Sequence[tuple[str, str]] = ()) -> int:
    """ROOT's checksum of a class (TClass::GetCheckSum); ROOT finds the layout of a file's objects by it."""
    value = 0
    for character in "".join([name, *(member + root_name(cpp_type) for member, cpp_type in members)]):
        # Python's integers do not overflow as ROOT's unsigned number of 32 bits does.
        value = (3 * value + ord(character)) & 0xFFFFFFFF
    return value


class TreeWriter:
    """Writes one TTree, chunk by chunk, into a directory of uproot's that is open for writing; `close` ends it.

    `fields`: the data model of each field, and the type in its vector (`DataModel.fields`).
    """

    def __init__(self, directory: Any, name: str, fields: Mapping[str, tuple[DataModel, str]]) -> None:
        self._directory, self._name, self._num_entries = directory, name, 0
        self._fields = {field: (*of, _branch(field, *of)) for field, of in fields.items()}

    def extend(self, frames: Mapping[str, Filled], n: int) -> None:
        """Append `n` entries; fields that `frames` lack are empty."""
        if not n:
            return
        none = Filled(counts=np.zeros(n, dtype=np.int64), columns={})
        for field, (model, cpp_type, branch) in self._fields.items():
            filled = frames.get(field, none)
            total = int(filled.counts.sum())
            if cpp_type not in model.structs:
                self._write(branch, *_vectors(filled, cpp_type))
                continue
            # The number of objects is in the vector's own branch only: its members' branches do not repeat it.
            if cpp_type != SINGLE:
                self._write(branch, filled.counts.astype(">i4").tobytes(), np.full(n, 4))
            for child, (path, kind, length) in zip(branch.children, model.leaves(cpp_type), strict=True):
                values = filled.columns.get(path)
                if kind == TEXT:
                    self._write(child, *_vectors(filled, kind, path))
                    continue
                # ROOT's files are big-endian.
                dtype = PRIMITIVES[kind].newbyteorder(">")
                # podio expects every member of a struct, also those for which pflow has no values.
                numbers = np.zeros(total * (length or 1)) if values is None else np.ascontiguousarray(values)
                sizes = None if cpp_type == SINGLE else filled.counts * ((length or 1) * dtype.itemsize)
                self._write(child, numbers.astype(dtype).tobytes(), sizes)
        self._num_entries += n

    def close(self) -> None:
        """Write the tree and the descriptions of its structs (TStreamerInfo); only then the file has the tree."""
        title = f"{self._name} data tree"
        # References between objects count from the beginning of the key: 34 bytes and three texts before the object.
        out = _Buffer(34 + sum(len(string(text)) for text in ("TTree", self._name, title)))
        branches = [branch for *_, branch in self._fields.values()]
        flat = [branch for top in branches for branch in (top, *top.children)]
        compressed = sum(size for branch in flat for size, *_ in branch.baskets)
        with out.object(20):
            out.named(self._name, title, bits=8)
            out += b"@\0\0\x08\0\x02\x02\x5a\0\x01\0\x01@\0\0\x06\0\x02\0\0\x03\xe9@\0\0\x0a\0\x02\0\x01\0\x01?\x80\0\0"
            out += struct.pack(
                ">qqqqqdiiiiIqqqqqq",
                *(self._num_entries, sum(branch.total for branch in flat), compressed, 0, 0, 1.0, 0, 25, 0),
                *(1000, 0, 10**12, 10**12, 0, -300000000, -30000000, 1000000),
            )
            out += b"\0\0" + IO_FEATURES
            with out.array(len(branches)):
                for branch in branches:
                    self._describe(out, branch, None)
            with out.array(len(flat)):
                # The leaves lie in their branches above: the tree's own list only refers to them.
                out += b"".join(struct.pack(">I", out.places[id(branch), "leaf"]) for branch in flat)
            out += bytes(28)  # no aliases, index, friends, user info
        sink, raw = self._directory.file.sink, bytes(out)
        data = uproot.compression.compress(raw, self._directory.file.compression)
        # A big key (64-bit positions): its 34 bytes are those that the buffer's start counts.
        self._directory._cascading.add_object(sink, "TTree", self._name, title, data, len(raw), big=True)
        # By version, too: pflow and the input may know a struct in different versions.
        infos = {}
        for model, cpp_type, _ in self._fields.values():
            for name in model.nested(cpp_type):
                version = model.versions[name]
                infos[name, version] = RawStreamerInfo(None, _streamer_info(model, name, version), name, version)
        self._directory.file.update_streamers(list(infos.values()))

    def _describe(self, out: _Buffer, branch: _Branch, parent: _Branch | None) -> None:
        """Append a TBranchElement with its leaf and its children."""
        out.places[id(branch), "branch"] = out.place
        sizes, entries, places = np.array(branch.baskets, dtype=np.int64).reshape(-1, 3).T
        # One more than the baskets: the list of first entries also says where a next basket would begin.
        room = max(10, len(sizes) + 1)
        with out.any("TBranchElement"), out.object(10):
            with out.object(13):
                out.named(branch.name, branch.title, bits=0x00400000)
                out += b"@\0\0\x06\0\x02\0\0\x03\xe9"
                # No compression is stated: ROOT then looks at each basket whether it is compressed.
                offsets = 0 if branch.plain else 1000
                out += struct.pack(">iiiiq", 0, 32000, offsets, len(sizes), self._num_entries) + IO_FEATURES
                split = 99 if parent is None else 0
                counts = (self._num_entries, 0, branch.total, int(sizes.sum()))
                out += struct.pack(">iIiqqqq", 0, room, split, *counts)
                with out.array(len(branch.children)):
                    for child in branch.children:
                        self._describe(out, child, branch)
                with out.array(1):
                    self._leaf(out, branch, parent)
                with out.array(0):
                    pass
                for values, dtype in ((sizes, ">i4"), ([*entries, self._num_entries], ">i8"), (places, ">i8")):
                    out += b"\x01" + np.pad(np.array(values, dtype), (0, room - len(values))).tobytes()
                out += b"\0"
            names = (branch.class_name, branch.parent_name, branch.clones_name)
            out += b"".join(map(string, names))
            numbers = (branch.checksum, branch.version, branch.id, branch.type, branch.streamer_type, branch.most)
            # ROOT finds how many objects an entry of a member has in the branch of its vector.
            counter = out.places[id(parent), "branch"] if branch.type == MEMBER else 0
            out += struct.pack(">IhiiiiII", *numbers, counter, 0)

    def _leaf(self, out: _Buffer, branch: _Branch, parent: _Branch | None) -> None:
        """Append a leaf; the first mention of the leaf of a vector, which its members refer to, holds it."""
        if (id(branch), "leaf") in out.places:
            out += struct.pack(">I", out.places[id(branch), "leaf"])
            return
        out.places[id(branch), "leaf"] = out.place
        with out.any("TLeafElement"), out.object(1):
            with out.object(2):
                out.named(branch.title if branch.type == SPLIT else branch.name.partition("[")[0], branch.title, bits=0)
                unsigned = 11 <= branch.streamer_type % IN_ARRAY <= 14
                out += struct.pack(">iii??", branch.length, branch.itemsize, 0, False, unsigned)
                if parent is not None and branch.type == MEMBER:
                    self._leaf(out, parent, None)
                else:
                    out += bytes(4)
            out += struct.pack(">ii", branch.id, branch.streamer_type)

    def _write(self, branch: _Branch, data: bytes, sizes: npt.NDArray[np.int64] | None) -> None:
        """Write a basket: bytes of consecutive entries, and how many each has (None: the branch is `plain`)."""
        names = string("TBasket") + string(branch.name) + string(self._name)
        # ROOT counts the 19 bytes of TBasket's own members, written behind the names, as part of the key.
        key_length = 34 + len(names) + 19
        n, last = 1 if sizes is None else len(sizes), key_length + len(data)
        if sizes is not None:
            if branch.type == SPLIT:
                branch.most = max(branch.most, int(np.frombuffer(data, ">i4").max(initial=0)))
            places = key_length + jagged.offsets(sizes)
            places[-1] = 0
            data += struct.pack(">i", n + 1) + places.astype(">i4").tobytes()
        compressed = uproot.compression.compress(data, self._directory.file.compression)
        directory, sink, size = self._directory._cascading, self._directory.file.sink, key_length + len(compressed)
        # Space is taken before the header is made, which holds its own position.
        location = directory.freesegments.allocate(size, dry_run=False)
        numbers = (size, 1004, len(data), 0, key_length, 0, location, directory.key.location)
        head = struct.pack(">ihiIhhqq", *numbers) + names
        nev_size = n + 2 if sizes is not None else branch.itemsize
        sink.write(location, head + struct.pack(">hiiiib", 3, 32000, nev_size, n, last, 0) + compressed)
        directory.freesegments.write(sink)
        sink.set_file_length(directory.freesegments.fileheader.end)
        branch.baskets.append((size, self._num_entries, location))
        branch.total += key_length + len(data)


IO_FEATURES = b"@\0\0\x07\0\0\x1a\xa1/\x10\0"  # ROOT::TIOFeatures


@dataclasses.dataclass(kw_only=True, eq=False)
class _Branch:
    """Members of a TBranchElement, and its baskets."""

    name: str
    title: str
    class_name: str
    checksum: int
    version: int
    id: int
    type: int
    streamer_type: int = -1
    parent_name: str = ""
    clones_name: str = ""
    length: int = 1
    itemsize: int = 0
    plain: bool = False  # entries of the same size
    children: list[_Branch] = dataclasses.field(default_factory=list)
    most: int = 0  # objects of an entry
    total: int = 0  # bytes before compression
    baskets: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    """Of each basket bytes in the file, first entry and place in the file."""


def _branch(field: str, model: DataModel, cpp_type: str) -> _Branch:
    """The branch of a field, with its members' where the type is a struct."""
    name, prefix, count = root_name(f"std::vector<{cpp_type}>"), f"{field}.", f"[{field}_]"
    branch = _Branch(name=field, title=field, class_name=name, checksum=checksum(name), version=6, id=-1, type=WHOLE)
    if cpp_type not in model.structs:
        return branch
    if cpp_type == SINGLE:
        branch.class_name, branch.checksum = cpp_type, checksum(cpp_type, model.structs[cpp_type])
        branch.version, branch.id, branch.plain = 1, -2, True
        prefix = count = ""
    else:
        branch.title, branch.clones_name, branch.type = f"{field}_", cpp_type, SPLIT
    for path, kind, length in model.leaves(cpp_type):
        owner, member = cpp_type, path
        # ROOT describes a member of a nested struct by the struct that declares it, not by the outermost one.
        while "." in member:
            outer, _, member = member.partition(".")
            owner = dict(model.structs[owner])[outer]
        dtype = None if kind == TEXT else PRIMITIVES[kind]
        number = STL if dtype is None else TYPES[dtype.name][1] + (IN_ARRAY if length else 0)
        branch.children.append(
            _Branch(
                name=f"{prefix}{path}" + (f"[{length}]" if length else ""),
                title=f"{member}{count}",
                class_name=owner,
                parent_name=cpp_type,
                checksum=checksum(owner, model.structs[owner]),
                version=model.versions[owner],
                id=[name for name, _ in model.structs[owner]].index(member),
                type=MEMBER if count else WHOLE,
                streamer_type=number,
                length=length or 1,
                itemsize=0 if dtype is None else dtype.itemsize,
                plain=not count,
            )
        )
    return branch


def _vectors(filled: Filled, cpp_type: str, path: str = "") -> tuple[bytes, npt.NDArray[np.int64]]:
    """Vectors of numbers, texts, or vectors of these, one an entry, as ROOT streams them, and the sizes in bytes."""
    values = filled.columns.get(path, ())
    member, entries = bool(path), []  # members of structs leave out their number, which is the vector's
    for start, n in zip(jagged.offsets(filled.counts)[:-1].tolist(), filled.counts.tolist(), strict=True):
        body = _streamed(values[start : start + n], cpp_type)
        body = struct.pack(">H", COLLECTION_VERSION) + (b"" if member else struct.pack(">i", n)) + body
        entries.append(struct.pack(">I", COUNT | len(body)) + body)
    return b"".join(entries), np.array([len(entry) for entry in entries], np.int64)


def _streamed(values: Any, cpp_type: str) -> bytes:
    if cpp_type == TEXT:
        return b"".join(map(string, values))
    if cpp_type in PRIMITIVES:
        return np.asarray(values, PRIMITIVES[cpp_type].newbyteorder(">")).tobytes()
    inner = cpp_type.removeprefix("std::vector<").removesuffix(">")
    return b"".join(struct.pack(">i", len(value)) + _streamed(value, inner) for value in values)


def _streamer_info(model: DataModel, name: str, version: int) -> bytes:
    """A TStreamerInfo: the members of a struct, so that ROOT reads it without its library, or with a newer one."""
    out, members = _Buffer(0), model.structs[name]
    with out.any("TStreamerInfo"), out.object(9):
        out.named(name, "", bits=0x00010000)
        out += struct.pack(">Ii", checksum(name, members), version)
        with out.any("TObjArray"), out.array(len(members)):
            for member, cpp_type in members:
                array = ARRAY.fullmatch(cpp_type)
                kind, length = (array[1], int(array[2])) if array else (cpp_type, 0)
                versions: tuple[int, ...] = (2, 4)  # of the class and those that it extends
                if kind in PRIMITIVES:
                    dtype = PRIMITIVES[kind]
                    number, size = TYPES[dtype.name][1] + (IN_ARRAY if length else 0), dtype.itemsize * (length or 1)
                    class_name = "TStreamerBasicType"
                elif kind == TEXT:
                    number, size, class_name, versions = STRING, 32, "TStreamerSTLstring", (2, 3, 4)
                else:
                    number, size, class_name = OBJECT, model.size(kind), "TStreamerObjectAny"
                with ExitStack() as bases:
                    bases.enter_context(out.any(class_name))
                    for base in versions[:-1]:
                        bases.enter_context(out.object(base))
                    with out.object(versions[-1]):
                        out.named(member, "", bits=0)
                        out += struct.pack(">iiiiiiiii", number, size, length, int(length > 0), length, 0, 0, 0, 0)
                        out += string(root_name(kind))
                    if kind == TEXT:
                        out += struct.pack(">ii", STL_STRING, STL_STRING)  # of the container, and of its content
    return bytes(out) + b"\0"


class _Buffer(bytearray):
    """Bytes of a ROOT object; `start`: offset of its first byte from the origin of references."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self._start = start
        self.places: dict[tuple[int, str], int] = {}

    @property
    def place(self) -> int:
        """Position by which later references name the next object."""
        # ROOT adds 2 (kMapOffset), as 0 stands for no object.
        return self._start + len(self) + 2

    @contextmanager
    def _counted(self, head: bytes) -> Iterator[None]:
        start = len(self)
        # Room for the length, which is known only when the content is there.
        self += bytes(4) + head
        yield
        self[start : start + 4] = struct.pack(">I", COUNT | (len(self) - start - 4))

    def object(self, version: int) -> Any:
        """Context: frame the appended bytes as an object of class version `version`."""
        return self._counted(struct.pack(">H", version))

    def any(self, class_name: str) -> Any:
        """Context: frame the appended bytes as an object behind a pointer (TBuffer::WriteObjectAny)."""
        return self._counted(struct.pack(">I", NEW_CLASS) + class_name.encode() + b"\0")

    @contextmanager
    def array(self, n: int) -> Iterator[None]:
        """Context: the appended bytes are the `n` objects of a TObjArray."""
        with self.object(3):
            self += struct.pack(">HIIBii", 1, 0, 0, 0, n, 0)
            yield

    def named(self, name: str, title: str, *, bits: int) -> None:
        """Append a TNamed."""
        with self.object(1):
            self += struct.pack(">HII", 1, 0, bits)
            self += string(name) + string(title)


PODIO_VERSION = (1, 7, 0)  # version of podio whose layout is written

Parameters = Mapping[str, Mapping[str, Sequence[Any]]]
"""Values of the parameters of a frame by kind (keys of `PARAMETER_TYPES`) and key."""

PARAMETER_TYPES = {"Int": "std::int32_t", "Float": "float", "Double": "double", "String": TEXT}
"""Kinds of parameters of a frame, as podio names them, and type of their values."""

PARAMETER_FIELDS = {
    f"GP{kind}{part}": (DataModel(), cpp_type)
    for kind, value in PARAMETER_TYPES.items()
    for part, cpp_type in (("Keys", TEXT), ("Values", f"std::vector<{value}>"))
}


Definitions = Mapping[str, tuple[str, tuple[int, ...]]]
"""Data models by name: each as podio's JSON, and its version (major, minor, patch; empty if it is not known)."""


class FrameWriter:
    """Writes one category of frames, ``events``, chunk by chunk, then the metadata.

    `collections` pairs each with the data model that knows its type; two may know a type in different versions.
    `definitions` are the data models by name, as of `Definitions`, to be stored in the `file`, open for writing.
    """

    def __init__(
        self,
        file: Any,
        *,
        collections: Sequence[tuple[DataModel, CollectionInfo]],
        definitions: Definitions,
    ) -> None:
        self._file = file
        self._collections = sorted(collections, key=lambda pair: pair[1].name)
        self._definitions = definitions
        fields = {
            field: (model, cpp_type)
            for model, collection in self._collections
            for field, cpp_type in model.fields(collection).items()
        }
        self._events = TreeWriter(file, "events", fields | PARAMETER_FIELDS)

    def extend(self, frames: Mapping[str, Filled], frame_parameters: Sequence[Parameters]) -> None:
        """Append consecutive frames, one for each item of `frame_parameters`; fields that `frames` lack are empty."""
        self._events.extend({**frames, **_parameters(frame_parameters)}, len(frame_parameters))

    def finish(self, categories: Mapping[str, Sequence[Parameters]]) -> None:
        """Write the other categories, the parameters of whose frames are given, and podio's metadata."""
        self._events.close()
        fields: dict[str, tuple[DataModel, str]] = {}
        metadata: dict[str, Filled] = {}
        model, info = DataModel(), "podio::root_utils::CollectionWriteInfo"

        def add(name: str, struct: str, rows: Sequence[tuple[Any, ...]]) -> None:
            columns = {member: [row[i] for row in rows] for i, (member, _) in enumerate(model.structs[struct])}
            fields[name] = model, struct
            metadata[name] = Filled(counts=np.array([len(rows)]), columns=columns)

        # podio asks every category for its collections, also those that hold parameters alone.
        for name in categories:
            add(f"{name}___CollectionTypeInfo", info, ())
        add("events___CollectionTypeInfo", info, [_info(*pair) for pair in self._collections])
        add("EDMDefinitions", "tuple<string,string>", [(text, name) for name, (text, _) in self._definitions.items()])
        versions = {f"{name}___Version": version for name, (_, version) in self._definitions.items() if version}
        for name, version in {"PodioBuildVersion": PODIO_VERSION, **versions}.items():
            add(name, SINGLE, [version])
        trees = [(name, PARAMETER_FIELDS, _parameters(frames), len(frames)) for name, frames in categories.items()]
        for name, of_tree, content, n in [*trees, ("podio_metadata", fields, metadata, 1)]:
            tree = TreeWriter(self._file, name, of_tree)
            tree.extend(content, n)
            tree.close()


class InputCopy:
    """Reads the collections of one file member by member.

    They keep their schema: where it is older than podio's, ROOT reads their members by the rules of EDM4hep's library.
    A newer one than `SCHEMA_VERSION` is a warning. Collections that the metadata list, but that a program dropped from
    the file, whole or in part, are left out, with a warning. An `InputError` where the metadata lack ids and types, or
    one of `needed` is dropped.
    """

    def __init__(self, file: PodioFile, needed: Collection[str] = ()) -> None:
        self._file = file
        self.definitions = {name: (text, file.version(name)) for name, text in file.definitions().items()}
        infos = file.infos()
        problem = ""
        if not infos or not self.definitions or not all(info.data_type for info in infos):
            problem = (
                "the file does not say the types of its collections in a form that can be copied; expected a file of "
                "podio 1.3 or later, with names in events___CollectionTypeInfo, and EDMDefinitions"
            )
        elif several := sorted(name for name, n_ids in Counter(file.ids.values()).items() if n_ids > 1):
            # References are copied as they are, and the output knows one id of each collection: some would be lost.
            names = ", ".join(several)
            problem = f"files were merged in which {names} had other ids, so the collections cannot be copied"
        if problem:
            raise InputError(problem, file=file.path, field="podio_metadata")
        models = {name: json.loads(text) for name, (text, _) in self.definitions.items()}
        if (schema := models.get("edm4hep", {}).get("schema_version", 0)) > SCHEMA_VERSION:
            text = f"schema {schema} of EDM4hep is newer than {SCHEMA_VERSION}, pflow's: its collections are copied"
            warnings.warn(f"{file.path}: {text}", stacklevel=3)
        self.model = DataModel(*models.values())
        self.collections: dict[str, CollectionInfo] = {}
        self._fields: dict[str, str] = {}
        dropped = []
        for info in infos:
            try:
                fields = self.model.fields(info)
                members = [(field, names) for field, kind in fields.items() for _, names in self._members(kind)]
            except KeyError as error:
                raise InputError(str(error.args[0]), file=file.path, field=info.name) from error
            if all(any(file.columns.has(field, name) for name in names) for field, names in members):
                self.collections[info.name] = info
                self._fields |= fields
            elif info.name in needed:
                raise InputError("the file holds only a part of it", file=file.path, field=info.name)
            else:
                dropped.append(info.name)
        if dropped:
            text = f"{', '.join(dropped)} of its metadata is not or not whole in the file, and not copied"
            warnings.warn(f"{file.path}: {text}", stacklevel=3)

    def _members(self, cpp_type: str) -> list[tuple[str, tuple[str, ...]]]:
        """Path of each leaf of a type, and its possible names in the file."""
        # A TTree's branch of an array has the length in its name, an RNTuple's field has not.
        leaves = self.model.leaves(cpp_type)
        return [(path, (path,) if length is None else (f"{path}[{length}]", path)) for path, _, length in leaves]

    def read(self, start: int, stop: int) -> dict[str, Filled]:
        """Content of all collections, with their references, in entries `start` to `stop` (exclusive)."""
        frames = {}
        for field, cpp_type in self._fields.items():
            columns, counts = {}, np.zeros(stop - start, dtype=np.int64)
            for path, names in self._members(cpp_type):
                values = self._file.get(range(start, stop), field, *names)
                counts, columns[path] = jagged.count(values), jagged.flat(values)
            frames[field] = Filled(counts=counts, columns=columns)
        return frames

    def categories(self) -> dict[str, Sequence[Parameters]]:
        """Parameters of the other categories of frames; those that hold collections are left out."""
        file = self._file
        names = sorted(set(tree_names(file.directory)) - {"events", "podio_metadata"})
        return {name: file.frame_parameters(name) for name in names if not file.infos(name)}


def _info(model: DataModel, info: CollectionInfo) -> tuple[Any, ...]:
    """What the metadata say of a collection, as podio::root_utils::CollectionWriteInfo."""
    # They name the type of a subset's objects, although its only field holds references.
    objects = next(iter(model.fields(dataclasses.replace(info, is_subset=False)).values()))
    return info.id, info.data_type, info.is_subset, info.schema_version, info.name, f"std::vector<{objects}>"


def _parameters(frames: Sequence[Parameters]) -> dict[str, Filled]:
    """Fields ``GPIntKeys``, ``GPIntValues`` and so on of consecutive frames."""
    fields = {}
    for kind in PARAMETER_TYPES:
        tables = [frame.get(kind, {}) for frame in frames]
        counts = np.array([len(table) for table in tables], dtype=np.int64)
        keys = [key for table in tables for key in table]
        values = [row for table in tables for row in table.values()]
        fields[f"GP{kind}Keys"] = Filled(counts=counts, columns={"": keys})
        fields[f"GP{kind}Values"] = Filled(counts=counts, columns={"": values})
    return fields
