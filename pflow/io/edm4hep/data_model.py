"""Types of EDM4hep: members of its structs, and what a collection of each type consists of.

Every podio file carries the definition of its data model as JSON; `DataModel` reads it. `EDM4HEP` holds the types that
pflow writes, as of EDM4hep 1.0, for files that come from elsewhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import awkward as ak
import numpy as np

from pflow.errors import nearest

__all__ = ["EDM4HEP", "PRIMITIVES", "SCHEMA_VERSION", "CollectionType", "DataModel"]

SCHEMA_VERSION = 6
"""Version of EDM4hep 1.0's schema, which the types in `EDM4HEP` are of."""

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

Members = tuple[tuple[str, str], ...]
"""Name and C++ type of each member."""

ARRAY = re.compile(r"std::array<(.+?), *(\d+)>")
LINK = re.compile(r"podio::LinkCollection<(.+), *(.+)>")
USER_DATA = re.compile(r"podio::UserDataCollection<(.+)>")
COLLECTION = re.compile(r"(.+)Collection")

OF_PODIO: dict[str, Members] = {
    "podio::ObjectID": (("index", "std::int32_t"), ("collectionID", "std::uint32_t")),
    "podio::LinkData": (("weight", "float"),),
}
"""Structs of podio's own."""

EDM4HEP: dict[str, Any] = {
    "schema_version": SCHEMA_VERSION,
    "components": {
        "edm4hep::Vector3f": {"Members": ["float x", "float y", "float z"]},
        "edm4hep::CovMatrix3f": {"Members": ["std::array<float, 6> values"]},
        "edm4hep::CovMatrix4f": {"Members": ["std::array<float, 10> values"]},
        "edm4hep::CovMatrix6f": {"Members": ["std::array<float, 21> values"]},
        "edm4hep::TrackState": {
            "Members": [
                "std::int32_t location",
                "float D0",
                "float phi[rad]",
                "float omega",
                "float Z0",
                "float tanLambda",
                "float time[ns]",
                "edm4hep::Vector3f referencePoint[mm]",
                "edm4hep::CovMatrix6f covMatrix",
            ]
        },
    },
    "datatypes": {
        "edm4hep::EventHeader": {
            "Members": [
                "std::uint64_t eventNumber",
                "std::uint32_t runNumber",
                "std::uint64_t timeStamp",
                "double weight",
            ],
            "VectorMembers": ["double weights"],
        },
        "edm4hep::CalorimeterHit": {
            "Members": [
                "std::uint64_t cellID",
                "float energy[GeV]",
                "float energyError[GeV]",
                "float time[ns]",
                "edm4hep::Vector3f position[mm]",
                "std::int32_t type",
            ]
        },
        "edm4hep::Cluster": {
            "Members": [
                "std::int32_t type",
                "float energy[GeV]",
                "float energyError[GeV]",
                "edm4hep::Vector3f position[mm]",
                "edm4hep::CovMatrix3f positionError[mm^2]",
                "float iTheta[rad]",
                "float iPhi[rad]",
                "edm4hep::Vector3f directionError[mm^2]",
            ],
            "VectorMembers": ["float shapeParameters", "float subdetectorEnergies"],
            "OneToManyRelations": ["edm4hep::Cluster clusters", "edm4hep::CalorimeterHit hits"],
        },
        "edm4hep::Track": {
            "Members": ["std::int32_t type", "float chi2", "std::int32_t ndf", "std::int32_t Nholes"],
            "VectorMembers": [
                "std::int32_t subdetectorHitNumbers",
                "std::int32_t subdetectorHoleNumbers",
                "edm4hep::TrackState trackStates",
            ],
            "OneToManyRelations": ["edm4hep::TrackerHit trackerHits", "edm4hep::Track tracks"],
        },
        "edm4hep::ReconstructedParticle": {
            "Members": [
                "std::int32_t PDG",
                "float energy[GeV]",
                "edm4hep::Vector3f momentum[GeV]",
                "edm4hep::Vector3f referencePoint[mm]",
                "float charge[e]",
                "float mass[GeV]",
                "float goodnessOfPID",
                "edm4hep::CovMatrix4f covMatrix[GeV^2]",
            ],
            "OneToManyRelations": [
                "edm4hep::Cluster clusters",
                "edm4hep::Track tracks",
                "edm4hep::ReconstructedParticle particles",
            ],
            "OneToOneRelations": ["edm4hep::Vertex decayVertex"],
        },
        "edm4hep::ParticleID": {
            "Members": [
                "std::int32_t type",
                "std::int32_t PDG",
                "std::int32_t algorithmType",
                "float likelihood",
            ],
            "VectorMembers": ["float parameters"],
            "OneToOneRelations": ["edm4hep::ReconstructedParticle particle"],
        },
    },
}
"""Definition of the types that pflow writes, in the form of podio's JSON."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionType:
    """What podio stores of a collection.

    Parameters
    ----------
    content
        C++ type of an object: a struct, or a primitive for user data.
    relations
        Names of its references: one-to-many, then one-to-one.
    vectors
        Name and C++ type of an element of each vector member.
    """

    content: str
    relations: tuple[str, ...] = ()
    vectors: Members = ()

    @property
    def storage(self) -> str:
        """C++ type of the whole collection in an event, as podio's metadata name it."""
        return f"std::vector<{self.content}>"


