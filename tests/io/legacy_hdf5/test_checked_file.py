"""HDF5 never meets an error of writing: it would end the interpreter."""

from __future__ import annotations

import contextlib
import signal

import h5py
import numpy as np
import pytest

from pflow.errors import ConfigError, OutputError
from pflow.io.legacy_hdf5.checked_file import CheckedFile
from pflow.io.legacy_hdf5.writer import write_legacy


def test_what_was_written_is_read_back(tmp_path):
    with contextlib.closing(CheckedFile(tmp_path / "a.h5")) as target, h5py.File(target, "w") as file:
        file["x"] = np.arange(1000)
        file.attrs["name"] = "y"
        target.check()
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["x"][:].tolist() == list(range(1000))
        assert file.attrs["name"] == "y"


def test_behaves_as_a_file_of_bytes(tmp_path):
    target = CheckedFile(tmp_path / "a")
    assert target.readable()
    assert target.writable()
    assert target.seekable()
    target.write(b"abcdef")
    target.seek(2)
    assert target.read(3) == b"cde"
    assert target.tell() == 5
    target.seek(-1, 2)
    assert target.read(9) == b"f"
    target.truncate(3)
    target.seek(1)
    target.seek(1, 1)
    assert target.read(9) == b"c"
    target.close()
    target.close()
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_after_an_error_it_goes_on_in_memory(tmp_path, largest_file):
    target = CheckedFile(tmp_path / "a")
    target.write(b"abc")
    with largest_file(4):
        target.seek(2)
        target.write(b"defgh")
        target.truncate(100)
    with pytest.raises(OSError, match="File too large"):
        target.check()
    target.seek(0)
    assert target.read(5) == b"abdef"
    assert target.read(9) == b"gh"
    target.close()


@pytest.mark.parametrize("size", [0, 1000, 5000, 20000, 40000])
def test_a_full_disk_is_one_clear_error(tmp_path, make_photons, largest_file, size):
    events = make_photons(2000)
    with largest_file(size), pytest.raises(OutputError, match=r"cannot write .*File too large"):
        write_legacy(tmp_path / "a.h5", [events[:500], events[500:1000], events[1000:]])
    assert not list(tmp_path.iterdir())


class Stopped(BaseException):
    """What a handler of a signal raises."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_while_hdf5_writes(tmp_path, make_photons, monkeypatch, number):
    def interrupted(self, data, write=CheckedFile.write):
        signal.raise_signal(number)
        return write(self, data)

    monkeypatch.setattr(CheckedFile, "write", interrupted)
    with raising(number), pytest.raises(Stopped):
        write_legacy(tmp_path / "a.h5", make_photons(20))
    assert not list(tmp_path.iterdir())


def test_a_signal_between_chunks_is_let_through(tmp_path, make_photons):
    done = []

    def chunks():
        for k in range(5):
            done.append(k)
            if k == 2:
                signal.raise_signal(signal.SIGTERM)
            yield make_photons(20)

    with raising(signal.SIGTERM), pytest.raises(Stopped):
        write_legacy(tmp_path / "a.h5", chunks())
    assert done == [0, 1, 2]
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def raising(number):
    """Let a signal raise `Stopped`."""

    def stop(*_):
        raise Stopped

    before = signal.signal(number, stop)
    try:
        yield
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_a_file_of_pflow_is_replaced_and_no_other(tmp_path, make_photons):
    for _ in range(2):
        assert write_legacy(tmp_path / "a.h5", make_photons(3)) == 3
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(ConfigError, match="not an earlier output"):
        write_legacy(tmp_path / "b.h5", make_photons(3))
    assert write_legacy(tmp_path / "b.h5", make_photons(3), force=True) == 3
