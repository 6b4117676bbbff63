"""The output of a reconstruction: a ROOT file with one entry for each entry of its input, in order.

Tree ``events`` (TTree, or RNTuple), usable as a friend of its input's tree; members follow
edm4hep::ReconstructedParticle (``PFlow`` is the writer's `name`):

============================= ======= ==================================================================
branch                        type    meaning
============================= ======= ==================================================================
``PFlow.PDG``                 int32   [particle] +-211 any charged hadron, 130 any neutral one, 22, +-11, +-13
``PFlow.energy``              float32 [particle] GeV
``PFlow.momentum.x .y .z``    float32 [particle] GeV
``PFlow.charge``              float32 [particle] e
``PFlow.mass``                float32 [particle] GeV, of the PDG code's particle
``PFlow.goodnessOfPID``       float32 [particle] probability of the identity, NaN unknown
``PFlow.existence``           float32 [particle] probability to exist, at least 0.5 in this list (optional)
``PFlow.pid_photon`` etc.     float32 [particle] probability of each of `pflow.physics.pdg.CLASSES` (optional)
``PFlow.covMatrix.xx`` etc.   float32 [particle] covariance of (px, py, pz, E), GeV^2 (optional)
``PFlowCaloHitLink.hit``      int32   [link] calorimeter hit of the input's entry, from 0; of simulated hits those
                                      below their threshold do not count (optional)
``PFlowCaloHitLink.particle`` int32   [link] particle that it is part of, from 0
``PFlowCaloHitLink.weight``   float32 [link] fraction of the hit's energy that the particle has; for each
                                      hit they sum to at most 1
``PFlowTrackLink.track``      int32   [link] track of the input's entry, from 0, counted without those that
                                      were left out (``flags`` & 64); with ``particle`` and ``weight`` as above
                                      (optional)
``PFlowCandidate.PDG`` etc.           [candidate] members as of ``PFlow``: particles that more probably do not
                                      exist; never add them to a sum (optional)
``event``                     int64   event number of the input
``flags``                     uint32  bits of `pflow.event.events.Flag`: 1 unusable and empty, 2 cut at the largest
                                      number of particles, 8 tracks made from truth, 16 not finite and empty; left
                                      out: 32 hits, 64 tracks, 128 of the reference, 256 of truth; much track
                                      momentum: 512 in no particle, 1024 in neutral ones
============================= ======= ==================================================================

An optional part has all of its branches or none. Hits and tracks are counted as `pflow.read_events` returns them: hits
through the calorimeter collections of the input in the order of its detector; in events with flag 64 the raw branches
of a flat input have more tracks.

``covMatrix`` has a branch for each of `pflow.physics.kinematics.COVARIANCE` (xx, xy, yy, xz, yz, zz, xt, yt, zt, tt; t
is E; EDM4hep's order): EDM4hep's ``covMatrix.values[10]`` is an array in a list, which uproot cannot write to a TTree.

The key ``pflow_provenance`` holds a JSON text (TObjString): where the events come from and what made the particles.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self, get_args

import awkward as ak
import numpy as np
import uproot

from pflow.errors import ConfigError, InputError, check_choice, check_type, nearest, warn
from pflow.event import jagged
from pflow.event.events import (
    LINKS,
    TRUTH_OPTIONS,
    ImplausibleWarning,
    Reconstruction,
    concatenate_reconstructions,
    count_flags,
)
from pflow.event.schema import fields_of, make_links, make_particles, quantities_of, validate_part
from pflow.io.atomic import check_output, replacing
from pflow.io.edm4hep.podio import PARTICLE_MEMBERS, PodioFile
from pflow.io.edm4hep.reco import Edm4hepRecoReader
from pflow.io.root import (
    check_counts,
    check_range,
    make_ttree,
    open_root,
    open_tree,
    read_branch,
    read_notes,
    write_note,
)
from pflow.physics.detector import digest
from pflow.physics.kinematics import COVARIANCE
from pflow.physics.pdg import CLASSES

NOTE = "pflow_provenance"
"""Key of the provenance; every output of a reconstruction holds it."""
TREE = "events"
FORMATS = ("ttree", "rntuple")  # what `RecoWriter` can write
Links = Literal["if there", "required", "left out"]
BASKET = 1000  # events in a basket: smaller baskets make a larger file that is slower to write and to read

OPTIONAL = {
    "existence": ("existence",),
    "scores": tuple(f"pid_{name}" for name in CLASSES),
    "covariance": tuple(f"covMatrix.{element}" for element in COVARIANCE),
}
"""Optional field of our particles: the member that holds its number, or the members of an array of fixed length."""

LINK_MEMBERS = {
    "hit_links": ("CaloHitLink", {"hit": "source", "particle": "particle", "weight": "weight"}),
    "track_links": ("TrackLink", {"track": "source", "particle": "particle", "weight": "weight"}),
}
"""Optional links: suffix of their collection's name after the particles' name, and field of each member."""
CANDIDATES = "Candidate"  # suffix of the collection of candidates


class OutputWriter:
    """Writes a reconstruction chunk by chunk; a context manager. The file appears at its place only when whole.

    A kind of output says how its file begins (`_begin`), what a chunk adds (`_append`) and how it ends (`_end`).
    Parameters and errors as of `pflow.io.particles_root.RecoWriter`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        provenance: Mapping[str, Any],
        name: str = "PFlow",
        inputs: Iterable[str | Path] = (),
        force: bool = False,
    ) -> None:
        if not name.isidentifier():
            raise ConfigError(f"'{name}' cannot name a collection: expected letters, digits and underscores")
        # Now, as it is written at the end: a failure there would lose all particles.
        try:
            json.dumps({**provenance})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"provenance cannot be stored as JSON: {error}") from error
        self._checks: Any = {"inputs": tuple(inputs), "force": force}
        self._path = check_output(path, **self._checks)
        self._name = name
        self._provenance = provenance
        self._optional: frozenset[str] | None = None  # parts that the first chunk with particles has
        self._flagged: Counter[str] = Counter()
        self._trained_with: Mapping[str, Any] | None = None
        self._n_written = 0
        self._stack: Any = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            partial = stack.enter_context(replacing(self._path, **self._checks))
            self._file = stack.enter_context(uproot.recreate(partial, compression=uproot.ZSTD(5)))
            self._begin()
            # Pushed last, so called first: the note is written before the file is closed and renamed.
            stack.push(self._finish)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        stack, self._stack = self._stack, None
        stack.__exit__(*error)

    def extend(self, reconstruction: Reconstruction) -> None:
        """Append consecutive events; chunks with particles that differ in their optional parts are a `ValueError`.

        InputError: numbers that are not finite, or links to particles that are not there, which no reader would take.
        ConfigError: outside of the with block. Fields of particles that are not in the table above are not written.
        """
        check_type(reconstruction, Reconstruction, "a Reconstruction")
        if self._stack is None:
            raise ConfigError(f"{self._path} is closed: extend it inside of its with block")
        lists: Any = {name: _whole(part) for name, part in reconstruction.parts() if name not in LINKS}
        reconstruction = dataclasses.replace(reconstruction, **lists)
        _check(reconstruction, self._name, self._n_written, self._path)
        self._trained_with = self._trained_with or reconstruction.trained_with
        self._n_written += len(reconstruction)
        self._flagged.update(count_flags(reconstruction.flags))
        # Chunks without particles may lack optional parts that the others have.
        if jagged.count(reconstruction.particles).any():
            optional = reconstruction.optional_parts
            if self._optional not in (None, optional):
                texts = [", ".join(sorted(names or ())) or "particles alone" for names in (optional, self._optional)]
                raise ValueError("chunks of one reconstruction differ: one has {}, one before {}".format(*texts))
            self._optional = optional
        self._append(reconstruction)

    def _begin(self) -> None: ...

    def _append(self, reconstruction: Reconstruction) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def _finish(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self._end()
            added = {"flagged": self._flagged, "trained_with": self._trained_with and dict(self._trained_with)}
            added = {name: value for name, value in added.items() if value}
            write_note(self._file, NOTE, {**self._provenance, **added})


class RecoWriter(OutputWriter):
    """Writes a reconstruction chunk by chunk; a context manager. The file appears at its place only when whole.

    Parameters
    ----------
    path, format
        The file, and its format, ``ttree`` or ``rntuple``.
    provenance
        Where the particles come from, if it is to be stored; plain data, as JSON can hold. ``flagged``, the number of
        events with each flag, and `Reconstruction.trained_with` are added where there are any.
    name
        Name of the collection of particles, the prefix of its branches. It is their name when they are read again; the
        reconstructions' own names are not stored.
    inputs, force
        Files that the particles come from, which must not be replaced, and whether another file may be.

    Raises
    ------
    ConfigError
        An output that cannot be written, an unknown format, a name that is no identifier, or provenance that JSON
        cannot hold.

    Examples
    --------
    >>> reco = pflow.reconstruct(pflow.read_events("multi_test_small.root", entry_stop=2), "general")
    >>> with RecoWriter("mine.root", provenance={"made by": "hand"}) as writer:
    ...     writer.extend(reco)
    >>> read_reco("mine.root")
    <Reconstruction: 2 events by PFlow, 5 particles, ...>
    """

    def __init__(
        self,
        path: str | Path,
        *,
        format: Literal["ttree", "rntuple"] = "ttree",
        provenance: Mapping[str, Any] | None = None,
        name: str = "PFlow",
        inputs: Iterable[str | Path] = (),
        force: bool = False,
    ) -> None:
        check_choice(format, FORMATS, "output format")
        super().__init__(path, provenance=provenance or {}, name=name, inputs=inputs, force=force)
        self._format = format
        self._pending: list[Reconstruction] = []  # until there are enough events for a basket
        self._table: Any = None

    def _append(self, reconstruction: Reconstruction) -> None:
        self._pending.append(reconstruction)
        # Before the first particles it is not known which optional branches the tree has.
        if self._optional is not None and sum(len(chunk) for chunk in self._pending) >= BASKET:
            self._flush(self._optional)

    def _end(self) -> None:
        if self._optional is None:
            self._optional = frozenset().union(*(chunk.optional_parts for chunk in self._pending))
        self._flush(self._optional)

    def _flush(self, optional: frozenset[str]) -> None:
        empty = _without_particles(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint32), optional)
        # Without any event the tree and its branches are still made, so that the file can be read.
        chunk = concatenate_reconstructions(self._pending or [empty])
        if not optional <= chunk.optional_parts:  # it has no particles
            chunk = _without_particles(chunk.event, chunk.flags, optional)
        columns = self._columns(chunk, optional)
        if self._table is None:
            records = ak.Array(columns)
            if self._format == "rntuple":
                self._table = self._file.mkrntuple(TREE, records.layout.form)
            else:
                types = {name: records[name].type.content for name in columns}
                self._table = make_ttree(self._file, TREE, types, "reconstructed particles")
        if self._pending:
            self._table.extend(columns)
        self._pending = []

    def _columns(self, reconstruction: Reconstruction, optional: frozenset[str]) -> dict[str, Any]:
        fields = quantities_of("particles")

        def members(particles: ak.Array) -> ak.Array:
            columns = {member: particles[fields[quantity]] for member, quantity in PARTICLE_MEMBERS.items()}
            for name in (name for name in OPTIONAL if name in optional):
                values = particles[name][:, :, np.newaxis] if len(OPTIONAL[name]) == 1 else particles[name]
                columns |= {member: values[:, :, index] for index, member in enumerate(OPTIONAL[name])}
            return self._records(columns)

        columns = {
            "event": reconstruction.event,
            "flags": reconstruction.flags,
            self._name: members(reconstruction.particles),
        }
        if "candidates" in optional:
            columns[self._name + CANDIDATES] = members(reconstruction.candidates)
        for field, (suffix, link_members) in LINK_MEMBERS.items():
            if field in optional:
                links = {member: getattr(reconstruction, field)[inner] for member, inner in link_members.items()}
                columns[self._name + suffix] = self._records(links)
        return columns

    def _records(self, columns: Mapping[str, ak.Array]) -> ak.Array:
        """Records with members ``momentum.x`` as branches of a TTree, or ``momentum`` a record, as RNTuple fields."""
        records: dict[str, Any] = {}
        for member, column in columns.items():
            outer, _, inner = member.partition(".")
            if inner and self._format == "rntuple":
                records.setdefault(outer, {})[inner] = column
            else:
                records[member] = column
        nested = {key: self._records(part) if isinstance(part, dict) else part for key, part in records.items()}
        return ak.zip(nested, depth_limit=2)


