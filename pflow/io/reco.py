"""The output of a reconstruction: a ROOT file with one entry for each entry of its input, in order.

Tree ``events`` (TTree, or RNTuple), usable as a friend of its input's tree; members follow
edm4hep::ReconstructedParticle (``PFlow`` is the writer's `name`):

============================ ======= =================================================================
branch                       type    meaning
============================ ======= =================================================================
``PFlow.PDG``                int32   [particle] identity
``PFlow.energy``             float32 [particle] GeV
``PFlow.momentum.x .y .z``   float32 [particle] GeV
``PFlow.charge``             float32 [particle] e
``PFlow.mass``               float32 [particle] GeV
``PFlow.goodnessOfPID``      float32 [particle] probability of the identity, NaN unknown
``event``                    int64   event number of the input
``flags``                    uint32  bits of `pflow.events.Flag`: 1 input unusable, 2 stopped at the
                                     maximum of particles, 4 an unknown code was mapped to its class
============================ ======= =================================================================

Beside the tree, the key ``pflow_provenance`` holds a JSON text (TObjString): where the events come from and what made
the particles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import awkward as ak
import numpy as np
import uproot

from pflow.errors import ConfigError, InputError, nearest
from pflow.io.atomic import check_output, replacing
from pflow.io.columns import open_root, open_tree
from pflow.io.rootfile import read_branch, read_note, write_note
from pflow.reconstruction import Reconstruction
from pflow.records import make_particles

__all__ = ["FORMATS", "RecoWriter", "iterate_reco", "read_provenance", "read_reco"]

TREE = "events"
NOTE = "pflow_provenance"
FORMATS = ("ttree", "rntuple")
"""What `RecoWriter` can write."""

BASKET = 1000
"""Events that are written at once: smaller baskets make a larger file that is slower to write and to read."""

MEMBERS = {
    "PDG": (("pdg",), np.int32),
    "energy": (("energy",), np.float32),
    "momentum.x": (("momentum", "px"), np.float32),
    "momentum.y": (("momentum", "py"), np.float32),
    "momentum.z": (("momentum", "pz"), np.float32),
    "charge": (("charge",), np.float32),
    "mass": (("mass",), np.float32),
    "goodnessOfPID": (("score",), np.float32),
}
"""Member of edm4hep::ReconstructedParticle: field of our particles, type."""


class RecoWriter:
    """Writes a reconstruction chunk by chunk; a context manager. The file appears at its place only when whole.

    Leaving the context after an error removes what was written and leaves alone whatever was at `path`.

    Parameters
    ----------
    path
        The output file.
    provenance
        Where the particles come from; plain data, as JSON can hold.
    format
        ``ttree`` or ``rntuple``.
    name
        Name of the collection of particles, the prefix of its branches.
    inputs
        Files that must not be overwritten.

    Raises
    ------
    ConfigError
        An output that cannot be written (see `pflow.io.atomic.check_output`), an unknown format, a name that is no
        identifier, provenance that JSON cannot hold.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        provenance: Mapping[str, Any],
        format: Literal["ttree", "rntuple"] = "ttree",
        name: str = "PFlow",
        inputs: Iterable[str | Path] = (),
    ) -> None:
        if format not in FORMATS:
            raise ConfigError(f"output format '{format}' is not one of {', '.join(FORMATS)}")
        if not name.isidentifier():
            raise ConfigError(f"'{name}' cannot name a collection: expected letters, digits and underscores")
        try:
            json.dumps(provenance)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"provenance cannot be stored as JSON: {error}") from error
        self._inputs = tuple(inputs)
        self._path = check_output(path, inputs=self._inputs)
        self._provenance = provenance
        self._format = format
        self._name = name
        self._pending: list[Reconstruction] = []

    def __enter__(self) -> RecoWriter:
        with ExitStack() as stack:
            partial = stack.enter_context(replacing(self._path, inputs=self._inputs))
            file = stack.enter_context(uproot.recreate(partial, compression=uproot.ZSTD(5)))
            write_note(file, NOTE, self._provenance)
            if self._format == "ttree":
                self._table = file.mktree(
                    TREE,
                    {
                        "event": np.dtype(np.int64),
                        "flags": np.dtype(np.uint32),
                        self._name: _flat(_none()).type.content,
                    },
                    title="reconstructed particles",
                    counter_name=lambda counted: f"n_{counted}",
                    field_name=lambda outer, inner: f"{outer}.{inner}",
                )
            else:
                self._table = file.mkrntuple(
                    TREE,
                    {
                        "event": np.dtype(np.int64),
                        "flags": np.dtype(np.uint32),
                        self._name: _nested(_none()).type.content,
                    },
                )
            stack.push(self._finish)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(error_type, error, traceback)

    def extend(self, reconstruction: Reconstruction) -> None:
        """Append consecutive events. They are kept until there are enough for a basket, so memory is bounded."""
        self._pending.append(reconstruction)
        if sum(len(chunk) for chunk in self._pending) >= BASKET:
            self._flush()

    def _finish(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self._flush()

    def _flush(self) -> None:
        pending = [chunk for chunk in self._pending if len(chunk)]
        self._pending = []
        if not pending:
            return
        shape = _flat if self._format == "ttree" else _nested
        self._table.extend(
            {
                "event": np.concatenate([chunk.event for chunk in pending]).astype(np.int64),
                "flags": np.concatenate([chunk.flags for chunk in pending]).astype(np.uint32),
                self._name: ak.concatenate([shape(chunk.particles) for chunk in pending]),
            }
        )


def read_reco(
    path: str | Path, *, name: str = "PFlow", entry_start: int = 0, entry_stop: int | None = None
) -> Reconstruction:
    """Entries `entry_start` to `entry_stop` (exclusive; None: to the end) of a reconstruction's output file.

    Raises
    ------
    InputError
        Not a ROOT file, truncated, or without the collection `name`: names file and branch, with nearest matches.
    """
    with open_root(path) as file:
        table = _table(file, name, path)
        stop = table.num_entries if entry_stop is None else min(entry_stop, table.num_entries)
        return _read(table, name, min(entry_start, stop), stop, path)


def iterate_reco(path: str | Path, *, name: str = "PFlow", step: int = 1000) -> Iterator[Reconstruction]:
    """The whole of a reconstruction's output file in chunks of `step` entries, in bounded memory.

    Raises
    ------
    InputError
        As `read_reco`.
    ValueError
        `step` below 1.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1, found {step}")
    with open_root(path) as file:
        table = _table(file, name, path)
        for start in range(0, table.num_entries, step):
            yield _read(table, name, start, min(start + step, table.num_entries), path)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """What `RecoWriter` was told about the origin of the particles in a file.

    Raises
    ------
    InputError
        Not a ROOT file, or one without provenance.
    """
    with open_root(path) as file:
        provenance = read_note(file, NOTE, path)
    if provenance is None:
        raise InputError("holds no provenance: not written by pflow", file=path, field=NOTE)
    return provenance


def _none() -> ak.Array:
    """Particles of no events, for their type."""
    empty = ak.values_astype(ak.Array([[]])[:0], np.float32)
    return make_particles(pdg=empty, charge=empty, energy=empty, px=empty, py=empty, pz=empty, mass=empty)


def _columns(particles: ak.Array) -> dict[str, ak.Array]:
    columns = {}
    for member, (field, dtype) in MEMBERS.items():
        values = particles
        for key in field:
            values = values[key]
        columns[member] = ak.values_astype(values, dtype)
    return columns


def _flat(particles: ak.Array) -> ak.Array:
    """[event, particle] records whose members are ``momentum.x`` and so on, as TTree branches are named."""
    return ak.zip(_columns(particles), depth_limit=2)


def _nested(particles: ak.Array) -> ak.Array:
    """[event, particle] records with ``momentum`` a record of its own, as RNTuple fields nest."""
    columns = _columns(particles)
    momentum = ak.zip({axis: columns.pop(f"momentum.{axis}") for axis in "xyz"}, depth_limit=2)
    return ak.zip({**columns, "momentum": momentum}, depth_limit=2)


def _table(file: Any, name: str, path: str | Path) -> Any:
    table = open_tree(file, TREE, str(path))
    keys = table.keys()
    for branch in ("event", "flags", *(f"{name}.{member}" for member in MEMBERS)):
        if branch not in keys:
            raise InputError(
                "no such branch; expected the output of a reconstruction",
                file=path,
                field=branch,
                suggestions=nearest(branch, keys),
            )
    return table


def _read(table: Any, name: str, start: int, stop: int, path: str | Path) -> Reconstruction:
    columns = {member: read_branch(table, f"{name}.{member}", start, stop, path) for member in MEMBERS}
    return Reconstruction(
        particles=make_particles(
            pdg=columns["PDG"],
            charge=columns["charge"],
            energy=columns["energy"],
            px=columns["momentum.x"],
            py=columns["momentum.y"],
            pz=columns["momentum.z"],
            mass=columns["mass"],
            score=columns["goodnessOfPID"],
        ),
        event=np.asarray(ak.to_numpy(read_branch(table, "event", start, stop, path)), dtype=np.int64),
        flags=np.asarray(ak.to_numpy(read_branch(table, "flags", start, stop, path)), dtype=np.uint32),
        name=name,
    )
