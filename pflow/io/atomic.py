"""Output files and folders that appear only when whole: written beside their place, then renamed into it."""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import shutil
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pflow.errors import ConfigError, OutputError

__all__ = ["check_folder", "check_output", "disk_errors", "make_folder", "replacing", "replacing_folder"]

MARK_RANGE = 2**20
"""Bytes at each end of a file in which the mark of its kind is looked for."""

DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.ESTALE),
    *(errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENODEV, errno.ENXIO, errno.EBUSY),
}
"""Error numbers of a file system on which nothing can be written: full, over quota, read-only, gone."""

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of Linux' ``fcntl.h`` and ``stdio.h``: paths are taken from the working directory; both names stay, exchanged."""


def check_output(
    path: str | Path, *, inputs: Iterable[str | Path] = (), replace: bool | bytes = True, force: bool = False
) -> Path:
    """Check, before any work, that a file can be written at `path`; return it as a Path.

    Parameters
    ----------
    path
        Where the file goes. Of a symbolic link, what it points to is meant.
    inputs
        Files and folders that must not be overwritten.
    replace
        Whether a file that is there may be replaced; or a mark that shows it to be of the same kind as what is
        written, and replaceable: bytes that such files by pflow hold near their beginning or end.
    force
        Replace any file.

    Raises
    ------
    ConfigError
        The folder is missing, is no folder or may not be written to; `path` is a folder, a device or the like; it is
        one of `inputs` (also through a link) or in such a folder, which would be lost; or a file is there that may not
        be replaced.
    """
    path = Path(path)
    target = _target(path)
    folder = target.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ConfigError(f"cannot write {path}: {folder} {what}")
    if target.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder")
    if target.exists() and not target.is_file():
        raise ConfigError(f"cannot write {path}: it is a device, a pipe or the like, expected a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write {path}: no permission to write in {folder}")
    for source in inputs:
        if target.exists() and Path(source).exists():
            if target.samefile(source):
                raise ConfigError(f"cannot write {path}: it is the input {source}")
            if Path(source).is_dir() and folder.samefile(source):
                raise ConfigError(f"cannot write {path}: it is part of the input {source}")
    if target.exists() and not force and replace is not True and not (replace and _holds(target, replace)):
        what = "a file is there" if replace is False else "a file is there that is not an earlier output of this kind"
        raise ConfigError(f"cannot write {path}: {what}; choose another name, or replace it with --force")
    return path


