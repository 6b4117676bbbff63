"""Frozen dataclasses from the plain data of YAML and JSON, checked by their annotations; and back."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pflow.errors import ConfigError, check_fields

__all__ = ["from_plain", "to_plain"]

T = TypeVar("T")

EXPECTED = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}

LARGEST = 2**63 - 1
"""Largest whole number, that of NumPy and torch."""


def from_plain(cls: type[T], content: Any, where: str) -> T:
    """Build a dataclass from a mapping of its fields.

    Fields may be numbers, texts, booleans, dataclasses, ``tuple[X, ...]``, ``Mapping[K, V]``, and ``X | None``. Whole
    numbers become floats where a float is expected; nothing else is converted. Fields of other types take any value.

    Parameters
    ----------
    cls
        The dataclass.
    content
        What YAML or JSON gave; an instance of `cls` is returned as it is.
    where
        Begins each error message, e.g. the file's name.

    Raises
    ------
    ConfigError
        An unknown field (with its nearest matches), a missing one, or a value of another type or that `cls` refuses.
    """
    if isinstance(content, cls):
        return content
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where}: expected a mapping, found {type(content).__name__}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    check_fields(content, fields, where)
    hints = typing.get_type_hints(cls)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in content:
            raise ConfigError(f"{where}: field '{name}' is missing")
    values = {name: _converted(hints[name], value, where, name) for name, value in content.items()}
    try:
        return cls(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def to_plain(value: Any) -> Any:
    """A dataclass as mappings, lists, texts and numbers, from which `from_plain` builds an equal one."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


def _converted(kind: Any, value: Any, where: str, name: str) -> Any:
    arguments = typing.get_args(kind)
    if type(None) in arguments:
        return None if value is None else _converted(arguments[0], value, where, name)
    if dataclasses.is_dataclass(kind):
        return from_plain(typing.cast(type, kind), value, f"{where}: {name}")
    origin = typing.get_origin(kind)
    if origin is tuple:
        item = arguments[0]
        named = item is str
        if not isinstance(value, list | tuple) or (named and not all(isinstance(text, str) for text in value)):
            raise ConfigError(f"{where}: '{name}' must be a list{' of names' if named else ''}, found {value!r}")
        return tuple(_converted(item, part, where, f"{name}[{i}]") for i, part in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: '{name}' must be a mapping, found {value!r}")
        return {
            _converted(arguments[0], key, where, f"a key of {name}"): _converted(
                arguments[1], part, where, f"{name}[{key!r}]"
            )
            for key, part in value.items()
        }
    if kind not in EXPECTED:
        return value
    accepted = int | float if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where}: '{name}' must be {EXPECTED[kind]}, found {value!r}")
    if kind is int and not -LARGEST <= value <= LARGEST:
        raise ConfigError(f"{where}: '{name}' must be {EXPECTED[kind]} up to {LARGEST}, found a larger one")
    if kind is not float:
        return value
    try:
        return float(value)
    except OverflowError as error:
        raise ConfigError(f"{where}: '{name}' must be {EXPECTED[kind]} up to 1.8e308, found a larger one") from error
