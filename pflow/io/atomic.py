"""Complete output files and folders only: written beside the target, then renamed to it."""

from __future__ import annotations

import glob
import os
import shutil
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pflow.errors import ConfigError, OutputError, PflowError

MARK_RANGE = 2**20  # bytes at each end of a file in which the mark of its kind is looked for


def check_output(
    path: str | Path, *, inputs: Iterable[str | Path] = (), replace: bool | bytes = True, force: bool = False
) -> Path:
    """Check, before any work, that a file can be written at `path`, or where it links to; return it as a Path.

    It must not be or lie in one of `inputs`. `replace`: whether an existing file may be replaced; or bytes near the
    beginning or end of the files that may be. `force` replaces any file. A `ConfigError` gives the reason if not.
    """
    path = Path(path)
    target = _target(path)
    folder, wrong = target.parent, ""
    if not folder.is_dir():
        wrong = f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}"
    elif target.is_dir():
        wrong = "it is a folder"
    elif target.exists() and not target.is_file():
        wrong = "it is a device, a pipe or the like, expected a file"
    elif not os.access(folder, os.W_OK | os.X_OK):
        wrong = f"no permission to write in {folder}"
    elif target.exists():
        for source in (Path(source) for source in inputs if Path(source).exists()):
            if target.samefile(source) or (source.is_dir() and folder.samefile(source)):
                wrong = f"it is {'part of ' if source.is_dir() else ''}the input {source}"
        if not (wrong or force or replace is True or (replace and _holds(target, replace))):
            kind = "" if replace is False else " that is not an earlier output of this kind"
            wrong = f"a file is there{kind}; choose another name, or replace it with --force"
    if wrong:
        raise ConfigError(f"cannot write {path}: {wrong}")
    return path


@contextmanager
def replacing(
    path: str | Path, *, inputs: Iterable[str | Path] = (), replace: bool | bytes = True, force: bool = False
) -> Iterator[Path]:
    """Yield a path beside `path` to write to; rename it to `path` at the end, or remove it if anything fails.

    Parameters and errors as of `check_output`; an `OutputError` if the disk is full or the folder vanished.
    """
    target = _target(check_output(path, inputs=inputs, replace=replace, force=force))
    _clean(target)
    partial = _beside(target, "tmp")
    try:
        with disk_errors(path):
            yield partial
            os.replace(partial, target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def make_folder(path: str | Path) -> Path:
    """Return the folder for outputs, made if absent; a `ConfigError` if it is a file."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"cannot write to {folder}: expected a folder, found a file")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_folder(
    folder: str | Path, *, inputs: Iterable[str | Path] = (), replace: Collection[str] = (), force: bool = False
) -> Path:
    """Check, before any work, that a folder can be made at `folder`; return it as a Path.

    The folder may exist if it is empty, or under `force` if it holds only files named in `replace`; it must not be one
    of `inputs`. Anything else is a `ConfigError`.
    """
    folder = Path(folder)
    _clean(_target(folder))
    if not folder.is_dir():
        if folder.exists():
            raise ConfigError(f"cannot write {folder}: it is a file")
        return check_output(folder)
    for source in inputs:
        if Path(source).exists() and folder.samefile(source):
            raise ConfigError(f"cannot write {folder}: it is the input {source}")
    held = set(os.listdir(folder))
    others = ", ".join(sorted(held - set(replace)))
    if others or (held and not force):
        remedy = f"it holds {others}" if others else "choose another name, or replace the earlier output with --force"
        raise ConfigError(f"cannot write {folder}: the folder exists and is not empty; {remedy}")
    return folder


@contextmanager
def replacing_folder(folder: str | Path, *, replace: Collection[str] = (), force: bool = False) -> Iterator[Path]:
    """Yield a new folder beside `folder`; rename it to `folder` at the end, or remove it if anything fails.

    The old folder is first moved aside; if the process is killed then, the next output to `folder` moves it back.
    Parameters and errors as of `check_folder`; an `OutputError` if the disk is full or the folder around it vanished.
    """
    target = _target(check_folder(folder, replace=replace, force=force))
    partial, aside = _beside(target, "tmp"), _beside(target, "earlier")
    try:
        with disk_errors(folder):
            partial.mkdir()
            yield partial
            if target.is_dir():
                os.replace(check_folder(target, replace=replace, force=force), aside)
            os.replace(partial, target)
    finally:
        if aside.exists():
            os.replace(aside, partial if target.exists() else target)
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Turn errors of the file system into an `OutputError` that names the file or folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PflowError | ConnectionError) or error.errno is None:
            raise
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def _target(path: Path) -> Path:
    """The path, or the target of a symbolic link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _beside(target: Path, kind: str, process: str = "") -> Path:
    """Path beside `target` of a process on this machine: ``tmp``, being written, or ``earlier``, moved aside."""
    return target.with_name(f"{target.name}.{kind}-{socket.gethostname()}-{process or os.getpid()}")


def _clean(target: Path) -> None:
    """Remove files of dead processes of this machine beside `target`; move back a folder that one had moved aside."""
    for kind in ("earlier", "tmp"):
        pattern = _beside(Path(glob.escape(str(target))), kind, "*")
        for left in glob.glob(str(pattern)):
            process = left.rpartition("-")[2]
            if not process.isdecimal() or _is_alive(int(process)):
                continue
            with suppress(OSError):
                if kind == "earlier" and not target.exists():
                    os.replace(left, target)
                elif os.path.isdir(left):
                    shutil.rmtree(left)
                else:
                    os.unlink(left)


def _is_alive(process: int) -> bool:
    with suppress(PermissionError):  # another user's
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True


def _holds(path: Path, mark: bytes) -> bool:
    """Whether a file has some bytes near its beginning or end."""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(MARK_RANGE)
        file.seek(max(path.stat().st_size - MARK_RANGE, 0))
        return mark in head or mark in file.read(MARK_RANGE)
    return False
