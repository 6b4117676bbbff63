"""Configuration: frozen dataclasses from the plain data of YAML and JSON and back; the files that come with pflow.

Also the installed versions of pflow and its dependencies, which outputs record.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import platform
import re
import typing
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pflow.errors import ConfigError, check_fields, check_type, nearest

T = TypeVar("T")

EXPECTED = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}

VERSION = version("pflow")


def from_plain(cls: type[T], content: Any, where: str) -> T:
    """Build a dataclass from a mapping of its fields.

    Fields may be numbers, texts, booleans, dataclasses, ``tuple[X, ...]`` or ``Sequence[X]``, ``Mapping[K, V]``, and
    ``X | None``. Whole numbers and texts such as 5e-5 become floats where a float is expected, the only conversions.
    Fields of other types take any value. An instance of `cls` is returned as it is. `where` begins each error message,
    e.g. the file's name.

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
    content = {name: value for name, value in content.items() if name not in getattr(cls, "REMOVED", ())}
    check_fields(content, fields, where)
    # With postponed annotations the types of the fields themselves are texts.
    hints = _type_hints(cls)  # type: ignore[arg-type]
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in content:
            raise ConfigError(f"{where}: field '{name}' is missing")
    values = {name: _converted(hints[name], value, where, name) for name, value in content.items()}
    try:
        return cls(**values)
    except ValueError as error:  # a ConfigError is one too
        raise ConfigError(f"{where}: {error}") from error


def to_plain(value: Any) -> Any:
    """A dataclass as mappings, lists, texts and numbers, from which `from_plain` builds an equal one."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


@functools.cache  # a layout has 320 branches of one class, and each opening of a file reads some layouts
def _type_hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _converted(kind: Any, value: Any, where: str, name: str) -> Any:
    arguments = typing.get_args(kind)
    if type(None) in arguments:
        return None if value is None else _converted(arguments[0], value, where, name)
    if dataclasses.is_dataclass(kind):
        return from_plain(typing.cast(type, kind), value, f"{where}: {name}")
    origin = typing.get_origin(kind)
    if origin in (tuple, Sequence):
        item = arguments[0]
        named = item is str
        # A text is a sequence as well, and would become names of one letter each.
        if not isinstance(value, list | tuple) or (named and not all(isinstance(text, str) for text in value)):
            raise ConfigError(f"{where}: '{name}' must be a list{' of names' if named else ''}, found {value!r}")
        return tuple(_converted(item, part, where, f"{name}[{i}]") for i, part in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: '{name}' must be a mapping, found {value!r}")
        keys = (_converted(arguments[0], key, where, f"a key of {name}") for key in value)
        parts = (_converted(arguments[1], part, where, f"{name}[{key!r}]") for key, part in value.items())
        return dict(zip(keys, parts, strict=True))
    if kind not in EXPECTED:
        return value
    # YAML takes 5e-5 and 1.5e3 for texts: it wants a point and a sign, 5.0e-5.
    if kind is float and isinstance(value, str) and re.fullmatch(r"[-+]?\d*\.?\d+e[-+]?\d+", value, re.I):
        value = float(value)
    # In Python True is a whole number.
    accepted = int | float if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where}: '{name}' must be {EXPECTED[kind]}, found {value!r}")
    try:
        return float(value) if kind is float else value
    except OverflowError as error:
        raise ConfigError(f"{where}: '{name}' is too large for a number") from error


def config_dir() -> Path:
    """The folder of the built-in configuration: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def weights_dir() -> Path:
    """The folder of the trained models that come with pflow, a folder each: inside the package, installed or not."""
    return Path(__file__).parent / "pretrained"


RENAMED = {"ild-g4-general": "general", "cld-general": "general"}
"""Names of models of pflow 0.3, and the models that came after them."""


def model_folder(source: str | Path) -> Path | None:
    """The folder of a model, or None. Lookup order: file, built-in name, folder."""
    path, name = Path(source), RENAMED.get(str(source), str(source))
    if not path.is_file() and name in shipped_models():
        return weights_dir() / name
    return path if path.is_dir() else None


def shipped_models() -> list[str]:
    """The sorted names of the trained models that come with pflow, for `pflow.load_model`.

    >>> shipped_models()
    ['general', 'ild-g4-photon', 'ild-g4-translation']
    """
    return sorted(path.parent.name for path in weights_dir().glob("*/model.safetensors"))


def builtin_names(kind: str) -> list[str]:
    """Sorted names of the built-in files of one kind, e.g. ``builtin_names("detector")``."""
    return sorted(path.stem for path in (config_dir() / kind).glob("*.yaml"))


def resolve(kind: str, name: str | Path) -> Path:
    """Path of a built-in file by its name, or of the user's own file; a ConfigError names the nearest built-in ones.

    The `kind` is a folder of the built-in ones; "" has configurations of trainings. A name goes before a file that is
    called the same, with a warning.
    """
    what = kind or "configuration"
    check_type(name, str | os.PathLike, f"a name or file of a {what}")
    builtin, path = config_dir() / kind / f"{name}.yaml", Path(name)
    # A folder in the name, as in ./NAME, means the user's own file.
    if "/" not in str(name) and builtin.is_file():
        if path.is_file():
            warnings.warn(f"'{name}' is the {what} that comes with pflow; your file is './{name}'", stacklevel=2)
        return builtin
    if path.is_file():
        return path
    names = builtin_names(kind)
    message = f"no {what} file '{name}': neither a file nor one of {', '.join(names)}"
    raise ConfigError(message, suggestions=nearest(name, names))


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file, else a ConfigError. No code in it is run, and one that has not changed is kept."""
    stat = Path(path).stat()
    # What a caller changes in its mapping must not change the one in the cache.
    return copy.deepcopy(_parsed(str(path), stat.st_mtime_ns, stat.st_size))


class _Loader(yaml.SafeLoader):
    """Refuses a name that stands twice in a mapping, of which PyYAML keeps the last value in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set[str]()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in names:
                raise yaml.constructor.ConstructorError(problem=f"'{key.value}' twice", problem_mark=key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)


@functools.lru_cache(maxsize=64)
def _parsed(path: str, changed_ns: int, size: int) -> dict[str, Any]:
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a YAML file: {error}") from error
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise ConfigError(f"{path}: expected a mapping of names to values, found {found}")
    return content


def versions(*packages: str) -> dict[str, str | None]:
    """Versions of Python and of packages; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), **dict.fromkeys(packages)}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