@contextmanager
def replacing(
    path: str | Path, *, inputs: Iterable[str | Path] = (), replace: bool | bytes = True, force: bool = False
) -> Iterator[Path]:
    """Yield a path beside `path` to write to; rename it to `path` at the end, or remove it if anything fails.

    Whatever was at `path` stays untouched until the rename, which is atomic on one file system. What processes of this
    machine that were killed left beside `path` is removed.

    Parameters
    ----------
    path, inputs, replace, force
        As of `check_output`.

    Raises
    ------
    ConfigError
        As `check_output`, before anything is written.
    OutputError
        It could not be written: the disk is full, the folder vanished.

    Examples
    --------
    >>> with replacing("out.json") as partial:  # doctest: +SKIP
    ...     partial.write_text("{}")
    """
    target = _target(check_output(path, inputs=inputs, replace=replace, force=force))
    partial = _partial(target)
    try:
        with disk_errors(path):
            yield partial
            os.replace(partial, target)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def make_folder(path: str | Path) -> Path:
    """The folder for outputs, made if it is not there.

    Raises
    ------
    ConfigError
        It is a file.
    OutputError
        It cannot be made.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"cannot write to {folder}: expected a folder, found a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}") from error
    return folder


def check_folder(
    folder: str | Path, *, inputs: Iterable[str | Path] = (), replace: Collection[str] = (), force: bool = False
) -> Path:
    """Check, before any work, that a folder can be made at `folder`; return it as a Path.

    First of all, a folder that a process of this machine put aside to replace it, and was killed, is put back.

    Parameters
    ----------
    folder
        Where the folder goes.
    inputs
        Files and folders that must not be replaced.
    replace
        Names of the files of an output of this kind: a folder that holds no others can be replaced.
    force
        Replace it.

    Raises
    ------
    ConfigError
        Something is there that is neither an empty folder nor one to replace, it is one of `inputs`, or nothing can be
        written beside it.
    """
    folder = Path(folder)
    _put_back(_target(folder))
    for source in inputs:
        if folder.exists() and Path(source).exists() and folder.samefile(source):
            raise ConfigError(f"cannot write {folder}: it is the input {source}")
    if folder.is_dir():
        held = {path.name for path in folder.iterdir()}
        if held - set(replace):
            others = f"; it holds {', '.join(sorted(held - set(replace)))}" if force else ""
            raise ConfigError(f"cannot write {folder}: the folder exists and is not empty{others}")
        if held and not force:
            raise ConfigError(
                f"cannot write {folder}: the folder exists and is not empty; choose another name, or replace the "
                "earlier output with --force"
            )
        return folder
    if folder.exists():
        raise ConfigError(f"cannot write {folder}: it is a file")
    return check_output(folder)


@contextmanager
def replacing_folder(folder: str | Path, *, replace: Collection[str] = (), force: bool = False) -> Iterator[Path]:
    """Yield a new folder beside `folder`; rename it to `folder` at the end, or remove it if anything fails.

    A folder that is replaced is exchanged with the new one and then removed. On a file system that cannot exchange two
    names at once it is put aside for a moment; if the process is killed then, the next one puts it back.

    Parameters
    ----------
    folder, replace, force
        As of `check_folder`.

    Raises
    ------
    ConfigError
        As `check_folder`, before anything is written.
    OutputError
        It could not be written: the disk is full, the folder around it vanished.
    """
    target = _target(check_folder(folder, replace=replace, force=force))
    partial = _partial(target)
    try:
        with disk_errors(folder):
            partial.mkdir()
            yield partial
            if target.is_dir() and any(check_folder(target, replace=replace, force=force).iterdir()):
                _exchange(partial, target)
            else:
                os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _target(path: Path) -> Path:
    """The place that is meant: of a symbolic link, what it points to."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _exchange(partial: Path, target: Path) -> None:
    """Exchange two folders."""
    if _exchange_at_once(partial, target):
        return
    aside = _beside(target, "earlier", os.getpid())
    try:
        os.replace(target, aside)
        os.replace(partial, target)
    finally:
        with suppress(OSError):
            os.replace(aside, partial if target.exists() else target)


def _exchange_at_once(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False, and nothing done, where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):  # not Linux, or an older C library
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0)


def _put_back(target: Path) -> None:
    """Put a folder back that a dead process of this machine put aside; remove it if another is there now."""
    for process, aside in _left(target, "earlier"):
        if not aside.is_dir():
            continue
        partial = _beside(target, "tmp", process)
        _remove(partial)
        with suppress(OSError):
            target.rmdir()  # if it is empty, nothing has taken the place
        with suppress(OSError):
            # Renamed before it is removed: what is left of a removal that is killed must not be put back.
            os.replace(aside, partial if target.is_dir() else target)
            _remove(partial)


def _partial(target: Path) -> Path:
    """Where to write before the rename; removes what dead processes of this machine left there."""
    for _, left in _left(target, "tmp"):
        _remove(left)
    return _beside(target, "tmp", os.getpid())


def _beside(target: Path, kind: str, process: int) -> Path:
    """What a process of this machine has beside `target`: ``tmp``, being written, or ``earlier``, put aside."""
    return target.with_name(f"{target.name}.{kind}-{socket.gethostname()}-{process}")


def _left(target: Path, kind: str) -> list[tuple[int, Path]]:
    """What dead processes of this machine left beside `target`, with their numbers."""
    beginning = f"{target.name}.{kind}-{socket.gethostname()}-"
    found = ((path.name.removeprefix(beginning), path) for path in target.parent.glob(f"{glob.escape(beginning)}*"))
    numbered = [(int(number), path) for number, path in found if number.isdecimal()]
    return [(process, path) for process, path in numbered if not _is_alive(process)]


def _remove(left: Path) -> None:
    if left.is_dir():
        shutil.rmtree(left, ignore_errors=True)
    else:
        with suppress(OSError):
            left.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _holds(path: Path, mark: bytes) -> bool:
    """Whether a file has some bytes near its beginning or end."""
    try:
        with path.open("rb") as file:
            head = file.read(MARK_RANGE)
            file.seek(max(path.stat().st_size - MARK_RANGE, 0))
            return mark in head or mark in file.read(MARK_RANGE)
    except OSError:
        return False


@contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Name a file or folder in what the file system says of writing to it.

    Raises
    ------
    OutputError
        It could not be written: the disk is full, the folder vanished.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError) or error.errno not in DISK_ERRORS:
            raise
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
