"""Base of both output formats of a reconstruction: renamed when complete, with provenance."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import uproot

from pflow.errors import ConfigError
from pflow.event import jagged
from pflow.event.events import count_flags
from pflow.event.particles import Reconstruction
from pflow.io.atomic import check_output, replacing
from pflow.io.root import write_note

NOTE = "pflow_provenance"
"""Key of the provenance; every output of a reconstruction holds it."""


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
        try:
            json.dumps(provenance)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"provenance cannot be stored as JSON: {error}") from error
        self._checks: Any = {"inputs": tuple(inputs), "replace": NOTE.encode(), "force": force}
        self._path = check_output(path, **self._checks)
        self._name = name
        self._provenance = provenance
        self._optional: frozenset[str] | None = None  # parts that the first chunk with particles has
        self._flagged: Counter[str] = Counter()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            partial = stack.enter_context(replacing(self._path, **self._checks))
            self._file = stack.enter_context(uproot.recreate(partial, compression=uproot.ZSTD(5)))
            self._begin()
            stack.push(self._finish)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def extend(self, reconstruction: Reconstruction) -> None:
        """Append consecutive events; chunks with particles that differ in their optional parts are a `ValueError`."""
        self._flagged.update(count_flags(reconstruction.flags))
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
            flagged = {"flagged": self._flagged} if self._flagged else {}
            write_note(self._file, NOTE, {**self._provenance, **flagged})
