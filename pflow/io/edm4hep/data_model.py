"""Types of EDM4hep: members of its structs, what podio stores of a collection of each type, and ids of collections.

`DataModel` reads the definition, as JSON, that every podio file carries; `edm4hep_types` are those that pflow writes.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pflow.config import load_yaml
from pflow.errors import nearest
from pflow.physics.arrays import Index

EDM4HEP_VERSION = (1, 0, 0)  # of EDM4hep, whose `edm4hep_types` are
SCHEMA_VERSION = 6  # of its schema
OLDEST_SCHEMA = 2  # that podio reads as the present one
CHANGED = {"edm4hep::ClusterData": {"iPhi": ("float", "phi")}, "edm4hep::Quantity": {"type": ("std::int32_t", "type")}}
"""Members of the present schema, by struct, that have another type or name in older ones: present type, older name.

Where podio wrote a file, ROOT's rules rename members on reading; they do not apply to files of uproot's.
"""

PRIMITIVES = {
    "bool": np.dtype(np.bool_),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "int": np.dtype(np.int32),
    "unsigned int": np.dtype(np.uint32),
    "short": np.dtype(np.int16),
    "long": np.dtype(np.int64),
    **{f"{prefix}int{bits}_t": np.dtype(f"int{bits}") for prefix in ("std::", "") for bits in (8, 16, 32, 64)},
    **{f"{prefix}uint{bits}_t": np.dtype(f"uint{bits}") for prefix in ("std::", "") for bits in (8, 16, 32, 64)},
}
"""NumPy type of each C++ type that members have."""

Members = tuple[tuple[str, str], ...]  # name and C++ type of each member

ARRAY = re.compile(r"std::array<(.+?), *(\d+)>")
LINK = re.compile(r"podio::LinkCollection<(.+), *(.+)>")
USER_DATA = re.compile(r"podio::UserDataCollection<(.+)>")
COLLECTION = re.compile(r"(.+)Collection")

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


def evolved(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition of an older schema of EDM4hep with the members of the present one that are `CHANGED`."""
    result = {**definition, "schema_version": SCHEMA_VERSION}
    for part in ("components", "datatypes"):
        result[part] = dict(definition.get(part, {}))
        for struct, members in CHANGED.items():
            name = struct.removesuffix("Data")
            for new, (cpp_type, old) in members.items() if name in result[part] else ():
                lines = [re.sub(rf"^\S+ +{old}\b", f"{cpp_type} {new}", line) for line in result[part][name]["Members"]]
                result[part][name] = {**result[part][name], "Members": lines}
    return result


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
        self._versions: dict[str, int] = {}  # of structs, as ROOT counts versions of classes
        self._fields: dict[str, Members] = {}
        for definition in definitions:
            for name, component in definition.get("components", {}).items():
                self.structs.setdefault(name, _members(component.get("Members", ())))
            for name, datatype in definition.get("datatypes", {}).items():
                vectors, to_many, to_one = (
                    _members(datatype.get(part, ()))
                    for part in ("VectorMembers", "OneToManyRelations", "OneToOneRelations")
                )
                sides = itertools.product((member for member, _ in vectors + to_many), ("begin", "end"))
                ranges = [(f"{member}_{side}", "std::uint32_t") for member, side in sides]
                self.structs.setdefault(f"{name}Data", (*_members(datatype.get("Members", ())), *ranges))
                references = ((member, "podio::ObjectID") for member, _ in to_many + to_one)
                self._fields.setdefault(name, (*references, *vectors))
            for name in self.structs.keys() - OF_PODIO.keys():
                self._versions.setdefault(name, definition.get("schema_version", 1))

    def version(self, struct: str) -> int:
        """The version of a struct."""
        return self._versions.get(struct, 1)

    def fields(self, collection: CollectionInfo) -> dict[str, str]:
        """Fields in which podio stores a collection, objects first, and their C++ types; a `KeyError` if unknown."""
        name, data_type = collection.name, collection.data_type
        match = COLLECTION.fullmatch(data_type)
        if collection.is_subset:
            return {f"{name}_objIdx": "podio::ObjectID"}
        if LINK.fullmatch(data_type):
            return {name: "podio::LinkData", **{f"_{name}_{end}": "podio::ObjectID" for end in ("from", "to")}}
        if user_data := USER_DATA.fullmatch(data_type):
            return {name: user_data[1]}
        if not match or match[1] not in self._fields:
            close = " or ".join(f"{known}Collection" for known in nearest(data_type, self._fields))
            raise KeyError(f"unknown collection type '{data_type}'{f'; did you mean {close}?' if close else ''}")
        return {name: f"{match[1]}Data", **{f"_{name}_{member}": kind for member, kind in self._fields[match[1]]}}

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
        sizes = [(PRIMITIVES[kind].itemsize, length or 1) for _, kind, length in self.leaves(cpp_type)]
        end, widest = 0, max(size for size, _ in sizes)
        for size, length in sizes:
            end += -end % size + size * length
        return end + -end % widest


def collection_id(name: str) -> int:
    """Id of a collection as podio makes it: MurmurHash3 (x86, 32 bits, seed 0; A. Appleby) of its name.

    >>> collection_id("MCParticles")
    2714477136
    """

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF

    def mixed(word: int) -> int:
        return rotated((word * 0xCC9E2D51) & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF

    key = name.encode()
    value, n_full = 0, len(key) // 4 * 4
    for start in range(0, n_full, 4):
        value ^= mixed(int.from_bytes(key[start : start + 4], "little"))
        value = (rotated(value, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    value ^= mixed(int.from_bytes(key[n_full:], "little")) ^ len(key)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value = ((value ^ (value >> shift)) * factor) & 0xFFFFFFFF
    return value ^ (value >> 16)


def _members(lines: Sequence[str]) -> Members:
    """Members from lines as ``float energy[GeV] // of the hit`` or ``std::int32_t helicity{9}``."""
    declarations = (re.sub(r"[\[{].*?[\]}]", "", line.split("//")[0]).strip() for line in lines)
    parts = (declaration.rpartition(" ") for declaration in declarations)
    return tuple((name, cpp_type.strip()) for cpp_type, _, name in parts)