def read_reco(
    path: str | Path,
    *,
    name: str = "PFlow",
    entry_start: int = 0,
    entry_stop: int | None = None,
    links: Links = "if there",
) -> Reconstruction:
    """Read the output file of a reconstruction, of any format.

    Parameters
    ----------
    path, name
        The file, and its collection of particles; of another EDM4hep file they are read without links.
    entry_start, entry_stop
        Range of entries, `entry_stop` exclusive; by default all.
    links
        Links of hits: ``if there``; ``required``; or ``left out``, which is faster. Links of tracks are read if there.

    Raises
    ------
    InputError
        Not a ROOT file, truncated, without the collection `name` or without required links: names file and branch,
        with nearest matches. Links to particles that are not there, or with impossible weights.
    ConfigError
        A range of entries that are no whole numbers from 0, or no such choice of `links`.

    Examples
    --------
    >>> read_reco("mine.root", entry_stop=1)  # which the example of `RecoWriter` wrote
    <Reconstruction: 1 events by PFlow, 2 particles, ...>
    """
    check_range(entry_start, entry_stop)
    with _opened(path, name, links) as (tree, read):
        stop = tree.num_entries if entry_stop is None else min(entry_stop, tree.num_entries)
        if 0 < tree.num_entries <= entry_start:
            warn(f"no events are read: entry_start is {entry_start}, and there are {tree.num_entries} entries")
        return read(min(entry_start, stop), stop)


