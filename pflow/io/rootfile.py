"""Reading one branch of a ROOT file, and a note of plain data that travels inside the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import awkward as ak

from pflow.errors import InputError, first_line
from pflow.io.declared_sizes import check_lists, watch_lists

__all__ = ["read_branch", "read_note", "write_note"]


def read_branch(table: Any, branch: str, start: int, stop: int, path: str | Path) -> ak.Array:
    """One branch of a TTree, or field of an RNTuple, for entries `start` to `stop` (exclusive).

    Raises
    ------
    InputError
        It cannot be read, as in a truncated file; names file, first entry and branch.
    """
    try:
        column = table[branch]
        watch_lists(column)
        values = column.array(entry_start=start, entry_stop=stop, library="ak")
        check_lists(values)
        return values
    except Exception as error:  # broken bytes fail anywhere in uproot and its decompressors, with errors of any type
        raise InputError(
            f"cannot be read up to entry {stop}, truncated or damaged file: {first_line(error)}",
            file=path,
            entry=start,
            field=branch,
        ) from error


def write_note(file: Any, key: str, content: Mapping[str, Any]) -> None:
    """Store what JSON can hold under `key` of a ROOT file open for writing, as a TObjString.

    Raises
    ------
    TypeError
        The content holds something that JSON cannot.
    """
    file[key] = json.dumps(content, sort_keys=True)


def read_note(file: Any, key: str, path: str | Path) -> dict[str, Any] | None:
    """The content that `write_note` stored under `key` of an open file, None if there is no such key.

    Raises
    ------
    InputError
        The key holds something else.
    """
    if key not in {name.split(";")[0] for name in file.keys(recursive=False)}:
        return None
    try:
        content = json.loads(str(file[key]))
    except Exception as error:  # not JSON, or broken bytes as above
        raise InputError(f"expected a JSON object: {first_line(error)}", file=path, field=key) from error
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object, found {type(content).__name__}", file=path, field=key)
    return content
