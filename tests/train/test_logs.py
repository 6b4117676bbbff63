"""What is said where the logs of a training cannot be written."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from pflow.errors import OutputError
from pflow.train.logs import make_loggers, writing_logs


def failing(error: Exception) -> None:
    def run() -> None:
        raise error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_on_a_full_disk() -> None:
    failing(FULL)
    raise FULL


def test_a_full_disk_is_said_once_and_names_the_folder(tmp_path, capfd):
    with pytest.raises(OutputError, match=rf"cannot write {tmp_path}: No space left on device"), writing_logs(tmp_path):
        write_on_a_full_disk()
    assert capfd.readouterr().err == ""


def test_other_errors_of_threads_are_shown(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_type))
    with writing_logs(tmp_path):
        failing(ZeroDivisionError())
    failing(FULL)
    assert shown == [ZeroDivisionError, OSError]


def test_both_logs_go_to_the_next_free_version(tmp_path):
    (tmp_path / "logs" / "version_3").mkdir(parents=True)
    assert {logger.log_dir for logger in make_loggers(tmp_path)} == {str(tmp_path / "logs" / "version_4")}
