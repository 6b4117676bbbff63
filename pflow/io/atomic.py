"""Write output files and folders atomically, and decide which existing ones may be replaced.

Only ``--force`` (`force`) replaces an existing output; inputs are never replaced. An output is written beside its final
path and renamed at the end. `holds`, the names of all files in it, makes an output a folder.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pflow.errors import ConfigError, OutputError, PflowError


def check_output(
    path: str | Path,
    *,
    inputs: Iterable[str | Path] = (),
    force: bool = False,
    holds: Collection[str] | None = None,
) -> Path:
    """Check, before any work, that an output can be written at `path`, or where it links to; return it as a Path.

    It must not be, or lie in, one of `inputs`. Replacing an existing file needs `force`, and so does, with `holds`, a
    folder that contains only files of these names; an empty folder does not. ConfigError: why the output is refused.
    """
    path = Path(path)
    if not path.name:  # . and /
        raise ConfigError(f"cannot write {path}: give a name, e.g. {path / 'out'}")
    target = _target(path)
    # First, as a process that was killed may have left the folder of this name moved aside.
    _clean(target)
    folder, is_folder, wrong = target.parent, target.is_dir(), ""
    # samefile fails for a path that is not there, such as an input on a server.
    sources = [Path(source) for source in inputs if Path(source).exists()] if target.exists() else []
    held = set(os.listdir(target)) if is_folder else set()
    if not folder.is_dir():
        wrong = f"{folder} {'is not a folder' if folder.exists() else 'does not exist'}"
    elif is_folder and holds is None:
        wrong = "it is a folder"
    elif target.exists() and not is_folder and not target.is_file():
        wrong = "it is a device, a pipe or the like, expected a file"
    elif target.is_file() and holds is not None:
        wrong = "it is a file"
    elif not os.access(folder, os.W_OK | os.X_OK):
        wrong = f"no permission to write in {folder}"
    elif inside := [source for source in sources if target.samefile(source)]:
        wrong = f"it is the input {inside[0]}"
    elif inside := [source for source in sources if source.is_dir() and folder.samefile(source)]:
        wrong = f"it is part of the input {inside[0]}"
    elif is_folder and os.path.ismount(target):  # as a volume of a container: it cannot be moved aside
        wrong = "it is a mount point; name a new folder in it"
    elif others := ", ".join(sorted(held.difference(holds or ()))):
        wrong = f"the folder exists and is not empty; it holds {others}"
    elif not force and (held or target.is_file()):
        there = "the folder exists and is not empty" if held else "a file is there"
        wrong = f"{there}; choose another name, or replace it with --force"
    if wrong:
        raise ConfigError(f"cannot write {path}: {wrong}")
    return path


@contextmanager
def replacing(
    path: str | Path,
    *,
    inputs: Iterable[str | Path] = (),
    force: bool = False,
    holds: Collection[str] | None = None,
) -> Iterator[Path]:
    """Yield a path beside `path` to write to (a new folder if it `holds` files); rename it to `path` at the end.

    If anything fails, the temporary output is removed. A folder to replace is first moved aside; if the process is
    killed then, the next output to `path` moves it back. Parameters and errors as of `check_output`; OutputError: the
    disk is full, or the parent folder vanished.
    """
    # Inputs as a tuple: they are checked twice, and an iterator would be empty the second time.
    check = functools.partial(check_output, path, inputs=tuple(inputs), force=force, holds=holds)
    # A rename onto a symbolic link would replace the link, not the file that it leads to.
    target = _target(check())
    partial, aside = _beside(target, "tmp"), _beside(target, "earlier")
    try:
        with disk_errors(path):
            if holds is not None:
                partial.mkdir()
            yield partial
            check()  # another process may have written it since
            if target.is_dir():  # no folder can be renamed onto one that holds files
                os.replace(target, aside)
            os.replace(partial, target)
    finally:
        # If `target` is there, the earlier folder is done with and removed as `partial`; else it goes back.
        if aside.exists():
            os.replace(aside, partial if target.exists() else target)
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        # An error of the cleaning would hide the one that stopped the writing.
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


def lock(path: Path) -> BinaryIO | None:
    """Lock a file until what is returned is closed, or this process ends in any way; None: it cannot be locked.

    BlockingIOError: another process has locked it.
    """
    try:
        file = path.open("r+b")
    except OSError:  # not there, or read-only
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except OSError as error:  # another process, or a file system without locks
        file.close()
        if isinstance(error, BlockingIOError):
            raise
        return None


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
    # With the host: on a shared disk, a process number says nothing about the processes of another machine.
    return target.with_name(f"{target.name}.{kind}-{socket.gethostname()}-{process or os.getpid()}")


def _clean(target: Path) -> None:
    """Remove temporary outputs of dead processes beside `target`; move back a folder that one had moved aside."""
    listed: list[str] = []
    with suppress(OSError):  # no folder
        listed = os.listdir(target.parent)  # once: a folder may hold thousands of outputs
    for kind in ("earlier", "tmp"):
        prefix = _beside(target, kind, "*").name.removesuffix("*")
        for name in filter(lambda name: name.startswith(prefix), listed):
            process, left = name.removeprefix(prefix), target.with_name(name)
            if not process.isdecimal() or _is_alive(int(process)):
                continue
            with suppress(OSError):
                if kind == "earlier" and not target.exists():
                    os.replace(left, target)
                elif left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink()


def _is_alive(process: int) -> bool:
    with suppress(PermissionError):  # another user's
        try:
            # Signal 0 only asks for the process; a number in a file name may be too large for one (OverflowError).
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True
