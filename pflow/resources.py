"""Files that come with pflow: YAML of detectors, file layouts and model set-ups, and trained weights."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from pflow.errors import ConfigError, nearest

__all__ = ["builtin_names", "config_dir", "load_yaml", "resolve", "shipped_models", "weights_dir"]


def config_dir() -> Path:
    """The folder of the built-in configuration: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def weights_dir() -> Path:
    """The folder of the trained models that come with pflow, a folder each: inside the package, installed or not."""
    return Path(__file__).parent / "pretrained"


def shipped_models() -> list[str]:
    """Sorted names of the trained models that come with pflow; `pflow.load_model` takes them.

    >>> "best.ckpt" in shipped_models()
    False
    """
    return sorted(path.parent.name for path in weights_dir().glob("*/model.safetensors"))


def builtin_names(kind: str) -> list[str]:
    """Sorted names of the built-in files of one kind, e.g. ``builtin_names("detector")``."""
    return sorted(path.stem for path in (config_dir() / kind).glob("*.yaml"))


def resolve(kind: str, name: str | Path) -> Path:
    """Path of a built-in file by its name, or of the user's own file.

    Raises
    ------
    ConfigError
        Neither a built-in name nor an existing file; names the nearest built-in ones.
    """
    builtin = config_dir() / kind / f"{name}.yaml"
    if "/" not in str(name) and builtin.is_file():
        return builtin
    path = Path(name)
    if path.is_file():
        return path
    names = builtin_names(kind)
    message = f"no {kind} file '{name}': neither a file nor one of {', '.join(names)}"
    raise ConfigError(message, suggestions=nearest(name, names))


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping, without running code from it; one that has not changed is not read again.

    Raises
    ------
    ConfigError
        Not YAML, or not a mapping; names the file.
    """
    found = Path(path).stat()
    return copy.deepcopy(_parsed(str(path), found.st_mtime_ns, found.st_size))


@functools.lru_cache(maxsize=64)
def _parsed(path: str, changed_ns: int, size: int) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a YAML file: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping of names to values, found {type(content).__name__}")
    return content
