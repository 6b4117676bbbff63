from __future__ import annotations

import os
from pathlib import Path

import pytest

from pflow.errors import ConfigError
from pflow.io.atomic import check_folder, check_output, replacing, replacing_folder


def write_half(target: Path, error: BaseException) -> None:
    with replacing(target) as partial:
        partial.write_text("half")
        raise error


def test_the_file_appears_at_the_end(tmp_path):
    target = tmp_path / "out.txt"
    with replacing(target) as partial:
        partial.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="half-way"):
        write_half(tmp_path / "out.txt", RuntimeError("half-way"))
    assert os.listdir(tmp_path) == []


def test_a_failure_does_not_touch_an_existing_file(tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("before")
    with pytest.raises(RuntimeError, match="half-way"):
        write_half(target, RuntimeError("half-way"))
    assert target.read_text() == "before"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_an_interrupt_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "out.txt", KeyboardInterrupt())
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_an_error_before_any_work(tmp_path):
    with pytest.raises(ConfigError, match="nowhere does not exist"), replacing(tmp_path / "nowhere" / "out.txt"):
        pytest.fail("the work began")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        check_output(tmp_path / "file" / "out.txt")


def test_a_folder_is_no_output(tmp_path):
    with pytest.raises(ConfigError, match="it is a folder"):
        check_output(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="no permission"):
        check_output(folder / "out.txt")


def test_an_input_is_not_overwritten(tmp_path):
    source = tmp_path / "in.root"
    source.write_text("precious")
    with pytest.raises(ConfigError, match="it is the input"):
        check_output(source, inputs=[tmp_path / "other.root", source])


def test_an_input_is_not_overwritten_through_a_link(tmp_path):
    source = tmp_path / "in.root"
    source.write_text("precious")
    (tmp_path / "link.root").symlink_to(source)
    with pytest.raises(ConfigError, match="it is the input"):
        check_output(tmp_path / "link.root", inputs=[source])


def test_another_file_may_be_overwritten(tmp_path):
    (tmp_path / "in.root").write_text("")
    (tmp_path / "out.root").write_text("")
    assert check_output(str(tmp_path / "out.root"), inputs=[tmp_path / "in.root"]) == tmp_path / "out.root"


def test_a_folder_appears_at_the_end(tmp_path):
    target = tmp_path / "model"
    with replacing_folder(target) as partial:
        (partial / "a.txt").write_text("whole")
        assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (target / "a.txt").read_text() == "whole"


def fill_half(target: Path, error: BaseException) -> None:
    with replacing_folder(target) as partial:
        (partial / "a.txt").write_text("half")
        raise error


def test_a_folder_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="disk full"):
        fill_half(tmp_path / "model", OSError("disk full"))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_not_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("keep me")
    with pytest.raises(ConfigError, match="not empty"):
        fill_half(tmp_path, OSError("not reached"))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(ConfigError, match="it is a file"):
        check_folder(tmp_path / "model")


def test_a_folder_in_no_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        check_folder(tmp_path / "nowhere" / "model")
