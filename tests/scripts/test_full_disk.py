"""A short form of the full disks: one command on a disk that is full and on one that is not."""

from __future__ import annotations

import pytest

import full_disk


@pytest.mark.slow
def test_what_is_there_stays_and_one_line_says_why(tmp_path, monkeypatch, capfd):
    try:
        with full_disk.disk(tmp_path / "disk", 2**20):
            pass
    except SystemExit as leaving:
        pytest.skip(str(leaving))
    monkeypatch.setattr(full_disk, "SHARES", (0.5, 1.5))
    code = full_disk.main(["--only", "convert", "export"])
    shown = capfd.readouterr().out
    assert code == 0, shown
    assert [line.split()[-4:] for line in shown.splitlines()[1:]] == [["2", "1", "1", "0"]] * 2
