"""Random changes of bytes and of plain data."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

Generator = np.random.Generator

VALUES = (
    *(0, -1, 1, 3, 10**9, 2**31, 2**63, 10**400, True, None),
    *(0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
    *("", "x", "../../etc/passwd", "os.system", "\x00", "é" * 100, "9" * 5000),
    *([], {}, [[]], {"": {}}, [1, "a", None]),
)
"""Replacements of a value."""


def picked(choices: Any, generator: Generator) -> Any:
    """One of some choices."""
    return choices[int(generator.integers(len(choices)))]


DAMAGES = ("flip", "flip", "random", "zero", "cut", "insert", "copy")
"""Kinds of changes of bytes; a flipped bit twice as often."""


def damaged(content: bytes, generator: Generator) -> bytes:
    """Bytes with some of them flipped, zeroed, moved, repeated, inserted or cut off."""
    changed = bytearray(content)
    for _ in range(int(generator.integers(1, 4))):
        if not changed:
            break
        kind, place = picked(DAMAGES, generator), _place(changed, generator)
        if kind == "flip":
            changed[place] ^= 1 << int(generator.integers(8))
        elif kind == "random":
            changed[place] = int(generator.integers(256))
        elif kind == "zero":
            size = min(int(generator.integers(1, 65)), len(changed) - place)
            changed[place : place + size] = bytes([0, 255][int(generator.integers(2))] for _ in range(size))
        elif kind == "cut":
            del changed[place:]
        elif kind == "insert":
            changed[place:place] = generator.bytes(int(generator.integers(1, 17)))
        else:
            target = _place(changed, generator)
            part = changed[place : place + int(generator.integers(1, 257))]
            changed[target : target + len(part)] = part
    return bytes(changed)


def altered(content: Any, generator: Generator) -> Any:
    """Plain data with one value, anywhere inside, replaced or left out."""
    paths = list(_paths(content))
    if not paths:
        return picked(VALUES, generator)
    *parents, key = picked(paths, generator)
    changed = copy.deepcopy(content)
    inner = functools.reduce(operator.getitem, parents, changed)
    if generator.random() < 0.15:
        del inner[key]
    elif isinstance(inner, dict) and generator.random() < 0.1:
        inner[f"{key}x"] = inner.pop(key)
    else:
        inner[key] = picked(VALUES, generator)
    return changed


def _paths(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _paths(value, (*path, key))


def _place(content: bytearray, generator: Generator) -> int:
    """Anywhere, but most often near an end, where headers and directories are."""
    near, kind = min(len(content), 600), generator.random()
    if kind < 0.3:
        return int(generator.integers(near))
    return len(content) - 1 - int(generator.integers(near)) if kind < 0.6 else int(generator.integers(len(content)))
