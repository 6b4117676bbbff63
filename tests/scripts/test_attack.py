"""A short form of the attack: some cases of every kind, and what the attack itself must notice."""

import os
import signal

import numpy as np
import pytest

import attack
import interrupt
from attacks.child import run_limited
from attacks.kinds import KINDS
from attacks.mutate import altered, damaged
from pflow.errors import InputError


@pytest.mark.slow
def test_every_case_ends_in_success_or_in_an_error_of_pflow(tmp_path, capfd):
    code = attack.main(["--seed", "7", "--cases", str(len(KINDS)), "--keep", str(tmp_path / "failures")])
    shown = capfd.readouterr().out
    assert code == 0, shown
    assert all(kind in shown for kind in KINDS)


def refused():
    raise InputError("wrong")


def escaped():
    raise ZeroDivisionError("by zero")


def large():
    np.ones(2**31)


def long():
    while True:
        pass


def crashed():
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    ("case", "what"),
    [
        (lambda: None, "accepted"),
        (refused, "refused"),
        (escaped, "escaped ZeroDivisionError"),
        (large, "memory"),
        (long, "time"),
        (crashed, "crashed SIGSEGV"),
    ],
)
def test_the_outcome_of_a_case_is_known(tmp_path, case, what, monkeypatch):
    monkeypatch.setattr("attacks.child.WAIT", 3)
    outcome = run_limited(case, log=tmp_path / "log", seconds=1, megabytes=500)
    assert outcome.what == what
    assert outcome.failed == (what not in ("accepted", "refused"))


def test_the_same_seed_gives_the_same_damage():
    content = bytes(range(256)) * 8
    data = {"a": [1, {"b": 2}], "c": "text"}
    for seed in range(50):
        first, second = (np.random.default_rng(seed) for _ in range(2))
        assert damaged(content, first) == damaged(content, second)
        assert repr(altered(data, first)) == repr(altered(data, second))
    assert data == {"a": [1, {"b": 2}], "c": "text"}


@pytest.mark.slow
def test_what_is_left_is_whole_and_the_next_run_gives_all(capfd):
    code = interrupt.main(["--seed", "1", "--times", "3", "--only", "convert", "reconstruct"])
    assert code == 0, capfd.readouterr().out
