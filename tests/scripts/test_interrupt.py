"""A short form of the interruptions: one of each signal."""

import pytest

import interrupt


@pytest.mark.slow
def test_what_is_left_is_whole_and_the_next_run_gives_all(capfd):
    code = interrupt.main(["--seed", "1", "--times", "3", "--only", "convert", "reconstruct"])
    assert code == 0, capfd.readouterr().out