class DataModel:
    """Structs and data types of one or more data models.

    Parameters
    ----------
    definitions
        Each as podio's JSON: ``components`` and ``datatypes``; names in earlier ones win.
    """

    def __init__(self, *definitions: Mapping[str, Any]) -> None:
        self._structs = dict(OF_PODIO)
        self._types: dict[str, CollectionType] = {}
        for definition in definitions:
            for name, component in definition.get("components", {}).items():
                self._structs.setdefault(name, _members(component.get("Members", ())))
            for name, datatype in definition.get("datatypes", {}).items():
                self._add(name, datatype)

    def _add(self, name: str, datatype: Mapping[str, Any]) -> None:
        vectors, many, one = (
            _members(datatype.get(part, ())) for part in ("VectorMembers", "OneToManyRelations", "OneToOneRelations")
        )
        ranges = tuple(
            (f"{member}_{side}", "std::uint32_t") for member, _ in (*vectors, *many) for side in ("begin", "end")
        )
        self._structs.setdefault(f"{name}Data", _members(datatype.get("Members", ())) + ranges)
        relations = tuple(member for member, _ in (*many, *one))
        self._types.setdefault(name, CollectionType(content=f"{name}Data", relations=relations, vectors=vectors))

    def collection(self, data_type: str) -> CollectionType:
        """What a collection consists of, by its type in podio's metadata, e.g. ``edm4hep::ClusterCollection``.

        Raises
        ------
        KeyError
            No such type; the message names the nearest ones.
        """
        if LINK.fullmatch(data_type):
            return CollectionType(content="podio::LinkData", relations=("from", "to"))
        if found := USER_DATA.fullmatch(data_type):
            return CollectionType(content=found[1])
        found = COLLECTION.fullmatch(data_type)
        if not found or found[1] not in self._types:
            close = " or ".join(f"{name}Collection" for name in nearest(data_type, self._types))
            raise KeyError(f"unknown collection type '{data_type}'" + (f"; did you mean {close}?" if close else ""))
        return self._types[found[1]]

    def members(self, struct: str) -> Members:
        """Name and C++ type of each member of a struct; empty for a primitive.

        Raises
        ------
        KeyError
            Neither a struct nor a primitive.
        """
        return () if struct in PRIMITIVES else self._structs[struct]

    def form(self, cpp_type: str) -> ak.forms.Form:
        """Awkward form of one object of a C++ type; records carry the names of their structs.

        Raises
        ------
        KeyError
            A type that is not known.
        """
        if cpp_type in PRIMITIVES:
            return ak.forms.NumpyForm(PRIMITIVES[cpp_type].name)
        if found := ARRAY.fullmatch(cpp_type):
            return ak.forms.RegularForm(self.form(found[1]), int(found[2]))
        members = self._structs[cpp_type]
        return ak.forms.RecordForm(
            [self.form(inner) for _, inner in members],
            [name for name, _ in members],
            parameters={"__record__": cpp_type},
        )


def _members(lines: Sequence[str]) -> Members:
    """Members from lines as ``float energy[GeV] // of the hit`` or ``std::int32_t helicity{9}``."""
    found = []
    for line in lines:
        declaration = re.sub(r"[\[{].*?[\]}]", "", line.split("//")[0]).strip()
        cpp_type, _, name = declaration.rpartition(" ")
        found.append((name, cpp_type.strip()))
    return tuple(found)
