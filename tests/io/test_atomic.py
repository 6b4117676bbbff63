import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pflow.errors import ConfigError, OutputError
from pflow.io.atomic import check_output, replacing

HOLDS = ("a.txt",)
KINDS = {"file": ({}, ""), "folder": ({"holds": HOLDS}, "a.txt")}
"""Options of `replacing` for each, and the file to write in it."""


def write(kind: str, target: Path, error: BaseException | None = None) -> None:
    options, name = KINDS[kind]
    with replacing(target, **options) as partial:
        (partial / name).write_text("new")
        assert not target.exists() or target.read_text() == "before"
        if error is not None:
            raise error


def make(folder: Path, content: str = "earlier") -> Path:
    folder.mkdir()
    (folder / "a.txt").write_text(content)
    return folder


def replace_by_force(folder: Path) -> None:
    with replacing(folder, holds=HOLDS, force=True) as partial:
        (partial / "a.txt").write_text("whole")


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_it_appears_at_the_end_or_not_at_all(tmp_path, kind):
    write(kind, tmp_path / "out")
    assert contents(tmp_path) == {str(Path("out") / KINDS[kind][1]): "new"}
    with pytest.raises(KeyboardInterrupt):
        write(kind, tmp_path / "interrupted", KeyboardInterrupt())
    assert os.listdir(tmp_path) == ["out"]


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A file, a pipe and a folder, and links to them."""
    (tmp_path / "in.root").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").touch()
    for name in ("in.root", "pipe"):
        (tmp_path / f"link to {name}").symlink_to(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("path", "holds", "message"),
    [
        ("nowhere/out.txt", None, "nowhere does not exist"),
        ("in.root/out.txt", None, "is not a folder"),
        ("folder", None, "it is a folder"),
        ("/", HOLDS, "give a name, e.g. /out"),
        ("folder/mine.txt", None, "it is part of the input"),
        ("in.root", None, "it is the input"),
        ("link to in.root", None, "it is the input"),
        ("pipe", None, "it is a device, a pipe or the like"),
        ("link to pipe", None, "it is a device, a pipe or the like"),
        ("", HOLDS, r"not empty; it holds folder, in\.root"),
        ("folder", HOLDS, "it is the input"),
        ("in.root", HOLDS, "it is a file"),
        ("nowhere/model", HOLDS, "does not exist"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(there, path, holds, message, force):
    options = {"inputs": [there / "other.root", there / "in.root", there / "folder"], "holds": holds, "force": force}
    with pytest.raises(ConfigError, match=message):
        check_output(there / path, **options)
    with pytest.raises(ConfigError, match=message), replacing(there / path, **options):
        pytest.fail("the work began")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="no permission"):
        check_output(tmp_path / "closed" / "out.txt")


def test_a_mount_point_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path)
    with pytest.raises(ConfigError, match="it is a mount point; name a new folder in it"):
        check_output(tmp_path, holds=HOLDS, force=True)


def test_a_link_stays_and_what_it_points_to_is_replaced(there):
    with replacing(there / "link to in.root", force=True) as partial:
        partial.write_text("after")
    assert (there / "link to in.root").is_symlink()
    assert (there / "in.root").read_text() == "after"


def test_a_file_that_exists_or_appears_meanwhile_is_replaced_by_force_only(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(ConfigError, match=r"notes\.txt: a file is there.*--force"):
        check_output(path)
    assert check_output(path, force=True) == path

    def write_second() -> None:
        with replacing(tmp_path / "out.txt") as partial:
            partial.write_text("second")
            (tmp_path / "out.txt").write_text("first")

    with pytest.raises(ConfigError, match=r"a file is there.*--force"):
        write_second()
    assert contents(tmp_path) == {"notes.txt": "precious", "out.txt": "first"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOENT])
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_one_clear_error(tmp_path, number, kind):
    with pytest.raises(OutputError, match=rf"cannot write .*out: {os.strerror(number)}$"):
        write(kind, tmp_path / "out", OSError(number, os.strerror(number)))
    assert not list(tmp_path.iterdir())


DEAD = 2**22 + 1
"""Above the largest number of a process."""

HOST = socket.gethostname()


def test_files_of_dead_processes_are_removed(tmp_path):
    stay = [f"out.txt.tmp-{HOST}-{os.getppid()}", f"out.txt.tmp-another-host-{DEAD}", f"other.txt.tmp-{HOST}-{DEAD}"]
    for name in (*stay, f"out.txt.tmp-{HOST}-{DEAD}"):
        (tmp_path / name).touch()
    make(tmp_path / f"model.tmp-{HOST}-{DEAD}")
    with replacing(tmp_path / "out.txt") as partial:
        partial.write_text("whole")
    with replacing(tmp_path / "model", holds=HOLDS):
        pass
    assert sorted(os.listdir(tmp_path)) == sorted([*stay, "out.txt", "model"])


def test_a_folder_of_the_same_kind_is_replaced_by_force_alone(tmp_path):
    folder = make(tmp_path / "model")
    with pytest.raises(ConfigError, match="--force"), replacing(folder, holds=HOLDS):
        pytest.fail("the work began")
    with pytest.raises(OutputError), replacing(folder, holds=HOLDS, force=True) as partial:
        (partial / "nowhere" / "a.txt").write_text("half")
    assert contents(tmp_path) == {"model/a.txt": "earlier"}
    replace_by_force(folder)
    assert contents(tmp_path) == {"model/a.txt": "whole"}


KILLED = """
import os, signal, sys
from pflow.io import atomic

def then_killed(*args):
    rename(*args)
    os.kill(os.getpid(), signal.SIGKILL)

rename, os.replace = os.replace, then_killed
with atomic.replacing(sys.argv[1], holds=["a.txt"], force=True) as partial:
    (partial / "a.txt").write_text("whole")
"""
"""Replaces a folder, and is killed right after the first of two renames."""


def test_a_process_killed_while_replacing_a_folder_leaves_a_whole_one(tmp_path):
    folder = make(tmp_path / "model")
    killed = subprocess.run([sys.executable, "-c", KILLED, folder], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    with pytest.raises(ConfigError, match="--force"):
        check_output(folder, holds=HOLDS)
    assert contents(tmp_path) == {"model/a.txt": "earlier"}
    replace_by_force(folder)
    assert contents(tmp_path) == {"model/a.txt": "whole"}


@pytest.mark.parametrize("owner", [f"{HOST}-{os.getppid()}", f"another-host-{DEAD}"], ids=["living", "another host"])
@pytest.mark.parametrize("there", [False, True])
def test_files_of_a_living_process_are_left_alone(tmp_path, owner, there):
    if there:
        make(tmp_path / "model", "new")
    aside = make(tmp_path / f"model.earlier-{owner}")
    assert check_output(tmp_path / "model", holds=HOLDS, force=True).exists() == there
    replace_by_force(tmp_path / "model")
    assert contents(aside) == {"a.txt": "earlier"}
    assert contents(tmp_path / "model") == {"a.txt": "whole"}


def test_where_the_second_rename_fails_the_folder_is_put_back(tmp_path, monkeypatch):
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        if ".tmp-" in Path(source).name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OutputError, match="Input/output error"):
        replace_by_force(make(tmp_path / "model"))
    assert contents(tmp_path) == {"model/a.txt": "earlier"}
