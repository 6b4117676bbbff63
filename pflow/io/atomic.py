"""Output files and folders that appear only when whole: written beside their place, then renamed into it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pflow.errors import ConfigError

__all__ = ["check_folder", "check_output", "replacing", "replacing_folder"]


def check_output(path: str | Path, *, inputs: Iterable[str | Path] = ()) -> Path:
    """Check, before any work, that a file can be written at `path`; return it as a Path.

    Raises
    ------
    ConfigError
        The folder is missing, is no folder or may not be written to; `path` is a folder; or it is one of `inputs`
        (also through a link), which would be lost.
    """
    path = Path(path)
    folder = path.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ConfigError(f"cannot write {path}: {folder} {what}")
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write {path}: no permission to write in {folder}")
    for source in inputs:
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise ConfigError(f"cannot write {path}: it is the input {source}")
    return path


@contextmanager
def replacing(path: str | Path, *, inputs: Iterable[str | Path] = ()) -> Iterator[Path]:
    """Yield a path beside `path` to write to; rename it to `path` at the end, or remove it if anything fails.

    Whatever was at `path` stays untouched until the rename, which is atomic on one file system.

    Parameters
    ----------
    path
        Where the finished file goes.
    inputs
        Files that are being read, which must not be overwritten.

    Raises
    ------
    ConfigError
        As `check_output`, before anything is written.

    Examples
    --------
    >>> with replacing("out.json") as partial:  # doctest: +SKIP
    ...     partial.write_text("{}")
    """
    target = check_output(path, inputs=inputs)
    partial = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def check_folder(folder: str | Path) -> Path:
    """Check, before any work, that a folder can be made at `folder`; return it as a Path.

    Raises
    ------
    ConfigError
        Something is there that is not an empty folder, or nothing can be written beside it.
    """
    folder = Path(folder)
    if folder.is_dir():
        if any(folder.iterdir()):
            raise ConfigError(f"cannot write {folder}: the folder exists and is not empty")
        return folder
    if folder.exists():
        raise ConfigError(f"cannot write {folder}: it is a file")
    return check_output(folder)


@contextmanager
def replacing_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a new folder beside `folder`; rename it to `folder` at the end, or remove it if anything fails.

    Parameters
    ----------
    folder
        Where the finished folder goes; one that exists must be empty.

    Raises
    ------
    ConfigError
        As `check_folder`, before anything is written.
    """
    target = check_folder(folder)
    partial = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    partial.mkdir()
    try:
        yield partial
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
