from __future__ import annotations

import os
from pathlib import Path

import pytest

from pflow.errors import ConfigError
from pflow.io.atomic import check_folder, check_output, replacing, replacing_folder

KINDS = {"file": (replacing, ""), "folder": (replacing_folder, "a.txt")}
"""How each is written, and what is written in it."""


def write(kind: str, target: Path, error: BaseException | None = None) -> None:
    replace, name = KINDS[kind]
    with replace(target) as partial:
        (partial / name).write_text("new")
        assert not target.exists() or target.read_text() == "before"
        if error is not None:
            raise error


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_it_appears_at_the_end(tmp_path, kind):
    write(kind, tmp_path / "out")
    assert contents(tmp_path) == {str(Path("out") / KINDS[kind][1]): "new"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=type)
def test_a_failure_leaves_nothing(tmp_path, kind, error):
    with pytest.raises(type(error)):
        write(kind, tmp_path / "out", error)
    assert os.listdir(tmp_path) == []


def test_a_failure_does_not_touch_an_existing_file(tmp_path):
    (tmp_path / "out").write_text("before")
    with pytest.raises(OSError, match="disk full"):
        write("file", tmp_path / "out", OSError("disk full"))
    assert contents(tmp_path) == {"out": "before"}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder with a file, a link to it and a folder."""
    (tmp_path / "in.root").write_text("precious")
    (tmp_path / "link.root").symlink_to(tmp_path / "in.root")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/out.txt", "nowhere does not exist"),
        ("in.root/out.txt", "is not a folder"),
        ("folder", "it is a folder"),
        ("in.root", "it is the input"),
        ("link.root", "it is the input"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(there, path, message):
    inputs = [there / "other.root", there / "in.root"]
    with pytest.raises(ConfigError, match=message):
        check_output(there / path, inputs=inputs)
    with pytest.raises(ConfigError, match=message), replacing(there / path, inputs=inputs):
        pytest.fail("the work began")


@pytest.mark.parametrize(
    ("path", "message"),
    [("", "not empty"), ("in.root", "it is a file"), ("nowhere/model", "does not exist")],
)
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(there, path, message):
    with pytest.raises(ConfigError, match=message):
        check_folder(there / path)
    with pytest.raises(ConfigError, match=message), replacing_folder(there / path):
        pytest.fail("the work began")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="no permission"):
        check_output(folder / "out.txt")


def test_another_file_may_be_overwritten(there):
    (there / "out.root").write_text("")
    assert check_output(str(there / "out.root"), inputs=[there / "in.root"]) == there / "out.root"