@contextmanager
def _opened(path: str | Path, name: str, links: Links) -> Iterator[tuple[Any, Callable[[int, int], Reconstruction]]]:
    """The tree of a file of any format, and a function that reads a range of its entries."""
    check_choice(links, get_args(Links), "links")
    with open_root(path) as file:
        if "podio_metadata" in file:
            reader = Edm4hepRecoReader(PodioFile(file, path), name, hit_links=links != "left out")
            tree, parts, decode = reader.tree, reader.parts, reader.read
        else:
            tree = open_tree(file, TREE, str(path))
            keys = set(tree.keys())
            parts = frozenset(_branches(keys, name, path, links))
            decode = functools.partial(_decode, tree, keys, name, path, links)
        if links == "required" and "hit_links" not in parts:
            raise InputError("holds no links that say which hits the particles are made of", file=path, field=name)
        made_with = None
        with suppress(InputError):  # the particles need no provenance
            made_with = truth_options(*read_notes(file, NOTE, path)[:1])

        def read(start: int, stop: int) -> Reconstruction:
            reconstruction = decode(start, stop)
            _check(reconstruction, name, start, path)
            return dataclasses.replace(reconstruction, trained_with=made_with)

        yield tree, read


def count_entries(path: str | Path) -> int:
    """Number of entries of the output of a reconstruction, of any format."""
    with open_root(path) as file:
        return int(open_tree(file, TREE, str(path)).num_entries)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """The provenance that a writer stored in a file; an `InputError` without one.

    Of files that ROOT's hadd merged, the first's, with the inputs of all and their numbers of flagged events, and a
    warning where others were made with another model or other options.
    """
    with open_root(path) as file:
        notes = read_notes(file, NOTE, path)
    if not notes:
        raise InputError("holds no provenance: not written by pflow", file=path, field=NOTE)
    first, *others = notes
    if not others:
        return first
    if differing := differing_origins(notes):
        warn(f"{path}: joins outputs that were made with different {differing}", ImplausibleWarning)
    inputs = [entry for note in notes for entry in note.get("inputs", ())]
    flagged = sum((Counter(note.get("flagged", {})) for note in notes), Counter())
    return {**first, "inputs": inputs, "flagged": flagged}


