"""Files of podio: collections and their types, ids, references, vector members, cell encodings.

`DataModel` reads the definition of the types, as JSON, that every podio file carries; `edm4hep_types` are those that
pflow writes.

Layouts of existing files (podio's `ROOTReader` and `RNTupleReader` read the same ones):

================= ============================= ================================ =================================
what              podio >= 0.99, EDM4hep >= 1    podio 0.16 to 0.99               older
================= ============================= ================================ =================================
ids and names     ``podio_metadata``,            ``podio_metadata``,              ``metadata``, ``CollectionIDs``
                  ``events___CollectionTypeInfo`` ``events___idTable``
relation r of X   ``_X_r``                       ``_X_r`` or ``X#0``, ``X#1`` ... ``X#0``, ``X#1`` ...
link X            ``_X_from``, ``_X_to``         ``_X_rec``, ``_X_sim``           ``X#0``, ``X#1``
vector member     ``_X_m``                       ``_X_m`` or ``X_0``, ``X_1`` ... ``X_0``, ``X_1`` ...
================= ============================= ================================ =================================

A file without a table of ids, as other tools write them, is read with the ids that podio makes from names.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import awkward as ak
import mmh3
import numpy as np
import numpy.typing as npt

from pflow.config import load_yaml
from pflow.errors import InputError, nearest, reading
from pflow.event import jagged
from pflow.io.root import Columns, EventWeights, check_counts, earlier_trees, open_root, open_tree, tree_names
from pflow.physics.arrays import Index

SCHEMA_VERSION = 6  # of EDM4hep 1.0, whose `edm4hep_types` are

TYPES = {
    **{"bool": ("bool", 18), "int8": ("char", 1), "int16": ("short", 2), "int32": ("int", 3), "int64": ("long", 4)},
    **{"float32": ("float", 5), "float64": ("double", 8), "uint8": ("unsigned char", 11)},
    **{"uint16": ("unsigned short", 12), "uint32": ("unsigned int", 13), "uint64": ("unsigned long", 14)},
}
"""Name and number (TVirtualStreamerInfo::EReadWrite) of ROOT's types by NumPy's."""

PRIMITIVES = {name: np.dtype(numpy_name) for numpy_name, (name, _) in TYPES.items()}
PRIMITIVES |= {f"{prefix}{name}_t": np.dtype(name) for name in TYPES if "int" in name for prefix in ("std::", "")}
"""NumPy type of each C++ type that members have."""

Members = tuple[tuple[str, str], ...]  # name and C++ type of each member

ARRAY = re.compile(r"std::array<(.+?), *(\d+)>")
ID_BITS = 0xFFFFFFFF  # of ids of collections, 32-bit hashes that some files hold signed

SUBSET = "_objIdx"
"""Suffix of the branch of a subset collection, which holds only references to objects of another collection."""

LINK_ENDS = (("from", "rec"), ("to", "sim"))  # names of the references of links: where they begin, where they lead

LINK, USER_DATA = "podio::LinkCollection", "podio::UserDataCollection"  # templates: of both ends, of numbers

TEXT = "std::string"
OF_PODIO: dict[str, Members] = {  # its own structs
    "podio::ObjectID": (("index", "std::int32_t"), ("collectionID", "std::uint32_t")),
    "podio::LinkData": (("weight", "float"),),
    "podio::version::Version": tuple((part, "std::uint16_t") for part in ("major", "minor", "patch")),
    "podio::root_utils::CollectionWriteInfo": (
        *(("collectionID", "std::uint32_t"), ("dataType", TEXT), ("isSubset", "bool")),
        *(("schemaVersion", "std::uint32_t"), ("name", TEXT), ("storageType", TEXT)),
    ),
    "tuple<string,string>": (("_1", TEXT), ("_0", TEXT)),
}


def edm4hep_types() -> dict[str, Any]:
    """Definition of the types that pflow writes (``edm4hep.yaml``), in the form of podio's JSON."""
    return {"schema_version": SCHEMA_VERSION, **load_yaml(Path(__file__).with_name("edm4hep.yaml"))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionInfo:
    """What the metadata of a podio file say of one of its collections, e.g. of type ``edm4hep::ClusterCollection``."""

    name: str
    data_type: str
    schema_version: int = SCHEMA_VERSION
    id: int = -1  # in this file; default: `collection_id` of the name
    is_subset: bool = False  # whether it holds references to objects of other collections

    def __post_init__(self) -> None:
        if self.id < 0:
            # A frozen dataclass refuses plain assignments, also its own.
            object.__setattr__(self, "id", collection_id(self.name))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Filled:
    """Content of one field in consecutive frames: int64 [frame] `counts` of objects, and their members by path."""

    counts: Index
    columns: Mapping[str, Any]


class DataModel:
    """Structs and data types of one or more data models, each as podio's JSON; names in earlier ones win."""

    def __init__(self, *definitions: Mapping[str, Any]) -> None:
        self.structs = dict(OF_PODIO)
        self.versions = dict.fromkeys(OF_PODIO, 1)  # of structs, as ROOT counts versions of classes
        self._fields: dict[str, Members] = {}
        for definition in definitions:
            for name, component in definition.get("components", {}).items():
                self.structs.setdefault(name, _members(component.get("Members", ())))
            for name, datatype in definition.get("datatypes", {}).items():
                vectors, to_many, to_one = (
                    _members(datatype.get(part, ()))
                    for part in ("VectorMembers", "OneToManyRelations", "OneToOneRelations")
                )
                # In podio's order, which ROOT's checksum depends on: vector members before relations.
                sides = itertools.product((member for member, _ in vectors + to_many), ("begin", "end"))
                ranges = [(f"{member}_{side}", "std::uint32_t") for member, side in sides]
                self.structs.setdefault(f"{name}Data", (*_members(datatype.get("Members", ())), *ranges))
                references = ((member, "podio::ObjectID") for member, _ in to_many + to_one)
                self._fields.setdefault(name, (*references, *vectors))
            for name in self.structs:
                self.versions.setdefault(name, definition.get("schema_version", 1))

    def fields(self, collection: CollectionInfo) -> dict[str, str]:
        """Fields in which podio stores a collection, objects first, and their C++ types; a `KeyError` if unknown."""
        name, data_type = collection.name, collection.data_type
        template, _, content = data_type.removesuffix(">").partition("<")
        objects = data_type.removesuffix("Collection")
        # Before the types: a subset stores references, whatever its objects are.
        if collection.is_subset:
            return {f"{name}{SUBSET}": "podio::ObjectID"}
        if template == LINK:
            return {name: "podio::LinkData", **{f"_{name}_{end}": "podio::ObjectID" for end in ("from", "to")}}
        if template == USER_DATA:
            return {name: content}
        if objects == data_type or objects not in self._fields:
            close = " or ".join(f"{known}Collection" for known in nearest(data_type, self._fields))
            raise KeyError(f"unknown collection type '{data_type}'{f'; did you mean {close}?' if close else ''}")
        return {name: f"{objects}Data", **{f"_{name}_{member}": kind for member, kind in self._fields[objects]}}

    def leaves(self, cpp_type: str, path: str = "") -> list[tuple[str, str, int | None]]:
        """Each number, text or array of numbers in a type: path as ``momentum.x``, C++ type, and length of an array."""
        if array := ARRAY.fullmatch(cpp_type):
            if array[1] not in PRIMITIVES:
                raise KeyError(f"arrays of '{array[1]}' cannot be written")
            return [(path, array[1], int(array[2]))]
        if cpp_type not in self.structs:
            return [(path, cpp_type, None)]
        prefix = f"{path}." if path else ""
        return [leaf for name, inner in self.structs[cpp_type] for leaf in self.leaves(inner, f"{prefix}{name}")]

    def nested(self, cpp_type: str) -> list[str]:
        """All structs in a type, itself first; [] for a number."""
        if cpp_type not in self.structs:
            return []
        return [cpp_type, *(name for _, inner in self.structs[cpp_type] for name in self.nested(inner))]

    def size(self, cpp_type: str) -> int:
        """Bytes of a struct of numbers in memory, where each lies at a multiple of its size."""
        leaves = [(path, PRIMITIVES[kind], (length or 1,)) for path, kind, length in self.leaves(cpp_type)]
        return np.dtype(leaves, align=True).itemsize


def collection_id(name: str) -> int:
    """Id of a collection as podio makes it: MurmurHash3 (x86, 32 bits, seed 0) of its name.

    >>> collection_id("MCParticles")
    2714477136
    """
    return mmh3.hash(name, signed=False)


def _members(lines: Sequence[str]) -> Members:
    """Names and types of members.

    >>> _members(["float energy[GeV] // of the hit", "std::int32_t helicity{9}"])
    (('energy', 'float'), ('helicity', 'std::int32_t'))
    """
    declarations = (re.sub(r"[\[{].*?[\]}]", "", line.split("//")[0]).strip() for line in lines)
    # From the right: types such as unsigned int have spaces.
    parts = (declaration.rpartition(" ") for declaration in declarations)
    return tuple((name, cpp_type.strip()) for cpp_type, _, name in parts)


PARTICLE_MEMBERS = {
    "PDG": "pdg",
    "energy": "energy",
    **{f"momentum.{axis}": f"p{axis}" for axis in "xyz"},
    "charge": "charge",
    "mass": "mass",
    "goodnessOfPID": "score",
}
"""Member of edm4hep::ReconstructedParticle: quantity of our particles."""

LAYER_NAMES = ("layer", "K-1")  # names of the layer's field in DD4hep and in older ILD encodings
MAX_METADATA = 10  # entries of a tree of metadata that are compared: merged files have one of each file


def bit_field(encoding: str, *names: str) -> tuple[int, int, bool] | None:
    """Offset, width and whether it is signed, of the first of the fields `names` in an encoding; None without them.

    An encoding is a list ``name:offset:width``, or ``name:width`` for a field that begins where the last one ends; a
    negative width stands for a signed field (DD4hep, `BitFieldCoder`). Anything else is a `ValueError`.

    >>> bit_field("system:5,side:-2,layer:6", "layer"), bit_field("x:32:-16", "x"), bit_field("x:8", "layer")
    ((7, 6, False), (32, 16, True), None)
    """
    fields: dict[str, tuple[int, int, bool]] = {}
    offset = 0
    for description in encoding.split(","):
        match = re.fullmatch(r"([^:]+):(?:(-?\d+):)?(-?\d+)", description.strip())
        # An invalid description gets the width 0, which is refused below, as is a stated 0.
        name, begin, bits = match.groups() if match else ("", None, "0")
        offset, width = int(begin or offset), int(bits)
        if not width or offset < 0 or offset + abs(width) > 64:
            raise ValueError(f"'{description}' in '{encoding}' is not name:offset:width or name:width within 64 bits")
        fields[name] = (offset, abs(width), width < 0)
        offset += abs(width)
    return next((fields[name] for name in names if name in fields), None)


def layer_from_cell_id(cell_id: npt.NDArray[Any], encoding: str) -> npt.NDArray[np.int32]:
    """Layer of each cell, int32 of the same shape; -1 where the encoding (`bit_field`) has no layer."""
    cells = np.asarray(cell_id).astype(np.uint64)
    field = bit_field(encoding, *LAYER_NAMES)
    if field is None:
        return np.full(cells.shape, -1, dtype=np.int32)
    offset, width, signed = field
    highest = cells << np.uint64(64 - offset - width)  # the field's bits are the highest ones
    # A shift of signed numbers to the right repeats the bit of the sign.
    layer = highest.astype(np.int64) >> (64 - width) if signed else highest >> np.uint64(64 - width)
    return layer.astype(np.int32)


class PodioFile:
    """An open file of podio's, TTree or RNTuple.

    `columns` of its tree ``events``; `ids` to names of collections (hashes of the names unless `ids_stored`); `types`
    of collections, e.g. ``edm4hep::TrackCollection``, often empty; `parameters` of the metadata as text; cell
    `encodings` by collection; `notes` of problems.
    """

    def __init__(self, directory: Any, path: str | PathLike[str]) -> None:
        self.directory, self.close = directory, directory.close
        self.path = str(path)
        self.uuid = str(directory.file.uuid)
        self._trees: dict[str, Columns] = {}
        self.columns = self._columns("events")
        self.notes = earlier_trees(directory, "events", self.columns.tree)
        self.num_entries = self.columns.num_entries
        self._weights = EventWeights(self.columns.tree, self.path)
        self.schema = "edm4hep-rntuple" if "RNTuple" in directory.classname_of("events") else "edm4hep"
        info, names = "events___CollectionTypeInfo", ("events_collectionNames", "")
        ids = self._table(
            ("podio_metadata", (info, "name"), (info, "collectionID")),
            ("podio_metadata", names, ("events___idTable", "")),
            ("podio_metadata", ("events___idTable", "m_names"), ("events___idTable", "m_collectionIDs")),
            ("metadata", ("CollectionIDs", "m_names"), ("CollectionIDs", "m_collectionIDs")),
        )
        first: dict[int, tuple[str, int]] = {}  # name and entry by id
        for name, value, entry in ids:
            number = int(value) & ID_BITS
            known, before = first.setdefault(number, (name, entry))
            if known != name:
                text = f"entries {before} and {entry} of the metadata name the collection with id {number} {known} and"
                remedy = "references are followed by the first's; read the files before they were merged"
                self.notes.setdefault("ids", f"{text} {name}: files were merged whose ids differ, and {remedy}")
        # Before ids are made from names: links and messages depend on whether the file has a table of its own.
        self.ids_stored = bool(first)
        self.ids = {number: name for number, (name, _) in first.items()}
        self.ids = self.ids or {collection_id(name): name for name in self.columns.collections}
        types = self._table(
            ("podio_metadata", (info, "name"), (info, "dataType")),
            ("podio_metadata", names, ("events_collectionTypes", "")),
        )
        # Reversed: of merged files the first entry's type wins, as it does for ids.
        self.types = {name: str(kind) for name, kind, _ in reversed(types) if kind}
        self.parameters = self._parameters()
        suffix = "__CellIDEncoding"
        encodings = {key: values[0] for key, values in self.parameters.items() if key.endswith(suffix) and values}
        self.encodings = {key.removesuffix(suffix): encoding for key, encoding in encodings.items()}

    def get(self, span: range, collection: str, *members: str) -> ak.Array:
        """One column of a span of entries, [event, object], as of `pflow.io.root.Columns.get`."""
        return self.columns.get(collection, *members, start=span.start, stop=span.stop)

    def layers(self, span: range, collection: str, fallback: str | None = None) -> npt.NDArray[np.int32] | None:
        """Layers of all hits of a collection, -1 unknown, by the file's encoding of cell ids, else by `fallback`.

        Where the encoding has none, by the member of edm4eic's hits; None if neither is known. `InputError`: an
        encoding that cannot be read (`bit_field`).
        """
        encoding, layers = self.encodings.get(collection, fallback), None
        if encoding is not None and self.columns.has(collection, "cellID"):
            try:
                layers = layer_from_cell_id(jagged.flat(self.get(span, collection, "cellID")), encoding)
            except ValueError as error:
                raise InputError(f"cell encoding: {error}", file=self.path, field=collection) from error
        if (layers is None or (layers < 0).all()) and self.columns.has(collection, "layer"):
            layers = jagged.flat(self.get(span, collection, "layer"), np.int32)
        return layers

    def names(self, collection_ids: Index) -> list[str]:
        """Sorted names of the collections of these ids; an `InputError` without a table if none is known."""
        ids = np.unique(collection_ids & ID_BITS).tolist()
        known = sorted(self.ids[number] for number in ids if number in self.ids)
        if ids and not known and not self.ids_stored:
            message = (
                "the file has no table of collection ids, and they are not the hashes of its collections' names, so its"
                " links cannot be followed; expected events___CollectionTypeInfo or events___idTable"
            )
            raise InputError(message, file=self.path, field="podio_metadata")
        return known

    def references(self, branch: str, span: range, *, of: Index | None = None) -> tuple[Index, Index, Index]:
        """Counts [event] and, of all events, unsigned ids of collections and indices [reference] of a branch.

        `of`, int64 [event]: number of objects, which must have one reference each.
        """
        ids, index = (self.get(span, branch, member) for member in ("collectionID", "index"))
        counts = jagged.count(ids)
        if of is not None:
            check_counts(counts, of, "{} references for {} objects", file=self.path, start=span.start, field=branch)
        return counts, jagged.flat(ids, np.int64) & ID_BITS, jagged.flat(index, np.int64)

    def event_numbers(self, span: range) -> Index:
        """Event number of each entry, int64; the entry itself where there is no event header."""
        entries = np.array(span, dtype=np.int64)
        if said := self._weights.read(span.start, span.stop):
            self.notes["weights"] = f"{said}; only outputs of the format edm4hep keep them"
        if not self.columns.has("EventHeader", "eventNumber"):
            return entries
        headers = self.get(span, "EventHeader", "eventNumber")
        # A skipped entry has no header in an output of ours that copies the input's headers.
        there = jagged.count(headers) > 0
        entries[there] = ak.to_numpy(headers[there, 0])
        return entries

    def ids_of(self, collection: str) -> list[int]:
        """Ids of a collection: one, and several in merged files."""
        return [number for number, name in self.ids.items() if name == collection]

    def id_of(self, collection: str) -> int:
        """Id of a collection; an `InputError` if the file does not say it."""
        if ids := self.ids_of(collection):
            return ids[0]
        message, close = "the file has no id for this collection, so nothing can refer to it", self.ids.values()
        raise InputError(message, file=self.path, field=collection, suggestions=nearest(collection, close))

    def infos(self, category: str = "events") -> list[CollectionInfo]:
        """Collections of a category of frames; none if the metadata do not say their types."""
        members = ("name", "dataType", "collectionID", "schemaVersion", "isSubset")
        table = f"{category}___CollectionTypeInfo"
        columns = self._first_entry("podio_metadata", *((table, member) for member in members))
        return [  # podio 1.0 wrote tuples, which uproot cannot read
            CollectionInfo(name=name, data_type=kind, id=number & ID_BITS, schema_version=version, is_subset=subset)
            for name, kind, number, version, subset in zip(*columns, strict=True)
        ]

    def definitions(self) -> dict[str, str]:
        """Data models that the file carries, by name, each as podio's JSON."""
        for members in (("_0", "_1"), ("0", "1")):  # of tuples: in a TTree, and in an RNTuple as uproot names them
            columns = self._first_entry("podio_metadata", *(("EDMDefinitions", member) for member in members))
            if columns:
                return dict(zip(*columns, strict=True))
        return {}

    def version(self, model: str) -> tuple[int, ...]:
        """Version of a data model, major, minor and patch; empty where the metadata do not say it."""
        columns: list[Any] = self._first_entry("podio_metadata", (f"{model}___Version", ""))
        version = columns[0] if columns else ()
        return tuple(version.values() if isinstance(version, dict) else version)  # a struct in a TTree

    def frame_parameters(self, category: str, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """Parameters of the frames `start` to `stop` (exclusive) of a category, by kind (``Int`` etc.) and key."""
        columns = self._columns(category)
        stop = columns.num_entries if stop is None else min(stop, columns.num_entries)
        frames: list[dict[str, Any]] = [{} for _ in range(start, stop)]
        for kind in ("Int", "Float", "Double", "String"):
            names = (f"GP{kind}Keys", f"GP{kind}Values")
            if all(columns.has(name, "") for name in names):
                keys, values = (ak.to_list(columns.get(name, "", start=start, stop=stop)) for name in names)
                for frame, *of_frame in zip(frames, keys, values, strict=True):
                    frame[kind] = dict(zip(*of_frame, strict=True))
        return frames

    def _columns(self, tree: str) -> Columns:
        if tree not in self._trees:
            self._trees[tree] = Columns(open_tree(self.directory, tree, self.path), self.path)
        return self._trees[tree]

    def _entries(self, tree: str, *requested: tuple[str, str], most: int | None = None) -> list[list[list[Any]]]:
        """These columns of a metadata tree, as lists by entry; none if the tree or one of them is not there."""
        if tree not in tree_names(self.directory):
            return []
        columns = self._columns(tree)
        # uproot gives no values of parameters that are maps, as in public files of FCC.
        if not all(columns.has(*names) and columns.n_values(*names) for names in requested):
            return []
        stop = columns.num_entries if most is None else min(columns.num_entries, most)
        try:
            with reading("cannot be read", file=self.path, field=tree):
                return [ak.to_list(columns.get(*names, start=0, stop=stop)) for names in requested]
        except InputError as error:  # as in files of an old podio; the events need no metadata
            self.notes[tree] = f"metadata are left out: {error}"
            return []

    def _first_entry(self, tree: str, *requested: tuple[str, str]) -> list[list[Any]]:
        """The first entry of these columns; a note where another differs."""
        columns = self._entries(tree, *requested, most=MAX_METADATA)
        # Entries of 'runs' are different runs, which may differ without any merging.
        if tree != "runs" and any(row != rows[0] for rows in columns for row in rows):
            self.notes[tree] = f"the entries of '{tree}' differ in {requested[0][0]}, the first is used"
        return [rows[0] for rows in columns]

    def _table(self, *rows: tuple[str, tuple[str, str], tuple[str, str]]) -> list[tuple[str, Any, int]]:
        """Name, value and entry of each collection, over all entries (merged files), from the first columns present."""
        columns: list[list[list[Any]]] = next(filter(None, (self._entries(*row) for row in rows)), [[], []])
        return [
            (str(name), value, entry)
            for entry, (names, values) in enumerate(zip(*columns, strict=True))
            for name, value in zip(names, values, strict=True)
        ]

    def _parameters(self) -> dict[str, tuple[str, ...]]:
        """Parameters in the trees of metadata; the file's win over its first run's."""
        parameters: dict[str, tuple[str, ...]] = {}
        for tree in ("metadata", "runs"):
            for kind in ("String", "Double", "Float", "Int"):
                columns = self._first_entry(tree, (f"GP{kind}Keys", ""), (f"GP{kind}Values", ""))
                for key, values in zip(*columns or ([], []), strict=True):
                    parameters.setdefault(str(key), tuple(str(value) for value in values))
        return parameters


def open_podio(path: str | PathLike[str]) -> PodioFile:
    """Open a file of podio's, as of `open_root`, with a tree ``events``."""
    # The ROOT file is closed here only if its trees cannot be read; else PodioFile.close does it.
    with ExitStack() as stack:
        file = PodioFile(stack.enter_context(open_root(path)), path)
        stack.pop_all()
    return file


def relation(columns: Columns, collection: str, index: int, *names: str) -> str | None:
    """Branch that holds the references of a relation of a collection: by one of `names`, or by `index` in old files."""
    return columns.first(*(f"_{collection}_{name}" for name in names), f"{collection}#{index}")


def track_states(columns: Columns, collection: str) -> str | None:
    """Branch that holds the states of tracks, a vector member: by name in newer files and by number in older ones."""
    return columns.first(f"_{collection}_trackStates", f"{collection}_1")


def particle_columns(file: PodioFile, name: str, span: range) -> dict[str, Any]:
    """Quantities of a collection of reconstructed particles, as of `pflow.event.schema.make_particles`."""
    older = {"PDG": ("type",)}  # before EDM4hep 0.99
    return {
        quantity: file.get(span, name, member, *older.get(member, ()))
        for member, quantity in PARTICLE_MEMBERS.items()
        if member not in ("mass", "goodnessOfPID") or file.columns.has(name, member)
    }


class Joined:
    """Several collections concatenated in each event, and where references into them point.

    `names` of the collections in order, maybe none, and `counts` of their objects, int64 [collection, event]. `chosen`:
    indices, [event, object], of the joined objects of a collection; None to join all.
    """

    def __init__(
        self, names: Sequence[str], counts: npt.ArrayLike, n_events: int, chosen: Sequence[ak.Array | None] = ()
    ) -> None:
        self.names = tuple(names)
        self.chosen = chosen or [None] * len(self.names)
        self.counts: Index = np.asarray(counts, dtype=np.int64).reshape(len(self.names), n_events)
        self.totals: Index = self.counts.sum(axis=0)
        self.offsets: Index = np.cumsum(self.counts, axis=0) - self.counts

    def resolve(
        self, file: PodioFile, collection_id: Index, index: Index, event: Index
    ) -> tuple[Index, npt.NDArray[Any]]:
        """Index in the joined list that each reference points to, and whether it points to one of these collections.

        Takes collection ids of the file, indices and events, integers [reference]. The index, int64 [reference], is -1
        for another collection; one outside its own collection stays outside the joined list.
        """
        joined = np.full(len(index), -1, dtype=np.int64)
        known = np.zeros(len(index), dtype=bool)
        present = set(file.names(collection_id))
        for slot, name in enumerate(self.names):
            if name not in present:
                continue
            rows = np.flatnonzero(np.isin(collection_id & ID_BITS, file.ids_of(name)))
            local, events = index[rows], event[rows]
            if (chosen := self.chosen[slot]) is not None:
                # Event and index as one number, for one search over all events. The stride is above both indices, so
                # that one that is too large cannot pass for an object of the next event.
                stride = max(int(local.max(initial=0)), int(jagged.flat(chosen).max(initial=0))) + 1
                keys = jagged.event_index(self.counts[slot]) * stride + jagged.flat(chosen, np.int64)
                wanted, order = events * stride + local, np.argsort(keys, kind="stable")
                place = np.searchsorted(keys[order], wanted)
                joins = (local >= 0) & (place < len(keys))
                joins[joins] = keys[order][place[joins]] == wanted[joins]
                rows, events = rows[joins], events[joins]
                local = jagged.local_index(self.counts[slot])[order[place[joins]]]
            known[rows] = True
            inside = (local >= 0) & (local < self.counts[slot, events])
            # Moved beyond the whole list, so that it is not taken for an object of the next collection.
            outside = np.where(local < 0, local, np.maximum(local, self.totals[events]))
            joined[rows] = np.where(inside, local + self.offsets[slot, events], outside)
        return joined, known


def expand(begin: ak.Array, end: ak.Array, sizes: Index) -> tuple[Index, Index]:
    """Follow one-to-many relations: each object, [event, object], has a range of another list of its event.

    `sizes`, int64 [event], are the lengths of that list. Returns int64 [member]: the object, and the member, both
    counted over all events; members outside the list are left out.
    """
    event = jagged.event_index(jagged.count(begin))
    first, last = (np.clip(jagged.flat(values, np.int64), 0, sizes[event]) for values in (begin, end))
    counts = np.maximum(last - first, 0)
    object_index = jagged.event_index(counts)
    return object_index, (jagged.offsets(sizes)[event] + first)[object_index] + jagged.local_index(counts)


SIGNATURES = (
    ("MCParticle", ("PDG", "generatorStatus", "momentum.x")),
    ("Track", ("trackStates_begin",)),
    ("SimCalorimeterHit", ("cellID", "energy", "position.x", "contributions_begin")),
    ("CalorimeterHit", ("cellID", "energy", "position.x", "time")),
    ("CalorimeterHit", ("cellID", "energy", "position.x", "energyError")),
    ("SimCalorimeterHit", ("cellID", "energy", "position.x")),
    ("SimTrackerHit", ("cellID", "position.x", "momentum.x")),
    ("TrackerHit", ("cellID", "position.x", "time")),
    ("ReconstructedParticle", ("energy", "momentum.x", "charge")),
    ("CaloHitContribution", ("energy", "stepPosition.x")),
    ("Cluster", ("energy", "position.x", "hits_begin")),
    ("EventHeader", ("eventNumber",)),
)
"""Types of EDM4hep by members that they have; the first that fits holds."""

PERIGEE = (*(f"{part}.{axis}" for part in ("position", "momentum") for axis in "xyz"), "charge")
"""Members of edm4eic::Track, which has no states: where it is closest to the beam, mm, GeV."""

READ = {
    "CalorimeterHit": ("cellID", "energy", "position.x", "position.y", "position.z"),
    "SimCalorimeterHit": ("cellID", "energy", "position.x", "position.y", "position.z"),
    "MCParticle": ("PDG", "generatorStatus", "charge", "mass", "momentum.x", "momentum.y", "momentum.z"),
    "ReconstructedParticle": ("energy", "charge", "momentum.x", "momentum.y", "momentum.z"),
    "Track": ("trackStates_begin", "trackStates_end"),
    "edm4eic::Track": PERIGEE,
    "TrackerHit": ("position.x", "position.y", "position.z", "time"),
    "SimTrackerHit": ("cellID", "position.x", "position.y", "position.z", "momentum.x", "momentum.y", "momentum.z"),
}
"""Members without which objects of a type, or of all of a kind, cannot be read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collection:
    """One collection of a podio file, and its content in the entries that were read."""

    name: str
    type: str  # C++ type of its objects, e.g. ``edm4hep::CalorimeterHit``; ``Link``; "" if unknown
    kind: str = ""  # by the type: without namespace; ``TrackerHit`` for all kinds of reconstructed tracker hits
    subset: bool = False  # whether it only refers to objects of other collections
    unreadable: str = ""  # why pflow cannot read it although it reads objects of this kind; "" if it can
    count: int = 0
    mean: float = 0.0  # objects per entry
    mean_energy: float | None = None  # summed energy per entry, GeV; None for objects without
    cell_encoding: str = ""
    links: tuple[str, ...] = ()  # of links: ``A -> B`` for the collections at their ends, those with most links first

    def __post_init__(self) -> None:
        kind = self.type.rpartition("::")[2]
        kind = "TrackerHit" if kind in ("TrackerHit3D", "TrackerHitPlane") else kind
        object.__setattr__(self, "kind", kind)


def list_collections(file: PodioFile) -> list[Collection]:
    """The collections of a file, sorted by name, without their content."""
    columns, named = file.columns, set(file.ids.values())
    collections = []
    for name in columns.collections:
        if name.endswith(SUBSET) and not _is_auxiliary(name, file):
            subset = name.removesuffix(SUBSET)
            collections.append(Collection(name=subset, type=_type_of(file, subset), subset=True))
        elif columns.members(name) and not _is_auxiliary(name, file):
            collection = Collection(name=name, type=_type_of(file, name))
            needed = READ.get(collection.type, READ.get(collection.kind, ()))
            why = ", ".join(f"no {key}" for key in needed if not columns.has(name, key))
            if not why and needed == READ["Track"] and track_states(columns, name) is None:
                why = "no track states"
            collections.append(dataclasses.replace(collection, unreadable=why))
        elif file.ids_stored and name in named:  # plain numbers, podio::UserDataCollection
            collections.append(Collection(name=name, type=file.types.get(name) or columns.typename(name)))
    return sorted(collections, key=lambda collection: collection.name)


def collection_contents(file: PodioFile, stop: int) -> tuple[Collection, ...]:
    """The same with their content in the first `stop` entries; `unreadable` says why one cannot be read."""
    contents = []
    for collection in list_collections(file):
        name, content = collection.name, dict[str, Any]()
        try:
            with reading("cannot be read", file=file.path, field=name):
                count = count_objects(file, collection, stop)
                content |= {"count": count, "mean": count / max(stop, 1)}
                if file.columns.has(name, "energy"):
                    values = jagged.flat(file.get(range(stop), name, "energy"), np.float64)
                    # A single energy that is not finite would hide all others.
                    content["mean_energy"] = float(values[np.isfinite(values)].sum()) / max(stop, 1)
                pairs = link_pairs(file, name, stop) if collection.kind == "Link" else {}
                content["links"] = tuple(f"{start or '?'} -> {end or '?'}" for start, end in pairs)
                content["cell_encoding"] = file.encodings.get(name, "")
        except InputError as error:
            content = {"unreadable": str(error)}
        contents.append(dataclasses.replace(collection, **content))
    return tuple(contents)


def count_objects(file: PodioFile, collection: Collection, stop: int) -> int:
    """Objects of a collection in the first `stop` entries."""
    name = f"{collection.name}{SUBSET}" if collection.subset else collection.name
    members = [member for member in file.columns.members(name) if "[" not in member]  # fixed-size arrays are slow
    return int(jagged.count(file.get(range(stop), name, *members[:1] or [""])).sum())


def link_pairs(file: PodioFile, link: str, stop: int) -> dict[tuple[str, str], int]:
    """How many links of a collection lead from each collection to each other one in the first `stop` entries.

    Counts by names of both ends, most links first; an end in a collection that the file does not name is "". None at
    all if the file has no table of ids, and not all are the hashes of its collections' names.
    """
    ends = []
    for end, names in enumerate(LINK_ENDS):
        branch = relation(file.columns, link, end, *names)
        if branch is None:
            return {}
        ends.append(jagged.flat(file.get(range(stop), branch, "collectionID"), np.int64))
    if len(ends[0]) != len(ends[1]):
        message = f"{len(ends[0])} references from and {len(ends[1])} to objects"
        raise InputError(message, file=file.path, entry=0, field=link)
    id_pairs, counts = np.unique(np.stack(ends, axis=1) & ID_BITS, axis=0, return_counts=True)
    if not file.ids_stored and not np.isin(id_pairs, list(file.ids)).all():
        return {}
    pairs: Counter[tuple[str, str]] = Counter()
    for (first, second), number in zip(id_pairs.tolist(), counts.tolist(), strict=True):
        pairs[file.ids.get(first, ""), file.ids.get(second, "")] += number
    return dict(pairs.most_common())


def _is_auxiliary(name: str, file: PodioFile) -> bool:
    """Whether a branch holds references, vector members, parameters or (from uproot) counts, not a collection."""
    if name.startswith(("_", "GP")) or "#" in name:
        return True
    if name.startswith("n") and file.columns.members(name[1:]):
        return True
    owner, _, number = name.rpartition("_")
    # A collection may itself be called A_1: the table of ids tells it from a vector member of A.
    return number.isdigit() and bool(file.columns.members(owner)) and name not in file.ids.values()


def _type_of(file: PodioFile, name: str) -> str:
    """The type in the metadata, or of a branch ``vector<edm4hep::TrackData>``, else by the members; "" if unknown."""
    kind = re.sub(r"^(?:std::)?vector<(.*)>$", r"\1", file.types.get(name) or file.columns.typename(name))
    if kind.startswith(("podio::LinkCollection", "podio::LinkData")):
        return "Link"
    # The metadata name the type of the collection, a branch the type of its structs.
    kind = kind.removesuffix("Collection") if name in file.types else kind.removesuffix("Data")
    if "::" in kind and not kind.startswith("std::"):
        return "Link" if kind.endswith(("Association", "Link")) else kind
    has = file.columns.has
    if has(name, "weight") and relation(file.columns, name, 1, *LINK_ENDS[1]) is not None:
        return "Link"
    return next((f"edm4hep::{kind}" for kind, members in SIGNATURES if has(name, *members)), "")
