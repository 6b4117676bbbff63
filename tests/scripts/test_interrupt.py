"""A short form of the interruptions: one of each signal."""

from __future__ import annotations

import pytest

import interrupt


@pytest.mark.slow
@pytest.mark.parametrize("job", ["convert", "reconstruct"])
def test_what_is_left_is_whole_and_the_next_run_gives_all(job, data_dir, capfd):
    assert interrupt.main(["--seed", "1", "--times", "3", "--only", job]) == 0, capfd.readouterr().out