def origin(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The model, options and decoding that determine the particles of an output, by name; not how they are computed."""
    ways = ("on_error", "batch_size", "chunk_size", "device", "cluster", "layout")  # a layout by its content
    return {
        "checkpoint": str(provenance.get("checkpoint", {}).get("sha256"))[:12],
        # Which `pflow calibrate` replaces: the weights stay as they are.
        "calibration": digest(provenance.get("configuration", {}).get("calibration")),
        **{name: value for name, value in provenance.get("options", {}).items() if name not in ways},
        **{f"decoding's {name}": value for name, value in provenance.get("decoding", {}).items()},
    }


def differing_origins(provenances: Sequence[Mapping[str, Any]]) -> str:
    """Names of what is not the same in the `origin` of all outputs, in words; "" if all is.

    The same particles may be read from, and written into, files of several formats.
    """
    first, *others = origins = [*map(origin, provenances)]
    names = {name: None for each in origins for name in each if name not in ("schema", "read_as", "format", "mc_links")}
    return ", ".join(name for name in names if any(other.get(name) != first.get(name) for other in others))


def truth_options(provenance: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """`TRUTH_OPTIONS` of the training of the model that a provenance is about; None if it does not have them."""
    try:
        config = (provenance or {}).get("trained_with") or (provenance or {})["configuration"]["tokeniser"]["config"]
        return {name: config[name] for name in TRUTH_OPTIONS}
    except (KeyError, TypeError):
        return None


def _whole(particles: ak.Array) -> ak.Array:
    """Particles with what is written, in its types, also where `vector` holds them otherwise: ``1.1 * particles``."""
    names, fields, held = quantities_of("particles"), fields_of("particles"), jagged.columns(particles)
    right = (fields[name].dtype == column.dtype for name, column in held.items() if name in fields)
    if set(names.values()) <= set(held) and all(right):
        return particles
    # With other components the stored mass may be that before a scaling; then E^2 - p^2 is what it is now.
    skipped = set() if {"energy", "rest_mass"} <= set(held) else {"mass"}
    wanted = (name for name in (*names, *OPTIONAL) if name not in skipped)
    return make_particles(**{name: getattr(particles, name, None) for name in wanted})


def _without_particles(event: Any, flags: Any, optional: frozenset[str]) -> Reconstruction:
    """Events without particles, with these optional parts and fields."""
    none = ak.unflatten(np.zeros(0, dtype=np.float32), np.zeros(len(event), dtype=np.int64))
    fields = ("pdg", "charge", "energy", "px", "py", "pz", *optional.intersection(OPTIONAL))
    links = {field: make_links(source=none, particle=none) for field in optional.intersection(LINK_MEMBERS)}
    particles = make_particles(**dict.fromkeys(fields, none))
    candidates = particles if "candidates" in optional else None
    return Reconstruction(particles=particles, candidates=candidates, event=event, flags=flags, **links)


def _branches(keys: set[str], name: str, path: str | Path, links: Links) -> dict[str, list[str]]:
    """Branches of each optional part or field that is there and wanted; the others of the output must be there."""
    if f"{name}.PDG" not in keys:
        suggestions = nearest(f"{name}.PDG", keys)
        raise InputError("no such branch; expected particles", file=path, field=f"{name}.PDG", suggestions=suggestions)
    branches = {field: [f"{name}.{member}" for member in members] for field, members in OPTIONAL.items()}
    for field, (suffix, fields) in LINK_MEMBERS.items():
        if (field, links) != ("hit_links", "left out"):
            branches[field] = [f"{name}{suffix}.{member}" for member in fields]
    # One branch suffices for a part to be there: reading then names those that it lacks.
    return {field: names for field, names in branches.items() if not keys.isdisjoint(names)}


def _decode(
    tree: Any, keys: set[str], name: str, path: str | Path, links: Links, start: int, stop: int
) -> Reconstruction:
    """Entries of a tree with the branches `keys`, without validating them."""

    @functools.cache
    def read(branch: str) -> ak.Array:
        return read_branch(tree, branch, start, stop, path)

    def read_alike(first: str, *others: str) -> list[ak.Array]:
        """Branches of the same objects."""
        members, text = [*map(read, (first, *others))], "{} values, expected {}, the number in '{}'"
        for branch, values in zip(others, members[1:], strict=True):
            check_counts(
                jagged.count(values), jagged.count(members[0]), text, first, file=path, start=start, field=branch
            )
        return members

    parts: dict[str, Any] = {}
    if f"{name}{CANDIDATES}.PDG" in keys:
        parts["candidates"] = _decode(tree, keys, name + CANDIDATES, path, "left out", start, stop).particles
    first, *others = (f"{name}.{member}" for member in PARTICLE_MEMBERS)
    columns = dict(zip(PARTICLE_MEMBERS.values(), read_alike(first, *others), strict=True))
    for field, names in _branches(keys, name, path, links).items():
        members = read_alike(*names) if field in LINK_MEMBERS else read_alike(first, *names)[1:]
        if field in LINK_MEMBERS:
            fields = LINK_MEMBERS[field][1].values()
            # Not normalised: no particle need have the rest of a hit whose weights sum to less than 1.
            parts[field] = make_links(**dict(zip(fields, members, strict=True)), normalise=False)
        elif len(members) == 1:
            (columns[field],) = members
        else:
            flat = np.stack([jagged.flat(member) for member in members], axis=-1)  # [particle, member]
            columns[field] = ak.unflatten(flat, jagged.count(members[0]))
    return Reconstruction(
        particles=make_particles(**columns),
        event=ak.to_numpy(read("event")),
        flags=ak.to_numpy(read("flags")),
        name=name,
        **parts,
    )


def _check(reconstruction: Reconstruction, name: str, start: int, path: str | Path) -> None:
    """Refuse numbers that are not finite (a score may be unknown, NaN), and links that lead nowhere."""
    event = jagged.event_index(jagged.count(reconstruction.particles))
    for field, column in jagged.columns(reconstruction.particles).items():
        not_finite = ~np.isfinite(column)
        if field != "score" and not_finite.any():
            entry = start + int(event[np.flatnonzero(not_finite.reshape(len(event), -1).any(axis=1))[0]])
            raise InputError("expected finite numbers", file=path, entry=entry, field=f"{name}.{field}")
    for field, (suffix, _) in LINK_MEMBERS.items():
        links = getattr(reconstruction, field)
        if links is None:
            continue
        sizes = {"truth": jagged.count(reconstruction.particles)}  # hits and tracks need not be in this file
        for violation in validate_part(field, links, sizes, name=f"{name}{suffix}"):
            cut = "; cut or sorted particles need new links, or none" if violation.field.endswith(".particle") else ""
            text, entry = violation.message + cut, start + violation.index
            raise InputError(text, file=path, entry=entry, field=violation.field)
