"""A short form of the attack: some cases of every kind, and what the attack itself must notice."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import attack
from attacks.child import run_limited
from attacks.kinds import KINDS, NEEDS
from attacks.mutate import altered, damaged
from pflow.errors import InputError

CASES = 15
"""Of each kind; `scripts/attack.py` tries thousands."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    return attack.write_originals(tmp_path_factory.mktemp("attack"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_case_ends_in_success_or_in_an_error_of_pflow(kind, originals, tmp_path, monkeypatch, capfd):
    if kind in NEEDS and not (originals / NEEDS[kind]).exists():
        pytest.skip(f"no {NEEDS[kind]}: it needs onnxruntime, or a file in $PFLOW_DATA")
    monkeypatch.setattr(attack, "write_originals", lambda _: originals)
    failures = tmp_path / "failures"
    code = attack.main(["--seed", "7", "--cases", str(CASES), "--only", kind, "--keep", str(failures)])
    shown = capfd.readouterr().out
    assert code == 0, shown
    assert shown.splitlines()[-1].split()[-6:-5] == [str(CASES)]


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
        one, other = (np.random.default_rng(seed) for _ in range(2))
        assert damaged(content, one) == damaged(content, other)
        assert repr(altered(data, one)) == repr(altered(data, other))
    assert data == {"a": [1, {"b": 2}], "c": "text"}
